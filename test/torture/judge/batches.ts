// Promises about batches:
// - A batch has each item once, however often its submitting processes die.
// - Its counts equal a recount.
// - A paused or cancelled batch starts nothing.
// - Its completion is enqueued once a round.

import type { BatchProgress } from '../../../src/batch/progress.ts'
import type { JobInfo } from '../../../src/client/job-info.ts'
import { labelsOf } from '../batches.ts'
import type { Note } from '../journal.ts'
import type { Observation } from '../observe.ts'
import { completions } from '../world.ts'
import { type Evidence, isPossible, labelOf, type Payload } from './evidence.ts'
import { check, combine, type Ruling } from './ruling.ts'

/** Promise: a batch has each of its items once, and counts how they ended. */
export function judgeBatches(evidence: Evidence): Ruling {
  return combine(
    submissions(evidence),
    itemsOutsideBatches(evidence),
    incompleteBatches(evidence),
    undeleted(evidence),
    miscounted('after the last fault', evidence.found),
    miscounted('in the end', evidence.left),
    otherOutcomes(evidence),
  )
}

/** A key has one batch, whichever process submits. */
function submissions(evidence: Evidence): Ruling {
  const keyed = Map.groupBy(evidence.left.batches, ({ key }) => key)
  return combine(
    check(evidence.of('submit'), ({ asked: { key }, answer }) => {
      const ids = (keyed.get(key) ?? []).map(({ id }) => id)
      if (ids.length > 1) return [`key ${key} has the batches ${ids.join(' and ')}`]
      return answer === null || answer.batch === ids[0]
        ? []
        : [`${key} was submitted to ${answer.batch}, and has ${ids}`]
    }),
    check(evidence.of('submitOnce'), ({ asked: { labels, shortLived }, answer }) => {
      if (answer === null || evidence.deletedBatches.has(answer.batch)) return []
      if (shortLived) return survivors(evidence.left, labels, answer.batch)
      const items = itemsOf(evidence.left, answer.batch)
      return labels.length === items.length
        ? []
        : [`${answer.batch} was given ${labels.length}, and has ${items.length}`]
    }),
  )
}

/** The record of the batch may be pruned. Each of its items must exist, even if it was requeued meanwhile. */
function survivors({ jobs }: Observation, labels: readonly string[], batch: string): string[] {
  const there = new Set(jobs.map(labelOf))
  return labels
    .filter((label) => !there.has(label))
    .map((label) => `item ${label} of ${batch}, whose record may be pruned, is lost`)
}

function itemsOf({ jobs }: Observation, batch: string): JobInfo[] {
  return jobs.filter((job) => job.batch === batch)
}

/** Every item is in a batch that exists. */
function itemsOutsideBatches({ left, deletedBatches }: Evidence): Ruling {
  const known = new Set(left.batches.map(({ id }) => id))
  const items = left.jobs.filter((job) => (job.payload as Payload).kind === 'item')
  return check(items, ({ id, batch }) => {
    if (batch !== null && known.has(batch)) return []
    return [`item ${id} is in ${batch ?? 'no batch'}${deletedBatches.has(batch ?? '') ? ', which was deleted' : ''}`]
  })
}

/** In the end a batch with a key has all its items. One that was cancelled before has the first of them, without a gap. */
function incompleteBatches({ left }: Evidence): Ruling {
  return check(left.batches, (batch) => {
    const { id, key, state, total } = batch
    if (key === null) return []
    const due = labelsOf(key)
    const labels = itemsOf(left, id).map(labelOf)
    const missing = due.slice(0, total).filter((label) => !labels.includes(label))
    const faults = missing.map((label) => `item ${label} of ${id} is missing`)
    if (labels.length !== total) faults.push(`${id} reports ${total} items, and has ${labels.length}`)
    if (total !== due.length && state !== 'cancelled') faults.push(`${id} has ${total} of ${due.length} items`)
    return faults
  })
}

/** A deleted batch does not come back. */
function undeleted(evidence: Evidence): Ruling {
  const deletions = evidence.of('control').filter(({ asked, answer }) => asked.as === 'delete' && answer !== null)
  return check(deletions, ({ asked: { batch } }) => {
    const isThere = evidence.left.batches.some(({ id }) => id === batch)
    const items = itemsOf(evidence.left, batch).map(({ id }) => id)
    return isThere || items.length > 0 ? [`${batch} was deleted, and there are ${items.join(', ') || 'no items'}`] : []
  })
}

const states = ['done', 'dead', 'cancelled', 'running'] as const

function miscounted(when: string, seen: Observation): Ruling {
  return check(seen.batches, (batch) => {
    const items = itemsOf(seen, batch.id)
    const labelled = Map.groupBy(items, ({ state }) => state)
    const counted = Object.fromEntries(states.map((state) => [state, labelled.get(state)?.length ?? 0]))
    const waiting = items.filter(({ state }) => ['held', 'scheduled', 'ready'].includes(state)).length
    const reported = Object.fromEntries(states.map((state) => [state, batch[state]]))
    return [
      ...differing(batch, when, 'has', { ...reported, waiting: batch.waiting }, { ...counted, waiting }),
      ...differing(batch, when, 'outcomes', batch.outcomes, tallied(items.map(({ outcome }) => outcome))),
      ...differing(batch, when, 'warnings', batch.warnings, tallied(items.map(({ warning }) => warning))),
      ...differing(batch, when, 'costs', batch.costs, spent(items)),
    ]
  })
}

type Amounts = Readonly<Record<string, number>>

function differing({ id }: BatchProgress, when: string, what: string, reported: Amounts, counted: Amounts): string[] {
  const names = new Set([...Object.keys(reported), ...Object.keys(counted)])
  return [...names]
    .filter((name) => (reported[name] ?? 0) !== (counted[name] ?? 0))
    .map(
      (name) => `${when} ${id} ${what}: it reports ${reported[name] ?? 0} ${name}, and its items ${counted[name] ?? 0}`,
    )
}

function tallied(labels: readonly (string | null)[]): Amounts {
  const named = labels.filter((label) => label !== null)
  return Object.fromEntries([...Map.groupBy(named, (label) => label)].map(([label, { length }]) => [label, length]))
}

/** The costs of all runs, also of failed ones. */
function spent(items: readonly JobInfo[]): Amounts {
  const sums: Record<string, number> = {}
  for (const { costs } of items.flatMap(({ history }) => history)) {
    for (const [name, amount] of Object.entries(costs ?? {})) sums[name] = (sums[name] ?? 0) + amount
  }
  return sums
}

/** An item keeps the outcome that it was settled with. */
function otherOutcomes(evidence: Evidence): Ruling {
  const said = evidence.of('settle').filter(({ asked, answer }) => asked.as === 'done' && answer?.state === 'done')
  return check(said, ({ asked: { id, outcome } }) => {
    const [job, another] = evidence.jobs.get(id) ?? []
    if (!job || another || job.batch === null || job.outcome === (outcome ?? null)) return []
    return [`${id} is done as ${job.outcome}, where it was settled as ${outcome}`]
  })
}

/** Promise: a batch that is paused or cancelled starts nothing. */
export function judgeControls(evidence: Evidence): Ruling {
  const controls = Map.groupBy(evidence.of('control').filter(isPossible), ({ asked }) => asked.batch)
  const claims = evidence.of('claim').filter(({ answer }) => answer?.length)
  return check(claims, (claim) =>
    (claim.answer ?? []).flatMap(({ id }) => {
      const batch = evidence.jobs.get(id)?.[0]?.batch ?? ''
      const stop = stopBefore(claim, controls.get(batch) ?? [], possibleNewRounds(evidence, batch))
      return stop ? [`${claim.asked.worker} got ${id} of batch ${batch} after its ${stop.asked.as}`] : []
    }),
  )
}

type Span = Pick<Note, 'at' | 'answeredAt'>

/** A pause or a cancel that was answered before the claim was made, and that no other call may have undone. */
function stopBefore(
  claim: Note<'claim'>,
  controls: readonly Note<'control'>[],
  newRounds: readonly Span[],
): Note<'control'> | undefined {
  return controls.find((stop) => {
    if (stop.answer === null || (stop.answeredAt ?? Infinity) > claim.at) return false
    if (stop.asked.as === 'cancel') return true
    if (stop.asked.as !== 'pause' || stop.answer.state !== 'paused') return false
    const ends = [...controls.filter(({ asked }) => asked.as === 'resume'), ...newRounds]
    return !ends.some((end) => end.at <= (claim.answeredAt ?? Infinity) && (end.answeredAt ?? Infinity) >= stop.at)
  })
}

/**
 * Calls that may have begun another round of the batch. A pause ends with its round, and a paused round can end: its last items
 * may be cancelled or deleted, or finish because they were already running.
 */
function possibleNewRounds(evidence: Evidence, batch: string): readonly Span[] {
  const rounds = evidence.left.batches.find(({ id }) => id === batch)?.round ?? 1
  if (rounds === 1) return []
  return [
    ...evidence.of('control').filter(({ asked }) => asked.batch === batch && asked.as === 'retryFailed'),
    ...evidence.of('requeue').filter(({ asked }) => evidence.jobs.get(asked.id)?.[0]?.batch === batch),
    ...evidence.of('requeueAll'),
  ].filter(isPossible)
}

/** Promise: the completion of a batch is enqueued once a round, with the state in which it ended. */
export function judgeCompletions(evidence: Evidence): Ruling {
  const notices = evidence.left.jobs
    .filter(({ queue }) => queue === completions.name)
    .map(({ payload }) => payload as Payload)
  const known = new Set(evidence.left.batches.map(({ id }) => id))
  return combine(
    check(evidence.left.batches, (batch) => completionFaults(batch, notices)),
    check(notices, ({ batchId = '' }) =>
      known.has(batchId) || evidence.deletedBatches.has(batchId)
        ? []
        : [`batch ${batchId} does not exist, and has a completion`],
    ),
  )
}

function completionFaults({ id, state, round, finishedAt }: BatchProgress, notices: readonly Payload[]): string[] {
  if (finishedAt === null) return [`batch ${id} is ${state}, and never finishes`]
  const own = notices.filter(({ batchId }) => batchId === id)
  const rounds = Array.from({ length: round }, (_, n) => n + 1)
  const faults = rounds
    .map((each) => ({ each, times: own.filter((notice) => notice.round === each).length }))
    .filter(({ times }) => times !== 1)
    .map(({ each, times }) => `round ${each} of ${id} has ${times} completions`)
  if (own.length > round && faults.length === 0)
    faults.push(`${id} had ${round} rounds, and has ${own.length} completions`)
  const last = own.find((notice) => notice.round === round)
  return last && last.state !== state ? [...faults, `${id} is ${state}, and its completion says ${last.state}`] : faults
}
