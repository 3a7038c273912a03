// Nothing hides behind the claim position, nothing that was rolled back runs, and order holds where it is promised.
//   HOLDFAST_EXACTNESS_SECONDS=600 HOLDFAST_EXACTNESS_SEED=1 npm test -- test/postgres/exactness.test.ts
// The seed replays what the producers and claimers do; which of them the server serves first is its own affair.
import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import pg from 'pg'
import { open } from '../../src/open.ts'
import { claim } from '../../src/store/postgres/schema/functions/claim.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { type Database, testDatabase } from '../support/postgres.ts'
import { assertExact, Exactness, type Verdict } from './exactness.ts'
import { assertRecount } from './exactness-recount.ts'

const seconds = Number(process.env['HOLDFAST_EXACTNESS_SECONDS'] ?? 8)

test('everything committed is claimed exactly once and in order, and nothing that was rolled back', async (t) => {
  await using database = await testDatabase()
  assertExact(await run(t, database, { seed: seedOf(), ms: seconds * 1_000 }))
  await using client = await connect(database)
  const counts = await assertRecount(client.pg)
  for (const { scheduled, ready, running } of counts.values())
    assert.deepEqual([scheduled, ready, running], [0, 0, 0], 'nothing is left')
  assert.deepEqual((await client.pg.query('select count(*)::int as n from holdfast.job')).rows, [{ n: 0 }])
})

// The judge can fail: it finds what a claim hides that does not remember which transactions were open.
test('a claim without gaps is found out', async (t) => {
  const known = 'where x.xid >= v_cursor.xid and x.xid < v_next.xid'
  assert.ok(claim.includes(known), 'the claim records gaps where this test takes them out')
  const text = /create function holdfast\.claim\([\s\S]*?end \$holdfast\$;/.exec(claim)?.[0] ?? ''
  const forgetful = text.replace('create function', 'create or replace function').replace(known, 'where false')
  assert.ok(forgetful.includes('where false') && !forgetful.includes(known))
  for (let round = 0; round < 20; round++) {
    await using database = await testDatabase()
    await (await open(database.url)).close()
    await using client = await connect(database)
    await client.pg.query(new Schema('holdfast').sql(forgetful))
    const { hidden } = await run(t, database, { seed: seedOf() + round, ms: 1_500 })
    if (hidden.length > 0) return
  }
  assert.fail('it hid nothing that the judge could see')
})

async function run(
  t: TestContext,
  database: Database,
  { seed, ms }: { readonly seed: number; readonly ms: number },
): Promise<Verdict> {
  t.diagnostic(`HOLDFAST_EXACTNESS_SEED=${seed}`)
  const verdict = await new Exactness(database, seed).run(ms)
  const { transactions, committed, rolledBack, claims, hidden } = verdict
  t.diagnostic(
    `${transactions} transactions, ${committed} jobs committed, ${rolledBack} undone, ${claims} claims, ${hidden.length} hidden`,
  )
  return verdict
}

function seedOf(): number {
  return Number(process.env['HOLDFAST_EXACTNESS_SEED'] ?? Date.now() % 0x7fffffff)
}

async function connect(database: Database): Promise<AsyncDisposable & { readonly pg: pg.Client }> {
  const client = new pg.Client({ connectionString: database.url })
  await client.connect()
  return { pg: client, [Symbol.asyncDispose]: () => client.end() }
}
