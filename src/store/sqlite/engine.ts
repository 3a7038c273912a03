// The engine: verbs on one connection, all synchronous.
//
// GROUP COMMIT. Calls that arrive together are one group, which runs in this order:
//
// 1. Calls that need not wait for the disk (claim, renew, progress, sweep) and arrived before the first durable one: one commit
//    without fsync, answered at once.
// 2. Durable calls, and all writes that arrived after the first of them, in order: one commit with one fsync for all. So a claim
//    that was sent right after an enqueue finds its job.
// 3. Reads.
//
// (Lost: commit everything without fsync, and answer the durable calls after an fdatasync in the thread pool, so that claims need
// not wait. An idle enqueue took 1.4 to 1.7 ms instead of 0.9 to 1.1, and full cycles did not get faster.)
//
// FAILURES. A refused request gets its own answer: it checked before it wrote, or was rolled back to a savepoint. Any other error
// (a full disk, a corrupt page) rolls back the group. Then each of its requests is tried alone, so only those that cannot be
// committed fail.

import { HoldfastError, isHoldfastError, isRefused, type Refused, refuse } from '../../errors.ts'
import type { BatchSettings } from '../../job/batch.ts'
import type { DroppedNotice } from '../../job/death.ts'
import type { KvWrite, QueueSettings } from '../../job/record.ts'
import type { Clock } from '../../runtime/clock.ts'
import type { StopFlag } from '../../runtime/stop-flag.ts'
import type {
  AdvanceRequest,
  AlterRequest,
  EnqueueRequest,
  FinishedBatch,
  ItemsRequest,
  LeaseRef,
  SweepRequest,
  UndeliverableJob,
} from '../store.ts'
import { accept } from './accept.ts'
import { advance } from './advance.ts'
import { alter } from './alter.ts'
import { addItems, batchChore, controlBatch, openBatch } from './batch/batch.ts'
import { readBatch, readBatches, readItems } from './batch/read-batch.ts'
import { beginChange, changeJobs, judgeJobs } from './change-all.ts'
import { checkpoint } from './checkpoint.ts'
import { claim } from './claim.ts'
import {
  adviceOn,
  Database,
  type DatabaseFile,
  isBusy,
  isConstraint,
  isDamage,
  isDataError,
  primaryCode,
} from './connection/database.ts'
import { isFileGone } from './connection/own-file.ts'
import { cancel, pause, pauseAll, requeue } from './control.ts'
import { define, overrideLimit, readDefinitions } from './define.ts'
import { deleteQueue, findQueueRows } from './delete-queue.ts'
import { examine, repair } from './doctor/examine.ts'
import { enqueue } from './enqueue.ts'
import { readDeadGroups } from './error-groups.ts'
import { findJobs, findSeqs } from './find.ts'
import { readJournal, readMessages } from './journal.ts'
import { applyKv, kvGet, kvScan } from './kv.ts'
import { readBlockers } from './limits/blockers.ts'
import { lowerLimits } from './limits/lower.ts'
import { progress } from './progress.ts'
import { readJob, readOutcomes, readStats } from './read.ts'
import { readAhead, readCancelRequested, renew } from './renew.ts'
import { settle } from './settle.ts'
import { clearSignals, signal } from './signal.ts'
import { type SqlFault, sentenceOf, TransactionRolledBack } from './sql-effect.ts'
import { releaseWorker, sweep } from './sweep.ts'
import { SqliteTransaction } from './transaction.ts'
import { readChanges, watch } from './watch.ts'

const quick = { claim, renew, progress, sweep, watch, lowerLimits }
const durable = {
  ...{
    define,
    overrideLimit,
    pause,
    pauseAll,
    deleteQueue,
    releaseWorker,
    enqueue,
    advance,
    settle,
    checkpoint,
    signal,
    clearSignals,
    cancel,
    requeue,
    alter,
    changeJobs,
    accept,
  },
  ...{ openBatch, addItems, controlBatch, batchChore },
  kvWrite: applyKv,
  repair,
}
const read = {
  ...{
    readJob,
    readJournal,
    readMessages,
    readOutcomes,
    findJobs,
    ...{ beginChange, findSeqs, judgeJobs, findQueueRows },
    readBlockers,
    readStats,
    readDeadGroups,
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

/** What a commit means for other parts of the process. */
export interface CommitNotices {
  /** Queues in which jobs became ready. */
  readonly ready: readonly (readonly [queue: string, count: number])[]
  /** Running jobs that are asked to end; null: some, which ones is unknown. */
  readonly cancels: readonly string[] | null
  readonly finished: readonly FinishedBatch[]
  readonly droppedNotices: readonly DroppedNotice[]
  readonly undeliverable: readonly UndeliverableJob[]
}

export const noNotices: CommitNotices = { ready: [], cancels: [], finished: [], droppedNotices: [], undeliverable: [] }

/** Receives the answers of a committed group, and its notices. */
export type Deliver = (replies: readonly Reply[], notices: CommitNotices) => void

interface Committed {
  readonly replies: readonly Reply[]
  readonly notices: CommitNotices
}

type Apply = (tx: SqliteTransaction, item: unknown) => unknown

/**
 * The estimated number of pages in the log at which it is checkpointed and restarted: 8 MiB. A log that is overwritten syncs
 * faster than one that grows (0.39 against 0.65 ms measured), so an early restart pays. A larger log would save a bulk load 0.3
 * µs a job.
 */
const checkpointEveryPages = 2_000
const pagesACommit = 6
const pagesAJob = 0.25
/** How many definitions are remembered. */
const ownMax = 10_000

export class Engine {
  readonly db: Database
  readonly #clock: Clock
  #pagesInLog = 0
  /** The last transaction of a call that writes. */
  #tx: SqliteTransaction | null = null
  /** What this process has defined: a queue that was deleted, and is used again here, gets its definition back. */
  readonly #own = new Map<string, QueueSettings>()

  constructor(file: DatabaseFile, clock: Clock, stop?: StopFlag) {
    this.db = new Database(file, stop)
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
      deliver([{ no: call.no, verb: call.verb, answers: call.items.map((item) => this.#read(call, item)) }], noNotices)
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
      committed = this.#commitTogether(isDurable, calls)
    } catch (error) {
      if (isBusy(error) || isHoldfastError(error, 'CLOSED') || isFileGone(error)) this.#refuseAll(calls, error, deliver)
      else for (const call of calls) this.#commitEach(isDurable, call, deliver)
      return
    }
    deliver(committed.replies, committed.notices) // outside the try: a committed group must not run again
  }

  #commitTogether(isDurable: boolean, calls: readonly Call[], sqlFault: SqlFault | null = null): Committed {
    this.#tx = null
    const committed = this.db.transaction(isDurable, () => {
      const tx = this.#begin(sqlFault)
      this.#tx = tx
      const replies = calls.map(({ no, verb, items }) => {
        const apply = verbs[verb] as Apply
        tx.definitionOf = verb === 'define' ? null : (name) => this.#own.get(name)
        if (verb === 'settle' && items.length > 1) readAhead(tx, items as LeaseRef[])
        const answers = items.map((item) => withConsequences(tx, verb, apply(tx, item)))
        tx.applyConsequences()
        return { no, verb, answers }
      })
      tx.finish()
      this.#pagesInLog += pagesACommit
      for (const { items } of calls) for (const item of items) this.#pagesInLog += pagesOf(item)
      return { replies, notices: noticesOf(tx) }
    })
    for (const [i, { verb, items }] of calls.entries()) {
      const answers = committed.replies[i]?.answers ?? []
      if (verb === 'define') this.#remember((items as QueueSettings[]).filter((_, n) => !isRefused(answers[n])))
    }
    return committed
  }

  #remember(defined: readonly QueueSettings[]): void {
    for (const settings of defined) this.#own.set(settings.name, settings)
    for (const oldest of this.#own.keys()) {
      if (this.#own.size <= ownMax) break
      this.#own.delete(oldest)
    }
  }

  #commitEach(isDurable: boolean, { no, verb, items }: Call, deliver: Deliver): void {
    const ready: (readonly [string, number])[] = []
    const cancels: string[] = []
    const finished: FinishedBatch[] = []
    const droppedNotices: DroppedNotice[] = []
    const undeliverable: UndeliverableJob[] = []
    const answers = items.map((item) => {
      try {
        const alone = this.#commitAlone(isDurable, { no, verb, items: [item] })
        ready.push(...alone.notices.ready)
        cancels.push(...(alone.notices.cancels ?? []))
        finished.push(...alone.notices.finished)
        droppedNotices.push(...alone.notices.droppedNotices)
        undeliverable.push(...alone.notices.undeliverable)
        return alone.replies[0]?.answers[0]
      } catch (error) {
        const what = isDataError(error) ? nameOf({ no, verb, items: [item] }) : null
        return what === null ? this.#toRefusal(error) : refusedByData(what, error)
      }
    })
    deliver([{ no, verb, answers }], { ready, cancels, finished, droppedNotices, undeliverable })
  }

  /**
   * Repeats a request with its SQL refused if a statement of the application
   *
   * - rolled back the whole transaction,
   * - made the commit fail, or
   * - failed with an error that may be the store's.
   *
   * If the repeated request commits, the job with that statement fails. If not, the store itself has failed. A sweep may run
   * statements of many jobs, so it is first repeated with one job at a time.
   */
  #commitAlone(isDurable: boolean, call: Call): Committed {
    try {
      return this.#commitTogether(isDurable, [call])
    } catch (error) {
      const fault = sqlFaultOf(error, this.#tx?.lastSql ?? null)
      if (fault === null) throw error
      const [item] = call.items
      if (call.verb === 'sweep' && (item as SweepRequest).max > 1) {
        return this.#commitAlone(isDurable, { ...call, items: [{ ...(item as SweepRequest), max: 1 }] })
      }
      return this.#commitTogether(isDurable, [call], fault)
    }
  }

  /**
   * Another connection held the write lock for the whole busy timeout. Trying each request alone would only wait that long again.
   */
  #refuseAll(calls: readonly Call[], error: unknown, deliver: Deliver): void {
    const answers = ({ items }: Call) => items.map(() => this.#toRefusal(error))
    deliver(
      calls.map((call) => ({ no: call.no, verb: call.verb, answers: answers(call) })),
      noNotices,
    )
  }

  #read({ verb }: Call, item: unknown): unknown {
    try {
      const apply = verbs[verb] as Apply
      return this.db.snapshot(() => apply(this.#begin(), item))
    } catch (error) {
      return this.#toRefusal(error)
    }
  }

  /** Whole milliseconds, also where the clock has fractions. */
  #begin(sqlFault: SqlFault | null = null): SqliteTransaction {
    return new SqliteTransaction(this.db, Math.floor(this.#clock.now()), sqlFault)
  }

  #toRefusal(error: unknown): Refused {
    if (error instanceof HoldfastError) return refuse(error.code, error.message, error.facts)
    const why = isBusy(error) ? this.#whyBusy() : sentenceOf(error)
    const advice = isBusy(error) || isDamage(error) ? '' : ` ${adviceOn(error) ?? ''}`
    const message = `SQLite could not do this on ${this.db.path}: ${why}. Nothing was changed.${advice.trimEnd()}`
    return refuse('STORE_UNAVAILABLE', message, {})
  }

  #whyBusy(): string {
    return `another connection was writing for more than ${this.db.busyMaxMs} ms; look for a transaction that was left open`
  }

  /** Runs after all calls of the group have been answered. */
  #checkpointIfDue(): void {
    if (this.db.isInMemory || this.#pagesInLog < checkpointEveryPages) return
    this.#pagesInLog = 0
    try {
      this.db.checkpoint()
    } catch {
      // Nothing is lost: the log keeps its content until the next checkpoint. If the disk is full, the next durable call fails.
    }
  }
}

/** Applies the consequences of a request before the next one runs; for settlements, once for all of a call. */
function withConsequences<T>(tx: SqliteTransaction, verb: VerbName, answer: T): T {
  if (verb !== 'settle') tx.applyConsequences()
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

interface Named {
  readonly what: string
  readonly facts: Refused['facts']
}

/**
 * A request whose values may be refused, for the sentence about it; null: a refusal counts as a failure of the file. That is so
 * for claims, renewals and sweeps, which carry no values to store, and for repairs.
 */
function nameOf({ verb, items: [item] }: Call): Named | null {
  if (verb === 'repair' || (verb !== 'progress' && !(verb in durable))) return null
  if (verb === 'enqueue') return { what: nameOfJobs((item as EnqueueRequest).jobs), facts: {} }
  if (verb === 'addItems') {
    const { batch, jobs } = item as ItemsRequest
    return { what: `${jobs.length} items of batch ${batch}`, facts: { batch } }
  }
  if (verb === 'kvWrite') return { what: `the write of key ${(item as KvWrite).key}`, facts: {} }
  if (verb === 'advance') return { what: `the step of ${(item as AdvanceRequest).key}`, facts: {} }
  if (verb === 'openBatch') return { what: `batch ${(item as BatchSettings).name}`, facts: {} }
  if (verb === 'define' || verb === 'overrideLimit' || verb === 'pause') {
    return { what: `the change of queue ${(item as { name: string }).name}`, facts: {} }
  }
  const id = verb === 'batchChore' ? undefined : idOf(item)
  if (id === undefined) return { what: `a call of ${verb}`, facts: {} }
  const change = verb === 'alter' ? (item as AlterRequest).as : (ofAJob[verb] ?? 'change')
  return { what: `the ${change} of job ${id}`, facts: { id } }
}

const ofAJob: Partial<Record<VerbName, string>> = {
  ...{
    settle: 'settlement',
    checkpoint: 'checkpoint',
    cancel: 'cancel',
    requeue: 'requeue',
    accept: 'acceptance',
    progress: 'progress',
  },
}

function idOf(item: unknown): string | undefined {
  return typeof item === 'string' ? item : (item as { readonly id?: string }).id
}

function nameOfJobs(jobs: EnqueueRequest['jobs']): string {
  const [first] = jobs
  return jobs.length === 1 ? `job ${first?.id} of queue ${first?.queue}` : `the enqueue of ${jobs.length} jobs`
}

/**
 * The file refuses the values of this request, and would refuse them again: it is no outage. If it is a settlement, its worker
 * then settles the attempt as failed.
 */
function refusedByData({ what, facts }: Named, error: unknown): Refused {
  const sentence = `SQLite refuses ${what}: ${sentenceOf(error)}. Nothing was carried out.`
  return refuse('INVALID_OPTION', sentence, { ...facts, code: primaryCode(error) })
}

/** Once a statement of the application has run, any error of SQLite may be caused by it. */
function sqlFaultOf(error: unknown, lastSql: string | null): SqlFault | null {
  if (error instanceof TransactionRolledBack) return error.fault
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
