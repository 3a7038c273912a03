// The effects that a handler stages. They are kept here until the handler has returned, and are written in the transaction
// that settles the job, or not at all. An effect that is staged later could not be written, so the call throws INVALID_STATE.
// That happens when a handler returns before a promise of its own has ended, or goes on after its signal.

import { HoldfastError } from '../errors.ts'
import type { EffectSet } from '../job/record.ts'
import { decodeExtras } from '../job/stored.ts'
import type { AnyDefinition, QueueDefinition } from '../queue/definition.ts'
import type { Effects, FollowUp } from '../queue/effects.ts'
import type { EnqueueOptions } from '../queue/prepare.ts'
import type { SqlStatement } from '../queue/sql-statement.ts'
import type { Duration } from '../runtime/duration.ts'

type Headers = Readonly<Record<string, string>>
type PayloadOf<Q> = Q extends QueueDefinition<infer In, infer _Out, infer _Result, infer _ResultOut> ? In : unknown

export class StagedEffects {
  readonly #jobId: string
  readonly #isOpen: () => boolean
  #enqueue: FollowUp[] = []
  readonly #put: { readonly key: string; readonly value: unknown; readonly ttl?: Duration }[] = []
  readonly #delete: string[] = []
  readonly #sql: SqlStatement[] = []

  /** Effects that were staged and prepared in a thread. */
  #adopted: EffectSet | null = null

  /** `isOpen`: whether the handler still runs. */
  constructor(jobId: string, isOpen: () => boolean) {
    this.#jobId = jobId
    this.#isOpen = isOpen
  }

  enqueue<Q extends string | AnyDefinition>(
    queue: Q,
    payload: PayloadOf<Q>,
    options: Omit<EnqueueOptions, 'tx'> = {},
  ): void {
    this.#requireOpen()
    this.#enqueue.push({ ...options, queue, payload })
  }

  put(key: string, value: unknown, options: { readonly ttl?: Duration } = {}): void {
    this.#requireOpen()
    this.#put.push({ ...options, key, value })
  }

  delete(key: string): void {
    this.#requireOpen()
    this.#delete.push(key)
  }

  /** One statement on your own tables, on SQL stores: its text and values, or the statement of a query builder. */
  sql(text: string, values?: readonly unknown[]): void
  sql(statement: SqlStatement): void
  sql(statement: string | SqlStatement, values: readonly unknown[] = []): void {
    this.#requireOpen()
    this.#sql.push(typeof statement === 'string' ? { text: statement, values } : statement)
  }

  /** All effects that were staged here, each kind in the order in which it is written. */
  all(): Effects {
    return { enqueue: this.#enqueue, put: this.#put, delete: this.#delete, sql: this.#sql }
  }

  #requireOpen(): void {
    if (this.#isOpen()) return
    const sentence = `Job ${this.#jobId} has ended in this worker, so no effect can be added. Await all work before the handler returns.`
    throw new HoldfastError('INVALID_STATE', sentence, { id: this.#jobId })
  }

  // For the worker. Handlers cannot call these.

  static adopt(staged: StagedEffects, prepared: EffectSet): void {
    staged.#adopted = prepared
  }

  static adoptedIn(staged: StagedEffects): EffectSet | null {
    return staged.#adopted
  }

  /** Changes the headers of the follow-up jobs that were staged so far, for example to add the trace of this run. */
  static takeAlong(staged: StagedEffects, headersOf: (headers: Headers) => Headers): void {
    staged.#enqueue = staged.#enqueue.map((job) => {
      const { headers = {} } = job
      const changed = headersOf(headers)
      return changed === headers ? job : { ...job, headers: changed }
    })
    if (staged.#adopted === null) return
    const enqueue = staged.#adopted.enqueue.map((job) => {
      const { headers } = decodeExtras(job.headers)
      const changed = headersOf(headers)
      return changed === headers ? job : { ...job, headers: JSON.stringify(changed) }
    })
    staged.#adopted = { ...staged.#adopted, enqueue }
  }
}
