// Sweep: what nobody holds. Each part is a transaction of its own, bounded by `max`; none waits for the disk, and one that
// is lost in a crash is simply done again.

import type { SweepReport, SweepRequest } from '../store.ts'
import type { Database, Transaction } from './database.ts'
import type { Desk } from './enqueue.ts'
import { Clerk, requireLanes, toHeld } from './settle.ts'

const upkeepEveryMs = 60_000

export class Sweeps {
  readonly #desk: Desk
  #upkeepAt = 0

  constructor(desk: Desk) {
    this.#desk = desk
  }

  /** A queue's retention has changed: its partitions are made soon. */
  expectUpkeep(): void {
    this.#upkeepAt = 0
  }

  async sweep({ max }: SweepRequest): Promise<SweepReport> {
    const rescued = await this.#rescue(max)
    const overdue = await this.#cancelOverdue(max)
    const promoted = await this.#promote(max)
    const pruned = await this.#prune(max)
    const { nextDueAt, now } = await this.#nextDue()
    const dropped = await this.#keepUp()
    return {
      rescued,
      promoted,
      overdue,
      pruned: pruned + dropped,
      more: [rescued, overdue, promoted, pruned].some((count) => count >= max),
      nextDueAt,
      now,
    }
  }

  get #db(): Database {
    return this.#desk.db
  }

  async #rescue(max: number): Promise<number> {
    const { lanes } = this.#desk
    const { count, ready } = await lanes.withLanes(() =>
      this.#db.transactLightly(async (tx) => {
        const now = await tx.readClock()
        const rows = await tx.query('select * from holdfast.expired($1, $2)', [max, now])
        const held = rows.map(toHeld)
        requireLanes(lanes, held)
        const clerk = new Clerk(tx, lanes)
        for (const job of held) if (clerk.takes(job)) await clerk.rescue(job)
        await clerk.write()
        return { count: held.length, ready: clerk.becameReady }
      }),
    )
    this.#desk.announce(ready)
    return count
  }

  #cancelOverdue(max: number): Promise<number> {
    return this.#db.transactLightly(async (tx) => {
      const now = await tx.readClock()
      const rows = await tx.query('select * from holdfast.missed($1, $2)', [max, now])
      await finishOverdue(tx, rows)
      return rows.length
    })
  }

  async #promote(max: number): Promise<number> {
    const rows = await this.#lightly('select * from holdfast.promote($1, holdfast.now_ms($2))', max)
    const ready = new Map(rows.map(([name, jobs]) => [name as string, Number(jobs)]))
    this.#desk.announce(ready)
    return [...ready.values()].reduce((sum, jobs) => sum + jobs, 0)
  }

  async #prune(max: number): Promise<number> {
    const [row] = await this.#lightly('select holdfast.prune($1, holdfast.now_ms($2))', max)
    return Number(row?.[0])
  }

  #lightly(text: string, max: number) {
    return this.#db.transactLightly((tx) => tx.query(text, [max, this.#db.now]))
  }

  async #nextDue(): Promise<{ nextDueAt: number | null; now: number }> {
    const text = 'select holdfast.next_due(), holdfast.now_ms($1)'
    const [row] = await this.#db.transactLightly((tx) => tx.query(text, [this.#db.now]))
    return { nextDueAt: row?.[0] == null ? null : Number(row[0]), now: Number(row?.[1]) }
  }

  /** Adds up counts, and now and then makes and drops partitions; under a clock of its own nothing has a partition. */
  async #keepUp(): Promise<number> {
    await this.#db.transactLightly((tx) => tx.query('select holdfast.fold()', []))
    if (this.#db.now !== null || performance.now() < this.#upkeepAt) return 0
    this.#upkeepAt = performance.now() + upkeepEveryMs
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

async function finishOverdue(tx: Transaction, rows: readonly (readonly (string | null)[])[]): Promise<void> {
  if (rows.length === 0) return
  const ended = rows.map(([id, startBefore, attempts, was]) => {
    const message = `Not started before ${new Date(Number(startBefore)).toISOString()}.`
    return {
      id,
      was,
      state: 'cancelled',
      attempts: Number(attempts),
      error: JSON.stringify({ name: 'Overdue', message }),
    }
  })
  await tx.query('select holdfast.finish($1::jsonb, $2)', [JSON.stringify(ended), tx.now])
}
