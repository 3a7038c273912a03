// Sweep. Its transactions do not wait for the disk: one that is lost in a crash is done again by the next sweep. Each part is
// bounded by `max`.
//
// RELEASE OF A WORKER. An operator's call ends leases by the same rescue. It is durable: once it has answered, a crash does not
// give the worker its leases back. If the answer to COMMIT is lost, it says what it has released all the same (`#keepingAnswer`).
//
// OVERDUE. Jobs that missed their `startBefore` are cancelled in a transaction of their own, because it needs lane locks. In
// the transaction of the rescues, claims of those lanes would wait while a rescue waits for a row, or runs the effects of a
// cancel request. If a lane's lock is not free within 200 ms, its jobs are left to the next sweep.
//
// BUSY LANES. A rescued job that dies, or is cancelled, may enqueue others: a death notice, follow-ups. A sweep never waits for
// their lanes (`lanes.ts`). If one is busy, the job is left out: it keeps its lease for another 200 ms, and a later sweep tries
// again. Everything else is swept.
//
// BLOCKED EFFECTS. A rescued job that is cancelled applies the effects of its cancel request: statements, key-value entries, jobs
// with keys. They may wait for a row that another transaction has locked, for as long as that transaction is open. So they are
// not part of the shared transaction:
//
//   shared   such a job gets a lease that has expired already, and nothing else. A crash now leaves it to the next sweep
//   apart    each such job is rescued in a transaction of its own, after all other jobs were swept. Each statement waits for a
//            lock for at most 200 ms. If that is not enough, the rescue is undone to its savepoint, and in the same transaction
//            the job gets a lease of another 5 s
//
// The row of the job is locked from the search for its lease to the COMMIT. So no other sweep or settlement comes in between.
// After five blocked rescues the others are left to the next sweep, so blocked effects take one second of a sweep at most.
//
// LOCKED JOBS. A settlement keeps the row of its job locked while its own statements run. If the lease of such a job has expired,
// the sweep does not wait for the row: the job keeps its lease for another 200 ms (`expired_leases`).
//
// REFUSED COMMITS. A statement that the server refuses to commit (`statement-policy.ts`) is refused in its own rescue. It keeps
// no other job from being rescued.
//
// REFUSED VALUES. The database may refuse the rows of one rescue, or of its death notice (`refused-values.ts`). Then each expired
// lease is rescued in a transaction of its own. A job whose rescue is refused keeps its lease for another 5 s, and the sweep
// reports it. The same holds for promotions and for jobs that missed their start: they are divided until the refused one is
// alone. Its row cannot be written, so this process remembers it, and leaves it out for 5 s. Limit keys are divided in the same
// way: a key whose next held job is refused is left out for 5 s, and the other keys are admitted. Every other part of a sweep
// that is refused is reported, and the rest is swept.
//
// NO REPORT IS LOST. If a later part of a sweep fails, because the server goes away, what the first part did is part of the next
// report.

import { type HoldfastError, isRefused, type Refused, refuse } from '../../errors.ts'
import type { DroppedNotice } from '../../job/death.ts'
import { overdueError } from '../../job/error.ts'
import { encodeError } from '../../job/stored.ts'
import type { EndedBy } from '../../job/transition.ts'
import type {
  ExpiredLease,
  ReleasedWorker,
  ReleaseWorkerRequest,
  SweepReport,
  SweepRequest,
  UndeliverableJob,
} from '../store.ts'
import { sweepBatches } from './batch/batch-end.ts'
import { list, texts } from './connection/columns.ts'
import { isDataError } from './connection/data-error.ts'
import type { Database, PgTransaction } from './connection/database.ts'
import { isCollision, isServerRefusal, LockNotFree } from './connection/failures.ts'
import { deliver } from './deliver.ts'
import { enqueueNotices, type Followed, finishJobs, sumOfFollowed } from './ends.ts'
import type { StoreContext } from './enqueue.ts'
import type { AskForLanes, Lanes } from './lanes.ts'
import { type LeasedJob, toLeasedJob } from './leased-job.ts'
import { admitPending, type LimitEventList, noLongerHeld } from './limits/admit.ts'
import { lowerLimits } from './limits/lower.ts'
import { pruneProgress } from './progress.ts'
import { orRefuseValues, refusedValues } from './refused-values.ts'
import { repairRestored } from './schema/check-restored.ts'
import { dropPartitions, makePartitions } from './schema/partitions.ts'
import { lanesToRescue, mayRescueWait, SettlementWriter } from './settlement-writer.ts'
import { inOwnTransaction, type StatementPolicy, sharedTransaction } from './statement-policy.ts'

const upkeepEveryMs = 60_000
const lookBackMs = 5_000
const fullEveryMs = 60_000
const batchesEveryMs = 5_000
const definitionsEveryMs = 5_000
/** How long a sweep waits for the lock of a lane, which claims have for a few milliseconds, or for a row that an effect needs. */
const lockMaxMs = 200
/** A sweep is made so often also if nothing is found to be due (`schema/functions/sweep-due.ts`). */
const sweepAnywayMs = 30_000
/** How much later a rescue that was left out is tried again. */
const leftOutMs = 200
/** The same if an effect of it is blocked. */
const blockedMs = 5_000
/** How many rescues of a sweep may be blocked. The others are left to the next sweep. */
const blockedMax = 5
/** How often the leases of a worker are looked for, if renewals get in between. */
const releaseTriesMax = 5
/** How many refused rescues a sweep reports. */
const refusedMax = 5
/** How many refused jobs a process leaves out of its sweeps. */
const leftOutMax = 1_000
/** How many expired leases are kept for the next report, after a sweep that failed. */
const owedMax = 10_000
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
  /** The same for wake events and notices of ends. */
  #endsFrom = '0'
  #allEndsAt = 0
  #allBatchesAt = 0
  #definitionsAt = 0
  #anywayAt = 0
  /** Jobs whose promotion or cancellation was refused, and until when they are left out. */
  readonly #leftOut = new Map<string, number>()
  /** The same for limit keys whose admission was refused. Their events stay. */
  readonly #leftOutKeys = new Map<string, number>()
  /** What sweeps have done that failed later, and so were not reported. */
  #owed: Unreported | null = null
  /** The last batch number that this round has checked; null: the round is over. */
  #batchesFrom: number | null = null
  /** By batch, the item after which the next sweep goes on with its retry. */
  readonly #retriesFrom = new Map<number, string>()

  /** Whether notifications arrive. If they do not, ready jobs are polled for, and the caller claims as often as it did. */
  readonly #isListening: () => boolean

  constructor(context: StoreContext, isListening: () => boolean) {
    this.#context = context
    this.#isListening = isListening
  }

  /** Called when a queue's retention may have changed: the next sweep makes its partitions. */
  expectUpkeep(): void {
    this.#upkeepAt = 0
  }

  async sweep({ max, keyPrefix = '' }: SweepRequest): Promise<SweepReport> {
    await this.#restoreDefinitions()
    const look = await this.#look(keyPrefix)
    if (look?.idle) return look.idle
    const report = await this.#sweep(max)
    return look?.mark == null ? report : { ...report, mark: look.mark }
  }

  /** When a sweep is made without a look. */
  get #times(): readonly number[] {
    return [this.#anywayAt, this.#fullAt, this.#upkeepAt, this.#allLimitEventsAt, this.#allEndsAt]
  }

  async #sweep(max: number): Promise<SweepReport> {
    this.#anywayAt = performance.now() + sweepAnywayMs
    const isFull = this.#db.now !== null || performance.now() >= this.#fullAt
    const swept = await this.#sweepJobs(max, (now) => this.#from(now, isFull))
    const owed = this.#owed
    this.#owed = null
    const unreported = addUnreported(owed, swept)
    try {
      return await this.#sweepOthers(max, isFull, swept, unreported)
    } catch (error) {
      this.#owed = addUnreported(this.#owed, unreported)
      throw error
    }
  }

  /** Everything but the jobs that are due. */
  async #sweepOthers(max: number, isFull: boolean, swept: Swept, unreported: Unreported): Promise<SweepReport> {
    const { report, ready, batches: ended, droppedNotices, undeliverable, followed } = swept
    const refused: Refused[] = []
    if (isFull) this.#fullAt = performance.now() + fullEveryMs
    if (!report.more) this.#sweptUntil = report.now
    this.#context.announce(ready)
    await this.#context.afterCommit({ batches: ended, droppedNotices, undeliverable, ...followed })
    const admit = () => this.admit(Math.max(max, limitEventsMin), refused)
    const deliver = () => this.deliver(Math.max(max, limitEventsMin), refused)
    const delivered = (await orRefusal('deliver messages', deliver, refused)) ?? { woken: 0, tookAll: true }
    const { admitted, tookAll } = (await orRefusal('admit held jobs', admit, refused)) ?? { admitted: 0, tookAll: true }
    const pruneMax = Math.max(0, max - report.pruned)
    const batches = await sweepBatches(this.#context, {
      ...{ max, pruneMax, from: this.#fromBatch(), retriesFrom: this.#retriesFrom },
    })
    this.#batchesFrom = batches.next
    const { dropped, failed } = await this.#keepUp()
    batches.throwFailure()
    const upkeepFailed = [...unreported.refused, ...refused, ...batches.refused.slice(0, refusedMax), ...failed]
    return {
      ...report,
      ...unreported.counts,
      expired: await this.#withAdmitted(unreported.expired),
      ...(upkeepFailed.length > 0 && { upkeepFailed }),
      promoted: unreported.counts.promoted + delivered.woken,
      admitted,
      pruned: unreported.counts.pruned + dropped + batches.pruned,
      more: report.more || admitted >= max || !tookAll || !delivered.tookAll || batches.more,
    }
  }

  /** Of rescued jobs that waited for a slot of their limit key, some have one by now. */
  async #withAdmitted(expired: readonly ExpiredLease[]): Promise<readonly ExpiredLease[]> {
    const held = expired.filter(({ state }) => state === 'held').map(({ id }) => id)
    const admitted = await noLongerHeld(this.#db, held)
    return expired.map((lease) => (admitted.has(lease.id) ? { ...lease, state: 'ready' as const } : lease))
  }

  /**
   * Looks whether anything is to be swept, and reports queues with ready jobs. `idle` is the report of a sweep that has nothing
   * to do. Null: a sweep is due in any case. Under a clock of its own the store always sweeps.
   */
  async #look(keyPrefix: string): Promise<{ readonly mark: string | null; readonly idle: SweepReport | null } | null> {
    const at = performance.now()
    const isDueByTime = at >= Math.min(...this.#times)
    if (this.#db.now !== null || isDueByTime || this.#batchesFrom !== null) return null
    const from = Math.max(0, this.#sweptUntil - lookBackMs)
    const areBatchesDue = at >= this.#allBatchesAt
    const values = [from, this.#limitEventsFrom, areBatchesDue, horizonMs, keyPrefix, this.#endsFrom]
    const text = 'select * from holdfast.sweep_due($1, $2::text::xid8, $3, $4, $5, $6::text::xid8)'
    const [row] = await this.#db.query(text, values)
    const [now, isDue, nextDue, ready] = row ?? []
    const mark = this.#isListening() ? (row?.[4] as string) : null
    if (mark !== null)
      this.#context.announce(new Map(Object.entries(JSON.parse(ready ?? '{}') as Record<string, number>)), true)
    if (isDue !== 'f' || Number(now) < this.#sweptUntil) return { mark, idle: null } // the clock may have been set back
    this.#sweptUntil = Number(now)
    if (areBatchesDue) this.#allBatchesAt = at + batchesEveryMs
    const nextDueAt = nextDue == null ? null : Number(nextDue)
    return { mark, idle: { ...nothingSwept, ...(mark !== null && { mark }), nextDueAt, now: Number(now) } }
  }

  async #sweepJobs(max: number, from: From): Promise<Swept> {
    const refused: Refused[] = []
    const first = await this.#rescueFirst(max, from).catch((error) => {
      if (!isDataError(error)) throw error
      return this.#rescueEach({ max, from }, refused)
    })
    const overdue = first.rest === null ? await this.#cancelOverdue(max, refused) : 0
    const rest = first.rest ?? (await this.#sweepRest({ max, from }, refused))
    const apart = await this.#rescueApart(first.rescued.apart, { from }, refused)
    const rescued = addRescued([first.rescued, ...apart])
    const { promoted, pruned, starts, now } = rest
    const counts = { rescued: rescued.expired.length, promoted, overdue, pruned }
    const more = [...Object.values(counts), starts, first.rescued.found].some((count) => count >= max)
    // If a lane or a row was locked, its jobs are still due. The next sweep comes a little later, so that the lock may be
    // released.
    const dueAt =
      apart.length === 0 ? rest.nextDueAt : await this.#inOne((tx) => nextDueAtOf(tx, from(now), now, this.#but))
    const isLeft = rest.isOverdue && overdue === 0 && dueAt !== null && dueAt <= now
    const nextDueAt = isLeft ? now + lockMaxMs : dueAt
    return {
      report: { ...counts, admitted: 0, expired: rescued.expired, more, nextDueAt, now },
      ready: sumOf([rescued.ready, rest.ready]),
      batches: rescued.batches,
      droppedNotices: rescued.droppedNotices,
      undeliverable: rescued.undeliverable,
      followed: rescued.followed,
      refused: refused.slice(0, refusedMax),
    }
  }

  /**
   * Ends the leases of a worker, by the rescue of expired leases. A job whose row is locked, because it is being settled, or
   * whose effects are blocked, keeps a short lease, which the sweep ends.
   */
  async releaseWorker({ worker, by, max, dryRun, claimedUntil }: ReleaseWorkerRequest): Promise<ReleasedWorker> {
    const text = 'select holdfast.now_ms($1), (select max(l.started_at) from holdfast.lease l where l.worker = $2)'
    const [clock] = await this.#db.query(text, [this.#db.now, worker])
    const now = Number(clock?.[0])
    const newest = Math.max(now, Number(clock?.[1] ?? 0)) // later than now, if the clock was set back
    const release = { worker, by, claimedUntil: claimedUntil ?? newest }
    const range = { max, from: () => 0, release }
    let expired = dryRun ? [] : await this.#release(range)
    let { left, renewed } = await this.#leasedBy(release)
    // A renewal at the same moment: its lease was not seen, and is not a short one.
    for (let tries = 1; !dryRun && expired.length === 0 && renewed > 0 && tries < releaseTriesMax; tries++) {
      expired = await this.#release(range)
      ;({ left, renewed } = await this.#leasedBy(release))
    }
    return { expired, left, claimedUntil: release.claimedUntil, more: expired.length > 0 && left > 0, now }
  }

  /** Jobs that the worker has, and how many of its leases last longer than those of jobs that were left out. */
  async #leasedBy({ worker, claimedUntil }: Release): Promise<{ readonly left: number; readonly renewed: number }> {
    const values = [worker, claimedUntil, this.#db.now, blockedMs]
    const [row] = await this.#db.query('select * from holdfast.leased_by($1, $2, $3, $4)', values)
    return { left: Number(row?.[0]), renewed: Number(row?.[1]) }
  }

  async #release(range: Range): Promise<readonly ExpiredLease[]> {
    const refused: Refused[] = []
    const { lanes } = this.#context
    const together = () =>
      lanes.withLanesNow((ask) =>
        this.#keepingAnswer(this.#db, (tx) => rescueExpired(tx, { lanes, ask, policy: sharedTransaction }, range)),
      )
    const first = await together().catch(async (error) => {
      if (!isDataError(error)) throw error
      return (await this.#rescueEach(range, refused)).rescued
    })
    const rescued = addRescued([first, ...(await this.#rescueApart(first.apart, range, refused))])
    const { batches, droppedNotices, undeliverable, followed } = rescued
    this.#context.announce(rescued.ready)
    await this.#context.afterCommit({ batches, droppedNotices, undeliverable, ...followed })
    await this.admit()
    return this.#withAdmitted(rescued.expired)
  }

  /**
   * A durable rescue. If the answer to COMMIT is lost, the work is done a second time, and undone because its flush was committed
   * before. The kept answer says which time it was. The rescues themselves stay in this process: the labels of jobs are theirs,
   * and would outlive them for an hour in a kept answer.
   */
  async #keepingAnswer(db: Database, work: (tx: PgTransaction) => Promise<Rescued>): Promise<Rescued> {
    const rescues: Rescued[] = []
    const committed = await db.transact(async (tx) => ({ time: rescues.push(await work(tx)) - 1 }))
    return rescues[committed.time] as Rescued
  }

  /** Sweeps in one transaction. `rest` is null if jobs have missed their start. */
  #rescueFirst(max: number, from: From): Promise<{ readonly rescued: Rescued; readonly rest: SweptRest | null }> {
    return this.#inOne(async (tx, ask) => {
      const rescue = { lanes: this.#context.lanes, ask, policy: sharedTransaction }
      const rescued = await rescueExpired(tx, rescue, { max, from })
      const [row] = await tx.query(selectOverdue, [tx.now, list(this.#but)])
      return { rescued, rest: row?.[0] === 't' ? null : await sweepRest(tx, { max, from }, this.#but) }
    })
  }

  /** Rescues each expired lease in a transaction of its own, because the rows of one are refused. */
  async #rescueEach(
    { max, ...range }: Range,
    refused: Refused[],
  ): Promise<{ readonly rescued: Rescued; readonly rest: null }> {
    const rescues: Rescued[] = []
    while (rescues.length < max) {
      const rescued = await this.#rescueOne(range, refused)
      if (rescued === null || rescued.found === 0) break
      rescues.push(rescued)
    }
    return { rescued: { ...addRescued(rescues), found: rescues.length, apart: 0, blocked: 0 }, rest: null }
  }

  /** Rescues so many jobs whose effects may wait, each in a transaction of its own. */
  async #rescueApart(count: number, range: Omit<Range, 'max'>, refused: Refused[]): Promise<Rescued[]> {
    const rescues: Rescued[] = []
    let blocked = 0
    while (rescues.length < count && blocked < blockedMax) {
      const rescued = await this.#rescueOne(range, refused)
      if (rescued === null || rescued.found === 0) break
      rescues.push(rescued)
      blocked += rescued.blocked
    }
    return rescues
  }

  /**
   * Null: what it needs besides the rows of its effects is locked, so it is left to the next sweep. A job whose rows are refused
   * is put off, and added to `refused`.
   */
  async #rescueOne(range: Omit<Range, 'max'>, refused: Refused[]): Promise<Rescued | null> {
    const { lanes } = this.#context
    const db = this.#db.impatient(lockMaxMs)
    let found: readonly LeasedJob[] = []
    const onFound = (jobs: readonly LeasedJob[]) => {
      found = jobs
    }
    const rescue = (policy: StatementPolicy) =>
      lanes.withLanesNow((ask) => {
        const rescues = { lanes, ask, policy: { ...policy, leavesBlocked: true }, onFound }
        const work = (tx: PgTransaction) => rescueExpired(tx, rescues, { ...range, max: 1 })
        return range.release ? this.#keepingAnswer(db, work) : db.transactLightly(work)
      })
    try {
      return await inOwnTransaction(rescue)
    } catch (error) {
      const [job] = found
      if (job && isDataError(error)) {
        refused.push(refusedValues(`the rescue of job ${job.id}`, error, { id: job.id }))
        await this.#putOffRefused(job)
        return { ...addRescued([]), found: 1, apart: 0, blocked: 1 }
      }
      if (!isCollision(error)) throw error
      return null
    }
  }

  #putOffRefused(job: LeasedJob): Promise<void> {
    return this.#db.transactLightly(async (tx) => {
      const now = await tx.readClock()
      await putOff(tx, [job], now + blockedMs)
    })
  }

  /** If the rows of a job are refused, its parts are done one by one, and promotions are divided. */
  async #sweepRest(range: Range, refused: Refused[]): Promise<SweptRest> {
    try {
      return await this.#inOne((tx) => sweepRest(tx, range, this.#but))
    } catch (error) {
      if (!isDataError(error)) throw error
    }
    const ready = new Map<string, number>()
    const alone = <T>(work: (tx: PgTransaction, stretch: Stretch) => Promise<T>) =>
      this.#inOne(async (tx) => work(tx, { max: range.max, from: range.from(await tx.readClock()), but: this.#but }))
    const due = await alone(selectDue)
    const promoted = await this.#divide('promotion', due, refused, (only) =>
      alone(async (tx, stretch) => {
        const woken = new Map<string, number>()
        const jobs = await promoteDue(tx, woken, { ...stretch, only })
        return { jobs, woken }
      }).then(({ jobs, woken }) => {
        for (const [queue, count] of woken) add(ready, queue, count)
        return jobs
      }),
    )
    const starts = await orRefusal('end windows of rates', () => alone((tx, it) => endWindows(tx, ready, it)), refused)
    await orRefusal('end pauses', () => alone((tx) => endPauses(tx, ready)), refused)
    const pruned = await orRefusal('remove what is over', () => alone(pruneOver), refused)
    const next = await alone(async (tx, { from, but }) => findNext(tx, from, but))
    return { promoted, starts: starts ?? 0, pruned: pruned ?? 0, ready, ...next }
  }

  /** Answers how many were cancelled: none, if the lock of some lane was not free. */
  async #cancelOverdue(max: number, refused: Refused[]): Promise<number> {
    const cancel = (only: readonly string[] | null) => this.#cancelSome({ max, but: this.#but, only })
    try {
      return await cancel(null)
    } catch (error) {
      if (!isDataError(error)) throw error
    }
    const missed = await this.#inOne(async (tx) => {
      const now = await tx.readClock()
      return (await tx.query(selectMissed, [now, list(this.#but), max])).map(([id]) => id as string)
    })
    return this.#divide('cancellation', missed, refused, cancel)
  }

  async #cancelSome(choice: Choice): Promise<number> {
    try {
      return await this.#db.transactLightly(
        async (tx) => {
          await tx.readClock()
          return await cancelOverdue(tx, choice)
        },
        { failFast: true, lockMaxMs },
      )
    } catch (error) {
      if (!isCollision(error)) throw error
      return 0
    }
  }

  /** Does something to these jobs, and answers for how many. A job whose rows are refused is left out for a while. */
  async #divide(
    what: string,
    ids: readonly string[],
    refused: Refused[],
    work: (ids: readonly string[]) => Promise<number>,
  ): Promise<number> {
    if (ids.length === 0) return 0
    let jobs = 0
    const send = async (some: readonly string[]) => {
      jobs += await work(some)
      return some.map(() => 'done' as const)
    }
    const nameOf = (id: string) => `the ${what} of job ${id}`
    const answers = await orRefuseValues(ids, send, nameOf, (id) => ({ id }))
    for (const [i, answer] of answers.entries()) {
      if (answer === 'done' || !isRefused(answer)) continue
      refused.push(answer)
      this.#leaveOut(ids[i] as string)
    }
    return jobs
  }

  #leaveOut(id: string): void {
    this.#leftOut.set(id, this.#time + blockedMs)
    const [oldest] = this.#leftOut.keys()
    if (this.#leftOut.size > leftOutMax && oldest !== undefined) this.#leftOut.delete(oldest)
  }

  /** Jobs that are left out now. */
  get #but(): readonly string[] {
    for (const [id, until] of this.#leftOut) if (until <= this.#time) this.#leftOut.delete(id)
    return [...this.#leftOut.keys()]
  }

  get #time(): number {
    return this.#db.now ?? performance.now()
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
   * commit. `tookAll`: there were no more events than this call has read. Two calls of one process may overlap: the one that
   * ends last says where the next begins, and both say a transaction below which no event is left.
   */
  async admit(
    max = limitEventsMin,
    refused: Refused[] = [],
  ): Promise<{ readonly admitted: number; readonly tookAll: boolean }> {
    const isFull = this.#db.now !== null || performance.now() >= this.#allLimitEventsAt
    const from = isFull ? '0' : this.#limitEventsFrom
    const [row] = await this.#db.query('select * from holdfast.pending_limit_events($1::text::xid8, $2)', [from, max])
    const isLeftOut = (keyRef: string) => (this.#leftOutKeys.get(keyRef) ?? 0) > this.#time
    const found = JSON.parse(row?.[0] ?? '[]') as string[]
    const keyRefs = found.filter((keyRef) => !isLeftOut(keyRef))
    const lists = JSON.parse(row?.[1] ?? '[]') as LimitEventList[]
    const lowered = JSON.parse(row?.[4] ?? '[]') as string[]
    for (const queue of lowered) {
      const lower = () => lowerLimits(this.#context, queue, { waits: false })
      await orRefusal(`hold jobs of queue ${queue} again`, lower, refused)
    }
    const failures = new Map<string, HoldfastError>()
    const admitted = await admitPending(this.#db, keyRefs, lists, (keyRef, error) => {
      if (!isLeftOut(keyRef)) failures.set(keyRef, error)
    })
    for (const [keyRef, error] of failures) refused.push(await this.#refusedAdmission(keyRef, error))
    const isLeft = failures.size > 0 || keyRefs.length < found.length
    if (isFull) this.#allLimitEventsAt = performance.now() + fullEveryMs
    const tookAll = row?.[3] === 't'
    if (tookAll && !isLeft) this.#limitEventsFrom = row?.[2] as string
    this.#context.announce(admitted)
    return { admitted: [...admitted.values()].reduce((sum, jobs) => sum + jobs, 0), tookAll }
  }

  /**
   * Delivers messages and enqueues notices of ends that are left over: those of callers' own transactions, of jobs whose
   * rows were locked, and of processes that died after their commit. `tookAll`: all that this call has read, and there was
   * no more.
   */
  async deliver(
    max = limitEventsMin,
    refused: Refused[] = [],
  ): Promise<{ readonly woken: number; readonly tookAll: boolean }> {
    const isFull = this.#db.now !== null || performance.now() >= this.#allEndsAt
    const from = isFull ? '0' : this.#endsFrom
    const text = 'select * from holdfast.pending_wakes($1::text::xid8, $2)'
    const [wakes] = await this.#db.query(text, [from, max])
    const listAt = (at: number) => JSON.parse(wakes?.[at] ?? '[]') as string[]
    const [ids, keys, names] = [listAt(0), listAt(1), listAt(2)]
    const awaited = keys.map((key, i) => ({ key, name: names[i] as string }))
    const delivered = await deliver(this.#context, { ids, keys: awaited })
    const areNoticed = await this.#enqueueNotices(from, max, refused)
    const isLeft = delivered.left > 0 || areNoticed === 'left'
    if (isFull) this.#allEndsAt = performance.now() + fullEveryMs
    const areAll = wakes?.[4] === 't' && areNoticed !== 'more'
    if (areAll && !isLeft) this.#endsFrom = wakes?.[3] as string
    return { woken: delivered.jobs, tookAll: areAll }
  }

  /** `left`: some wait for a busy lane, are taken by another process, or were refused. A later sweep tries those again. */
  async #enqueueNotices(from: string, max: number, refused: Refused[]): Promise<'all' | 'more' | 'left'> {
    const [row] = await this.#db.query('select * from holdfast.pending_notices($1::text::xid8, $2)', [from, max])
    const nos = JSON.parse(row?.[0] ?? '[]') as number[]
    let areLeft = false
    const send = async (some: readonly number[]) => {
      if (some.length > 0 && (await enqueueNotices(this.#context, some)) < some.length) areLeft = true
      return some.map(() => 'done' as const)
    }
    const answers = await orRefuseValues(nos, send, () => 'a notice of an end')
    for (const answer of answers) if (answer !== 'done' && refused.length < refusedMax) refused.push(answer)
    if (areLeft || answers.some((answer) => answer !== 'done')) return 'left'
    return row?.[2] === 't' ? 'all' : 'more'
  }

  /** The key is left out for a while, and the refusal names the first job that cannot be admitted. */
  async #refusedAdmission(keyRef: string, error: HoldfastError): Promise<Refused> {
    for (const [key, until] of this.#leftOutKeys) if (until <= this.#time) this.#leftOutKeys.delete(key)
    if (this.#leftOutKeys.size < leftOutMax) this.#leftOutKeys.set(keyRef, this.#time + blockedMs)
    const [row] = await this.#db.query('select holdfast.refused_admission($1)', [keyRef])
    const id = row?.[0] ?? null
    const what = id === null ? `the admission of jobs of limit key ${keyRef}` : `the admission of job ${id}`
    return refusedValues(what, error, { limitKey: keyRef, ...(id !== null && { id }) })
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
   * partitions. Under a clock of its own the store has no partitions, and is never restored. Answers how many jobs went with
   * dropped partitions, and what the server refused, for example because an event trigger forbids DDL. None of these keeps the
   * others from being done.
   */
  async #keepUp(): Promise<{ readonly dropped: number; readonly failed: readonly Refused[] }> {
    const failed: Refused[] = []
    const fold = () => this.#db.transactLightly((tx) => tx.query('select holdfast.fold(), holdfast.fold_errors()', []))
    await orRefusal('fold counts', fold, failed)
    if (performance.now() < this.#upkeepAt) return { dropped: 0, failed }
    this.#upkeepAt = performance.now() + upkeepEveryMs
    if (this.#db.now === null) await repairRestored(this.#db)
    await orRefusal('remove the progress of ended leases', () => pruneProgress(this.#db), failed)
    if (this.#db.now !== null) return { dropped: 0, failed }
    await orRefusal('make partitions of finished jobs', () => makePartitions(this.#db), failed)
    let dropped = 0
    const drop = () =>
      dropPartitions(this.#db, (jobs) => {
        dropped += jobs
      })
    await orRefusal('drop partitions of finished jobs', drop, failed)
    return { dropped, failed }
  }
}

/** If the server refuses the work, adds the refusal and answers null. If the server is away, throws. */
async function orRefusal<T>(what: string, work: () => Promise<T>, failed: Refused[]): Promise<T | null> {
  try {
    return await work()
  } catch (error) {
    if (!isServerRefusal(error)) throw error
    const message = `PostgreSQL refuses to ${what}: ${(error.cause as Error).message}`
    failed.push(refuse(error.code, message, { ...error.facts, mayHaveLanded: false }))
    return null
  }
}

const nothingSwept = { rescued: 0, expired: [], promoted: 0, overdue: 0, admitted: 0, pruned: 0, more: false } as const

interface Swept {
  /** What follows from the ends of jobs. */
  readonly followed: Followed
  readonly report: SweepReport
  readonly ready: ReadonlyMap<string, number>
  /** Batches with ended items. */
  readonly batches: readonly number[]
  readonly droppedNotices: readonly DroppedNotice[]
  readonly undeliverable: readonly UndeliverableJob[]
  /** Rescues whose rows the database refused. */
  readonly refused: readonly Refused[]
}

/** What a sweep has to report, apart from its last parts. */
interface Unreported {
  readonly counts: Pick<SweepReport, 'rescued' | 'promoted' | 'overdue' | 'pruned'>
  readonly expired: readonly ExpiredLease[]
  readonly refused: readonly Refused[]
}

function addUnreported(owed: Unreported | null, found: Swept | Unreported): Unreported {
  const { counts, expired } = 'report' in found ? { counts: found.report, expired: found.report.expired } : found
  const sum = (count: keyof Unreported['counts']) => (owed?.counts[count] ?? 0) + counts[count]
  return {
    counts: { rescued: sum('rescued'), promoted: sum('promoted'), overdue: sum('overdue'), pruned: sum('pruned') },
    expired: [...(owed?.expired ?? []), ...expired].slice(-owedMax),
    refused: [...(owed?.refused ?? []), ...found.refused].slice(-refusedMax),
  }
}

/** From when on due things are looked for, if it is `now`. */
type From = (now: number) => number

interface Range {
  readonly max: number
  readonly from: From
  /** An operator ends the leases of one worker. */
  readonly release?: Release
}

interface Release extends EndedBy {
  readonly worker: string
  /** Only what the worker has claimed until then; null: until now. */
  readonly claimedUntil: number | null
}

interface Rescued {
  /** How many leases had expired, those of jobs that were left out included. */
  readonly found: number
  /** How many of them are still to be rescued, each in a transaction of its own. */
  readonly apart: number
  /** How many were left out because an effect is blocked. */
  readonly blocked: number
  readonly expired: readonly ExpiredLease[]
  readonly ready: ReadonlyMap<string, number>
  /** Batches with ended items. */
  readonly batches: readonly number[]
  readonly droppedNotices: readonly DroppedNotice[]
  readonly undeliverable: readonly UndeliverableJob[]
  readonly followed: Followed
}

interface Rescue {
  readonly lanes: Lanes
  readonly ask: AskForLanes
  readonly policy: StatementPolicy
  /** Called with the jobs whose leases have expired. */
  onFound?(jobs: readonly LeasedJob[]): void
}

function addRescued(rescues: readonly Rescued[]): Omit<Rescued, 'found' | 'apart' | 'blocked'> {
  return {
    expired: rescues.flatMap(({ expired }) => expired),
    ready: sumOf(rescues.map(({ ready }) => ready)),
    batches: [...new Set(rescues.flatMap(({ batches }) => batches))],
    droppedNotices: rescues.flatMap(({ droppedNotices }) => droppedNotices),
    undeliverable: rescues.flatMap(({ undeliverable }) => undeliverable),
    followed: sumOfFollowed(rescues.map(({ followed }) => followed)),
  }
}

async function rescueExpired(
  tx: PgTransaction,
  { lanes, ask, policy, onFound }: Rescue,
  { max, from, release }: Range,
): Promise<Rescued> {
  const now = await tx.readClock()
  const values = [max, now, from(now), tx.clock, now + leftOutMs]
  const ofWorker = release ? [release.worker, release.claimedUntil ?? now] : [null, null]
  const text = 'select * from holdfast.expired_leases($1, $2, $3, $4, $5, $6, $7)'
  const found = await tx.query(text, [...values, ...ofWorker])
  const leased = found.map(toLeasedJob)
  onFound?.(leased)
  ask(leased.flatMap(lanesToRescue))
  const leftOut = leased.filter((job) => !lanes.knows(lanesToRescue(job)))
  const apart = policy.isOwnTransaction ? [] : leased.filter((job) => !leftOut.includes(job) && mayRescueWait(job))
  await putOff(tx, leftOut, now + leftOutMs)
  await putOff(tx, apart, now)
  const rest = new Set(leased)
  for (const job of [...leftOut, ...apart]) rest.delete(job)
  const writer = new SettlementWriter(tx, lanes, policy)
  const blocked: LeasedJob[] = []
  const expired: ExpiredLease[] = []
  for (const job of rest) {
    if (writer.takes(job)) expired.push(...(await rescueUnlessBlocked(writer, job, { blocked, release })))
  }
  await writer.write()
  await putOff(tx, blocked, now + blockedMs)
  const { batches = [], droppedNotices = [], undeliverable = [], wakes = [], notices = [] } = writer.afterCommit
  const followed = { wakes, notices }
  const counts = { found: leased.length, apart: apart.length, blocked: blocked.length }
  return { ...counts, expired, ready: writer.becameReady, batches, droppedNotices, undeliverable, followed }
}

/** If an effect of the job is blocked, nothing of its rescue is written. */
async function rescueUnlessBlocked(
  writer: SettlementWriter,
  job: LeasedJob,
  { blocked, release }: { readonly blocked: LeasedJob[]; readonly release: Release | undefined },
): Promise<ExpiredLease[]> {
  try {
    return [await writer.rescue(job, release)]
  } catch (error) {
    if (!(error instanceof LockNotFree)) throw error
    blocked.push(job)
    return []
  }
}

async function putOff(tx: PgTransaction, jobs: readonly LeasedJob[], until: number): Promise<void> {
  if (jobs.length === 0) return
  await tx.query('select holdfast.put_off_rescue($1, $2, $3, $4, $5, $6)', [
    list(jobs.map(({ id }) => id)),
    list(jobs.map(({ token }) => token)),
    texts(jobs.map(({ worker }) => worker)),
    list(jobs.map(({ startedAt }) => startedAt)),
    tx.now,
    until,
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

async function sweepRest(tx: PgTransaction, { max, from: fromOf }: Range, but: readonly string[]): Promise<SweptRest> {
  const now = tx.knowsTime ? tx.now : await tx.readClock()
  const stretch = { max, from: fromOf(now), but }
  const ready = new Map<string, number>()
  const promoted = await promoteDue(tx, ready, stretch)
  const starts = await endWindows(tx, ready, stretch)
  await endPauses(tx, ready)
  const pruned = await pruneOver(tx, stretch)
  return { promoted, starts, pruned, ready, ...(await findNext(tx, stretch.from, but)) }
}

async function findNext(tx: PgTransaction, from: number, but: readonly string[]) {
  const nextDueAt = await nextDueAtOf(tx, from, tx.now, but)
  const [overdue] = await tx.query(selectOverdue, [tx.now, list(but)])
  return { nextDueAt, isOverdue: overdue?.[0] === 't', now: tx.now }
}

async function nextDueAtOf(
  tx: PgTransaction,
  from: number,
  now: number,
  but: readonly string[],
): Promise<number | null> {
  const until = from === 0 ? farOff : now + horizonMs
  const [row] = await tx.query('select holdfast.next_due($1, $2, $3, $4)', [from, until, list(but), now])
  return row?.[0] == null ? null : Number(row[0])
}

const selectOverdue = 'select exists (select from holdfast.overdue where start_before <= $1 and id <> all ($2::uuid[]))'

const selectMissed = `select id from holdfast.overdue where start_before <= $1 and id <> all ($2::uuid[])
  order by start_before, seq limit $3`

/** Which jobs are swept. */
interface Choice {
  readonly max: number
  /** Not these, which were refused before. */
  readonly but: readonly string[]
  /** Only these; null: all. */
  readonly only?: readonly string[] | null
}

interface Stretch extends Choice {
  readonly from: number
}

async function selectDue(tx: PgTransaction, { max, from, but }: Stretch): Promise<string[]> {
  const text = `select id from holdfast.job
    where ready_xid is null and not is_held and run_at >= $1 and run_at <= $2 and id <> all ($3::uuid[])
    order by run_at, seq limit $4`
  return (await tx.query(text, [from, tx.now, list(but), max])).map(([id]) => id as string)
}

async function promoteDue(
  tx: PgTransaction,
  woken: Map<string, number>,
  { max, from, but, only = null }: Stretch,
): Promise<number> {
  const values = [max, tx.now, from, list(but), only && list(only)]
  let promoted = 0
  for (const [name, jobs, ready] of await tx.query('select * from holdfast.promote($1, $2, $3, $4, $5)', values)) {
    if (Number(ready) > 0) add(woken, name as string, Number(ready))
    promoted += Number(jobs)
  }
  return promoted
}

/** Starts that left their window free slots: of a limit key by a limit event, which `admit` takes; of a queue at once. */
async function endWindows(tx: PgTransaction, woken: Map<string, number>, { max, from }: Stretch): Promise<number> {
  const [row] = await tx.query('select * from holdfast.end_windows($1, $2, $3)', [tx.now, from, max])
  for (const queue of JSON.parse(row?.[1] ?? '[]') as string[]) add(woken, queue, 1)
  return Number(row?.[0])
}

async function endPauses(tx: PgTransaction, woken: Map<string, number>): Promise<void> {
  for (const [queue, ready] of await tx.query('select * from holdfast.end_pauses($1)', [tx.now]))
    if (Number(ready) > 0) add(woken, queue as string, Number(ready))
}

async function pruneOver(tx: PgTransaction, { max, from }: Stretch): Promise<number> {
  const [row] = await tx.query('select holdfast.prune($1, $2, $3)', [max, tx.now, from])
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

async function cancelOverdue(tx: PgTransaction, { max, but, only = null }: Choice): Promise<number> {
  const values = [max, tx.now, list(but), only && list(only)]
  const rows = await tx.query('select * from holdfast.missed($1, $2, $3, $4)', values)
  if (rows.length === 0) return 0
  const ended = rows.map(([id, startBefore, attempts, was]) => {
    const error = encodeError(overdueError(Number(startBefore)))
    return { id, was, state: 'cancelled', attempts: Number(attempts), error }
  })
  await finishJobs(tx, ended) // what follows is delivered by a later part of this sweep
  return rows.length
}
