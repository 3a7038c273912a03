// Query plans do not flip. Whatever the statistics and the contents of the tables, each verb touches about as many blocks as
// in a table of a few jobs. Judged by blocks, never by time.
import assert from 'node:assert/strict'
import { after, before, type TestContext, test } from 'node:test'
import { type Server, startServer } from '../support/postgres.ts'
import {
  type Costs,
  claim,
  costs,
  fill,
  fillJournals,
  fillQuickly,
  journalCosts,
  passAll,
  TestDatabase,
} from './plans.ts'

let server: Server

before(async () => {
  server = await startServer({ inMemory: true })
})

after(() => server[Symbol.asyncDispose]())

/** Deeper trees and fuller pages are fine. A scan of a table is not: 100,000 jobs are some 1,800 blocks. */
const factor = 2
const slack = 200

for (const planned of [0, 1, 100]) {
  test(`the plans that a session made for ${planned} jobs are good for 100,000`, async (t) => {
    await using database = await TestDatabase.make(server)
    const session = await database.session()
    if (planned > 0) await fill(session, 'mail', planned)
    await session.query('analyze')
    const few = await costs(session)
    await fill(await database.session(), 'mail', 100_000)
    judge(t, few, await costs(session), 'in the same session')
    judge(t, few, await costs(await database.session()), 'in a new session, with old statistics')
    await session.query('analyze')
    judge(t, few, await costs(await database.session()), 'in a new session, with new statistics')
  })
}

test('checkpoints, signals and deliveries cost no more among 50,000 parked jobs with journals, messages and keys', async (t) => {
  await using database = await TestDatabase.make(server)
  const session = await database.session()
  const few = await journalCosts(session)
  await fillJournals(await database.session(), 50_000)
  judge(t, few, await journalCosts(session), 'in the same session')
  judge(t, few, await journalCosts(await database.session()), 'in a new session, with old statistics')
  await session.query('analyze')
  judge(t, few, await journalCosts(await database.session()), 'in a new session, with new statistics')
})

test('statistics of a full table do no harm when it is emptied', async (t) => {
  await using database = await TestDatabase.make(server)
  const few = await costs(await database.session())
  const session = await database.session()
  await fill(session, 'mail', 50_000)
  await session.query('analyze')
  await costs(session) // makes the plans
  await passAll(session, 'mail')
  await session.query('delete from holdfast.job') // no analyze follows
  await session.query('vacuum (truncate off) holdfast.job')
  judge(t, few, await costs(session), 'in a session that saw it full')
  judge(t, few, await costs(await database.session()), 'in a new session')
})

test('a million jobs behind the cursor are not scanned', async (t) => {
  await using database = await TestDatabase.make(server)
  const session = await database.session()
  const few = await costs(session)
  await fillQuickly(session, 'mail', 1_000_000)
  await passAll(session, 'mail')
  judge(t, few, await costs(session), 'in the same session')
  judge(t, few, await costs(await database.session()), 'in a new session')
  const empty = await claim(session, 'mail', 50)
  assert.equal(empty.count, 0)
  assert.ok(empty.cost < (few['claim'] ?? 0) * factor + slack, `an empty claim touched ${empty.cost} blocks`)
})

test('among 1,000 lanes a claim of one costs no more, and a claim of all reads a few blocks of each', async (t) => {
  await using database = await TestDatabase.make(server)
  const session = await database.session()
  const few = await costs(session)
  await session.query(
    `select holdfast.open_lanes(array_agg('queue ' || n), array_agg(5::smallint), 0, 0) from generate_series(1, 998) n`,
  )
  judge(t, few, await costs(session), 'in the same session')
  judge(t, few, await costs(await database.session()), 'in a new session')
  await claim(session, null, 50)
  const idle = await claim(session, null, 50)
  await fill(session, 'queue 500', 20)
  const busy = await claim(session, null, 50)
  t.diagnostic(`a claim of all: ${idle.cost} blocks idle, ${busy.cost} with one lane busy`)
  assert.deepEqual([idle.count, busy.count], [0, 20])
  // For both lanes of a priority: its cursor, and a look at ready jobs, gaps and overdue ones.
  for (const { cost } of [idle, busy]) assert.ok(cost < 2 * 1_000 * 12, `touched ${cost} blocks`)
})

function judge(t: TestContext, few: Costs, now: Costs, when: string): void {
  const changes = Object.entries(now).map(([verb, cost]) => `${verb} ${few[verb]} → ${cost}`)
  t.diagnostic(`${when}: ${changes.join(', ')}`)
  const costlier = Object.entries(now).filter(([verb, cost]) => cost > (few[verb] ?? 0) * factor + slack)
  assert.deepEqual(costlier, [], `verbs that touch many more blocks ${when}`)
}
