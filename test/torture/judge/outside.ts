// Promises about what is around the queue: slots of a schedule, watchers, receivers of webhooks, rows for the reaper.

import { calls, orphans, tickMs, ticks } from '../world.ts'
import { type Evidence, labelOf } from './evidence.ts'
import { check, combine, type Ruling } from './ruling.ts'

/** Promise: a slot of a schedule fires once. Missed slots are fired late, so there is no gap either. */
export function judgeSlots({ left }: Evidence): Ruling {
  const slots = left.jobs
    .filter(({ queue }) => queue === ticks.name)
    .map(({ headers }) => Date.parse(headers['holdfast-slot'] ?? ''))
    .sort((a, b) => a - b)
  return check(slots.slice(1), (slot, n) => {
    const before = slots[n] as number
    if (slot - before === tickMs) return []
    const fault = slot === before ? 'fired twice' : `is the next after ${new Date(before).toISOString()}`
    return [`the slot ${new Date(slot).toISOString()} ${fault}`]
  })
}

/** Promise: a watcher gets every change at least once, however often it dies. */
export function judgeWatch(evidence: Evidence): Ruling {
  const { watchLog, conditions } = evidence
  if (watchLog === null) return combine()
  const times = new Map<string, number>()
  for (const { id, state } of watchLog.changes) times.set(`${id} ${state}`, (times.get(`${id} ${state}`) ?? 0) + 1)
  const seen = (id: string, state: string) => times.get(`${id} ${state}`) ?? 0
  const watched = evidence.requestedJobs.filter(
    ({ note, answer }) => note.at > watchLog.since && answer?.status === 'created',
  )
  return combine(
    check(watched, ({ entry, answer }) => {
      const { id } = answer as { readonly id: string }
      if (seen(id, 'ready') + seen(id, 'scheduled') + seen(id, 'held') === 0)
        return [`the watcher did not get the enqueue of ${id}`]
      const [job, another] = evidence.jobs.get(id) ?? []
      if (!job || another || entry.kind === 'given') return []
      if (seen(id, job.state) === 0) return [`the watcher did not get that ${id} is ${job.state}`]
      const runs = job.history.length
      return seen(id, 'running') >= runs ? [] : [`${id} ran ${runs} times, and the watcher got ${seen(id, 'running')}`]
    }),
    check([watchLog.refusals], (refusals) =>
      refusals > conditions.crashes.length ? [`a cursor was refused ${refusals} times`] : [],
    ),
  )
}

/** Promise: every webhook that a settlement enqueues is delivered. */
export function judgeCalls(evidence: Evidence): Ruling {
  if (evidence.received === null) return combine()
  const received = new Set(evidence.received)
  const made = evidence.left.jobs.filter(({ queue }) => queue === calls.queue.name)
  return combine(
    check(made, ({ id, state, payload }) => {
      const { tag = '' } = evidence.bodyOf(payload)
      return state !== 'done' || received.has(tag) ? [] : [`webhook ${id} is done, and ${tag} was not received`]
    }),
    check([...received], (tag) =>
      made.some(({ payload }) => evidence.bodyOf(payload).tag === tag)
        ? []
        : [`${tag} was received, and no webhook has it`],
    ),
  )
}

/** Promise: every row that was left behind gets a job. */
export function judgeOrphans(evidence: Evidence): Ruling {
  const waiting = new Set(evidence.left.orphans ?? [])
  const done = new Set(
    evidence.left.jobs.filter(({ queue, state }) => queue === orphans.name && state === 'done').map(labelOf),
  )
  return check(evidence.of('orphan'), ({ asked: { tag }, answer }) => {
    if (waiting.has(tag)) return [`row ${tag} still waits for its job`]
    return answer === null || done.has(tag) ? [] : [`row ${tag} no longer exists, and no job has deleted it`]
  })
}
