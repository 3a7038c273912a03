import type { LeaseRef, Lost, RenewAnswer, RenewRequest } from '../store.ts'
import { parseFence } from './claim.ts'
import type { JobRow } from './job.ts'
import type { SqliteTransaction } from './transaction.ts'

/** A job and its lease, as far as a settlement needs them. */
export interface LeasedRow extends JobRow {
  readonly token: string
  readonly worker: string
  readonly started_at: number
  readonly attempt: number
  readonly woken: number
}

export type LeasedTuple = readonly [
  seq: number,
  id: string,
  queue: number,
  priority: number,
  max_attempts: number,
  free_releases: number,
  start_before: number | null,
  dedup_key: string | null,
  dedup_scope: string | null,
  idempotency_key: string | null,
  cancel: string | null,
  past: string | null,
  token: string,
  worker: string,
  started_at: number,
  attempt: number,
  woken: number,
  batch: number,
  limit_key: string | null,
]

/** Positions in a `LeasedTuple`. */
const column = { seq: 0, id: 1, queue: 2, token: 12, limit_key: 18 } as const

const leasedColumns = `j.seq, j.id, j.queue, j.priority, j.max_attempts, j.free_releases, j.start_before, j.dedup_key,
    j.dedup_scope, j.idempotency_key, j.cancel, j.past, c.token, c.worker, c.started_at, l.attempt,
    j.woken, j.batch, j.limit_key`

export const selectLeased = `select ${leasedColumns}
  from holdfast_lease l
  join holdfast_claim c on c.no = l.claim
  join holdfast_job j on j.seq = l.seq`

const selectLeasedBySeq = `${selectLeased} where l.seq = ?`

const selectLeasedBySeqs = `select ${leasedColumns}
  from json_each(?) v
  cross join holdfast_lease l on l.seq = v.value
  cross join holdfast_claim c on c.no = l.claim
  cross join holdfast_job j on j.seq = l.seq`

/** Reads the rows that the settlements of one call will need one by one: 1.9 against 2.5 µs each. */
export function readAhead(tx: SqliteTransaction, names: readonly LeaseRef[]): void {
  const seqs = names.map(({ fence }) => parseFence(fence).seq)
  const keys = new Map<number, string[]>()
  for (const tuple of tx.db.allTuples<LeasedTuple>(selectLeasedBySeqs, JSON.stringify(seqs))) {
    const limitKey = tuple[column.limit_key]
    tx.ahead.set(tuple[column.seq], tuple)
    if (limitKey !== null) push(keys, tuple[column.queue], limitKey)
  }
  for (const [no, names] of keys) tx.keys.readAhead(tx.queueByNo(no), names)
}

function push<Key, Value>(lists: Map<Key, Value[]>, key: Key, value: Value): void {
  const list = lists.get(key)
  if (list) list.push(value)
  else lists.set(key, [value])
}

/** The job, if it still has this very lease. An expired lease counts until a sweep rescues the job. */
export function findLeased(tx: SqliteTransaction, { id, fence }: LeaseRef): LeasedRow | undefined {
  const { token, seq } = parseFence(fence)
  const tuple = tx.ahead.get(seq) ?? tx.db.getTuple<LeasedTuple>(selectLeasedBySeq, seq)
  tx.ahead.delete(seq) // used once: this call may end the lease
  return tuple && tuple[column.token] === token && tuple[column.id] === id ? toLeasedJob(tuple) : undefined
}

export function allLeased(tx: SqliteTransaction, sql: string, ...values: (number | string)[]): LeasedRow[] {
  return tx.db.allTuples<LeasedTuple>(sql, ...values).map(toLeasedJob)
}

function toLeasedJob(tuple: LeasedTuple): LeasedRow {
  const [
    seq,
    id,
    queue,
    priority,
    max_attempts,
    free_releases,
    start_before,
    dedup_key,
    dedup_scope,
    idempotency_key,
    cancel,
    past,
    token,
    worker,
    started_at,
    attempt,
    woken,
    batch,
    limit_key,
  ] = tuple
  return {
    seq,
    id,
    queue,
    priority,
    max_attempts,
    free_releases,
    start_before,
    dedup_key,
    dedup_scope,
    idempotency_key,
    cancel,
    past,
    token,
    worker,
    started_at,
    attempt,
    woken,
    batch,
    limit_key,
  }
}

export function readCancelRequested(tx: SqliteTransaction, lease: LeaseRef): boolean {
  return (findLeased(tx, lease)?.cancel ?? null) !== null
}

export function renew(tx: SqliteTransaction, request: RenewRequest): Exclude<RenewAnswer, { refused: unknown }> | Lost {
  const leased = findLeased(tx, request)
  if (!leased) return 'lost'
  const expiresAt = tx.now + request.leaseMs
  tx.db.run(
    'update holdfast_lease set expires_at = ?, lease_ms = ? where seq = ?',
    expiresAt,
    request.leaseMs,
    leased.seq,
  )
  return { expiresAt, cancelRequested: leased.cancel !== null }
}
