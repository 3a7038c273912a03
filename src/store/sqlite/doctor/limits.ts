// Checks of limits and batches: jobs that are held though their key has a free slot, miscounted keys and batches, and ready items
// that no lane leads to.

import { counted, few, fine, repaired, wrong } from '../../findings.ts'
import type { ExamineRequest, Finding } from '../../store.ts'
import type { SqliteTransaction } from '../transaction.ts'

const keysMax = 1_000

interface KeyName {
  readonly queue: number
  readonly key: string
}

/** Keys that have had a free slot and held jobs for longer than `patienceMs`, and keys that are miscounted. */
export function heldBack(tx: SqliteTransaction, request: ExamineRequest): Finding[] {
  const late = findHeldBack(tx, request.patienceMs)
  if (late.length > 0) {
    const sentence = `Jobs of ${counted(late.length, 'limit key')} are held though a slot is free (${few(late.map(({ key }) => key))}): no process sweeps.`
    const fix = 'Start a worker: every worker sweeps. holdfast sweep does it once.'
    return [wrong('jobs-held-back', sentence, fix, { keys: late.map(({ key }) => key) })]
  }
  const off = findMiscountedKeys(tx)
  if (off.length > 0) {
    const keys = off.map(({ key }) => key)
    const sentence = `The counts of ${counted(keys.length, 'limit key')} differ from a recount (${few(keys)}).`
    return [wrong('jobs-held-back', sentence, 'holdfast doctor --fix corrects them.', { keys })]
  }
  return [fine('jobs-held-back', 'Jobs are held only where their limit key has no free slot.')]
}

function findHeldBack(tx: SqliteTransaction, patienceMs: number): KeyName[] {
  const select = 'select queue, key from holdfast_key where has_line = 1 and due_at is not null and due_at < ? limit +?'
  return tx.db.all<KeyName>(select, tx.now - patienceMs, keysMax)
}

/** Up to so many live jobs, keys and batches are recounted. */
const recountMax = 200_000

interface KeyCounts extends KeyName {
  readonly admitted: number
  readonly running: number
}

function findMiscountedKeys(tx: SqliteTransaction): KeyCounts[] {
  if (isTooLarge(tx)) return []
  return tx.db.all<KeyCounts>(
    `with has (queue, key, state) as (
       select queue, key, 'held' from holdfast_held
       union all select j.queue, j.limit_key, 'ready' from holdfast_ready r join holdfast_job j on j.seq = r.seq
                  where j.limit_key is not null
       union all select j.queue, j.limit_key, 'running' from holdfast_lease l join holdfast_job j on j.seq = l.seq
                  where j.limit_key is not null
     ), counts (queue, key, admitted, running, has_line) as (
       select h.queue, h.key, sum(h.state <> 'held'), sum(h.state = 'running' and q.key_max_starts is not null),
              max(h.state = 'held')
         from has h join holdfast_queue q on q.no = h.queue group by h.queue, h.key
     )
     select c.queue, c.key, c.admitted, c.running
       from counts c left join holdfast_key k on k.queue = c.queue and k.key = c.key
      where (k.admitted, k.running) is not (c.admitted, c.running) or c.has_line > k.has_line
     union all
     select k.queue, k.key, 0, 0 from holdfast_key k
      where not exists (select 1 from counts c where c.queue = k.queue and c.key = k.key)
     limit ${keysMax}`,
  )
}

function isTooLarge(tx: SqliteTransaction): boolean {
  const sum = 'select coalesce(sum(held + scheduled + ready + running), 0) as jobs from holdfast_queue'
  return (tx.db.get<{ jobs: number }>(sum)?.jobs ?? 0) > recountMax
}

export function recountKeys(tx: SqliteTransaction): Finding[] {
  tx.applyConsequences()
  tx.keys.flush()
  const off = findMiscountedKeys(tx)
  for (const { queue, key, admitted, running } of off) {
    tx.keys.correct(tx.queueByNo(queue), key, { admitted, running })
  }
  if (off.length === 0) return []
  const keys = off.map(({ key }) => key)
  return [repaired('jobs-held-back', `The counts of ${few(keys)} are right again.`, { keys })]
}

interface BatchCounts {
  readonly no: number
  readonly id: string
  readonly waiting: number
  readonly ready: number
  readonly running: number
  readonly done: number
  readonly dead: number
  readonly cancelled: number
}

/** Ended items may have been pruned. So the count of ended items is right if it is at least the number found. */
function findMiscountedBatches(tx: SqliteTransaction): BatchCounts[] {
  if (isTooLarge(tx)) return []
  return tx.db.all<BatchCounts>(
    `with items (batch, state) as (
       select j.batch, case when s.no is not null then s.state when l.seq is not null then 'running'
                            when j.held = 0 and j.ord is not null then 'ready' else 'waiting' end
         from holdfast_job j
         left join holdfast_lease l on l.seq = j.seq
         left join holdfast_ended e on e.seq = j.seq
         left join holdfast_retention_class s on s.no = e.retention_class
        where j.batch > 0
     ), counts as (
       select b.no, b.id, coalesce(sum(i.state in ('waiting', 'ready')), 0) as waiting,
              coalesce(sum(i.state = 'ready'), 0) as ready, coalesce(sum(i.state = 'running'), 0) as running,
              max(b.done, coalesce(sum(i.state = 'done'), 0)) as done,
              max(b.dead, coalesce(sum(i.state = 'dead'), 0)) as dead,
              max(b.cancelled, coalesce(sum(i.state = 'cancelled'), 0)) as cancelled
         from holdfast_batch b left join items i on i.batch = b.no group by b.no
     )
     select c.* from counts c join holdfast_batch b on b.no = c.no
      where (b.waiting, b.ready, b.running, b.done, b.dead, b.cancelled) <> (c.waiting, c.ready, c.running, c.done, c.dead, c.cancelled)
      limit ${keysMax}`,
  )
}

/** Ready items without a lane: no claim finds them. */
function findUnreachable(
  tx: SqliteTransaction,
): { readonly batch: number; readonly queue: number; readonly priority: number }[] {
  return tx.db.all(
    `select distinct r.batch, r.queue, r.priority from holdfast_ready r
      where r.batch > 0
        and not exists (select 1 from holdfast_lane l
                         where l.batch = r.batch and l.queue = r.queue and l.priority = r.priority)
      limit ${keysMax}`,
  )
}

export function batchesMiscounted(tx: SqliteTransaction): Finding[] {
  const off = findMiscountedBatches(tx).map(({ id }) => id)
  const unreachable = isTooLarge(tx) ? [] : findUnreachable(tx)
  if (off.length > 0) {
    const sentence = `The counts of ${counted(off.length, 'batch', 'batches')} differ from a recount (${few(off)}).`
    return [wrong('batches', sentence, 'holdfast doctor --fix corrects them.', { batches: off })]
  }
  if (unreachable.length > 0) {
    const sentence = `Items of ${counted(unreachable.length, 'batch', 'batches')} are ready in no lane, so no claim finds them.`
    return [wrong('batches', sentence, 'holdfast doctor --fix opens them.', { lanes: unreachable })]
  }
  return [fine('batches', 'Batches count their items right.')]
}

export function recountBatches(tx: SqliteTransaction): Finding[] {
  tx.applyConsequences()
  tx.batches.flush()
  const off = findMiscountedBatches(tx)
  for (const { no, waiting, ready, running, done, dead, cancelled } of off) {
    const row = tx.batches.get(no)
    if (!row) continue
    Object.assign(row, { waiting, ready, running, done, dead, cancelled })
    tx.batches.touch(row)
  }
  for (const { batch, queue, priority } of findUnreachable(tx)) tx.batches.openLane(batch, queue, priority)
  if (off.length === 0) return []
  const ids = off.map(({ id }) => id)
  return [repaired('batches', `The counts of ${few(ids)} are right again.`, { batches: ids })]
}
