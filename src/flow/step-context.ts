// What the function of a step gets.

import { StagedEffects } from '../worker/staged-effects.ts'
import { derivedId } from './derived-id.ts'
import type { Execution } from './execution.ts'
import { toStatement } from './sql-template.ts'

export class StepContext {
  /** 1 in the first attempt. */
  readonly attempt: number
  readonly #execution: Execution
  readonly #name: string
  #controller: AbortController | null = null
  #aborted: { readonly reason: unknown } | null = null
  #staged: StagedEffects | null = null
  #hasEnded = false

  constructor(execution: Execution, name: string, attempt: number) {
    this.#execution = execution
    this.#name = name
    this.attempt = attempt
  }

  /** Aborts when the attempt exceeds its timeout, and when the run is cancelled or interrupted. */
  get signal(): AbortSignal {
    this.#controller ??= new AbortController()
    if (this.#aborted) this.#controller.abort(this.#aborted.reason)
    return this.#controller.signal
  }

  /** A UUID that is the same in all attempts of this step of this run: for the idempotency of the other side. */
  get key(): string {
    return derivedId('key', this.#execution.id, this.#name)
  }

  /** What is written in the transaction that records the outcome of this step. */
  get effects(): StagedEffects {
    this.#staged ??= new StagedEffects(this.#execution.id, () => !this.#hasEnded)
    return this.#staged
  }

  /**
   * Stages one statement on your own tables: `` sql`update documents set pages = ${pages}` ``. Its values become parameters. It
   * is run in the transaction that records the outcome.
   */
  readonly sql = (texts: TemplateStringsArray, ...values: readonly unknown[]): void => {
    this.effects.sql(toStatement(texts, values))
  }

  readonly log = (message: string, facts: Readonly<Record<string, unknown>> = {}): void => {
    this.#execution.job.log(message, { step: this.#name, ...facts })
  }

  /** Adds to the costs of the run, such as `('tokens', 1200)`. */
  readonly cost = (name: string, amount: number): void => {
    this.#execution.job.cost(name, amount)
  }

  /** Not for functions of steps. */
  get staged(): StagedEffects | null {
    return this.#staged
  }

  abort(reason: unknown): void {
    this.#aborted ??= { reason }
    this.#controller?.abort(reason)
  }

  /** Nothing more is staged. */
  end(): void {
    this.#hasEnded = true
  }
}
