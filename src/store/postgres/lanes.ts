// The numbers of queues and lanes, remembered by this process.
//
// A number alone says nothing about whose it is. After a failover that lost the newest commits, after a restore, or in a schema
// that was dropped and made again, the server gives the same number to another queue. So each lane has an epoch: 128 random
// bits, drawn when the lane is opened, that no other server repeats. A statement that names a lane by its number names its epoch
// too, and the server compares both in the statement that makes the change. Where they differ the statement is undone (HF006),
// this process forgets everything it remembers, and the call starts over. A claim answers with the epoch of each lane, so a job
// is never handed to the handler of another queue.
//
// Beside each lane is remembered what the queue's definition says of jobs, with the epoch of that definition. Whatever is filled in
// from here is sent along with that epoch, and the statement checks it in the same way; see `schema/functions/limit-key.ts`.
// If the server has lost a definition that this process has stored, the process stores it again before it enqueues; see
// `own-definitions.ts`.
//
// Lanes are opened in a short transaction of the store's own. An application's transaction may open one, too: by the SQL function,
// or where an application's pool has no other connection left (`enqueueIn`). Until it commits, that lane is busy: a first use of the
// same queue and priority elsewhere has to wait for it. Only what needs that lane may be delayed by it:
//
// - A call that is one request waits (`open`, `withLanes`). It holds no connection meanwhile; see `lock-polls.ts`. All calls that
//   wait for the same lane share one asker.
// - A call that carries several requests never waits (`withLanesNow`). It asks once for each lane that it misses, and leaves out what
//   needs a busy one. An enqueue or a settlement that was left out goes alone, behind the others. The sweep leaves such a job for a
//   later sweep, a schedule its slot for a later look, and the end of a batch is found again by the sweep.

import { defaults } from '../../job/bounds.ts'
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
/** How long a lane that was found busy counts as busy for calls that do not wait. Each ask may take 20 ms of a connection. */
const busyMs = 100
/** How many lanes one call asks for one by one, where it could not open all of them together. */
const asksMax = 8
/** Lanes that are remembered as busy. */
const busyMax = 10_000

/** Null: of no batch. */
export type BatchId = string | null

/** Which lane: its number, and the epoch that tells it from another lane with that number. */
export interface LaneName {
  /** Of jobs in their turn; those that came back have the next number. */
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

/** Without a priority: of the one that the queue's definition says. */
export interface Wanted {
  readonly queue: string
  readonly priority: number | null
}

/** What a queue's definition says of jobs. */
export interface KnownQueue {
  /** Which definition. */
  readonly epoch: string
  readonly attempts: number
  readonly priority: number
  readonly key: KeyRule
}

/** Lanes of no batch that work needs; see `withLanesNow`. */
export type AskForLanes = (jobs: readonly Wanted[]) => void

/** How often work is started over, because lanes are missing or definitions change meanwhile. */
const startsMax = 10

/**
 * Thrown before a statement is sent, inside a transaction or not, that needs lanes which are not known here: it is undone, they
 * are opened, and it starts over.
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
  readonly #byPlace = new Map<string, Lane>()
  readonly #byNo = new Map<number, Lane>()
  readonly #queues = new Map<string, KnownQueue>()
  /** Limit keys that were found, so that a payload is read once. */
  readonly #keys = new WeakMap<NewJob, { readonly of: KnownQueue; readonly key: string | null | undefined }>()
  /** Those of batches, the one that was used longest ago first: other processes remove batches without a word. */
  readonly #ofBatches = new Set<Lane>()

  /** Busy lanes that some call waits for, by their places. */
  readonly #awaited = new Map<string, Promise<void>>()
  /** When a lane was found busy last, by its place. */
  readonly #busyAt = new Map<string, number>()
  /** Calls of `openAnew` under way. Callers that need the same lanes share one: each takes a connection. */
  readonly #opening = new Map<string, Promise<boolean>>()

  constructor(db: Database, polls: LockPolls, own: OwnDefinitions) {
    this.#db = db
    this.#polls = polls
    this.#own = own
  }

  /** Makes sure that the lanes of these jobs exist and are known, however long another transaction keeps one of them. */
  async open(jobs: readonly Wanted[], batch: BatchId = null): Promise<void> {
    if (await this.openNow(jobs, batch)) return
    await Promise.all(this.#missing(jobs, batch).map((wanted) => this.#openLater(wanted, batch)))
  }

  /** The same without a wait. Opens all that are not busy; false: some are. */
  async openNow(jobs: readonly Wanted[], batch: BatchId = null): Promise<boolean> {
    const wanted = this.#missing(jobs, batch)
    const fresh = wanted.filter((each) => !this.#isBusy(wantedPlace(each, batch)))
    const areOpen = fresh.length === 0 || (await this.#openAll(fresh, batch)) || (await this.#openSome(fresh, batch))
    return areOpen && fresh.length === wanted.length
  }

  #isBusy(place: string): boolean {
    const foundAt = this.#busyAt.get(place) ?? Number.NEGATIVE_INFINITY
    return this.#awaited.has(place) || performance.now() - foundAt < busyMs
  }

  /**
   * One by one, because one busy lane keeps all from being opened together. The lanes that were found busy longest ago go first, so
   * that each has its turn in some call.
   */
  async #openSome(wanted: readonly Wanted[], batch: BatchId): Promise<boolean> {
    const [only] = wanted
    if (only && wanted.length === 1) {
      this.#noteBusy(wantedPlace(only, batch))
      return false
    }
    const foundAt = (each: Wanted) => this.#busyAt.get(wantedPlace(each, batch)) ?? 0
    const asked = [...wanted].sort((a, b) => foundAt(a) - foundAt(b)).slice(0, asksMax)
    let opened = 0
    for (const each of asked) {
      if (await this.#openAll([each], batch)) opened += 1
      else this.#noteBusy(wantedPlace(each, batch))
    }
    return opened === wanted.length
  }

  #noteBusy(place: string): void {
    if (this.#busyAt.size >= busyMax) this.#busyAt.clear()
    this.#busyAt.set(place, performance.now())
  }

  /** Asks again and again, once for all calls that need the lane. */
  #openLater(wanted: Wanted, batch: BatchId): Promise<void> {
    const place = wantedPlace(wanted, batch)
    const known = this.#awaited.get(place)
    if (known) return known
    const awaited = this.#polls.until(() => this.#ask([wanted], batch)).finally(() => this.#awaited.delete(place))
    this.#awaited.set(place, awaited)
    return awaited
  }

  /** The same for lanes that a caller's transaction did not find: what was known of them may be out of date. */
  openAnew(jobs: readonly Wanted[]): Promise<boolean> {
    const known = jobs.flatMap((job) => this.knownOf(job) ?? [])
    for (const lane of known) this.#forget(placeOfLane(lane), lane)
    const wanted = this.#missing(jobs, null)
    const key = wanted.map((each) => wantedPlace(each, null)).join(' ')
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

  /** Gives up where one of them is busy. */
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
    for (const each of wanted) this.#busyAt.delete(wantedPlace(each, batch))
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
   * For work that is one request: starts over where lanes are missing, because they are not open yet, or were known and are gone.
   * Waits for a busy lane.
   */
  withLanes<T>(work: () => Promise<T>): Promise<T> {
    return this.#startingOver(work, ({ wanted, batch }) => this.open(wanted, batch))
  }

  /**
   * The same without a wait, for work of several requests. `ask` throws LanesMissing for lanes that are not known and were not asked
   * for yet: then they are asked for, and the work starts over. After that, lanes that are still not known (`knows`) are busy, and the
   * work leaves out what needs them.
   */
  withLanesNow<T>(work: (ask: AskForLanes) => Promise<T>): Promise<T> {
    const asked = new Set<string>()
    const ask: AskForLanes = (jobs) => {
      const wanted = this.#missing(jobs, null).filter((each) => !asked.has(wantedPlace(each, null)))
      if (wanted.length > 0) throw new LanesMissing(wanted, null)
    }
    return this.#startingOver(
      () => work(ask),
      async ({ wanted, batch }) => {
        await this.openNow(wanted, batch)
        for (const each of wanted) asked.add(wantedPlace(each, batch))
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

  /** The database was set back behind a lane that was known here, or a queue was defined anew; see `schema/functions/open-lanes.ts`. */
  #forgetIfOutdated(error: unknown): boolean {
    if ((error as { code?: unknown } | null)?.code !== 'HF006') return false
    this.#queues.clear()
    this.#byPlace.clear()
    this.#byNo.clear()
    this.#ofBatches.clear()
    return true
  }

  #missing(jobs: readonly Wanted[], batch: BatchId): Wanted[] {
    const missing = new Map<string, Wanted>()
    for (const job of jobs) {
      const known = this.#find(job, batch)
      if (known === undefined) missing.set(wantedPlace(job, batch), job)
      else if (batch !== null) this.#use(known)
    }
    return [...missing.values()]
  }

  /** Only where it is also known what the queue's definition says. */
  #find({ queue, priority }: Wanted, batch: BatchId): Lane | undefined {
    const known = this.#queues.get(queue)
    return known && this.#byPlace.get(placeOf(queue, priority ?? known.priority, batch))
  }

  #use(lane: Lane): void {
    this.#ofBatches.delete(lane)
    this.#ofBatches.add(lane)
  }

  /** Of no batch. */
  knownOf(job: Wanted): Lane | undefined {
    return this.#find(job, null)
  }

  /** Another call may have found that what is known here is out of date: then the work starts over (LanesMissing). */
  of(job: Wanted, batch: BatchId = null): Lane {
    const lane = this.#find(job, batch)
    if (!lane) throw new LanesMissing([job], batch)
    return lane
  }

  /** The same. */
  queue(name: string): KnownQueue {
    const known = this.#queues.get(name)
    if (!known) throw new LanesMissing([{ queue: name, priority: null }], null)
    return known
  }

  /** What is known of this queue's definition is out of date. */
  forgetQueue(name: string): void {
    this.#queues.delete(name)
  }

  /** The limit key of a job, by what is known here; undefined: it is not known. Never throws, so it may be asked at any time. */
  keyOf(job: NewJob): string | null | undefined {
    if (job.limitKey !== undefined) return job.limitKey
    const of = this.#queues.get(job.queue)
    if (!of) return undefined
    const found = this.#keys.get(job)
    if (found?.of === of) return found.key
    const key = resolveKey(of.key, job)
    if (of.key !== null) this.#keys.set(job, { of, key })
    return key
  }

  /** The lane that a claim names; null where no such lane is there (any more). */
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

  /** The lanes of a batch are not needed any more. */
  forgetBatch(batch: number): void {
    for (const [place, lane] of this.#byPlace) {
      if (lane.batch === batch) this.#forget(place, lane)
    }
  }

  #forget(place: string, lane: Lane): void {
    this.#byPlace.delete(place)
    if (this.#byNo.get(lane.no) === lane) this.#byNo.delete(lane.no)
    this.#ofBatches.delete(lane)
  }

  #learn([name, , , , , , , epoch, attempts, priority, keyPath, keyByCode]: Row): void {
    const key = keyByCode === 't' ? 'code' : keyPath == null ? null : { path: keyPath }
    const known = { epoch: epoch as string, attempts: Number(attempts), priority: Number(priority), key } as const
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
    const place = placeOfLane(lane)
    const before = this.#byPlace.get(place)
    if (before) this.#forget(place, before)
    const namesake = this.#byNo.get(lane.no)
    if (namesake) this.#forget(placeOfLane(namesake), namesake)
    this.#byPlace.set(place, lane)
    this.#byNo.set(lane.no, lane)
    if (lane.batch === 0) return
    this.#use(lane)
    const [oldest] = this.#ofBatches.size > batchLanesMax ? this.#ofBatches : []
    if (oldest) this.#forget(placeOfLane(oldest), oldest)
  }
}

/** A lane may outlive the row of its batch for a moment. */
function placeOfLane({ name, priority, batch, batchId }: Lane): string {
  return placeOf(name, priority, batch > 0 ? (batchId ?? `#${batch}`) : null)
}

function placeOf(queue: string, priority: number, batch: BatchId): string {
  return `${priority} ${queue} ${batch ?? ''}`
}

/** The same for a lane that is not known: of the default priority, it is not known which one that is. */
function wantedPlace({ queue, priority }: Wanted, batch: BatchId): string {
  return `${priority ?? 'default'} ${queue} ${batch ?? ''}`
}
