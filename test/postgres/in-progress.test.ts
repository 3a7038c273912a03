// Changes to a job while a claim is in progress: the transaction that locks the lane first decides, and the other sees the
// result.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { isRefused } from '../../src/errors.ts'
import type { Lease } from '../../src/lease/lease.ts'
import { systemClock } from '../../src/runtime/clock.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { claimOne, deadJob, readJob, rejects } from '../conformance/expect.ts'
import { clockAfterLock, gaps, laneLock, readAfterLock } from './rules.ts'
import {
  type CallerTx,
  forBothClaims,
  inWorld,
  newPool,
  type Rule,
  requeueInProgress,
  until,
  useDatabase,
  type World,
} from './world.ts'

useDatabase()

/** A transaction that must know whether a job waits locks the job's lane. */
const noLocks: Rule = { from: 'perform pg_advisory_xact_lock(LANE_LOCKS, v_lane);', to: 'null;' }
const noLockToReplace: Rule = { from: 'perform pg_advisory_xact_lock(LANE_LOCKS, v_holder.lane);', to: 'null;' }

const claimMail = `select unnest(ids) as id from holdfast.claim($1, 'worker', 60000, 10, '{mail}', '{}', null)`

/** A claim that has taken its jobs and has not committed yet. */
async function claimInProgress(world: World): Promise<{ tx: CallerTx; ids: unknown[] }> {
  const tx = await world.begin()
  const rows = await tx.run(claimMail, [randomUUID()])
  return { tx, ids: rows.map(({ id }) => id) }
}

/** An open transaction holds the lane's lock. */
async function lockLane(world: World): Promise<CallerTx> {
  const tx = await world.begin()
  await tx.run('select holdfast.lock_lanes(array[$1::int])', [await world.lane('mail')])
  return tx
}

/** Whether `answered` waits for a lock; then `tx` ends. */
async function waitsFor(world: World, answered: Promise<unknown>, end: () => Promise<void>): Promise<boolean> {
  const isDone = answered.then(
    () => true,
    () => true,
  )
  const hasWaited = !(await Promise.race([isDone, world.waiters(1).then(() => false)]))
  await end()
  return hasWaited
}

test(
  'two claims of one lane run one after the other, and no job is in both',
  inWorld(async (world) => {
    await world.enqueue('mail', 'a')
    const { tx, ids } = await claimInProgress(world)
    assert.equal(ids.length, 1)
    const second = world.claim()
    assert.equal(await waitsFor(world, second, () => tx.commit()), true)
    assert.deepEqual(await second, [])
  }),
)

for (const [what, without] of [
  ['if lanes are not locked', [laneLock]],
  ['if the lane is locked by the statement that reads the cursor', [laneLock, readAfterLock]],
] as const) {
  test(
    `${what}, two claims take the same job`,
    inWorld(
      async (world) => {
        const taken: unknown[][] = [] // on a busy machine the second claim may be too late to show it
        for (let round = 0; round < 5 && !taken.some((payloads) => payloads.includes('a')); round++) {
          await world.enqueue('mail', 'a')
          const { tx } = await claimInProgress(world)
          const second = world.claim()
          await world.waiters(1, 0, 'claim(') // for the cursor that the first has replaced
          await tx.commit()
          taken.push(await second)
        }
        assert.deepEqual(taken.at(-1), ['a'])
      },
      { without },
    ),
  )
}

test(
  'a claim that was rolled back leaves its jobs to the claim that waited for it',
  inWorld(async (world) => {
    await world.enqueue('mail', 'a')
    const { tx } = await claimInProgress(world)
    const second = world.claim()
    assert.equal(await waitsFor(world, second, () => tx.rollback()), true)
    assert.deepEqual(await second, ['a'])
  }),
)

async function cancelDuringClaim(world: World, end: 'commit' | 'rollback'): Promise<unknown> {
  const id = await world.enqueue('mail', 'a')
  const { tx } = await claimInProgress(world)
  const answer = world.holdfast.cancel(id)
  await waitsFor(world, answer, () => tx[end]())
  return answer
}

test(
  'a cancel during a claim waits for it, and is then a request to the worker that holds the lease',
  inWorld(async (world) => assert.equal(await cancelDuringClaim(world, 'commit'), 'requested')),
)

test(
  'a cancel during a claim that is rolled back ends the job',
  inWorld(async (world) => {
    assert.equal(await cancelDuringClaim(world, 'rollback'), 'cancelled')
    assert.deepEqual(await world.claim(), [])
  }),
)

test(
  'if lanes are not locked, a cancel ends a running job',
  inWorld(async (world) => assert.equal(await cancelDuringClaim(world, 'commit'), 'cancelled'), { without: [noLocks] }),
)

test(
  'if a claim and a cancel both wait for the lane, the first to ask is served first',
  inWorld(async (world) => {
    const cancels = await world.another()
    for (const order of ['claim first', 'cancel first']) {
      const id = await world.enqueue('mail', order)
      const lock = await lockLane(world)
      const acts = [() => world.claim(), () => cancels.cancel(id)]
      if (order === 'cancel first') acts.reverse()
      const answers: Promise<unknown>[] = []
      for (const [i, act] of acts.entries()) {
        answers.push(act())
        await world.waiters(i + 1)
      }
      await lock.commit()
      const expected = order === 'claim first' ? [[order], 'requested'] : ['cancelled', []]
      assert.deepEqual(await Promise.all(answers), expected)
    }
  }),
)

async function replaceDuringClaim(world: World, end: 'commit' | 'rollback'): Promise<unknown> {
  const dedup = { key: 'k', replace: true }
  const id = await world.enqueue('mail', 'old', { dedup })
  const { tx } = await claimInProgress(world)
  const replaced = world.holdfast.queue('mail').enqueue('new', { dedup })
  await waitsFor(world, replaced, () => tx[end]())
  const answer = await replaced
  assert.equal(answer.id, id)
  return [answer.status === 'replaced', (await readJob(world.holdfast, id)).payload, await world.claim()]
}

test(
  'a job is not replaced during a claim: the worker that holds the lease keeps the job as it was',
  inWorld(async (world) => assert.deepEqual(await replaceDuringClaim(world, 'commit'), [false, 'old', []])),
)

test(
  'a job is replaced after its claim was rolled back',
  inWorld(async (world) => assert.deepEqual(await replaceDuringClaim(world, 'rollback'), [true, 'new', ['new']])),
)

test(
  'if lanes are not locked, a running job that is replaced is claimed twice',
  inWorld(async (world) => assert.deepEqual(await replaceDuringClaim(world, 'commit'), [true, 'new', ['new']]), {
    without: [noLocks, noLockToReplace],
  }),
)

test(
  'a job that is replaced while a claim waits for the lane is claimed once, with its new payload',
  inWorld(async (world) => {
    const replaces = await world.another()
    const dedup = { key: 'k', replace: true }
    await world.enqueue('mail', 'old', { dedup })
    const lock = await lockLane(world)
    const replaced = replaces.queue('mail').enqueue('new', { dedup }) // tries to lock the lane again and again
    const claimed = world.claim()
    await world.waiters(1)
    await lock.commit()
    const wasReplaced = (await replaced).status === 'replaced'
    assert.deepEqual(await claimed, [wasReplaced ? 'new' : 'old'])
    assert.deepEqual(await world.claim(), [])
  }),
)

test(
  'a job that is requeued while a claim waits for the lane is taken by that claim',
  inWorld(async (world) => {
    const requeues = await world.another()
    const id = await deadJob(world.holdfast, 'mail', 'risen')
    const lock = await lockLane(world)
    const claimed = world.claim()
    await world.waiters(1)
    await requeues.requeue(id)
    await lock.commit()
    assert.deepEqual(await claimed, ['risen'])
  }),
)

test(
  'a job that is requeued while a claim is in progress is taken by the next claim',
  inWorld(async (world) => {
    const id = await deadJob(world.holdfast, 'mail', 'risen')
    await world.enqueue('mail', 'other')
    const { tx, ids } = await claimInProgress(world)
    assert.equal(ids.length, 1)
    await world.holdfast.requeue(id)
    await tx.commit()
    assert.deepEqual(await world.claim(), ['risen'])
  }),
)

test(
  'the second of two requeues of one job finds it live',
  inWorld(async (world) => {
    const id = await deadJob(world.holdfast, 'mail', 'risen')
    const tx = await requeueInProgress(world, id)
    const second = rejects(world.holdfast.requeue(id), 'INVALID_STATE')
    await world.waiters(1)
    await tx.commit()
    await second
    assert.deepEqual(await world.claim(), ['risen'])
  }),
)

/** A requeue of these jobs by one call of the store. */
async function requeueTogether(world: World, ids: readonly string[]) {
  const pool = newPool(world.url)
  const store = await postgres({ pool, schema: world.schema.name, listen: false })({ clock: systemClock })
  return {
    answers: store.requeue(ids),
    [Symbol.asyncDispose]: async () => {
      await store.close()
      await pool.end()
    },
  }
}

test(
  'a requeue of several jobs locks them in the order of their ids, so two such calls cannot deadlock',
  inWorld(async (world) => {
    const ids = [await deadJob(world.holdfast, 'mail', 1), await deadJob(world.holdfast, 'mail', 2)].toSorted()
    const [first, second] = ids as [string, string]
    const tx = await world.begin()
    await tx.run('select from holdfast.ended where id = $1 for update', [first])
    await using requeue = await requeueTogether(world, [second, first, second])
    await world.waiters(1)
    const free = await world.rows('select id from holdfast.ended where id = $1 for update skip locked', [second])
    await tx.commit()
    assert.equal(free.length, 1, 'it waited for the first, and had not locked the second')
    const answers = await requeue.answers
    assert.deepEqual(answers.slice(0, 2), [{ id: second }, { id: first }])
    assert.ok(isRefused(answers[2]))
    assert.equal(answers[2].refused, 'INVALID_STATE', 'it is live by then')
    assert.equal((await world.claim()).length, 2)
  }),
)

test(
  'a requeue of several jobs takes their dedup keys in one order, whatever the order of the jobs',
  inWorld(async (world) => {
    const { holdfast } = world
    const ids: string[] = []
    for (const key of ['k2', 'k1']) {
      const { id } = await holdfast.queue('mail').enqueue(key, { dedup: { key } })
      await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
      ids.push(id)
    }
    const takes = `insert into holdfast.dedup (queue, key, seq, id)
                   select no, $1, 0, gen_random_uuid() from holdfast.queue on conflict do nothing returning key`
    const tx = await world.begin()
    await tx.run(`set local deadlock_timeout = '10ms'`) // so that a deadlock would be reported to this transaction
    await tx.run(takes, ['k1'])
    await using requeue = await requeueTogether(world, ids)
    await world.waiters(1)
    assert.equal((await tx.run(takes, ['k2'])).length, 1, 'it waits for the first key, and has not taken the second')
    await tx.rollback()
    assert.deepEqual(
      await requeue.answers,
      ids.map((id) => ({ id })),
    )
  }),
)

async function lateRequeue(world: World): Promise<unknown[][]> {
  const id = await deadJob(world.holdfast, 'mail', 'risen')
  const tx = await requeueInProgress(world, id)
  await world.enqueue('mail', 'other')
  const first = await world.claim()
  await tx.commit()
  return [first, await world.claim()]
}

test(
  'the job of a requeue that commits behind the bound is claimed',
  forBothClaims(async (world) => assert.deepEqual(await lateRequeue(world), [['other'], ['risen']])),
)

test(
  'without gaps, the job of a requeue that commits late is skipped',
  forBothClaims(async (world) => assert.deepEqual(await lateRequeue(world), [['other'], []]), { without: [gaps] }),
)

/** A rescue that has moved the job to the front of its queue and has not committed yet. */
async function rescueInProgress(world: World, lease: Lease): Promise<CallerTx> {
  const tx = await world.begin()
  const again = {
    id: lease.job.id,
    lane: (await world.lane('mail')) + 1,
    ready: true,
    runAt: 0,
    free_releases: 0,
    past: null,
  }
  await tx.run('delete from holdfast.lease where token = $1', [lease.fence.slice(0, 32)])
  const jobs = JSON.stringify([{ ...again, attempts: lease.job.attempt }])
  await tx.run('select holdfast.wait_again($1::jsonb, holdfast.now_ms(null))', [jobs])
  return tx
}

test(
  'a cancel during a rescue waits for it, and ends the job at its new place',
  inWorld(async (world) => {
    for (const rescuedBefore of [false, true]) {
      const id = await world.enqueue('mail', 'a')
      if (rescuedBefore) await (await rescueInProgress(world, await claimOne(world.holdfast, 'mail'))).commit()
      const rescue = await rescueInProgress(world, await claimOne(world.holdfast, 'mail'))
      const answer = world.holdfast.cancel(id)
      await until(() => world.hasGivenUp(), 'the cancel has met the locked row')
      await rescue.commit()
      assert.equal(await answer, 'cancelled')
      assert.deepEqual(await world.claim(), [])
    }
  }),
)

async function lateRescue(world: World): Promise<unknown[][]> {
  for (const payload of ['a', 'b']) await world.enqueue('mail', payload)
  const [a, b] = [await claimOne(world.holdfast, 'mail'), await claimOne(world.holdfast, 'mail')]
  const rescue = await rescueInProgress(world, a)
  await (await rescueInProgress(world, b)).commit()
  const first = await world.claim()
  await rescue.commit()
  return [first, await world.claim()]
}

test(
  'the job of a rescue that commits behind the bound of released jobs is claimed',
  forBothClaims(async (world) => assert.deepEqual(await lateRescue(world), [['b'], ['a']])),
)

test(
  'without gaps, the job of a rescue that commits late is skipped',
  forBothClaims(async (world) => assert.deepEqual(await lateRescue(world), [['b'], []]), { without: [gaps] }),
)

async function latePromotion(world: World): Promise<unknown[][]> {
  await world.enqueue('mail', 'due', { delay: 1 })
  await delay(3)
  const tx = await world.begin()
  await tx.run('select * from holdfast.promote(10, holdfast.now_ms(null))')
  await world.enqueue('mail', 'other')
  const first = await world.claim()
  await tx.commit()
  return [first, await world.claim()]
}

test(
  'the job of a promotion that commits behind the bound is claimed',
  forBothClaims(async (world) => assert.deepEqual(await latePromotion(world), [['other'], ['due']])),
)

test(
  'without gaps, the job of a promotion that commits late is skipped',
  forBothClaims(async (world) => assert.deepEqual(await latePromotion(world), [['other'], []]), { without: [gaps] }),
)

async function expiryAfterWait(world: World): Promise<{ leftMs: number; rescued: number; settled: boolean }> {
  await world.enqueue('mail', 'a')
  const lock = await lockLane(world)
  const claimed = world.holdfast.claim(['mail'], { lease: 200 })
  await world.waiters(1)
  await lock.run('select pg_sleep(0.3)')
  const [now] = await lock.run('select holdfast.now_ms(null)::float8 as ms')
  await lock.commit()
  const [lease] = await claimed
  assert.ok(lease)
  const { rescued } = await world.holdfast.sweep()
  const settled = await lease.done().then(
    () => true,
    () => false,
  )
  return { leftMs: lease.expiresAt.getTime() - (now?.['ms'] as number), rescued, settled }
}

test(
  'a lease lasts from the end of the wait for the lane, not from its beginning',
  inWorld(async (world) => {
    const { leftMs } = await expiryAfterWait(world)
    assert.ok(leftMs >= 200, `${leftMs} ms are left`)
  }),
)

test(
  'if the clock is read before the wait, a lease has expired when it is given',
  inWorld(
    async (world) => {
      const { leftMs, rescued, settled } = await expiryAfterWait(world)
      assert.ok(leftMs <= 0, `${leftMs} ms are left`)
      assert.deepEqual([rescued, settled], [1, false])
    },
    { without: [clockAfterLock] },
  ),
)
