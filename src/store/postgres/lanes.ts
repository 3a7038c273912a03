// Numbers of queues and lanes, remembered. They are made outside of every other transaction, so that a caller's long one
// does not keep others from using the same queue.

import { defaults } from '../../job/bounds.ts'
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

type Wanted = Pick<Lane, 'priority'> & { readonly queue: string }

/** Thrown inside a transaction that needs lanes nobody has opened yet: it is undone, they are opened, and it starts over. */
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
  /** Those of batches, the one that was used longest ago first: other processes remove batches without a word. */
  readonly #ofBatches = new Set<Lane>()

  constructor(db: Database) {
    this.#db = db
  }

  /** Makes sure that the lanes of these jobs exist and are known. */
  async open(jobs: readonly Wanted[], batch: BatchNo = 0): Promise<void> {
    const wanted = this.#missing(jobs, batch)
    if (wanted.length === 0) return
    const rows = await this.#db.query('select * from holdfast.open_lanes($1, $2, $3, $4, $5)', [
      texts(wanted.map(({ queue }) => queue)),
      list(wanted.map(({ priority }) => priority)),
      defaults.retainDoneMs,
      defaults.retainDeadMs,
      batch,
    ])
    for (const row of rows) this.#remember([...row, String(batch)])
  }

  /** Throws LanesMissing unless all of them are known. */
  require(jobs: readonly Wanted[], batch: BatchNo = 0): void {
    const wanted = this.#missing(jobs, batch)
    if (wanted.length > 0) throw new LanesMissing(wanted, batch)
  }

  /** Starts over where lanes are missing: those that nobody has opened yet, or that were known and are gone. */
  async withLanes<T>(work: () => Promise<T>): Promise<T> {
    let isAfresh = false
    for (;;) {
      try {
        return await work()
      } catch (error) {
        if (error instanceof LanesMissing) await this.open(error.wanted, error.batch)
        else if (this.forgetIfSetBack(error) && !isAfresh) isAfresh = true
        else throw error
      }
    }
  }

  /** The database was set back behind a lane that was known here; see `migrations/0003-enqueue.ts`. */
  forgetIfSetBack(error: unknown): boolean {
    if ((error as { code?: unknown } | null)?.code !== 'HF006') return false
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
    if (!lane) throw new Error(`The lane of queue ${job.queue} was not opened.`)
    return lane
  }

  known(no: number): Lane | undefined {
    return this.#byNo.get(no & ~1)
  }

  /** The lane of a number, whichever of its two, from the database. */
  async byNo(no: number): Promise<Lane> {
    const rows = await this.#db.query(
      `select q.name, l.priority, q.no, l.no, l.batch from holdfast.lane l join holdfast.queue q on q.no = l.queue
        where l.batch = 0 or l.no = $1`,
      [no & ~1],
    )
    for (const row of rows) this.#remember(row)
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

  #remember([name, priority, queue, no, batch]: readonly (string | null)[]): void {
    const lane = { name: name as string, priority: Number(priority), queue: Number(queue), lane: Number(no) }
    const known = { ...lane, batch: Number(batch) }
    const place = placeOf(known.name, known.priority, known.batch)
    const before = this.#byPlace.get(place)
    if (before) this.#forget(place, before)
    this.#byPlace.set(place, known)
    this.#byNo.set(known.lane, known)
    if (known.batch === 0) return
    this.#use(known)
    const [oldest] = this.#ofBatches.size > batchLanesMax ? this.#ofBatches : []
    if (oldest) this.#forget(placeOf(oldest.name, oldest.priority, oldest.batch), oldest)
  }
}

function placeOf(queue: string, priority: number, batch: BatchNo): string {
  return `${priority} ${queue} ${batch}`
}
