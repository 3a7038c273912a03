import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import type { JobState } from '../../src/job/record.ts'
import { allJobs, claimOne, claimOrder, readJob } from './expect.ts'
import type { InWorld, World } from './world.ts'

export function readTests(inWorld: InWorld): void {
  describe('reads', () => {
    test(
      'an unknown job is null, an unknown queue an empty page',
      inWorld(async ({ holdfast }) => {
        assert.equal(await holdfast.job(randomUUID()), null)
        assert.deepEqual(await holdfast.jobs(), { jobs: [], looked: 0, next: null })
        await holdfast.queue('mail').enqueue(1)
        assert.deepEqual(await holdfast.jobs({ queue: 'never' }), { jobs: [], looked: 0, next: null })
        assert.deepEqual(await holdfast.jobs({ state: 'dead' }), { jobs: [], looked: 0, next: null })
      }),
    )

    test(
      'pages of any size give every job once, equal to its single read',
      inWorld(async (world) => {
        const { holdfast } = world
        const ids = await jobsOfAllStates(world)
        for (const limit of [1, 2, 3, 7, 100, 1_000]) {
          const jobs = await allJobs(holdfast, { limit })
          assert.deepEqual(jobs.map(({ id }) => id).sort(), [...ids].sort(), `pages of ${limit}`)
          for (const job of jobs) assert.deepEqual(job, await readJob(holdfast, job.id))
        }
        const page = await holdfast.jobs({ limit: 5 })
        assert.equal(page.jobs.length, 5)
        assert.notEqual(page.next, null)
      }),
    )

    test(
      'a page has 100 jobs by default',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 150 }, (_, payload) => ({ payload })))
        const first = await holdfast.jobs()
        assert.equal(first.jobs.length, 100)
        const second = await holdfast.jobs({ after: first.next ?? '' })
        assert.deepEqual([second.jobs.length, second.next], [50, null])
      }),
    )

    test(
      'filters by queue, by state and by both hold on every page',
      inWorld(async (world) => {
        const { holdfast } = world
        await jobsOfAllStates(world)
        const all = await allJobs(holdfast)
        const states: JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']
        for (const queue of [undefined, 'a', 'b']) {
          for (const state of [undefined, ...states]) {
            const filter = { ...(queue !== undefined && { queue }), ...(state !== undefined && { state }) }
            const wanted = all.filter((job) => (queue ?? job.queue) === job.queue && (state ?? job.state) === job.state)
            for (const limit of [1, 2, 100]) {
              const got = await allJobs(holdfast, { ...filter, limit })
              assert.deepEqual(got, wanted, `${queue} ${state} in pages of ${limit}`)
            }
          }
        }
      }),
    )

    test(
      'waiting jobs are listed in the order in which they will run',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue('mail')
        await queue.enqueueMany([{ payload: 'b' }, { payload: 'c' }, { payload: 'a', priority: 1 }])
        const released = await claimOne(holdfast, 'mail')
        await released.release()
        await queue.enqueueMany([
          { payload: 'later', delay: '2m' },
          { payload: 'sooner', delay: '1m' },
        ])
        const payloads = async (state: JobState) =>
          (await allJobs(holdfast, { queue: 'mail', state, limit: 1 })).map(({ payload }) => payload)
        assert.deepEqual(await payloads('scheduled'), ['sooner', 'later'])
        assert.deepEqual(await payloads('ready'), await claimOrder(holdfast, ['mail']))
      }),
    )

    test(
      'finished jobs, dead letters among them, are listed newest first',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 10 }, (_, payload) => ({ payload })))
        const leases = await holdfast.claim(['mail'], { max: 10 })
        for (const [n, lease] of leases.entries()) {
          await clock.advance(1_000)
          if (n % 2 === 0) await lease.done()
          else await lease.dead(new Error('no'))
        }
        const payloads = async (state: JobState) =>
          (await allJobs(holdfast, { queue: 'mail', state, limit: 2 })).map(({ payload }) => payload)
        assert.deepEqual(await payloads('done'), [8, 6, 4, 2, 0])
        assert.deepEqual(await payloads('dead'), [9, 7, 5, 3, 1])
      }),
    )

    test(
      'reading pages while jobs change never fails, and unchanged jobs are in them',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 20 }, (_, payload) => ({ payload })))
        const still = await holdfast
          .queue('still')
          .enqueueMany(Array.from({ length: 10 }, (_, payload) => ({ payload })))
        const seen: string[] = []
        let after: string | undefined
        do {
          const page = await holdfast.jobs({ limit: 3, ...(after !== undefined && { after }) })
          seen.push(...page.jobs.map(({ id }) => id))
          after = page.next ?? undefined
          const [lease] = await holdfast.claim(['mail'])
          await lease?.done()
        } while (after !== undefined)
        for (const { id } of still) assert.equal(seen.filter((other) => other === id).length, 1)
      }),
    )
  })
}

async function jobsOfAllStates({ holdfast, clock }: World): Promise<string[]> {
  const ids: string[] = []
  for (const queue of ['a', 'b']) {
    const answers = await holdfast.queue(queue).enqueueMany(Array.from({ length: 12 }, (_, payload) => ({ payload })))
    const delayed = await holdfast.queue(queue).enqueueMany([
      { payload: 1, delay: '1h' },
      { payload: 2, delay: '2h' },
    ])
    const leases = await holdfast.claim([queue], { max: 8, lease: '1h' })
    await clock.advance(1)
    for (const lease of leases.slice(0, 2)) await lease.done(queue)
    for (const lease of leases.slice(2, 4)) await lease.dead(new Error('no'))
    for (const lease of leases.slice(4, 6)) await lease.cancelled()
    ids.push(...[...answers, ...delayed].map(({ id }) => id))
  }
  return ids
}
