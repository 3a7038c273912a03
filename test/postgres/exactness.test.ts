// No job is skipped by claims, no job of a rolled-back transaction runs, and jobs are claimed in the promised order.
//   HOLDFAST_EXACTNESS_SECONDS=600 HOLDFAST_EXACTNESS_SEED=1 npm test -- test/postgres/exactness.test.ts
// The seed replays what the producers and claimers do. The order in which the server serves them is not replayed.
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

test('every committed job is claimed exactly once and in order, and no job of a rolled-back transaction is claimed', async (t) => {
  await using database = await testDatabase()
  assertExact(await run(t, database, { seed: seedOf(), ms: seconds * 1_000 }))
  await using client = await connect(database)
  const counts = await assertRecount(client.pg)
  for (const { scheduled, ready, running } of counts.values())
    assert.deepEqual([scheduled, ready, running], [0, 0, 0], 'nothing is left')
  assert.deepEqual((await client.pg.query('select count(*)::int as n from holdfast.job')).rows, [{ n: 0 }])
})

// The check can fail: it finds the jobs that are skipped by a claim without a record of open transactions.
test('a claim without gaps is detected', async (t) => {
  const known = 'where x.xid >= v_cursor.xid and x.xid < v_next.xid'
  assert.ok(claim.includes(known), 'the claim has the text that this test removes')
  const text = /create function holdfast\.claim\([\s\S]*?end \$holdfast\$;/.exec(claim)?.[0] ?? ''
  const withoutGaps = text.replace('create function', 'create or replace function').replace(known, 'where false')
  assert.ok(withoutGaps.includes('where false') && !withoutGaps.includes(known))
  for (let round = 0; round < 20; round++) {
    await using database = await testDatabase()
    await (await open(database.url)).close()
    await using client = await connect(database)
    await client.pg.query(new Schema('holdfast').sql(withoutGaps))
    const { hidden } = await run(t, database, { seed: seedOf() + round, ms: 1_500 })
    if (hidden.length > 0) return
  }
  assert.fail('no skipped job was found')
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
