// Batches. Several processes submit the same batch in parts under a shared key, so that one continues where another died. All of
// them pause, resume, cancel, retry, close and delete batches at random, at the same time.

import type { BatchItem } from '../../src/batch/options.ts'
import type { BatchProgress } from '../../src/batch/progress.ts'
import type { BatchAction } from '../../src/store/store.ts'
import type { Entry, Sample, TaskBehaviour } from './journal.ts'
import { Random } from './random.ts'
import { completions, keyed, narrow, paced, pieces, tasks, tenants, type World } from './world.ts'

/** The batch of a key. The key alone decides it. */
interface Design {
  readonly name: string
  readonly concurrency: number
  readonly stopWhenFailed?: number
  readonly items: readonly BatchItem[]
}

/** For so long the same keys are submitted; then others. */
const slotMs = 4_000
const keysPerSlot = 2
const itemsMax = 24
/** How many of the newest batches are controlled and sampled. */
const controlledMax = 8

/** Submits more items of a batch that other processes submit too, and sometimes all of them. */
export async function submitPart(world: World): Promise<void> {
  const { random, now } = world
  const slot = Math.floor(now() / slotMs) - (random.chance(0.2) ? 1 : 0)
  const key = `batch${slot}x${random.below(keysPerSlot)}`
  const { length } = labelsOf(key)
  const closes = random.chance(0.3)
  await submit(world, key, closes ? length : random.below(length))
}

/** Submits the rest of the batch and closes it. */
export async function submitRest(world: World, key: string): Promise<void> {
  await submit(world, key, labelsOf(key).length)
}

async function submit(world: World, key: string, upTo: number): Promise<void> {
  const { holdfast, journal } = world
  const { items, ...design } = designOf(key, 'application' in world)
  const closes = upTo === items.length
  await journal.ask('submit', { key, upTo, closes }, async () => {
    const options = { ...design, key, ...completion, open: !closes, retain: Number.POSITIVE_INFINITY }
    const { id } = await holdfast.batch(options, items.slice(0, upTo))
    return { batch: id }
  })
}

const completion = { onComplete: { queue: completions, payload: { kind: 'completion' } } }

/** Submits a batch without a key. No other process continues it, and it may be deleted. */
export async function submitOnce(world: World, label: string): Promise<void> {
  const { holdfast, journal, random } = world
  const items = Array.from({ length: 4 + random.below(itemsMax) }, (_, n) =>
    itemOf(random, `${label}-${n}`, 'application' in world),
  )
  const labels = items.map(({ payload }) => (payload as Entry).label)
  const half = random.below(items.length)
  await journal.ask('submitOnce', { labels }, async () => {
    const options = { name: deletable, concurrency: random.pick(concurrencies), ...completion, open: true }
    const batch = await holdfast.batch({ ...options, retain: Number.POSITIVE_INFINITY }, items.slice(0, half))
    await batch.add(items.slice(half))
    await batch.close()
    return { batch: batch.id }
  })
}

/** Submits a batch whose retention ends as soon as it is finished. So its pruning races with requeues of its dead items. */
export async function submitShortLived(world: World, label: string): Promise<void> {
  const { holdfast, journal, random } = world
  const labels = Array.from({ length: 1 + random.below(4) }, (_, n) => `${label}-${n}`)
  const items = labels.map((each) => ({ queue: pieces, payload: { label: each, kind: 'shortLived' }, attempts: 1 }))
  await journal.ask('submitOnce', { labels, shortLived: true }, async () => {
    const batch = await holdfast.batch({ name: 'shortLived', retain: random.below(20) }, items)
    return { batch: batch.id }
  })
}

/** Requeues dead items of such batches, several at once. */
export async function requeueShortLived({ holdfast, journal, random }: World): Promise<void> {
  const { jobs } = await holdfast.jobs({ queue: pieces.name, state: 'dead', limit: 50, include: ['payload'] })
  const dead = jobs.filter(({ payload }) => (payload as { kind: string }).kind === 'shortLived')
  const some = dead.filter(() => random.chance(0.3))
  await Promise.all(some.map(({ id }) => journal.ask('requeue', { id }, () => holdfast.requeue(id).then(() => true))))
}

const deletable = 'deletable'
const concurrencies = [1, 2, 5, Number.POSITIVE_INFINITY]

export function labelsOf(key: string): string[] {
  return designOf(key, false).items.map(({ payload }) => (payload as Entry).label)
}

function designOf(key: string, hasHandlers: boolean): Design {
  const random = new Random([...key].reduce((sum, char) => Math.imul(sum, 31) + char.charCodeAt(0), 7))
  const concurrency = random.pick(concurrencies)
  const failShare = random.chance(0.3) ? { stopWhenFailed: 0.3 } : {}
  const length = 3 + random.below(itemsMax)
  const items = Array.from({ length }, (_, n) => itemOf(random, `${key}-${n}`, hasHandlers))
  return { name: key, concurrency, ...failShare, items }
}

const behaviours = { quick: 5, outcome: 15, throw: 5, permanent: 3, release: 2 } as const satisfies Partial<
  Record<TaskBehaviour, number>
>

function itemOf(random: Random, label: string, hasHandlers: boolean): BatchItem {
  const payload = { label, kind: 'item' }
  const where = random.weighted({ pieces: 60, keyed: 15, tasks: 25 })
  const behaviour = random.weighted(behaviours)
  const tenant = random.pick(tenants)
  if (where === 'tasks' && hasHandlers) return { queue: tasks, payload: { ...payload, behaviour } }
  return where === 'keyed' ? { queue: keyed, payload: { ...payload, tenant } } : { queue: pieces, payload }
}

const controlWeights = { pause: 30, resume: 40, retryFailed: 20, cancel: 3, close: 2, delete: 3 } as const

export async function controlSome(world: World): Promise<void> {
  const { random } = world
  const batches = await newest(world)
  if (batches.length === 0) return
  const { id, name } = random.pick(batches)
  const as = random.weighted(controlWeights)
  // A batch with a key must be complete in the end.
  if ((as === 'close' || as === 'delete') && name !== deletable) return
  await control(world, id, as)
}

export async function control({ holdfast, journal }: World, id: string, as: BatchAction): Promise<void> {
  await journal.ask('control', { batch: id, as }, async () => {
    const batch = await holdfast.getBatch(id)
    const answer = await batch?.[as]()
    return { state: answer?.state ?? null, round: answer?.round ?? null }
  })
}

async function newest({ holdfast }: World): Promise<BatchProgress[]> {
  return (await holdfast.batches({ limit: controlledMax })).batches
}

/** Counts the running jobs of every queue, limit key and batch that has a limit. Each count is of one moment. */
export async function sample(world: World): Promise<void> {
  const { holdfast, journal } = world
  await journal.ask('sample', {}, async () => {
    const { running } = await holdfast.stats(narrow.name)
    const batches = await newest(world)
    const ofBatches = batches.flatMap(({ id, concurrency, running }): Sample[] =>
      concurrency === null ? [] : [{ of: `batch ${id}`, running, limit: concurrency }],
    )
    const ofKeys = await Promise.all([keyed, paced].map((queue) => sampleKeys(world, queue)))
    return [
      { of: narrow.name, running, limit: limitOf(narrow.settings?.limits?.limit) },
      ...ofBatches,
      ...ofKeys.flat(),
    ]
  })
}

async function sampleKeys({ holdfast }: World, { name, settings }: typeof keyed): Promise<Sample[]> {
  const { jobs } = await holdfast.jobs({ queue: name, state: 'running', limit: 100 })
  const perKey = Map.groupBy(jobs, ({ limitKey }) => limitKey)
  return [...perKey].flatMap(([key, { length }]) =>
    key === null ? [] : [{ of: `${name} of ${key}`, running: length, limit: limitOf(settings?.limits?.keyLimit) }],
  )
}

export function limitOf(limit: { readonly concurrency: number | null } | null | undefined): number {
  return limit?.concurrency ?? Number.POSITIVE_INFINITY
}

/** Submits the rest of every batch, closes it and resumes it. Returns whether all have finished. */
export async function finishBatches(world: World): Promise<boolean> {
  const unfinished = (await allBatches(world)).filter(({ finishedAt }) => finishedAt === null)
  for (const { id, key, state, isOpen } of unfinished) {
    if (state === 'paused') await control(world, id, 'resume')
    if (!isOpen || state === 'cancelled') continue
    await (key === null ? control(world, id, 'close') : submitRest(world, key))
  }
  return unfinished.length === 0
}

export async function allBatches({ holdfast }: Pick<World, 'holdfast'>): Promise<BatchProgress[]> {
  const all: BatchProgress[] = []
  let after: string | undefined
  do {
    const page = await holdfast.batches({ limit: 100, ...(after !== undefined && { after }) })
    all.push(...page.batches)
    after = page.next ?? undefined
  } while (after !== undefined)
  return all
}
