// How many jobs may run at once: of a queue, and of a limit key.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { claimOne, minute, queueInfo, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld, TestClock, World } from './world.ts'

interface Mail {
  readonly tenant?: string | null
  readonly n: number
}

const perTenant = defineQueue<Mail>('mail', { limit: { key: ({ tenant }) => tenant, concurrency: 1 } })
const two = defineQueue<Mail>('mail', { limit: { key: ({ tenant }) => tenant, concurrency: 2 } })

export function limitTests(inWorld: InWorld): void {
  describe('limits', () => {
    test(
      'a settlement or a rescue after which a job waits answers whether it is held for its limit key, or has its slot again',
      inWorld(async ({ holdfast, clock, another }) => {
        const queue = holdfast.queue(perTenant)
        const states: string[] = []
        const expired: string[] = []
        const other = await another()
        other.on('lease.expired', ({ state }) => expired.push(state))
        for (const others of [0, 1]) {
          const tenant = `with ${others} others`
          const { id } = await queue.enqueue({ tenant, n: 0 })
          const wait = [
            async () => (await claimOne(holdfast, perTenant)).retry(new Error('no'), { delay: 0 }),
            async () => (await claimOne(holdfast, perTenant)).snooze(0),
            async () => (await claimOne(holdfast, perTenant)).release(),
          ]
          for (const settle of wait) {
            // Another job of the key gets the slot, unless the first one comes back before it, as a released one does.
            const beside = others === 0 ? [] : [await queue.enqueue({ tenant, n: 1 })]
            const { state } = await settle()
            states.push(state)
            assert.equal(state, await stateOf(holdfast, id), 'the answer is what a read says')
            for (const { id: besideId } of beside) await holdfast.cancel(besideId)
            assert.equal(await stateOf(holdfast, id), 'ready')
          }
          await claimOne(holdfast, perTenant, { lease: '1m' })
          const beside = others === 0 ? null : await queue.enqueue({ tenant, n: 1 })
          await clock.advance(2 * minute)
          assert.equal((await other.sweep()).rescued, 1)
          assert.equal(expired.at(-1), await stateOf(holdfast, id))
          if (beside) await holdfast.cancel(beside.id)
          await holdfast.cancel(id)
        }
        assert.deepEqual(states, ['ready', 'ready', 'ready', 'held', 'held', 'ready'])
      }),
    )

    describe('of a queue', () => {
      test(
        'a queue runs no more jobs at once than its limit, whichever client claims',
        inWorld(async ({ holdfast, another }) => {
          const mail = defineQueue<number>('mail', { limit: { concurrency: 3 } })
          await holdfast.queue(mail).enqueueMany(numbers(10).map((payload) => ({ payload })))
          const other = await another()
          const first = await holdfast.claim([mail], { max: 2 })
          const second = await other.claim([mail], { max: 10 })
          assert.deepEqual([first.length, second.length], [2, 1])
          assert.deepEqual(await other.claim([mail], { max: 10 }), [])
          const { ready, running, held } = await queueInfo(holdfast, 'mail')
          assert.deepEqual({ ready, running, held }, { ready: 7, running: 3, held: 0 }, 'they stay ready')
          await first[0]?.done()
          assert.equal((await other.claim([mail], { max: 10 })).length, 1)
        }),
      )

      test(
        'many claims at the same moment take no more jobs than there are slots',
        inWorld(async ({ holdfast, another }) => {
          const mail = defineQueue<number>('mail', { limit: { concurrency: 5 } })
          await holdfast.queue(mail).enqueueMany(numbers(40).map((payload) => ({ payload })))
          const clients = [holdfast, await another(), await another()]
          const claims = clients.flatMap((client) => numbers(4).map(() => client.claim([mail], { max: 3 })))
          const claimed = (await Promise.all(claims)).flat()
          assert.equal(claimed.length, 5)
        }),
      )

      for (const [what, end] of endings) {
        test(
          `a job that ${what} frees a slot of its queue`,
          inWorld(async (world) => {
            const { holdfast } = world
            const mail = defineQueue<number>('mail', { limit: { concurrency: 1 } })
            const { id } = await holdfast.queue(mail).enqueue(1, { priority: 9 })
            const lease = await claimOne(holdfast, mail, { lease: '1m' })
            await holdfast.queue(mail).enqueue(2)
            assert.deepEqual(await holdfast.claim([mail]), [])
            await end({ ...world, lease, id })
            assert.equal((await holdfast.claim([mail])).length, 1)
          }),
        )
      }

      test(
        'a queue without a free slot does not keep other queues from being claimed',
        inWorld(async ({ holdfast }) => {
          const full = defineQueue<number>('full', { limit: { concurrency: 1 } })
          await holdfast.queue(full).enqueueMany([{ payload: 1 }, { payload: 2 }, { payload: 3, priority: 0 }])
          await holdfast.queue('free').enqueue(4, { priority: 9 })
          const claimed = await holdfast.claim([full, 'free'], { max: 10 })
          assert.deepEqual(
            claimed.map(({ job }) => job.payload),
            [3, 4],
          )
          assert.deepEqual(await holdfast.claim('*', { max: 10 }), [])
        }),
      )

      test(
        'a limit that is raised, lowered or removed applies from the next claim on',
        inWorld(async ({ holdfast, another }) => {
          const limited = (limit: { concurrency: number } | null) => defineQueue<number>('mail', { limit })
          await holdfast.queue(limited({ concurrency: 2 })).enqueueMany(numbers(10).map((payload) => ({ payload })))
          const claim = async (limit: { concurrency: number } | null) =>
            (await (await another()).claim([limited(limit)], { max: 10 })).length
          assert.equal(await claim({ concurrency: 2 }), 2)
          assert.equal(await claim({ concurrency: 4 }), 2)
          assert.equal(await claim({ concurrency: 1 }), 0)
          assert.equal((await queueInfo(holdfast, 'mail')).running, 4, 'running jobs continue')
          assert.equal(await claim(null), 6)
        }),
      )

      test(
        'the limit applies to a process that never saw the definition',
        inWorld(async ({ holdfast, another }) => {
          const mail = defineQueue<number>('mail', { limit: { concurrency: 1 } })
          await holdfast.queue(mail).enqueueMany([{ payload: 1 }, { payload: 2 }])
          const other = await another()
          assert.equal((await other.claim(['mail'], { max: 10 })).length, 1)
          assert.equal((await other.claim('*', { max: 10 })).length, 0)
        }),
      )
    })

    describe('of a key', () => {
      test(
        'a job whose limit key has no free slot is held: it is counted and listed as held, and never claimed',
        inWorld(async ({ holdfast }) => {
          await send(holdfast, 'a', 1, 2, 3)
          await send(holdfast, 'b', 4)
          const { ready, held } = await queueInfo(holdfast, 'mail')
          assert.deepEqual({ ready, held }, { ready: 2, held: 2 })
          const page = await holdfast.jobs({ queue: 'mail', state: 'held', include: ['payload'] })
          assert.deepEqual(
            page.jobs.map(({ payload, limitKey }) => [(payload as Mail).n, limitKey]),
            [
              [2, 'a'],
              [3, 'a'],
            ],
          )
          assert.deepEqual(await claimed(holdfast, 10), [1, 4])
          assert.deepEqual(await claimed(holdfast, 10), [])
        }),
      )

      test(
        'as many jobs of a key run at once as its limit allows, and no more, whichever client claims',
        inWorld(async ({ holdfast, another }) => {
          await send(holdfast, 'a', ...numbers(6).map((n) => n + 1))
          const other = await another()
          await holdfast.queue(two).enqueue({ tenant: 'a', n: 7 })
          await holdfast.sweep()
          const first = await holdfast.claim([two], { max: 10 })
          assert.equal(first.length, 2)
          assert.deepEqual(await other.claim([two], { max: 10 }), [])
          await first[1]?.done()
          assert.equal((await other.claim(['mail'], { max: 10 })).length, 1)
        }),
      )

      for (const [what, end] of endings) {
        test(
          `a job that ${what} gives its slot to the next of its key`,
          inWorld(async (world) => {
            const { holdfast } = world
            const { id } = await holdfast.queue(perTenant).enqueue({ tenant: 'a', n: 1 })
            const lease = await claimOne(holdfast, perTenant, { lease: '1m' })
            await send(holdfast, 'a', 2)
            assert.deepEqual(await claimed(holdfast, 10), [])
            await end({ ...world, lease, id })
            assert.equal((await holdfast.claim([perTenant], { max: 10 })).length, 1)
            assert.equal((await holdfast.claim([perTenant], { max: 10 })).length, 0)
          }),
        )
      }

      for (const [what, leave] of departures) {
        test(
          `a ready job that is ${what} gives its slot to the next of its key`,
          inWorld(async (world) => {
            const { holdfast } = world
            const startBefore = world.clock.now() + minute
            const { id } = await holdfast.queue(perTenant).enqueue({ tenant: 'a', n: 1 }, { startBefore })
            await send(holdfast, 'a', 2)
            assert.equal((await queueInfo(holdfast, 'mail')).held, 1)
            await leave({ ...world, id })
            await holdfast.sweep()
            assert.deepEqual(await claimed(holdfast, 10), [2])
          }),
        )
      }

      test(
        'within a key jobs run by priority, then in the order of their enqueue',
        inWorld(async ({ holdfast }) => {
          const queue = holdfast.queue(perTenant)
          await queue.enqueue({ tenant: 'a', n: 0 })
          await queue.enqueue({ tenant: 'a', n: 3 })
          await queue.enqueue({ tenant: 'a', n: 4 })
          await queue.enqueue({ tenant: 'a', n: 2 }, { priority: 4 })
          await queue.enqueue({ tenant: 'a', n: 1 }, { priority: 0 })
          assert.deepEqual(await oneByOne(holdfast), [0, 1, 2, 3, 4])
        }),
      )

      test(
        'a released or rescued job is the first of its key',
        inWorld(async ({ holdfast, clock }) => {
          await send(holdfast, 'a', 1, 2, 3)
          const first = await claimOne(holdfast, perTenant)
          await first.release()
          const again = await claimOne(holdfast, perTenant, { lease: '1m' })
          assert.equal((again.job.payload as Mail).n, 1)
          await clock.advance(2 * minute)
          await holdfast.sweep()
          assert.deepEqual(await oneByOne(holdfast), [1, 2, 3])
        }),
      )

      test(
        'a job that is retried at once is the last of its key',
        inWorld(async ({ holdfast }) => {
          await send(holdfast, 'a', 1, 2)
          const first = await claimOne(holdfast, perTenant)
          await first.retry(new Error('again'), { delay: 0 })
          assert.deepEqual(await oneByOne(holdfast), [2, 1])
        }),
      )

      test(
        'a key limit does not apply to jobs without a key, nor to the same key of other queues',
        inWorld(async ({ holdfast }) => {
          await send(holdfast, null, 1, 2, 3)
          await holdfast.queue(perTenant).enqueue({ n: 4 })
          await send(holdfast, 'a', 5, 6)
          const post = defineQueue<Mail>('post', { limit: { key: ({ tenant }) => tenant, concurrency: 1 } })
          await holdfast.queue(post).enqueue({ tenant: 'a', n: 7 })
          assert.deepEqual(await claimed(holdfast, 10), [1, 2, 3, 4, 5])
          assert.equal((await holdfast.claim([post])).length, 1)
        }),
      )

      test(
        'a key is a string or a number; a function that throws or returns anything else refuses that job alone',
        inWorld(async ({ holdfast }) => {
          const key = (payload: { key?: unknown }) => {
            if (payload.key === 'throw') throw new Error('no tenant')
            return payload.key as string
          }
          const mail = holdfast.queue(defineQueue<{ key?: unknown }>('mail', { limit: { key, concurrency: 1 } }))
          await mail.enqueue({ key: 7 })
          await mail.enqueue({ key: '7' })
          const page = await holdfast.jobs({ queue: 'mail' })
          assert.deepEqual(
            page.jobs.map(({ limitKey }) => limitKey),
            ['7', '7'],
          )
          for (const bad of ['throw', '', true, {}, [], 'x'.repeat(600)]) {
            await rejects(mail.enqueue({ key: bad }), 'INVALID_OPTION', { option: 'limit.key' })
          }
          assert.equal((await queueInfo(holdfast, 'mail')).held, 1)
        }),
      )

      test(
        'a job that becomes due, a follow-up and a requeued job are held like any other',
        inWorld(async ({ holdfast, clock }) => {
          const queue = holdfast.queue(perTenant)
          await queue.enqueue({ tenant: 'a', n: 1 })
          const late = await queue.enqueue({ tenant: 'a', n: 2 }, { delay: '1m' })
          const dead = await queue.enqueue({ tenant: 'b', n: 9 })
          const leases = await holdfast.claim([perTenant], { max: 2, lease: '1h' })
          const one = leases.find(({ job }) => (job.payload as Mail).n === 1)
          await leases.find(({ job }) => job.id === dead.id)?.dead(new Error('no'))
          await queue.enqueue({ tenant: 'b', n: 8 })
          await holdfast.requeue(dead.id)
          assert.equal(await stateOf(holdfast, dead.id), 'held')
          await clock.advance(minute)
          await holdfast.sweep()
          assert.equal(await stateOf(holdfast, late.id), 'held')
          const followUp = { queue: perTenant, payload: { tenant: 'a', n: 3 } }
          await one?.done(undefined, { enqueue: [followUp] })
          assert.deepEqual((await oneByOne(holdfast)).toSorted(), [2, 3, 8, 9])
        }),
      )

      test(
        'after a limit is raised the next sweep admits jobs; after it is lowered running jobs continue',
        inWorld(async ({ holdfast, another }) => {
          await send(holdfast, 'a', 1, 2, 3, 4, 5)
          await (await another()).claim([defineQueue<Mail>('other')]) // another process exists
          const raised = defineQueue<Mail>('mail', { limit: { key: ({ tenant }) => tenant, concurrency: 3 } })
          await (await another()).queue(raised).enqueue({ tenant: 'z', n: 9 })
          await holdfast.sweep()
          assert.equal((await queueInfo(holdfast, 'mail')).held, 2)
          const leases = await holdfast.claim(['mail'], { max: 10 })
          assert.equal(leases.length, 4)
          await (await another()).queue(perTenant).enqueue({ tenant: 'y', n: 10 })
          await holdfast.sweep()
          assert.equal((await queueInfo(holdfast, 'mail')).running, 4)
          for (const lease of leases.slice(0, 2)) await lease.done()
          assert.deepEqual((await claimed(holdfast, 10)).toSorted(), [10])
        }),
      )

      test(
        'a sweep counts the jobs that it admits, also into slots that it freed itself',
        inWorld(async ({ holdfast, clock }) => {
          const startBefore = new Date(clock.now() + minute)
          await holdfast.queue(perTenant).enqueue({ tenant: 'a', n: 1 }, { startBefore })
          await send(holdfast, 'a', 2, 3)
          await clock.advance(minute)
          const { overdue, admitted } = await holdfast.sweep()
          assert.deepEqual({ overdue, admitted }, { overdue: 1, admitted: 1 })
        }),
      )

      test(
        'after a limit is removed every job is admitted',
        inWorld(async ({ holdfast, another }) => {
          await send(holdfast, 'a', 1, 2, 3)
          await (await another()).claim([defineQueue<Mail>('mail', { limit: null })], { max: 1 })
          await holdfast.sweep()
          const { held, ready } = await queueInfo(holdfast, 'mail')
          assert.deepEqual({ held, ready }, { held: 0, ready: 2 })
        }),
      )

      test(
        'a queue and its keys may both be limited',
        inWorld(async ({ holdfast }) => {
          const both = defineQueue<Mail>('mail', {
            limit: [{ key: ({ tenant }) => tenant, concurrency: 1 }, { concurrency: 2 }],
          })
          const queue = holdfast.queue(both)
          for (const tenant of ['a', 'a', 'b', 'c']) await queue.enqueue({ tenant, n: 1 })
          const { ready, held } = await queueInfo(holdfast, 'mail')
          assert.deepEqual({ ready, held }, { ready: 3, held: 1 })
          assert.equal((await holdfast.claim([both], { max: 10 })).length, 2)
          assert.equal((await holdfast.claim([both], { max: 10 })).length, 0)
        }),
      )

      test(
        'one noisy tenant delays the single job of another by no more than a few claims',
        inWorld(async ({ holdfast }) => {
          const queue = holdfast.queue(perTenant)
          for (let i = 0; i < 10; i++) {
            await queue.enqueueMany(numbers(1_000).map((n) => ({ payload: { tenant: 'noisy', n } })))
          }
          await queue.enqueue({ tenant: 'quiet', n: -1 })
          let claims = 0
          for (let isServed = false; !isServed; claims++) {
            assert.ok(claims < 5, `served within a few claims; ${claims} were not enough`)
            const lease = await claimOne(holdfast, perTenant)
            isServed = (lease.job.payload as Mail).tenant === 'quiet'
            await lease.done()
          }
        }),
      )
    })

    describe('a held job', () => {
      const heldJob = async (holdfast: Holdfast, options = {}) => {
        await send(holdfast, 'a', 1)
        const { id } = await holdfast.queue(perTenant).enqueue({ tenant: 'a', n: 2 }, options)
        assert.equal(await stateOf(holdfast, id), 'held')
        return id
      }

      test(
        'is cancelled at once',
        inWorld(async ({ holdfast }) => {
          const id = await heldJob(holdfast)
          assert.equal(await holdfast.cancel(id), 'cancelled')
          assert.equal(await stateOf(holdfast, id), 'cancelled')
          assert.deepEqual(await oneByOne(holdfast), [1])
        }),
      )

      test(
        'can be deleted, alone or with all held jobs',
        inWorld(async ({ holdfast }) => {
          await holdfast.delete(await heldJob(holdfast))
          await send(holdfast, 'a', 3)
          assert.equal((await holdfast.deleteAll({ queue: 'mail', state: 'held' })).changed, 1)
          assert.deepEqual(await oneByOne(holdfast), [1])
        }),
      )

      test(
        'can be reprioritised, and is then the last of the new priority',
        inWorld(async ({ holdfast }) => {
          const id = await heldJob(holdfast)
          await send(holdfast, 'a', 3)
          assert.equal(await holdfast.reprioritise(id, 9), 'held')
          assert.deepEqual(await oneByOne(holdfast), [1, 3, 2])
        }),
      )

      test(
        'can be rescheduled, and is held again when it is due',
        inWorld(async ({ holdfast, clock }) => {
          const id = await heldJob(holdfast)
          assert.equal(await holdfast.reschedule(id, clock.now() + minute), 'scheduled')
          await send(holdfast, 'a', 3)
          await clock.advance(minute)
          await holdfast.sweep()
          assert.equal(await stateOf(holdfast, id), 'held')
          assert.deepEqual(await oneByOne(holdfast), [1, 3, 2])
        }),
      )

      test(
        'stays held after a wake, and has the data',
        inWorld(async ({ holdfast }) => {
          const id = await heldJob(holdfast)
          assert.equal(await holdfast.wake(id, { hello: 1 }), 'held')
          assert.deepEqual((await readJob(holdfast, id)).wake, { hello: 1 })
        }),
      )

      test(
        'is cancelled if it is not admitted by its latest start',
        inWorld(async ({ holdfast, clock }) => {
          const id = await heldJob(holdfast, { startBefore: clock.now() + minute })
          await claimOne(holdfast, perTenant, { lease: '1h' })
          await clock.advance(2 * minute)
          await holdfast.sweep()
          assert.equal(await stateOf(holdfast, id), 'cancelled')
        }),
      )

      test(
        'holds its dedup key, and can be replaced',
        inWorld(async ({ holdfast }) => {
          const dedup = { key: 'once', replace: true }
          const id = await heldJob(holdfast, { dedup })
          const again = await holdfast.queue(perTenant).enqueue({ tenant: 'a', n: 22 }, { dedup })
          assert.deepEqual(again, { id, status: 'replaced' })
          assert.deepEqual(await oneByOne(holdfast), [1, 22])
        }),
      )

      test(
        'counts for the limit key of its new payload after it was replaced',
        inWorld(async ({ holdfast }) => {
          const dedup = { key: 'once', replace: true }
          const id = await heldJob(holdfast, { dedup })
          await holdfast.queue(perTenant).enqueue({ tenant: 'b', n: 22 }, { dedup })
          assert.equal(await stateOf(holdfast, id), 'ready', 'its new key has a free slot')
          const next = await holdfast.queue(perTenant).enqueue({ tenant: 'b', n: 3 })
          assert.equal(await stateOf(holdfast, next.id), 'held', 'the new key has no free slot now')
        }),
      )

      test(
        'is admitted at once when the job with the slot is replaced under another key, or rescheduled',
        inWorld(async ({ holdfast }) => {
          const queue = holdfast.queue(perTenant)
          const dedup = { key: 'once', replace: true }
          await queue.enqueue({ tenant: 'a', n: 1 }, { dedup })
          const second = await queue.enqueue({ tenant: 'a', n: 2 })
          assert.equal(await stateOf(holdfast, second.id), 'held')
          await queue.enqueue({ tenant: 'b', n: 3 }, { dedup })
          assert.equal(await stateOf(holdfast, second.id), 'ready')
          await queue.enqueue({ tenant: 'c', n: 4 }, { dedup, delay: '1h' })
          const last = await queue.enqueue({ tenant: 'b', n: 5 })
          assert.equal(await stateOf(holdfast, last.id), 'ready')
        }),
      )

      test(
        'is reported by watch, and again when it is admitted',
        inWorld(async ({ holdfast }) => {
          await using watch = holdfast.watch({ states: ['held', 'ready'] })
          await watch.begun
          const id = await heldJob(holdfast)
          await (await claimOne(holdfast, perTenant)).done()
          const states: string[] = []
          for await (const change of watch) {
            if (change.id === id) states.push(change.state)
            if (states.length === 2) break
          }
          assert.deepEqual(states, ['held', 'ready'])
        }),
      )

      test(
        'wakes a waiting claim when it is admitted',
        inWorld(async ({ holdfast, another }) => {
          await send(holdfast, 'a', 1, 2)
          const first = await claimOne(holdfast, perTenant)
          const waiting = (await another()).claim([perTenant], { wait: '10s' })
          await first.done()
          const [second] = await waiting
          assert.equal((second?.job.payload as Mail | undefined)?.n, 2)
        }),
      )
    })

    test('an invalid limit is refused when the queue is defined', () => {
      const bad: readonly unknown[] = [
        {},
        7,
        { concurrency: 0 },
        { concurrency: 1.5 },
        { rate: { count: 0, per: '1m' } },
        { rate: { count: 1 } },
        { rate: { count: 1, per: 'often' } },
        { key: '', concurrency: 1 },
        { key: 'tenants.0', concurrency: 1 },
        { key: 'a..b', concurrency: 1 },
        { key: 7, concurrency: 1 },
        { key: 'tenant' },
        { key: () => 'a' },
        { concurrency: 1, per: '1m' },
        [{ concurrency: 1 }, { concurrency: 2 }],
      ]
      for (const limit of bad) {
        assert.throws(() => defineQueue('mail', { limit } as never), { code: 'INVALID_OPTION' }, JSON.stringify(limit))
      }
    })
  })
}

type Ending = World & { readonly lease: Awaited<ReturnType<typeof claimOne>>; readonly id: string }

/** Every way in which a job stops running. */
const endings: readonly (readonly [string, (on: Ending) => Promise<unknown>])[] = [
  ['is done', ({ lease }) => lease.done()],
  ['is dead', ({ lease }) => lease.dead(new Error('no'))],
  ['is cancelled', ({ lease }) => lease.cancelled()],
  ['waits for another attempt', ({ lease }) => lease.retry(new Error('no'), { delay: '1h' })],
  ['is retried at once', ({ lease }) => lease.retry(new Error('no'), { delay: 0 })],
  ['is snoozed', ({ lease }) => lease.snooze('1h')],
  ['is released', ({ lease }) => lease.release()],
  ['has lost its worker', ({ holdfast, clock }) => passed(holdfast, clock, 2 * minute)],
  [
    'has lost its worker after a cancel request',
    async ({ holdfast, clock, id }) => {
      await holdfast.cancel(id)
      await passed(holdfast, clock, 2 * minute)
    },
  ],
]

/** Every way in which a ready job gives up its slot. */
const departures: readonly (readonly [string, (on: World & { readonly id: string }) => Promise<unknown>])[] = [
  ['cancelled', ({ holdfast, id }) => holdfast.cancel(id)],
  ['deleted', ({ holdfast, id }) => holdfast.delete(id)],
  ['deleted with all ready jobs', ({ holdfast }) => holdfast.deleteAll({ queue: 'mail', state: 'ready' })],
  ['cancelled with all ready jobs', ({ holdfast }) => holdfast.cancelAll({ queue: 'mail', state: 'ready' })],
  ['rescheduled', ({ holdfast, clock, id }) => holdfast.reschedule(id, clock.now() + minute - 1)],
  ['past its latest start', ({ holdfast, clock }) => passed(holdfast, clock, 2 * minute)],
]

async function passed(holdfast: Holdfast, clock: TestClock, ms: number): Promise<void> {
  await clock.advance(ms)
  await holdfast.sweep()
}

async function send(holdfast: Holdfast, tenant: string | null, ...numbered: number[]): Promise<void> {
  await holdfast.queue(perTenant).enqueueMany(numbered.map((n) => ({ payload: { tenant, n } })))
}

async function claimed(holdfast: Holdfast, max: number): Promise<number[]> {
  const leases = await holdfast.claim(['mail'], { max })
  return leases.map(({ job }) => (job.payload as Mail).n)
}

/** Claims and ends one job after the other. */
async function oneByOne(holdfast: Holdfast): Promise<number[]> {
  const done: number[] = []
  for (;;) {
    const [lease] = await holdfast.claim(['mail'])
    if (!lease) return done
    done.push((lease.job.payload as Mail).n)
    await lease.done()
  }
}

function numbers(count: number): number[] {
  return Array.from({ length: count }, (_, n) => n)
}
