// Calls at the same moment. Each race runs many times, from two clients, in both orders.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Batch } from '../../src/batch/batch.ts'
import { isHoldfastError } from '../../src/errors.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import type { Lease } from '../../src/lease/lease.ts'
import { counts, none, numbered } from './batches.ts'
import { claimOne, minute } from './expect.ts'
import type { InWorld, World } from './world.ts'

const rounds = 12
const onComplete = { queue: 'completions' }
const all = { concurrency: Number.POSITIVE_INFINITY }

export function batchRaceTests(inWorld: InWorld): void {
  describe('races of a batch', () => {
    test(
      'cancel against claim: a cancel is requested of claimed items, the others never start',
      inWorld(async (world) => {
        await play(world, async ({ here, there }) => {
          const batch = await here.batch({ name: 'c', ...all, onComplete }, numbered(6))
          const elsewhere = await find(there, batch)
          const [claimed] = await Promise.all([here.claim(['mail'], { max: 3 }), elsewhere.cancel()])
          assert.deepEqual(await here.claim(['mail'], { max: 10 }), [], 'no item starts after the cancel was answered')
          for (const lease of claimed) {
            assert.equal((await lease.renew()).cancelRequested, true, 'the holder of an earlier claim sees the request')
            await lease.cancelled()
          }
          await here.sweep()
          assert.deepEqual(counts(await batch.progress()), { ...none, cancelled: 6 })
          await assertOneCompletion(here, batch, { state: 'cancelled', round: 1 })
        })
      }),
    )

    test(
      'pause against claim: after the pause was answered no item starts',
      inWorld(async (world) => {
        await play(world, async ({ here, there }) => {
          const batch = await here.batch({ name: 'p', ...all }, numbered(4))
          const elsewhere = await find(there, batch)
          const [claimed] = await Promise.all([here.claim(['mail'], { max: 2 }), elsewhere.pause()])
          assert.deepEqual(await here.claim(['mail'], { max: 10 }), [])
          for (const lease of claimed) await lease.done()
          assert.deepEqual(counts(await batch.progress()), {
            ...{ ...none, done: claimed.length, waiting: 4 - claimed.length },
          })
          await batch.delete()
          await here.sweep()
        })
      }),
    )

    test(
      'the last two items end at once: the batch is done once',
      inWorld(async (world) => {
        await play(world, async ({ here, there }) => {
          const batch = await here.batch({ name: 'l', onComplete }, numbered(2))
          const first = await claimOne(here, 'mail')
          const second = await claimOne(there, 'mail')
          await Promise.all([first.done(), second.dead(new Error('no'))])
          assert.equal((await batch.progress()).state, 'done')
          await assertOneCompletion(here, batch, { state: 'done', round: 1 })
        })
      }),
    )

    test(
      'retry failed against the completion: the item is retried in this round or in the next, and each round has one completion',
      inWorld(async (world) => {
        await play(world, async ({ here, there }) => {
          const batch = await here.batch({ name: 'r', onComplete }, numbered(2))
          const [first, second] = await here.claim(['mail'], { max: 2 })
          await first?.dead(new Error('no'))
          const elsewhere = await find(there, batch)
          await Promise.all([second?.done(), elsewhere.retryFailed()])
          const { round } = await batch.progress()
          assert.ok(round === 1 || round === 2)
          await (await claimOne(here, 'mail')).done()
          const { state, done } = await batch.progress()
          assert.deepEqual({ state, done }, { state: 'done', done: 2 })
          const completions = (await here.claim(['completions'], { max: 10 })).filter(
            ({ job }) => batchOf(job) === batch.id,
          )
          assert.deepEqual(
            completions.map(({ job }) => (job.payload as { round: number }).round),
            round === 1 ? [1] : [1, 2],
          )
          for (const lease of completions) await lease.done()
        })
      }),
    )

    test(
      'a worker that is killed between run and settle: its item is rescued, and the batch is done once',
      inWorld(async (world) => {
        await play(world, async ({ here, there, clock }) => {
          const batch = await here.batch({ name: 'k', onComplete }, numbered(1))
          const killed = await claimOne(here, 'mail', { lease: '1m' })
          await clock.advance(2 * minute)
          await there.sweep()
          assert.deepEqual(counts(await batch.progress()), { ...none, waiting: 1 })
          const second = await claimOne(there, 'mail')
          assert.equal(second.job.attempt, 2)
          const [late, done] = await Promise.allSettled([killed.done(), second.done()])
          assert.deepEqual([late.status, done.status], ['rejected', 'fulfilled'])
          assert.deepEqual(counts(await batch.progress()), { ...none, done: 1 })
          await assertOneCompletion(here, batch, { state: 'done', round: 1 })
        })
      }),
    )

    test(
      'an item that kills every worker it runs in ends dead, under the cap, and ends its batch',
      inWorld(async ({ holdfast, clock }) => {
        const items = [{ queue: 'mail', payload: 1, attempts: 2 }]
        const batch = await holdfast.batch({ name: 'k', onComplete }, items)
        for (let n = 0; n < 2; n++) {
          await claimOne(holdfast, 'mail', { lease: '1m' })
          await clock.advance(2 * minute)
          await holdfast.sweep()
        }
        const { state, dead } = await batch.progress()
        assert.deepEqual({ state, dead }, { state: 'done', dead: 1 })
        await assertOneCompletion(holdfast, batch, { state: 'done', round: 1 })
      }),
    )

    test(
      'a rescue during pause: the item waits, and does not start before resume',
      inWorld(async (world) => {
        await play(world, async ({ here, there, clock }) => {
          const batch = await here.batch({ name: 'p' }, numbered(1))
          await claimOne(here, 'mail', { lease: '1m' })
          await clock.advance(2 * minute)
          const elsewhere = await find(there, batch)
          await Promise.all([here.sweep(), elsewhere.pause()])
          await here.sweep()
          assert.deepEqual(await there.claim(['mail'], { max: 10 }), [])
          assert.deepEqual(counts(await batch.progress()), { ...none, waiting: 1 })
          await batch.resume()
          await (await claimOne(there, 'mail')).done()
          assert.equal((await batch.progress()).state, 'done')
        })
      }),
    )

    test(
      'two resumes, two pauses, two cancels at once: both are answered, and only one has an effect',
      inWorld(async (world) => {
        await play(world, async ({ here, there }) => {
          const batch = await here.batch({ name: 't', onComplete }, numbered(2))
          const elsewhere = await find(there, batch)
          const both = (how: 'pause' | 'resume' | 'cancel') => Promise.all([batch[how](), elsewhere[how]()])
          assert.deepEqual(states(await both('pause')), ['paused', 'paused'])
          assert.deepEqual(states(await both('resume')), ['queued', 'queued'])
          assert.deepEqual(states(await both('cancel')), ['cancelled', 'cancelled'])
          await here.sweep()
          assert.deepEqual(counts(await batch.progress()), { ...none, cancelled: 2 })
          await assertOneCompletion(here, batch, { state: 'cancelled', round: 1 })
        })
      }),
    )

    test(
      'two calls of retryFailed at once: one new round',
      inWorld(async (world) => {
        await play(world, async ({ here, there }) => {
          const batch = await here.batch({ name: 'r', onComplete }, numbered(3))
          for (const lease of await here.claim(['mail'], { max: 3 })) await lease.dead(new Error('no'))
          const elsewhere = await find(there, batch)
          await Promise.all([batch.retryFailed(), elsewhere.retryFailed()])
          const { round, waiting, dead } = await batch.progress()
          assert.deepEqual({ round, waiting, dead }, { round: 2, waiting: 3, dead: 0 })
          await batch.delete()
          await here.sweep()
          for (const lease of await here.claim(['completions'], { max: 10 })) await lease.done()
        })
      }),
    )

    test(
      'cancel against the last settlement: the batch is done or cancelled, with one completion that says the same',
      inWorld(async (world) => {
        await play(world, async ({ here, there }) => {
          const batch = await here.batch({ name: 'c', onComplete }, numbered(1))
          const lease = await claimOne(here, 'mail')
          const elsewhere = await find(there, batch)
          const [, cancelled] = await Promise.allSettled([lease.done(), elsewhere.cancel()])
          if (cancelled.status === 'rejected') assert.ok(isHoldfastError(cancelled.reason, 'INVALID_STATE'))
          await here.sweep()
          const { state, done, finishedAt } = await batch.progress()
          assert.equal(state, cancelled.status === 'fulfilled' ? 'cancelled' : 'done')
          assert.equal(done, 1)
          assert.ok(finishedAt)
          await assertOneCompletion(here, batch, { state: state as 'done', round: 1 })
        })
      }),
    )

    test(
      'close against the last settlement: the batch is done once',
      inWorld(async (world) => {
        await play(world, async ({ here, there }) => {
          const batch = await here.batch({ name: 'o', open: true, onComplete }, numbered(1))
          const lease = await claimOne(here, 'mail')
          const elsewhere = await find(there, batch)
          await Promise.all([lease.done(), elsewhere.close()])
          await here.sweep()
          assert.equal((await batch.progress()).state, 'done')
          await assertOneCompletion(here, batch, { state: 'done', round: 1 })
        })
      }),
    )

    test(
      'delete while items run and are claimed: no item is left, and no call hangs',
      inWorld(async (world) => {
        await play(world, async ({ here, there }) => {
          const batch = await here.batch({ name: 'd', ...all }, numbered(6))
          const elsewhere = await find(there, batch)
          const running = await here.claim(['mail'], { max: 2 })
          const [claimed] = await Promise.all([here.claim(['mail'], { max: 2 }), elsewhere.delete()])
          await Promise.all([...running, ...claimed].map((lease) => ended(lease)))
          for (let sweeps = 0; sweeps < 3; sweeps++) await here.sweep()
          const { held, scheduled, ready, running: still, cancelled, done } = await here.stats('mail')
          assert.deepEqual(
            { held, scheduled, ready, still, cancelled, done },
            {
              ...{ held: 0, scheduled: 0, ready: 0, still: 0, cancelled: 0, done: 0 },
            },
          )
        })
      }),
    )

    test(
      'retention against requeue and retry: a requeued job is kept, and is claimed',
      inWorld(async (world) => {
        await play(world, async ({ here, there, clock }) => {
          const batch = await here.batch({ name: 'r', retain: '1m', ...all }, numbered(2))
          const leases = await here.claim(['mail'], { max: 2 })
          for (const lease of leases) await lease.dead(new Error('no'))
          const [first, second] = leases.map(({ job }) => job.id) as [string, string]
          await clock.advance(2 * minute)
          const retry = async () => {
            try {
              await batch.retryFailed()
              return true
            } catch (error) {
              if (!isHoldfastError(error, 'BATCH_NOT_FOUND')) throw error
              return false
            }
          }
          const requeue = async () => {
            try {
              await here.requeue(first)
            } catch (error) {
              if (!isHoldfastError(error, 'INVALID_STATE')) throw error // the retry has requeued it before
            }
          }
          const [, isRetried] = await Promise.all([requeue(), retry(), there.sweep(), there.sweep()])
          await there.sweep()
          const wanted = isRetried ? [first, second] : [first]
          const claimed = await there.claim(['mail'], { max: 10 })
          assert.deepEqual(claimed.map(({ job }) => job.id).toSorted(), wanted.toSorted())
          for (const lease of claimed) {
            assert.equal((await there.job(lease.job.id))?.state, 'running')
            await lease.done()
          }
        })
      }),
    )

    test(
      'items that are added while others end: the counts stay exact, and the batch finishes after the last',
      inWorld(async ({ holdfast, another }) => {
        const other = await another()
        const batch = await holdfast.batch({ name: 'a', open: true, ...all, onComplete })
        const elsewhere = await find(other, batch)
        const add = async () => {
          for (let n = 0; n < 10; n++) await elsewhere.add(numbered(7))
          await elsewhere.close()
        }
        const work = async () => {
          while ((await batch.progress()).finishedAt === null) {
            const leases = await holdfast.claim(['mail'], { max: 5 })
            await Promise.all(leases.map((lease, n) => (n % 3 === 0 ? lease.dead(new Error('no')) : lease.done())))
          }
        }
        await Promise.all([add(), work()])
        const { total, done, dead } = await batch.progress()
        assert.deepEqual([total, done + dead], [70, 70])
        await assertOneCompletion(holdfast, batch, { state: 'done', round: 1 })
      }),
    )
  })
}

interface Scene {
  readonly here: Holdfast
  readonly there: Holdfast
  readonly clock: World['clock']
}

async function play({ holdfast, another, clock }: World, round: (scene: Scene) => Promise<void>): Promise<void> {
  const other = await another()
  for (let n = 0; n < rounds; n++) {
    await round(n % 2 === 0 ? { here: holdfast, there: other, clock } : { here: other, there: holdfast, clock })
  }
}

async function find(client: Holdfast, { id }: Batch): Promise<Batch> {
  const batch = await client.getBatch(id)
  assert.ok(batch)
  return batch
}

/** The completion of this batch is enqueued once. */
async function assertOneCompletion(
  client: Holdfast,
  batch: Batch,
  facts: { state: string; round: number },
): Promise<void> {
  const completions = await client.claim(['completions'], { max: 10 })
  assert.deepEqual(
    completions.map(({ job }) => job.payload),
    [{ batchId: batch.id, ...facts }],
  )
  for (const lease of completions) await lease.done()
}

function batchOf({ payload }: { readonly payload: unknown }): string {
  return (payload as { batchId: string }).batchId
}

function states(progress: readonly { readonly state: string }[]): string[] {
  return progress.map(({ state }) => state)
}

/** Settles, if that is possible: a lease of a deleted batch may be lost. */
async function ended(lease: Lease): Promise<void> {
  try {
    await lease.done()
  } catch (error) {
    if (!isHoldfastError(error, 'LEASE_LOST')) throw error
  }
}
