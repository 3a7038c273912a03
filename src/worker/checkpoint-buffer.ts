// What one run writes while it keeps its lease: items that wait until they are committed. All items that wait go in one request.
// One request of a run is in flight at a time, so the numbers of its records are known.
//
// REFUSED. If the store refuses a part of a request, nothing of it was written. An item that was alone is told. Otherwise each
// item is sent again, alone, in the same order: so a refused effect fails one step, and not those beside it.

import { type HoldfastError, isRefused, type Refused, toError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import type { AwaitedKey, JournalWrites, StepRecord } from '../job/journal.ts'
import type { EffectSet, NewJob } from '../job/record.ts'
import { together } from '../queue/effects.ts'
import type { CheckpointAnswer, Enqueued } from '../store/store.ts'

/** Writes that are committed together or not at all. */
export interface CheckpointItem {
  readonly records?: readonly Omit<StepRecord, 'no'>[]
  readonly effects?: EffectSet | null
  readonly consume?: readonly number[]
  readonly clear?: readonly string[]
  readonly partial?: string
  readonly awaits?: readonly AwaitedKey[]
  /** A step has a new outcome. */
  readonly isOutcome?: boolean
  /** Code waits until it is committed; it must not travel with the end of the run. */
  readonly isAwaited?: boolean
  committed?(enqueued: readonly Enqueued[]): void
  refused?(error: HoldfastError): void
}

/** What is sent of the items: a part of a checkpoint or of a settlement. */
export interface Writes {
  readonly journal: JournalWrites
  readonly effects: EffectSet | null
  readonly hasOutcome: boolean
}

/** A request carries about this many characters at most; a larger item goes alone. */
const charsMax = 8 * 1024 * 1024

export class CheckpointBuffer {
  #waiting: CheckpointItem[] = []
  #sent: readonly CheckpointItem[] | null = null
  /** So many of the first items are sent alone: a request that held them was refused. */
  #alone = 0
  /** The number of the next record. */
  #nextNo = 1

  /** The run has so many records already. */
  begin(records: number): void {
    this.#nextNo = records + 1
  }

  get isEmpty(): boolean {
    return this.#waiting.length === 0
  }

  get isInFlight(): boolean {
    return this.#sent !== null
  }

  /** Everything that was added is committed. */
  get isCommitted(): boolean {
    return this.isEmpty && !this.isInFlight
  }

  /** No more records fit into the journal. */
  get isFull(): boolean {
    const coming = [...(this.#sent ?? []), ...this.#waiting].reduce((sum, { records = [] }) => sum + records.length, 0)
    return this.#nextNo + coming > bounds.recordsMax
  }

  /** An outcome waits that its caller has not got yet. */
  get hasAwaitedOutcome(): boolean {
    const isOne = ({ isOutcome, isAwaited }: CheckpointItem) => isOutcome === true && isAwaited === true
    return this.#waiting.some(isOne) || (this.#sent ?? []).some(isOne)
  }

  /** All that waits can be part of a settlement: no code waits for it, and it is one request. */
  get canTravel(): boolean {
    return !this.isInFlight && this.#alone === 0 && !this.#waiting.some(({ isAwaited }) => isAwaited) && this.#isOne()
  }

  get hasOutcome(): boolean {
    return this.#waiting.some(({ isOutcome }) => isOutcome)
  }

  get hasEffects(): boolean {
    return this.#waiting.some(({ effects }) => effects)
  }

  get jobs(): readonly NewJob[] {
    return (this.#sent ?? []).flatMap(({ effects }) => effects?.enqueue ?? [])
  }

  add(item: CheckpointItem): void {
    this.#waiting.push(item)
  }

  /** Takes what is sent next. It is in flight until `answered`. */
  take(): Writes | null {
    if (this.#sent !== null || this.#waiting.length === 0) return null
    const count = this.#alone > 0 ? 1 : this.#fitting()
    this.#sent = this.#waiting.splice(0, count)
    return this.#writesOf(this.#sent)
  }

  /** Takes all, for a settlement. */
  takeAll(): Writes {
    const items = this.#waiting
    this.#waiting = []
    return this.#writesOf(items)
  }

  /** Answers whether the items are committed. */
  answered(answer: Exclude<CheckpointAnswer, 'lost'>): boolean {
    const sent = this.#sent ?? []
    this.#sent = null
    const refused: Refused | null = isRefused(answer) ? answer : 'failed' in answer ? answer.failed : null
    if (refused === null && 'enqueued' in answer) {
      this.#nextNo += countRecords(sent)
      if (this.#alone > 0) this.#alone -= sent.length
      this.#tell(sent, answer.enqueued)
      return true
    }
    const [only] = sent
    if (only && sent.length === 1) {
      if (this.#alone > 0) this.#alone -= 1
      only.refused?.(toError(refused as Refused))
    } else {
      this.#waiting = [...sent, ...this.#waiting]
      this.#alone = sent.length
    }
    return false
  }

  /** Nothing more is sent. */
  drop(error: HoldfastError): void {
    const items = [...(this.#sent ?? []), ...this.#waiting]
    this.#sent = null
    this.#waiting = []
    for (const { refused } of items) refused?.(error)
  }

  #tell(items: readonly CheckpointItem[], enqueued: readonly Enqueued[]): void {
    let at = 0
    for (const item of items) {
      const count = item.effects?.enqueue.length ?? 0
      item.committed?.(enqueued.slice(at, at + count))
      at += count
    }
  }

  #isOne(): boolean {
    return this.#fitting() === this.#waiting.length
  }

  /** How many of the first items one request carries. */
  #fitting(): number {
    let chars = 0
    let count = 0
    for (const item of this.#waiting) {
      chars += charsOf(item)
      if (count > 0 && chars > charsMax) break
      count += 1
    }
    return count
  }

  #writesOf(items: readonly CheckpointItem[]): Writes {
    let no = this.#nextNo
    const records = items.flatMap(({ records: each = [] }) => each.map((record) => ({ no: no++, ...record })))
    const consume = items.flatMap((item) => item.consume ?? [])
    const clear = items.flatMap((item) => item.clear ?? [])
    const partial = items.findLast((item) => item.partial !== undefined)?.partial
    const awaits = items.findLast((item) => item.awaits !== undefined)?.awaits
    return {
      journal: {
        records,
        ...(consume.length > 0 && { consume }),
        ...(clear.length > 0 && { clear }),
        ...(partial !== undefined && { partial }),
        ...(awaits !== undefined && { awaits }),
      },
      effects: items.reduce<EffectSet | null>((all, { effects = null }) => together(all, effects), null),
      hasOutcome: items.some(({ isOutcome }) => isOutcome),
    }
  }
}

function countRecords(items: readonly CheckpointItem[]): number {
  return items.reduce((sum, { records = [] }) => sum + records.length, 0)
}

function charsOf({ records = [], partial = '', effects }: CheckpointItem): number {
  const bodies = records.reduce((sum, { body }) => sum + body.length, partial.length)
  return bodies + (effects?.enqueue.reduce((sum, { payload }) => sum + payload.length, 0) ?? 0)
}
