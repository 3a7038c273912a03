// The PostgreSQL store against the reference model: a schema of its own for every run.
import test, { after, before } from 'node:test'
import { Pool } from 'pg'
import { postgres } from '../../src/store/postgres/index.ts'
import type { VirtualClock } from '../../src/testing/index.ts'
import { type Database, testDatabase } from '../support/postgres.ts'
import { runModel, tellStories } from './run.ts'

let database: Database
let pool: Pool
let schemas = 0

before(async () => {
  database = await testDatabase()
  pool = new Pool({ connectionString: database.url, max: 10 })
  pool.on('error', () => {}) // a connection on its way out may still hear that its database goes
})

after(async () => {
  await pool.end()
  await database[Symbol.asyncDispose]()
})

const inSchema = (clock: VirtualClock) => postgres({ pool, schema: `model ${schemas++}` })({ clock })

test('the store does what the model says', (t) => runModel(t, inSchema, { runs: 25 }))

test('the store does what the model says when', (t) => tellStories(t, inSchema))
