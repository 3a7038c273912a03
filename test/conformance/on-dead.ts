import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import type { HoldfastEvents } from '../../src/events.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { bounds } from '../../src/job/bounds.ts'
import type { DeathNotice } from '../../src/job/transition.ts'
import type { Lease } from '../../src/lease/lease.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { allJobs, claimOne, hour, readJob, rejects } from './expect.ts'
import type { InWorld, World } from './world.ts'

const mail = defineQueue('mail', { onDead: { queue: 'alerts' } })
const taken = '0190a5b0-0000-7000-8000-000000000001'

const deaths: Readonly<Record<string, (lease: Lease, world: World) => Promise<unknown>>> = {
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
  describe('a queue that is told of deaths', () => {
    for (const [what, die] of Object.entries(deaths)) {
      test(
        `is told of a death by ${what}`,
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
      'is told of a payload that did not fit its schema',
      inWorld(async ({ holdfast }) => {
        const checked = defineQueue('mail', { payload: z.string(), onDead: { queue: 'alerts' } })
        const { id } = await holdfast.queue(mail).enqueue(5)
        assert.deepEqual(await holdfast.claim([checked]), [])
        const notice = (await claimOne(holdfast, 'alerts')).job.payload as DeathNotice
        assert.deepEqual([notice.id, notice.payload, notice.error?.code], [id, 5, 'INVALID_PAYLOAD'])
      }),
    )

    test(
      'is told whoever notices the death, also one who never saw the definition',
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
      'is told of every death: again after a requeue, along with the job’s own effects',
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
      'is not told of retries, of cancels, nor of done jobs',
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
      'is told where nothing of the dead is retained, too',
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
      'cannot be one whose own deaths come back, however many queues lie between: the error names them',
      inWorld(async ({ holdfast, another }) => {
        await tells(holdfast, 'a', 'b')
        await tells(holdfast, 'b', 'c')
        const other = await another()
        for (const [client, from, to, cycle] of [
          [holdfast, 'b', 'a', ['b', 'a', 'b']],
          [other, 'c', 'a', ['c', 'a', 'b', 'c']],
          [other, 'c', 'b', ['c', 'b', 'c']],
        ] as const) {
          await rejects(tells(client, from, to), 'INVALID_OPTION', { option: 'onDead', cycle })
          await assert.rejects(tells(client, from, to), new RegExp(cycle.join(' → ')))
        }
        await tells(other, 'c', 'd')
        assert.deepEqual(await depthsAlong(holdfast, ['a', 'b', 'c', 'd']), [undefined, 1, 2, 3])
      }),
    )

    test(
      'of two definitions that make a cycle together, and come at the same time, one is refused',
      inWorld(async ({ holdfast, another }) => {
        const other = await another()
        for (let round = 0; round < 5; round++) {
          const [a, b] = [`a${round}`, `b${round}`]
          const answers = await Promise.allSettled([tells(holdfast, a, b), tells(other, b, a)])
          assert.deepEqual(answers.map(({ status }) => status).toSorted(), ['fulfilled', 'rejected'])
        }
      }),
    )

    test(
      'may be exchanged: a definition that tells nobody takes the way out of a cycle',
      inWorld(async ({ holdfast }) => {
        await tells(holdfast, 'a', 'b')
        await rejects(tells(holdfast, 'b', 'a'), 'INVALID_OPTION')
        await holdfast.queue('a', { retain: { dead: '1d' } }).enqueue(1)
        await tells(holdfast, 'b', 'a')
      }),
    )

    for (const [how, die] of [
      ['a settlement', deaths['a permanent error']],
      ['a rescue', deaths['expiry at the last attempt']],
    ] as const) {
      test(
        `is told of deaths among notices up to a depth; behind it the death by ${how} is recorded and reported`,
        inWorld(async (world) => {
          const { holdfast } = world
          const queues = Array.from({ length: bounds.noticeDepth + 2 }, (_, i) => `q${i}`)
          for (const [i, queue] of queues.slice(0, -1).entries()) await tells(holdfast, queue, queues[i + 1] as string)
          const dropped: HoldfastEvents['notice.dropped'][] = []
          holdfast.on('notice.dropped', (event) => dropped.push(event))
          const depths = await depthsAlong(holdfast, queues.slice(0, -2))
          assert.deepEqual(
            depths.slice(1),
            Array.from({ length: bounds.noticeDepth - 1 }, (_, i) => i + 1),
          )
          const [last, behind] = queues.slice(-2) as [string, string]
          const lease = await claimOne(holdfast, last)
          assert.equal((lease.job.payload as DeathNotice).depth, bounds.noticeDepth)
          await die?.(lease, world)
          // A notice has all its attempts; each of them expires.
          while ((await readJob(holdfast, lease.job.id)).state !== 'dead') {
            await die?.(await claimOne(holdfast, last), world)
          }
          assert.deepEqual(await holdfast.claim([behind]), [])
          assert.equal(dropped.length, 1)
          const { reason, ...facts } = dropped[0] as HoldfastEvents['notice.dropped']
          assert.deepEqual(facts, { id: lease.job.id, queue: last, onDead: behind })
          assert.match(reason, /8/)
          assert.equal((await readJob(holdfast, lease.job.id)).error?.noticeDropped, reason)
        }),
      )
    }

    test(
      'is told of a payload that is too large for a notice by its size; the dead job keeps it',
      inWorld(async ({ holdfast }) => {
        const room = 1_000 // for what a notice says beside the payload
        for (const [length, isWhole] of [
          [bounds.payloadBytes - room, true],
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

/** Deaths in one queue are told to another. */
async function tells(holdfast: Holdfast, from: string, to: string): Promise<void> {
  const { id } = await holdfast.queue(from, { attempts: 1, onDead: { queue: to } }).enqueue(from)
  await holdfast.cancel(id)
}

/** One job dies in the first queue, the notice of that in the next, and so on; answers how deep each notice says it is. */
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
