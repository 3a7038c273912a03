// Promise: a dedup key has one holder, and an idempotency key one job.

import type { JobInfo } from '../../../src/client/job-info.ts'
import { windowMs, work } from '../world.ts'
import { type Evidence, isUnknown, labelOf, type Payload, possibleValues } from './evidence.ts'
import { check, combine, type Ruling } from './ruling.ts'

export function judgeKeys(evidence: Evidence): Ruling {
  return combine(
    heldTwice(evidence.found.jobs),
    heldTwice(evidence.left.jobs),
    tooSoon(evidence),
    wrongHolders(evidence),
    replaced(evidence),
    ambiguous(evidence),
  )
}

const kindOf = ({ payload }: JobInfo) => (payload as Payload).kind

/** A key of scope `live` is held until its job has ended, a key of scope `waiting` until its job is first claimed. */
function heldTwice(jobs: readonly JobInfo[]): Ruling {
  const holders = jobs.filter((job) => {
    if (job.dedupKey === null || ['done', 'dead', 'cancelled'].includes(job.state)) return false
    if (kindOf(job) === 'live') return true
    return kindOf(job) === 'waiting' && job.state !== 'running' && job.history.length === 0
  })
  return check([...Map.groupBy(holders, ({ dedupKey }) => dedupKey)], ([key, each]) =>
    each.length === 1 ? [] : [`key ${key} is held by ${each.map(({ id, state }) => `${id} (${state})`).join(' and ')}`],
  )
}

/** A key with a time window is given to one job within it. Jobs with such a key are never deleted. */
function tooSoon({ left, conditions }: Evidence): Ruling {
  if (conditions.jumps.length > 0) return combine() // the window has no single clock
  const windows = left.jobs.filter((job) => kindOf(job) === 'window')
  return check([...Map.groupBy(windows, ({ dedupKey }) => dedupKey)], ([key, jobs]) => {
    const times = jobs.map(({ createdAt }) => createdAt.getTime()).sort((a, b) => a - b)
    return times
      .filter((time, n) => n > 0 && time - (times[n - 1] as number) < windowMs)
      .map((time) => `key ${key} was given again within its time, at ${time}`)
  })
}

/** An enqueue that was answered as a duplicate names a job that has the key. */
function wrongHolders(evidence: Evidence): Ruling {
  const duplicates = evidence.requestedJobs.filter(({ answer }) => answer?.status === 'duplicate')
  return check(duplicates, ({ entry, answer }) => {
    const job = evidence.jobs.get(answer?.id ?? '')?.[0]
    if (!job || job.dedupKey === (entry.key ?? null)) return []
    return [`${entry.label} is a duplicate of ${job.id} by key ${entry.key}, but that job has key ${job.dedupKey}`]
  })
}

/** A holder has the payload that was written last. */
function replaced(evidence: Evidence): Ruling {
  const keyed = Map.groupBy(
    evidence.requestedJobs.filter(({ entry }) => entry.key !== undefined),
    ({ entry }) => entry.key as string,
  )
  const holders = evidence.left.jobs.filter(({ dedupKey, queue }) => dedupKey !== null && queue === work.name)
  return check(holders, (job) => {
    const writes = (keyed.get(job.dedupKey ?? '') ?? [])
      .filter(({ note, answer }) => isUnknown(note) || (answer?.id === job.id && wrote(answer)))
      .map(({ entry, note: { at, answeredAt } }) => ({ at, answeredAt, value: entry.label }))
    if (possibleValues(writes).includes(labelOf(job) ?? '')) return []
    return [`${job.id} has the payload of ${labelOf(job)}, where it was given ${possibleValues(writes).join(' or ')}`]
  })
}

function wrote({ status }: { readonly status: string }): boolean {
  return status === 'created' || status === 'replaced'
}

function ambiguous(evidence: Evidence): Ruling {
  const answered = Map.groupBy(
    evidence.requestedJobs.filter(({ entry, answer }) => entry.idempotencyKey !== undefined && answer !== null),
    ({ entry }) => entry.idempotencyKey,
  )
  const stored = Map.groupBy(
    evidence.left.jobs.filter(({ idempotencyKey }) => idempotencyKey !== null),
    ({ idempotencyKey }) => idempotencyKey,
  )
  const several = check([...answered], ([key, requestedJobs]) => {
    const ids = new Set(requestedJobs.map(({ answer }) => answer?.id))
    const created = requestedJobs.filter(({ answer }) => answer?.status === 'created').length
    return ids.size === 1 && created <= 1
      ? []
      : [`idempotency key ${key} was answered with ${[...ids].join(', ')} and created ${created} times`]
  })
  const doubled = check([...stored], ([key, jobs]) =>
    jobs.length === 1 ? [] : [`idempotency key ${key} belongs to ${jobs.map(({ id }) => id).join(', ')}`],
  )
  return combine(several, doubled)
}
