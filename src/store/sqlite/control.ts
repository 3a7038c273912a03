// What people do to jobs and queues from outside: define, pause, cancel, requeue.

import type { QueueSettings } from '../../job/record.ts'
import { decodeCancel, decodeError, encodePast } from '../../job/stored.ts'
import { cannotCancel, cannotRequeue, notFound, requeueBlocked } from '../refusals.ts'
import type { CancelAnswer, CancelRequest, RequeueAnswer, RequeueFilter } from '../store.ts'
import { isTaken, takeDedup } from './enqueue.ts'
import {
  type EndedPlace,
  end,
  findById,
  type IdleRow,
  idleColumns,
  listReady,
  newest,
  newestFirst,
  place,
  unlist,
} from './job.ts'
import { applyEffects } from './settle.ts'
import type { QueueRow, Transaction } from './transaction.ts'

export function define(tx: Transaction, settings: QueueSettings): true {
  const queue = tx.queue(settings.name)
  queue.retain_done_ms = finite(settings.retainDoneMs)
  queue.retain_dead_ms = finite(settings.retainDeadMs)
  queue.on_dead = settings.onDead
  tx.db.run(
    'update holdfast_queue set retain_done_ms = ?, retain_dead_ms = ?, on_dead = ? where no = ?',
    queue.retain_done_ms,
    queue.retain_dead_ms,
    queue.on_dead,
    queue.no,
  )
  return true
}

/** Nothing would change. */
export function isDefined(tx: Transaction, settings: QueueSettings): boolean {
  const queue = tx.findQueue(settings.name)
  return (
    queue !== undefined &&
    queue.retain_done_ms === finite(settings.retainDoneMs) &&
    queue.retain_dead_ms === finite(settings.retainDeadMs) &&
    queue.on_dead === settings.onDead
  )
}

function finite(ms: number): number | null {
  return Number.isFinite(ms) ? ms : null
}

export function pause(tx: Transaction, { name, paused }: { readonly name: string; readonly paused: boolean }): true {
  const queue = tx.queue(name)
  queue.paused = paused ? 1 : 0
  tx.db.run('update holdfast_queue set paused = ? where no = ?', queue.paused, queue.no)
  if (!paused && queue.ready > 0) tx.wake(name, queue.ready)
  return true
}

export function cancel(tx: Transaction, { id, effects }: CancelRequest): CancelAnswer {
  const job = findById(tx, id)
  if (!job) return notFound(id)
  const queue = tx.queueByNo(job.queue)
  if (job.state === 'running') {
    const requested = decodeCancel(job.cancel)
    const all = effects ? [...requested, effects] : requested
    tx.db.run('update holdfast_job set cancel = ? where seq = ?', JSON.stringify(all), job.seq)
    tx.requestCancel(id)
    return { status: 'requested', enqueued: [] }
  }
  if (job.state !== 'ready' && job.state !== 'scheduled') return cannotCancel(id, job.state)
  return tx.attempt(() => {
    unlist(tx, queue, job)
    end(tx, queue, job, { state: 'cancelled', attempts: job.attempts, result: null, error: null, run: null })
    return { status: 'cancelled', enqueued: effects ? applyEffects(tx, effects) : [] } as const
  })
}

export function requeue(tx: Transaction, id: string): RequeueAnswer {
  const job = findById(tx, id)
  if (!job) return notFound(id)
  if (job.state !== 'dead') return cannotRequeue(id, job.state)
  const heldBy = blockedBy(tx, job)
  if (heldBy === undefined) {
    revive(tx, job)
    return { id }
  }
  return requeueBlocked(id, heldBy)
}

/** Who keeps a dead job from coming back: a younger job that has its id now, or the holder of its dedup key. */
function blockedBy(tx: Transaction, job: IdleRow): string | undefined {
  if (findById(tx, job.id)?.seq !== job.seq) return job.id
  if (job.dedup_scope !== 'live') return undefined
  const slot = tx.db.get<{ seq: number; id: string; until: number | null }>(
    'select seq, id, until from holdfast_dedup where queue = ? and key = ?',
    job.queue,
    job.dedup_key,
  )
  return slot && isTaken(tx, slot) ? slot.id : undefined
}

interface EndedRow {
  readonly attempt: number | null
  readonly worker: string
  readonly started_at: number
  readonly finished_at: number
  readonly ending: 'failed'
  readonly error: string | null
}

function revive(tx: Transaction, job: IdleRow): void {
  const queue = tx.queueByNo(job.queue)
  const ended = tx.db.get<EndedRow>('select * from holdfast_ended where seq = ?', job.seq) as EndedRow
  tx.db.run('delete from holdfast_ended where seq = ?', job.seq)
  tx.count(queue, 'dead', -1)
  const ord = place(tx, false)
  tx.db.run(
    `update holdfast_job
        set attempts = 0, freed = 0, woken = 0, start_before = null, cancel = null, past = ?, ord = ?, run_at = ?
      where seq = ?`,
    ended.attempt === null ? job.past : encodePast(job.past, lastAttempt(ended)),
    ord,
    tx.now,
    job.seq,
  )
  listReady(tx, queue, job.priority, ord, job.seq)
  tx.tell(queue, 'ready', job.id)
  if (job.dedup_scope === 'live') takeDedup(tx, queue, job.dedup_key as string, job.seq, job.id, null)
}

export function lastAttempt(ended: EndedRow) {
  const error = decodeError(ended.error)
  return {
    attempt: ended.attempt as number,
    worker: ended.worker,
    startedAt: ended.started_at,
    endedAt: ended.finished_at,
    ending: ended.ending,
    ...(error && { error }),
  }
}

export interface RequeueChunk {
  readonly filter: RequeueFilter
  readonly dryRun: boolean
  readonly max: number
  /** Where the chunk before stopped. */
  readonly after: RequeueMark | null
}

/** A place among the dead, newest first; jobs that die after the first chunk are not met. */
export interface RequeueMark extends EndedPlace {
  readonly queue: string
}

export interface RequeueChunkAnswer {
  readonly requeued: readonly { readonly id: string; readonly slot: string | null }[]
  readonly skipped: readonly { readonly id: string; readonly slot: string | null; readonly heldBy: string }[]
  readonly after: RequeueMark | null
}

/** One bounded step of `requeueAll`; mass changes go in chunks so that nobody waits behind them. */
export function requeueChunk(tx: Transaction, { filter, dryRun, max, after }: RequeueChunk): RequeueChunkAnswer {
  const requeued: { id: string; slot: string | null }[] = []
  const skipped: { id: string; slot: string | null; heldBy: string }[] = []
  const dead = nextDead(tx, filter, max, after)
  for (const job of dead) {
    const slot = job.dedup_scope === 'live' ? `${job.queue} ${job.dedup_key}` : null
    const heldBy = blockedBy(tx, job)
    if (heldBy !== undefined) skipped.push({ id: job.id, slot, heldBy })
    else {
      requeued.push({ id: job.id, slot })
      if (!dryRun) revive(tx, job)
    }
  }
  const last = dead.at(-1)
  const isLast = dead.length < max || last === undefined
  return { requeued, skipped, after: isLast ? null : { queue: last.name, finishedAt: last.finished_at, seq: last.seq } }
}

interface DeadRow extends IdleRow {
  readonly name: string
  readonly finished_at: number
}

const selectDead = `select ${idleColumns}, q.name, e.finished_at
    from holdfast_ended e
    join holdfast_job j on j.seq = e.seq
    join holdfast_queue q on q.no = j.queue
   where e.shelf = ? and (e.finished_at, e.seq) < (?, ?)
     and e.finished_at >= ? and e.finished_at < ? and instr(iif(json_valid(e.error), e.error ->> 'message', coalesce(e.error, '')), ?) > 0
   order by e.finished_at desc, e.seq desc limit +?`

function nextDead(tx: Transaction, filter: RequeueFilter, max: number, after: RequeueMark | null): DeadRow[] {
  const { diedSince = 0, diedBefore = Number.MAX_SAFE_INTEGER, error = '' } = filter
  const found: DeadRow[] = []
  for (const queue of filteredQueues(tx, filter)) {
    if (queue.dead === 0 || found.length >= max || (after && queue.name < after.queue)) continue
    const from = after?.queue === queue.name ? after : newest
    const dead = tx
      .shelves(queue, 'dead')
      .flatMap(({ no }) =>
        tx.db.all<DeadRow>(selectDead, no, from.finishedAt, from.seq, diedSince, diedBefore, error, max),
      )
      .sort(newestFirst)
    found.push(...dead.slice(0, max - found.length))
  }
  return found
}

function filteredQueues(tx: Transaction, { queue }: RequeueFilter): QueueRow[] {
  if (queue === undefined) return tx.queues()
  const row = tx.findQueue(queue)
  return row ? [row] : []
}
