import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import type { HoldfastEvents } from '../../src/events.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { bounds, defaults } from '../../src/job/bounds.ts'
import type { QueueSettings } from '../../src/job/record.ts'
import type { DeathNotice } from '../../src/job/transition.ts'
import type { Lease } from '../../src/lease/lease.ts'
import { type BehaviourOptions, defineQueue } from '../../src/queue/definition.ts'
import { allJobs, claimOne, hour, readJob, rejects } from './expect.ts'
import type { InWorld, World } from './world.ts'

function settingsOf(name: string, options: BehaviourOptions): QueueSettings {
  return defineQueue(name, options).settings as QueueSettings
}

const mail = defineQueue('mail', { onDead: { queue: 'alerts' } })
const taken = '0190a5b0-0000-7000-8000-000000000001'

export const deaths: Readonly<Record<string, (lease: Lease, world: World) => Promise<unknown>>> = {
  'a permanent error': (lease) => lease.dead(new Error('gone')),
  'the last failed attempt': (lease) => lease.retry(new Error('gone')),
  'expiry at the last attempt': async (_, { holdfast, clock }) => {
    await clock.advance(hour)
    await holdfast.sweep()
  },
  'a failing effect at the last attempt': async (lease, { holdfast }) => {
    await holdfast.queue('other').enqueue(1, { id: taken })
    await rejects(lease.done(null, { enqueue: [{ queue: 'other', payload: 1, id: taken }] }), 'DUPLICATE_JOB_ID')
  },
}

export function onDeadTests(inWorld: InWorld): void {
  describe('a queue that gets death notices', () => {
    for (const [what, die] of Object.entries(deaths)) {
      test(
        `gets a notice of a death by ${what}`,
        inWorld(async (world) => {
          const { holdfast, clock } = world
          const { id } = await holdfast.queue(mail).enqueue({ to: 'ada' }, { attempts: 1 })
          await die(await claimOne(holdfast, mail), world)
          const { state, error } = await readJob(holdfast, id)
          assert.equal(state, 'dead')
          const notice = (await claimOne(holdfast, 'alerts')).job.payload as DeathNotice
          const expected = {
            id,
            queue: 'mail',
            attempts: 1,
            error,
            payload: { to: 'ada' },
            diedAt: clock.now(),
            depth: 1,
          }
          assert.deepEqual(notice, expected)
          assert.deepEqual(await holdfast.claim(['alerts']), [])
        }),
      )
    }

    test(
      'gets a notice of a payload that did not match its schema',
      inWorld(async ({ holdfast }) => {
        const checked = defineQueue('mail', { payload: z.string(), onDead: { queue: 'alerts' } })
        const { id } = await holdfast.queue(mail).enqueue(5)
        assert.deepEqual(await holdfast.claim([checked]), [])
        const notice = (await claimOne(holdfast, 'alerts')).job.payload as DeathNotice
        assert.deepEqual([notice.id, notice.payload, notice.error?.code], [id, 5, 'INVALID_PAYLOAD'])
      }),
    )

    test(
      'gets a notice whichever client detects the death, also one that never saw the definition',
      inWorld(async ({ holdfast, another, clock }) => {
        const { id } = await holdfast.queue(mail).enqueue(1, { attempts: 1 })
        const other = await another()
        await claimOne(other, 'mail')
        await clock.advance(hour)
        await other.sweep()
        assert.equal(((await claimOne(other, 'alerts')).job.payload as DeathNotice).id, id)
      }),
    )

    test(
      'gets a notice of every death: again after a requeue, together with the effects of the job',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue(mail).enqueue(1)
        await (await claimOne(holdfast, mail)).dead(new Error('one'))
        await holdfast.requeue(id)
        const effects = { enqueue: [{ queue: 'cleanup', payload: 1 }] }
        await (await claimOne(holdfast, mail)).dead(new Error('two'), effects)
        const notices = (await allJobs(holdfast, { queue: 'alerts' })).map(({ payload }) => payload as DeathNotice)
        assert.deepEqual(
          notices.map((notice) => [notice.id, notice.error?.message]),
          [
            [id, 'one'],
            [id, 'two'],
          ],
        )
        assert.equal((await holdfast.stats('cleanup')).ready, 1)
      }),
    )

    test(
      'gets no notice of retries, cancels and done jobs',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue(mail).enqueueMany([1, 2, 3].map((payload) => ({ payload })))
        const [one, two, three] = await holdfast.claim([mail], { max: 3 })
        await one?.done()
        await two?.retry(new Error('no'))
        await three?.cancelled()
        const waiting = await holdfast.queue(mail).enqueue(4)
        await holdfast.cancel(waiting.id)
        assert.equal((await holdfast.stats('alerts')).ready, 0)
      }),
    )

    test(
      'gets a notice also if dead jobs are not retained',
      inWorld(async ({ holdfast }) => {
        const queue = defineQueue('mail', { onDead: { queue: 'alerts' }, retain: { dead: 0 } })
        const { id } = await holdfast.queue(queue).enqueue(1)
        await (await claimOne(holdfast, queue)).dead(new Error('no'))
        assert.equal(await holdfast.job(id), null)
        assert.equal(((await claimOne(holdfast, 'alerts')).job.payload as DeathNotice).id, id)
      }),
    )

    test(
      'cannot be the queue itself',
      inWorld(async ({ holdfast }) => {
        const itself = async () => holdfast.queue('mail', { onDead: { queue: 'mail' } })
        await rejects(itself(), 'INVALID_OPTION')
      }),
    )

    test(
      'cannot be a queue whose notices lead back, over any number of queues: the error names them',
      inWorld(async ({ holdfast, another }) => {
        await defineNotices(holdfast, 'a', 'b')
        await defineNotices(holdfast, 'b', 'c')
        const other = await another()
        for (const [client, from, to, cycle] of [
          [holdfast, 'b', 'a', ['b', 'a', 'b']],
          [other, 'c', 'a', ['c', 'a', 'b', 'c']],
          [other, 'c', 'b', ['c', 'b', 'c']],
        ] as const) {
          await rejects(defineNotices(client, from, to), 'INVALID_OPTION', { option: 'onDead', cycle })
          await assert.rejects(defineNotices(client, from, to), new RegExp(cycle.join(' → ')))
        }
        await defineNotices(other, 'c', 'd')
        assert.deepEqual(await depthsAlong(holdfast, ['a', 'b', 'c', 'd']), [undefined, 1, 2, 3])
      }),
    )

    test(
      'two definitions at the same time that would make a cycle: one is refused',
      inWorld(async ({ holdfast, another }) => {
        const other = await another()
        for (let round = 0; round < 5; round++) {
          const [a, b] = [`a${round}`, `b${round}`]
          const answers = await Promise.allSettled([defineNotices(holdfast, a, b), defineNotices(other, b, a)])
          assert.deepEqual(answers.map(({ status }) => status).toSorted(), ['fulfilled', 'rejected'])
        }
      }),
    )

    test(
      'may be removed: a definition without onDead breaks a cycle',
      inWorld(async ({ holdfast }) => {
        await defineNotices(holdfast, 'a', 'b')
        await rejects(defineNotices(holdfast, 'b', 'a'), 'INVALID_OPTION')
        await holdfast.queue('a', { retain: { dead: '1d' } }).enqueue(1)
        await defineNotices(holdfast, 'b', 'a')
      }),
    )

    test(
      'a definition that was refused for its cycle does not apply to the queue later',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const settings = (name: string, onDead: string | null) => ({ ...settingsOf(name, { attempts: 7 }), onDead })
        await own.define([settings('b', 'a')])
        await assert.rejects(own.define([settings('a', 'b')]))
        await own.define([settings('b', null)])
        const { id } = await holdfast.queue('a').enqueue(1)
        await own.sweep({ max: 100 })
        const stored = await own.definitions(['a', 'b'])
        const versions = Object.fromEntries(stored.map(({ queue, version }) => [queue, version]))
        assert.deepEqual(versions, { a: 0, b: 2 })
        assert.equal((await readJob(holdfast, id)).maxAttempts, defaults.attempts)
      }),
    )

    for (const [how, die] of [
      ['a settlement', deaths['a permanent error']],
      ['a rescue', deaths['expiry at the last attempt']],
    ] as const) {
      test(
        `gets notices of dead notices up to a depth; beyond it the death by ${how} is recorded and reported`,
        inWorld(async (world) => {
          const { holdfast } = world
          const queues = Array.from({ length: bounds.noticeDepth + 2 }, (_, i) => `q${i}`)
          for (const [i, queue] of queues.slice(0, -1).entries())
            await defineNotices(holdfast, queue, queues[i + 1] as string)
          const dropped: HoldfastEvents['notice.dropped'][] = []
          holdfast.on('notice.dropped', (event) => dropped.push(event))
          const depths = await depthsAlong(holdfast, queues.slice(0, -2))
          assert.deepEqual(
            depths.slice(1),
            Array.from({ length: bounds.noticeDepth - 1 }, (_, i) => i + 1),
          )
          const [last, beyond] = queues.slice(-2) as [string, string]
          const lease = await claimOne(holdfast, last)
          assert.equal((lease.job.payload as DeathNotice).depth, bounds.noticeDepth)
          await die?.(lease, world)
          // A notice has all its attempts, and each of them expires.
          while ((await readJob(holdfast, lease.job.id)).state !== 'dead') {
            await die?.(await claimOne(holdfast, last), world)
          }
          assert.deepEqual(await holdfast.claim([beyond]), [])
          assert.equal(dropped.length, 1)
          const { reason, ...facts } = dropped[0] as HoldfastEvents['notice.dropped']
          assert.deepEqual(facts, { id: lease.job.id, queue: last, onDead: beyond })
          assert.match(reason, /8/)
          assert.equal((await readJob(holdfast, lease.job.id)).error?.noticeDropped, reason)
        }),
      )
    }

    test(
      'gets the size of a payload that is too large for a notice; the dead job keeps the payload',
      inWorld(async ({ holdfast }) => {
        const reservedBytes = 1_000 // for the other fields of a notice
        for (const [length, isWhole] of [
          [bounds.payloadBytes - reservedBytes, true],
          [bounds.payloadBytes - 2, false],
        ] as const) {
          const payload = 'x'.repeat(length)
          const { id } = await holdfast.queue(mail).enqueue(payload)
          await (await claimOne(holdfast, mail)).dead(new Error('no'))
          const lease = await claimOne(holdfast, 'alerts')
          const notice = lease.job.payload as DeathNotice
          assert.equal(notice.id, id)
          assert.equal(notice.payload, isWhole ? payload : null)
          assert.equal(notice.payloadBytes, isWhole ? undefined : length + 2)
          assert.ok(Buffer.byteLength(JSON.stringify(notice)) <= bounds.payloadBytes)
          assert.equal((await readJob(holdfast, id)).payload, payload)
          await lease.done()
        }
      }),
    )
  })
}

/** Defines a queue whose death notices go to another. */
async function defineNotices(holdfast: Holdfast, from: string, to: string): Promise<void> {
  const { id } = await holdfast.queue(from, { attempts: 1, onDead: { queue: to } }).enqueue(from)
  await holdfast.cancel(id)
}

/** A job dies in the first queue, its notice in the next, and so on. Returns the depth of each notice. */
async function depthsAlong(holdfast: Holdfast, queues: readonly string[]): Promise<(number | undefined)[]> {
  await holdfast.queue(queues[0] as string).enqueue('first')
  const depths: (number | undefined)[] = []
  for (const queue of queues) {
    const lease = await claimOne(holdfast, queue)
    depths.push((lease.job.payload as Partial<DeathNotice>).depth)
    await lease.dead(new Error(`in ${queue}`))
  }
  return depths
}
