// Promises: limits hold at every moment, also while leases expire and their jobs are rescued.
//
// There are two sources:
// - The journal of a process that claims by hand. It shows when a job was certainly held: from the answer to its claim until its
//   settlement was requested or its lease ended.
// - The store. It records when every attempt began and ended, and samples count the running jobs. Both include jobs of handlers.

import type { JobInfo } from '../../../src/client/job-info.ts'
import type { Limit } from '../../../src/job/record.ts'
import { limitOf } from '../batches.ts'
import { keyed, narrow, paced } from '../world.ts'
import type { Evidence } from './evidence.ts'
import { holdsOf } from './fences.ts'
import { check, combine, type Ruling } from './ruling.ts'

interface Span {
  readonly id: string
  readonly from: number
  readonly to: number
}

/** A limit, and the name of what jobs share it by: a queue, a limit key or a batch. */
interface Share {
  readonly of: string
  readonly limit: Limit
}

export function judgeConcurrency(evidence: Evidence): Ruling {
  const samples = evidence.of('sample').flatMap(({ answer }) => answer ?? [])
  return combine(
    check(samples, ({ of, running, limit }) =>
      running <= limit ? [] : [`${running} jobs of ${of} run, where ${limit} may`],
    ),
    overLimit(evidence, heldSpans(evidence)),
    ...(hasOneClock(evidence) ? [overLimit(evidence, attemptSpans(evidence))] : []),
  )
}

/** Whether the times that the store records come from one clock that was never set, with calls one after the other. */
function hasOneClock({ conditions }: Evidence): boolean {
  return conditions.isSerial && conditions.jumps.length === 0
}

function heldSpans(evidence: Evidence): Span[] {
  return holdsOf(evidence)
    .filter(({ at, endsAt }) => !evidence.crashedBetween(at, endsAt))
    .map(({ id, answeredAt, endsAt }) => ({ id, from: answeredAt, to: endsAt }))
}

function attemptSpans({ left }: Evidence): Span[] {
  return left.jobs.flatMap(({ id, history }) =>
    history.map(({ startedAt, endedAt }) => ({ id, from: startedAt.getTime(), to: endedAt.getTime() })),
  )
}

/** Counts, at the beginning of each span, the spans with the same limit that have begun and not ended. */
function overLimit(evidence: Evidence, spans: readonly Span[]): Ruling {
  const shares = sharesOf(evidence)
  const shared = spans.flatMap((span) => shares(span.id).map((share) => ({ ...span, ...share })))
  return check([...Map.groupBy(shared, ({ of }) => of).values()], (ofShare) => {
    const max = limitOf(ofShare[0]?.limit)
    const ended = ofShare.map(({ to }) => to).sort((a, b) => a - b)
    const begun = ofShare.filter(({ from, to }) => to > from).toSorted((a, b) => a.from - b.from)
    const open: typeof begun = []
    let faults: string[] = []
    for (const span of begun) {
      const still = open.filter(({ to }) => to > span.from)
      open.splice(0, open.length, ...still, span)
      if (open.length > max)
        faults = [`${open.map(({ id }) => id).join(' and ')} of ${span.of} ran at once, where ${max} may`]
    }
    return ended.length > max ? faults : []
  })
}

function sharesOf(evidence: Evidence): (id: string) => Share[] {
  const limitOfBatch = new Map(evidence.left.batches.map(({ id, concurrency }) => [id, concurrency]))
  const queueLimits = new Map([narrow, keyed, paced].map(({ name, settings }) => [name, settings?.limits]))
  return (id) => {
    const [job, another] = evidence.jobs.get(id) ?? []
    if (!job || another) return []
    const { queue, limitKey, batch } = job
    const { limit, keyLimit } = queueLimits.get(queue) ?? {}
    const concurrency = limitOfBatch.get(batch ?? '') ?? null
    return [
      ...(limit ? [{ of: queue, limit }] : []),
      ...(keyLimit && limitKey !== null ? [{ of: `${queue} of ${limitKey}`, limit: keyLimit }] : []),
      ...(concurrency === null ? [] : [{ of: `batch ${batch}`, limit: { concurrency, rate: null } }]),
    ]
  }
}

/** Promise: no more jobs start within a time window than the rate allows. */
export function judgeRates(evidence: Evidence): Ruling {
  const shares = sharesOf(evidence)
  const starts = evidence.conditions.jumps.length === 0 ? evidence.left.jobs.flatMap(startsOf) : claimsOf(evidence)
  const shared = starts.flatMap((start) => shares(start.id).map((share) => ({ ...start, ...share })))
  return combine(
    ...[...Map.groupBy(shared, ({ of }) => of).values()].map((ofShare) => {
      const { rate } = ofShare[0]?.limit ?? {}
      if (!rate) return combine()
      const inOrder = ofShare.toSorted((a, b) => a.from - b.from)
      return check(inOrder.slice(rate.count), (last, n) => {
        const { id, of } = inOrder[n] as (typeof inOrder)[0]
        const { from, to } = rangeOf(inOrder.slice(n, n + rate.count + 1))
        const took = to - from + evidence.gainedMs(from, to)
        if (took >= rate.windowMs || evidence.crashedBetween(from, to)) return []
        return [`from ${id} to ${last.id} ${rate.count + 1} of ${of} started within ${took} ms`]
      })
    }),
  )
}

/** The range in which all of them have certainly begun. The claim that was made first may have been answered last. */
export function rangeOf(spans: readonly Pick<Span, 'from' | 'to'>[]): Pick<Span, 'from' | 'to'> {
  return { from: Math.min(...spans.map(({ from }) => from)), to: Math.max(...spans.map(({ to }) => to)) }
}

function startsOf({ id, history, state, startedAt }: JobInfo): Span[] {
  const times = history.map(({ startedAt }) => startedAt.getTime())
  if (state === 'running' && startedAt) times.push(startedAt.getTime())
  return times.map((time) => ({ id, from: time, to: time }))
}

/** The start of a job is somewhere between its claim and the answer. */
function claimsOf(evidence: Evidence): Span[] {
  return holdsOf(evidence).map(({ id, at, answeredAt }) => ({ id, from: at, to: answeredAt }))
}
