import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import { defineQueue, Permanent } from '../../src/index.ts'
import type { Middleware } from '../../src/worker/options.ts'
import { day, heard, minute, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function workTests(inWorld: InWorld): void {
  describe('work', () => {
    test(
      'a worker runs waiting and new jobs, and stores their results, its name and how they ended',
      inWorld(async ({ holdfast, another }) => {
        const mail = holdfast.queue<number>('mail')
        const first = await mail.enqueue(1)
        const done = heard(holdfast, 'job.done', 2)
        const worker = holdfast.work(mail, (job) => ({ twice: job.payload * 2, attempt: job.attempt }), { name: 'w1' })
        const { id } = await (await another()).queue('mail').enqueue(2)
        await done
        assert.deepEqual(await (await another()).result(id), { twice: 4, attempt: 1 })
        const { state, result, history } = await readJob(holdfast, first.id)
        assert.deepEqual([state, result], ['done', { twice: 2, attempt: 1 }])
        assert.deepEqual(
          history.map(({ attempt, worker: name, ending }) => ({ attempt, name, ending })),
          [{ attempt: 1, name: 'w1', ending: 'done' }],
        )
        await worker.stop()
      }),
    )

    test(
      'a job whose handler throws is retried after its backoff, and is dead when its attempts are used up',
      inWorld(async ({ holdfast, clock }) => {
        const mail = holdfast.queue('mail', { attempts: 2, backoff: { base: '1m', jitter: 0 } })
        const { id } = await mail.enqueue(1)
        const retrying = heard(holdfast, 'job.retrying')
        const dead = heard(holdfast, 'job.dead')
        await using _ = holdfast.work(mail, () => {
          throw new TypeError('no such user')
        })
        const [{ runAt, error, ending } = assert.fail()] = await retrying
        assert.deepEqual([runAt?.getTime(), error.name, ending], [clock.now() + minute, 'TypeError', 'failed'])
        await clock.advance(minute)
        await dead
        const job = await readJob(holdfast, id)
        assert.deepEqual([job.state, job.attempts, job.error?.message], ['dead', 2, 'no such user'])
      }),
    )

    test(
      'a permanent error, or one that the queue declares not retryable, makes the job dead at once, with its effects',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue<string>('mail', { retryable: (error) => !(error instanceof RangeError) })
        const dead = heard(holdfast, 'job.dead', 2)
        await using _ = holdfast.work(mail, ({ payload }) => {
          if (payload === 'range') throw new RangeError('out of it')
          throw new Permanent('gone', { effects: { put: [{ key: 'gone', value: payload }] } })
        })
        const jobs = await mail.enqueueMany([{ payload: 'permanent' }, { payload: 'range' }])
        await dead
        for (const { id } of jobs) {
          const { state, attempts } = await readJob(holdfast, id)
          assert.deepEqual([state, attempts], ['dead', 1])
        }
        assert.equal((await holdfast.kv.get('gone'))?.value, 'permanent')
      }),
    )

    test(
      'a handler may return a snooze, a release or an outcome; only the outcome costs an attempt',
      inWorld(async ({ holdfast, clock }) => {
        const mail = holdfast.queue<string>('mail')
        const runs: string[] = []
        const snoozed = heard(holdfast, 'job.snoozed')
        const released = heard(holdfast, 'job.released')
        const done = heard(holdfast, 'job.done', 2)
        await using _ = holdfast.work(mail, (job) => {
          runs.push(`${job.payload} ${job.attempt}`)
          if (runs.length <= 2) return job.payload === 'later' ? job.snooze('1m') : job.release('not now')
          return job.outcome('saved', { at: job.payload }, { warning: 'consent-wall' })
        })
        const jobs = await mail.enqueueMany([{ payload: 'later' }, { payload: 'again' }])
        const [{ runAt } = assert.fail()] = await snoozed
        assert.equal(runAt?.getTime(), clock.now() + minute)
        assert.equal((await released)[0]?.reason, 'not now')
        await clock.advance(minute)
        const events = await done
        assert.deepEqual(
          events.map(({ outcome, warning, attempt }) => [outcome, warning, attempt]),
          [
            ['saved', 'consent-wall', 1],
            ['saved', 'consent-wall', 1],
          ],
        )
        assert.deepEqual(runs.sort(), ['again 1', 'again 1', 'later 1', 'later 1'])
        assert.deepEqual((await readJob(holdfast, jobs[0]?.id ?? '')).result, { at: 'later' })
      }),
    )

    test(
      'effects commit with the end of the job; a failed handler leaves none, and effects that cannot be applied fail the job',
      inWorld(async ({ holdfast }) => {
        const receipt = defineQueue('receipt', { payload: z.object({ to: z.string() }) })
        const mail = holdfast.queue<string>('mail', { attempts: 1 })
        const ended = [heard(holdfast, 'job.done'), heard(holdfast, 'job.dead', 2)]
        await using _ = holdfast.work(mail, ({ payload, effects }) => {
          effects.put(`put ${payload}`, payload)
          effects.enqueue(receipt, { to: payload === 'bad' ? (5 as never) : payload }, { priority: 1 })
          if (payload === 'fails') throw new Error('after all')
        })
        await mail.enqueueMany(['good', 'fails', 'bad'].map((payload) => ({ payload })))
        await Promise.all(ended)
        const [lease, none] = await holdfast.claim([receipt], { max: 2 })
        assert.deepEqual([lease?.job.payload, lease?.job.priority, none], [{ to: 'good' }, 1, undefined])
        assert.equal((await holdfast.kv.get('put good'))?.value, 'good')
        for (const payload of ['fails', 'bad']) assert.equal(await holdfast.kv.get(`put ${payload}`), null)
      }),
    )

    test(
      'a payload that does not match its schema makes only its job dead; the handler gets the output of the schema',
      inWorld(async ({ holdfast }) => {
        const mail = defineQueue('mail', {
          payload: z.object({ at: z.string().transform((text) => new Date(text)) }).refine(async () => true),
          result: z.object({ year: z.number() }),
        })
        const jobs = await holdfast.queue<unknown>('mail').enqueueMany([
          { payload: { at: '2030-05-01' } }, // matches the schema
          { payload: 'nonsense' },
        ])
        const ended = [heard(holdfast, 'job.done'), heard(holdfast, 'job.dead')]
        await using _ = holdfast.work(mail, ({ payload }) => ({ year: payload.at.getUTCFullYear() }))
        await Promise.all(ended)
        assert.deepEqual((await readJob(holdfast, jobs[0]?.id ?? '')).result, { year: 2030 })
        const bad = await readJob(holdfast, jobs[1]?.id ?? '')
        assert.deepEqual([bad.state, bad.error?.code], ['dead', 'INVALID_PAYLOAD'])
      }),
    )

    test(
      'a worker runs no more jobs than its concurrency, and starts the next as soon as one has ended',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue<number>('mail')
        const total = 40
        await mail.enqueueMany(Array.from({ length: total }, (_, payload) => ({ payload })))
        const done = heard(holdfast, 'job.done', total)
        let running = 0
        let most = 0
        await using worker = holdfast.work(
          mail,
          async () => {
            running += 1
            most = Math.max(most, running)
            await holdfast.stats('mail')
            running -= 1
          },
          { concurrency: 3 },
        )
        await done
        assert.equal(most, 3)
        assert.equal(worker.health().running, 0)
      }),
    )

    test(
      'a busy queue of high priority does not block another',
      inWorld(async ({ holdfast }) => {
        const busy = holdfast.queue('busy')
        await busy.enqueueMany(Array.from({ length: 300 }, () => ({ payload: 0, priority: 0 })))
        await holdfast.queue('quiet').enqueueMany(Array.from({ length: 10 }, () => ({ payload: 0, priority: 9 })))
        const order: string[] = []
        const done = heard(holdfast, 'job.done', 310)
        const note = ({ queue }: { readonly queue: string }) => void order.push(queue)
        await using _ = holdfast.work(
          [
            ['busy', note],
            ['quiet', note],
          ],
          { concurrency: 4 },
        )
        await done
        assert.ok(order.lastIndexOf('quiet') < 100, `the last quiet one was number ${order.lastIndexOf('quiet')}`)
      }),
    )

    test(
      'one worker may serve all queues; a paused queue waits',
      inWorld(async ({ holdfast, another }) => {
        await holdfast.pause('paused')
        const paused = await holdfast.queue('paused').enqueue(1)
        await holdfast.queue('a').enqueue(1)
        const done = heard(holdfast, 'job.done', 2)
        await using _ = holdfast.work('*', ({ queue }) => queue)
        const { id } = await (await another()).queue('b').enqueue(1)
        await done
        assert.equal(await holdfast.result(id), 'b')
        assert.equal(await stateOf(holdfast, paused.id), 'ready')
        const resumed = heard(holdfast, 'job.done')
        await holdfast.resume('paused')
        await resumed
      }),
    )

    test(
      'the sweep of a worker promotes due jobs, and the worker runs them',
      inWorld(async ({ holdfast, clock }) => {
        const mail = holdfast.queue('mail')
        await mail.enqueue(1, { delay: '1d' })
        const done = heard(holdfast, 'job.done')
        await using _ = holdfast.work(mail, () => undefined)
        await clock.advance(day)
        await done
      }),
    )

    test(
      'middleware runs around the handler, the first outermost, and gets its result or error',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue<string>('mail', { attempts: 1 })
        const seen: string[] = []
        const around =
          (name: string): Middleware =>
          async (job, next) => {
            seen.push(`${name} before ${job.payload}`)
            try {
              const value = await next()
              seen.push(`${name} after ${value}`)
              return value
            } catch (error) {
              seen.push(`${name} caught ${(error as Error).message}`)
              throw error
            }
          }
        const done = heard(holdfast, 'job.done')
        const handler = ({ payload }: { readonly payload: string }) => {
          if (payload === 'bad') throw new Error('oh')
          return 'fine'
        }
        await using _ = holdfast.work(mail, handler, { middleware: [around('outer'), around('inner')], concurrency: 1 })
        await mail.enqueue('good')
        await done
        assert.deepEqual(seen.splice(0), [
          ...['outer before good', 'inner before good'],
          ...['inner after fine', 'outer after fine'],
        ])
        const dead = heard(holdfast, 'job.dead')
        await mail.enqueue('bad')
        await dead
        assert.deepEqual(seen, ['outer before bad', 'inner before bad', 'inner caught oh', 'outer caught oh'])
      }),
    )

    test(
      'bad options are refused at the call',
      inWorld(async ({ holdfast }) => {
        const handler = () => undefined
        const bad: readonly (() => unknown)[] = [
          () => holdfast.work('mail', 5 as never),
          () => holdfast.work('mail', handler, { concurrency: 0 }),
          () => holdfast.work('mail', handler, { lease: '-1s' as never }),
          () => holdfast.work('mail', handler, { middleware: [5 as never] }),
          () => holdfast.work('mail', handler, { gate: {} as never }),
          () => holdfast.work('mail', handler, { threads: 2 }),
          () => holdfast.work('mail', handler, { concurency: 5 } as never),
          () => holdfast.work([]),
          () =>
            holdfast.work([
              ['mail', handler],
              ['mail', handler],
            ]),
          () => holdfast.work([['mail', handler, { weight: 0 }]]),
        ]
        for (const work of bad) await rejects(Promise.try(work), 'INVALID_OPTION')
        await rejects(
          Promise.try(() => holdfast.work('no queue', handler)),
          'INVALID_NAME',
        )
      }),
    )
  })
}
