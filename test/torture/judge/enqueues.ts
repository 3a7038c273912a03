// Promise: every answered enqueue is stored once, every other at most once, one rolled back never.

import { labelsOf } from '../batches.ts'
import { after, calls, completions, deaths, orphans, taskTag, ticks, work } from '../world.ts'
import { type Evidence, isUnknown, labelOf, type Payload, type RequestedJob } from './evidence.ts'
import { check, combine, type Ruling } from './ruling.ts'

export function judgeEnqueues(evidence: Evidence): Ruling {
  return combine(
    lost(evidence),
    doubled(evidence),
    unrequested(evidence),
    torn(evidence),
    undeleted(evidence),
    transactions(evidence),
  )
}

function lost(evidence: Evidence): Ruling {
  const created = evidence.requestedJobs.filter(
    ({ entry, answer }) => answer?.status === 'created' && !evidence.mayBeGone(answer.id, entry.queue),
  )
  return check(created, ({ entry, answer }) => {
    const jobs = evidence.jobs.get(answer?.id ?? '') ?? []
    // A given id may have been used several times, so its label decides. A holder of a dedup key may have got another payload.
    const own = entry.kind === 'given' ? jobs.filter((job) => labelOf(job) === entry.label) : jobs
    return own.length === 1 ? [] : [`${entry.label} was created as ${answer?.id} and is stored ${own.length} times`]
  })
}

function doubled({ left }: Evidence): Ruling {
  // The reaper may enqueue a job for the same row again, after the first has ended.
  const named = left.jobs.filter((job) => labelOf(job) !== undefined && job.queue !== orphans.name)
  return check([...Map.groupBy(named, labelOf)], ([label, jobs]) =>
    jobs.length === 1 ? [] : [`${label} is stored ${jobs.length} times: ${jobs.map(({ id }) => id).join(', ')}`],
  )
}

/** No job exists that was never requested, was refused, or was rolled back. */
function unrequested(evidence: Evidence): Ruling {
  const possible = evidence.requestedJobs.filter(({ note }) => note.refused === null)
  const requestedLabels = new Set(possible.map(({ entry }) => entry.label))
  const tags = new Set([...evidence.of('settle'), ...evidence.of('cancel')].map(({ asked }) => asked.tag))
  for (const { entry } of possible) if (entry.behaviour === 'effects') tags.add(taskTag(entry.label))
  for (const { asked } of evidence.of('submitOnce')) for (const label of asked.labels) requestedLabels.add(label)
  for (const key of new Set(evidence.of('submit').map(({ asked }) => asked.key)))
    for (const label of labelsOf(key)) requestedLabels.add(label)
  const rows = new Set(evidence.of('orphan').map(({ asked }) => asked.tag))
  const isRequested = (queue: string, { label, tag, id, batchId }: Payload): boolean => {
    if (queue === completions.name) return batchId !== undefined // enqueued by a batch, see batches.ts
    if (queue === ticks.name) return true // enqueued by the schedule, see outside.ts
    if (queue === deaths.name) return id !== undefined
    if (queue === after.name) return tags.has(label ?? '')
    if (queue === calls.queue.name) return tags.has(tag ?? '')
    return (queue === orphans.name ? rows : requestedLabels).has(label ?? '')
  }
  return check(evidence.left.jobs, ({ id, queue, payload }) => {
    const body = queue === calls.queue.name ? evidence.bodyOf(payload) : (payload as Payload)
    return isRequested(queue, body) ? [] : [`job ${id} (${body.label ?? body.tag}) in ${queue} was never requested`]
  })
}

/** Jobs of one enqueue call are stored together or not at all. */
function torn(evidence: Evidence): Ruling {
  const labels = new Set(evidence.left.jobs.map(labelOf))
  const known = new Set(evidence.requestedJobs.flatMap(({ answer }) => (answer ? [answer.id] : [])))
  // An enqueue without an answer has unknown ids. So a deleted job with an unknown id may be one of its jobs.
  const mayBeDeleted = evidence
    .of('delete')
    .filter(({ asked, refused }) => refused === null && !known.has(asked.id) && !evidence.jobs.has(asked.id)).length
  return check(evidence.of('enqueue').filter(isUnknown), (note) => {
    const entries = note.asked.entries.filter(({ kind, queue }) => kind === 'plain' && queue === work.name)
    const missing = entries.filter(({ label }) => !labels.has(label)).length
    if (missing === entries.length || missing <= mayBeDeleted) return []
    return [`of ${entries.map(({ label }) => label).join(', ')}, ${missing} are missing`]
  })
}

/** A deleted job does not come back, unless its id was used again. */
function undeleted(evidence: Evidence): Ruling {
  const requestedById = Map.groupBy(evidence.requestedJobs.filter(hasGivenId), ({ entry }) => entry.id)
  return check(evidence.of('delete'), ({ asked: { id }, answer }) => {
    const job = evidence.jobs.get(id)?.[0]
    if (!answer || !job || requestedById.has(id)) return []
    return [`job ${id} (${labelOf(job)}) was deleted and is ${job.state}`]
  })
}

function hasGivenId({ entry }: RequestedJob): boolean {
  return entry.id !== undefined
}

/** A transaction of the application stores its row and its jobs, or neither. Rolled back, it stores neither. */
function transactions(evidence: Evidence): Ruling {
  const rows = new Set(evidence.left.rows ?? [])
  const labels = new Set(evidence.left.jobs.map(labelOf))
  const committed = evidence.of('enqueue').filter(({ asked }) => asked.row !== undefined)
  return combine(
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
