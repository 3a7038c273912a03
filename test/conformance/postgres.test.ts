import { after, before } from 'node:test'
import { Pool } from 'pg'
import { open } from '../../src/open.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { type Database, testDatabase } from '../support/postgres.ts'
import { conformance } from './index.ts'
import { postgresDialect, postgresHand } from './sql-postgres.ts'

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
  runsSql: true,
  dialect: postgresDialect,
  async open() {
    const clock = new VirtualClock()
    const schema = `test ${schemas++}`
    const client = (options = {}) => open(postgres({ pool, schema }), { clock, ...options })
    const sql = postgresHand(pool, schema)
    return { clock, client, sql, close: async () => void (await pool.query(`drop schema "${schema}" cascade`)) }
  },
})
