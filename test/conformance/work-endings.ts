import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import { isHoldfastError } from '../../src/errors.ts'
import { defineQueue, type Job, RetryLater } from '../../src/index.ts'
import { abortOf, heard, hour, minute, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function workEndingTests(inWorld: InWorld): void {
  describe('how work ends', () => {
    test(
      'the signal of a run aborts at its timeout, the attempt fails, and the history says timeout',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue('mail', { timeout: '50ms', attempts: 1 })
        const { id } = await mail.enqueue(1)
        const dead = heard(holdfast, 'job.dead')
        let reason: unknown
        await using _ = holdfast.work(mail, async (job) => {
          reason = await abortOf(job.signal)
          return 'too late'
        })
        assert.equal((await dead)[0]?.ending, 'timeout')
        assert.ok(isHoldfastError(reason, 'JOB_TIMEOUT'))
        const { state, result, error, history } = await readJob(holdfast, id)
        assert.deepEqual([state, result, error?.code, history[0]?.ending], ['dead', null, 'JOB_TIMEOUT', 'timeout'])
      }),
    )

    test(
      'an error with a retry delay is retried after that delay, and costs an attempt',
      inWorld(async ({ holdfast, clock }) => {
        const mail = holdfast.queue('mail', { attempts: 2 })
        const { id } = await mail.enqueue(1)
        const retrying = heard(holdfast, 'job.retrying')
        await using _ = holdfast.work(mail, async () => {
          throw new RetryLater('busy', { delay: '7m' })
        })
        await retrying
        const { state, runAt, attempts } = await readJob(holdfast, id)
        assert.deepEqual([state, runAt.getTime() - clock.now(), attempts], ['scheduled', 7 * minute, 1])
      }),
    )

    test(
      'a handler that asks for more time gets it',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue('mail', { timeout: '100ms', attempts: 1 })
        const { id } = await mail.enqueue(1)
        const done = heard(holdfast, 'job.done')
        await using _ = holdfast.work(mail, async (job) => {
          await job.extend('5m')
          const { expiresAt, startedAt } = await readJob(holdfast, id)
          assert.equal(expiresAt?.getTime(), (startedAt?.getTime() ?? 0) + 5 * minute)
          await new Promise((resolve) => setTimeout(resolve, 200))
        })
        await done
      }),
    )

    test(
      'another client reads the progress of a running job',
      inWorld(async ({ holdfast, another, clock }) => {
        const mail = holdfast.queue('mail')
        const { id } = await mail.enqueue(1)
        const other = await another()
        await using _ = holdfast.work(mail, async (job) => {
          await job.progress(0.4, 'rendering')
          throw await abortOf(job.signal)
        })
        let progress = (await readJob(other, id)).progress
        while (progress === null) progress = (await readJob(other, id)).progress
        assert.deepEqual(progress, { value: 0.4, message: 'rendering', at: new Date(clock.now()) })
        await holdfast.close({ grace: 0 })
        assert.equal(await stateOf(other, id), 'ready')
      }),
    )

    test(
      'a running job that another client cancels gets its signal aborted, and ends cancelled with the effects of the cancel',
      inWorld(async ({ holdfast, another }) => {
        const mail = holdfast.queue('mail')
        const { id } = await mail.enqueue(1)
        const started = heard(holdfast, 'job.started')
        const cancelled = heard(holdfast, 'job.cancelled')
        let reason: unknown
        await using _ = holdfast.work(mail, async (job) => {
          reason = await abortOf(job.signal)
          throw reason
        })
        await started
        const effects = { put: [{ key: 'cancelled', value: true }] }
        assert.equal(await (await another()).cancel(id, { effects }), 'requested')
        await cancelled
        assert.ok(isHoldfastError(reason, 'JOB_CANCELLED'))
        assert.equal(await stateOf(holdfast, id), 'cancelled')
        assert.equal((await holdfast.kv.get('cancelled'))?.value, true)
      }),
    )

    test(
      'a job that finishes in spite of a cancel request is done',
      inWorld(async ({ holdfast, another }) => {
        const mail = holdfast.queue('mail')
        const { id } = await mail.enqueue(1)
        const [started, done] = [heard(holdfast, 'job.started'), heard(holdfast, 'job.done')]
        await using _ = holdfast.work(mail, async (job) => {
          await abortOf(job.signal)
          return 'finished'
        })
        await started
        await (await another()).cancel(id)
        await done
        assert.equal((await readJob(holdfast, id)).result, 'finished')
      }),
    )

    test(
      'heartbeats keep a long run from being rescued, and cost no attempt',
      inWorld(async ({ holdfast, another, clock }) => {
        const mail = holdfast.queue('mail')
        const { id } = await mail.enqueue(1)
        const started = heard(holdfast, 'job.started')
        const done = heard(holdfast, 'job.done')
        const { promise: end, resolve: letEnd } = Promise.withResolvers<void>()
        await using worker = holdfast.work(mail, () => end, { lease: '150ms' })
        await started
        const other = await another()
        for (let beats = 0; beats < 4; beats++) {
          const before = worker.health().lastHeartbeatAt
          await clock.advance(100)
          while (worker.health().lastHeartbeatAt === before) await new Promise((resolve) => setTimeout(resolve, 5))
          assert.equal((await other.sweep()).rescued, 0)
        }
        letEnd()
        await done
        const { attempts, history } = await readJob(holdfast, id)
        assert.deepEqual([attempts, history.length], [1, 1])
      }),
    )

    test(
      'a run whose lease was lost is aborted at once, and its result changes nothing',
      inWorld(async ({ holdfast, another, clock }) => {
        const mail = holdfast.queue('mail')
        const { id } = await mail.enqueue(1)
        const [started, lost] = [heard(holdfast, 'job.started'), heard(holdfast, 'lease.lost')]
        const { promise: aborted, resolve: tellAborted } = Promise.withResolvers<unknown>()
        const { promise: isTaken, resolve: tellTaken } = Promise.withResolvers<void>()
        await using _ = holdfast.work(
          mail,
          async (job) => {
            job.effects.put('late', true)
            tellAborted(await abortOf(job.signal))
            await isTaken // otherwise this worker may claim it again
            return 'late'
          },
          { lease: '200ms', concurrency: 1, sweep: false },
        )
        await started
        const other = await another()
        do await clock.advance(hour)
        while ((await other.sweep()).rescued === 0) // a heartbeat may have renewed the lease in between
        const [lease] = await other.claim(['mail'])
        tellTaken()
        assert.ok(isHoldfastError(await aborted, 'LEASE_LOST'))
        assert.equal((await lost)[0]?.id, id)
        await lease?.done('first')
        assert.equal((await readJob(holdfast, id)).result, 'first')
        assert.equal(await holdfast.kv.get('late'), null)
      }),
    )

    test(
      'a worker that stops lets running jobs finish and claims no new ones',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue<string>('mail')
        await mail.enqueue('running')
        const started = heard(holdfast, 'job.started')
        const { promise: end, resolve: letEnd } = Promise.withResolvers<void>()
        const worker = holdfast.work(mail, () => end)
        await started
        const stopped = worker.stop()
        const { id } = await mail.enqueue('too late')
        assert.equal(worker.health().state, 'stopping')
        letEnd()
        await stopped
        await worker.finished
        const { done, ready } = await holdfast.stats('mail')
        assert.deepEqual([done, ready, await stateOf(holdfast, id)], [1, 1, 'ready'])
        assert.equal(worker.health().state, 'stopped')
      }),
    )

    test(
      'jobs that do not finish within the grace period are aborted and released without costing an attempt',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue<string>('mail')
        const jobs = await mail.enqueueMany(['throws', 'finishes', 'deaf'].map((payload) => ({ payload })))
        const started = heard(holdfast, 'job.started', 3)
        const handlers: Readonly<Record<string, (job: Job) => Promise<unknown>>> = {
          throws: async ({ signal }) => Promise.reject(await abortOf(signal)),
          finishes: async ({ signal }) => `finished: ${(await abortOf(signal)) instanceof Error}`,
          deaf: () => new Promise(() => {}),
        }
        const worker = holdfast.work(mail, (job) => handlers[job.payload]?.(job as Job))
        await started
        await worker.stop({ grace: 10 })
        const states = await Promise.all(jobs.map(({ id }) => readJob(holdfast, id)))
        assert.deepEqual(
          states.map(({ state, attempts, result }) => [state, attempts, result]),
          [
            ['ready', 0, null],
            ['done', 1, 'finished: true'],
            ['ready', 0, null],
          ],
        )
      }),
    )

    test(
      'runs that have ended when a worker stops are settled, also if their result is still being validated',
      inWorld(async ({ holdfast }) => {
        const { promise: checked, resolve: letPass } = Promise.withResolvers<void>()
        const mail = defineQueue('mail', { result: z.string().refine(() => checked.then(() => true)) })
        const { id } = await holdfast.queue(mail).enqueue(1)
        const { promise: returned, resolve: tellReturned } = Promise.withResolvers<void>()
        const worker = holdfast.work(mail, () => {
          tellReturned()
          return 'sent'
        })
        await returned
        const stopped = worker.stop({ grace: 0 })
        setImmediate(letPass)
        await stopped
        assert.deepEqual([await stateOf(holdfast, id), (await readJob(holdfast, id)).result], ['done', 'sent'])
      }),
    )

    test(
      'close stops the workers first, and loses no settlement',
      inWorld(async ({ holdfast, another }) => {
        const mail = holdfast.queue<number>('mail')
        await mail.enqueueMany(Array.from({ length: 50 }, (_, payload) => ({ payload })))
        const worker = holdfast.work(mail, async () => 'done', { concurrency: 50 })
        await heard(holdfast, 'job.started', 50)
        await holdfast.close()
        await worker.finished
        assert.equal((await (await another()).stats('mail')).done, 50)
        await rejects(
          Promise.try(() => holdfast.work(mail, () => undefined)),
          'CLOSED',
        )
      }),
    )

    test(
      'while workers finish their runs, handlers may still use the client that is being closed',
      inWorld(async ({ holdfast, another }) => {
        const { promise: end, resolve: letEnd } = Promise.withResolvers<void>()
        await holdfast.queue('mail').enqueue(1)
        const started = heard(holdfast, 'job.started')
        holdfast.work('mail', async () => {
          await end
          await holdfast.queue('next').enqueue(2)
        })
        await started
        const closed = holdfast.close()
        letEnd()
        await closed
        const { ready, done } = await (await another()).stats()
        assert.deepEqual([ready, done], [1, 1])
        await rejects(holdfast.queue('next').enqueue(3), 'CLOSED')
      }),
    )

    test(
      'a handler that ignores its signal is abandoned; with too many of them the worker claims no more jobs, and health says why',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue<string>('mail', { timeout: '30ms', attempts: 1 })
        const { promise: end, resolve: letEnd } = Promise.withResolvers<void>()
        const dead = heard(holdfast, 'job.dead', 2)
        await using worker = holdfast.work(mail, ({ payload }) => (payload === 'deaf' ? end : undefined), {
          concurrency: 2,
        })
        await mail.enqueueMany([{ payload: 'deaf' }, { payload: 'deaf' }])
        await dead
        const { id } = await mail.enqueue('next')
        const { ok, why, abandoned, running } = worker.health()
        assert.deepEqual([ok, abandoned, running], [false, 2, 0])
        assert.match(why ?? '', /2 handlers ignored their signal/)
        const done = heard(holdfast, 'job.done')
        assert.equal(await stateOf(holdfast, id), 'ready')
        letEnd()
        await done
        assert.deepEqual([worker.health().ok, worker.health().abandoned], [true, 0])
      }),
    )
  })
}
