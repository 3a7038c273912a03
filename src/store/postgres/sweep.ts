// Sweep. Its transactions do not wait for the disk: one that is lost in a crash is done again by the next sweep. Each part is
// bounded by `max`.
//
// OVERDUE. Jobs that missed their `startBefore` are cancelled in a transaction of their own, because it needs lane locks. In
// the transaction of the rescues, claims of those lanes would wait while a rescue waits for a row, or runs the effects of a
// cancel request. If a lane's lock is not free within 200 ms, its jobs are left to the next sweep.
//
// BUSY LANES. A rescued job that dies, or is cancelled, may enqueue others: a death notice, follow-ups. A sweep never waits for
// their lanes (`lanes.ts`). If one is busy, the job is left out: it keeps its lease for another 200 ms, and a later sweep tries
// again. Everything else is swept.
//
// REFUSED COMMITS. Effects of a cancel request may contain statements that the server refuses to commit
// (`statement-policy.ts`). Then each rescue is a transaction of its own, so that one bad statement keeps no other job from
// being rescued. The other parts follow in another transaction.

import type { DroppedNotice } from '../../job/death.ts'
import { overdueError } from '../../job/error.ts'
import { encodeError } from '../../job/stored.ts'
import type { ExpiredLease, SweepReport, SweepRequest, UndeliverableJob } from '../store.ts'
import { sweepBatches } from './batch/batch-end.ts'
import { list, texts } from './connection/columns.ts'
import type { Database, PgTransaction } from './connection/database.ts'
import { CommitRefused, isCollision, withRetry } from './connection/failures.ts'
import type { StoreContext } from './enqueue.ts'
import type { AskForLanes, Lanes } from './lanes.ts'
import { type LeasedJob, toLeasedJob } from './leased-job.ts'
import { admitPending, type LimitEventList } from './limits/admit.ts'
import { lowerLimits } from './limits/lower.ts'
import { pruneProgress } from './progress.ts'
import { repairRestored } from './schema/check-restored.ts'
import { keepPartitions } from './schema/partitions.ts'
import { lanesToRescue, SettlementWriter } from './settlement-writer.ts'
import { inOwnTransaction, type StatementPolicy, sharedTransaction } from './statement-policy.ts'

const upkeepEveryMs = 60_000
const lookBackMs = 5_000
const fullEveryMs = 60_000
const batchesEveryMs = 5_000
const definitionsEveryMs = 5_000
/** A sweep is made so often also if nothing is found to be due (`schema/functions/sweep-due.ts`). */
const sweepAnywayMs = 30_000
/** How long a sweep waits for the lock of a lane; claims have it for a few milliseconds. */
const laneMaxMs = 200
/** How much later a rescue that was left out is tried again. */
const leftOutMs = 200
/** How far ahead the next due time is looked for. Processes that wait sweep more often than this anyway. */
const horizonMs = 2_000
const farOff = Number.MAX_SAFE_INTEGER
/** The least number of limit events that a sweep reads: many may be of the same key, and most need no work. */
const limitEventsMin = 200

export class Sweeps {
  readonly #context: StoreContext
  #upkeepAt = 0
  /** The time of the last sweep that left nothing. */
  #sweptUntil = 0
  /** When the next sweep begins at time 0 again. */
  #fullAt = 0
  /** All limit events of transactions before this one have been taken. */
  #limitEventsFrom = '0'
  #allLimitEventsAt = 0
  #allBatchesAt = 0
  #definitionsAt = 0
  #anywayAt = 0
  /** The last batch number that this round has checked; null: the round is over. */
  #batchesFrom: number | null = null

  constructor(context: StoreContext) {
    this.#context = context
  }

  /** Called when a queue's retention may have changed: the next sweep makes its partitions. */
  expectUpkeep(): void {
    this.#upkeepAt = 0
  }

  async sweep({ max }: SweepRequest): Promise<SweepReport> {
    await this.#restoreDefinitions()
    const idle = await this.#lookIfIdle()
    if (idle !== null) return idle
    this.#anywayAt = performance.now() + sweepAnywayMs
    const isFull = this.#db.now !== null || performance.now() >= this.#fullAt
    const swept = await this.#sweepJobs(max, (now) => this.#from(now, isFull))
    const { report, ready, batches: ended, droppedNotices, undeliverable } = swept
    if (isFull) this.#fullAt = performance.now() + fullEveryMs
    if (!report.more) this.#sweptUntil = report.now
    this.#context.announce(ready)
    await this.#context.afterCommit({ batches: ended, droppedNotices, undeliverable })
    const { admitted, tookAll } = await this.#admit(Math.max(max, limitEventsMin))
    const pruneMax = Math.max(0, max - report.pruned)
    const batches = await sweepBatches(this.#context, { max, pruneMax, from: this.#fromBatch() })
    this.#batchesFrom = batches.next
    const dropped = await this.#keepUp()
    batches.throwFailure()
    return {
      ...report,
      admitted,
      pruned: report.pruned + dropped + batches.pruned,
      more: report.more || admitted >= max || !tookAll || batches.more,
    }
  }

  /** Looks whether anything is to be swept; null: it is, or may be. Under a clock of its own the store always sweeps. */
  async #lookIfIdle(): Promise<SweepReport | null> {
    const at = performance.now()
    const isDueByTime = at >= Math.min(this.#anywayAt, this.#fullAt, this.#upkeepAt, this.#allLimitEventsAt)
    if (this.#db.now !== null || isDueByTime || this.#batchesFrom !== null) return null
    const from = Math.max(0, this.#sweptUntil - lookBackMs)
    const areBatchesDue = at >= this.#allBatchesAt
    const values = [from, this.#limitEventsFrom, areBatchesDue, horizonMs]
    const [row] = await this.#db.query('select * from holdfast.sweep_due($1, $2::text::xid8, $3, $4)', values)
    const [now, isDue, nextDue] = row ?? []
    if (isDue !== 'f' || Number(now) < this.#sweptUntil) return null // the clock may have been set back
    this.#sweptUntil = Number(now)
    if (areBatchesDue) this.#allBatchesAt = at + batchesEveryMs
    return { ...nothingSwept, nextDueAt: nextDue == null ? null : Number(nextDue), now: Number(now) }
  }

  async #sweepJobs(max: number, from: From): Promise<Swept> {
    const first = await this.#rescueFirst(max, from)
    const { rescued } = first
    const overdue = first.rest === null ? await this.#cancelOverdue(max) : 0
    const rest = first.rest ?? (await this.#inOne((tx) => sweepRest(tx, { max, from })))
    const { promoted, pruned, starts, now } = rest
    const counts = { rescued: rescued.expired.length, promoted, overdue, pruned }
    const more = [...Object.values(counts), starts, rescued.found].some((count) => count >= max)
    // If a lane or a row was locked, its jobs are still due. The next sweep comes a little later, so that the lock may be
    // released.
    const isLeft = rest.isOverdue && overdue === 0 && rest.nextDueAt !== null && rest.nextDueAt <= now
    const nextDueAt = isLeft ? now + laneMaxMs : rest.nextDueAt
    return {
      report: { ...counts, admitted: 0, expired: rescued.expired, more, nextDueAt, now },
      ready: sumOf([rescued.ready, rest.ready]),
      batches: rescued.batches,
      droppedNotices: rescued.droppedNotices,
      undeliverable: rescued.undeliverable,
    }
  }

  /**
   * Sweeps in one transaction. `rest` is null if jobs have missed their start, or the server refuses to commit the transaction.
   */
  async #rescueFirst(max: number, from: From): Promise<{ readonly rescued: Rescued; readonly rest: SweptRest | null }> {
    try {
      return await this.#inOne(async (tx, ask) => {
        const rescued = await rescueExpired(
          tx,
          { lanes: this.#context.lanes, ask, policy: sharedTransaction },
          { max, from },
        )
        const [row] = await tx.query(selectOverdue, [tx.now])
        return { rescued, rest: row?.[0] === 't' ? null : await sweepRest(tx, { max, from }) }
      })
    } catch (error) {
      if (!(error instanceof CommitRefused)) throw error
      return { rescued: await this.#rescueOneByOne(max, from), rest: null }
    }
  }

  async #rescueOneByOne(max: number, from: From): Promise<Rescued> {
    const rescues: Rescued[] = []
    while (rescues.length < max) {
      const rescued = await inOwnTransaction((policy) =>
        this.#inOne((tx, ask) => rescueExpired(tx, { lanes: this.#context.lanes, ask, policy }, { max: 1, from })),
      )
      if (rescued.found === 0) break
      rescues.push(rescued)
    }
    return {
      found: rescues.length,
      expired: rescues.flatMap(({ expired }) => expired),
      ready: sumOf(rescues.map(({ ready }) => ready)),
      batches: [...new Set(rescues.flatMap(({ batches }) => batches))],
      droppedNotices: rescues.flatMap(({ droppedNotices }) => droppedNotices),
      undeliverable: rescues.flatMap(({ undeliverable }) => undeliverable),
    }
  }

  /** Answers how many were cancelled: none, if the lock of some lane was not free. */
  async #cancelOverdue(max: number): Promise<number> {
    try {
      return await this.#db.transactLightly(
        async (tx) => {
          await tx.query(`select set_config('lock_timeout', $1, true)`, [`${laneMaxMs}ms`])
          await tx.readClock()
          return await cancelOverdue(tx, max)
        },
        { failFast: true },
      )
    } catch (error) {
      if (!isCollision(error)) throw error
      return 0
    }
  }

  #inOne<T>(work: (tx: PgTransaction, ask: AskForLanes) => Promise<T>): Promise<T> {
    return this.#context.lanes.withLanesNow((ask) => this.#db.transactLightly((tx) => work(tx, ask)))
  }

  /**
   * If a process died after it settled the last item of a batch, and before it checked whether the batch is finished, this
   * finds the batch: open batches are checked in rounds, some of them in each sweep.
   */
  #fromBatch(): number | null {
    if (this.#batchesFrom !== null) return this.#batchesFrom
    if (this.#db.now === null && performance.now() < this.#allBatchesAt) return null
    this.#allBatchesAt = performance.now() + batchesEveryMs
    return 0
  }

  /**
   * Admits jobs for limit events that are left over: those of callers' own transactions, and of processes that died after their
   * commit. `tookAll`: there were no more events than this call has read.
   */
  async #admit(max: number): Promise<{ readonly admitted: number; readonly tookAll: boolean }> {
    const isFull = this.#db.now !== null || performance.now() >= this.#allLimitEventsAt
    const from = isFull ? '0' : this.#limitEventsFrom
    const [row] = await this.#db.query('select * from holdfast.pending_limit_events($1::text::xid8, $2)', [from, max])
    const keyRefs = JSON.parse(row?.[0] ?? '[]') as string[]
    const lists = JSON.parse(row?.[1] ?? '[]') as LimitEventList[]
    const lowered = JSON.parse(row?.[4] ?? '[]') as string[]
    for (const queue of lowered) await lowerLimits(this.#context, queue, { waits: false })
    const admitted = await withRetry(() => admitPending(this.#db, keyRefs, lists))
    if (isFull) this.#allLimitEventsAt = performance.now() + fullEveryMs
    const tookAll = row?.[3] === 't'
    if (tookAll) this.#limitEventsFrom = row?.[2] as string
    this.#context.announce(admitted)
    return { admitted: [...admitted.values()].reduce((sum, jobs) => sum + jobs, 0), tookAll }
  }

  /** The first part of a sweep: if a definition is refused, this sweep ends with nothing done, so no report is lost. */
  async #restoreDefinitions(): Promise<void> {
    if (this.#db.now === null && performance.now() < this.#definitionsAt) return
    this.#definitionsAt = performance.now() + definitionsEveryMs
    await this.#context.definitions.restore()
  }

  /** Everything that was due before this time has been swept; see `schema/functions/next-due.ts`. */
  #from(now: number, isFull: boolean): number {
    return isFull || now < this.#sweptUntil ? 0 : Math.max(0, this.#sweptUntil - lookBackMs)
  }

  get #db(): Database {
    return this.#context.db
  }

  /**
   * Folds counts. Once a minute it also repairs a restored database, removes the progress of ended leases, and makes and drops
   * partitions. Under a clock of its own the store has no partitions. Answers how many jobs went with dropped partitions.
   */
  async #keepUp(): Promise<number> {
    await this.#db.transactLightly((tx) => tx.query('select holdfast.fold()', []))
    if (this.#db.now !== null || performance.now() < this.#upkeepAt) return 0
    this.#upkeepAt = performance.now() + upkeepEveryMs
    await repairRestored(this.#db)
    await pruneProgress(this.#db)
    return keepPartitions(this.#db)
  }
}

const nothingSwept = { rescued: 0, expired: [], promoted: 0, overdue: 0, admitted: 0, pruned: 0, more: false } as const

interface Swept {
  readonly report: SweepReport
  readonly ready: ReadonlyMap<string, number>
  /** Batches with ended items. */
  readonly batches: readonly number[]
  readonly droppedNotices: readonly DroppedNotice[]
  readonly undeliverable: readonly UndeliverableJob[]
}

/** From when on due things are looked for, if it is `now`. */
type From = (now: number) => number

interface Range {
  readonly max: number
  readonly from: From
}

interface Rescued {
  /** How many leases had expired, those of jobs that were left out included. */
  readonly found: number
  readonly expired: readonly ExpiredLease[]
  readonly ready: ReadonlyMap<string, number>
  /** Batches with ended items. */
  readonly batches: readonly number[]
  readonly droppedNotices: readonly DroppedNotice[]
  readonly undeliverable: readonly UndeliverableJob[]
}

interface Rescue {
  readonly lanes: Lanes
  readonly ask: AskForLanes
  readonly policy: StatementPolicy
}

async function rescueExpired(
  tx: PgTransaction,
  { lanes, ask, policy }: Rescue,
  { max, from }: Range,
): Promise<Rescued> {
  const now = await tx.readClock()
  const found = await tx.query('select * from holdfast.expired_leases($1, $2, $3, $4)', [max, now, from(now), tx.clock])
  const held = found.map(toLeasedJob)
  ask(held.flatMap(lanesToRescue))
  const leftOut = new Set(held.filter((job) => !lanes.knows(lanesToRescue(job))))
  if (leftOut.size > 0) await putOff(tx, [...leftOut])
  const writer = new SettlementWriter(tx, lanes, policy)
  const expired: ExpiredLease[] = []
  for (const job of held) if (!leftOut.has(job) && writer.takes(job)) expired.push(await writer.rescue(job))
  await writer.write()
  const { batches = [], droppedNotices = [], undeliverable = [] } = writer.afterCommit
  return { found: held.length, expired, ready: writer.becameReady, batches, droppedNotices, undeliverable }
}

async function putOff(tx: PgTransaction, jobs: readonly LeasedJob[]): Promise<void> {
  await tx.query('select holdfast.put_off_rescue($1, $2, $3, $4, $5, $6)', [
    list(jobs.map(({ id }) => id)),
    list(jobs.map(({ token }) => token)),
    texts(jobs.map(({ worker }) => worker)),
    list(jobs.map(({ startedAt }) => startedAt)),
    tx.now,
    tx.now + leftOutMs,
  ])
}

interface SweptRest {
  readonly promoted: number
  readonly starts: number
  readonly pruned: number
  readonly ready: ReadonlyMap<string, number>
  readonly nextDueAt: number | null
  /** Some job has missed its start. */
  readonly isOverdue: boolean
  readonly now: number
}

async function sweepRest(tx: PgTransaction, { max, from: fromOf }: Range): Promise<SweptRest> {
  const now = tx.knowsTime ? tx.now : await tx.readClock()
  const from = fromOf(now)
  const ready = new Map<string, number>()
  const promoted = await promoteDue(tx, ready, { max, from })
  const starts = await endWindows(tx, ready, { max, from })
  const [pruned] = await tx.query('select holdfast.prune($1, $2, $3)', [max, now, from])
  const [due] = await tx.query(`select holdfast.next_due($1, $2), (${selectOverdue.replace('$1', '$3')})`, [
    from,
    from === 0 ? farOff : now + horizonMs,
    now,
  ])
  const nextDueAt = due?.[0] == null ? null : Number(due[0])
  return { promoted, starts, pruned: Number(pruned?.[0]), ready, nextDueAt, isOverdue: due?.[1] === 't', now }
}

const selectOverdue = 'select exists (select from holdfast.overdue where start_before <= $1)'

interface Stretch {
  readonly max: number
  readonly from: number
}

async function promoteDue(tx: PgTransaction, woken: Map<string, number>, { max, from }: Stretch): Promise<number> {
  let promoted = 0
  for (const [name, jobs, ready] of await tx.query('select * from holdfast.promote($1, $2, $3)', [max, tx.now, from])) {
    if (Number(ready) > 0) add(woken, name as string, Number(ready))
    promoted += Number(jobs)
  }
  return promoted
}

/** Starts that left their window free slots: of a limit key by a limit event, which `#admit` takes; of a queue at once. */
async function endWindows(tx: PgTransaction, woken: Map<string, number>, { max, from }: Stretch): Promise<number> {
  const [row] = await tx.query('select * from holdfast.end_windows($1, $2, $3)', [tx.now, from, max])
  for (const queue of JSON.parse(row?.[1] ?? '[]') as string[]) add(woken, queue, 1)
  return Number(row?.[0])
}

function add(counts: Map<string, number>, queue: string, count: number): void {
  counts.set(queue, (counts.get(queue) ?? 0) + count)
}

function sumOf(parts: readonly ReadonlyMap<string, number>[]): Map<string, number> {
  const sum = new Map<string, number>()
  for (const part of parts) for (const [queue, count] of part) add(sum, queue, count)
  return sum
}

async function cancelOverdue(tx: PgTransaction, max: number): Promise<number> {
  const rows = await tx.query('select * from holdfast.missed($1, $2)', [max, tx.now])
  if (rows.length === 0) return 0
  const ended = rows.map(([id, startBefore, attempts, was]) => {
    const error = encodeError(overdueError(Number(startBefore)))
    return { id, was, state: 'cancelled', attempts: Number(attempts), error }
  })
  await tx.query('select holdfast.finish($1::jsonb, $2)', [JSON.stringify(ended), tx.now])
  return rows.length
}
