// Promise: every enqueue that was answered is accounted for once, and every other is there at most once.

import { labelsOf } from '../batches.ts'
import { after, calls, completions, deaths, orphans, taskTag, ticks, work } from '../world.ts'
import { type Evidence, isUnknown, labelOf, type Payload, type Wish } from './evidence.ts'
import { check, type Ruling, together } from './ruling.ts'

export function judgeEnqueues(evidence: Evidence): Ruling {
  return together(
    lost(evidence),
    doubled(evidence),
    uncalledFor(evidence),
    torn(evidence),
    undeleted(evidence),
    transactions(evidence),
  )
}

function lost(evidence: Evidence): Ruling {
  const created = evidence.wishes.filter(
    ({ entry, answer }) => answer?.status === 'created' && !evidence.mayBeGone(answer.id, entry.queue),
  )
  return check(created, ({ entry, answer }) => {
    const jobs = evidence.jobs.get(answer?.id ?? '') ?? []
    // A given id may have been used before and again; whose key is held takes over the payload of another.
    const own = entry.kind === 'given' ? jobs.filter((job) => labelOf(job) === entry.label) : jobs
    return own.length === 1 ? [] : [`${entry.label} was created as ${answer?.id} and is there ${own.length} times`]
  })
}

function doubled({ left }: Evidence): Ruling {
  // A row that was left behind may be revived again, once its job has ended.
  const named = left.jobs.filter((job) => labelOf(job) !== undefined && job.queue !== orphans.name)
  return check([...Map.groupBy(named, labelOf)], ([label, jobs]) =>
    jobs.length === 1 ? [] : [`${label} is there ${jobs.length} times: ${jobs.map(({ id }) => id).join(', ')}`],
  )
}

/** Nothing is there that nobody asked for, that was refused, or that was rolled back. */
function uncalledFor(evidence: Evidence): Ruling {
  const possible = evidence.wishes.filter(({ note }) => note.refused === null)
  const wished = new Set(possible.map(({ entry }) => entry.label))
  const tags = new Set([...evidence.of('settle'), ...evidence.of('cancel')].map(({ asked }) => asked.tag))
  for (const { entry } of possible) if (entry.deed === 'effects') tags.add(taskTag(entry.label))
  for (const { asked } of evidence.of('submitOnce')) for (const label of asked.labels) wished.add(label)
  for (const key of new Set(evidence.of('submit').map(({ asked }) => asked.key)))
    for (const label of labelsOf(key)) wished.add(label)
  const rows = new Set(evidence.of('orphan').map(({ asked }) => asked.tag))
  const isCalledFor = (queue: string, { label, tag, id, batchId }: Payload): boolean => {
    if (queue === completions.name) return batchId !== undefined // by a batch, which is judged apart
    if (queue === ticks.name) return true // by the schedule, which is judged apart
    if (queue === deaths.name) return id !== undefined
    if (queue === after.name) return tags.has(label ?? '')
    if (queue === calls.queue.name) return tags.has(tag ?? '')
    return (queue === orphans.name ? rows : wished).has(label ?? '')
  }
  return check(evidence.left.jobs, ({ id, queue, payload }) => {
    const told = queue === calls.queue.name ? evidence.bodyOf(payload) : (payload as Payload)
    return isCalledFor(queue, told) ? [] : [`nobody asked for job ${id} (${told.label ?? told.tag}) in ${queue}`]
  })
}

/** Jobs that were enqueued together are there together. */
function torn(evidence: Evidence): Ruling {
  const labels = new Set(evidence.left.jobs.map(labelOf))
  const known = new Set(evidence.wishes.flatMap(({ answer }) => (answer ? [answer.id] : [])))
  // The ids of what was not answered are unknown: a job that somebody deleted may have been one of these.
  const mayBeDeleted = evidence
    .of('delete')
    .filter(({ asked, refused }) => refused === null && !known.has(asked.id) && !evidence.jobs.has(asked.id)).length
  return check(evidence.of('enqueue').filter(isUnknown), (note) => {
    const together = note.asked.entries.filter(({ kind, queue }) => kind === 'plain' && queue === work.name)
    const missing = together.filter(({ label }) => !labels.has(label)).length
    if (missing === together.length || missing <= mayBeDeleted) return []
    return [`of ${together.map(({ label }) => label).join(', ')} are missing ${missing}`]
  })
}

/** A deletion that was answered holds, unless somebody used the id again. */
function undeleted(evidence: Evidence): Ruling {
  const wishesById = Map.groupBy(evidence.wishes.filter(hasGivenId), ({ entry }) => entry.id)
  return check(evidence.of('delete'), ({ asked: { id }, answer }) => {
    const job = evidence.jobs.get(id)?.[0]
    if (!answer || !job || wishesById.has(id)) return []
    return [`job ${id} (${labelOf(job)}) was deleted and is ${job.state}`]
  })
}

function hasGivenId({ entry }: Wish): boolean {
  return entry.id !== undefined
}

/** A caller's transaction takes its row and its jobs along, or neither; rolled back, it leaves neither. */
function transactions(evidence: Evidence): Ruling {
  const rows = new Set(evidence.left.rows ?? [])
  const labels = new Set(evidence.left.jobs.map(labelOf))
  const committed = evidence.of('enqueue').filter(({ asked }) => asked.row !== undefined)
  return together(
    check(committed, ({ asked, answer }) => {
      const there = asked.entries.filter(({ label }) => labels.has(label)).length
      const isThere = rows.has(asked.row ?? '')
      const isWhole = isThere ? there === asked.entries.length : there === 0
      if (isWhole && (isThere || answer === null)) return []
      return [`transaction ${asked.row} left ${isThere ? 'its row' : 'no row'} and ${there} of its jobs`]
    }),
    check(evidence.of('rollback'), ({ asked }) => {
      const there = asked.entries.filter(({ label }) => labels.has(label)).map(({ label }) => label)
      if (there.length === 0 && !rows.has(asked.row)) return []
      return [`transaction ${asked.row} was rolled back and left ${[...there, rows.has(asked.row)].join(', ')}`]
    }),
  )
}
