// Numbers of queues and lanes, remembered. They are made outside of every other transaction, so that a caller's long one
// does not keep others from using the same queue.
//
// Beside each lane is remembered what the queue's definition says of jobs, with its version. Whatever is filled in from here is
// sent along with that version, and the statement checks it; see `migrations/0015-definitions.ts`.

import { defaults } from '../../job/bounds.ts'
import { type KeyRule, resolveKey } from '../../job/limit-key.ts'
import type { NewJob } from '../../job/record.ts'
import type { Row } from './call.ts'
import { list, texts } from './columns.ts'
import type { Database } from './database.ts'

/** Lanes of batches that are remembered; more than any transaction uses. */
const batchLanesMax = 10_000

/** 0: of no batch. */
type BatchNo = number

export interface Lane {
  readonly queue: number
  readonly name: string
  readonly priority: number
  /** Of jobs in their turn; those that came back have the next number. */
  readonly lane: number
  readonly batch: BatchNo
}

/** Without a priority: of the one that the queue's definition says. */
interface Wanted {
  readonly queue: string
  readonly priority: number | null
}

/** What a version of a queue's definition says of jobs. */
export interface KnownQueue {
  readonly version: number
  readonly attempts: number
  readonly priority: number
  readonly key: KeyRule
}

/** How often work is started over because definitions change meanwhile. */
const startsMax = 10

/** Thrown before a statement is sent, inside a transaction or not, that needs lanes which are not known here: it is undone, they are opened, and it starts over. */
export class LanesMissing extends Error {
  readonly wanted: readonly Wanted[]
  readonly batch: BatchNo

  constructor(wanted: readonly Wanted[], batch: BatchNo) {
    super('Some lanes are not open yet.')
    this.wanted = wanted
    this.batch = batch
  }
}

export class Lanes {
  readonly #db: Database
  readonly #byPlace = new Map<string, Lane>()
  readonly #byNo = new Map<number, Lane>()
  readonly #queues = new Map<string, KnownQueue>()
  /** Limit keys that were found, so that a payload is read once. */
  readonly #keys = new WeakMap<NewJob, { readonly of: KnownQueue; readonly key: string | null | undefined }>()
  /** Those of batches, the one that was used longest ago first: other processes remove batches without a word. */
  readonly #ofBatches = new Set<Lane>()
  readonly #places = new WeakMap<Lane, string>()

  constructor(db: Database) {
    this.#db = db
  }

  /** Makes sure that the lanes of these jobs exist and are known. */
  async open(jobs: readonly Wanted[], batch: BatchNo = 0): Promise<void> {
    const wanted = this.#missing(jobs, batch)
    if (wanted.length === 0) return
    const rows = await this.#db.query('select * from holdfast.open_lanes($1, $2, $3, $4, $5)', [
      texts(wanted.map(({ queue }) => queue)),
      list(wanted.map(({ priority }) => priority ?? 'NULL')),
      defaults.retainDoneMs,
      defaults.retainDeadMs,
      batch,
    ])
    for (const row of rows) this.#remember(row, batch)
  }

  /** Throws LanesMissing unless all of them are known. */
  require(jobs: readonly Wanted[], batch: BatchNo = 0): void {
    const wanted = this.#missing(jobs, batch)
    if (wanted.length > 0) throw new LanesMissing(wanted, batch)
  }

  /** Starts over where lanes are missing: those that nobody has opened yet, or that were known and are gone. */
  async withLanes<T>(work: () => Promise<T>): Promise<T> {
    for (let starts = 1; ; starts++) {
      try {
        return await work()
      } catch (error) {
        if (error instanceof LanesMissing) await this.open(error.wanted, error.batch)
        else if (!this.forgetIfSetBack(error) || starts >= startsMax) throw error
      }
    }
  }

  /**
   * The database was set back behind a lane that was known here (`migrations/0003-enqueue.ts`), or a queue was defined anew: then
   * a job may also be refused (HF108) that nobody expected to be.
   */
  forgetIfSetBack(error: unknown): boolean {
    const code = (error as { code?: unknown } | null)?.code
    if (code !== 'HF006' && code !== 'HF108') return false
    this.#queues.clear()
    this.#byPlace.clear()
    this.#byNo.clear()
    this.#ofBatches.clear()
    return true
  }

  #missing(jobs: readonly Wanted[], batch: BatchNo): Wanted[] {
    const missing = new Map<string, Wanted>()
    for (const job of jobs) {
      const place = placeOf(job.queue, job.priority, batch)
      const known = this.#byPlace.get(place)
      if (known === undefined) missing.set(place, job)
      else if (batch !== 0) this.#use(known)
    }
    return [...missing.values()]
  }

  #use(lane: Lane): void {
    this.#ofBatches.delete(lane)
    this.#ofBatches.add(lane)
  }

  /** Of no batch. */
  knownOf(job: Wanted): Lane | undefined {
    return this.#byPlace.get(placeOf(job.queue, job.priority, 0))
  }

  of(job: Wanted, batch: BatchNo = 0): Lane {
    const lane = this.#byPlace.get(placeOf(job.queue, job.priority, batch))
    if (!lane) throw new LanesMissing([job], batch)
    return lane
  }

  /** Another call may have met a definition that is new, and all is forgotten: then the work starts over (LanesMissing). */
  queue(name: string): KnownQueue {
    const known = this.#queues.get(name)
    if (!known) throw new LanesMissing([{ queue: name, priority: null }], 0)
    return known
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

  known(no: number): Lane | undefined {
    return this.#byNo.get(no & ~1)
  }

  /** The lane of a number, whichever of its two, from the database. */
  async byNo(no: number): Promise<Lane> {
    const rows = await this.#db.query(
      `select q.name, l.priority, q.no, l.no, false, q.version, q.attempts, q.priority, q.key_path, q.key_by_code, l.batch
         from holdfast.lane l join holdfast.queue q on q.no = l.queue
        where l.batch = 0 or l.no = $1`,
      [no & ~1],
    )
    for (const row of rows) this.#remember(row, Number(row[10]))
    return this.#byNo.get(no & ~1) as Lane
  }

  /** The lanes of a batch are not needed any more. */
  forgetBatch(batch: BatchNo): void {
    for (const [place, lane] of this.#byPlace) {
      if (lane.batch === batch) this.#forget(place, lane)
    }
  }

  #forget(place: string, lane: Lane): void {
    this.#byPlace.delete(place)
    this.#byNo.delete(lane.lane)
    this.#ofBatches.delete(lane)
  }

  #remember(row: Row, batch: BatchNo): void {
    const [name, priority, queue, no, isDefault] = row
    this.#learn(name as string, row)
    const lane = { name: name as string, priority: Number(priority), queue: Number(queue), lane: Number(no), batch }
    const place = placeOf(lane.name, isDefault === 't' ? null : lane.priority, batch)
    const before = this.#byPlace.get(place)
    if (before) this.#forget(place, before)
    this.#byPlace.set(place, lane)
    this.#byNo.set(lane.lane, lane)
    if (batch === 0) return
    this.#places.set(lane, place)
    this.#use(lane)
    const [oldest] = this.#ofBatches.size > batchLanesMax ? this.#ofBatches : []
    if (oldest) this.#forget(this.#places.get(oldest) as string, oldest)
  }

  /** Where another version is met, lanes of the default priority may be others. */
  #learn(name: string, [, , , , , version, attempts, priority, keyPath, keyByCode]: Row): void {
    const known = this.#queues.get(name)
    if (known?.version === Number(version)) return
    if (known)
      for (const [place, lane] of this.#byPlace)
        if (place === placeOf(name, null, lane.batch)) this.#forget(place, lane)
    const key = keyByCode === 't' ? 'code' : keyPath == null ? null : { path: keyPath }
    this.#queues.set(name, { version: Number(version), attempts: Number(attempts), priority: Number(priority), key })
  }
}

function placeOf(queue: string, priority: number | null, batch: BatchNo): string {
  return `${priority ?? 'default'} ${queue} ${batch}`
}
