// The batch part of the model: what a batch has besides its items. It keeps no counts. They are a recount of the stored items and
// of the records of pruned ones. What a pause, a cancel or a retry does to items, and what follows when items end, is in
// `model.ts`.

import { isDeepStrictEqual } from 'node:util'
import type { BatchRecord, BatchSettings, Completion, ItemCounts } from '../../src/job/batch.ts'
import { batchState, failsTooOften, totalOf } from '../../src/job/batch.ts'
import type { Annotations, Costs, JobRecord } from '../../src/job/record.ts'
import type { BatchAction, FinishedBatch } from '../../src/store/store.ts'

/** What the counts of a batch need of an item: its state and its annotations. */
type Item = Pick<JobRecord, 'state' | 'annotations'>

export interface ModelBatch extends BatchSettings {
  readonly isClosed: boolean
  readonly isCancelled: boolean
  readonly round: number
  readonly submitted: number
  readonly createdAt: number
  readonly startedAt: number | null
  readonly finishedAt: number | null
  readonly pausedAt: number | null
  readonly pausedBy: string | null
  readonly pausedMs: number
  readonly cancelledBy: string | null
  readonly reason: string | null
  /** The costs of all runs of its items so far. */
  readonly spent: readonly Costs[]
  /** Items that have ended and are pruned. They still count. */
  readonly pruned: readonly Item[]
}

export interface BatchesState {
  /** Oldest first. */
  batches: ModelBatch[]
  /** Ids of batches whose items have changed in this call, in that order. At its end each is checked for being finished. */
  touched: string[]
  /** Every completion that was reported, in that order. */
  completions: FinishedBatch[]
}

type Change = Partial<Omit<ModelBatch, keyof BatchSettings>>

export class BatchModel {
  readonly #state: BatchesState
  readonly #now: number
  readonly #itemsOf: (id: string) => readonly JobRecord[]

  constructor(state: BatchesState, now: number, itemsOf: (id: string) => readonly JobRecord[]) {
    this.#state = state
    this.#now = now
    this.#itemsOf = itemsOf
  }

  find(id: string | null): ModelBatch | undefined {
    return this.#state.batches.find((batch) => batch.id === id)
  }

  findByKey(key: string): ModelBatch | undefined {
    return this.#state.batches.find((batch) => batch.key === key)
  }

  open(settings: BatchSettings): { readonly batch: BatchRecord; readonly created: boolean } {
    const known = settings.key === null ? undefined : this.findByKey(settings.key)
    if (known) return { batch: this.record(known), created: false }
    const batch: ModelBatch = {
      ...settings,
      ...{
        isClosed: false,
        isCancelled: false,
        round: 1,
        submitted: 0,
        cancelledBy: null,
        reason: null,
        spent: [],
        pruned: [],
      },
      ...{ createdAt: this.#now, startedAt: null, finishedAt: null, pausedAt: null, pausedBy: null, pausedMs: 0 },
    }
    this.#state.batches = [...this.#state.batches, batch]
    return { batch: this.record(batch), created: true }
  }

  touch(id: string | null): void {
    if (id !== null && !this.#state.touched.includes(id)) this.#state.touched = [...this.#state.touched, id]
  }

  takeTouched(): string[] {
    const { touched } = this.#state
    this.#state.touched = []
    return touched
  }

  change(id: string | null, change: Change): void {
    this.#state.batches = this.#state.batches.map((batch) => (batch.id === id ? { ...batch, ...change } : batch))
    this.touch(id)
  }

  drop(isMeant: (batch: ModelBatch) => boolean): void {
    this.#state.batches = this.#state.batches.filter((batch) => !isMeant(batch))
  }

  /** Whether the batch has ended in a way that refuses this action. */
  isTooLate({ isCancelled, finishedAt }: ModelBatch, as: BatchAction): boolean {
    if (as === 'pause' || as === 'resume') return isCancelled || finishedAt !== null
    if (as === 'cancel') return !isCancelled && finishedAt !== null
    return as === 'retryFailed' && isCancelled
  }

  pause({ id, pausedAt }: ModelBatch, by: string | null): void {
    if (pausedAt === null) this.change(id, { pausedAt: this.#now, pausedBy: by })
  }

  /** The end of a batch also ends its pause. */
  resume({ id, pausedAt, startedAt, pausedMs }: ModelBatch): void {
    if (pausedAt === null) return
    const lastedMs = startedAt === null ? 0 : Math.max(0, this.#now - Math.max(pausedAt, startedAt))
    this.change(id, { pausedAt: null, pausedBy: null, pausedMs: pausedMs + lastedMs })
  }

  cancel(batch: ModelBatch, { by, reason }: { readonly by: string | null; readonly reason: string | null }): void {
    this.resume(batch)
    this.change(batch.id, { isCancelled: true, isClosed: true, cancelledBy: by, reason })
  }

  finish(batch: ModelBatch): Completion {
    this.resume(batch)
    this.change(batch.id, { finishedAt: this.#now })
    const state = batch.isCancelled ? ('cancelled' as const) : ('done' as const)
    const completion = { batchId: batch.id, state, round: batch.round }
    this.#state.completions = [...this.#state.completions, { ...completion, name: batch.name }]
    return completion
  }

  /** An item was claimed. */
  start(id: string | null): void {
    const batch = this.find(id)
    if (batch) this.change(id, { startedAt: batch.startedAt ?? this.#now })
  }

  spend(id: string | null, costs: Costs | null): void {
    const batch = this.find(id)
    if (batch && costs) this.change(id, { spent: [...batch.spent, costs] })
  }

  /** An item that had ended waits again. A finished batch begins another round. */
  reopen(id: string | null): void {
    const batch = this.find(id)
    if (batch?.finishedAt == null) return
    const idleMs = batch.startedAt === null ? 0 : Math.max(0, this.#now - batch.finishedAt)
    this.change(id, { finishedAt: null, round: batch.round + 1, pausedMs: batch.pausedMs + idleMs })
  }

  /** After the clock was set back. */
  correctRetention(): void {
    for (const { id, finishedAt } of this.#state.batches)
      if (finishedAt !== null && finishedAt > this.#now) this.change(id, { finishedAt: this.#now })
  }

  /** An item was pruned. */
  remember({ batch: id, state, annotations }: JobRecord): void {
    const batch = this.find(id)
    if (batch) this.change(id, { pruned: [...batch.pruned, { state, annotations }] })
  }

  /** How many more items may start. */
  freeSlots(id: string | null): number {
    const batch = this.find(id)
    if (!batch) return Number.POSITIVE_INFINITY
    if (batch.isCancelled || batch.pausedAt !== null) return 0
    return (batch.concurrency ?? Number.POSITIVE_INFINITY) - this.counts(batch).running
  }

  /** How many more items limit keys may admit. All ready items will start before them, so they take slots too. */
  admissionSlots(id: string | null): number {
    const batch = this.find(id)
    if (batch?.concurrency == null) return this.freeSlots(id)
    return this.freeSlots(id) - this.#itemsOf(batch.id).filter(({ state }) => state === 'ready').length
  }

  isOver(batch: ModelBatch): boolean {
    const { waiting, running } = this.counts(batch)
    return batch.isClosed && batch.finishedAt === null && waiting + running === 0
  }

  /** Why the batch is given up. Null: it is not. */
  giveUpReason(batch: ModelBatch): string | null {
    const counts = this.counts(batch)
    if (batch.isCancelled || batch.finishedAt !== null || !failsTooOften(batch.failShare, batch, counts)) return null
    return `Too many items failed: ${counts.dead} of ${totalOf(counts)}.`
  }

  counts(batch: ModelBatch): ItemCounts {
    const states = this.#items(batch).map(({ state }) => state)
    const count = (...wanted: string[]) => states.filter((state) => wanted.includes(state)).length
    return {
      waiting: count('held', 'scheduled', 'ready'),
      ...{ running: count('running'), done: count('done'), dead: count('dead'), cancelled: count('cancelled') },
    }
  }

  #items({ id, pruned }: ModelBatch): Item[] {
    return [...pruned, ...this.#itemsOf(id)]
  }

  /** Newest first. */
  records(): BatchRecord[] {
    return this.#state.batches.map((batch) => this.record(batch)).toReversed()
  }

  record(batch: ModelBatch): BatchRecord {
    const { isCancelled, spent, pruned, ...known } = batch
    const ended = this.#items(batch).flatMap(({ annotations }) => annotations ?? [])
    return {
      ...known,
      ...this.counts(batch),
      state: batchState(batch),
      outcomes: tally(ended, 'outcome'),
      warnings: tally(ended, 'warning'),
      costs: sum(spent),
    }
  }

  garbage(): number {
    return this.#state.batches.filter((batch) => this.isPast(batch)).length
  }

  isPast({ finishedAt, retainMs }: ModelBatch): boolean {
    return finishedAt !== null && finishedAt + retainMs <= this.#now
  }

  /** Whether the store reported the same completions, in any order. */
  hasSameCompletions(real: readonly FinishedBatch[]): boolean {
    const sorted = (completions: readonly FinishedBatch[]) =>
      completions.map((each) => JSON.stringify(inOrder(each))).toSorted()
    return isDeepStrictEqual(sorted(real), sorted(this.#state.completions))
  }

  get completions(): readonly FinishedBatch[] {
    return this.#state.completions
  }
}

function inOrder({ batchId, name, state, round }: FinishedBatch) {
  return [batchId, name, state, round]
}

function tally(annotations: readonly Annotations[], kind: 'outcome' | 'warning'): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const { [kind]: label } of annotations) if (label !== null) counts[label] = (counts[label] ?? 0) + 1
  return counts
}

function sum(spent: readonly Costs[]): Record<string, number> {
  const sums: Record<string, number> = {}
  for (const [name, amount] of spent.flatMap((costs) => Object.entries(costs))) sums[name] = (sums[name] ?? 0) + amount
  return sums
}
