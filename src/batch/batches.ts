// The batches of a store: submits, finds and lists them.

import { HoldfastError, isRefused, toError } from '../errors.ts'
import type { BatchState } from '../job/batch.ts'
import { bounds } from '../job/bounds.ts'
import { checkGiven, checkInteger, checkJobId, checkKey, checkOptions } from '../job/names.ts'
import type { BatchesQuery, BatchName, OpenedBatch } from '../store/store.ts'
import { Batch, type BatchContext } from './batch.ts'
import { type BatchOptions, type BatchPlan, toBatchPlan } from './options.ts'
import { type BatchProgress, toProgress } from './progress.ts'
import { type Items, submit } from './submission.ts'

export interface BatchesFilter {
  readonly state?: BatchState
  readonly limit?: number
  /** `next` of the page before. */
  readonly after?: string
}

const states: readonly BatchState[] = ['open', 'queued', 'running', 'paused', 'done', 'cancelled']

export class Batches {
  readonly #context: BatchContext

  constructor(context: BatchContext) {
    this.#context = context
  }

  /**
   * If a batch has this key already, its submission continues: items that it has are skipped. A closed or cancelled batch stays
   * as it is. `created` of the answer says whether this call made the batch.
   */
  async make(options: BatchOptions, items: Items): Promise<Batch> {
    const plan = await toBatchPlan(options)
    const { batch: record, created } = await this.#open(plan)
    const batch = new Batch(this.#context, record.id, { created })
    if (record.isClosed || record.state === 'cancelled') return batch
    const began = performance.now()
    const submitted = await submit(this.#context, { batch: record.id, items, from: record.submitted })
    if (!plan.staysOpen) await batch.close()
    const durationMs = performance.now() - began
    this.#context.events.emit('batch.submitted', { batch: record.id, name: record.name, ...submitted, durationMs })
    return batch
  }

  async get(name: string | { readonly key: string }): Promise<Batch | null> {
    const asked = toName(name)
    const record = await this.#context.look(() => this.#context.store.batch(asked))
    return record && new Batch(this.#context, record.id)
  }

  async list(filter: BatchesFilter): Promise<{ readonly batches: BatchProgress[]; readonly next: string | null }> {
    const query = toQuery(filter)
    const { store } = this.#context
    const [page, now] = await this.#context.look(() => Promise.all([store.batches(query), store.time()]))
    return { batches: page.batches.map((record) => toProgress(record, now)), next: page.next }
  }

  #open({ settings, completionQueue }: BatchPlan): Promise<OpenedBatch> {
    return this.#context.run(async () => {
      if (completionQueue) await this.#context.define(completionQueue)
      const opened = await this.#context.store.openBatch(settings)
      if (isRefused(opened)) throw toError(opened)
      return opened
    })
  }
}

function toName(name: string | { readonly key: string }): BatchName {
  if (typeof name === 'string') return { id: checkJobId(name) }
  if (name === undefined || name === null) throw invalid('the name of a batch', 'its id, or { key } of its submission')
  checkOptions(name, 'the name of a batch', ['key'])
  checkGiven(name, 'holdfast.getBatch', { key: "'march'" })
  return { key: checkKey(name.key, 'key') }
}

function toQuery(filter: BatchesFilter): BatchesQuery {
  checkOptions(filter, 'the filter', ['state', 'limit', 'after'])
  const { state, limit = 100, after } = filter
  if (state !== undefined && !states.includes(state)) throw invalid('state', `one of ${states.join(', ')}`)
  if (after !== undefined && typeof after !== 'string') throw invalid('after', 'the `next` of an earlier page')
  return { state: state ?? null, limit: checkInteger(limit, 'limit', 1, bounds.pageMax), after: after ?? null }
}

function invalid(option: string, wanted: string): HoldfastError {
  return new HoldfastError('INVALID_OPTION', `${option} must be ${wanted}.`, { option })
}
