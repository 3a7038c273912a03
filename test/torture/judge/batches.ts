// Promises about batches: each item once, through every death of who submits; counts that equal a recount; nothing starts that
// was told not to; the end is told once.

import type { BatchProgress } from '../../../src/batch/progress.ts'
import type { JobInfo } from '../../../src/client/job-info.ts'
import { labelsOf } from '../batches.ts'
import type { Note } from '../journal.ts'
import type { Observation } from '../observe.ts'
import { completions } from '../world.ts'
import { type Evidence, isPossible, labelOf, type Payload } from './evidence.ts'
import { check, type Ruling, together } from './ruling.ts'

/** Promise: a batch has each of its items once, and counts what became of them. */
export function judgeBatches(evidence: Evidence): Ruling {
  return together(
    submissions(evidence),
    strangers(evidence),
    whole(evidence),
    undeleted(evidence),
    miscounted('after the last fault', evidence.found),
    miscounted('in the end', evidence.left),
    otherOutcomes(evidence),
  )
}

/** A key has one batch, whoever submits. */
function submissions(evidence: Evidence): Ruling {
  const keyed = Map.groupBy(evidence.left.batches, ({ key }) => key)
  return together(
    check(evidence.of('submit'), ({ asked: { key }, answer }) => {
      const ids = (keyed.get(key) ?? []).map(({ id }) => id)
      if (ids.length > 1) return [`key ${key} has the batches ${ids.join(' and ')}`]
      return answer === null || answer.batch === ids[0]
        ? []
        : [`${key} was submitted to ${answer.batch}, and has ${ids}`]
    }),
    check(evidence.of('submitOnce'), ({ asked: { labels, fleeting }, answer }) => {
      if (answer === null || evidence.deletedBatches.has(answer.batch)) return []
      if (fleeting) return survivors(evidence.left, labels, answer.batch)
      const items = itemsOf(evidence.left, answer.batch)
      return labels.length === items.length
        ? []
        : [`${answer.batch} was given ${labels.length}, and has ${items.length}`]
    }),
  )
}

/** The record of a batch may be gone; each of its items is there, whoever brought it back meanwhile. */
function survivors({ jobs }: Observation, labels: readonly string[], batch: string): string[] {
  const there = new Set(jobs.map(labelOf))
  return labels
    .filter((label) => !there.has(label))
    .map((label) => `item ${label} of ${batch}, which may be gone, is lost`)
}

function itemsOf({ jobs }: Observation, batch: string): JobInfo[] {
  return jobs.filter((job) => job.batch === batch)
}

/** Every item is in a batch that is there. */
function strangers({ left, deletedBatches }: Evidence): Ruling {
  const known = new Set(left.batches.map(({ id }) => id))
  const items = left.jobs.filter((job) => (job.payload as Payload).kind === 'item')
  return check(items, ({ id, batch }) => {
    if (batch !== null && known.has(batch)) return []
    return [`item ${id} is in ${batch ?? 'no batch'}${deletedBatches.has(batch ?? '') ? ', which was deleted' : ''}`]
  })
}

/** What a key stands for is there, in the end all of it: but of one that was cancelled half-way only the beginning. */
function whole({ left }: Evidence): Ruling {
  return check(left.batches, (batch) => {
    const { id, key, state, total } = batch
    if (key === null) return []
    const due = labelsOf(key)
    const labels = itemsOf(left, id).map(labelOf)
    const missing = due.slice(0, total).filter((label) => !labels.includes(label))
    const faults = missing.map((label) => `item ${label} of ${id} is missing`)
    if (labels.length !== total) faults.push(`${id} says to have ${total} items, and has ${labels.length}`)
    if (total !== due.length && state !== 'cancelled') faults.push(`${id} has ${total} of ${due.length} items`)
    return faults
  })
}

/** One that was deleted stays away. */
function undeleted(evidence: Evidence): Ruling {
  const deletions = evidence.of('steer').filter(({ asked, answer }) => asked.as === 'delete' && answer !== null)
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
    const told = Object.fromEntries(states.map((state) => [state, batch[state]]))
    return [
      ...differing(batch, when, 'has', { ...told, waiting: batch.waiting }, { ...counted, waiting }),
      ...differing(batch, when, 'outcomes', batch.outcomes, tallied(items.map(({ outcome }) => outcome))),
      ...differing(batch, when, 'warnings', batch.warnings, tallied(items.map(({ warning }) => warning))),
      ...differing(batch, when, 'costs', batch.costs, spent(items)),
    ]
  })
}

type Amounts = Readonly<Record<string, number>>

function differing({ id }: BatchProgress, when: string, what: string, told: Amounts, counted: Amounts): string[] {
  const names = new Set([...Object.keys(told), ...Object.keys(counted)])
  return [...names]
    .filter((name) => (told[name] ?? 0) !== (counted[name] ?? 0))
    .map((name) => `${when} ${id} ${what}: it says ${told[name] ?? 0} ${name}, and its items ${counted[name] ?? 0}`)
}

function tallied(labels: readonly (string | null)[]): Amounts {
  const named = labels.filter((label) => label !== null)
  return Object.fromEntries([...Map.groupBy(named, (label) => label)].map(([label, { length }]) => [label, length]))
}

/** Of every run, well ended or not. */
function spent(items: readonly JobInfo[]): Amounts {
  const sums: Record<string, number> = {}
  for (const { costs } of items.flatMap(({ history }) => history)) {
    for (const [name, amount] of Object.entries(costs ?? {})) sums[name] = (sums[name] ?? 0) + amount
  }
  return sums
}

/** What was said of an item when it was settled stands. */
function otherOutcomes(evidence: Evidence): Ruling {
  const said = evidence.of('settle').filter(({ asked, answer }) => asked.as === 'done' && answer?.state === 'done')
  return check(said, ({ asked: { id, outcome } }) => {
    const [job, another] = evidence.jobs.get(id) ?? []
    if (!job || another || job.batch === null || job.outcome === (outcome ?? null)) return []
    return [`${id} is done as ${job.outcome}, where it was settled as ${outcome}`]
  })
}

/** Promise: a batch that is paused or cancelled starts nothing. */
export function judgeSteering(evidence: Evidence): Ruling {
  const steered = Map.groupBy(evidence.of('steer').filter(isPossible), ({ asked }) => asked.batch)
  const claims = evidence.of('claim').filter(({ answer }) => answer?.length)
  return check(claims, (claim) =>
    (claim.answer ?? []).flatMap(({ id }) => {
      const batch = evidence.jobs.get(id)?.[0]?.batch ?? ''
      const stop = stopBefore(claim, steered.get(batch) ?? [], revivals(evidence, batch))
      return stop ? [`${claim.asked.worker} got ${id} of batch ${batch} after its ${stop.asked.as}`] : []
    }),
  )
}

type Span = Pick<Note, 'at' | 'answeredAt'>

/** A pause or a cancel that had been answered when the claim was made, and that nobody may have undone. */
function stopBefore(
  claim: Note<'claim'>,
  steered: readonly Note<'steer'>[],
  revived: readonly Span[],
): Note<'steer'> | undefined {
  return steered.find((stop) => {
    if (stop.answer === null || (stop.answeredAt ?? Infinity) > claim.at) return false
    if (stop.asked.as === 'cancel') return true
    if (stop.asked.as !== 'pause' || stop.answer.state !== 'paused') return false
    const ends = [...steered.filter(({ asked }) => asked.as === 'resume'), ...revived]
    return !ends.some((end) => end.at <= (claim.answeredAt ?? Infinity) && (end.answeredAt ?? Infinity) >= stop.at)
  })
}

/**
 * What may have begun another round of the batch. A pause ends with the round that it was asked for, and the last items of
 * a paused one can still be cancelled or deleted, or end where they run.
 */
function revivals(evidence: Evidence, batch: string): readonly Span[] {
  const rounds = evidence.left.batches.find(({ id }) => id === batch)?.round ?? 1
  if (rounds === 1) return []
  return [
    ...evidence.of('steer').filter(({ asked }) => asked.batch === batch && asked.as === 'retryFailed'),
    ...evidence.of('requeue').filter(({ asked }) => evidence.jobs.get(asked.id)?.[0]?.batch === batch),
    ...evidence.of('requeueAll'),
  ].filter(isPossible)
}

/** Promise: the completion of a batch is told once a round, as it ended. */
export function judgeCompletions(evidence: Evidence): Ruling {
  const told = evidence.left.jobs
    .filter(({ queue }) => queue === completions.name)
    .map(({ payload }) => payload as Payload)
  const known = new Set(evidence.left.batches.map(({ id }) => id))
  return together(
    check(evidence.left.batches, (batch) => untold(batch, told)),
    check(told, ({ batchId = '' }) =>
      known.has(batchId) || evidence.deletedBatches.has(batchId)
        ? []
        : [`${batchId} is not there, and is told to be over`],
    ),
  )
}

function untold({ id, state, round, finishedAt }: BatchProgress, told: readonly Payload[]): string[] {
  if (finishedAt === null) return [`batch ${id} is ${state}, and never finishes`]
  const own = told.filter(({ batchId }) => batchId === id)
  const rounds = Array.from({ length: round }, (_, n) => n + 1)
  const faults = rounds
    .map((each) => ({ each, times: own.filter((notice) => notice.round === each).length }))
    .filter(({ times }) => times !== 1)
    .map(({ each, times }) => `round ${each} of ${id} was told ${times} times`)
  if (own.length > round && faults.length === 0) faults.push(`${id} had ${round} rounds, and ${own.length} were told`)
  const last = own.find((notice) => notice.round === round)
  return last && last.state !== state ? [...faults, `${id} is ${state}, and was told to be ${last.state}`] : faults
}
