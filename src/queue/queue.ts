// One queue as a producer sees it.

import type { ResultOptions } from '../client/requests.ts'
import { HoldfastError, isHoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import type { NewJob } from '../job/record.ts'
import type { Lease } from '../lease/lease.ts'
import { type Duration, show } from '../runtime/duration.ts'
import type { Enqueued } from '../store/store.ts'
import type { QueueDefinition } from './definition.ts'
import { charsOfJob, checkChars, type EnqueueOptions, prepareJob, validate } from './prepare.ts'

export type Entry<Payload> = EnqueueOptions & { readonly payload: Payload }

export interface ClaimOptions {
  /** The most jobs to claim; default 1. */
  readonly max?: number
  /** How long the leases last; default: the shortest lease of the queues. */
  readonly lease?: Duration
  /** How long to wait for the first job if none is ready. */
  readonly wait?: Duration
  /** The name of the claimer, for the history. */
  readonly worker?: string
  /** Ends the wait early, without a job. */
  readonly signal?: AbortSignal
}

/** The part of the client that a queue uses. */
export interface QueueContext {
  /** Runs a call that `close` waits for, or refuses it with CLOSED. */
  run<T>(action: () => Promise<T>): Promise<T>
  enqueue(definition: QueueDefinition, jobs: readonly NewJob[], tx: unknown): Promise<readonly Enqueued[]>
  /** Whether an enqueue in this transaction may await something first. */
  mayWaitBefore(tx: unknown): boolean
  claim(definition: QueueDefinition, options: ClaimOptions): Promise<Lease[]>
  /** Undefined: the job has no result. */
  result(id: string, options: ResultOptions): Promise<unknown>
}

// biome-ignore lint/suspicious/noExplicitAny: matches a definition whatever its types
export class Queue<Payload = any, Out = any, Result = any, ResultOut = any> {
  readonly definition: QueueDefinition<Payload, Out, Result, ResultOut>
  readonly #context: QueueContext

  constructor(context: QueueContext, definition: QueueDefinition<Payload, Out, Result, ResultOut>) {
    this.#context = context
    this.definition = definition
  }

  get name(): string {
    return this.definition.name
  }

  /** When this resolves, the job is on disk. The answer says whether it was created or is the duplicate of job `id`. */
  enqueue(payload: Payload, options: EnqueueOptions = {}): Promise<Enqueued> {
    return this.#context.run(async () => {
      const prepared = prepareJob(this.definition, payload, options)
      const job = prepared instanceof Promise ? await this.#late(prepared, options.tx) : prepared
      const [enqueued] = await this.#context.enqueue(this.definition as QueueDefinition, [job], options.tx)
      return enqueued as Enqueued
    })
  }

  /** All of them or none, in this order. */
  enqueueMany(entries: readonly Entry<Payload>[], ...rest: never[]): Promise<readonly Enqueued[]> {
    return this.#context.run(async () => {
      if (rest[0] !== undefined) throw optionsBeside()
      checkCount(entries)
      if (entries.length === 0) return []
      const tx = oneTransaction(entries)
      const jobs: NewJob[] = []
      let chars = 0
      for (const entry of entries) {
        const prepared = this.#prepare(entry, jobs.length)
        const job = prepared instanceof Promise ? await this.#late(prepared, tx).catch(ofJob(jobs.length)) : prepared
        jobs.push(job)
        chars += charsOfJob(job)
        checkChars(chars, 'Jobs that are enqueued together')
      }
      return await this.#context.enqueue(this.definition as QueueDefinition, jobs, tx).catch(ofJob(null))
    })
  }

  #prepare(entry: Entry<Payload>, index: number): NewJob | Promise<NewJob> {
    try {
      if (typeof entry !== 'object' || entry === null) throw notAnEntry(entry)
      const { payload, ...options } = entry
      return prepareJob(this.definition, payload, options)
    } catch (error) {
      return ofJob(index)(error)
    }
  }

  claim(options: ClaimOptions = {}): Promise<Lease<Out, Result>[]> {
    return this.#context.claim(this.definition as QueueDefinition, options) as Promise<Lease<Out, Result>[]>
  }

  /**
   * Waits until a job of this queue has ended, in whatever process it runs, and answers its result as the schema of the
   * definition returns it. Rejects as `holdfast.result` does, and with INVALID_PAYLOAD if the result does not fit the schema.
   */
  async result(id: string, options: ResultOptions = {}): Promise<ResultOut> {
    const result = await this.#context.result(id, options)
    const schema = this.definition.resultSchema
    return (schema ? await validate(schema, result, 'result', this.name) : (result ?? null)) as ResultOut
  }

  /** For an asynchronous schema. A caller's transaction may have ended before it answers, so such an enqueue is refused. */
  #late(prepared: Promise<NewJob>, tx: unknown): Promise<NewJob> {
    if (this.#context.mayWaitBefore(tx)) return prepared
    prepared.catch(() => undefined) // the enqueue is refused whatever the schema answers
    throw new HoldfastError(
      'UNSUPPORTED',
      `The payload schema of queue ${this.name} is asynchronous, and on this store an enqueue with tx cannot wait for it. Validate before your transaction, or leave out tx.`,
      { option: 'tx', queue: this.name },
    )
  }
}

/** If one entry names a transaction, all of them are part of it. */
function oneTransaction(entries: readonly EnqueueOptions[]): unknown {
  const [tx, another] = new Set(entries.map((entry) => entry?.tx).filter((each) => each !== undefined))
  if (another === undefined) return tx
  throw new HoldfastError(
    'INVALID_OPTION',
    'Jobs that are enqueued together share one tx; these name several. Wrap the transaction once, and pass the same object in each entry.',
    {
      option: 'tx',
    },
  )
}

function checkCount(entries: readonly unknown[]): void {
  if (Array.isArray(entries) && entries.length <= bounds.enqueueMax) return
  const count = Array.isArray(entries) ? entries.length : undefined
  throw new HoldfastError(
    'INVALID_OPTION',
    `enqueueMany takes an array of at most ${bounds.enqueueMax} jobs; got ${count ?? show(entries)}. Send them in parts.`,
    { count },
  )
}

/** A transaction that is given beside the jobs would be left out without an error. */
function optionsBeside(): HoldfastError {
  const sentence = 'enqueueMany takes one argument: write options into each entry, { payload, tx, … }.'
  return new HoldfastError('INVALID_OPTION', sentence, { option: 'options' })
}

/** Adds the index of the refused job to the error; null: the store has added it. */
function ofJob(at: number | null): (error: unknown) => never {
  return (error) => {
    const index = at ?? (isHoldfastError(error) ? error.facts['index'] : undefined)
    if (!isHoldfastError(error) || typeof index !== 'number') throw error
    throw new HoldfastError(error.code, `Job ${index}: ${error.message}`, { ...error.facts, index }, { cause: error })
  }
}

function notAnEntry(entry: unknown): HoldfastError {
  return new HoldfastError(
    'INVALID_OPTION',
    `enqueueMany takes { payload, …options } for each job; got ${show(entry)}.`,
    { option: 'entries' },
  )
}
