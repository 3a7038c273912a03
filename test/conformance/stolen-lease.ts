// A worker that has lost its lease and does not know it. Whatever it settles, and whatever happened to the job meanwhile:
// nothing changes, none of its effects is applied, and the call fails with LEASE_LOST.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import type { JobState } from '../../src/job/record.ts'
import type { Lease } from '../../src/lease/lease.ts'
import type { Effects } from '../../src/queue/effects.ts'
import { claimOne, everything, hour, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld, World } from './world.ts'

const effects: Effects = {
  enqueue: [{ queue: 'follow-up', payload: 'from a lost lease' }],
  put: [{ key: 'late', value: 'from a lost lease' }],
  delete: ['kept'],
}

const lateVerbs: Readonly<Record<string, (lease: Lease) => Promise<unknown>>> = {
  done: (lease) => lease.done('late', effects),
  retry: (lease) => lease.retry(new Error('late'), { delay: 0 }),
  dead: (lease) => lease.dead(new Error('late'), effects),
  release: (lease) => lease.release(),
  snooze: (lease) => lease.snooze('1s'),
  cancelled: (lease) => lease.cancelled(effects),
  renew: (lease) => lease.renew('1h'),
}

interface LostLease {
  readonly id: string
  /** The lease of the first worker. */
  readonly stale: Lease
  /** The current lease of the job, if there is one. */
  readonly holder?: Lease
}

interface Situation {
  readonly leaves: JobState
  happen(world: World): Promise<LostLease>
}

const situations: Readonly<Record<string, Situation>> = {
  'after rescue': { leaves: 'ready', happen: rescued },
  'after re-lease by another worker': {
    leaves: 'running',
    async happen(world) {
      const lost = await rescued(world)
      return { ...lost, holder: await claimOne(await world.another(), 'mail', { worker: 'second' }) }
    },
  },
  'after releaseWorker': {
    leaves: 'ready',
    async happen(world) {
      const lost = await claimed(world)
      assert.equal((await (await world.another()).releaseWorker('first')).released, 1)
      return lost
    },
  },
  'after requeue of the dead job': { leaves: 'ready', happen: requeued },
  'after requeue of the dead job and re-lease': {
    leaves: 'running',
    async happen(world) {
      const lost = await requeued(world)
      return { ...lost, holder: await claimOne(world.holdfast, 'mail', { worker: 'first' }) }
    },
  },
  'after cancel took effect': {
    leaves: 'cancelled',
    async happen(world) {
      const lost = await claimed(world)
      assert.equal(await world.holdfast.cancel(lost.id), 'requested')
      await expire(world)
      return lost
    },
  },
  'after it was dead by expiry': {
    leaves: 'dead',
    async happen(world) {
      const lost = await claimed(world, { attempts: 1 })
      await expire(world)
      return lost
    },
  },
  'after it was already settled as done': { leaves: 'done', happen: (world) => settled(world, (l) => l.done(1)) },
  'after it was already settled as dead': {
    leaves: 'dead',
    happen: (world) => settled(world, (lease) => lease.dead(new Error('first'))),
  },
  'after it was already settled for retry': {
    leaves: 'scheduled',
    happen: (world) => settled(world, (lease) => lease.retry(new Error('first'), { delay: '1h' })),
  },
  'after its own release and re-lease': {
    leaves: 'running',
    async happen(world) {
      const lost = await settled(world, (lease) => lease.release())
      return { ...lost, holder: await claimOne(world.holdfast, 'mail', { worker: 'first' }) }
    },
  },
  'after it was done and its id runs again': {
    leaves: 'running',
    async happen(world) {
      const lost = await settled(world, (lease) => lease.done(1))
      await world.holdfast.queue('mail').enqueue('another', { id: lost.id })
      return { ...lost, holder: await claimOne(world.holdfast, 'mail', { worker: 'second' }) }
    },
  },
}

export function stolenLeaseTests(inWorld: InWorld): void {
  for (const [when, { leaves, happen }] of Object.entries(situations)) {
    describe(`a lost lease, ${when}`, () => {
      for (const [verb, settle] of Object.entries(lateVerbs)) {
        test(
          `a late ${verb} changes nothing and fails with LEASE_LOST`,
          inWorld(async (world) => {
            const { holdfast } = world
            await holdfast.kv.put('kept', true)
            const { id, stale, holder } = await happen(world)
            assert.equal(await stateOf(holdfast, id), leaves)
            const before = await everything(holdfast)
            const error = await rejects(settle(stale), 'LEASE_LOST', { id, verb, attempt: 1 })
            assert.match(error.message, /^Cannot (settle|renew|report progress of) job /)
            await rejects(settle(stale), 'LEASE_LOST')
            assert.deepEqual(await everything(holdfast), before)
            assert.equal(await holdfast.kv.get('late'), null)
            assert.equal((await holdfast.stats('follow-up')).ready, 0)
            if (holder) await settlesStill(world, holder)
          }),
        )
      }
    })
  }

  describe('a lost lease', () => {
    test(
      'a late settlement does not fail the valid ones in the same flush, nor succeed with them',
      inWorld(async (world) => {
        const { stale } = await rescued(world)
        const { holdfast } = world
        const again = await claimOne(holdfast, 'mail')
        await holdfast.queue('mail').enqueue('neighbour')
        const neighbour = await claimOne(holdfast, 'mail')
        const [first, late, last] = await Promise.allSettled([neighbour.done(1), stale.done(2, effects), again.done(3)])
        assert.deepEqual([first.status, late.status, last.status], ['fulfilled', 'rejected', 'fulfilled'])
        assert.equal((await readJob(holdfast, again.job.id)).result, 3)
        assert.equal((await holdfast.stats('follow-up')).ready, 0)
      }),
    )

    test(
      'a late settlement fails with LEASE_LOST if the job was not retained',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail', { retain: { done: 0 } }).enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        await lease.done()
        const before = await everything(holdfast)
        for (const settle of Object.values(lateVerbs)) await rejects(settle(lease), 'LEASE_LOST')
        assert.deepEqual(await everything(holdfast), before)
      }),
    )
  })
}

async function claimed({ holdfast }: World, options: { attempts?: number } = {}): Promise<LostLease> {
  const { id } = await holdfast.queue('mail').enqueue('p', { id: randomUUID(), dedup: { key: 'k' }, ...options })
  return { id, stale: await claimOne(holdfast, 'mail', { lease: '30s', worker: 'first' }) }
}

async function expire({ holdfast, clock }: World): Promise<void> {
  await clock.advance(hour)
  assert.equal((await holdfast.sweep()).rescued, 1)
}

async function rescued(world: World): Promise<LostLease> {
  const lost = await claimed(world)
  await expire(world)
  return lost
}

async function requeued(world: World): Promise<LostLease> {
  const lost = await claimed(world, { attempts: 1 })
  await expire(world)
  await world.holdfast.requeue(lost.id)
  return lost
}

async function settled(world: World, settle: (lease: Lease) => Promise<unknown>): Promise<LostLease> {
  const lost = await claimed(world)
  await settle(lost.stale)
  return lost
}

async function settlesStill({ holdfast }: World, holder: Lease): Promise<void> {
  const { cancelRequested } = await holder.renew('1m')
  assert.equal(cancelRequested, false)
  assert.equal((await holder.done('by the holder')).state, 'done')
  assert.equal((await readJob(holdfast, holder.job.id)).result, 'by the holder')
}
