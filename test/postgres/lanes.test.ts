// One claim over many lanes. A queue has one lane for each priority, and beside it one for jobs that were released or rescued.
import assert from 'node:assert/strict'
import test from 'node:test'
import { gaps, lanesWithJobsFirst, peekAtGaps } from './rules.ts'
import { inWorld, type Rule, useDatabase, type World } from './world.ts'

useDatabase()

async function latePriorities(world: World): Promise<unknown[][]> {
  const late = await world.begin()
  for (const priority of [9, 5, 0]) await late.enqueue('mail', `late ${priority}`, { priority })
  for (const priority of [9, 5, 0]) await world.enqueue('mail', `early ${priority}`, { priority })
  const first = await world.claim()
  await late.commit()
  return [first, await world.claim('mail', 2), await world.claim()]
}

test(
  'jobs of a late commit are claimed in every priority, the first priority first',
  inWorld(async (world) => {
    assert.deepEqual(await latePriorities(world), [['early 0', 'early 5', 'early 9'], ['late 0', 'late 5'], ['late 9']])
  }),
)

test(
  'without gaps, jobs of a late commit are skipped in every priority',
  inWorld(async (world) => assert.deepEqual((await latePriorities(world)).slice(1), [[], []]), { without: [gaps] }),
)

test(
  'a claim over priorities spends its limit on the first priorities; jobs of the others keep their place',
  inWorld(async (world) => {
    const late = await world.begin()
    for (const priority of [0, 9]) await late.enqueue('mail', `late ${priority}`, { priority })
    for (const priority of [0, 9]) await world.enqueue('mail', `early ${priority}`, { priority })
    assert.deepEqual(await world.claim('mail', 1), ['early 0'])
    await late.commit()
    assert.deepEqual(await world.claim('mail', 1), ['late 0'])
    assert.deepEqual(await world.claim('mail', 5), ['late 9', 'early 9'])
  }),
)

test(
  'a claim over several queues takes them in the order named, each with its own gaps',
  inWorld(async (world) => {
    const late = await world.begin()
    for (const queue of ['a', 'b', 'c']) await late.enqueue(queue, `late ${queue}`)
    for (const queue of ['a', 'b', 'c']) await world.enqueue(queue, `early ${queue}`)
    assert.deepEqual(await world.claim(['c', 'a']), ['early c', 'early a'])
    await late.commit()
    assert.deepEqual(await world.claim(['c', 'b', 'a']), ['late c', 'late b', 'early b', 'late a'])
  }),
)

const names = (count: number) => Array.from({ length: count }, (_, i) => `q${String(i).padStart(2, '0')}`)

async function enqueueEach(world: World, queues: readonly string[]): Promise<void> {
  for (const queue of queues) await world.enqueue(queue, `early ${queue}`)
}

async function lateInManyLanes(world: World): Promise<unknown[][]> {
  const queues = names(12)
  const late = await world.begin()
  await late.enqueue('q07', 'late')
  await enqueueEach(world, queues)
  const first = await world.claim('*')
  const between = await world.claim('*')
  await late.commit()
  return [first, between, await world.claim('*'), await world.claim('*')]
}

const early = (count: number) => names(count).map((queue) => `early ${queue}`)

test(
  'a claim over many lanes locks only those with work, and a late commit counts as work',
  inWorld(async (world) => assert.deepEqual(await lateInManyLanes(world), [early(12), [], ['late'], []])),
)

test(
  'if the look at many lanes ignores gaps, jobs of a late commit are skipped',
  inWorld(async (world) => assert.deepEqual(await lateInManyLanes(world), [early(12), [], [], []]), {
    without: [peekAtGaps],
  }),
)

test(
  'more than 64 lanes with work are claimed in parts, in order, and none is left out',
  inWorld(async (world) => {
    const queues = names(70)
    await enqueueEach(world, queues)
    const taken: unknown[][] = []
    for (let part = await world.claim('*', 1_000); part.length > 0; part = await world.claim('*', 1_000))
      taken.push(part)
    assert.deepEqual(taken.flat(), early(70))
    assert.ok(taken.length > 1, 'one claim locks a bounded number of lanes')
  }),
)

async function behindManyEndedGaps(world: World): Promise<unknown[]> {
  await enqueueEach(world, names(70))
  while ((await world.claim('*', 1_000)).length > 0);
  const undone = await world.begin()
  await undone.xid()
  await enqueueEach(world, names(70))
  await world.claim('*', 1_000)
  await undone.rollback()
  // A single claim by SQL: the client would try a second time.
  const claim = `select payloads from holdfast.claim(gen_random_uuid(), 'once', 1000, 1000, null, '{}', null)`
  return (await world.rows(claim)).map(({ payloads }) => JSON.parse(payloads as string))
}

test(
  'lanes where only gaps have ended do not take the places of lanes with jobs',
  inWorld(async (world) => assert.deepEqual(await behindManyEndedGaps(world), early(70).slice(64))),
)

test(
  'if lanes with ended gaps kept their turn, a claim would return nothing although there are jobs',
  inWorld(
    async (world) => {
      // Usually. A stranger's transaction that was a gap of another lane may have taken a place in the claim before.
      const brought = await behindManyEndedGaps(world)
      assert.ok(brought.length < 6, `${brought.length} jobs of 6`)
    },
    { without: [lanesWithJobsFirst] },
  ),
)

test(
  'late commits in more than 64 lanes are all claimed',
  inWorld(async (world) => {
    const queues = names(70)
    const late = await world.begin()
    for (const queue of queues) await late.enqueue(queue, `late ${queue}`)
    await enqueueEach(world, queues)
    while ((await world.claim('*', 1_000)).length > 0);
    await late.commit()
    const taken: unknown[] = []
    for (let part = await world.claim('*', 1_000); part.length > 0; part = await world.claim('*', 1_000))
      taken.push(...part)
    assert.deepEqual(
      taken,
      queues.map((queue) => `late ${queue}`),
    )
  }),
)

/** If the look at many lanes is slow, a claim must move the bound of the lane that is slow. */
const slowLanesAreVisited: Rule = { from: 'if v_slow then', to: 'if false then' }

// An ended gap and a slow look are reasons to lock a lane, so this test excludes both.
test(
  'a claim of many lanes does not wait for a locked lane without work',
  inWorld(
    async (world) => {
      await enqueueEach(world, names(12))
      await world.claim('*')
      const other = await world.begin()
      await world.setCursor('q03', await other.xid())
      await other.run('select holdfast.lock_lanes(array[$1::int])', [await world.lane('q03')])
      await world.enqueue('q08', 'work')
      assert.deepEqual(await world.claim('*'), ['work'])
      await other.commit()
    },
    { without: [slowLanesAreVisited] },
  ),
)

async function manyAheadInOneLane(world: World): Promise<boolean> {
  await enqueueEach(world, names(12))
  await world.claim('*')
  const tx = await world.begin()
  await tx.run(
    `insert into holdfast.job (seq, ord, ready_xid, run_at, created_at, id, lane, max_attempts, payload)
     select n, n, pg_current_xact_id(), 0, 0, gen_random_uuid(), $1, 5, '"one of many"'
       from (select nextval('holdfast.number') as n from generate_series(1, 50000)) u`,
    [await world.lane('q04')],
  )
  const xid = await tx.xid()
  await world.rows('select pg_current_xact_id()') // a later transaction that ends, so that the look reaches their rows
  await world.setCursor('q04', xid) // without gaps: an ended gap would be a reason to lock the lane
  assert.deepEqual(await world.claim('*'), [])
  const moved = BigInt((await world.cursor('q04')).xid) > BigInt(xid)
  await tx.rollback()
  assert.deepEqual(await world.claim('*'), [])
  return moved
}

test(
  'a claim over many lanes locks one with 50,000 uncommitted jobs ahead, so that its bound moves past them',
  inWorld(async (world) => assert.equal(await manyAheadInOneLane(world), true)),
)

test(
  'if slow lanes are not locked, the bound stays and every look scans those jobs',
  inWorld(async (world) => assert.equal(await manyAheadInOneLane(world), false), { without: [slowLanesAreVisited] }),
)
