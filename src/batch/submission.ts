// Submits items to a batch. Items are pulled one by one, prepared, and sent in chunks. One chunk is in flight while the next is
// prepared, so a million items need the memory of two chunks. Each chunk names its position in the submission. After a crash the
// submission is repeated from its beginning and skips the items that the batch already has.

import { HoldfastError, isHoldfastError, isRefused, toError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import type { NewJob } from '../job/record.ts'
import type { AnyDefinition } from '../queue/definition.ts'
import type { Fitting } from '../queue/effects.ts'
import { charsOfJob, prepareJob } from '../queue/prepare.ts'
import { toDefinition } from '../queue/reference.ts'
import { show } from '../runtime/duration.ts'
import type { ItemsAnswer, ItemsRequest } from '../store/store.ts'
import type { BatchItem } from './options.ts'

/** Each item's payload is one of the queue that the item names. */
export type Items<Item extends BatchItem = BatchItem> =
  | readonly (Item & Fitting<Item>)[]
  | Iterable<Item & Fitting<Item>>
  | AsyncIterable<Item & Fitting<Item>>

/** The part of the client that a submission needs. */
export interface SubmissionContext {
  define(definition: AnyDefinition): Promise<void> | undefined
  addItems(request: ItemsRequest): Promise<ItemsAnswer>
}

export interface Submitted {
  /** Items that were created. */
  readonly added: number
  /** Items that were not created, because another job held their dedup key. */
  readonly duplicates: number
}

export interface SubmissionPlan {
  readonly batch: string
  readonly items: Items
  /** How many of these items the batch already has; null: all of them are added after the existing ones. */
  readonly from: number | null
}

export async function submit(context: SubmissionContext, { batch, items, from }: SubmissionPlan): Promise<Submitted> {
  const chunks = new Chunks(context, batch, from)
  let index = -1
  const take = (item: BatchItem): void | Promise<void> => {
    index += 1
    if (from !== null && index < from) return
    const job = toJob(context, item, { batch, index })
    const at = index
    return job instanceof Promise ? job.then((late) => chunks.add(late, at)) : chunks.add(job, at)
  }
  try {
    await takeAll(checkItems(items), take)
    await chunks.flush()
  } finally {
    await chunks.settled()
  }
  return chunks.submitted
}

/** Awaits only promises: a plain iterable of plain items is read without a pause. */
async function takeAll(items: Items, take: (item: BatchItem) => void | Promise<void>): Promise<void> {
  if (Symbol.asyncIterator in items) {
    for await (const item of items) await take(item)
    return
  }
  for (const item of items) {
    const taken = item instanceof Promise ? item.then(take) : take(item)
    if (taken) await taken
  }
}

class Chunks {
  readonly #context: SubmissionContext
  readonly #batch: string
  #at: number | null
  #jobs: NewJob[] = []
  /** Which item of the submission is the first of them. */
  #first = 0
  #chars = 0
  #underWay: Promise<void> = Promise.resolve()
  #added = 0
  #duplicates = 0

  constructor(context: SubmissionContext, batch: string, at: number | null) {
    this.#context = context
    this.#batch = batch
    this.#at = at
  }

  get submitted(): Submitted {
    return { added: this.#added, duplicates: this.#duplicates }
  }

  add(job: NewJob, index: number): void | Promise<void> {
    if (this.#jobs.length === 0) this.#first = index
    this.#jobs.push(job)
    this.#chars += charsOfJob(job)
    if (this.#jobs.length >= bounds.itemsMax || this.#chars >= bounds.itemsChars) return this.#send()
  }

  async flush(): Promise<void> {
    if (this.#jobs.length > 0) await this.#send()
    await this.#underWay
  }

  /** Resolves when no chunk is in flight, also if the last one failed. */
  async settled(): Promise<void> {
    await this.#underWay.catch(() => undefined)
  }

  async #send(): Promise<void> {
    await this.#underWay
    const request = { batch: this.#batch, at: this.#at, jobs: this.#jobs }
    if (this.#at !== null) this.#at += this.#jobs.length
    this.#jobs = []
    this.#chars = 0
    this.#underWay = this.#handOver(request, this.#first)
    this.#underWay.catch(() => undefined) // the next send or flush throws this error
  }

  async #handOver(request: ItemsRequest, first: number): Promise<void> {
    const answer = await this.#context.addItems(request)
    if (isRefused(answer)) {
      const { index } = answer.facts
      throw typeof index === 'number'
        ? ofItem(toError(answer), { batch: request.batch, index: first + index })
        : toError(answer)
    }
    const created = answer.enqueued.filter(({ status }) => status === 'created').length
    this.#added += created
    this.#duplicates += answer.enqueued.length - created
  }
}

interface ItemPlace {
  readonly batch: string
  readonly index: number
}

function ofItem(error: HoldfastError, { batch, index }: ItemPlace): HoldfastError {
  const facts = { ...error.facts, batch, index }
  return new HoldfastError(error.code, `Item ${index}: ${error.message}`, facts, { cause: error })
}

function toJob(context: SubmissionContext, item: BatchItem, { batch, index }: ItemPlace): NewJob | Promise<NewJob> {
  const fail = (error: unknown): never => {
    if (!isHoldfastError(error)) throw error
    throw ofItem(error, { batch, index })
  }
  try {
    if (typeof item !== 'object' || item === null || !('queue' in item)) throw notAnItem(item)
    const { queue, payload, ...options } = item
    if ('tx' in options) throw noTransaction()
    const definition = toDefinition(queue)
    const defined = context.define(definition)
    const job = defined
      ? defined.then(() => prepareJob(definition, payload, options))
      : prepareJob(definition, payload, options)
    return job instanceof Promise ? job.catch(fail) : job
  } catch (error) {
    return fail(error)
  }
}

function checkItems(items: Items): Items {
  if (typeof items === 'object' && items !== null && (Symbol.asyncIterator in items || Symbol.iterator in items)) {
    return items
  }
  const wanted = 'items must be an array, an iterable or an async iterable of { queue, payload, …options }'
  throw new HoldfastError('INVALID_OPTION', `${wanted}; got ${show(items)}. For a text, pass jsonLines(text).`, {
    option: 'items',
  })
}

function notAnItem(item: unknown): HoldfastError {
  const hint = item instanceof Uint8Array || typeof item === 'string' ? ' For a stream, pass jsonLines(stream).' : ''
  const wanted = `an item must be { queue, payload, …options }; got ${show(item)}.${hint}`
  return new HoldfastError('INVALID_OPTION', wanted, { option: 'items' })
}

function noTransaction(): HoldfastError {
  return new HoldfastError('UNSUPPORTED', 'items cannot be part of your own transaction; leave out tx.', {
    option: 'tx',
  })
}
