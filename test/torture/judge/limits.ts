// Promises: limits hold at every instant, also while leases run out and their jobs come back.
//
// Two kinds of witnesses. Who claims and settles by hand knows from when until when a job was surely held: from the answer to
// its claim until its settlement was asked for, or its lease ended. And the store itself says of every attempt when it began
// and when it ended, and is asked now and then how many run; that counts jobs of handlers, too.

import type { JobInfo } from '../../../src/client/job-info.ts'
import type { Limit } from '../../../src/job/record.ts'
import { limitOf } from '../batches.ts'
import { keyed, narrow, paced } from '../world.ts'
import type { Evidence } from './evidence.ts'
import { holdsOf } from './fences.ts'
import { check, type Ruling, together } from './ruling.ts'

interface Span {
  readonly id: string
  readonly from: number
  readonly to: number
}

/** What jobs share a limit by. */
interface Share {
  readonly of: string
  readonly limit: Limit
}

export function judgeConcurrency(evidence: Evidence): Ruling {
  const samples = evidence.of('sample').flatMap(({ answer }) => answer ?? [])
  return together(
    check(samples, ({ of, running, limit }) =>
      running <= limit ? [] : [`${running} run of ${of}, where ${limit} may`],
    ),
    crowded(evidence, heldSpans(evidence)),
    ...(hasOneClock(evidence) ? [crowded(evidence, attemptSpans(evidence))] : []),
  )
}

/** Times that the store has written down are those of one clock, which was never set, and calls came one after the other. */
function hasOneClock({ ordeal }: Evidence): boolean {
  return ordeal.isSerial && ordeal.jumps.length === 0
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

/** At the beginning of each, how many of its kind have begun and not ended. */
function crowded(evidence: Evidence, spans: readonly Span[]): Ruling {
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
        faults = [`${open.map(({ id }) => id).join(' and ')} ran at once of ${span.of}, where ${max} may`]
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

/** Promise: over no stretch of that length more start than the rate says. */
export function judgeRates(evidence: Evidence): Ruling {
  const shares = sharesOf(evidence)
  const starts = evidence.ordeal.jumps.length === 0 ? evidence.left.jobs.flatMap(startsOf) : claimsOf(evidence)
  const shared = starts.flatMap((start) => shares(start.id).map((share) => ({ ...start, ...share })))
  return together(
    ...[...Map.groupBy(shared, ({ of }) => of).values()].map((ofShare) => {
      const { rate } = ofShare[0]?.limit ?? {}
      if (!rate) return together()
      const inOrder = ofShare.toSorted((a, b) => a.from - b.from)
      return check(inOrder.slice(rate.count), (last, n) => {
        const { id, of } = inOrder[n] as (typeof inOrder)[0]
        const { from, to } = stretchOf(inOrder.slice(n, n + rate.count + 1))
        const took = to - from + evidence.gainedMs(from, to)
        if (took >= rate.windowMs || evidence.crashedBetween(from, to)) return []
        return [`from ${id} to ${last.id} ${rate.count + 1} of ${of} started within ${took} ms`]
      })
    }),
  )
}

/** Within which all of them have surely begun: who was asked first may have been answered last. */
export function stretchOf(spans: readonly Pick<Span, 'from' | 'to'>[]): Pick<Span, 'from' | 'to'> {
  return { from: Math.min(...spans.map(({ from }) => from)), to: Math.max(...spans.map(({ to }) => to)) }
}

function startsOf({ id, history, state, startedAt }: JobInfo): Span[] {
  const times = history.map(({ startedAt }) => startedAt.getTime())
  if (state === 'running' && startedAt) times.push(startedAt.getTime())
  return times.map((time) => ({ id, from: time, to: time }))
}

/** Begun somewhere between the call and its answer. */
function claimsOf(evidence: Evidence): Span[] {
  return holdsOf(evidence).map(({ id, at, answeredAt }) => ({ id, from: at, to: answeredAt }))
}
