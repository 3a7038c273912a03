// Changes to a job while a claim is in progress: the transaction that locks the lane first decides, and the other sees the result.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import type { Lease } from '../../src/lease/lease.ts'
import { claimOne, deadJob, readJob, rejects } from '../conformance/expect.ts'
import { type CallerTx, type Hand, inBothHands, inHand, type Rule, requeueInProgress, useDatabase } from './hand.ts'
import { clockAfterLock, gaps, laneLock, readAfterLock } from './rules.ts'

useDatabase()

/** A transaction that must know whether a job waits locks the job's lane. */
const noLocks: Rule = { from: 'perform pg_advisory_xact_lock(LANE_LOCKS, v_lane);', to: 'null;' }
const noLockToReplace: Rule = { from: 'perform pg_advisory_xact_lock(LANE_LOCKS, v_holder.lane);', to: 'null;' }

const claimMail = `select unnest(ids) as id from holdfast.claim($1, 'worker', 60000, 10, '{mail}', '{}', null)`

/** A claim that has taken its jobs and has not committed yet. */
async function claimInProgress(hand: Hand): Promise<{ tx: CallerTx; ids: unknown[] }> {
  const tx = await hand.begin()
  const rows = await tx.run(claimMail, [randomUUID()])
  return { tx, ids: rows.map(({ id }) => id) }
}

/** An open transaction holds the lane's lock. */
async function lockLane(hand: Hand): Promise<CallerTx> {
  const tx = await hand.begin()
  await tx.run('select holdfast.lock_lanes(array[$1::int])', [await hand.lane('mail')])
  return tx
}

/** Whether `answered` waits for a lock; then `tx` ends. */
async function waitsFor(hand: Hand, answered: Promise<unknown>, end: () => Promise<void>): Promise<boolean> {
  const isDone = answered.then(
    () => true,
    () => true,
  )
  const hasWaited = !(await Promise.race([isDone, hand.waiters(1).then(() => false)]))
  await end()
  return hasWaited
}

test(
  'two claims of one lane run one after the other, and no job is in both',
  inHand(async (hand) => {
    await hand.enqueue('mail', 'a')
    const { tx, ids } = await claimInProgress(hand)
    assert.equal(ids.length, 1)
    const second = hand.claim()
    assert.equal(await waitsFor(hand, second, () => tx.commit()), true)
    assert.deepEqual(await second, [])
  }),
)

for (const [what, without] of [
  ['if lanes are not locked', [laneLock]],
  ['if the lane is locked by the statement that reads the cursor', [laneLock, readAfterLock]],
] as const) {
  test(
    `${what}, two claims take the same job`,
    inHand(
      async (hand) => {
        const taken: unknown[][] = [] // on a busy machine the second claim may be too late to show it
        for (let round = 0; round < 5 && !taken.some((payloads) => payloads.includes('a')); round++) {
          await hand.enqueue('mail', 'a')
          const { tx } = await claimInProgress(hand)
          const second = hand.claim()
          await hand.waiters(1, 0, 'claim(') // for the cursor that the first has replaced
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
  inHand(async (hand) => {
    await hand.enqueue('mail', 'a')
    const { tx } = await claimInProgress(hand)
    const second = hand.claim()
    assert.equal(await waitsFor(hand, second, () => tx.rollback()), true)
    assert.deepEqual(await second, ['a'])
  }),
)

async function cancelDuringClaim(hand: Hand, end: 'commit' | 'rollback'): Promise<unknown> {
  const id = await hand.enqueue('mail', 'a')
  const { tx } = await claimInProgress(hand)
  const answer = hand.holdfast.cancel(id)
  await waitsFor(hand, answer, () => tx[end]())
  return answer
}

test(
  'a cancel during a claim waits for it, and is then a request to the worker that holds the lease',
  inHand(async (hand) => assert.equal(await cancelDuringClaim(hand, 'commit'), 'requested')),
)

test(
  'a cancel during a claim that is rolled back ends the job',
  inHand(async (hand) => {
    assert.equal(await cancelDuringClaim(hand, 'rollback'), 'cancelled')
    assert.deepEqual(await hand.claim(), [])
  }),
)

test(
  'if lanes are not locked, a cancel ends a running job',
  inHand(async (hand) => assert.equal(await cancelDuringClaim(hand, 'commit'), 'cancelled'), { without: [noLocks] }),
)

test(
  'if a claim and a cancel both wait for the lane, the first to ask is served first',
  inHand(async (hand) => {
    const cancels = await hand.another()
    for (const order of ['claim first', 'cancel first']) {
      const id = await hand.enqueue('mail', order)
      const lock = await lockLane(hand)
      const acts = [() => hand.claim(), () => cancels.cancel(id)]
      if (order === 'cancel first') acts.reverse()
      const answers: Promise<unknown>[] = []
      for (const [i, act] of acts.entries()) {
        answers.push(act())
        await hand.waiters(i + 1)
      }
      await lock.commit()
      const expected = order === 'claim first' ? [[order], 'requested'] : ['cancelled', []]
      assert.deepEqual(await Promise.all(answers), expected)
    }
  }),
)

async function replaceDuringClaim(hand: Hand, end: 'commit' | 'rollback'): Promise<unknown> {
  const dedup = { key: 'k', replace: true }
  const id = await hand.enqueue('mail', 'old', { dedup })
  const { tx } = await claimInProgress(hand)
  const replaced = hand.holdfast.queue('mail').enqueue('new', { dedup })
  await waitsFor(hand, replaced, () => tx[end]())
  const answer = await replaced
  assert.equal(answer.id, id)
  return [answer.replaced ?? false, (await readJob(hand.holdfast, id)).payload, await hand.claim()]
}

test(
  'a job is not replaced during a claim: the worker that holds the lease keeps the job as it was',
  inHand(async (hand) => assert.deepEqual(await replaceDuringClaim(hand, 'commit'), [false, 'old', []])),
)

test(
  'a job is replaced after its claim was rolled back',
  inHand(async (hand) => assert.deepEqual(await replaceDuringClaim(hand, 'rollback'), [true, 'new', ['new']])),
)

test(
  'if lanes are not locked, a running job that is replaced is claimed twice',
  inHand(async (hand) => assert.deepEqual(await replaceDuringClaim(hand, 'commit'), [true, 'new', ['new']]), {
    without: [noLocks, noLockToReplace],
  }),
)

test(
  'a job that is replaced while a claim waits for the lane is claimed once, with its new payload',
  inHand(async (hand) => {
    const replaces = await hand.another()
    const dedup = { key: 'k', replace: true }
    await hand.enqueue('mail', 'old', { dedup })
    const lock = await lockLane(hand)
    const replaced = replaces.queue('mail').enqueue('new', { dedup }) // tries to lock the lane again and again
    const claimed = hand.claim()
    await hand.waiters(1)
    await lock.commit()
    const wasReplaced = (await replaced).replaced === true
    assert.deepEqual(await claimed, [wasReplaced ? 'new' : 'old'])
    assert.deepEqual(await hand.claim(), [])
  }),
)

test(
  'a job that is requeued while a claim waits for the lane is taken by that claim',
  inHand(async (hand) => {
    const requeues = await hand.another()
    const id = await deadJob(hand.holdfast, 'mail', 'risen')
    const lock = await lockLane(hand)
    const claimed = hand.claim()
    await hand.waiters(1)
    await requeues.requeue(id)
    await lock.commit()
    assert.deepEqual(await claimed, ['risen'])
  }),
)

test(
  'a job that is requeued while a claim is in progress is taken by the next claim',
  inHand(async (hand) => {
    const id = await deadJob(hand.holdfast, 'mail', 'risen')
    await hand.enqueue('mail', 'other')
    const { tx, ids } = await claimInProgress(hand)
    assert.equal(ids.length, 1)
    await hand.holdfast.requeue(id)
    await tx.commit()
    assert.deepEqual(await hand.claim(), ['risen'])
  }),
)

test(
  'the second of two requeues of one job finds it live',
  inHand(async (hand) => {
    const id = await deadJob(hand.holdfast, 'mail', 'risen')
    const tx = await requeueInProgress(hand, id)
    const second = rejects(hand.holdfast.requeue(id), 'INVALID_STATE')
    await hand.waiters(1)
    await tx.commit()
    await second
    assert.deepEqual(await hand.claim(), ['risen'])
  }),
)

async function lateRequeue(hand: Hand): Promise<unknown[][]> {
  const id = await deadJob(hand.holdfast, 'mail', 'risen')
  const tx = await requeueInProgress(hand, id)
  await hand.enqueue('mail', 'other')
  const first = await hand.claim()
  await tx.commit()
  return [first, await hand.claim()]
}

test(
  'the job of a requeue that commits behind the bound is claimed',
  inBothHands(async (hand) => assert.deepEqual(await lateRequeue(hand), [['other'], ['risen']])),
)

test(
  'without gaps, the job of a requeue that commits late is skipped',
  inBothHands(async (hand) => assert.deepEqual(await lateRequeue(hand), [['other'], []]), { without: [gaps] }),
)

/** A rescue that has moved the job to the front of its queue and has not committed yet. */
async function rescueInProgress(hand: Hand, lease: Lease): Promise<CallerTx> {
  const tx = await hand.begin()
  const again = {
    id: lease.job.id,
    lane: (await hand.lane('mail')) + 1,
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
  inHand(async (hand) => {
    for (const rescuedBefore of [false, true]) {
      const id = await hand.enqueue('mail', 'a')
      if (rescuedBefore) await (await rescueInProgress(hand, await claimOne(hand.holdfast, 'mail'))).commit()
      const rescue = await rescueInProgress(hand, await claimOne(hand.holdfast, 'mail'))
      const answer = hand.holdfast.cancel(id)
      assert.equal(await waitsFor(hand, answer, () => rescue.commit()), true)
      assert.equal(await answer, 'cancelled')
      assert.deepEqual(await hand.claim(), [])
    }
  }),
)

async function lateRescue(hand: Hand): Promise<unknown[][]> {
  for (const payload of ['a', 'b']) await hand.enqueue('mail', payload)
  const [a, b] = [await claimOne(hand.holdfast, 'mail'), await claimOne(hand.holdfast, 'mail')]
  const rescue = await rescueInProgress(hand, a)
  await (await rescueInProgress(hand, b)).commit()
  const first = await hand.claim()
  await rescue.commit()
  return [first, await hand.claim()]
}

test(
  'the job of a rescue that commits behind the bound of released jobs is claimed',
  inBothHands(async (hand) => assert.deepEqual(await lateRescue(hand), [['b'], ['a']])),
)

test(
  'without gaps, the job of a rescue that commits late is skipped',
  inBothHands(async (hand) => assert.deepEqual(await lateRescue(hand), [['b'], []]), { without: [gaps] }),
)

async function latePromotion(hand: Hand): Promise<unknown[][]> {
  await hand.enqueue('mail', 'due', { delay: 1 })
  await delay(3)
  const tx = await hand.begin()
  await tx.run('select * from holdfast.promote(10, holdfast.now_ms(null))')
  await hand.enqueue('mail', 'other')
  const first = await hand.claim()
  await tx.commit()
  return [first, await hand.claim()]
}

test(
  'the job of a promotion that commits behind the bound is claimed',
  inBothHands(async (hand) => assert.deepEqual(await latePromotion(hand), [['other'], ['due']])),
)

test(
  'without gaps, the job of a promotion that commits late is skipped',
  inBothHands(async (hand) => assert.deepEqual(await latePromotion(hand), [['other'], []]), { without: [gaps] }),
)

async function expiryAfterWait(hand: Hand): Promise<{ leftMs: number; rescued: number; settled: boolean }> {
  await hand.enqueue('mail', 'a')
  const lock = await lockLane(hand)
  const claimed = hand.holdfast.claim(['mail'], { lease: 200 })
  await hand.waiters(1)
  await lock.run('select pg_sleep(0.3)')
  const [now] = await lock.run('select holdfast.now_ms(null)::float8 as ms')
  await lock.commit()
  const [lease] = await claimed
  assert.ok(lease)
  const { rescued } = await hand.holdfast.sweep()
  const settled = await lease.done().then(
    () => true,
    () => false,
  )
  return { leftMs: lease.expiresAt.getTime() - (now?.['ms'] as number), rescued, settled }
}

test(
  'a lease lasts from the end of the wait for the lane, not from its beginning',
  inHand(async (hand) => {
    const { leftMs } = await expiryAfterWait(hand)
    assert.ok(leftMs >= 200, `${leftMs} ms are left`)
  }),
)

test(
  'if the clock is read before the wait, a lease has expired when it is given',
  inHand(
    async (hand) => {
      const { leftMs, rescued, settled } = await expiryAfterWait(hand)
      assert.ok(leftMs <= 0, `${leftMs} ms are left`)
      assert.deepEqual([rescued, settled], [1, false])
    },
    { without: [clockAfterLock] },
  ),
)
