// A short torture round on one server, with every kind of process and fault. `npm run torture` runs longer.
import { test } from 'node:test'
import { assertRound } from './short.ts'
import { postgresSite } from './site.ts'

test('a fleet on one server keeps every promise while faults are injected', async (t) => {
  await using site = await postgresSite()
  await assertRound(t, site)
})
