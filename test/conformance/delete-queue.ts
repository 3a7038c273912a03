// deleteQueue: an empty queue is deleted with everything that is stored of it, and its next job makes it anew.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { HoldfastError } from '../../src/errors.ts'
import { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import type { Store } from '../../src/store/store.ts'
import { claimOne, claimOrder, deadJob, minute, queueInfo, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function deleteQueueTests(inWorld: InWorld): void {
  describe('deleteQueue', () => {
    test(
      'a queue without jobs is deleted with its definition, override, pause and keys',
      inWorld(async ({ holdfast, another }) => {
        const operator = await another()
        const producer = await another()
        const window = { dedup: { key: 'd', scope: { window: '1h' } } } as const
        const mail = producer.queue('mail', { retain: { done: 0 } })
        await mail.enqueue({ k: 'a' }, window)
        await (await claimOne(producer, 'mail')).done()
        await operator.overrideLimit('mail', { limit: { concurrency: 1 } })
        await operator.pause('mail', { for: '1h' })
        assert.deepEqual(await operator.deleteQueue('mail', { dryRun: true }), {
          ...{ queue: 'mail', deleted: false, jobs: 0, keys: 1, schedules: [], onDeadOf: [], refusal: null },
        })
        assert.equal((await queueInfo(operator, 'mail')).paused, true, 'a dry run changes nothing')
        assert.deepEqual(await operator.deleteQueue('mail'), {
          ...{ queue: 'mail', deleted: true, jobs: 0, keys: 1, schedules: [], onDeadOf: [], refusal: null },
        })
        assert.deepEqual(await holdfast.queues(), [])
        assert.equal((await operator.deleteQueue('mail')).deleted, false, 'there is none any more')
        const again = await mail.enqueue({ k: 'b' }, window)
        assert.equal(again.status, 'created', 'its keys are free')
        const { paused, limit, limitOverride, ready } = await queueInfo(holdfast, 'mail')
        assert.deepEqual([paused, limit, limitOverride, ready], [false, null, null, 1])
        assert.deepEqual(await claimOrder(holdfast, ['mail']), [{ k: 'b' }])
      }),
    )

    test(
      'a queue with jobs is refused, and the error tells the counts; withJobs deletes them too',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2, delay: '1h' }])
        await deadJob(holdfast, 'mail')
        const counts = { held: 0, scheduled: 1, ready: 1, running: 0, done: 0, dead: 1, cancelled: 0 }
        const { dead, ready } = await queueInfo(holdfast, 'mail')
        assert.equal(dead + ready, 2)
        await rejects(holdfast.deleteQueue('mail'), 'QUEUE_IN_USE', { queue: 'mail', counts, running: 0 })
        assert.equal((await holdfast.deleteQueue('mail', { dryRun: true })).jobs, 3)
        assert.match((await holdfast.deleteQueue('mail', { dryRun: true })).refusal ?? '', /^Queue mail has 3 jobs/)
        assert.equal((await holdfast.deleteQueue('mail', { dryRun: true, withJobs: true })).refusal, null)
        const { deleted, jobs } = await holdfast.deleteQueue('mail', { withJobs: true })
        assert.deepEqual([deleted, jobs], [true, 3])
        assert.deepEqual(await holdfast.queues(), [])
      }),
    )

    test(
      'a running job refuses it, and then no job is deleted',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }])
        const lease = await claimOne(holdfast, 'mail')
        const error = await rejects(holdfast.deleteQueue('mail', { withJobs: true }), 'QUEUE_IN_USE', { running: 1 })
        assert.match(error.message, /has 2 jobs, 1 of them running/)
        const { ready, running } = await queueInfo(holdfast, 'mail')
        assert.deepEqual([ready, running], [1, 1])
        await lease.done()
        assert.equal((await holdfast.deleteQueue('mail', { withJobs: true })).jobs, 2)
      }),
    )

    test(
      'a job that starts while jobs are deleted refuses it, and the error says how many were deleted before',
      inWorld(async ({ holdfast, store }) => {
        const opened = await store()
        const startsOne = afterFirst(opened, 'changeAll', async () => {
          await holdfast.queue('mail').enqueue('late')
          await claimOne(holdfast, 'mail')
        })
        await using operator = new Holdfast(startsOne)
        await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }])
        const facts = { queue: 'mail', running: 1, jobsDeleted: 2 }
        const error = await rejects(operator.deleteQueue('mail', { withJobs: true }), 'QUEUE_IN_USE', facts)
        assert.match(error.message, /2 jobs of the queue were deleted before\.$/)
        const { ready, running } = await queueInfo(holdfast, 'mail')
        assert.deepEqual([ready, running], [0, 1])
      }),
    )

    test(
      'an error of the store says how many jobs were deleted before, and how to go on is not that of deleteAll',
      inWorld(async ({ holdfast, store }) => {
        const opened = await store()
        const failing = afterFirst(opened, 'changeAll', async () => {
          const away = new HoldfastError('STORE_UNAVAILABLE', 'The store is away.')
          Object.assign(opened, { changeAll: () => Promise.reject(away), deleteQueue: () => Promise.reject(away) })
        })
        await using operator = new Holdfast(failing)
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 1_100 }, (_, payload) => ({ payload })))
        const error = await rejects(operator.deleteQueue('mail', { withJobs: true }), 'STORE_UNAVAILABLE')
        const deleted = 1_100 - (await queueInfo(holdfast, 'mail')).ready
        assert.ok(deleted > 0)
        assert.deepEqual(error.facts, { jobsDeleted: deleted })
        assert.equal(error.message, `The store is away. ${deleted} jobs of the queue were deleted before.`)
      }),
    )

    test(
      'a queue that does not exist is not deleted, also if a schedule names it, and a dry run says the same',
      inWorld(async ({ holdfast }) => {
        await holdfast.schedule('nightly', { cron: '0 0 * * *', queue: 'mail', payload: 1 })
        const before = (await holdfast.queues()).map(({ name }) => name)
        const answers = [await holdfast.deleteQueue('mail', { dryRun: true }), await holdfast.deleteQueue('mail')]
        for (const { deleted, refusal, schedules } of answers)
          assert.deepEqual([deleted, refusal, schedules], [false, null, ['nightly']])
        assert.deepEqual(before, [])
      }),
    )

    test(
      'a schedule that enqueues into it refuses it, and queues with onDead are named',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail', { onDead: { queue: 'notices' } }).enqueue(1)
        await holdfast.queue('notices').enqueue(1)
        await (await claimOne(holdfast, 'notices')).done()
        await holdfast.schedule('nightly', { cron: '0 0 * * *', queue: 'notices', payload: { n: 1 } })
        await rejects(holdfast.deleteQueue('notices', { withJobs: true }), 'QUEUE_IN_USE', { schedules: ['nightly'] })
        const dry = await holdfast.deleteQueue('notices', { dryRun: true })
        assert.deepEqual([dry.schedules, dry.onDeadOf], [['nightly'], ['mail']])
        await holdfast.unschedule('nightly')
        assert.deepEqual((await holdfast.deleteQueue('notices', { withJobs: true })).onDeadOf, ['mail'])
        await (await claimOne(holdfast, 'mail')).dead(new Error('boom'))
        assert.equal((await queueInfo(holdfast, 'notices')).ready, 1, 'the next notice makes the queue anew')
      }),
    )

    test(
      'a process that has defined the queue stores its definition again with its next enqueue',
      inWorld(async ({ holdfast, another }) => {
        const limited = defineQueue('mail', { limit: { concurrency: 1 }, attempts: 7 })
        const { id } = await holdfast.queue(limited).enqueue(1)
        await holdfast.deleteAll({ queue: 'mail' })
        assert.equal(await stateOf(holdfast, id), undefined)
        await (await another()).deleteQueue('mail')
        const again = await holdfast.queue(limited).enqueue(2)
        assert.equal((await holdfast.job(again.id))?.maxAttempts, 7)
        assert.deepEqual((await queueInfo(holdfast, 'mail')).limit, { concurrency: 1, rate: null })
      }),
    )

    test(
      'items of a batch leave it with the queue, and the batch is finished',
      inWorld(async ({ holdfast }) => {
        const items = [
          { queue: 'mail', payload: 1 },
          { queue: 'post', payload: 2 },
        ]
        const batch = await holdfast.batch({ name: 'b' }, items)
        await (await claimOne(holdfast, 'post')).done()
        assert.equal((await holdfast.deleteQueue('mail', { withJobs: true })).jobs, 1)
        assert.equal((await batch.progress()).state, 'done')
        assert.deepEqual(
          (await holdfast.queues()).map(({ name }) => name),
          ['post'],
        )
      }),
    )

    test(
      'a queue with limit keys and a rate is deleted with them, and starts anew without them',
      inWorld(async ({ holdfast, clock }) => {
        const rated = { limit: { key: 'k', rate: { count: 1, per: '1h' } } } as const
        const queue = holdfast.queue('mail', rated)
        await queue.enqueueMany([1, 2].map((n) => ({ payload: { k: 'a', n } })))
        await (await claimOne(holdfast, 'mail')).done()
        assert.deepEqual(await holdfast.claim(['mail']), [])
        await holdfast.deleteQueue('mail', { withJobs: true })
        await queue.enqueue({ k: 'a', n: 3 })
        await holdfast.sweep()
        assert.deepEqual((await claimOne(holdfast, 'mail')).job.payload, { k: 'a', n: 3 }, 'no start counts any more')
        await clock.advance(minute)
        await holdfast.sweep()
      }),
    )

    test(
      'a worker that polls the queue gets the jobs of the queue that is made anew',
      inWorld(async ({ holdfast, another }) => {
        const other = await another()
        const done = Promise.withResolvers<unknown>()
        await holdfast.queue('mail').enqueue('first')
        await (await claimOne(holdfast, 'mail')).done()
        const worker = other.work('mail', (job) => done.resolve(job.payload))
        await holdfast.deleteQueue('mail', { withJobs: true })
        await holdfast.queue('mail').enqueue('second')
        assert.equal(await done.promise, 'second')
        await worker.stop()
      }),
    )

    test(
      'enqueues at the same moment are never lost: each job is in the queue, or the queue stays',
      inWorld(async ({ holdfast, another }) => {
        const others = [await another(), await another()]
        for (let round = 0; round < 6; round++) {
          const enqueues = others.map((other, n) => other.queue('mail').enqueue([round, n]))
          const deleted = holdfast.deleteQueue('mail').then(
            () => 'deleted',
            (error: { code: string }) => error.code,
          )
          const ids = (await Promise.all(enqueues)).map(({ id }) => id)
          assert.ok(['deleted', 'QUEUE_IN_USE'].includes(await deleted))
          for (const id of ids) assert.equal(await stateOf(holdfast, id), 'ready')
          const leases = await holdfast.claim(['mail'], { max: 10 })
          assert.deepEqual(leases.map(({ job }) => job.id).toSorted(), ids.toSorted())
          for (const lease of leases) await lease.done()
          assert.equal((await holdfast.deleteQueue('mail', { withJobs: true })).deleted, true)
        }
      }),
    )

    test(
      'wrong names and options are refused',
      inWorld(async ({ holdfast }) => {
        await rejects(holdfast.deleteQueue('a b'), 'INVALID_NAME')
        await rejects(holdfast.deleteQueue('mail', { withjobs: true } as never), 'INVALID_OPTION')
        await rejects(holdfast.deleteQueue('mail', { dryRun: 1 } as never), 'INVALID_OPTION')
        assert.equal((await holdfast.deleteQueue('mail')).deleted, false)
      }),
    )
  })
}

/** The store, with something that happens after the first call of a verb. It is not closed by its client. */
function afterFirst(store: Store, verb: keyof Store, happens: () => Promise<void>): Store {
  let calls = 0
  return new Proxy(store, {
    get(target, name) {
      if (name === 'close') return async () => {}
      const value = Reflect.get(target, name, target)
      if (typeof value !== 'function') return value
      const call = value.bind(target)
      if (name !== verb) return call
      return async (...args: unknown[]) => {
        const answer = await call(...args)
        if (calls++ === 0) await happens()
        return answer
      }
    },
  })
}
