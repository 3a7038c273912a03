import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { Permanent } from '../../src/lease/permanent.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { claimOne, hour, minute, readJob } from './expect.ts'
import type { InWorld } from './world.ts'

export function retryTests(inWorld: InWorld): void {
  describe('retry', () => {
    test(
      'a permanent error makes the job dead at once, whatever attempts are left, with its effects',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        const effects = { put: [{ key: 'gone', value: true }] }
        assert.equal((await lease.retry(new Permanent('no such user', { effects }))).state, 'dead')
        const job = await readJob(holdfast, id)
        assert.deepEqual([job.state, job.attempts, job.error?.message], ['dead', 1, 'no such user'])
        assert.equal((await holdfast.kv.get('gone'))?.value, true)
      }),
    )

    test(
      'a failed job is scheduled again, keeps its attempts, and the answer says when it is due',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        const answer = await lease.retry(new Error('busy'), { delay: '7s' })
        assert.deepEqual(answer, { state: 'scheduled', runAt: new Date(clock.now() + 7_000), enqueued: [] })
        const { state, attempts, runAt, worker, history } = await readJob(holdfast, id)
        assert.deepEqual([state, attempts, runAt, worker], ['scheduled', 1, answer.runAt, null])
        assert.deepEqual([history.length, history[0]?.ending, history[0]?.error?.message], [1, 'failed', 'busy'])
        await clock.advance(7_000)
        await holdfast.sweep()
        assert.equal((await claimOne(holdfast, 'mail')).job.attempt, 2)
      }),
    )

    test(
      'the first backoff is 10 s, plus or minus 20 % at random, so that failed jobs do not all return at once',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 100 }, (_, payload) => ({ payload })))
        const leases = await holdfast.claim(['mail'], { max: 100 })
        const answers = await Promise.all(leases.map((lease) => lease.retry(new Error('no'))))
        const delays = answers.map(({ runAt }) => (runAt?.getTime() ?? 0) - clock.now())
        assert.ok(Math.min(...delays) >= 8_000 && Math.max(...delays) <= 12_000, `${delays}`)
        assert.ok(Math.max(...delays) - Math.min(...delays) > 1_000, `${delays}`)
      }),
    )

    test(
      'the backoff doubles with each attempt, and is never longer than an hour',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueue(1, { attempts: 12 })
        for (const seconds of [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]) {
          const { runAt } = await (await claimOne(holdfast, 'mail')).retry(new Error('no'))
          const delay = (runAt?.getTime() ?? 0) - clock.now()
          const [least, most] = seconds === 3600 ? [2400, 3600] : [seconds * 0.8, seconds * 1.2]
          assert.ok(delay >= least * 1_000 && delay <= most * 1_000, `${delay} ms is about ${seconds} s`)
          await clock.advance(2 * hour)
          await holdfast.sweep()
        }
      }),
    )

    test(
      'a queue may have its own backoff',
      inWorld(async ({ holdfast, clock }) => {
        const queue = defineQueue('mail', { backoff: { base: '1s', factor: 3, max: '5s', jitter: 0 } })
        await holdfast.queue(queue).enqueue(1)
        for (const delay of [1_000, 3_000, 5_000, 5_000]) {
          const { runAt } = await (await claimOne(holdfast, queue)).retry(new Error('no'))
          assert.equal((runAt?.getTime() ?? 0) - clock.now(), delay)
          await clock.advance(delay)
          await holdfast.sweep()
        }
      }),
    )

    test(
      'a job is dead after exactly 5 failed attempts, or as many as it may have',
      inWorld(async ({ holdfast }) => {
        for (const [queue, attempts] of [
          ['default', undefined],
          ['own', 3],
        ] as const) {
          const { id } = await holdfast.queue(queue).enqueue(1, attempts === undefined ? {} : { attempts })
          const states: string[] = []
          for (let n = 0; n < (attempts ?? 5); n++) {
            const lease = await claimOne(holdfast, queue)
            assert.equal(lease.job.attempt, n + 1)
            states.push((await lease.retry(new Error(`no ${n + 1}`), { delay: 0 })).state)
          }
          assert.deepEqual(states, [...Array((attempts ?? 5) - 1).fill('ready'), 'dead'])
          assert.deepEqual(await holdfast.claim([queue]), [])
          const { state, attempts: spent, error, history } = await readJob(holdfast, id)
          assert.deepEqual([state, spent, error?.message], ['dead', attempts ?? 5, `no ${attempts ?? 5}`])
          assert.equal(history.length, attempts ?? 5)
        }
      }),
    )

    test(
      'attempts are all claims except those that were released or snoozed',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 2 })
        for (let n = 0; n < 3; n++) {
          await (await claimOne(holdfast, 'mail')).release()
          await (await claimOne(holdfast, 'mail')).snooze(0)
        }
        await (await claimOne(holdfast, 'mail')).retry(new Error('no'), { delay: 0 })
        await (await claimOne(holdfast, 'mail')).release()
        const last = await claimOne(holdfast, 'mail')
        assert.equal(last.job.attempt, 2)
        assert.equal((await readJob(holdfast, id)).attempts, 2)
        assert.equal((await last.retry(new Error('no'), { delay: 0 })).state, 'dead')
      }),
    )

    test(
      'a job that is released and snoozed at once is dead after 1,000 times, however long it may snooze; a requeue starts the count again',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        for (let n = 0; n < 1_000; n++) {
          const lease = await claimOne(holdfast, 'mail')
          const { state } = n % 2 === 0 ? await lease.release() : await lease.snooze(0)
          assert.equal(state, 'ready')
        }
        for (let n = 0; n < 3; n++) {
          assert.equal(
            (await (await claimOne(holdfast, 'mail')).snooze('1m')).state,
            'scheduled',
            'a longer snooze is free',
          )
          await clock.advance(minute)
          await holdfast.sweep()
        }
        assert.equal((await (await claimOne(holdfast, 'mail')).release()).state, 'dead')
        const { state, attempts, error, history } = await readJob(holdfast, id)
        assert.deepEqual([state, attempts, error?.name], ['dead', 0, 'ReleasedTooOften'])
        assert.deepEqual([history.length, history.at(-1)?.ending], [50, 'released'])
        await holdfast.requeue(id)
        assert.equal((await (await claimOne(holdfast, 'mail')).release()).state, 'ready')
      }),
    )
  })
}
