// Promises to those around the queue: slots of a schedule, watchers, receivers of webhooks, rows that were left behind.

import { calls, orphans, tickMs, ticks } from '../world.ts'
import { type Evidence, labelOf } from './evidence.ts'
import { check, type Ruling, together } from './ruling.ts'

/** Promise: a slot fires once. All that were missed are made up for, so there is no hole either. */
export function judgeSlots({ left }: Evidence): Ruling {
  const slots = left.jobs
    .filter(({ queue }) => queue === ticks.name)
    .map(({ headers }) => Date.parse(headers['holdfast-slot'] ?? ''))
    .sort((a, b) => a - b)
  return check(slots.slice(1), (slot, n) => {
    const before = slots[n] as number
    if (slot - before === tickMs) return []
    const told = slot === before ? 'fired twice' : `comes behind ${new Date(before).toISOString()}`
    return [`the slot ${new Date(slot).toISOString()} ${told}`]
  })
}

/** Promise: every change is told at least once to who watches, through its own deaths. */
export function judgeWatch(evidence: Evidence): Ruling {
  const { told, ordeal } = evidence
  if (told === null) return together()
  const times = new Map<string, number>()
  for (const { id, state } of told.changes) times.set(`${id} ${state}`, (times.get(`${id} ${state}`) ?? 0) + 1)
  const seen = (id: string, state: string) => times.get(`${id} ${state}`) ?? 0
  const watched = evidence.wishes.filter(({ note, answer }) => note.at > told.since && answer?.status === 'created')
  return together(
    check(watched, ({ entry, answer }) => {
      const { id } = answer as { readonly id: string }
      if (seen(id, 'ready') + seen(id, 'scheduled') + seen(id, 'held') === 0)
        return [`nobody was told that ${id} is there`]
      const [job, another] = evidence.jobs.get(id) ?? []
      if (!job || another || entry.kind === 'given') return []
      if (seen(id, job.state) === 0) return [`nobody was told that ${id} is ${job.state}`]
      const runs = job.history.length
      return seen(id, 'running') >= runs ? [] : [`${id} ran ${runs} times, which was told ${seen(id, 'running')} times`]
    }),
    check([told.refusals], (refusals) =>
      refusals > ordeal.crashes.length ? [`a cursor was refused ${refusals} times`] : [],
    ),
  )
}

/** Promise: what a settlement announces is delivered. */
export function judgeCalls(evidence: Evidence): Ruling {
  if (evidence.received === null) return together()
  const received = new Set(evidence.received)
  const made = evidence.left.jobs.filter(({ queue }) => queue === calls.queue.name)
  return together(
    check(made, ({ id, state, payload }) => {
      const { tag = '' } = evidence.bodyOf(payload)
      return state !== 'done' || received.has(tag) ? [] : [`call ${id} is done, and nobody received ${tag}`]
    }),
    check([...received], (tag) =>
      made.some(({ payload }) => evidence.bodyOf(payload).tag === tag)
        ? []
        : [`${tag} was received, and nobody called`],
    ),
  )
}

/** Promise: every row that was left behind is revived. */
export function judgeOrphans(evidence: Evidence): Ruling {
  const waiting = new Set(evidence.left.orphans ?? [])
  const done = new Set(
    evidence.left.jobs.filter(({ queue, state }) => queue === orphans.name && state === 'done').map(labelOf),
  )
  return check(evidence.of('orphan'), ({ asked: { tag }, answer }) => {
    if (waiting.has(tag)) return [`row ${tag} still waits`]
    return answer === null || done.has(tag) ? [] : [`row ${tag} is gone, and no job took it`]
  })
}
