// What a handler wants to happen together with the end of its job. Nothing happens before: it is kept here until the
// handler has returned, and lands in the same transaction as the settlement, or not at all.

import type { AnyDefinition, QueueDefinition } from '../definition.ts'
import type { Duration } from '../duration.ts'
import type { Effects, FollowUp } from '../effects.ts'
import type { EffectSet } from '../job/record.ts'
import type { EnqueueOptions } from '../prepare.ts'

type PayloadOf<Q> = Q extends QueueDefinition<infer In, infer _Out, infer _Result, infer _ResultOut> ? In : unknown

export class StagedEffects {
  readonly #enqueue: FollowUp[] = []
  readonly #put: { readonly key: string; readonly value: unknown; readonly ttl?: Duration }[] = []
  readonly #delete: string[] = []
  readonly #sql: { readonly text: string; readonly values: readonly unknown[] }[] = []

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

  /** One statement in your own tables, on SQL stores. */
  sql(text: string, values: readonly unknown[] = []): void {
    this.#sql.push({ text, values })
  }

  /** What was staged elsewhere and is ready to land. */
  adopt(prepared: EffectSet): void {
    this.#adopted = prepared
  }

  get adopted(): EffectSet | null {
    return this.#adopted
  }

  /** All that were staged here, in the order in which they land. */
  all(): Effects {
    return { enqueue: this.#enqueue, put: this.#put, delete: this.#delete, sql: this.#sql }
  }
}
