// A short torture round on one file, with every kind of process and fault. `npm run torture` runs longer.
import { test } from 'node:test'
import { assertRound } from './short.ts'
import { sqliteSite } from './site.ts'

test('a fleet on one file keeps every promise while faults are injected', async (t) => {
  await using site = await sqliteSite()
  await assertRound(t, site)
})
