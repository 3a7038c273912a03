import assert from 'node:assert/strict'
import { after, before } from 'node:test'
import { Pool, type PoolClient } from 'pg'
import { open } from '../../src/open.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { type Database, testDatabase } from '../support/postgres.ts'
import { conformance } from './index.ts'
import type { CallerTx, KeptText, Overwrite, SqlHand } from './world.ts'

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
  canBeDamaged: true,
  async open() {
    const clock = new VirtualClock()
    const schema = `test ${schemas++}`
    const client = () => open(postgres({ pool, schema }), { clock })
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
    const overwrite: Overwrite = async (part, id, text) => {
      const { rowCount } = await pool.query(`update "${schema}".${places[part]}`, [text, id])
      assert.equal(rowCount, 1, `${part} of ${id} is there to be overwritten`)
    }
    return {
      clock,
      client,
      sql,
      overwrite,
      close: async () => void (await pool.query(`drop schema "${schema}" cascade`)),
    }
  },
})

const places: Readonly<Record<KeptText, string>> = {
  payload: 'job set payload = $1 where id = $2',
  headers: 'job set headers = $1 where id = $2',
  past: 'job set past = $1 where id = $2',
  cancel: 'job set cancel = $1 where id = $2',
  result: 'ended set result = $1 where id = $2',
  error: 'ended set error = $1 where id = $2',
  value: 'kv set value = $1 where key = $2',
}

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
