// The effects that a handler stages. They are kept here until the handler has returned, and are written in the transaction
// that settles the job, or not at all. An effect that is staged later could not be written, so the call throws INVALID_STATE.
// That happens when a handler returns before a promise of its own has ended, or goes on after its signal.

import { HoldfastError } from '../errors.ts'
import { checkObject, checkOptions } from '../job/names.ts'
import type { EffectSet } from '../job/record.ts'
import { decodeExtras } from '../job/stored.ts'
import type { Effects, FollowUp } from '../queue/effects.ts'
import type { KvWrites } from '../queue/kv-writes.ts'
import type { EnqueueOptions } from '../queue/prepare.ts'
import type { PayloadOf, QueueReference } from '../queue/reference.ts'
import type { SqlStatement } from '../queue/sql-statement.ts'
import { type Duration, show } from '../runtime/duration.ts'

type Headers = Readonly<Record<string, string>>

/** What the worker does with staged effects. It is kept apart from them, so that handlers see only what is theirs. */
interface EffectsOf {
  /** All effects that were staged here, each kind in the order in which it is written. */
  all(staged: StagedEffects): Effects
  /** Adds effects that were staged and prepared in a thread. */
  adopt(staged: StagedEffects, prepared: EffectSet): void
  /** Null: nothing was staged in a thread. Throws if what was staged there could not be prepared. */
  adopted(staged: StagedEffects): EffectSet | null
  /** What was staged in a thread could not be prepared there. */
  adoptFailure(staged: StagedEffects, error: unknown): void
  /** Changes the headers of the follow-up jobs that were staged so far, for example to add the trace of this run. */
  takeAlong(staged: StagedEffects, headersOf: (headers: Headers) => Headers): void
}

export let effectsOf: EffectsOf

type Each<Name extends keyof KvWrites> = NonNullable<KvWrites[Name]>[number]

export class StagedEffects {
  readonly #jobId: string
  readonly #isOpen: () => boolean
  #enqueue: FollowUp[] = []
  readonly #put: Each<'put'>[] = []
  readonly #delete: string[] = []
  readonly #compareAndSet: Each<'compareAndSet'>[] = []
  readonly #compareAndDelete: Each<'compareAndDelete'>[] = []
  readonly #sql: SqlStatement[] = []

  /** Effects that were staged and prepared in a thread. */
  #adopted: EffectSet | null = null
  #failure: { readonly error: unknown } | null = null

  /** `isOpen`: whether the handler still runs. */
  constructor(jobId: string, isOpen: () => boolean) {
    this.#jobId = jobId
    this.#isOpen = isOpen
  }

  enqueue<Q extends QueueReference>(queue: Q, payload: PayloadOf<Q>, options: Omit<EnqueueOptions, 'tx'> = {}): void {
    this.#requireOpen()
    checkObject(options, 'the options of a follow-up')
    this.#enqueue.push({ ...options, queue, payload })
  }

  put(key: string, value: unknown, options: { readonly ttl?: Duration } = {}): void {
    this.#requireOpen()
    checkOptions(options, 'put options', ['ttl'])
    this.#put.push({ ...options, key, value })
  }

  delete(key: string): void {
    this.#requireOpen()
    this.#delete.push(key)
  }

  /** If the entry no longer has this version (`null`: the key is absent), nothing is written and the attempt fails. */
  compareAndSet(key: string, version: number | null, value: unknown, options: { readonly ttl?: Duration } = {}): void {
    this.#requireOpen()
    checkOptions(options, 'put options', ['ttl'])
    this.#compareAndSet.push({ ...options, key, version, value })
  }

  /** If the entry no longer has this version, nothing is written and the attempt fails. */
  compareAndDelete(key: string, version: number): void {
    this.#requireOpen()
    this.#compareAndDelete.push({ key, version })
  }

  /** One statement on your own tables, on SQL stores: its text and values, or the statement of a query builder. */
  sql(text: string, values?: readonly unknown[]): void
  sql(statement: SqlStatement): void
  sql(statement: string | SqlStatement, values?: readonly unknown[]): void {
    this.#requireOpen()
    if (values !== undefined && (typeof statement !== 'string' || !Array.isArray(values))) {
      const wanted = 'effects.sql takes a text and an array of its values, or a statement that has its values'
      throw new HoldfastError('INVALID_OPTION', `${wanted}; got ${show(values)} as values.`, { option: 'values' })
    }
    this.#sql.push(typeof statement === 'string' ? { text: statement, values: values ?? [] } : statement)
  }

  #takeAlong(headersOf: (headers: Headers) => Headers): void {
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

  static {
    effectsOf = {
      all: (staged) => ({
        ...{ enqueue: staged.#enqueue, put: staged.#put, delete: staged.#delete, sql: staged.#sql },
        ...{ compareAndSet: staged.#compareAndSet, compareAndDelete: staged.#compareAndDelete },
      }),
      adopt: (staged, prepared) => {
        staged.#adopted = prepared
      },
      adopted: (staged) => {
        if (staged.#failure) throw staged.#failure.error
        return staged.#adopted
      },
      adoptFailure: (staged, error) => {
        staged.#failure = { error }
      },
      takeAlong: (staged, headersOf) => staged.#takeAlong(headersOf),
    }
  }

  #requireOpen(): void {
    if (this.#isOpen()) return
    const sentence = `Job ${this.#jobId} has ended in this worker, so no effect can be added. Await all work before the handler returns.`
    throw new HoldfastError('INVALID_STATE', sentence, { id: this.#jobId })
  }
}
