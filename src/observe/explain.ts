// Why is this job not running? The answer is a sentence, with its facts as fields. The first reason that applies is given, in the
// order in which reasons must be removed:
//
// 1. The job has ended, or runs.
// 2. It is offered in an inbox, or waits for a time. A flow run waits for what its steps wait for.
// 3. Its queue or its batch is paused, or its batch was cancelled.
// 4. A limit is reached.
// 5. No worker takes jobs of its queue.
// 6. Other jobs are ahead of it.

import type { BatchRecord } from '../job/batch.ts'
import { bounds } from '../job/bounds.ts'
import { messageWithCauses } from '../job/error.ts'
import { inboxKey, readOffered } from '../job/inbox.ts'
import type { Attempt, JobError, JobState, Limit } from '../job/record.ts'
import { span } from '../runtime/duration.ts'
import type { JobBlockers, KeyBlockers, Store } from '../store/store.ts'
import { readWorkers, type WorkerInfo } from '../worker/presence.ts'
import { type FlowWait, waitingRun, waitsOf } from './explain-flow.ts'

export type Why =
  | 'done'
  | 'dead'
  | 'cancelled'
  | 'running'
  | 'offered'
  | 'scheduled'
  | 'sleeping'
  | 'awaiting-signal'
  | 'awaiting-child'
  | 'step-retry'
  | 'queue-paused'
  | 'batch-paused'
  | 'batch-cancelled'
  | 'key-concurrency'
  | 'key-rate'
  | 'admission'
  | 'queue-concurrency'
  | 'queue-rate'
  | 'batch-concurrency'
  | 'no-worker'
  | 'behind'
  | 'next'

/** The facts of the sentence. A fact that the sentence does not mention is absent. */
export interface ExplanationFacts {
  /** The time that the job is scheduled for; or when the rate allows the next start. */
  readonly until?: Date
  /** Since when the queue or batch is paused, or the job is running or has ended. */
  readonly since?: Date
  /** The `by` of the pause, or the worker that runs the job. */
  readonly by?: string | null
  readonly batch?: string
  /** The `reason` of the cancel of its batch. */
  readonly reason?: string
  /** The inbox in which the job is offered. */
  readonly inbox?: string
  readonly limitKey?: string
  readonly limit?: Limit
  /** How many slots of the limit are in use. */
  readonly admitted?: number
  /** Ids of some of the jobs that hold these slots. */
  readonly holders?: readonly string[]
  /** How many jobs are ahead of it; counted up to a bound. */
  readonly ahead?: number
  /** Live workers that take jobs of its queue. */
  readonly workers?: number
  readonly error?: JobError | null
  readonly cancelRequested?: boolean
  readonly attempts?: number
  /** The step of a flow run that waits; of several, the one whose wait ends first. */
  readonly step?: string
  /** All steps that wait, if there are several. */
  readonly steps?: readonly string[]
  /** The signal that it waits for, and the key that the signal is sent to. */
  readonly signal?: string
  readonly key?: string
  /** The child that it waits for. */
  readonly child?: string
}

export interface Explanation {
  readonly id: string
  readonly queue: string
  readonly state: JobState
  readonly why: Why
  readonly sentence: string
  readonly facts: ExplanationFacts
}

/** Null: there is no such job. */
export async function explainJob(store: Store, id: string): Promise<Explanation | null> {
  const [blockers, workers] = await Promise.all([store.blockers(id), readWorkers(store)])
  if (blockers === null) return null
  const [offer, waits] = await Promise.all([offerOf(store, blockers.job), waitsOf(store, blockers.job)])
  return explain(blockers, workers, { offer, waits })
}

/** An offer that can be accepted now. */
interface StandingOffer {
  readonly inbox: string
  readonly expiresAt: number | null
}

async function offerOf(store: Store, { id, state, history }: JobBlockers['job']): Promise<StandingOffer | null> {
  const inbox = history.at(-1)?.inbox
  if (state !== 'scheduled' || inbox === undefined) return null
  const key = inboxKey(inbox, id)
  const entry = await store.kvGet(key)
  return entry && readOffered(inbox, key, entry.value) && { inbox, expiresAt: entry.expiresAt }
}

export type Reason = Pick<Explanation, 'why' | 'sentence' | 'facts'>

interface Waiting {
  readonly offer?: StandingOffer | null
  /** Of a flow run. */
  readonly waits?: readonly FlowWait[]
}

export function explain(
  blockers: JobBlockers,
  workers: readonly WorkerInfo[],
  { offer = null, waits = [] }: Waiting = {},
): Explanation {
  const { id, queue, state } = blockers.job
  const serving = workers.filter(({ queues }) => queues === null || queues.includes(queue))
  const offered = () => offer && offeredIn(offer, blockers)
  const parked = () => waitingRun(waits, blockers.now)
  const reasons = [
    ...[ended, running, offered, parked, scheduled],
    ...[pausedQueue, stoppedBatch, keyLimit, queueLimit, batchLimit],
  ]
  const reason = reasons.reduce<Reason | null>((found, reasonOf) => found ?? reasonOf(blockers), null)
  return { id, queue, state, ...(reason ?? waiting(blockers, serving)) }
}

function ended({ job, batch, now }: JobBlockers): Reason | null {
  const { state, finishedAt, attempts, error } = job
  if (state !== 'done' && state !== 'dead' && state !== 'cancelled') return null
  const facts = { ...(finishedAt !== null && { since: new Date(finishedAt) }), attempts, error }
  const ago = finishedAt === null ? '' : ` ${span(now - finishedAt)} ago`
  if (state === 'done')
    return { why: state, sentence: `The job is done: it ended${ago} in attempt ${attempts}.`, facts }
  const why = error === null ? '' : `: ${messageOf(error)}`
  if (state === 'cancelled') {
    if (batch?.state !== 'cancelled') return { why: state, sentence: `The job was cancelled${ago}${why}.`, facts }
    const sentence = `The job was cancelled${ago}${why}. Its batch ${nameOf(batch)} was cancelled${reasonOf(batch)}.`
    return { why: state, sentence, facts: { ...facts, batch: batch.id, ...reasonFact(batch) } }
  }
  const last = isPermanent(job)
    ? `: attempt ${attempts} of ${job.maxAttempts} failed permanently`
    : ` after ${times(attempts, 'attempt')}`
  return { why: state, sentence: `The job died${ago}${last}${why}.`, facts }
}

/** Its handler has ended it before its last attempt. */
function isPermanent({ attempts, maxAttempts, history }: JobBlockers['job']): boolean {
  return attempts < maxAttempts && history.at(-1)?.ending === 'failed'
}

function running({ job, now }: JobBlockers): Reason | null {
  const { hold, cancelRequested, attempts, maxAttempts } = job
  if (job.state !== 'running' || hold === null) return null
  const late = now > hold.expiresAt ? ` Its lease has expired${fateOfExpired(job)}.` : ''
  const asked = cancelRequested ? ' A cancel was requested.' : ''
  const since = new Date(hold.startedAt)
  const runs = `The job has been running on worker ${hold.worker} for ${span(now - hold.startedAt)}`
  const sentence = `${runs}, in attempt ${attempts} of ${maxAttempts}.${asked}${late}`
  return { why: 'running', sentence, facts: { by: hold.worker, since, attempts, cancelRequested } }
}

/** What the next sweep makes of a job whose lease has expired. */
function fateOfExpired({ cancelRequested, attempts, maxAttempts }: JobBlockers['job']): string {
  if (cancelRequested) return ', and the next sweep makes it cancelled'
  if (attempts < maxAttempts) return ', and the next sweep rescues it'
  return '. This was its last attempt, and the next sweep makes it dead'
}

function offeredIn({ inbox, expiresAt }: StandingOffer, { job, now }: JobBlockers): Reason {
  const until = new Date(expiresAt ?? job.runAt)
  const left = `${until.toISOString()}, ${span(until.getTime() - now)} from now`
  const sentence = `The job is offered in inbox ${inbox} until ${left}: it is done when the offer is accepted, and runs again if it is rejected or expires.`
  return { why: 'offered', sentence, facts: { inbox, until, attempts: job.attempts } }
}

function scheduled({ job, now }: JobBlockers): Reason | null {
  if (job.state !== 'scheduled') return null
  const until = new Date(job.runAt)
  const last = job.history.at(-1)
  const why =
    last === undefined ? '' : `, after attempt ${last.attempt} ${endings[last.ending] ?? 'ended'}${errorOf(last)}`
  const error = last?.error === undefined ? {} : { error: last.error }
  const sentence =
    job.runAt > now
      ? `The job is scheduled for ${until.toISOString()}, ${span(job.runAt - now)} from now${why}.`
      : `The job was scheduled for ${until.toISOString()}${why}. It is due, and the next sweep promotes it.`
  return { why: 'scheduled', sentence, facts: { until, attempts: job.attempts, ...error } }
}

function pausedQueue({ job, queue, now }: JobBlockers): Reason | null {
  const { pausedAt, pausedBy: by, pausedUntil } = queue
  if (pausedAt === null) return null
  const sentence = `Queue ${job.queue} has been paused for ${span(now - pausedAt)}${pausedBy(by)}${endOfPause(pausedUntil, now)}.`
  const until = pausedUntil === null ? {} : { until: new Date(pausedUntil) }
  return { why: 'queue-paused', sentence, facts: { since: new Date(pausedAt), by, ...until } }
}

function stoppedBatch({ batch, now }: JobBlockers): Reason | null {
  if (batch?.state === 'cancelled') {
    const sentence = `Its batch ${nameOf(batch)} was cancelled${reasonOf(batch)}, and the job will be cancelled soon.`
    return { why: 'batch-cancelled', sentence, facts: { batch: batch.id, ...reasonFact(batch) } }
  }
  if (batch === null || batch.pausedAt === null) return null
  const { id, pausedAt, pausedBy: by } = batch
  const sentence = `Its batch ${nameOf(batch)} has been paused for ${span(now - pausedAt)}${pausedBy(by)}.`
  return { why: 'batch-paused', sentence, facts: { batch: id, since: new Date(pausedAt), by } }
}

function keyLimit({ job, key, queue, batch, now }: JobBlockers): Reason | null {
  if (job.state !== 'held') return null
  const limitKey = job.limitKey as string
  if (key === null || hasFreeSlot(key)) {
    const full = fullBatch(batch) ?? takenBatch(batch)
    if (full) return full
    const sentence = `Its limit key ${limitKey} has a free slot, and the next sweep admits the job.`
    return { why: 'admission', sentence, facts: { limitKey, ...(key && { limit: key.limit, ahead: key.ahead }) } }
  }
  const { limit, admitted, holders, ahead, nextStartAt } = key
  const facts = { limitKey, limit, admitted, holders, ahead }
  const before = ahead === 0 ? '' : `, and ${areAhead(ahead, 'job of this key', 'jobs of this key')}`
  if (isFull(key)) {
    const ids = holders.length === 0 ? '' : ` (${listed(holders, admitted)})`
    const slots = times(limit.concurrency as number, 'slot')
    const sentence = `Its limit key ${limitKey} has ${slots}${origin(queue.override?.keyLimit?.concurrency)}; ${are(admitted)} in use${ids}${before}.`
    return { why: 'key-concurrency', sentence, facts }
  }
  const until = nextStartAt === null ? {} : { until: new Date(nextStartAt) }
  const sentence = `Its limit key ${limitKey} allows ${rateOf(limit)}${origin(queue.override?.keyLimit?.rate)}${nextStart(nextStartAt, now)}${before}.`
  return { why: 'key-rate', sentence, facts: { ...facts, ...until } }
}

function queueLimit({ job, queue, now }: JobBlockers): Reason | null {
  const { limit, running: admitted, nextStartAt, override } = queue
  if (job.state !== 'ready' || limit === null) return null
  if (limit.concurrency !== null && admitted >= limit.concurrency) {
    const sentence = `Queue ${job.queue} may run ${times(limit.concurrency, 'job')} at once${origin(override?.limit?.concurrency)}, and ${are(admitted)} running.`
    return { why: 'queue-concurrency', sentence, facts: { limit, admitted } }
  }
  if (nextStartAt === null || nextStartAt <= now) return null
  const sentence = `Queue ${job.queue} allows ${rateOf(limit)}${origin(override?.limit?.rate)}${nextStart(nextStartAt, now)}.`
  return { why: 'queue-rate', sentence, facts: { limit, until: new Date(nextStartAt) } }
}

function batchLimit({ job, batch }: JobBlockers): Reason | null {
  return job.state === 'ready' ? fullBatch(batch) : null
}

function fullBatch(batch: BatchRecord | null): Reason | null {
  if (batch === null || batch.concurrency === null) return null
  const { id, concurrency, running: admitted } = batch
  if (admitted < concurrency) return null
  const sentence = `Its batch ${nameOf(batch)} may run ${times(concurrency, 'item')} at once, and ${are(admitted)} running.`
  return { why: 'batch-concurrency', sentence, facts: { batch: id, limit: { concurrency, rate: null }, admitted } }
}

/** The batch may start more items, but items that are already ready will take all of its free slots. */
function takenBatch(batch: BatchRecord | null): Reason | null {
  if (batch === null || batch.concurrency === null) return null
  const { id, concurrency, running: admitted, waiting } = batch
  if (waiting <= concurrency - admitted) return null
  const sentence = `Its batch ${nameOf(batch)} may run ${times(concurrency, 'item')} at once, and ready items are ahead of this one.`
  return { why: 'batch-concurrency', sentence, facts: { batch: id, limit: { concurrency, rate: null }, admitted } }
}

function waiting({ job, ahead: before }: JobBlockers, serving: readonly WorkerInfo[]): Reason {
  const ahead = before ?? 0
  const workers = serving.length
  const facts = { ahead, workers }
  if (workers === 0) {
    const sentence = `No worker of queue ${job.queue} has reported within the last minute.`
    return { why: 'no-worker', sentence, facts }
  }
  if (ahead === 0) return { why: 'next', sentence: 'The job is ready, and no job of its queue is ahead of it.', facts }
  const sentence = `The job is ready; ${areAhead(ahead, 'job', 'jobs')}, for ${times(workers, 'worker')}.`
  return { why: 'behind', sentence, facts }
}

/** A lease that expired says nothing more than the ending. */
function errorOf({ ending, error }: Attempt): string {
  return error === undefined || ending === 'expired' ? '' : `: ${messageOf(error)}`
}

/** The first line, without its full stop, and what caused it. */
function messageOf({ message, ...rest }: JobError): string {
  const [first = ''] = message.split('\n', 1)
  return messageWithCauses({ ...rest, message: first.trimEnd().replace(/\.$/, '') })
}

const endings: Readonly<Record<string, string>> = {
  failed: 'failed',
  timeout: 'timed out',
  crashed: 'crashed',
  expired: 'ended when its lease expired',
  snoozed: 'was snoozed',
}

function isFull({ limit, admitted }: KeyBlockers): boolean {
  return limit.concurrency !== null && admitted >= limit.concurrency
}

/** The limit was raised or removed, or no sweep has run since a slot became free. */
function hasFreeSlot(key: KeyBlockers): boolean {
  const { rate } = key.limit
  return !isFull(key) && (rate === null || (key.nextStartAt === null && key.admitted < rate.count))
}

function areAhead(ahead: number, one: string, many: string): string {
  if (ahead >= bounds.aheadMax) return `at least ${ahead} ${many} are ahead of it`
  return ahead === 1 ? `1 ${one} is ahead of it` : `${ahead} ${many} are ahead of it`
}

function rateOf({ rate }: Limit): string {
  return rate === null ? 'no more starts now' : `${times(rate.count, 'start')} in ${span(rate.windowMs)}`
}

/** Names a limit that is not the definition's. */
function origin(override: Limit[keyof Limit] | undefined): string {
  return override === undefined ? '' : ' (an override by an operator)'
}

function nextStart(at: number | null, now: number): string {
  return at === null || at <= now ? '' : `; the next is possible in ${span(at - now)}`
}

function are(count: number): string {
  return count === 1 ? '1 is' : `${count} are`
}

function listed(holders: readonly string[], count: number): string {
  const shown = holders.slice(0, 3).join(', ')
  return count > 3 ? `${shown} and ${count - 3} more` : shown
}

function nameOf({ name, id }: BatchRecord): string {
  return `${name} (${id})`
}

/** The `reason` of the cancel. */
function reasonOf({ reason }: BatchRecord): string {
  return (reason ?? null) === null ? '' : ` (${reason})`
}

function reasonFact({ reason }: BatchRecord): { readonly reason?: string } {
  return (reason ?? null) === null ? {} : { reason: reason as string }
}

function endOfPause(until: number | null, now: number): string {
  if (until === null) return ''
  return until > now
    ? `, until ${new Date(until).toISOString()}, ${span(until - now)} from now`
    : '. Its time is over, and the next sweep resumes the queue'
}

function pausedBy(by: string | null): string {
  return by === null ? '' : ` (paused by ${by})`
}

function times(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}
