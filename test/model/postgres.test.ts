// The PostgreSQL store against the reference model: an empty schema for every run.
import test, { after, before } from 'node:test'
import { Pool } from 'pg'
import { postgres } from '../../src/store/postgres/index.ts'
import type { VirtualClock } from '../../src/testing/index.ts'
import { type Database, testDatabase } from '../support/postgres.ts'
import { Schemas } from '../support/schemas.ts'
import { runModel, runStories } from './run.ts'

let database: Database
let pool: Pool
let schemas: Schemas

before(async () => {
  database = await testDatabase()
  pool = new Pool({ connectionString: database.url, max: 10 })
  pool.on('error', () => {}) // a connection that is closing may still be notified that its database is dropped
  schemas = new Schemas(pool, 'model')
})

after(async () => {
  await pool.end()
  await database[Symbol.asyncDispose]()
})

async function inSchema(clock: VirtualClock) {
  const schema = await schemas.take()
  const store = await postgres({ pool, schema })({ clock })
  const close = () => store.close().then(() => schemas.giveBack(schema))
  return new Proxy(store, {
    get: (target, name) => {
      const member = name === 'close' ? close : target[name as keyof typeof target]
      return typeof member === 'function' ? member.bind(target) : member
    },
  })
}

// Without moves of flows: the model does not know yet which of two refused effects a checkpoint names here, nor which wake-ups
// are still to come. The stories have flows, and the conformance suite has their promises.
test('the store agrees with the model in random runs', (t) => runModel(t, inSchema, { runs: 25, hasFlows: false }))

test('the store agrees with the model in every story', (t) => runStories(t, inSchema))
