// The load for every contender, written once. It comes in two forms:
//
// underLoad     One producer, and two loops that claim a batch and settle it, each waiting for its own answers. A loop claims
//               only if jobs wait that the other loop has not reserved. So claims that find nothing are not measured. The
//               producer stays at most `ahead` batches in front of what was claimed.
// cycleInTurn   Two loops that each enqueue, claim and settle in turn, so that no loop waits for a producer.

import { pause } from './load.ts'

/** What a claim got. */
export interface Taken {
  readonly ids: readonly string[]
  /** Answers how many jobs it found. */
  settle(): Promise<number>
}

export interface Contents {
  readonly waiting: number
  readonly running: number
  readonly kept: number
}

export interface Contender extends AsyncDisposable {
  /** Called by the producer, or by one of the loops. */
  enqueue(count: number, loop?: number): Promise<void>
  claim(loop: number, max: number): Promise<Taken>
  /** Counted by the store itself; if it keeps counts, they are compared with its rows. */
  contents(): Promise<Contents>
  /** Whether done jobs are still stored. */
  readonly keeps: boolean
}

export const loops = 2
export const batch = 500
const ahead = 10
const emptyMax = 10_000
const idsMax = 1_000_000

/** What happened to the jobs of a contender; `check` throws unless each was claimed and done exactly once. */
export class Ledger {
  enqueued = 0
  claimed = 0
  settled = 0
  #ids: (readonly string[])[] | null = []

  take(ids: readonly string[]): void {
    this.claimed += ids.length
    if (this.claimed > idsMax)
      this.#ids = null // from here on only counts are checked: as many settled as enqueued, and nothing left
    else this.#ids?.push(ids)
  }

  async check(contender: Contender): Promise<void> {
    const { enqueued, claimed, settled } = this
    const distinct = this.#ids ? new Set(this.#ids.flat()).size : claimed
    const found = { claimed, distinct, settled, ...(await contender.contents()) }
    const all = { claimed: enqueued, distinct: enqueued, settled: enqueued }
    expectSame(found, { ...all, waiting: 0, running: 0, kept: contender.keeps ? enqueued : 0 })
  }
}

export function expectSame(found: object, wanted: object): void {
  if (JSON.stringify(found) !== JSON.stringify(wanted))
    throw new Error(`This run is invalid: wanted ${JSON.stringify(wanted)}, found ${JSON.stringify(found)}.`)
}

export interface Load {
  /** Jobs that already wait. */
  readonly waiting?: number
  /** Whether to enqueue another batch, given how many jobs were enqueued under this load. */
  readonly wants: (enqueued: number) => boolean
  readonly onSettled?: (jobs: number) => void
}

/** Runs until the producer wants no more and no job is left. */
export async function underLoad(contender: Contender, ledger: Ledger, load: Load): Promise<void> {
  const { waiting = 0, wants, onSettled } = load
  let free = waiting // jobs that wait and that no loop has reserved
  let enqueued = 0
  let isProducing = true
  let empty = 0
  const changes = new Changes()
  const produce = async () => {
    while (wants(enqueued)) {
      if (free >= ahead * batch) {
        await changes.next()
        continue
      }
      await contender.enqueue(batch)
      enqueued += batch
      ledger.enqueued += batch
      free += batch
      changes.notify()
    }
    isProducing = false
    changes.notify()
  }
  const consume = async (loop: number) => {
    for (;;) {
      if (free <= 0) {
        if (!isProducing) return
        await changes.next()
        continue
      }
      const want = Math.min(batch, free)
      free -= want
      const taken = await contender.claim(loop, want)
      free += want - taken.ids.length
      changes.notify()
      if (taken.ids.length === 0) {
        if (++empty > emptyMax) throw new Error('Jobs wait, but claims find nothing: this run is invalid.')
        await pause(1)
        continue
      }
      ledger.take(taken.ids)
      const settled = await taken.settle()
      ledger.settled += settled
      onSettled?.(settled)
    }
  }
  await Promise.all([produce(), ...Array.from({ length: loops }, (_, loop) => consume(loop))])
}

export async function cycle(contender: Contender, ledger: Ledger, jobs: number): Promise<void> {
  await underLoad(contender, ledger, { wants: (enqueued) => enqueued < jobs })
}

/** Two loops, each of which enqueues a batch, claims one, settles it, and only then continues. */
export async function cycleInTurn(contender: Contender, ledger: Ledger, jobs: number): Promise<void> {
  let left = jobs
  const work = async (loop: number) => {
    while (left > 0) {
      left -= batch
      await contender.enqueue(batch, loop)
      ledger.enqueued += batch
      await takeOne(contender, ledger, loop)
    }
    while (await takeOne(contender, ledger, loop)); // jobs that a smaller claim left
  }
  await Promise.all(Array.from({ length: loops }, (_, loop) => work(loop)))
}

async function takeOne(contender: Contender, ledger: Ledger, loop: number): Promise<boolean> {
  const taken = await contender.claim(loop, batch)
  if (taken.ids.length === 0) return false
  ledger.take(taken.ids)
  const settled = await taken.settle()
  ledger.settled += settled
  return true
}

export async function drainAll(contender: Contender, ledger: Ledger, jobs: number): Promise<void> {
  await underLoad(contender, ledger, { waiting: jobs, wants: () => false })
}

export async function fill(contender: Contender, ledger: Ledger, jobs: number, size = 1_000): Promise<void> {
  for (let at = 0; at < jobs; at += size) await contender.enqueue(Math.min(size, jobs - at))
  ledger.enqueued += jobs
}

/** Wakes all loops that wait for a change. */
class Changes {
  #change = Promise.withResolvers<void>()

  next(): Promise<void> {
    return this.#change.promise
  }

  notify(): void {
    this.#change.resolve()
    this.#change = Promise.withResolvers<void>()
  }
}
