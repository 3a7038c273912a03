// Reads of single jobs and of counts. Listings are in `find.ts`.

import { byteLength } from '../../job/codec.ts'
import { summaryOf } from '../../job/error.ts'
import { decodeLabels } from '../../job/labels.ts'
import type { Attempt, EndState, FoundJob, IncludedPart, JobOutcome, JobRecord, JobState } from '../../job/record.ts'
import { decodeAnnotations, decodeChanges, decodeError, decodePast } from '../../job/stored.ts'
import { remember } from '../../job/transition.ts'
import { Page } from '../page.ts'
import { encodeCursor } from '../page-cursor.ts'
import type { JobsPage, QueueStats } from '../store.ts'
import { lastAttempt } from './control.ts'
import { readOverrides } from './define.ts'
import { findById } from './job.ts'
import { keyLimitOf, limitOf, type QueueRow } from './queue.ts'
import type { SqliteTransaction } from './transaction.ts'

interface RecordRow {
  readonly id: string
  readonly name: string
  readonly priority: number
  readonly ord: number | null
  readonly run_at: number
  readonly attempts: number
  readonly max_attempts: number
  readonly created_at: number
  readonly start_before: number | null
  readonly timeout_ms: number | null
  readonly dedup_key: string | null
  readonly idempotency_key: string | null
  readonly limit_key: string | null
  readonly held: number
  readonly batch_id: string | null
  readonly cancel: string | null
  readonly past: string | null
  readonly headers: string | null
  readonly payload: string
  readonly labels: string | null
  readonly parent_id: string | null
  readonly parent_step: string
  readonly has_journal: number | null
  readonly payload_bytes: number
  readonly headers_bytes: number
  readonly result_bytes: number
  readonly history_bytes: number
  readonly lease_attempt: number | null
  readonly lease_expires_at: number
  readonly lease_worker: string
  readonly lease_started_at: number
  readonly progress: number | null
  readonly progress_message: string | null
  readonly progress_at: number
  readonly state: JobState | null
  readonly ended_attempts: number
  readonly attempt: number | null
  readonly worker: string
  readonly started_at: number
  readonly ending: 'failed'
  readonly finished_at: number
  readonly result: string | null
  readonly error: string | null
  readonly annotations: string | null
  readonly error_group: string | null
}

export function readJob(tx: SqliteTransaction, id: string): JobRecord | null {
  const found = findById(tx, id)
  return (found && readRecord(tx, found.seq)) ?? null
}

export function readOutcomes(tx: SqliteTransaction, ids: readonly string[]): (JobOutcome | 'live' | null)[] {
  const page = new Page<JobOutcome | 'live' | null>(ids.length)
  for (const id of ids) {
    const { outcome, bytes } = readOutcome(tx, id)
    if (!page.add(outcome, bytes)) break
  }
  return page.entries
}

interface ReadOutcome {
  readonly outcome: JobOutcome | 'live' | null
  readonly bytes: number
}

function readOutcome(tx: SqliteTransaction, id: string): ReadOutcome {
  const found = findById(tx, id)
  if (!found) return { outcome: null, bytes: 0 }
  const ended = tx.db.get<Pick<RecordRow, 'ended_attempts' | 'result' | 'error'>>(
    'select attempts as ended_attempts, result, error from holdfast_ended where seq = ?',
    found.seq,
  )
  if (!ended) return { outcome: 'live', bytes: 0 }
  const { ended_attempts: attempts, result, error } = ended
  const outcome = { state: found.state as EndState, attempts, result, error: decodeError(error) }
  return { outcome, bytes: Buffer.byteLength(result ?? '') + Buffer.byteLength(error ?? '') }
}

/** Undefined if a list names a job that has no row. */
export function readRecord(tx: SqliteTransaction, seq: number): JobRecord | undefined {
  const row = readRow(tx, seq, allParts)
  return row && toRecord(row)
}

export const allParts: readonly IncludedPart[] = ['payload', 'headers', 'result', 'history', 'error']

/** Reads a job with only these of its long texts. Its size is known without reading a text. */
function readRow(tx: SqliteTransaction, seq: number, parts: readonly IncludedPart[]): RecordRow | undefined {
  const [payload, headers, result, history] = allParts.map((part) => (parts.includes(part) ? 1 : 0))
  return tx.db.get<RecordRow>(
    `select j.id, j.priority, j.ord, j.run_at, j.attempts, j.max_attempts, j.created_at, j.start_before, j.timeout_ms,
            j.dedup_key, j.idempotency_key, j.limit_key, j.held, iif(j.cancel is null, null, '') as cancel,
            iif(?2, j.payload, '') as payload, iif(?3, j.headers, null) as headers, iif(?4, e.result, null) as result,
            iif(?5, j.past, null) as past, octet_length(j.payload) as payload_bytes,
            coalesce(octet_length(j.headers), 0) as headers_bytes, coalesce(octet_length(e.result), 0) as result_bytes,
            coalesce(octet_length(j.past), 0) as history_bytes, q.name, l.attempt as lease_attempt, l.expires_at as lease_expires_at, c.worker as lease_worker,
            c.started_at as lease_started_at, l.progress, l.progress_message, l.progress_at, s.state, e.attempts as ended_attempts, e.attempt, e.worker, e.started_at,
            e.ending, e.finished_at, e.error, e.annotations, e.error_group, b.id as batch_id, t.labels,
            h.parent_id, h.step as parent_step, o.seq as has_journal
       from holdfast_job j
       join holdfast_queue q on q.no = j.queue
       left join holdfast_lease l on l.seq = j.seq
       left join holdfast_claim c on c.no = l.claim
       left join holdfast_ended e on e.seq = j.seq
       left join holdfast_retention_class s on s.no = e.retention_class
       left join holdfast_labelled t on t.seq = j.seq
       left join holdfast_batch b on b.no = j.batch and b.is_deleted = 0
       left join holdfast_child h on h.seq = j.seq
       left join holdfast_journal o on o.seq = j.seq
      where j.seq = ?1`,
    ...[seq, payload as number, headers as number, result as number, history as number],
  )
}

/** A job as a listing has it. */
function toFound(row: RecordRow, parts: readonly IncludedPart[]): FoundJob {
  const { payload, headers, result, history, changes, error, ...rest } = toRecord(row)
  return {
    ...rest,
    error: error && (parts.includes('error') ? error : summaryOf(error)),
    payloadBytes: row.payload_bytes,
    headersBytes: row.headers_bytes,
    resultBytes: row.result_bytes,
    historyBytes: row.history_bytes,
    ...(parts.includes('payload') && { payload }),
    ...(parts.includes('headers') && { headers }),
    ...(parts.includes('result') && { result }),
    ...(parts.includes('history') && { history, changes }),
  }
}

/** A job of a listing, and the bytes of its texts. Undefined if a list names a job that has no row. */
export function readFound(
  tx: SqliteTransaction,
  seq: number,
  parts: readonly IncludedPart[],
): { readonly job: FoundJob; readonly bytes: number } | undefined {
  const row = readRow(tx, seq, parts)
  return row && { job: toFound(row, parts), bytes: bytesOf(row) }
}

function toRecord(row: RecordRow): JobRecord {
  const isRunning = row.lease_attempt !== null
  return {
    id: row.id,
    queue: row.name,
    state: row.state ?? (isRunning ? 'running' : waitingState(row)),
    priority: row.priority,
    attempts: row.state ? row.ended_attempts : (row.lease_attempt ?? row.attempts),
    maxAttempts: row.max_attempts,
    timeoutMs: row.timeout_ms,
    createdAt: row.created_at,
    runAt: row.run_at,
    startBefore: row.start_before,
    dedupKey: row.dedup_key,
    idempotencyKey: row.idempotency_key,
    payload: row.payload,
    headers: row.headers,
    hold: isRunning
      ? { worker: row.lease_worker, startedAt: row.lease_started_at, expiresAt: row.lease_expires_at }
      : null,
    progress:
      row.progress === null ? null : { value: row.progress, message: row.progress_message, at: row.progress_at },
    cancelRequested: row.cancel !== null,
    finishedAt: row.state ? row.finished_at : null,
    result: row.result,
    error: decodeError(row.error),
    annotations: decodeAnnotations(row.annotations),
    errorGroup: row.error_group,
    limitKey: row.limit_key || null,
    labels: decodeLabels(row.labels),
    batch: row.batch_id,
    parent: row.parent_id === null ? null : { id: row.parent_id, step: row.parent_step },
    hasJournal: row.has_journal !== null,
    history: historyOf(row),
    changes: decodeChanges(row.past),
  }
}

function waitingState({ held, ord }: RecordRow): JobState {
  if (held === 1) return 'held'
  return ord === null ? 'scheduled' : 'ready'
}

function historyOf(row: RecordRow): Attempt[] {
  const past = decodePast(row.past)
  return row.attempt === null ? past : remember(past, lastAttempt(row))
}

/** A job of a page, and the mark of the page that ends with it. */
export interface Listed<Position> {
  /** Undefined: a list names a job that has no row. */
  readonly record: JobRecord | undefined
  readonly mark: Position
}

/** Reads a job into the page. False: it belongs to the next page. */
export function addRecord<Position>(
  tx: SqliteTransaction,
  page: Page<Listed<Position>>,
  seq: number,
  mark: Position,
): boolean {
  if (page.hasAll) return page.add({ record: undefined, mark }, 0) // the next page reads it
  const row = readRow(tx, seq, allParts)
  return page.add({ record: row && toRecord(row), mark }, row ? bytesOf(row) : 0)
}

export function toJobsPage<Position extends readonly (string | number)[]>({
  entries,
  isCut,
}: Page<Listed<Position>>): JobsPage {
  const last = entries.at(-1)
  return {
    jobs: entries.map(({ record }) => record).filter((job) => job !== undefined),
    next: isCut && last ? encodeCursor(last.mark) : null,
  }
}

function bytesOf({ payload, headers, cancel, past, result, error, annotations, labels }: RecordRow): number {
  const texts = [payload, headers, cancel, past, result, error, annotations, labels]
  return texts.reduce((sum, text) => sum + (text === null ? 0 : byteLength(text)), 0)
}

export function readStats(tx: SqliteTransaction): QueueStats[] {
  const overrides = readOverrides(tx)
  return tx.queues().map((queue) => {
    const { held, scheduled, ready, running, done, dead, cancelled } = queue
    return {
      queue: queue.name,
      paused: queue.paused_at !== null,
      pausedAt: queue.paused_at,
      pausedBy: queue.paused_by,
      pausedUntil: queue.paused_until,
      counts: { held, scheduled, ready, running, done, dead, cancelled },
      oldestWaitingMs: ready === 0 ? null : tx.now - oldestReadyAt(tx, queue),
      limit: limitOf(queue),
      keyLimit: keyLimitOf(queue),
      override: overrides.get(queue.no) ?? null,
    }
  })
}

interface Lane {
  readonly batch: number
  readonly priority: number
}

const lanesMax = 1_000

/**
 * A lane has a front part (negative places) and a back part, and the first job of each part is its oldest: a few seeks a lane.
 */
function oldestReadyAt(tx: SqliteTransaction, queue: QueueRow): number {
  const select = 'select batch, priority from holdfast_lane where queue = ? order by batch limit +?'
  const lanes = [...plainLanes, ...tx.db.all<Lane>(select, queue.no, lanesMax)]
  let oldest = tx.now
  for (const { batch, priority } of lanes) {
    for (const from of [Number.MIN_SAFE_INTEGER, 0]) {
      const head = tx.db.get<{ run_at: number }>(
        `select j.run_at from holdfast_ready r join holdfast_job j on j.seq = r.seq
          where r.queue = ? and r.batch = ? and r.priority = ? and r.ord >= ? order by r.ord limit 1`,
        queue.no,
        batch,
        priority,
        from,
      )
      if (head && head.run_at < oldest) oldest = head.run_at
    }
  }
  return oldest
}

const plainLanes: readonly Lane[] = Array.from({ length: 10 }, (_, priority) => ({ batch: 0, priority }))
