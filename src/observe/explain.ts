// Why is this job not running? One sentence, and the facts as fields. The first reason that holds is the answer, in the order
// in which they would have to be cleared away: what has ended or runs, what waits for a time, what somebody paused, what a
// limit keeps back, that nobody is there to take it, what comes before it.

import type { BatchRecord } from '../job/batch.ts'
import { bounds } from '../job/bounds.ts'
import type { JobError, JobState, Limit } from '../job/record.ts'
import { span } from '../runtime/duration.ts'
import type { KeyBlockers, Standing } from '../store/store.ts'
import type { WorkerInfo } from '../worker/presence.ts'

export type Why =
  | 'done'
  | 'dead'
  | 'cancelled'
  | 'running'
  | 'scheduled'
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

/** What the sentence says, where it says it. */
export interface ExplanationFacts {
  /** Scheduled until then; or when the next start is free. */
  readonly until?: Date
  /** Paused, running or ended since then. */
  readonly since?: Date
  /** Who paused it; who runs it. */
  readonly by?: string | null
  readonly batch?: string
  readonly limitKey?: string
  readonly limit?: Limit
  /** How many have the limit to themselves now, and some of them. */
  readonly admitted?: number
  readonly holders?: readonly string[]
  /** How many jobs come before it, as far as they were counted. */
  readonly ahead?: number
  /** Live workers that take jobs of its queue. */
  readonly workers?: number
  readonly error?: JobError | null
  readonly cancelRequested?: boolean
  readonly attempts?: number
}

export interface Explanation {
  readonly id: string
  readonly queue: string
  readonly state: JobState
  readonly why: Why
  readonly sentence: string
  readonly facts: ExplanationFacts
}

type Reason = Pick<Explanation, 'why' | 'sentence' | 'facts'>

export function explain(standing: Standing, workers: readonly WorkerInfo[]): Explanation {
  const { id, queue, state } = standing.job
  const serving = workers.filter(({ queues }) => queues === null || queues.includes(queue))
  const reasons = [ended, running, scheduled, pausedQueue, stoppedBatch, keyLimit, queueLimit, batchLimit]
  const reason = reasons.reduce<Reason | null>((found, look) => found ?? look(standing), null)
  return { id, queue, state, ...(reason ?? inLine(standing, serving)) }
}

function ended({ job, now }: Standing): Reason | null {
  const { state, finishedAt, attempts, error } = job
  if (state !== 'done' && state !== 'dead' && state !== 'cancelled') return null
  const facts = { ...(finishedAt !== null && { since: new Date(finishedAt) }), attempts, error }
  const ago = finishedAt === null ? '' : `, ${span(now - finishedAt)} ago`
  if (state === 'done') return { why: state, sentence: `It is done${ago}, in attempt ${attempts}.`, facts }
  const why = error === null ? '' : `: ${error.message.replace(/\.$/, '')}`
  if (state === 'cancelled') return { why: state, sentence: `It was cancelled${ago}${why}.`, facts }
  return { why: state, sentence: `It is dead after ${times(attempts, 'attempt')}${ago}${why}.`, facts }
}

function running({ job, now }: Standing): Reason | null {
  const { hold, cancelRequested, attempts } = job
  if (job.state !== 'running' || hold === null) return null
  const late = now > hold.expiresAt ? ' Its lease has run out, and the next sweep takes it back.' : ''
  const asked = cancelRequested ? ' It was asked to give up.' : ''
  const sentence = `It runs on ${hold.worker} for ${span(now - hold.startedAt)}, attempt ${attempts}.${asked}${late}`
  const since = new Date(hold.startedAt)
  return { why: 'running', sentence, facts: { by: hold.worker, since, attempts, cancelRequested } }
}

function scheduled({ job, now }: Standing): Reason | null {
  if (job.state !== 'scheduled') return null
  const until = new Date(job.runAt)
  const last = job.history.at(-1)
  const why = last === undefined ? '' : ` after attempt ${last.attempt} ${endings[last.ending] ?? 'ended'}`
  const wait =
    job.runAt > now ? `, ${span(job.runAt - now)} from now` : '; it is due, and the next sweep makes it ready'
  const error = last?.error === undefined ? {} : { error: last.error }
  const sentence = `It waits until ${until.toISOString()}${why}${wait}.`
  return { why: 'scheduled', sentence, facts: { until, attempts: job.attempts, ...error } }
}

function pausedQueue({ job, queue, now }: Standing): Reason | null {
  const { pausedAt, pausedBy: by } = queue
  if (pausedAt === null) return null
  const sentence = `Queue ${job.queue} is paused${byWhom(by)}, for ${span(now - pausedAt)}.`
  return { why: 'queue-paused', sentence, facts: { since: new Date(pausedAt), by } }
}

function stoppedBatch({ batch, now }: Standing): Reason | null {
  if (batch?.state === 'cancelled') {
    const sentence = `Its batch ${nameOf(batch)} was cancelled, and it will be cancelled soon.`
    return { why: 'batch-cancelled', sentence, facts: { batch: batch.id } }
  }
  if (batch === null || batch.pausedAt === null) return null
  const { id, pausedAt, pausedBy: by } = batch
  const sentence = `Its batch ${nameOf(batch)} is paused${byWhom(by)}, for ${span(now - pausedAt)}.`
  return { why: 'batch-paused', sentence, facts: { batch: id, since: new Date(pausedAt), by } }
}

function keyLimit({ job, key, queue, batch, now }: Standing): Reason | null {
  if (job.state !== 'held') return null
  const limitKey = job.limitKey as string
  if (key === null || hasRoom(key)) {
    const full = fullBatch(batch) ?? takenBatch(batch)
    if (full) return full
    const sentence = `Its key ${limitKey} has room, and the next sweep lets it in.`
    return { why: 'admission', sentence, facts: { limitKey, ...(key && { limit: key.limit, ahead: key.ahead }) } }
  }
  const { limit, admitted, holders, ahead, nextStartAt } = key
  const facts = { limitKey, limit, admitted, holders, ahead }
  const line = ahead === 0 ? '' : `, and ${comeBefore(ahead, 'job of that key', 'jobs of that key')}`
  if (isFull(key)) {
    const who = holders.length === 0 ? '' : ` (${listed(holders, admitted)})`
    const sentence = `Its key ${limitKey} may have ${times(limit.concurrency as number, 'job')} at once${whose(queue.override?.keyLimit?.concurrency)}; ${has(admitted)}${who}${line}.`
    return { why: 'key-concurrency', sentence, facts }
  }
  const until = nextStartAt === null ? {} : { until: new Date(nextStartAt) }
  const sentence = `Its key ${limitKey} may start ${rateOf(limit)}${whose(queue.override?.keyLimit?.rate)}${nextFree(nextStartAt, now)}${line}.`
  return { why: 'key-rate', sentence, facts: { ...facts, ...until } }
}

function queueLimit({ job, queue, now }: Standing): Reason | null {
  const { limit, running: admitted, nextStartAt, override } = queue
  if (job.state !== 'ready' || limit === null) return null
  if (limit.concurrency !== null && admitted >= limit.concurrency) {
    const sentence = `Queue ${job.queue} may run ${times(limit.concurrency, 'job')} at once${whose(override?.limit?.concurrency)}, and ${has(admitted)}.`
    return { why: 'queue-concurrency', sentence, facts: { limit, admitted } }
  }
  if (nextStartAt === null || nextStartAt <= now) return null
  const sentence = `Queue ${job.queue} may start ${rateOf(limit)}${whose(override?.limit?.rate)}${nextFree(nextStartAt, now)}.`
  return { why: 'queue-rate', sentence, facts: { limit, until: new Date(nextStartAt) } }
}

function batchLimit({ job, batch }: Standing): Reason | null {
  return job.state === 'ready' ? fullBatch(batch) : null
}

function fullBatch(batch: BatchRecord | null): Reason | null {
  if (batch === null || batch.concurrency === null) return null
  const { id, concurrency, running: admitted } = batch
  if (admitted < concurrency) return null
  const sentence = `Its batch ${nameOf(batch)} may run ${times(concurrency, 'item')} at once, and ${has(admitted)}.`
  return { why: 'batch-concurrency', sentence, facts: { batch: id, limit: { concurrency, rate: null }, admitted } }
}

/** Items that are ready will take what the batch may start. */
function takenBatch(batch: BatchRecord | null): Reason | null {
  if (batch === null || batch.concurrency === null) return null
  const { id, concurrency, running: admitted, waiting } = batch
  if (waiting <= concurrency - admitted) return null
  const sentence = `Its batch ${nameOf(batch)} may run ${times(concurrency, 'item')} at once, and items that are ready come before it.`
  return { why: 'batch-concurrency', sentence, facts: { batch: id, limit: { concurrency, rate: null }, admitted } }
}

function inLine({ job, ahead: before }: Standing, serving: readonly WorkerInfo[]): Reason {
  const ahead = before ?? 0
  const workers = serving.length
  const facts = { ahead, workers }
  if (workers === 0) {
    const sentence = `No worker for queue ${job.queue} has been heard of within the last minute.`
    return { why: 'no-worker', sentence, facts }
  }
  if (ahead === 0) return { why: 'next', sentence: 'It is ready, and the next that is claimed of its line.', facts }
  const sentence = `It is ready; ${comeBefore(ahead, 'job', 'jobs')}, for ${times(workers, 'worker')}.`
  return { why: 'behind', sentence, facts }
}

const endings: Readonly<Record<string, string>> = {
  failed: 'failed',
  timeout: 'took too long',
  crashed: 'crashed',
  expired: 'was never heard of again',
  snoozed: 'put it off',
}

function isFull({ limit, admitted }: KeyBlockers): boolean {
  return limit.concurrency !== null && admitted >= limit.concurrency
}

/** A limit was raised or taken away, or nobody has looked since room was made. */
function hasRoom(key: KeyBlockers): boolean {
  const { rate } = key.limit
  return !isFull(key) && (rate === null || (key.nextStartAt === null && key.admitted < rate.count))
}

function comeBefore(ahead: number, one: string, many: string): string {
  if (ahead >= bounds.aheadMax) return `at least ${ahead} ${many} come before it`
  return ahead === 1 ? `1 ${one} comes before it` : `${ahead} ${many} come before it`
}

function rateOf({ rate }: Limit): string {
  return rate === null ? 'no more now' : `${times(rate.count, 'job')} in ${span(rate.windowMs)}`
}

/** A limit that is not the definition's. */
function whose(override: Limit[keyof Limit] | undefined): string {
  return override === undefined ? '' : ' (an override by an operator)'
}

function nextFree(at: number | null, now: number): string {
  return at === null || at <= now ? '' : `; the next in ${span(at - now)}`
}

function has(count: number): string {
  return count === 1 ? '1 has it' : `${count} have it`
}

function listed(holders: readonly string[], count: number): string {
  const shown = holders.slice(0, 3).join(', ')
  return count > 3 ? `${shown} and ${count - 3} more` : shown
}

function nameOf({ name, id }: BatchRecord): string {
  return `${name} (${id})`
}

function byWhom(by: string | null): string {
  return by === null ? '' : ` by ${by}`
}

function times(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}
