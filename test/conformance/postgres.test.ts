import { after, before } from 'node:test'
import { Pool } from 'pg'
import { open } from '../../src/open.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { type Database, testDatabase } from '../support/postgres.ts'
import { conformance } from './index.ts'

let database: Database
let pool: Pool
let schemas = 0

before(async () => {
  database = await testDatabase()
  pool = new Pool({ connectionString: database.url, max: 20 })
})

after(async () => {
  await pool.end()
  await database[Symbol.asyncDispose]()
})

conformance({
  name: 'postgres',
  async open() {
    const clock = new VirtualClock()
    const schema = `test ${schemas++}`
    const client = () => open(postgres({ pool, schema }), { clock })
    return { clock, client, close: async () => void (await pool.query(`drop schema "${schema}" cascade`)) }
  },
})
