// The runs of a worker that are not settled yet. A run occupies a slot until its settlement is prepared or its handler
// was abandoned. It is unsettled until the store has answered its settlement. An abandoned handler is counted until it ends.

import type { HoldfastError } from '../errors.ts'
import type { Run } from './run.ts'

export class UnsettledRuns {
  readonly #runs = new Set<Run>()
  /** Called when the run has ended. */
  readonly #onEnded = new Map<Run, () => void>()
  #slotsUsed = 0
  #abandoned = 0
  #onIdle: (() => void) | null = null
  #onEmpty: (() => void) | null = null

  get all(): ReadonlySet<Run> {
    return this.#runs
  }

  get slotsUsed(): number {
    return this.#slotsUsed
  }

  /** Handlers that ignored their signal and still run. */
  get abandoned(): number {
    return this.#abandoned
  }

  add(run: Run): void {
    this.#runs.add(run)
    this.#slotsUsed += 1
  }

  freeSlot(): void {
    this.#slotsUsed -= 1
    if (this.#slotsUsed === 0) this.#onIdle?.()
  }

  delete(run: Run): void {
    this.#runs.delete(run)
    if (this.#runs.size === 0) this.#onEmpty?.()
    this.#onEnded.get(run)?.()
    this.#onEnded.delete(run)
  }

  handlerAbandoned(): void {
    this.#abandoned += 1
  }

  /** An abandoned handler has ended. */
  handlerReturned(): void {
    this.#abandoned -= 1
  }

  /** Looks at every run; answers when the next look is due. */
  look(now: number): number {
    let next = Number.POSITIVE_INFINITY
    for (const run of this.#runs) {
      run.look(now)
      if (run.lookAt < next) next = run.lookAt
    }
    return next
  }

  abortAll(error: HoldfastError): void {
    for (const run of [...this.#runs]) run.abort('shutdown', error)
  }

  hurryAll(): void {
    for (const run of [...this.#runs]) run.hurry()
  }

  /** Resolves when this run has been settled, or its lease is lost. */
  ended(run: Run): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#onEnded.set(run, resolve)
    return promise
  }

  /** Resolves when no slot is used. */
  idle(): Promise<void> {
    if (this.#slotsUsed === 0) return Promise.resolve()
    return new Promise((resolve) => {
      this.#onIdle = resolve
    })
  }

  /** Resolves when every run is settled. */
  empty(): Promise<void> {
    if (this.#runs.size === 0) return Promise.resolve()
    return new Promise((resolve) => {
      this.#onEmpty = resolve
    })
  }
}
