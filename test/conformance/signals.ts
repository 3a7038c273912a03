import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { isRefused } from '../../src/errors.ts'
import { bounds } from '../../src/job/bounds.ts'
import { newId } from '../../src/runtime/id.ts'
import { claimOne, minute, readJob, stateOf } from './expect.ts'
import {
  checkpoint,
  child,
  claimedRun,
  claimRun,
  claimRuns,
  leaseMs,
  mailbox,
  namesOf,
  park,
  record,
  records,
  send,
  sent,
  settle,
} from './journals.ts'
import type { InWorld } from './world.ts'

export function signalTests(inWorld: InWorld): void {
  describe('signals', () => {
    test(
      'messages wait in the mailbox of a job in the order in which they were sent',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const { id } = await holdfast.queue('flow').enqueue(1)
        for (const n of [1, 2, 3]) await sent(own, id, n === 2 ? 'other' : 'verdict', n)
        assert.deepEqual(await mailbox(own, id), [
          ['verdict', 1],
          ['other', 2],
          ['verdict', 3],
        ])
      }),
    )

    test(
      'a message is consumed in the checkpoint that records it, and only once',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        const no = await sent(own, run.id, 'verdict', { ok: true })
        await checkpoint(own, run, { journal: { ...records(record(1, 'verdict')), consume: [no] } })
        assert.deepEqual(await mailbox(own, run.id), [])
        const again = await checkpoint(own, run, { journal: { ...records(record(2, 'more')), consume: [no] } })
        assert.ok(typeof again === 'object' && 'failed' in again)
        assert.equal(again.failed.refused, 'SIGNAL_GONE')
        assert.deepEqual(await namesOf(own, run.id), ['verdict'])
      }),
    )

    test(
      'a job consumes no message of another job',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        const { id } = await holdfast.queue('flow').enqueue(2)
        const no = await sent(own, id, 'verdict')
        const answer = await checkpoint(own, run, { journal: { ...records(record(1, 'a')), consume: [no] } })
        assert.ok(typeof answer === 'object' && 'failed' in answer)
        assert.equal((await mailbox(own, id)).length, 1)
      }),
    )

    test(
      'a signal to a job that is not there, or has ended, is refused',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const unknown = await send(own, newId(), 'verdict')
        assert.ok(isRefused(unknown))
        assert.equal(unknown.refused, 'JOB_NOT_FOUND')
        const run = await claimedRun(holdfast, own)
        await settle(own, run)
        const late = await send(own, run.id, 'verdict')
        assert.ok(isRefused(late))
        assert.deepEqual([late.refused, late.facts['state']], ['INVALID_STATE', 'done'])
      }),
    )

    test(
      'a message wakes a parked job, which is the first of its priority',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await park(own, run)
        const { id: other } = await holdfast.queue('flow').enqueue(2)
        assert.deepEqual(
          [(await readJob(holdfast, run.id)).attempts, await stateOf(holdfast, run.id)],
          [0, 'scheduled'],
        )
        await sent(own, run.id, 'verdict')
        assert.equal(await stateOf(holdfast, run.id), 'ready')
        assert.deepEqual(
          (await claimRuns(own)).map(({ id, attempt }) => [id, attempt]),
          [
            [run.id, 1],
            [other, 1],
          ],
        )
      }),
    )

    test(
      'a message that comes while the job runs ends its next park at once',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await sent(own, run.id, 'verdict')
        assert.deepEqual(await park(own, run), { state: 'ready', runAt: null, enqueued: [] })
        const again = await claimRun(own)
        assert.equal(again.attempt, 1)
        assert.equal(((await park(own, again)) as { state: string }).state, 'scheduled')
        assert.deepEqual(await claimRuns(own), [])
      }),
    )

    test(
      'a message wakes no job that waits for its start, a retry or a snooze of its own',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const { id: delayed } = await holdfast.queue('flow').enqueue(1, { delay: '1m' })
        const retried = await claimedRun(holdfast, own)
        await settle(own, retried, { as: 'retry', error: { message: 'no' }, delayMs: minute, ending: 'failed' })
        const snoozed = await claimedRun(holdfast, own)
        await settle(own, snoozed, { as: 'snooze', delayMs: minute })
        for (const id of [delayed, retried.id, snoozed.id]) {
          await sent(own, id, 'verdict')
          assert.equal(await stateOf(holdfast, id), 'scheduled')
        }
        await holdfast.sweep()
        assert.deepEqual(await claimRuns(own), [])
      }),
    )

    test(
      'a park that is over by time is ready, and its messages wait for it',
      inWorld(async ({ holdfast, store, clock }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await park(own, run, { delayMs: minute })
        await clock.advance(minute)
        await holdfast.sweep()
        assert.equal((await claimRun(own)).id, run.id)
        await sent(own, run.id, 'late')
        assert.deepEqual(await mailbox(own, run.id), [['late', 'late']])
      }),
    )

    test(
      'a parked job that is rescheduled still wakes',
      inWorld(async ({ holdfast, store, clock }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await park(own, run)
        await holdfast.reschedule(run.id, new Date(clock.now() + minute))
        await sent(own, run.id, 'verdict')
        assert.equal(await stateOf(holdfast, run.id), 'ready')
      }),
    )

    test(
      'a signal to a key waits for the job that awaits it, until its time is over',
      inWorld(async ({ holdfast, store, clock }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await sent(own, { key: 'order-17' }, 'paid', 17, leaseMs / 2)
        const keys = [{ key: 'order-17', name: 'paid' }]
        const [early] = await own.messages({ id: run.id, keys })
        assert.deepEqual([early?.key, early?.name, early?.value], ['order-17', 'paid', '17'])
        assert.deepEqual(await own.messages({ id: run.id, keys: [{ key: 'order-17', name: 'other' }] }), [])
        await clock.advance(leaseMs / 2)
        assert.deepEqual(await own.messages({ id: run.id, keys }), [])
        await holdfast.sweep()
        const answer = await checkpoint(own, run, {
          journal: { ...records(record(1, 'a')), consume: [early?.no ?? 0] },
        })
        assert.ok(typeof answer === 'object' && 'failed' in answer && answer.failed.refused === 'SIGNAL_GONE')
      }),
    )

    test(
      'a signal to a key wakes the jobs that await it, and one of them consumes it',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        await holdfast.queue('flow').enqueueMany([{ payload: 1 }, { payload: 2 }, { payload: 3 }])
        const runs = await claimRuns(own)
        const awaits = [{ key: 'order-17', name: 'paid' }]
        for (const [n, run] of runs.entries())
          await park(own, run, { journal: { records: [], awaits: n === 2 ? [] : awaits } })
        const no = await sent(own, { key: 'order-17' }, 'paid', 17)
        await sent(own, { key: 'order-17' }, 'other')
        const woken = await claimRuns(own)
        assert.deepEqual(woken.map(({ id }) => id).sort(), [runs[0]?.id, runs[1]?.id].sort())
        assert.deepEqual(woken[0]?.journal?.awaits, awaits)
        const answers = []
        for (const run of woken)
          answers.push(
            await checkpoint(own, run, { journal: { records: [record(1, 'paid')], consume: [no], awaits: [] } }),
          )
        assert.deepEqual(
          answers.map((answer) => typeof answer === 'object' && 'failed' in answer),
          [false, true],
        )
      }),
    )

    test(
      'a park that awaits a key whose message is there already is woken',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await sent(own, { key: 'order-17' }, 'paid', 17)
        await park(own, run, { journal: { records: [], awaits: [{ key: 'order-17', name: 'paid' }] } })
        await holdfast.sweep()
        assert.equal((await claimRun(own)).id, run.id)
      }),
    )

    test(
      'a job that awaits a key without a message stays parked',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await park(own, run, { journal: { records: [], awaits: [{ key: 'order-17', name: 'paid' }] } })
        await holdfast.sweep()
        assert.equal(await stateOf(holdfast, run.id), 'scheduled')
        assert.deepEqual(await claimRuns(own), [])
      }),
    )

    test(
      'a mailbox takes so many messages of a name, and no more',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const { id } = await holdfast.queue('flow').enqueue(1)
        for (const to of [id, { key: 'order-17' }]) {
          for (let n = 0; n < bounds.messagesMax; n++) await sent(own, to, 'verdict', n)
          const answer = await send(own, to, 'verdict')
          assert.ok(isRefused(answer))
          assert.equal(answer.refused, 'MAILBOX_FULL')
          await sent(own, to, 'other')
        }
        assert.equal(await own.clearSignals({ id }, 'verdict'), bounds.messagesMax)
        assert.deepEqual(await mailbox(own, id), [['other', 'other']])
        assert.equal(await own.clearSignals({ key: 'order-17' }, null), bounds.messagesMax + 1)
        await sent(own, id, 'verdict', 'again')
      }),
    )

    test(
      'a checkpoint clears the signals of a name from its own mailbox',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await sent(own, run.id, 'verdict')
        await sent(own, run.id, 'other')
        await checkpoint(own, run, { journal: { records: [], clear: ['verdict'] } })
        assert.deepEqual(await mailbox(own, run.id), [['other', 'other']])
      }),
    )

    test(
      'a checkpoint that clears signals leaves the end of a child of that name',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await checkpoint(own, run, { effects: child(run, 'score'), journal: records(record(1, 'score', -1)) })
        await (await claimOne(holdfast, 'children')).done(7)
        await sent(own, run.id, 'score')
        await checkpoint(own, run, { journal: { records: [], clear: ['score'] } })
        const messages = await own.messages({ id: run.id, keys: [] })
        assert.deepEqual(
          messages.map(({ name, child }) => [name, child !== null]),
          [['score', true]],
        )
      }),
    )

    test(
      'buffered messages survive a crash, a death and a requeue',
      inWorld(async ({ holdfast, store, clock }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own, 'flow', { attempts: 1 })
        await sent(own, run.id, 'verdict')
        await clock.advance(leaseMs)
        await holdfast.sweep()
        assert.equal(await stateOf(holdfast, run.id), 'dead')
        await holdfast.requeue(run.id)
        assert.deepEqual(await mailbox(own, run.id), [['verdict', 'verdict']])
      }),
    )

    test(
      'another process wakes a parked job, and its worker is notified',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const other = await store()
        const run = await claimedRun(holdfast, own)
        await park(own, run)
        const notified = new Promise<string>((resolve) => own.subscribe({ onReady: (queue) => resolve(queue) }))
        await sent(other, run.id, 'verdict')
        assert.equal(await notified, 'flow')
      }),
    )
  })
}
