import type { LeaseRef, Lost, RenewAnswer, RenewRequest } from '../store.ts'
import { parseFence } from './claim.ts'
import type { JobRow } from './job.ts'
import type { SqliteTransaction } from './transaction.ts'

/** A job and the hold on it, as far as a settlement has to know. */
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
  freeReleases: number,
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

const heldColumns = `j.seq, j.id, j.queue, j.priority, j.max_attempts, j.free_releases, j.start_before, j.dedup_key,
    j.dedup_scope, j.idempotency_key, j.cancel, j.past, c.token, c.worker, c.started_at, l.attempt,
    j.woken, j.batch, j.limit_key`

export const selectLeased = `select ${heldColumns}
  from holdfast_lease l
  join holdfast_claim c on c.no = l.claim
  join holdfast_job j on j.seq = l.seq`

const selectLeasedBySeq = `${selectLeased} where l.seq = ?`

const selectLeasedBySeqs = `select ${heldColumns}
  from json_each(?) v
  cross join holdfast_lease l on l.seq = v.value
  cross join holdfast_claim c on c.no = l.claim
  cross join holdfast_job j on j.seq = l.seq`

/** Reads all at once what the settlements of one call will ask for one by one: 1.9 against 2.5 µs each. */
export function readAhead(tx: SqliteTransaction, names: readonly LeaseRef[]): void {
  const seqs = names.map(({ fence }) => parseFence(fence).seq)
  const keys = new Map<number, string[]>()
  for (const tuple of tx.db.allTuples<LeasedTuple>(selectLeasedBySeqs, JSON.stringify(seqs))) {
    const [seq, , queue] = tuple
    tx.ahead.set(seq, tuple)
    if (tuple[18] !== null) push(keys, queue, tuple[18])
  }
  for (const [no, names] of keys) tx.keys.readAhead(tx.queueByNo(no), names)
}

function push<Key, Value>(lists: Map<Key, Value[]>, key: Key, value: Value): void {
  const list = lists.get(key)
  if (list) list.push(value)
  else lists.set(key, [value])
}

/** The job, if this very hold on it still stands. Whether its time has run out does not matter until somebody rescues. */
export function findLeased(tx: SqliteTransaction, { id, fence }: LeaseRef): LeasedRow | undefined {
  const { token, seq } = parseFence(fence)
  const tuple = tx.ahead.get(seq) ?? tx.db.getTuple<LeasedTuple>(selectLeasedBySeq, seq)
  tx.ahead.delete(seq) // what was read ahead is true once: this call may end the hold
  return tuple && tuple[12] === token && tuple[1] === id ? toLeasedJob(tuple) : undefined
}

export function allLeased(tx: SqliteTransaction, sql: string, ...values: number[]): LeasedRow[] {
  return tx.db.allTuples<LeasedTuple>(sql, ...values).map(toLeasedJob)
}

function toLeasedJob(t: LeasedTuple): LeasedRow {
  return {
    seq: t[0],
    id: t[1],
    queue: t[2],
    priority: t[3],
    max_attempts: t[4],
    free_releases: t[5],
    start_before: t[6],
    dedup_key: t[7],
    dedup_scope: t[8],
    idempotency_key: t[9],
    cancel: t[10],
    past: t[11],
    token: t[12],
    worker: t[13],
    started_at: t[14],
    attempt: t[15],
    woken: t[16],
    batch: t[17],
    limit_key: t[18],
  }
}

export function readCancelRequested(tx: SqliteTransaction, hold: LeaseRef): boolean {
  return (findLeased(tx, hold)?.cancel ?? null) !== null
}

export function renew(tx: SqliteTransaction, request: RenewRequest): Exclude<RenewAnswer, { refused: unknown }> | Lost {
  const held = findLeased(tx, request)
  if (!held) return 'lost'
  const expiresAt = tx.now + request.leaseMs
  tx.db.run(
    'update holdfast_lease set expires_at = ?, lease_ms = ? where seq = ?',
    expiresAt,
    request.leaseMs,
    held.seq,
  )
  return { expiresAt, cancelRequested: held.cancel !== null }
}
