// What operators and other programs do to jobs and queues from outside, at any moment.

import type { JobInfo } from '../../src/client/job-info.ts'
import { type ErrorCode, isHoldfastError } from '../../src/errors.ts'
import { enqueue, plain } from './enqueues.ts'
import type { Kind } from './journal.ts'
import { claim, settleAs } from './settlements.ts'
import {
  type AppWorld,
  counters,
  effectsOf,
  keyed,
  narrow,
  ownQueue,
  paced,
  pieces,
  purgeable,
  tasks,
  type World,
  work,
} from './world.ts'

/** Never deleted: their keys outlive a deletion, or they are judged by the jobs that have them. */
const undeletable: readonly Kind[] = ['idempotent', 'window', 'transacted', 'item', 'shortLived']

const actions = {
  cancel: 6,
  cancelRunning: 4,
  requeue: 4,
  requeueAll: 1,
  cancelAll: 1,
  rescheduleAll: 1,
  reprioritiseAll: 1,
  wake: 4,
  reschedule: 3,
  reprioritise: 4,
  delete: 3,
  deleteAll: 1,
} as const

/** Performs the named action, or one at random. */
export async function interfere(world: World, tag: string, named?: keyof typeof actions): Promise<void> {
  const { holdfast, journal, random, now } = world
  const action = named ?? random.weighted(actions)
  switch (action) {
    case 'cancel':
    case 'cancelRunning': {
      const state = action === 'cancelRunning' ? 'running' : random.pick(['ready', 'scheduled'] as const)
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
        const filter = { queue: work.name, error: 'given up', ended: { since: now() - 50 } }
        const { changed } = await holdfast.requeueAll(filter, { by: tag })
        return { changed }
      })
      return
    case 'cancelAll':
      await journal.ask('cancelAll', { queue: purgeable.name }, async () => {
        const { changed, requested } = await holdfast.cancelAll({ queue: purgeable.name })
        return { changed, requested }
      })
      return
    case 'rescheduleAll':
      await journal.ask('rescheduleAll', { queue: purgeable.name }, async () => {
        const { changed } = await holdfast.rescheduleAll({ queue: purgeable.name }, { delay: random.below(200) })
        return { changed }
      })
      return
    case 'reprioritiseAll':
      await journal.ask('reprioritiseAll', { queue: purgeable.name }, async () => {
        const { changed } = await holdfast.reprioritiseAll({ queue: purgeable.name }, random.below(10))
        return { changed }
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
      const id = await someWaiting(world, ['done', 'dead', 'cancelled'], { but: undeletable })
      if (id !== undefined) await journal.ask('delete', { id }, () => holdfast.delete(id).then(yes))
      return
    }
    case 'deleteAll':
      await journal.ask('deleteAll', { queue: purgeable.name }, async () => {
        const { changed } = await holdfast.deleteAll({ queue: purgeable.name })
        return { changed }
      })
  }
}

const yes = () => true as const

/** The id of a waiting job, mostly of the plain queue, sometimes of one with limit keys. */
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

/** Picks from a page of the listing, so that jobs of other processes, also of dead ones, are found too. */
async function someJob(
  { holdfast, random }: World,
  state: JobInfo['state'],
  { queue = work.name, but = [] }: SomeOptions = {},
): Promise<string | undefined> {
  const { jobs } = await holdfast.jobs({ queue, state, limit: 20, include: ['payload'] })
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

/** Writes to the key that belongs to this process, again and again. */
export async function putOwn({ holdfast, journal, random, processName }: World, label: string): Promise<void> {
  const key = `own ${processName}`
  const value = random.chance(0.2) ? null : label
  await journal.ask('put', { key, value }, async () => {
    await (value === null ? holdfast.kv.delete(key) : holdfast.kv.put(key, value))
    return true
  })
}

/** Inserts a row without enqueueing its job, so that the reaper has to. */
export async function abandonRow({ application, journal }: AppWorld, tag: string): Promise<void> {
  await journal.ask('orphan', { tag }, () => application.abandon(tag).then(yes))
}

const cyclic: { self?: unknown } = {}
cyclic.self = cyclic

/** Calls with bad input. Each must be refused with the right code. */
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
    { what: 'an unknown id', code: 'JOB_NOT_FOUND', call: () => holdfast.requeue(crypto.randomUUID()) },
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

/** Pauses and resumes the queue of this process. While it is paused, claims of it must get nothing. */
export async function pauseOwnQueue(world: World, label: string): Promise<void> {
  const queue = ownQueue(world.processName)
  const entries = [label, `${label}-second`].map((each) => plain(world, each, queue.name))
  await enqueue(world, queue, entries)
  const racing = claim(world, `${label}-racing`, { queues: [queue.name], max: 1, wait: 0 })
  racing.catch(() => undefined) // it is awaited below, unless the pause itself fails first
  const isPaused = await setPaused(world, queue.name, true)
  if (isPaused) await checkNoStarts(world, queue.name, racing)
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

/**
 * Checks that no job starts after the pause was answered. Nothing else claims from this queue and nothing of it is settled. So
 * when the claim that was under way has ended, no more jobs may run than before.
 */
async function checkNoStarts({ holdfast, journal }: World, queue: string, claimed: Promise<unknown>): Promise<void> {
  const running = async () => (await holdfast.stats(queue)).running
  await journal.ask('pauseCheck', { queue }, async () => {
    const before = await running()
    await claimed
    return { before, after: await running() }
  })
}
