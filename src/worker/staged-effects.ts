// The effects that a handler stages. They are kept here until the handler has returned, and are written in the transaction
// that settles the job, or not at all.

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
  #enqueue: FollowUp[] = []
  readonly #put: { readonly key: string; readonly value: unknown; readonly ttl?: Duration }[] = []
  readonly #delete: string[] = []
  readonly #sql: SqlStatement[] = []

  #adopted: EffectSet | null = null

  enqueue<Q extends string | AnyDefinition>(
    queue: Q,
    payload: PayloadOf<Q>,
    options: Omit<EnqueueOptions, 'tx'> = {},
  ): void {
    this.#enqueue.push({ ...options, queue, payload })
  }

  put(key: string, value: unknown, options: { readonly ttl?: Duration } = {}): void {
    this.#put.push({ ...options, key, value })
  }

  delete(key: string): void {
    this.#delete.push(key)
  }

  /** One statement on your own tables, on SQL stores: its text and values, or the statement of a query builder. */
  sql(text: string, values?: readonly unknown[]): void
  sql(statement: SqlStatement): void
  sql(statement: string | SqlStatement, values: readonly unknown[] = []): void {
    this.#sql.push(typeof statement === 'string' ? { text: statement, values } : statement)
  }

  /** Effects that were staged and prepared in a thread. */
  adopt(prepared: EffectSet): void {
    this.#adopted = prepared
  }

  get adopted(): EffectSet | null {
    return this.#adopted
  }

  /** Changes the headers of the follow-up jobs that were staged so far, for example to add the trace of this run. */
  takeAlong(headersOf: (headers: Headers) => Headers): void {
    this.#enqueue = this.#enqueue.map((job) => {
      const { headers = {} } = job
      const changed = headersOf(headers)
      return changed === headers ? job : { ...job, headers: changed }
    })
    if (this.#adopted === null) return
    const enqueue = this.#adopted.enqueue.map((job) => {
      const { headers } = decodeExtras(job.headers)
      const changed = headersOf(headers)
      return changed === headers ? job : { ...job, headers: JSON.stringify(changed) }
    })
    this.#adopted = { ...this.#adopted, enqueue }
  }

  /** All effects that were staged here, each kind in the order in which it is written. */
  all(): Effects {
    return { enqueue: this.#enqueue, put: this.#put, delete: this.#delete, sql: this.#sql }
  }
}
