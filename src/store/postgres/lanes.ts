// The numbers of queues and lanes, remembered by this process.
//
// A number alone says nothing about whose it is. After a failover that lost the newest commits, after a restore, or in a schema
// that was dropped and made again, the server gives the same number to another queue. So each lane has an epoch: 128 random
// bits, drawn when the lane is opened, that no other server repeats. A statement that names a lane by its number names its epoch
// too, and the server compares both in the statement that makes the change. Where they differ the statement is undone (HF006),
// this process forgets everything it remembers, and the call starts over. A claim answers with the epoch of each lane, so a job
// is never handed to the handler of another queue.
//
// Lanes are opened in a short transaction of the store's own. A stranger's transaction may open one, too: by the SQL function, or
// where an application's pool has no other connection left (`enqueueIn`). Until it commits, a first use of the same queue and
// priority elsewhere has to wait. Such a wait holds no connection: the store asks, gives up after 20 ms, and asks again a little
// later. Jobs of other lanes are not delayed.

import { setTimeout as sleep } from 'node:timers/promises'
import { defaults } from '../../job/bounds.ts'
import { list, texts } from './columns.ts'
import type { Database } from './database.ts'
import { isCollision, patiently } from './failures.ts'

/** Lanes of batches that are remembered; more than any transaction uses. */
const batchLanesMax = 10_000
/** The longest pause before a lane that another transaction is about to open is asked for again. */
const pauseMaxMs = 250

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

type Wanted = Pick<Lane, 'priority'> & { readonly queue: string }

/** Thrown inside a transaction that needs lanes which are not open yet: it is undone, they are opened, and it starts over. */
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
  readonly #byPlace = new Map<string, Lane>()
  readonly #byNo = new Map<number, Lane>()
  /** Those of batches, the one that was used longest ago first: other processes remove batches without a word. */
  readonly #ofBatches = new Set<Lane>()

  /** Lanes that another transaction is about to open, by their places. */
  readonly #awaited = new Map<string, Promise<void>>()
  /** Calls of `openAnew` under way. Callers that need the same lanes share one: each takes a connection. */
  readonly #opening = new Map<string, Promise<boolean>>()

  constructor(db: Database) {
    this.#db = db
  }

  /** Makes sure that the lanes of these jobs exist and are known, however long another transaction keeps one of them. */
  async open(jobs: readonly Wanted[], batch: BatchId = null): Promise<void> {
    if (await this.openNow(jobs, batch)) return
    await Promise.all(this.#missing(jobs, batch).map((wanted) => this.#openLater(wanted, batch)))
  }

  /** The same without a wait; false: another open transaction is about to open one of them. */
  async openNow(jobs: readonly Wanted[], batch: BatchId = null): Promise<boolean> {
    const wanted = this.#missing(jobs, batch)
    const fresh = wanted.filter(({ queue, priority }) => !this.#awaited.has(placeOf(queue, priority, batch)))
    if (fresh.length > 0 && !(await this.#openAll(fresh, batch))) return false
    return fresh.length === wanted.length
  }

  /** Asks again and again, once for all calls that need the lane. */
  #openLater(wanted: Wanted, batch: BatchId): Promise<void> {
    const place = placeOf(wanted.queue, wanted.priority, batch)
    const known = this.#awaited.get(place)
    if (known) return known
    const asking = async () => {
      for (let pauseMs = 10; !(await this.#openAll([wanted], batch)); pauseMs = Math.min(pauseMs * 2, pauseMaxMs)) {
        await sleep(Math.random() * pauseMs)
      }
    }
    const awaited = asking().finally(() => this.#awaited.delete(place))
    this.#awaited.set(place, awaited)
    return awaited
  }

  /** The same for lanes that a caller's transaction did not find: what was known of them may be out of date. */
  openAnew(jobs: readonly Wanted[]): Promise<boolean> {
    const known = jobs.flatMap((job) => this.knownOf(job) ?? [])
    for (const lane of known) this.#forget(placeOfLane(lane), lane)
    const wanted = this.#missing(jobs, null)
    const key = wanted.map(({ queue, priority }) => `${priority} ${queue}`).join(' ')
    const opening = this.#opening.get(key) ?? this.#openAll(wanted, null).finally(() => this.#opening.delete(key))
    this.#opening.set(key, opening)
    return opening
  }

  async #openAll(wanted: readonly Wanted[], batch: BatchId): Promise<boolean> {
    const values = [
      texts(wanted.map(({ queue }) => queue)),
      list(wanted.map(({ priority }) => priority)),
      defaults.retainDoneMs,
      defaults.retainDeadMs,
      batch,
    ]
    const text = 'select * from holdfast.open_lanes($1, $2, $3, $4, $5, true)'
    try {
      const rows = await patiently(() => this.#db.once(text, values), { isHasty: true })
      for (const row of rows) this.#remember([...row, batch])
      return true
    } catch (error) {
      if (!isCollision(error)) throw error
      return false
    }
  }

  knows(jobs: readonly Wanted[], batch: BatchId = null): boolean {
    return this.#missing(jobs, batch).length === 0
  }

  /** Throws LanesMissing unless all of them are known. */
  require(jobs: readonly Wanted[], batch: BatchId = null): void {
    const wanted = this.#missing(jobs, batch)
    if (wanted.length > 0) throw new LanesMissing(wanted, batch)
  }

  /** Starts over where lanes are missing: those that are not open yet, or that were known and are gone. */
  async withLanes<T>(work: () => Promise<T>): Promise<T> {
    let isAfresh = false
    for (;;) {
      try {
        return await work()
      } catch (error) {
        if (error instanceof LanesMissing) await this.open(error.wanted, error.batch)
        else if (this.#forgetIfSetBack(error) && !isAfresh) isAfresh = true
        else throw error
      }
    }
  }

  /** The database was set back behind a lane that was known here; see `migrations/0003-enqueue.ts`. */
  #forgetIfSetBack(error: unknown): boolean {
    if ((error as { code?: unknown } | null)?.code !== 'HF006') return false
    this.#byPlace.clear()
    this.#byNo.clear()
    this.#ofBatches.clear()
    return true
  }

  #missing(jobs: readonly Wanted[], batch: BatchId): Wanted[] {
    const missing = new Map<string, Wanted>()
    for (const job of jobs) {
      const place = placeOf(job.queue, job.priority, batch)
      const known = this.#byPlace.get(place)
      if (known === undefined) missing.set(place, job)
      else if (batch !== null) this.#use(known)
    }
    return [...missing.values()]
  }

  #use(lane: Lane): void {
    this.#ofBatches.delete(lane)
    this.#ofBatches.add(lane)
  }

  /** Of no batch. */
  knownOf(job: Wanted): Lane | undefined {
    return this.#byPlace.get(placeOf(job.queue, job.priority, null))
  }

  of(job: Wanted, batch: BatchId = null): Lane {
    const lane = this.#byPlace.get(placeOf(job.queue, job.priority, batch))
    if (!lane) throw new Error(`The lane of queue ${job.queue} was not opened.`)
    return lane
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
