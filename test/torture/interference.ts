// What people and other programs do to jobs and queues from outside, at any moment.

import type { JobInfo } from '../../src/client/job-info.ts'
import { type ErrorCode, isHoldfastError } from '../../src/errors.ts'
import { enqueue, plain } from './enqueues.ts'
import { claim, settleAs } from './fates.ts'
import type { Kind } from './journal.ts'
import {
  type AppWorld,
  counters,
  effectsOf,
  keyed,
  litter,
  narrow,
  paced,
  pieces,
  tasks,
  valve,
  type World,
  work,
} from './world.ts'

/** Keys of these outlive a deletion, or are judged by the jobs that have them. */
const kept: readonly Kind[] = ['idempotent', 'window', 'transacted', 'item', 'fleeting']

const deeds = {
  cancel: 6,
  cancelRunning: 4,
  requeue: 4,
  requeueAll: 1,
  wake: 4,
  reschedule: 3,
  reprioritise: 4,
  delete: 3,
  purge: 1,
} as const

/** One of the deeds at random, unless one is named. */
export async function interfere(world: World, tag: string, named?: keyof typeof deeds): Promise<void> {
  const { holdfast, journal, random, now } = world
  const deed = named ?? random.weighted(deeds)
  switch (deed) {
    case 'cancel':
    case 'cancelRunning': {
      const state = deed === 'cancelRunning' ? 'running' : random.pick(['ready', 'scheduled'] as const)
      const queue = random.pick([work.name, tasks.name, pieces.name, narrow.name])
      const id = await someJob(world, state, { queue })
      if (id === undefined) return
      const effects = random.chance(0.6) ? effectsOf(world, { tag }) : undefined
      await journal.ask('cancel', { id, tag: effects ? tag : null }, () =>
        holdfast.cancel(id, effects ? { effects } : {}),
      )
      return
    }
    case 'requeue': {
      const id = await someJob(world, 'dead', { queue: random.pick([work.name, tasks.name, pieces.name, keyed.name]) })
      if (id !== undefined) await journal.ask('requeue', { id }, () => holdfast.requeue(id).then(yes))
      return
    }
    case 'requeueAll':
      await journal.ask('requeueAll', { queue: work.name }, async () => {
        const { requeued } = await holdfast.requeueAll({ queue: work.name, error: 'given up', diedSince: now() - 50 })
        return { requeued }
      })
      return
    case 'wake': {
      const id = await someWaiting(world, ['running'])
      const data = random.chance(0.7) ? tag : null
      if (id !== undefined) await journal.ask('wake', { id, data }, () => holdfast.wake(id, data ?? undefined))
      return
    }
    case 'reschedule': {
      const id = await someWaiting(world)
      const runAt = Math.round(now() + random.between(-50, 200))
      if (id !== undefined) await journal.ask('reschedule', { id, runAt }, () => holdfast.reschedule(id, runAt))
      return
    }
    case 'reprioritise': {
      const id = await someWaiting(world)
      const priority = random.below(10)
      if (id !== undefined)
        await journal.ask('reprioritise', { id, priority }, () => holdfast.reprioritise(id, priority))
      return
    }
    case 'delete': {
      const id = await someWaiting(world, ['done', 'dead', 'cancelled'], { but: kept })
      if (id !== undefined) await journal.ask('delete', { id }, () => holdfast.delete(id).then(yes))
      return
    }
    case 'purge':
      await journal.ask('purge', { queue: litter.name }, () => holdfast.purge(litter.name))
  }
}

const yes = () => true as const

/** Plain, or in a queue whose keys have limits. */
function someWaiting(world: World, others: readonly JobInfo['state'][] = [], options: SomeOptions = {}) {
  const { random } = world
  const state = random.pick(['scheduled', 'ready', ...others] as const)
  if (random.chance(0.8)) return someJob(world, state, options)
  const heldOr = random.chance(0.5) ? 'held' : state
  return someJob(world, heldOr, { ...options, queue: random.pick([keyed.name, paced.name]) })
}

interface SomeOptions {
  readonly queue?: string
  readonly but?: readonly Kind[]
}

/** By a page of them, so that jobs of other processes and of those before are met too. */
async function someJob(
  { holdfast, random }: World,
  state: JobInfo['state'],
  { queue = work.name, but = [] }: SomeOptions = {},
): Promise<string | undefined> {
  const { jobs } = await holdfast.jobs({ queue, state, limit: 20 })
  const eligible = jobs.filter(({ payload }) => !but.includes((payload as { kind: Kind }).kind))
  return eligible.length === 0 ? undefined : random.pick(eligible).id
}

export async function increment({ holdfast, journal, random }: World): Promise<void> {
  const key = random.pick(counters)
  const entry = await holdfast.kv.get<number>(key)
  const value = (entry?.value ?? 0) + 1
  await journal.ask('increment', { key, value }, async () => {
    const { applied } = await holdfast.kv.compareAndSet(key, entry?.version ?? null, value)
    return { applied }
  })
}

/** A key of one's own, written again and again. */
export async function putOwn({ holdfast, journal, random, life }: World, label: string): Promise<void> {
  const key = `own ${life}`
  const value = random.chance(0.2) ? null : label
  await journal.ask('put', { key, value }, async () => {
    await (value === null ? holdfast.kv.delete(key) : holdfast.kv.put(key, value))
    return true
  })
}

/** A row that nobody enqueues a job for. */
export async function abandonRow({ application, journal }: AppWorld, tag: string): Promise<void> {
  await journal.ask('orphan', { tag }, () => application.abandon(tag).then(yes))
}

const cyclic: { self?: unknown } = {}
cyclic.self = cyclic

/** What nobody should ask for. */
export async function misuse({ holdfast, journal, random }: World, label: string): Promise<void> {
  const { what, code, call } = random.pick<Misuse>([
    { what: 'a cycle', code: 'INVALID_PAYLOAD', call: () => holdfast.queue(work).enqueue(cyclic as never) },
    { what: 'a bigint', code: 'INVALID_PAYLOAD', call: () => holdfast.queue(work).enqueue({ n: 1n } as never) },
    {
      what: 'too much',
      code: 'PAYLOAD_TOO_LARGE',
      call: () => holdfast.queue(work).enqueue({ label, kind: 'x'.repeat(1_100_000) }),
    },
    { what: 'no name', code: 'INVALID_NAME', call: async () => holdfast.queue('no name').enqueue({ label }) },
    { what: 'no id', code: 'INVALID_ID', call: () => holdfast.queue(work).enqueue({ label, kind: '' }, { id: 'x' }) },
    {
      what: 'no priority',
      code: 'INVALID_OPTION',
      call: () => holdfast.queue(work).enqueue({ label, kind: '' }, { priority: 99 }),
    },
    { what: 'a stranger', code: 'JOB_NOT_FOUND', call: () => holdfast.requeue(crypto.randomUUID()) },
  ])
  await journal.ask('misuse', { what, code }, async () => {
    try {
      await call()
      return { code: 'no error' }
    } catch (error) {
      if (!isHoldfastError(error) || error.code === 'STORE_UNAVAILABLE') throw error
      return { code: error.code }
    }
  })
}

interface Misuse {
  readonly what: string
  readonly code: ErrorCode
  readonly call: () => Promise<unknown>
}

/** A queue of one's own: while it is paused it hands out nothing. */
export async function turnValve(world: World, label: string): Promise<void> {
  const queue = valve(world.life)
  const entries = [label, `${label}-second`].map((each) => plain(world, each, queue.name))
  await enqueue(world, queue, entries)
  const racing = claim(world, `${label}-racing`, { queues: [queue.name], max: 1, wait: 0 })
  racing.catch(() => undefined) // it is awaited below, unless the pause itself fails first
  const isPaused = await setPaused(world, queue.name, true)
  if (isPaused) await beQuiet(world, queue.name, racing)
  await Promise.all((await racing).map((lease) => settleAs(world, lease, { worker: `${label}-racing`, as: 'done' })))
  const early = await claim(world, `${label}-paused`, { queues: [queue.name], max: 5, wait: 0 })
  await Promise.all(early.map((lease) => settleAs(world, lease, { worker: `${label}-paused`, as: 'done' })))
  await setPaused(world, queue.name, false)
  const leases = await claim(world, label, { queues: [queue.name], max: 5, wait: 0 })
  await Promise.all(leases.map((lease) => settleAs(world, lease, { worker: label, as: 'done' })))
}

export async function setPaused({ holdfast, journal }: World, queue: string, paused: boolean): Promise<boolean> {
  const answer = await journal.ask('pause', { queue, paused }, () =>
    (paused ? holdfast.pause(queue) : holdfast.resume(queue)).then(yes),
  )
  return answer === true
}

/** Nothing else claims from this queue, and nothing of it is settled: no more may run when the claim has ended. */
async function beQuiet({ holdfast, journal }: World, queue: string, claimed: Promise<unknown>): Promise<void> {
  const running = async () => (await holdfast.stats(queue)).running
  await journal.ask('quiet', { queue }, async () => {
    const before = await running()
    await claimed
    return { before, after: await running() }
  })
}
