import { after, before } from 'node:test'
import { Pool, type PoolClient } from 'pg'
import { open } from '../../src/open.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { type Database, testDatabase } from '../support/postgres.ts'
import { conformance } from './index.ts'
import type { CallerTx, SqlHand } from './world.ts'

let database: Database
let pool: Pool
let schemas = 0

before(async () => {
  database = await testDatabase()
  pool = new Pool({ connectionString: database.url, max: 20 })
  pool.on('error', () => {}) // a connection on its way out may still hear that its database goes
})

after(async () => {
  await pool.end()
  await database[Symbol.asyncDispose]()
})

conformance({
  name: 'postgres',
  speaksSql: true,
  async open() {
    const clock = new VirtualClock()
    const schema = `test ${schemas++}`
    const client = (options = {}) => open(postgres({ pool, schema }), { clock, ...options })
    const transactions: PostgresTx[] = []
    const sql: SqlHand = {
      schema: `"${schema}"`,
      query: async (text, values = []) => (await pool.query(text, [...values])).rows,
      begin: async (how = '') => {
        const tx = new PostgresTx(await pool.connect())
        transactions.push(tx)
        await tx.query(`begin ${how}`)
        return tx
      },
      end: async () => {
        for (const tx of transactions) await tx.rollback()
      },
    }
    return { clock, client, sql, close: async () => void (await pool.query(`drop schema "${schema}" cascade`)) }
  },
})

class PostgresTx implements CallerTx {
  readonly #client: PoolClient
  #isOpen = true

  constructor(client: PoolClient) {
    this.#client = client
  }

  query(text: string, values: readonly unknown[] = []) {
    return this.#client.query(text, [...values])
  }

  commit(): Promise<void> {
    return this.#end('commit')
  }

  rollback(): Promise<void> {
    return this.#end('rollback')
  }

  async #end(how: string): Promise<void> {
    if (!this.#isOpen) return
    this.#isOpen = false
    await this.#client.query(how)
    this.#client.release()
  }
}
