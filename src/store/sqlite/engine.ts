// The engine: verbs on one connection, all synchronous. Calls that arrive together share a transaction (group commit):
//
// - calls that need not wait for the disk (claim, renew, progress, sweep) and came before any that must, in one commit without
//   fsync, answered at once;
// - then the durable ones and whatever came behind the first of them, in order, in one commit with one fsync for all: a
//   claim that was sent right behind an enqueue finds its job;
// - reads come last.
//
// (Lost: committing everything without fsync and answering the durable calls after an fdatasync in the thread pool, so
// that claims pass by. An idle enqueue took 1.4 to 1.7 ms instead of 0.9 to 1.1, and full cycles did not get faster.)
//
// A request that is refused answers in its own place; it looked before it wrote, or was undone to a savepoint. Anything
// unforeseen (a full disk, a corrupt page) rolls the group back, and each of its requests is tried alone, so that only
// those that cannot land fail.

import { HoldfastError, type Refused, refuse } from '../../errors.ts'
import type { DroppedNotice } from '../../job/death.ts'
import type { Clock } from '../../runtime/clock.ts'
import type { FinishedBatch, LeaseRef, SweepRequest, UndeliverableJob } from '../store.ts'
import { accept } from './accept.ts'
import { advance } from './advance.ts'
import { alter, purgeChunk } from './alter.ts'
import { addItems, batchChore, controlBatch, openBatch } from './batch/batch.ts'
import { readBatch, readBatches, readItems } from './batch/read-batch.ts'
import { claim } from './claim.ts'
import {
  adviceOn,
  Database,
  type DatabaseFile,
  isBusy,
  isConstraint,
  isDamage,
  primaryCode,
} from './connection/database.ts'
import { cancel, pause, requeue, requeueChunk } from './control.ts'
import { define, overrideLimit, readDefinitions } from './define.ts'
import { examine, repair } from './doctor/examine.ts'
import { enqueue } from './enqueue.ts'
import { applyKv, kvGet, kvScan } from './kv.ts'
import { readBlockers } from './limits/blockers.ts'
import { lowerLimits } from './limits/lower.ts'
import { progress } from './progress.ts'
import { readJob, readJobs, readOutcome, readStats } from './read.ts'
import { readAhead, readCancelRequested, renew } from './renew.ts'
import { settle } from './settle.ts'
import { EverythingUndone, type SqlFault, sentenceOf } from './sql-effect.ts'
import { sweep } from './sweep.ts'
import { SqliteTransaction } from './transaction.ts'
import { readChanges, watch } from './watch.ts'

const quick = { claim, renew, progress, sweep, watch, lowerLimits }
const durable = {
  ...{
    define,
    overrideLimit,
    pause,
    enqueue,
    advance,
    settle,
    cancel,
    requeue,
    requeueChunk,
    alter,
    purgeChunk,
    accept,
  },
  ...{ openBatch, addItems, controlBatch, batchChore },
  kvWrite: applyKv,
  repair,
}
const read = {
  ...{
    readJob,
    readOutcome,
    readJobs,
    readBlockers,
    readStats,
    readDefinitions,
    readCancelRequested,
    readChanges,
    kvGet,
    kvScan,
    examine,
  },
  ...{ readBatch, readBatches, readItems },
}
const verbs = { ...quick, ...durable, ...read }

export type Verbs = typeof verbs
export type VerbName = keyof Verbs
export type Item<V extends VerbName> = Parameters<Verbs[V]>[1]
export type Answer<V extends VerbName> = ReturnType<Verbs[V]> | Refused

export interface Call {
  readonly no: number
  readonly verb: VerbName
  readonly items: readonly unknown[]
}

export interface Reply {
  readonly no: number
  readonly verb: VerbName
  readonly answers: readonly unknown[]
}

/** What others are to be told of a commit. */
export interface CommitNotices {
  /** Queues in which jobs became ready. */
  readonly ready: readonly (readonly [queue: string, count: number])[]
  /** Running jobs that are asked to be cancelled; null: some. */
  readonly cancels: readonly string[] | null
  readonly finished: readonly FinishedBatch[]
  readonly droppedNotices: readonly DroppedNotice[]
  readonly undeliverable: readonly UndeliverableJob[]
}

export const noNotices: CommitNotices = { ready: [], cancels: [], finished: [], droppedNotices: [], undeliverable: [] }

/** Answers to a group that has committed, and its notices. */
export type Deliver = (replies: readonly Reply[], notices: CommitNotices) => void

interface Committed {
  readonly replies: readonly Reply[]
  readonly notices: CommitNotices
}

type Apply = (tx: SqliteTransaction, item: unknown) => unknown

/**
 * How many pages the log may hold, by estimate, before it is moved into the file and begun anew: 8 MiB. A log that is
 * written over syncs faster than one that grows (0.39 against 0.65 ms here), so it should come round soon; a larger one
 * would save a bulk load 0.3 µs a job.
 */
const checkpointEveryPages = 2_000
const pagesACommit = 6
const pagesAJob = 0.25

export class Engine {
  readonly db: Database
  readonly #clock: Clock
  #pagesInLog = 0
  /** The transaction that was begun last by a call that writes. */
  #tx: SqliteTransaction | null = null

  constructor(file: DatabaseFile, clock: Clock) {
    this.db = new Database(file)
    this.#clock = clock
  }

  run(calls: readonly Call[], deliver: Deliver): void {
    const writes = calls.filter(({ verb }) => !(verb in read))
    const firstDurable = writes.findIndex(({ verb }) => verb in durable)
    const prompt = firstDurable === -1 ? writes.length : firstDurable
    this.#commit(false, writes.slice(0, prompt), deliver)
    this.#commit(true, writes.slice(prompt), deliver)
    for (const call of calls) {
      if (!(call.verb in read)) continue
      deliver([{ no: call.no, verb: call.verb, answers: call.items.map((item) => this.#look(call, item)) }], noNotices)
    }
    this.#checkpointIfDue()
  }

  close(): void {
    this.db.close()
  }

  #commit(isDurable: boolean, calls: readonly Call[], deliver: Deliver): void {
    if (calls.length === 0) return
    let committed: Committed
    try {
      committed = this.#together(isDurable, calls)
    } catch (error) {
      if (isBusy(error)) this.#refuseAll(calls, error, deliver)
      else for (const call of calls) this.#oneByOne(isDurable, call, deliver)
      return
    }
    deliver(committed.replies, committed.notices) // what has landed is never tried again
  }

  #together(isDurable: boolean, calls: readonly Call[], sqlFault: SqlFault | null = null): Committed {
    this.#tx = null
    return this.db.transaction(isDurable, () => {
      const tx = this.#begin(sqlFault)
      this.#tx = tx
      const replies = calls.map(({ no, verb, items }) => {
        const apply = verbs[verb] as Apply
        if (verb === 'settle' && items.length > 1) readAhead(tx, items as LeaseRef[])
        const answers = items.map((item) => settledUp(tx, verb, apply(tx, item)))
        tx.settleUp()
        return { no, verb, answers }
      })
      tx.finish()
      this.#pagesInLog += pagesACommit
      for (const { items } of calls) for (const item of items) this.#pagesInLog += pagesOf(item)
      return { replies, notices: noticesOf(tx) }
    })
  }

  #oneByOne(isDurable: boolean, { no, verb, items }: Call, deliver: Deliver): void {
    const ready: (readonly [string, number])[] = []
    const cancels: string[] = []
    const finished: FinishedBatch[] = []
    const droppedNotices: DroppedNotice[] = []
    const undeliverable: UndeliverableJob[] = []
    const answers = items.map((item) => {
      try {
        const alone = this.#alone(isDurable, { no, verb, items: [item] })
        ready.push(...alone.notices.ready)
        cancels.push(...(alone.notices.cancels ?? []))
        finished.push(...alone.notices.finished)
        droppedNotices.push(...alone.notices.droppedNotices)
        undeliverable.push(...alone.notices.undeliverable)
        return alone.replies[0]?.answers[0]
      } catch (error) {
        return this.#unknown(error)
      }
    })
    deliver([{ no, verb, answers }], { ready, cancels, finished, droppedNotices, undeliverable })
  }

  /**
   * Where a statement of the application undid everything, kept it from being committed, or met an error that may be the
   * store's, the request is made again with its SQL refused. If that lands, the job that brought the statement fails. If not, the
   * store is in trouble. A sweep may meet statements of many jobs, so it goes on with one job at a time until it is past that
   * one.
   */
  #alone(isDurable: boolean, call: Call): Committed {
    try {
      return this.#together(isDurable, [call])
    } catch (error) {
      const fault = sqlFaultOf(error, this.#tx?.lastSql ?? null)
      if (fault === null) throw error
      const [item] = call.items
      if (call.verb === 'sweep' && (item as SweepRequest).max > 1) {
        return this.#alone(isDurable, { ...call, items: [{ ...(item as SweepRequest), max: 1 }] })
      }
      return this.#together(isDurable, [call], fault)
    }
  }

  /** Nobody could write for as long as we try: trying each alone would only wait as often again. */
  #refuseAll(calls: readonly Call[], error: unknown, deliver: Deliver): void {
    const answers = ({ items }: Call) => items.map(() => this.#unknown(error))
    deliver(
      calls.map((call) => ({ no: call.no, verb: call.verb, answers: answers(call) })),
      noNotices,
    )
  }

  #look({ verb }: Call, item: unknown): unknown {
    try {
      const apply = verbs[verb] as Apply
      return this.db.snapshot(() => apply(this.#begin(), item))
    } catch (error) {
      return this.#unknown(error)
    }
  }

  /** Whole milliseconds, whatever the clock says. */
  #begin(sqlFault: SqlFault | null = null): SqliteTransaction {
    return new SqliteTransaction(this.db, Math.floor(this.#clock.now()), sqlFault)
  }

  #unknown(error: unknown): Refused {
    if (error instanceof HoldfastError) return refuse(error.code, error.message, error.facts)
    const why = isBusy(error) ? this.#whyBusy() : sentenceOf(error)
    const advice = isBusy(error) || isDamage(error) ? '' : ` ${adviceOn(error) ?? ''}`
    const message = `SQLite could not do this on ${this.db.path}: ${why}. Nothing was changed.${advice.trimEnd()}`
    return refuse('STORE_UNAVAILABLE', message, {})
  }

  #whyBusy(): string {
    return `somebody else was writing for more than ${this.db.busyMaxMs} ms; is there a transaction left open`
  }

  /** After everyone has been answered. */
  #checkpointIfDue(): void {
    if (this.db.isInMemory || this.#pagesInLog < checkpointEveryPages) return
    this.#pagesInLog = 0
    try {
      this.db.checkpoint()
    } catch {
      // Nothing is lost: the log stays as it is until the next one. A disk that is full says so to the next durable call.
    }
  }
}

/** What follows from a request is done before the next. Settlements come by the thousand, and are settled up together. */
function settledUp<T>(tx: SqliteTransaction, verb: VerbName, answer: T): T {
  if (verb !== 'settle') tx.settleUp()
  return answer
}

function noticesOf({
  becameReady,
  cancelsRequested,
  finished,
  droppedNotices,
  undeliverable,
}: SqliteTransaction): CommitNotices {
  return { ready: [...becameReady], cancels: cancelsRequested, finished, droppedNotices, undeliverable }
}

/** Whatever else SQLite says once a statement of the application has run may be the fault of that statement. */
function sqlFaultOf(error: unknown, lastSql: string | null): SqlFault | null {
  if (error instanceof EverythingUndone) return error.fault
  if (isConstraint(error)) return { text: null, why: sentenceOf(error) }
  return lastSql !== null && primaryCode(error) !== undefined && !isBusy(error)
    ? { text: lastSql, why: sentenceOf(error) }
    : null
}

function pagesOf(item: unknown): number {
  const jobs = (item as { jobs?: readonly { payload: string }[] } | null)?.jobs
  if (!jobs) return pagesAJob
  return jobs.reduce((sum, { payload }) => sum + pagesAJob + payload.length / 4096, 0)
}
