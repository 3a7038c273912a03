// Sweep: what nobody holds, in one transaction that does not wait for the disk; one that is lost in a crash is simply done
// again. Each part is bounded by `max`. Jobs that missed their start come first because they need lane locks, which are
// taken before the locks of rows here as everywhere.

import { overdueError } from '../../job/error.ts'
import { encodeError } from '../../job/stored.ts'
import type { LapsedHold, SweepReport, SweepRequest, UndeliverableJob } from '../store.ts'
import { sweepBatches } from './batch-steering.ts'
import { Clerk } from './clerk.ts'
import type { Database, Transaction } from './database.ts'
import type { Desk } from './enqueue.ts'
import { patiently } from './failures.ts'
import { attendKnocked, type KnockList } from './gates.ts'
import { heal } from './heal.ts'
import { requireLanes, toHeld } from './held.ts'
import type { Lanes } from './lanes.ts'
import { pruneProgress } from './progress.ts'

const upkeepEveryMs = 60_000
const lookBackMs = 5_000
const fullEveryMs = 60_000
const batchesEveryMs = 5_000
/** Whoever waits sweeps more often than this anyway. */
const horizonMs = 2_000
const farOff = Number.MAX_SAFE_INTEGER
/** Many may say the same, and most are no work. */
const knocksMin = 200

export class Sweeps {
  readonly #desk: Desk
  #upkeepAt = 0
  /** The time of the last sweep that left nothing, and when the next one begins at the beginning. */
  #sweptUntil = 0
  #fullAt = 0
  /** Who knocked in a transaction before this one was heard. */
  #knocksFrom = '0'
  #allKnocksAt = 0
  #allBatchesAt = 0
  /** Up to which number this round has looked at batches; null: it is over. */
  #batchesFrom: number | null = null

  constructor(desk: Desk) {
    this.#desk = desk
  }

  /** A queue's retention has changed: its partitions are made soon. */
  expectUpkeep(): void {
    this.#upkeepAt = 0
  }

  async sweep({ max }: SweepRequest): Promise<SweepReport> {
    const { lanes, db } = this.#desk
    const {
      report,
      ready,
      batches: ended,
      buried,
    } = await lanes.withLanes(() => db.transactLightly((tx) => sweepOnce(tx, lanes, max, (now) => this.#from(now))))
    if (!report.more) this.#sweptUntil = report.now
    this.#desk.announce(ready)
    for (const job of buried) this.#desk.undeliverable(job)
    await this.#desk.attend({ batches: ended })
    const { admitted, heardAll } = await this.#admit(Math.max(max, knocksMin))
    const pruneMax = Math.max(0, max - report.pruned)
    const batches = await sweepBatches(this.#desk, { max, pruneMax, from: this.#fromBatch() })
    this.#batchesFrom = batches.next
    const dropped = await this.#keepUp()
    return {
      ...report,
      admitted,
      pruned: report.pruned + dropped + batches.pruned,
      more: report.more || admitted >= max || !heardAll || batches.more,
    }
  }

  /** One whose last item was settled by somebody who died before he had looked is found so: all in turn, some in each sweep. */
  #fromBatch(): number | null {
    if (this.#batchesFrom !== null) return this.#batchesFrom
    if (this.#db.now === null && performance.now() < this.#allBatchesAt) return null
    this.#allBatchesAt = performance.now() + batchesEveryMs
    return 0
  }

  /** Who knocked and was not attended to: in somebody's own transaction, or by a process that died. Heard is who was attended to. */
  async #admit(max: number): Promise<{ readonly admitted: number; readonly heardAll: boolean }> {
    const isFull = this.#db.now !== null || performance.now() >= this.#allKnocksAt
    const from = isFull ? '0' : this.#knocksFrom
    const [row] = await this.#db.query('select * from holdfast.knocked($1::text::xid8, $2)', [from, max])
    const gates = JSON.parse(row?.[0] ?? '[]') as string[]
    const lists = JSON.parse(row?.[1] ?? '[]') as KnockList[]
    const admitted = await patiently(() => attendKnocked(this.#db, gates, lists))
    if (isFull) this.#allKnocksAt = performance.now() + fullEveryMs
    const heardAll = row?.[3] === 't'
    if (heardAll) this.#knocksFrom = row?.[2] as string
    this.#desk.announce(admitted)
    return { admitted: [...admitted.values()].reduce((sum, jobs) => sum + jobs, 0), heardAll }
  }

  /** What was due before this has been swept; see `migrations/0006-sweep.ts`. */
  #from(now: number): number {
    const isFull = this.#db.now !== null || now < this.#sweptUntil || performance.now() >= this.#fullAt
    if (isFull) this.#fullAt = performance.now() + fullEveryMs
    return isFull ? 0 : Math.max(0, this.#sweptUntil - lookBackMs)
  }

  get #db(): Database {
    return this.#desk.db
  }

  /**
   * Adds up counts, and now and then looks whether the database was restored, forgets the progress of what has ended and makes and drops partitions; under a clock of
   * its own nothing has a partition.
   */
  async #keepUp(): Promise<number> {
    await this.#db.transactLightly((tx) => tx.query('select holdfast.fold()', []))
    if (this.#db.now !== null || performance.now() < this.#upkeepAt) return 0
    this.#upkeepAt = performance.now() + upkeepEveryMs
    await heal(this.#db)
    await pruneProgress(this.#db)
    await this.#db.transactLightly((tx) => tx.query('select holdfast.make_partitions(holdfast.now_ms(null))', []))
    let dropped = 0
    for (;;) {
      const [row] = await this.#db.transactLightly((tx) =>
        tx.query('select holdfast.drop_partition(holdfast.now_ms(null))', []),
      )
      if (row?.[0] == null) return dropped
      dropped += Number(row[0])
    }
  }
}

interface Swept {
  readonly report: SweepReport
  readonly ready: ReadonlyMap<string, number>
  /** Of which items have ended. */
  readonly batches: readonly number[]
  readonly buried: readonly UndeliverableJob[]
}

async function sweepOnce(tx: Transaction, lanes: Lanes, max: number, fromOf: (now: number) => number): Promise<Swept> {
  const now = await tx.readClock()
  const from = fromOf(now)
  const clerk = new Clerk(tx, lanes)
  let overdue = await cancelOverdue(tx, max)
  const lapsed = await rescueExpired(tx, lanes, clerk, { max, from })
  // What a rescue enqueued (the effects of a requested cancel) may be too late already.
  if (lapsed.length > 0 && overdue < max) overdue += await cancelOverdue(tx, max - overdue)
  const promoted = await promoteDue(tx, clerk, { max, from })
  const starts = await endWindows(tx, clerk, { max, from })
  const [pruned] = await tx.query('select holdfast.prune($1, $2, $3)', [max, now, from])
  const [due] = await tx.query('select holdfast.next_due($1, $2)', [from, from === 0 ? farOff : now + horizonMs])
  const counts = { rescued: lapsed.length, promoted, overdue, pruned: Number(pruned?.[0]) }
  const more = [...Object.values(counts), starts].some((count) => count >= max)
  const nextDueAt = due?.[0] == null ? null : Number(due[0])
  const { batches = [] } = clerk.knocks
  const report = { ...counts, admitted: 0, lapsed, more, nextDueAt, now }
  return { report, ready: clerk.becameReady, batches, buried: clerk.undeliverable }
}

interface Range {
  readonly max: number
  readonly from: number
}

async function rescueExpired(tx: Transaction, lanes: Lanes, clerk: Clerk, { max, from }: Range): Promise<LapsedHold[]> {
  const found = await tx.query('select * from holdfast.expired($1, $2, $3, $4)', [max, tx.now, from, tx.clock])
  const held = found.map(toHeld)
  requireLanes(lanes, held)
  const lapsed: LapsedHold[] = []
  for (const job of held) if (clerk.takes(job)) lapsed.push(await clerk.rescue(job))
  await clerk.write()
  return lapsed
}

async function promoteDue(tx: Transaction, clerk: Clerk, { max, from }: Range): Promise<number> {
  let promoted = 0
  for (const [name, jobs, ready] of await tx.query('select * from holdfast.promote($1, $2, $3)', [max, tx.now, from])) {
    if (Number(ready) > 0) clerk.wake(name as string, Number(ready))
    promoted += Number(jobs)
  }
  return promoted
}

/** Starts that count no more leave room for others: of a key, who knocks for them is heard below; of a queue, at once. */
async function endWindows(tx: Transaction, clerk: Clerk, { max, from }: Range): Promise<number> {
  const [row] = await tx.query('select * from holdfast.end_windows($1, $2, $3)', [tx.now, from, max])
  for (const queue of JSON.parse(row?.[1] ?? '[]') as string[]) clerk.wake(queue, 1)
  return Number(row?.[0])
}

async function cancelOverdue(tx: Transaction, max: number): Promise<number> {
  const rows = await tx.query('select * from holdfast.missed($1, $2)', [max, tx.now])
  if (rows.length === 0) return 0
  const ended = rows.map(([id, startBefore, attempts, was]) => {
    const error = encodeError(overdueError(Number(startBefore)))
    return { id, was, state: 'cancelled', attempts: Number(attempts), error }
  })
  await tx.query('select holdfast.finish($1::jsonb, $2)', [JSON.stringify(ended), tx.now])
  return rows.length
}
