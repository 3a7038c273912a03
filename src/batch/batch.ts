// A handle of a batch. It has only the id; every call reads the store. So any number of handles, in any process, may refer to the
// same batch.

import { type JobInfo, toJobInfo } from '../client/job-info.ts'
import { HoldfastError, isRefused, toError } from '../errors.ts'
import type { EventName, Events } from '../events.ts'
import { bounds } from '../job/bounds.ts'
import { checkBy, checkInteger, checkOptions, checkSignal, checkText } from '../job/names.ts'
import type { JobState } from '../job/record.ts'
import type { AnyDefinition } from '../queue/definition.ts'
import { pause, systemTimers } from '../runtime/clock.ts'
import { type Duration, toMs } from '../runtime/duration.ts'
import type { BatchAction, ItemsAnswer, ItemsQuery, ItemsRequest, Store } from '../store/store.ts'
import type { BatchItem } from './options.ts'
import { type BatchProgress, toProgress } from './progress.ts'
import { type ItemResult, toResult } from './result.ts'
import { type Items, type Submitted, submit } from './submission.ts'

/** The part of the client that a batch needs. */
export interface BatchContext {
  readonly store: Store
  readonly events: Events
  /** Runs a call that `close` waits for, or refuses it with CLOSED. */
  run<T>(action: () => Promise<T>): Promise<T>
  look<T>(action: () => Promise<T>): Promise<T>
  define(definition: AnyDefinition): Promise<void> | undefined
  addItems(request: ItemsRequest): Promise<ItemsAnswer>
}

/** Recorded for operators; nothing depends on it. */
export interface BatchActionOptions {
  readonly by?: string
}

export interface CancelBatchOptions extends BatchActionOptions {
  readonly reason?: string
}

export interface ItemsFilter {
  readonly state?: JobState
  /** The name that the handler gave with `job.outcome()`. */
  readonly outcome?: string
  readonly warning?: string
}

export interface ItemsPageFilter extends ItemsFilter {
  readonly limit?: number
  /** `next` of the page before. */
  readonly after?: string
}

export interface FinishedOptions {
  /** How long to wait; without a bound unless given. */
  readonly timeout?: Duration
  readonly signal?: AbortSignal
}

/** Polls become less frequent: the pause is a quarter of the time waited so far, within these bounds. */
const pollMinMs = 10
const pollMaxMs = 1_000
const lateness = 0.25
/** Small, because payloads and results may be large. */
const pageItems = 100

const eventOf = {
  close: 'batch.closed',
  pause: 'batch.paused',
  resume: 'batch.resumed',
  cancel: 'batch.cancelled',
  retryFailed: 'batch.retried',
  delete: 'batch.deleted',
} as const satisfies Record<BatchAction, EventName>

export class Batch {
  readonly id: string
  /**
   * Whether the call that answered this handle made the batch. False: the batch existed, because its key was used before, or
   * because the handle comes from `getBatch`.
   */
  readonly created: boolean
  readonly #context: BatchContext

  constructor(context: BatchContext, id: string, { created = false } = {}) {
    this.#context = context
    this.id = id
    this.created = created
  }

  /** Exact counts at this moment, the rate, and the estimated time left. */
  progress(): Promise<BatchProgress> {
    return this.#context.look(async () => {
      const { store } = this.#context
      const [record, now] = await Promise.all([store.batch({ id: this.id }), store.time()])
      if (record === null) throw noBatch(this.id)
      return toProgress(record, now)
    })
  }

  /** Running items may finish; no more items start. */
  pause(options: BatchActionOptions = {}): Promise<BatchProgress> {
    return this.#control('pause', options)
  }

  resume(options: BatchActionOptions = {}): Promise<BatchProgress> {
    return this.#control('resume', options)
  }

  /** Cancels waiting items, requests a cancel of running ones, and refuses more items. This cannot be undone. */
  cancel(options: CancelBatchOptions = {}): Promise<BatchProgress> {
    return this.#control('cancel', options)
  }

  /** Requeues dead items with all their attempts. A finished batch begins another round. */
  retryFailed(options: BatchActionOptions = {}): Promise<BatchProgress> {
    return this.#control('retryFailed', options)
  }

  /** No more items can be added. The batch is finished as soon as all of its items have ended. */
  close(): Promise<BatchProgress> {
    return this.#control('close', {})
  }

  /** Deletes the batch with its items; items that still run are cancelled first. What its jobs have written elsewhere stays. */
  async delete(options: BatchActionOptions = {}): Promise<void> {
    await this.#control('delete', options)
  }

  /** Adds items after those that the batch has; only while it is open. */
  async add<Item extends BatchItem = BatchItem>(items: Items<Item>): Promise<Submitted> {
    return submit(this.#context, { batch: this.id, items: items as Items, from: null })
  }

  /** Its items: first those that have ended, in the order in which they were submitted, then the others. */
  async *items(filter: ItemsFilter = {}): AsyncGenerator<JobInfo, void> {
    checkOptions(filter, 'the filter', ['state', 'outcome', 'warning'])
    let after: string | undefined
    do {
      const page = await this.itemsPage({ ...filter, limit: pageItems, ...(after !== undefined && { after }) })
      yield* page.items
      after = page.next ?? undefined
    } while (after !== undefined)
  }

  async itemsPage(
    filter: ItemsPageFilter = {},
  ): Promise<{ readonly items: readonly JobInfo[]; readonly next: string | null }> {
    const query = this.#toQuery(filter)
    return this.#context.look(async () => {
      const { store } = this.#context
      const { jobs, next } = await store.items(query)
      const isGone = jobs.length === 0 && next === null && (await store.batch({ id: this.id })) === null
      if (isGone) throw noBatch(this.id)
      return { items: jobs.map(toJobInfo), next }
    })
  }

  /** The results of all items that have ended, in the order in which they were submitted; for `toJsonLines`. */
  async *results(): AsyncGenerator<ItemResult, void> {
    for await (const item of this.items()) {
      const result = toResult(item)
      if (result === null) return // items that have not ended come last
      yield result
    }
  }

  /** Waits until every item has ended, in any process. A cancelled batch is finished too; `state` says which it is. */
  async finished(options: FinishedOptions = {}): Promise<BatchProgress> {
    checkOptions(options, 'finished options', ['timeout', 'signal'])
    const timeoutMs = toMs(options.timeout ?? Number.POSITIVE_INFINITY, 'timeout', { infinite: true })
    const signal = checkSignal(options.signal)
    const since = performance.now()
    for (;;) {
      const progress = await this.progress()
      if (progress.finishedAt !== null) return progress
      const waited = performance.now() - since
      if (waited >= timeoutMs) throw stillRuns(progress, timeoutMs)
      const pollMs = Math.min(pollMaxMs, Math.max(pollMinMs, waited * lateness), timeoutMs - waited)
      await pause(systemTimers, pollMs, signal)
      signal?.throwIfAborted()
    }
  }

  #control(as: BatchAction, options: CancelBatchOptions): Promise<BatchProgress> {
    return this.#context.run(async () => {
      checkOptions(options, `${as} options`, as === 'cancel' ? ['by', 'reason'] : ['by'])
      const request = { batch: this.id, as, by: checkBy(options.by), reason: text(options.reason, 'reason') }
      const { store, events } = this.#context
      const answer = await store.controlBatch(request)
      if (isRefused(answer)) throw toError(answer)
      const { name, state } = answer
      const { by, reason } = request
      events.emit(eventOf[as], { batch: this.id, name, by, reason, state })
      return toProgress(answer, await store.time())
    })
  }

  #toQuery(filter: ItemsPageFilter): ItemsQuery {
    checkOptions(filter, 'the filter', ['state', 'outcome', 'warning', 'limit', 'after'])
    const { state, outcome, warning, limit = pageItems, after } = filter
    if (state !== undefined && !itemStates.includes(state)) throw invalid('state', `one of ${itemStates.join(', ')}`)
    if (after !== undefined && typeof after !== 'string') throw invalid('after', 'the `next` of an earlier page')
    return {
      batch: this.id,
      state: state ?? null,
      outcome: text(outcome, 'outcome'),
      warning: text(warning, 'warning'),
      limit: checkInteger(limit, 'limit', 1, bounds.pageMax),
      after: after ?? null,
    }
  }
}

const itemStates: readonly JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']

export function noBatch(id: string): HoldfastError {
  const message = `There is no batch ${id}: it never existed, was deleted, or its retention is over.`
  return new HoldfastError('BATCH_NOT_FOUND', message, { batch: id })
}

function text(value: string | undefined, option: string): string | null {
  return value === undefined ? null : checkText(value, option, bounds.progressMessageBytes)
}

function invalid(option: string, wanted: string): HoldfastError {
  return new HoldfastError('INVALID_OPTION', `${option} must be ${wanted}.`, { option })
}

function stillRuns({ id, state, waiting, running }: BatchProgress, timeoutMs: number): HoldfastError {
  const left = `with ${waiting} items waiting and ${running} running`
  return new HoldfastError(
    'WAIT_TIMEOUT',
    `Batch ${id} was not finished within ${timeoutMs} ms: it is ${state}, ${left}. The batch is not affected; wait again, or longer.`,
    { batch: id, timeoutMs, state, waiting, running },
  )
}
