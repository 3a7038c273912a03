// Enqueues of every kind. Each is written to the journal before it is made.

import type { EnqueueOptions } from '../../src/queue/prepare.ts'
import type { Entry } from './journal.ts'
import {
  type AppWorld,
  attempts,
  givenIds,
  type keyed,
  narrow,
  purgeable,
  tenants,
  type World,
  windowMs,
  work,
} from './world.ts'

interface Draft {
  readonly entry: Entry
  readonly options: EnqueueOptions
}

const keysPerScope = 4
/** So many idempotency keys are shared at a time, for so long. */
const idempotencyKeys = 6
const keyMs = 500

export async function enqueueOne(world: World, label: string): Promise<void> {
  const draft = world.random.chance(0.5) ? plain(world, label) : special(world, label)
  await enqueue(world, work, [draft])
}

export async function enqueueMany(world: World, label: string): Promise<void> {
  const { random } = world
  const drafts = Array.from({ length: 2 + random.below(5) }, (_, n) => plain(world, `${label}-${n}`))
  if (random.chance(0.3)) drafts.push(special(world, `${label}-x`))
  await enqueue(world, work, drafts)
}

export async function enqueuePurgeable(world: World, label: string): Promise<void> {
  const drafts = [0, 1, 2].map((n) => plain(world, `${label}-${n}`, purgeable.name))
  await enqueue(world, purgeable, drafts)
}

/** Enqueues into a queue with a limit: jobs at once, or starts in a time window. */
export async function enqueueLimited(world: World, label: string, queue: typeof keyed): Promise<void> {
  const { random } = world
  const drafts = Array.from({ length: 1 + random.below(5) }, (_, n): Draft => {
    const { entry, options } = plain(world, `${label}-${n}`, queue.name)
    if (queue === narrow) return { entry, options }
    // With limit keys the order of enqueues does not decide the order of claims alone, so these entries do not carry `atOnce`.
    const { atOnce: _atOnce, ...rest } = entry
    return { entry: { ...rest, ...(random.chance(0.95) && { tenant: random.pick(tenants) }) }, options }
  })
  await enqueue(world, queue, drafts)
}

const toEntry = ({ entry: { label, kind, tenant }, options }: Draft) => ({
  payload: { label, kind, ...(tenant !== undefined && { tenant }) },
  ...options,
})

export function enqueue(world: World, queue: typeof work | typeof keyed, drafts: readonly Draft[]): Promise<unknown> {
  const { holdfast, journal } = world
  return journal.ask('enqueue', { entries: drafts.map(({ entry }) => entry) }, async () => {
    const [first, ...rest] = drafts.map(toEntry)
    if (first === undefined || rest.length > 0) return holdfast.queue(queue).enqueueMany(drafts.map(toEntry))
    const { payload, ...options } = first
    return [await holdfast.queue(queue).enqueue(payload, options)]
  })
}

/** Enqueues in a transaction of the application that also inserts a row. It is committed, sometimes late, or rolled back. */
export async function transact(world: AppWorld, label: string): Promise<void> {
  const { holdfast, journal, random, application } = world
  const drafts = Array.from({ length: 1 + random.below(3) }, (_, n): Draft => {
    const { entry, options } = plain(world, `${label}-${n}`)
    return { entry: { ...entry, kind: 'transacted' }, options }
  })
  const entries = drafts.map(({ entry }) => entry)
  const row = `row-${label}`
  const holdMs = random.chance(0.3) ? random.below(application.holdMaxMs) : 0
  const within = (as: 'commit' | 'rollback') =>
    application.transact(row, { as, holdMs }, (tx) =>
      holdfast.queue(work).enqueueMany(drafts.map((draft) => ({ ...toEntry(draft), tx }))),
    )
  if (random.chance(0.7)) await journal.ask('enqueue', { entries, row }, () => within('commit'))
  else await journal.ask('rollback', { entries, row }, () => within('rollback').then(() => true as const))
}

export function plain({ random, now }: World, label: string, queue: string = work.name): Draft {
  const priority = random.chance(0.3) ? random.below(10) : 5
  const atOnce = random.chance(0.75)
  return {
    entry: { label, kind: 'plain', queue, attempts, priority, atOnce },
    options: {
      ...(priority !== 5 && { priority }),
      ...(!atOnce && { delay: random.below(100) }),
      // A latest start before the end of a delay is refused, and the store's clock measures the delay.
      ...(atOnce && random.chance(0.13) && { startBefore: now() + random.between(50, 500) }),
    },
  }
}

function special({ random, now }: World, label: string): Draft {
  const rest = { queue: work.name, attempts, priority: 5 }
  const kind = random.pick(['live', 'live', 'waiting', 'window', 'idempotent', 'given'] as const)
  if (kind === 'given') {
    const id = random.pick(givenIds)
    return { entry: { label, kind, ...rest, id }, options: { id } }
  }
  if (kind === 'idempotent') {
    // Mostly the payload that belongs to the key, sometimes another, which must be refused.
    const key = `idempotent ${Math.floor(now() / keyMs)} ${random.below(idempotencyKeys)}`
    const entry = { label: random.chance(0.9) ? key : `${key} otherwise`, kind, ...rest, idempotencyKey: key }
    return { entry, options: { idempotencyKey: key } }
  }
  const key = `${kind} ${random.below(keysPerScope)}`
  const scope = kind === 'window' ? { window: windowMs } : kind
  const dedup = { key, scope, replace: random.chance(0.4) }
  return { entry: { label, kind, ...rest, key }, options: { dedup, ...(random.chance(0.3) && { delay: 30 }) } }
}
