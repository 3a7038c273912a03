// A short round on one file: everything at once, and everything that can happen to it. `npm run torture` goes on for longer.
import { test } from 'node:test'
import { assertRound } from './short.ts'
import { sqliteSite } from './site.ts'

test('a fleet on one file keeps every promise while it is tortured', async (t) => {
  await using site = await sqliteSite()
  await assertRound(t, site)
})
