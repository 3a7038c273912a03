import assert from 'node:assert/strict'
import { after, before } from 'node:test'
import { Pool } from 'pg'
import { open } from '../../src/open.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { type Database, testDatabase } from '../support/postgres.ts'
import { Schemas } from '../support/schemas.ts'
import { conformance } from './index.ts'
import { postgresApplication, postgresDialect } from './sql-postgres.ts'
import type { KeptText, Overwrite } from './world.ts'

let database: Database
let pool: Pool
let schemas: Schemas

before(async () => {
  database = await testDatabase()
  pool = new Pool({ connectionString: database.url, max: 20 })
  pool.on('error', () => {}) // a connection that is closing may still be notified that its database is dropped
  schemas = new Schemas(pool, 'test')
})

after(async () => {
  await pool.end()
  await database[Symbol.asyncDispose]()
})

conformance({
  name: 'postgres',
  runsSql: true,
  dialect: postgresDialect,
  canBeDamaged: true,
  async open() {
    const clock = new VirtualClock()
    const schema = await schemas.take()
    const client = (options = {}) => open(postgres({ pool, schema }), { clock, logger: false, ...options })
    const store = () => postgres({ pool, schema })({ clock })
    const sql = postgresApplication(pool, schema)
    const overwrite: Overwrite = async (part, id, text) => {
      const { rowCount } = await pool.query(`update "${schema}".${places[part]}`, [text, id])
      assert.equal(rowCount, 1, `${part} of ${id} is there to be overwritten`)
    }
    const close = () => schemas.giveBack(schema)
    return { clock, client, store, sql, overwrite, close }
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
