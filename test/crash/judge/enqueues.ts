// Promise: every enqueue that was answered is accounted for once, and every other is there at most once.

import { after, deaths, work } from '../world.ts'
import { type Evidence, isUnknown, labelOf, type Wish } from './evidence.ts'

export function judgeEnqueues(evidence: Evidence): string[] {
  return [...lost(evidence), ...doubled(evidence), ...uncalledFor(evidence), ...torn(evidence), ...undeleted(evidence)]
}

function lost(evidence: Evidence): string[] {
  const faults: string[] = []
  for (const { entry, answer } of evidence.wishes) {
    if (answer?.status !== 'created' || evidence.mayBeGone(answer.id, entry.queue)) continue
    const jobs = evidence.jobs.get(answer.id) ?? []
    // A given id may have been used before and again; whose key is held takes over the payload of another.
    const own = entry.kind === 'given' ? jobs.filter((job) => labelOf(job) === entry.label) : jobs
    if (own.length !== 1) faults.push(`${entry.label} was created as ${answer.id} and is there ${own.length} times`)
  }
  return faults
}

function doubled({ left }: Evidence): string[] {
  const named = left.jobs.filter((job) => labelOf(job) !== undefined)
  return [...Map.groupBy(named, labelOf)]
    .filter(([, jobs]) => jobs.length > 1)
    .map(([label, jobs]) => `${label} is there ${jobs.length} times: ${jobs.map(({ id }) => id).join(', ')}`)
}

/** Nothing is there that nobody asked for, or that was refused. */
function uncalledFor(evidence: Evidence): string[] {
  const wished = new Set(evidence.wishes.filter(({ note }) => note.refused === null).map(({ entry }) => entry.label))
  const tags = new Set([...evidence.of('settle'), ...evidence.of('cancel')].map(({ asked }) => asked.tag))
  return evidence.left.jobs.flatMap((job) => {
    const label = labelOf(job)
    if (job.queue === deaths.name && label === undefined) return []
    const known = job.queue === after.name ? tags.has(label ?? '') : wished.has(label ?? '')
    return known ? [] : [`nobody asked for job ${job.id} (${label}) in ${job.queue}`]
  })
}

/** Jobs that were enqueued together are there together. */
function torn(evidence: Evidence): string[] {
  const labels = new Set(evidence.left.jobs.map(labelOf))
  const known = new Set(evidence.wishes.flatMap(({ answer }) => (answer ? [answer.id] : [])))
  // The ids of what was not answered are unknown: a job that somebody deleted may have been one of these.
  const mayBeDeleted = evidence
    .of('delete')
    .filter(({ asked, refused }) => refused === null && !known.has(asked.id) && !evidence.jobs.has(asked.id)).length
  return evidence.of('enqueue').flatMap((note) => {
    const together = note.asked.entries.filter(({ kind, queue }) => kind === 'plain' && queue === work.name)
    const missing = together.filter(({ label }) => !labels.has(label)).length
    if (!isUnknown(note) || missing === together.length || missing <= mayBeDeleted) return []
    return [`of ${together.map(({ label }) => label).join(', ')} are missing ${missing}`]
  })
}

/** A deletion that was answered holds, unless somebody used the id again. */
function undeleted(evidence: Evidence): string[] {
  const wishesById = Map.groupBy(evidence.wishes.filter(hasGivenId), ({ entry }) => entry.id)
  return evidence.of('delete').flatMap(({ asked: { id }, answer }) => {
    const job = evidence.jobs.get(id)?.[0]
    if (!answer || !job || wishesById.has(id)) return []
    return [`job ${id} (${labelOf(job)}) was deleted and is ${job.state}`]
  })
}

function hasGivenId({ entry }: Wish): boolean {
  return entry.id !== undefined
}
