// A short round on one server: everything at once, and everything that can happen to it. `npm run torture` goes on for
// longer.
import { test } from 'node:test'
import { assertRound } from './short.ts'
import { postgresSite } from './site.ts'

test('a fleet on one server keeps every promise while it is tortured', async (t) => {
  await using site = await postgresSite()
  await assertRound(t, site)
})
