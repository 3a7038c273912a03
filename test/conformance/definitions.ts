// A definition is stored, and applies to every producer and every worker, whether or not its code contains the definition.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { HoldfastEvents } from '../../src/events.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { type AnyDefinition, defineQueue } from '../../src/queue/definition.ts'
import { claimOne, hour, minute, queueInfo, readJob, rejects } from './expect.ts'
import { type InSqlWorld, type InWorld, type StoreUnderTest, withSql } from './world.ts'

interface Mail {
  readonly customer: { readonly id: string | number }
  readonly n?: number
}

const whole = defineQueue<Mail>('mail', {
  attempts: 2,
  backoff: { base: '1m', factor: 1, jitter: 0 },
  timeout: '90s',
  lease: '45s',
  priority: 3,
})
const byPath = defineQueue<Mail>('mail', { limit: { key: 'customer.id', concurrency: 1 } })
const byCode = defineQueue<Mail>('mail', { limit: { key: ({ customer }) => customer.id, concurrency: 1 } })

const ada = { customer: { id: 'ada' } }

export function definitionTests(inWorld: InWorld, { dialect }: StoreUnderTest): void {
  describe('definitions', () => {
    if (dialect) ofCallers(withSql(inWorld))

    describe('of a queue by name', () => {
      test(
        'a producer by name gets attempts and priority of the stored definition, and its own options win',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, whole)
          const mail = (await another()).queue('mail')
          const plain = await readJob(holdfast, (await mail.enqueue(ada)).id)
          assert.deepEqual([plain.maxAttempts, plain.priority], [2, 3])
          const stated = await readJob(holdfast, (await mail.enqueue(ada, { attempts: 7, priority: 8 })).id)
          assert.deepEqual([stated.maxAttempts, stated.priority], [7, 8])
        }),
      )

      test(
        'a definition of a follow-up that is new to the store applies to it and to the next producer by name',
        inWorld(async ({ holdfast, another }) => {
          await holdfast.queue('first').enqueue(1)
          const settled = await (await claimOne(holdfast, 'first')).done(null, {
            enqueue: [{ queue: whole, payload: ada }],
          })
          const [{ id } = { id: '' }] = settled.enqueued
          const followUp = await readJob(holdfast, id)
          assert.deepEqual([followUp.maxAttempts, followUp.priority], [2, 3])
          const named = await readJob(holdfast, (await (await another()).queue('mail').enqueue(ada)).id)
          assert.deepEqual([named.maxAttempts, named.priority], [2, 3])
        }),
      )

      test(
        'a limit holds for follow-ups by a definition that the store has not seen',
        inWorld(async ({ holdfast }) => {
          await holdfast.queue('first').enqueue(1)
          const enqueue = [1, 2].map((n) => ({ queue: byPath, payload: { ...ada, n } }))
          await (await claimOne(holdfast, 'first')).done(null, { enqueue })
          assert.equal((await holdfast.claim(['mail'], { max: 5 })).length, 1)
        }),
      )

      test(
        'a job without a stored definition has the defaults',
        inWorld(async ({ holdfast }) => {
          const { maxAttempts, priority } = await readJob(holdfast, (await holdfast.queue('mail').enqueue(ada)).id)
          assert.deepEqual([maxAttempts, priority], [5, 5])
        }),
      )

      test(
        'a claim by name gets lease, timeout and backoff of the stored definition',
        inWorld(async ({ holdfast, another, clock }) => {
          await define(holdfast, whole)
          const other = await another()
          const { id } = await other.queue('mail').enqueue(ada)
          for (const queues of [['mail'], '*'] as const) {
            const [lease] = await other.claim(queues)
            assert.ok(lease)
            assert.equal(lease.expiresAt.getTime() - lease.job.startedAt.getTime(), 45_000)
            assert.equal(lease.job.timeoutMs, 90_000)
            if (queues === '*') continue
            const { runAt } = await lease.retry(new Error('no'))
            assert.equal(runAt?.getTime(), clock.now() + minute)
            await clock.advance(minute)
            await holdfast.sweep()
          }
          assert.equal((await readJob(holdfast, id)).state, 'running')
        }),
      )

      test(
        'a claim by name gets a definition that was changed since its last claim in the same process',
        inWorld(async ({ holdfast }) => {
          await holdfast.queue('mail').enqueue(ada)
          await holdfast.queue('mail').enqueue(ada)
          const [before] = await holdfast.claim(['mail'])
          assert.equal((before?.expiresAt.getTime() ?? 0) - (before?.job.startedAt.getTime() ?? 0), 30_000)
          await define(holdfast, whole)
          const [after] = await holdfast.claim(['mail'])
          assert.equal((after?.expiresAt.getTime() ?? 0) - (after?.job.startedAt.getTime() ?? 0), 45_000)
        }),
      )

      for (const queues of ['mail', '*']) {
        test(
          `a worker of ${queues} gets lease, timeout and backoff of the stored definition`,
          inWorld(async ({ holdfast, another, clock }) => {
            await define(holdfast, whole)
            const other = await another()
            const { id } = await other.queue('mail').enqueue(ada)
            const seen = Promise.withResolvers<{ leaseMs: number }>()
            const retried = Promise.withResolvers<HoldfastEvents['job.retrying']>()
            other.on('job.retrying', (event) => retried.resolve(event))
            const worker = other.work(queues, async (job) => {
              const { expiresAt, startedAt } = await readJob(holdfast, job.id)
              seen.resolve({ leaseMs: (expiresAt?.getTime() ?? 0) - (startedAt?.getTime() ?? 0) })
              throw new Error('no')
            })
            assert.deepEqual(await seen.promise, { leaseMs: 45_000 })
            const { runAt } = await retried.promise
            assert.equal(runAt?.getTime(), clock.now() + minute)
            await worker.stop()
            assert.equal((await readJob(holdfast, id)).state, 'scheduled')
          }),
        )
      }

      test(
        'the stored definition applies to a batch item, a follow-up, a schedule and a death notice',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, whole)
          const other = await another()
          await other.batch({ name: 'b' }, [{ queue: 'mail', payload: ada }])
          await other.queue('first', { onDead: { queue: 'mail' } }).enqueue(1)
          const lease = await claimOne(other, 'first')
          await lease.dead(new Error('no'))
          await other.queue('second').enqueue(1)
          await (await claimOne(other, 'second')).done(null, { enqueue: [{ queue: 'mail', payload: ada }] })
          await other.schedule('s', { cron: '* * * * *', queue: 'mail', payload: ada })
          await other.runScheduleNow('s')
          const { jobs } = await other.jobs({ queue: 'mail' })
          assert.deepEqual(
            jobs.map(({ maxAttempts, priority }) => [maxAttempts, priority]),
            Array.from({ length: 4 }, () => [2, 3]),
          )
        }),
      )

      test(
        'a changed default priority applies to the next job of every producer',
        inWorld(async ({ holdfast, another }) => {
          const other = await another()
          const mail = other.queue('mail')
          await define(holdfast, defineQueue('mail', { priority: 2 }))
          const first = await mail.enqueue(ada)
          await define(await another(), defineQueue('mail', { priority: 8, attempts: 9 }))
          const second = await mail.enqueue(ada)
          const many = await mail.enqueueMany([{ payload: ada }, { payload: ada, priority: 1 }])
          const read = async ({ id }: { id: string }) => (await readJob(holdfast, id)).priority
          assert.deepEqual(await Promise.all([first, second, ...many].map(read)), [2, 8, 8, 1])
          assert.equal((await readJob(holdfast, second.id)).maxAttempts, 9)
        }),
      )
    })

    describe('limit keys by path', () => {
      test(
        'a limit of a key by path holds for every producer',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, byPath)
          const other = await another()
          await holdfast.queue(byPath).enqueue(ada)
          await other.queue('mail').enqueue(ada)
          await other.queue('mail').enqueueMany([{ payload: ada }, { payload: ada, priority: 1 }])
          await other.queue('mail').enqueue(ada, { id: '00000000-0000-4000-8000-000000000001' })
          await other.batch({ name: 'b', concurrency: 5 }, [{ queue: 'mail', payload: ada }])
          await other.queue('first').enqueue(1)
          await (await claimOne(other, 'first')).done(null, { enqueue: [{ queue: 'mail', payload: ada }] })
          await other.schedule('s', { cron: '* * * * *', queue: 'mail', payload: ada })
          await other.runScheduleNow('s')
          await holdfast.sweep()
          const { jobs } = await holdfast.jobs({ queue: 'mail' })
          assert.deepEqual(
            jobs.map(({ limitKey }) => limitKey),
            Array.from({ length: 8 }, () => 'ada'),
          )
          assert.equal((await other.claim(['mail'], { max: 10 })).length, 1, 'one at a time')
          assert.equal((await queueInfo(holdfast, 'mail')).held, 7)
        }),
      )

      test(
        'a path accepts strings and integers, each by its text',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, byPath)
          const mail = (await another()).queue('mail')
          const keys = ['ada', 7, '7', -0, 9_007_199_254_740_991]
          const read = async (id: string | number) =>
            (await readJob(holdfast, (await mail.enqueue({ customer: { id } })).id)).limitKey
          const found: (string | null)[] = []
          for (const key of keys) found.push(await read(key))
          assert.deepEqual(found, ['ada', '7', '7', '0', '9007199254740991'])
        }),
      )

      test(
        'a payload with another value at the path is refused alone, with a sentence that says what to pass',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, byPath)
          const mail = (await another()).queue('mail')
          const bad: unknown[] = [
            ...[{}, { customer: null }, { customer: 'ada' }, { customer: [{ id: 'x' }] }, null, 'text', 5, []],
            ...[1.5, true, null, {}, [], '', 'x'.repeat(513), 2 ** 53, 'a\u0000b'].map((id) => ({
              customer: { id },
            })),
          ]
          for (const payload of bad) {
            const error = await rejects(mail.enqueue(payload), 'LIMIT_KEY_REQUIRED')
            assert.match(error.message, /customer\.id.*limitKey/s)
            await rejects(mail.enqueue(payload, { idempotencyKey: 'k' }), 'LIMIT_KEY_REQUIRED')
          }
          const together = await Promise.allSettled([mail.enqueue(ada), mail.enqueue({}), mail.enqueue(ada)])
          assert.deepEqual(
            together.map(({ status }) => status),
            ['fulfilled', 'rejected', 'fulfilled'],
          )
          await rejects(mail.enqueueMany([{ payload: ada }, { payload: {} }]), 'LIMIT_KEY_REQUIRED')
          const batch = (await another()).batch({ name: 'b' }, [{ queue: 'mail', payload: {} }])
          await rejects(batch, 'LIMIT_KEY_REQUIRED')
          const { ready, held } = await queueInfo(holdfast, 'mail')
          assert.equal(ready + held, 2)
        }),
      )

      test(
        'a payload with text that a database may not read as JSON still has its key',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, byPath)
          const payload = { note: 'NUL \u0000', customer: { id: 'ada' } }
          const { id } = await (await another()).queue('mail').enqueue(payload)
          assert.equal((await readJob(holdfast, id)).limitKey, 'ada')
        }),
      )

      test(
        'limitKey is used as given, and null means no key',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, byPath)
          const mail = (await another()).queue('mail')
          const read = async (id: string) => (await readJob(holdfast, id)).limitKey
          assert.equal(await read((await mail.enqueue({}, { limitKey: 'eve' })).id), 'eve')
          assert.equal(await read((await mail.enqueue(ada, { limitKey: 12 })).id), '12')
          assert.equal(await read((await mail.enqueue(ada, { limitKey: null })).id), null)
          await rejects(mail.enqueue(ada, { limitKey: '' }), 'INVALID_OPTION')
          await rejects(mail.enqueue(ada, { limitKey: {} as string }), 'INVALID_OPTION')
          for (const number of [1.5, 1e21, 2 ** 53, Number.NaN])
            await rejects(mail.enqueue(ada, { limitKey: number }), 'INVALID_OPTION')
          const byCode = holdfast.queue('code', { limit: { key: () => 1e21, concurrency: 1 } })
          await rejects(byCode.enqueue({}), 'INVALID_OPTION')
        }),
      )

      test(
        'jobs keep their key when the definition changes',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, byPath)
          const mail = (await another()).queue('mail')
          const first = await mail.enqueue(ada)
          const second = await mail.enqueue(ada)
          await define(holdfast, defineQueue('mail', { limit: { key: 'n', concurrency: 1 } }))
          const third = await mail.enqueue({ ...ada, n: 3 })
          const keys = await Promise.all([first, second, third].map(async ({ id }) => readJob(holdfast, id)))
          assert.deepEqual(
            keys.map(({ limitKey, state }) => [limitKey, state]),
            [
              ['ada', 'ready'],
              ['ada', 'held'],
              ['3', 'ready'],
            ],
          )
        }),
      )

      test(
        'a replaced job gets the limit key of its new payload',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, byPath)
          const mail = (await another()).queue('mail')
          const dedup = { key: 'd', replace: true }
          const { id } = await mail.enqueue(ada, { dedup })
          await mail.enqueue({ customer: { id: 'eve' } }, { dedup })
          assert.equal((await readJob(holdfast, id)).limitKey, 'eve')
        }),
      )
    })

    describe('limit keys by code', () => {
      test(
        'an enqueue that cannot compute the limit key is refused, and one with `limitKey` is accepted',
        inWorld(async ({ holdfast, another }) => {
          await holdfast.queue(byCode).enqueue(ada)
          const other = await another()
          const error = await rejects(other.queue('mail').enqueue(ada), 'LIMIT_KEY_REQUIRED')
          assert.match(error.message, /limitKey/)
          await rejects(other.queue('mail').enqueueMany([{ payload: ada }]), 'LIMIT_KEY_REQUIRED')
          await rejects(other.batch({ name: 'b' }, [{ queue: 'mail', payload: ada }]), 'LIMIT_KEY_REQUIRED')
          const { id } = await other.queue('mail').enqueue(ada, { limitKey: 'ada' })
          assert.equal((await readJob(other, id)).limitKey, 'ada')
          const batch = await other.batch({ name: 'b' }, [{ queue: 'mail', payload: ada, limitKey: 'ada' }])
          assert.equal((await batch.progress()).waiting, 1)
          assert.equal((await other.claim(['mail'], { max: 10 })).length, 1)
        }),
      )

      test(
        'a follow-up without a known limit key fails the settlement like any effect, and one with `limitKey` is enqueued',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, byCode)
          const other = await another()
          await other.queue('first').enqueue(1)
          const lease = await claimOne(other, 'first')
          await rejects(lease.done(null, { enqueue: [{ queue: 'mail', payload: ada }] }), 'LIMIT_KEY_REQUIRED')
          assert.equal((await readJob(other, lease.job.id)).state, 'scheduled')
          await other.queue('first').enqueue(2)
          await (await claimOne(other, 'first')).done(null, {
            enqueue: [{ queue: 'mail', payload: ada, limitKey: 'ada' }],
          })
          const { jobs } = await other.jobs({ queue: 'mail' })
          assert.deepEqual(
            jobs.map(({ limitKey }) => limitKey),
            ['ada'],
          )
        }),
      )
    })

    describe('jobs that the store enqueues itself', () => {
      test(
        'a death notice without a known limit key is stored as dead in its queue with an event, and the job stays dead',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, defineQueue('notices', { limit: { key: () => 'k', concurrency: 1 } }))
          const other = await another()
          const events: HoldfastEvents['job.undeliverable'][] = []
          other.on('job.undeliverable', (event) => void events.push(event))
          const first = other.queue('first', { onDead: { queue: 'notices' } })
          const { id } = await first.enqueue(1)
          await (await claimOne(other, 'first')).dead(new Error('no'))
          assert.equal((await readJob(other, id)).state, 'dead')
          const { jobs } = await other.jobs({ queue: 'notices' })
          assert.deepEqual(
            jobs.map(({ state, error, attempts }) => [state, error?.code, attempts]),
            [['dead', 'LIMIT_KEY_REQUIRED', 0]],
          )
          assert.deepEqual(
            events.map(({ queue, id: of }) => [queue, of]),
            [['notices', jobs[0]?.id]],
          )
          await rejects(other.requeue(jobs[0]?.id as string), 'LIMIT_KEY_REQUIRED')
          assert.equal((await other.requeueAll({ queue: 'notices' })).changed, 0)
          assert.deepEqual(await other.claim(['notices']), [], 'it never starts without its limit')
        }),
      )

      test(
        'a rescue continues, for this job and others, if a death notice has no known limit key',
        inWorld(async ({ holdfast, another, clock }) => {
          await define(holdfast, defineQueue('notices', { limit: { key: 'tenant', concurrency: 1 } }))
          const other = await another()
          const first = other.queue('first', { attempts: 1, onDead: { queue: 'notices' } })
          await first.enqueue(1)
          await other.queue('second').enqueue(2)
          await other.claim(['first', 'second'], { max: 2, lease: '1s' })
          await clock.advance(hour)
          await other.sweep()
          assert.equal((await queueInfo(other, 'first')).dead, 1)
          assert.equal((await queueInfo(other, 'second')).ready, 1)
          assert.equal((await queueInfo(other, 'notices')).dead, 1)
        }),
      )

      test(
        'such a dead notice can be requeued once the definition of its queue has the path of the key',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, defineQueue('notices', { limit: { key: () => 'k', concurrency: 1 } }))
          const other = await another()
          await other.queue('first', { onDead: { queue: 'notices' } }).enqueue(1)
          await (await claimOne(other, 'first')).dead(new Error('no'))
          await define(await another(), defineQueue('notices', { limit: { key: 'queue', concurrency: 1 } }))
          assert.equal((await other.requeueAll({ queue: 'notices' })).changed, 1)
          const { jobs } = await other.jobs({ queue: 'notices' })
          assert.deepEqual(
            jobs.map(({ state, limitKey }) => [state, limitKey]),
            [['ready', 'first']],
          )
        }),
      )

      test(
        'a completion without a known limit key is stored as dead, and the batch is finished',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, defineQueue('ends', { limit: { key: 'tenant', concurrency: 1 } }))
          const other = await another()
          const events: string[] = []
          other.on('job.undeliverable', ({ queue }) => void events.push(queue))
          const batch = await other.batch({ name: 'b', onComplete: { queue: 'ends' } }, [{ queue: 'item', payload: 1 }])
          await (await claimOne(other, 'item')).done()
          assert.equal((await batch.progress()).state, 'done')
          assert.equal((await queueInfo(other, 'ends')).dead, 1)
          assert.deepEqual(events, ['ends'])
        }),
      )

      test(
        'a slot of a schedule without a known limit key is stored as dead, once, and later slots fire',
        inWorld(async ({ holdfast, another, clock }) => {
          const other = await another()
          await other.schedule('s', { cron: '* * * * *', queue: 'mail', payload: ada, missed: 'all' })
          await define(holdfast, byCode)
          const events: string[] = []
          other.on('job.undeliverable', ({ queue }) => void events.push(queue))
          await clock.advance(2 * minute)
          await other.sweep()
          assert.equal((await queueInfo(other, 'mail')).dead, 2)
          assert.deepEqual(events, ['mail', 'mail'])
          await other.schedule('s', {
            ...{ cron: '* * * * *', queue: 'mail', payload: ada, missed: 'all' },
            limitKey: 'ada',
          })
          await clock.advance(minute)
          await other.sweep()
          const { dead, ready } = await queueInfo(other, 'mail')
          assert.deepEqual([dead, ready], [2, 1])
        }),
      )
    })

    describe('redefined', () => {
      test(
        'a change of a stored definition emits an event with both versions and the changed fields',
        inWorld(async ({ holdfast, another }) => {
          const events: HoldfastEvents['queue.redefined'][] = []
          holdfast.on('queue.redefined', (event) => void events.push(event))
          await define(holdfast, whole)
          assert.equal(events.length, 0, 'the first is no change')
          const other = await another()
          other.on('queue.redefined', (event) => void events.push(event))
          await define(other, defineQueue('mail', { ...wholeOptions, attempts: 4, limit: { concurrency: 3 } }))
          assert.deepEqual(events, [{ queue: 'mail', from: 1, to: 2, changes: ['attempts', 'limit'] }])
        }),
      )

      test(
        'two processes with different definitions each define once, and the last one wins',
        inWorld(async ({ holdfast, another }) => {
          const other = await another()
          const events: HoldfastEvents['queue.redefined'][] = []
          for (const client of [holdfast, other]) client.on('queue.redefined', (event) => void events.push(event))
          const one = holdfast.queue(defineQueue('mail', { attempts: 1 }))
          const two = other.queue(defineQueue('mail', { attempts: 2 }))
          const three = other.queue(defineQueue('mail', { attempts: 3 }))
          const most: number[] = []
          for (const queue of [one, two, three, one, two, three]) {
            most.push((await readJob(holdfast, (await queue.enqueue(ada)).id)).maxAttempts)
          }
          assert.deepEqual(most, [1, 2, 3, 3, 3, 3])
          assert.equal(events.length, 2)
        }),
      )

      test(
        'a definition without limits does not change them',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, byPath)
          await define(await another(), defineQueue('mail', { attempts: 1, retain: { done: '1h' } }))
          const { id } = await holdfast.queue('mail').enqueue(ada)
          assert.equal((await readJob(holdfast, id)).limitKey, 'ada')
          await define(await another(), defineQueue('mail', { limit: null }))
          const free = await holdfast.queue('mail').enqueue({})
          assert.equal((await readJob(holdfast, free.id)).limitKey, null)
        }),
      )

      test(
        'the doctor lists workers whose definition differs from the stored one',
        inWorld(async ({ holdfast, another }) => {
          const other = await another()
          const started = Promise.withResolvers<void>()
          other.on('worker.started', () => started.resolve())
          const worker = other.work(whole, async () => undefined, { name: 'old' })
          await started.promise
          await waitFor(async () => (await holdfast.workers()).length === 1)
          const differing = async () => (await holdfast.doctor()).filter(({ id }) => id === 'definitions-differ')
          assert.deepEqual(
            (await differing()).map(({ severity }) => severity),
            ['fine'],
          )
          await define(holdfast, defineQueue('mail', { attempts: 9 }))
          const [finding] = await differing()
          assert.equal(finding?.severity, 'warning')
          assert.match(finding?.sentence ?? '', /old.*mail/s)
          await worker.stop()
        }),
      )
    })

    test(
      'a refused list names the job it was refused for, whether the client or the store refuses it',
      inWorld(async ({ holdfast }) => {
        await define(holdfast, byPath)
        const mail = holdfast.queue('mail')
        const id = '018f0000-0000-7000-8000-000000000001'
        await mail.enqueue(ada, { id })
        const refusals = [
          [{ payload: {} }, 'LIMIT_KEY_REQUIRED'],
          [{ payload: ada, id }, 'DUPLICATE_JOB_ID'],
          [{ payload: new Date() }, 'INVALID_PAYLOAD'],
          [{ payload: ada, priority: 77 }, 'INVALID_OPTION'],
        ] as const
        for (const [bad, code] of refusals) {
          const list = [{ payload: ada }, { payload: ada }, bad]
          await rejects(mail.enqueueMany(list), code, { index: 2 })
          const items = list.map((each) => ({ queue: 'mail', ...each }))
          const error = await rejects(holdfast.batch({ name: 'x' }, items), code, { index: 2 })
          assert.equal(typeof error.facts['batch'], 'string')
          assert.match(error.message, /^Item 2: /)
        }
        assert.equal((await holdfast.stats('mail')).held + (await holdfast.stats('mail')).ready, 1)
      }),
    )

    describe('an operator’s override', () => {
      test(
        'an override of a limit wins until it is cleared, and redefining the queue does not touch it',
        inWorld(async ({ holdfast, another }) => {
          const limited = defineQueue<number>('mail', { limit: { concurrency: 5 } })
          await holdfast.queue(limited).enqueueMany(Array.from({ length: 9 }, (_, payload) => ({ payload })))
          const other = await another()
          await other.overrideLimit('mail', { limit: { concurrency: 1 } })
          assert.equal((await other.claim(['mail'], { max: 10 })).length, 1)
          await define(await another(), defineQueue('mail', { limit: { concurrency: 6 } }))
          assert.equal((await other.claim(['mail'], { max: 10 })).length, 0)
          const info = await queueInfo(other, 'mail')
          assert.deepEqual(info.limit, { concurrency: 1, rate: null })
          assert.deepEqual(info.limitOverride, { limit: { concurrency: 1 } })
          await other.overrideLimit('mail', null)
          assert.equal((await other.claim(['mail'], { max: 10 })).length, 5)
          const cleared = await queueInfo(other, 'mail')
          assert.deepEqual([cleared.limit, cleared.limitOverride], [{ concurrency: 6, rate: null }, null])
        }),
      )

      test(
        'an override may remove a key limit and set another',
        inWorld(async ({ holdfast, another }) => {
          await define(holdfast, byPath)
          await holdfast.overrideLimit('mail', { keyLimit: { concurrency: 2 } })
          const mail = (await another()).queue('mail')
          await mail.enqueueMany(Array.from({ length: 4 }, () => ({ payload: ada })))
          await holdfast.sweep()
          assert.equal((await queueInfo(holdfast, 'mail')).held, 2)
          await holdfast.overrideLimit('mail', { keyLimit: null })
          await holdfast.sweep()
          assert.equal((await queueInfo(holdfast, 'mail')).held, 0)
          await rejects(holdfast.overrideLimit('mail', {} as never), 'INVALID_OPTION')
          await rejects(holdfast.overrideLimit('mail', { limit: {} } as never), 'INVALID_OPTION')
        }),
      )

      test(
        'an override is by field: a field that it does not name stays, and null means no limit',
        inWorld(async ({ holdfast }) => {
          const rate = { count: 10, windowMs: minute }
          await define(
            holdfast,
            defineQueue('mail', {
              limit: [{ concurrency: 50 }, { key: 'k', concurrency: 1, rate: { count: 10, per: '1m' } }],
            }),
          )
          const limits = async () => {
            const { limit, keyLimit, limitOverride } = await queueInfo(holdfast, 'mail')
            return { limit, keyLimit, limitOverride }
          }
          await holdfast.overrideLimit('mail', { keyLimit: { rate: { count: 2, per: '1m' } } })
          await holdfast.overrideLimit('mail', { limit: { concurrency: 5 } })
          assert.deepEqual(await limits(), {
            limit: { concurrency: 5, rate: null },
            keyLimit: { concurrency: 1, rate: { ...rate, count: 2 } },
            limitOverride: { limit: { concurrency: 5 }, keyLimit: { rate: { ...rate, count: 2 } } },
          })
          await holdfast.overrideLimit('mail', { limit: null, keyLimit: { concurrency: null } })
          const after = await limits()
          assert.deepEqual([after.limit, after.keyLimit], [null, { concurrency: null, rate: { ...rate, count: 2 } }])
          await holdfast.overrideLimit('mail', { limit: after.limit, keyLimit: after.keyLimit })
          assert.deepEqual((await limits()).keyLimit, after.keyLimit, 'what queues() says is accepted')
          await holdfast.overrideLimit('mail', null)
          const keyLimit = { concurrency: 1, rate }
          assert.deepEqual(await limits(), { limit: { concurrency: 50, rate: null }, keyLimit, limitOverride: null })
        }),
      )

      test(
        'an override of an unknown queue, or of a key limit that the queue does not have, is refused',
        inWorld(async ({ holdfast }) => {
          await define(holdfast, defineQueue('mail', { limit: { concurrency: 1 } }))
          const error = await rejects(holdfast.overrideLimit('mial', { limit: { concurrency: 1 } }), 'INVALID_OPTION')
          assert.match(error.message, /There is no queue mial/)
          await rejects(holdfast.overrideLimit('mial', null), 'INVALID_OPTION', { option: 'queue' })
          assert.ok(!(await holdfast.queues()).some(({ name }) => name === 'mial'))
          const keyless = holdfast.overrideLimit('mail', { keyLimit: { concurrency: 1 } })
          assert.match((await rejects(keyless, 'INVALID_OPTION')).message, /no limit key/)
          await holdfast.overrideLimit('mail', { keyLimit: null })
        }),
      )

      test(
        'explain says that a limit is an override',
        inWorld(async ({ holdfast }) => {
          await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }])
          await holdfast.overrideLimit('mail', { limit: { concurrency: 1 } })
          await claimOne(holdfast, 'mail')
          const { jobs } = await holdfast.jobs({ queue: 'mail', state: 'ready' })
          const { why, sentence } = await holdfast.explain(jobs[0]?.id as string)
          assert.equal(why, 'queue-concurrency')
          assert.match(sentence, /override/)
        }),
      )
    })
  })
}

function ofCallers(inSql: InSqlWorld): void {
  describe('in a caller’s transaction', () => {
    test(
      'the stored definition applies to a job by name; one without a known limit key is refused and leaves the transaction usable',
      inSql(async ({ holdfast, another, sql }) => {
        await define(holdfast, defineQueue('mail', { ...wholeOptions, limit: { key: 'customer.id', concurrency: 1 } }))
        const mail = (await another()).queue('mail')
        const own = await sql.begin()
        const { id } = await mail.enqueue(ada, { tx: own.tx })
        await rejects(mail.enqueue({}, { tx: own.tx }), 'LIMIT_KEY_REQUIRED')
        await mail.enqueue({}, { tx: own.tx, limitKey: null })
        await own.commit()
        const { maxAttempts, priority, limitKey } = await readJob(holdfast, id)
        assert.deepEqual([maxAttempts, priority, limitKey], [2, 3, 'ada'])
        await holdfast.sweep() // on some stores a job with a limit key is admitted after the commit
        const { ready, held } = await queueInfo(holdfast, 'mail')
        assert.deepEqual([ready, held], [2, 0])
      }),
    )

    test(
      'a process that only enqueues there defines the queue once, also if the first transaction is rolled back',
      inSql(async ({ holdfast, another, sql }) => {
        const mail = holdfast.queue(defineQueue('mail', { attempts: 2 }))
        const most = async (isCommitted: boolean) => {
          const own = await sql.begin()
          const { id } = await mail.enqueue(ada, { tx: own.tx })
          await (isCommitted ? own.commit() : own.rollback())
          return isCommitted ? (await readJob(holdfast, id)).maxAttempts : null
        }
        await most(false)
        assert.equal(await most(true), 2)
        await define(await another(), defineQueue('mail', { attempts: 3 }))
        assert.equal(await most(true), 3, 'it does not define again and again')
      }),
    )
  })
}

const wholeOptions = {
  attempts: 2,
  backoff: { base: '1m', factor: 1, jitter: 0 },
  timeout: '90s',
  lease: '45s',
  priority: 3,
} as const

/** A new process uses the definition. */
async function define(holdfast: Holdfast, definition: AnyDefinition): Promise<void> {
  const leases = await holdfast.claim([definition], { max: 1, lease: '1s' })
  await Promise.all(leases.map((lease) => lease.release()))
}

async function waitFor(isSo: () => Promise<boolean>): Promise<void> {
  while (!(await isSo())) await new Promise((resolve) => setImmediate(resolve))
}
