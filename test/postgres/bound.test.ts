// Rows ahead of the bound that no claim may take, because they are uncommitted or cancelled, are scanned once.
// The bound is then a number that no transaction has had yet. A transaction that gets this number later must not be skipped.
import assert from 'node:assert/strict'
import test from 'node:test'
import { boundMovesToTheEnd, gaps, gapsFromTheBoundOn } from './rules.ts'
import { type CallerTx, forBothClaims, inWorld, useDatabase, type World } from './world.ts'

useDatabase()

const many = 30_000

/** Enqueues with one statement, in the transaction that it is given. */
async function enqueueMany(world: World, tx: Pick<CallerTx, 'run'>): Promise<void> {
  const lane = await world.lane('mail')
  await tx.run(
    `insert into holdfast.job (seq, ord, ready_xid, run_at, created_at, id, lane, max_attempts, payload)
     select n, n, pg_current_xact_id(), 0, 0, gen_random_uuid(), $1, 5, '"one of many"'
       from (select nextval('holdfast.number') as n from generate_series(1, $2)) u`,
    [lane, many],
  )
  await tx.run(
    `insert into holdfast.tally (xid, queue, ready) select pg_current_xact_id(), queue, $2 from holdfast.lane where no = $1`,
    [lane, many],
  )
}

async function uncommittedAhead(world: World) {
  await world.enqueue('mail', 'first')
  await world.claim()
  const before = BigInt((await world.cursor('mail')).xid)
  const tx = await world.begin()
  await enqueueMany(world, tx)
  const xid = BigInt(await tx.xid())
  await world.rows('select pg_current_xact_id()') // a later transaction that ends, so that the scan reaches their rows
  assert.deepEqual(await world.claim(), [])
  const after = await world.cursor('mail')
  await tx.commit()
  const taken = await world.claim('mail', 10_000)
  return { before, xid, after, taken }
}

test(
  'a claim that scanned 30,000 uncommitted jobs moves the bound past them, and they are claimed after their commit',
  inWorld(async (world) => {
    const { before, xid, after, taken } = await uncommittedAhead(world)
    assert.ok(before <= xid && xid < BigInt(after.xid), `the bound moved past ${xid}: from ${before} to ${after.xid}`)
    assert.ok(after.gap_xids.includes(String(xid)))
    assert.equal(taken.length, 10_000)
    for (let left = many - 10_000; left > 0; left -= 10_000) await world.claim('mail', 10_000)
    assert.deepEqual(await world.claim(), [])
    assert.equal((await world.holdfast.stats()).running, many + 1)
  }),
)

test(
  'if the bound moves past uncommitted jobs without gaps, all of them are skipped',
  inWorld(async (world) => assert.equal((await uncommittedAhead(world)).taken.length, 0), { without: [gaps] }),
)

test(
  'if the bound stays, the next claim scans the same jobs again',
  inWorld(
    async (world) => {
      const { xid, after } = await uncommittedAhead(world)
      assert.ok(BigInt(after.xid) <= xid)
    },
    { without: [boundMovesToTheEnd] },
  ),
)

async function cancelledAhead(world: World): Promise<{ moved: boolean; slowMs: number; quickMs: number }> {
  await world.enqueue('mail', 'first')
  await world.claim()
  const old = await world.begin('begin isolation level repeatable read')
  await enqueueMany(world, { run: (text, values) => world.rows(text, values) })
  const [xid] = await world.rows(`select distinct ready_xid::text as xid from holdfast.job where payload like '%many%'`)
  await old.run('select') // an old snapshot keeps the rows of deleted jobs from being removed
  await world.rows(`delete from holdfast.job where payload like '%many%'`)
  await world.rows(
    'insert into holdfast.tally (xid, queue, ready) select pg_current_xact_id(), queue, $1 from holdfast.lane',
    [-many],
  )
  const timed = async () => {
    const began = performance.now()
    assert.deepEqual(await world.claim(), [])
    return performance.now() - began
  }
  const slowMs = await timed()
  const quickMs = Math.min(await timed(), await timed(), await timed())
  const moved = BigInt((await world.cursor('mail')).xid) > BigInt(xid?.['xid'] as string)
  await old.commit()
  return { moved, slowMs, quickMs }
}

test(
  'a claim that scanned 30,000 cancelled jobs moves the bound past them, also while an old snapshot keeps their rows',
  inWorld(async (world) => assert.equal((await cancelledAhead(world)).moved, true)),
)

test(
  'if the bound stays, every claim scans the cancelled jobs',
  inWorld(async (world) => assert.equal((await cancelledAhead(world)).moved, false), { without: [boundMovesToTheEnd] }),
)

/** An open transaction has the number that is the bound. */
async function numberOfTheBound(world: World): Promise<unknown[][]> {
  await world.enqueue('mail', 'first')
  await world.claim()
  const a = await world.begin()
  await world.setCursor('mail', await a.xid())
  await a.enqueue('mail', 'a')
  await world.enqueue('mail', 'b')
  const first = await world.claim()
  await a.commit()
  return [first, await world.claim()]
}

test(
  'the transaction whose number is the bound becomes a gap like those after it',
  forBothClaims(async (world) => assert.deepEqual(await numberOfTheBound(world), [['b'], ['a']])),
)

test(
  'if gaps begin after the old bound, the job of the transaction at the bound is skipped',
  forBothClaims(async (world) => assert.deepEqual(await numberOfTheBound(world), [['b'], []]), {
    without: [gapsFromTheBoundOn],
  }),
)

test(
  'a job of the transaction whose number is the bound is claimed when it commits before the next claim',
  inWorld(async (world) => {
    await world.enqueue('mail', 'first')
    await world.claim()
    const a = await world.begin()
    await a.enqueue('mail', 'a')
    await world.setCursor('mail', await a.xid())
    await a.commit()
    assert.deepEqual(await world.claim(), ['a'])
  }),
)

/** The count of ready jobs is too low, as if jobs had been added after it. Returns how many jobs three claims then take. */
async function claimsAfterSeeingFew(world: World): Promise<number[]> {
  await world.withoutRule({ from: 'limit v_few + 1', to: 'limit v_few - 1' })
  await world.holdfast.queue('mail').enqueueMany(Array.from({ length: 20 }, (_, payload) => ({ payload })))
  const taken: number[] = []
  for (let n = 0; n < 3; n++) taken.push((await world.claim()).length)
  return taken
}

test(
  'if there are more jobs than were counted, a claim takes some and later claims take the rest',
  inWorld(async (world) => assert.deepEqual(await claimsAfterSeeingFew(world), [8, 8, 4])),
)

test(
  'if a claim that reached its limit assumes that no jobs are left, the other jobs are skipped',
  inWorld(async (world) => assert.deepEqual(await claimsAfterSeeingFew(world), [8, 0, 0]), {
    without: [{ from: 'case when v_taken < v_few then v_taken end', to: 'v_taken' }],
  }),
)

for (const count of [7, 8, 9, 10]) {
  test(
    `${count} ready jobs are claimed at once, and in groups of the requested size`,
    inWorld(async (world) => {
      const enqueue = () =>
        world.holdfast.queue('mail').enqueueMany(Array.from({ length: count }, (_, n) => ({ payload: n })))
      const all = Array.from({ length: count }, (_, n) => n)
      await enqueue()
      assert.deepEqual(await world.claim(), all)
      await enqueue()
      assert.deepEqual(await world.claim('mail', 3), all.slice(0, 3))
      assert.deepEqual(await world.claim(), all.slice(3))
    }),
  )
}
