// The end of every run checks what cannot be read directly:
// - All queues are resumed and claimed until they are empty. That shows the order.
// - Every id, dedup key and idempotency key is tried. That shows which job holds it.
// - All leases, delays, windows and retentions expire in small sweeps. That shows that bounded sweeps add up.

import assert from 'node:assert/strict'
import type { Store, SweepReport } from '../../src/store/store.ts'
import type { ModelJob } from './model.ts'
import { contentsDiffer, observe } from './observe.ts'
import { anyFilter, dedupKeys, givenIds, idempotencyKeys, type JobSpec, payloads, queueNames } from './steps.ts'
import type { World } from './world.ts'

const claimsMax = 1_000

export async function finish(world: World, store: Store): Promise<void> {
  await world.compare()
  await drain(world)
  const states = ['dead', 'cancelled', 'done'] as const
  await world.make({ do: 'changeAll', change: { as: 'requeue' }, filter: { ...anyFilter, states }, dryRun: true })
  for (const queue of queueNames) await probe(world, queue)
  await world.compare()
  await world.make({ do: 'pass', ms: 45_000 })
  await world.make({ do: 'sweep', max: 1_000 })
  await world.compare()
  await drain(world)
  await liftLimits(world)
  await deleteDoubtful(world, store)
  await wakeParked(world)
  await world.make({ do: 'pass', ms: 30 * 86_400_000 })
  await sweepInSmallSteps(world, store)
}

/** Claims every ready job, in the order of the model. */
async function drain(world: World): Promise<void> {
  for (const queue of queueNames) await world.make({ do: 'pause', queue, paused: false, forMs: null })
  for (const nth of world.model.state.batches.batches.keys()) {
    await world.make({ do: 'control', batch: { among: 'any', nth }, as: 'resume', by: null })
  }
  for (let claims = 0; claims < claimsMax; claims++) {
    const before = count(world, 'running')
    await world.make({ do: 'claim', queues: null, max: 4, leaseMs: 10_000, worker: 'last', journals: true })
    if (count(world, 'running') === before) return
  }
  assert.fail('the queues never become empty')
}

function count(world: World, state: string): number {
  return world.model.state.live.filter((job) => job.state === state).length
}

/** Removes all limits, so that every held job is admitted: which held jobs small sweeps admit depends on their size. */
async function liftLimits(world: World): Promise<void> {
  for (const { name: queue, retainDoneMs, retainDeadMs, onDead, onEnd = null, attempts, priority } of world.model.state
    .settings) {
    const defaults = { attempts, priority }
    await world.make({
      do: 'define',
      queue,
      retainDoneMs,
      retainDeadMs,
      ...{ onDead, onEnd },
      ...defaults,
      limit: null,
      keyLimit: null,
    })
  }
  await world.make({ do: 'sweep', max: 1_000 })
  await world.compare()
}

/**
 * Deletes batches whose end depends on how many items end in one sweep: they may be given up, or their completion may meet a key.
 */
async function deleteDoubtful(world: World, store: Store): Promise<void> {
  const doubtful = world.model.state.batches.batches.filter(
    ({ failShare, onComplete }) => failShare !== null || onComplete !== null,
  )
  // If the store keeps a deleted batch while an item runs, running items are rescued first.
  const runs = doubtful.some(({ id }) => world.model.itemsOf(id).some(({ hold }) => hold !== null))
  if (runs && !store.claimsFollowEnqueues) {
    await world.make({ do: 'pass', ms: 45_000 })
    await world.make({ do: 'sweep', max: 1_000 })
  }
  for (const { id } of doubtful) {
    const nth = world.model.state.batches.batches.findIndex((batch) => batch.id === id)
    await world.make({ do: 'control', batch: { among: 'any', nth }, as: 'delete', by: null })
  }
  await world.make({ do: 'sweep', max: 1_000 })
  await world.compare()
}

/** If a parked job is due and its child dies, it depends on the size of a sweep which of the two is seen first. */
async function wakeParked(world: World): Promise<void> {
  const isParked = ({ state, journal }: ModelJob) => state === 'scheduled' && journal.isParked
  for (const { id } of world.model.state.live.filter(isParked)) {
    const nth = world.model.state.live.filter(({ state }) => state === 'scheduled').findIndex((job) => job.id === id)
    await world.make({ do: 'alter', alterations: [{ job: { among: 'scheduled', nth }, as: 'wake', data: null }] })
  }
}

async function probe(world: World, queue: string): Promise<void> {
  const job: JobSpec = {
    ...{ queue, payload: payloads[0], headers: null, priority: 5, maxAttempts: 1, timeoutMs: null, delayMs: 0 },
    ...{ runIn: null, startIn: null, dedup: null, idempotencyKey: null, givenId: null, limitKey: null },
  }
  const asked = [
    ...dedupKeys.map((key) => ({ ...job, dedup: { key, scope: 'live' as const, replace: false } })),
    ...idempotencyKeys.map((idempotencyKey) => ({ ...job, idempotencyKey })),
    ...givenIds.map((givenId) => ({ ...job, givenId })),
  ]
  await world.make({ do: 'enqueue', requests: asked.map((each) => [each]) })
}

/** Sweeps two at a time in the store and all at once in the model. Sums and final state must be equal; only the order differs. */
async function sweepInSmallSteps(world: World, store: Store): Promise<void> {
  const max = 2
  const sums = { rescued: 0, promoted: 0, overdue: 0, admitted: 0, pruned: 0 }
  let last: SweepReport
  do {
    last = await store.sweep({ max })
    for (const part of ['rescued', 'promoted', 'overdue', 'admitted', 'pruned'] as const) {
      const most = part === 'admitted' ? max + last.rescued + last.promoted : max // these may have been held for a moment
      assert.ok(last[part] <= most, `a sweep of at most ${max} has ${part} ${last[part]}`)
      sums[part] += last[part]
    }
  } while (last.more)
  const nextDueAt = last.nextDueAt
  const observed = await observe(store)
  const oracle = await world.oracle()
  world.keep((model) => {
    const expected = model.sweep(1_000_000, oracle)
    // Items with a limit key may be admitted by the commit that ends another item, which is not counted.
    const admitted = model.hasKeyedItems() ? expected.admitted : sums.admitted
    const real = { ...sums, admitted, nextDueAt }
    const sumsDiffer = Object.entries(expected).some(([part, n]) => real[part as keyof typeof real] !== n)
    if (sumsDiffer)
      return `small sweeps add up to ${JSON.stringify(real)} and should add up to ${JSON.stringify(expected)}`
    model.adoptAdmissions(observed.records)
    return contentsDiffer(model, observed)
  })
}
