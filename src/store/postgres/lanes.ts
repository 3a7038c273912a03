// The numbers of queues and lanes, remembered by this process.
//
// EPOCHS. A number does not identify a lane for good. The server may give the same number to another queue after a failover
// that lost the newest commits, after a restore, or in a schema that was dropped and made again. So each lane has an epoch: 128
// random bits, drawn when the lane is opened, that no other server repeats. A statement that names a lane by its number names
// its epoch too, and the server compares both in the statement that makes the change. If they differ, the statement is undone
// (HF006), this process forgets everything it remembers, and the call starts over. A claim answers with the epoch of each lane,
// so a job is never handed to the handler of another queue.
//
// A queue that is deleted loses its lanes in the same way: their epochs change first (`schema/functions/delete-queue.ts`), so a
// process that remembers them starts over, and makes the queue anew.
//
// DEFINITIONS. With each lane, the process remembers what the queue's definition says of jobs, and the epoch of that
// definition. Jobs that are filled in from this memory are sent with that epoch, and the statement checks it in the same way;
// see `schema/functions/define-queue.ts`. If the server has lost a definition that this process has stored, the process stores it
// again before it enqueues; see `own-definitions.ts`.
//
// BUSY LANES. Lanes are opened in a short transaction of the store's own. An application's transaction may also open one: by
// the SQL function, or if the application's pool has no other connection left (`enqueueIn`). Until it commits, that lane is
// busy: a first use of the same queue and priority elsewhere has to wait for it. Only what needs that lane is delayed:
//
// - A call that is one request waits (`open`, `withLanes`). It holds no connection meanwhile; see `lock-polls.ts`. All calls
//   that wait for the same lane share one poll.
// - A call of several requests never waits (`withLanesNow`). It asks once for each lane that it misses, and leaves out the
//   requests that need a busy lane. An enqueue or a settlement that was left out is made afterwards, in a transaction of its
//   own. The sweep leaves such a job to a later sweep, and a schedule leaves its slot to a later try. The end of a batch is
//   found again by the sweep.

import { defaults } from '../../job/bounds.ts'
import { decodeJson } from '../../job/codec.ts'
import { areLabelRules, type LabelRules, resolveLabels, type UnfitLabel } from '../../job/labels.ts'
import { type KeyRule, resolveKey } from '../../job/limit-key.ts'
import type { NewJob } from '../../job/record.ts'
import type { Row } from './connection/call.ts'
import { list, texts } from './connection/columns.ts'
import type { Database } from './connection/database.ts'
import { isCollision, withRetry } from './connection/failures.ts'
import type { LockPolls } from './lock-polls.ts'
import type { OwnDefinitions } from './own-definitions.ts'

/** Lanes of batches that are remembered; more than any transaction uses. */
const batchLanesMax = 10_000
/** How long a lane that was found busy counts as busy for calls that do not wait. Each try may take 20 ms of a connection. */
const busyMs = 100
/** How many lanes one call tries one by one, if it could not open all of them in one statement. */
const asksMax = 8
/** How many lanes are remembered as busy. */
const busyMax = 10_000

/** Null: of no batch. */
export type BatchId = string | null

/** Names a lane: its number, and the epoch that distinguishes it from another lane with that number. */
export interface LaneName {
  /** The number of the lane. The lane of its released and rescued jobs has the next number. */
  readonly no: number
  readonly epoch: string
}

export interface Lane extends LaneName {
  /** The number of its queue. */
  readonly queue: number
  readonly name: string
  readonly priority: number
  /** The number of its batch; 0: of none. */
  readonly batch: number
  readonly batchId: BatchId
}

/** Without a priority: the one of the queue's definition. */
export interface Wanted {
  readonly queue: string
  readonly priority: number | null
}

/** What a queue's definition says of jobs. */
export interface KnownQueue {
  /** Names the version of the definition. */
  readonly epoch: string
  readonly attempts: number
  readonly priority: number
  readonly key: KeyRule
  /** Labels that are found in the payload; null: none. */
  readonly labels: LabelRules | null
}

/** Asks for lanes of no batch; see `withLanesNow`. */
export type AskForLanes = (jobs: readonly Wanted[]) => void

/** How often work is started at most. It starts over if lanes are missing, or definitions have changed meanwhile. */
const startsMax = 10

/**
 * Thrown before a statement is sent that needs lanes which this process does not know. Then the work is undone, the lanes are
 * opened, and the work starts over.
 */
export class LanesMissing extends Error {
  readonly wanted: readonly Wanted[]
  readonly batch: BatchId

  constructor(wanted: readonly Wanted[], batch: BatchId) {
    super('Some lanes are not open yet.')
    this.wanted = wanted
    this.batch = batch
  }
}

export class Lanes {
  readonly #db: Database
  readonly #polls: LockPolls
  readonly #own: OwnDefinitions
  readonly #byLaneKey = new Map<string, Lane>()
  readonly #byNo = new Map<number, Lane>()
  readonly #queues = new Map<string, KnownQueue>()
  /** Limit keys that were found, so that a payload is read once. */
  readonly #keys = new WeakMap<NewJob, { readonly of: KnownQueue; readonly key: string | null | undefined }>()
  /** Labels that were found, likewise. */
  readonly #labels = new WeakMap<NewJob, { readonly of: KnownQueue; readonly labels: string | null | UnfitLabel }>()
  /** Lanes of batches, the least recently used first. They are bounded: batches that other processes remove stay here. */
  readonly #ofBatches = new Set<Lane>()

  /** Busy lanes that some call waits for. */
  readonly #awaited = new Map<string, Promise<void>>()
  /** When a lane was last found busy. */
  readonly #busyAt = new Map<string, number>()
  /** Calls of `openAnew` under way. Callers that need the same lanes share one: each takes a connection. */
  readonly #opening = new Map<string, Promise<boolean>>()

  constructor(db: Database, polls: LockPolls, own: OwnDefinitions) {
    this.#db = db
    this.#polls = polls
    this.#own = own
  }

  /** Makes sure that the lanes of these jobs exist and are known. Waits as long as another transaction keeps one of them busy. */
  async open(jobs: readonly Wanted[], batch: BatchId = null): Promise<void> {
    if (await this.openNow(jobs, batch)) return
    await Promise.all(this.#missing(jobs, batch).map((wanted) => this.#openLater(wanted, batch)))
  }

  /** The same without a wait. Opens all lanes that are not busy; false: some are busy. */
  async openNow(jobs: readonly Wanted[], batch: BatchId = null): Promise<boolean> {
    const wanted = this.#missing(jobs, batch)
    const fresh = wanted.filter((each) => !this.#isBusy(wantedKey(each, batch)))
    const areOpen = fresh.length === 0 || (await this.#openAll(fresh, batch)) || (await this.#openSome(fresh, batch))
    return areOpen && fresh.length === wanted.length
  }

  #isBusy(key: string): boolean {
    const foundAt = this.#busyAt.get(key) ?? Number.NEGATIVE_INFINITY
    return this.#awaited.has(key) || performance.now() - foundAt < busyMs
  }

  /**
   * Opens lanes one by one, because one busy lane keeps all lanes of a statement from being opened. The lanes that were found
   * busy longest ago come first, so that each is tried by some call.
   */
  async #openSome(wanted: readonly Wanted[], batch: BatchId): Promise<boolean> {
    const [only] = wanted
    if (only && wanted.length === 1) {
      this.#noteBusy(wantedKey(only, batch))
      return false
    }
    const foundAt = (each: Wanted) => this.#busyAt.get(wantedKey(each, batch)) ?? 0
    const asked = [...wanted].sort((a, b) => foundAt(a) - foundAt(b)).slice(0, asksMax)
    let opened = 0
    for (const each of asked) {
      if (await this.#openAll([each], batch)) opened += 1
      else this.#noteBusy(wantedKey(each, batch))
    }
    return opened === wanted.length
  }

  #noteBusy(key: string): void {
    if (this.#busyAt.size >= busyMax) this.#busyAt.clear()
    this.#busyAt.set(key, performance.now())
  }

  /** Polls until the lane is open. All calls that need the lane share one poll. */
  #openLater(wanted: Wanted, batch: BatchId): Promise<void> {
    const key = wantedKey(wanted, batch)
    const known = this.#awaited.get(key)
    if (known) return known
    const awaited = this.#polls.until(() => this.#ask([wanted], batch)).finally(() => this.#awaited.delete(key))
    this.#awaited.set(key, awaited)
    return awaited
  }

  /** Opens lanes that a caller's transaction did not find. Forgets them first: what is known may be out of date. */
  openAnew(jobs: readonly Wanted[]): Promise<boolean> {
    const known = jobs.flatMap((job) => this.knownOf(job) ?? [])
    for (const lane of known) this.#forget(laneKeyOf(lane), lane)
    const wanted = this.#missing(jobs, null)
    const key = wanted.map((each) => wantedKey(each, null)).join(' ')
    const opening = this.#opening.get(key) ?? this.#openAll(wanted, null).finally(() => this.#opening.delete(key))
    this.#opening.set(key, opening)
    return opening
  }

  /** False: one of them is busy, and none was opened. */
  async #openAll(wanted: readonly Wanted[], batch: BatchId): Promise<boolean> {
    try {
      await this.#ask(wanted, batch)
      return true
    } catch (error) {
      if (!isCollision(error)) throw error
      return false
    }
  }

  /** Fails with a collision if one of them is busy. */
  async #ask(wanted: readonly Wanted[], batch: BatchId): Promise<void> {
    const values = [
      texts(wanted.map(({ queue }) => queue)),
      list(wanted.map(({ priority }) => priority ?? 'NULL')),
      defaults.retainDoneMs,
      defaults.retainDeadMs,
      batch,
    ]
    const text = 'select * from holdfast.open_lanes($1, $2, $3, $4, $5, true)'
    const rows = await withRetry(() => this.#db.once(text, values), { failFast: true })
    for (const row of rows) {
      this.#learn(row)
      this.#remember([...row.slice(0, 6), batch])
    }
    const lost = this.#own.lostOf(rows.map(([name, , , , , , version]) => [name as string, Number(version)]))
    if (lost.length > 0) {
      await this.#own.storeAgain(lost)
      return this.#ask(wanted, batch)
    }
    for (const each of wanted) this.#busyAt.delete(wantedKey(each, batch))
  }

  knows(jobs: readonly Wanted[], batch: BatchId = null): boolean {
    return this.#missing(jobs, batch).length === 0
  }

  /** Throws LanesMissing unless all of them are known. */
  require(jobs: readonly Wanted[], batch: BatchId = null): void {
    const wanted = this.#missing(jobs, batch)
    if (wanted.length > 0) throw new LanesMissing(wanted, batch)
  }

  /**
   * For work that is one request. Starts the work over if lanes are missing, because they are not open yet, or were known and
   * are gone. Waits for busy lanes.
   */
  withLanes<T>(work: () => Promise<T>): Promise<T> {
    return this.#startingOver(work, ({ wanted, batch }) => this.open(wanted, batch))
  }

  /**
   * The same without a wait, for work of several requests. The work calls `ask` with the lanes that it needs. If some are not
   * known and were not tried yet, `ask` throws LanesMissing, they are tried, and the work starts over. After that, lanes that
   * are still not known (`knows`) are busy, and the work leaves out the requests that need them.
   */
  withLanesNow<T>(work: (ask: AskForLanes) => Promise<T>): Promise<T> {
    const asked = new Set<string>()
    const ask: AskForLanes = (jobs) => {
      const wanted = this.#missing(jobs, null).filter((each) => !asked.has(wantedKey(each, null)))
      if (wanted.length > 0) throw new LanesMissing(wanted, null)
    }
    return this.#startingOver(
      () => work(ask),
      async ({ wanted, batch }) => {
        await this.openNow(wanted, batch)
        for (const each of wanted) asked.add(wantedKey(each, batch))
      },
    )
  }

  async #startingOver<T>(work: () => Promise<T>, open: (missing: LanesMissing) => Promise<unknown>): Promise<T> {
    for (let starts = 1; ; starts++) {
      try {
        return await work()
      } catch (error) {
        const isMissing = error instanceof LanesMissing
        if ((!isMissing && !this.#forgetIfOutdated(error)) || starts >= startsMax) throw error
        if (isMissing) await open(error)
      }
    }
  }

  /**
   * HF006: the database has lost a lane that this process knows, or a queue was redefined; see
   * `schema/functions/open-lanes.ts`.
   */
  #forgetIfOutdated(error: unknown): boolean {
    if ((error as { code?: unknown } | null)?.code !== 'HF006') return false
    this.#queues.clear()
    this.#byLaneKey.clear()
    this.#byNo.clear()
    this.#ofBatches.clear()
    return true
  }

  #missing(jobs: readonly Wanted[], batch: BatchId): Wanted[] {
    const missing = new Map<string, Wanted>()
    for (const job of jobs) {
      const known = this.#find(job, batch)
      if (known === undefined) missing.set(wantedKey(job, batch), job)
      else if (batch !== null) this.#use(known)
    }
    return [...missing.values()]
  }

  /** Finds a lane only if the definition of its queue is known too. */
  #find({ queue, priority }: Wanted, batch: BatchId): Lane | undefined {
    const known = this.#queues.get(queue)
    return known && this.#byLaneKey.get(laneKey(queue, priority ?? known.priority, batch))
  }

  #use(lane: Lane): void {
    this.#ofBatches.delete(lane)
    this.#ofBatches.add(lane)
  }

  /** The lane of no batch, if it is known. */
  knownOf(job: Wanted): Lane | undefined {
    return this.#find(job, null)
  }

  /** Throws LanesMissing if the lane is not known (any more), so that the work starts over. */
  of(job: Wanted, batch: BatchId = null): Lane {
    const lane = this.#find(job, batch)
    if (!lane) throw new LanesMissing([job], batch)
    return lane
  }

  /** The same for what is known of a queue. */
  queue(name: string): KnownQueue {
    const known = this.#queues.get(name)
    if (!known) throw new LanesMissing([{ queue: name, priority: null }], null)
    return known
  }

  /** Called when the queue was redefined, so that what is known of its definition is out of date. */
  forgetQueue(name: string): void {
    this.#queues.delete(name)
  }

  /** The limit key of a job, from the definitions that are known; undefined: it cannot be known. Never throws. */
  limitKeyOf(job: NewJob): string | null | undefined {
    if (job.limitKey !== undefined) return job.limitKey
    const of = this.#queues.get(job.queue)
    if (!of) return undefined
    const found = this.#keys.get(job)
    if (found?.of === of) return found.key
    const key = resolveKey(of.key, job)
    if (of.key !== null) this.#keys.set(job, { of, key })
    return key
  }

  /** The labels of a job, from the definitions that are known: JSON text, or why they do not fit. Never throws. */
  labelsOf(job: NewJob): string | null | UnfitLabel {
    const of = this.#queues.get(job.queue)
    if (!of || of.labels === null) return job.labels ?? null
    const found = this.#labels.get(job)
    if (found?.of === of) return found.labels
    const labels = resolveLabels(of.labels, job)
    this.#labels.set(job, { of, labels })
    return labels
  }

  /** The lane that a claim names; null: there is no such lane (any more). */
  async named({ no, epoch }: LaneName): Promise<Lane | null> {
    const known = () => {
      const lane = this.#byNo.get(no)
      return lane?.epoch === epoch ? lane : null
    }
    if (!known()) await this.#read(no)
    return known()
  }

  async #read(no: number): Promise<void> {
    const rows = await this.#db.query(
      `select q.name, l.priority, q.no, l.no, l.batch, l.epoch, b.id
         from holdfast.lane l join holdfast.queue q on q.no = l.queue left join holdfast.batch b on b.no = l.batch
        where l.batch = 0 or l.no = $1`,
      [no],
    )
    for (const row of rows) this.#remember(row)
  }

  /** Called when a batch was removed. */
  forgetBatch(batch: number): void {
    for (const [key, lane] of this.#byLaneKey) {
      if (lane.batch === batch) this.#forget(key, lane)
    }
  }

  #forget(key: string, lane: Lane): void {
    this.#byLaneKey.delete(key)
    if (this.#byNo.get(lane.no) === lane) this.#byNo.delete(lane.no)
    this.#ofBatches.delete(lane)
  }

  #learn([name, , , , , , , epoch, attempts, priority, keyPath, keyByCode, labels]: Row): void {
    const key: KeyRule = keyByCode === 't' ? 'code' : keyPath == null ? null : { path: keyPath }
    const defaults = { attempts: Number(attempts), priority: Number(priority) }
    const known = { epoch: epoch as string, ...defaults, key, labels: toLabelRules(labels ?? null) }
    this.#queues.set(name as string, known)
  }

  #remember([name, priority, queue, no, batch, epoch, batchId]: readonly (string | null | undefined)[]): void {
    const lane: Lane = {
      name: name as string,
      priority: Number(priority),
      queue: Number(queue),
      no: Number(no),
      batch: Number(batch),
      epoch: epoch as string,
      batchId: batchId ?? null,
    }
    const key = laneKeyOf(lane)
    const before = this.#byLaneKey.get(key)
    if (before) this.#forget(key, before)
    const namesake = this.#byNo.get(lane.no)
    if (namesake) this.#forget(laneKeyOf(namesake), namesake)
    this.#byLaneKey.set(key, lane)
    this.#byNo.set(lane.no, lane)
    if (lane.batch === 0) return
    this.#use(lane)
    const [oldest] = this.#ofBatches.size > batchLanesMax ? this.#ofBatches : []
    if (oldest) this.#forget(laneKeyOf(oldest), oldest)
  }
}

/** Rules that cannot be decoded were damaged, and find nothing. */
function toLabelRules(text: string | null): LabelRules | null {
  const rules = text === null ? null : decodeJson(text)
  return areLabelRules(rules) ? rules : null
}

/** By number, if the row of the batch is gone: a lane may outlive it for a moment. */
function laneKeyOf({ name, priority, batch, batchId }: Lane): string {
  return laneKey(name, priority, batch > 0 ? (batchId ?? `#${batch}`) : null)
}

function laneKey(queue: string, priority: number, batch: BatchId): string {
  return `${priority} ${queue} ${batch ?? ''}`
}

/** The same for a lane that is not known: which priority is the default is not known either. */
function wantedKey({ queue, priority }: Wanted, batch: BatchId): string {
  return `${priority ?? 'default'} ${queue} ${batch ?? ''}`
}
