// The steps of one execution that are in flight. A step is in flight from its first attempt until its outcome is handed over,
// also while it waits to be repeated. It runs while its function does.

/** An attempt whose function runs. */
export interface RunningAttempt {
  abort(reason: unknown): void
}

export class StepsRunning {
  readonly #running = new Set<RunningAttempt>()
  #inFlight = 0

  get hasAny(): boolean {
    return this.#inFlight > 0
  }

  get isRunning(): boolean {
    return this.#running.size > 0
  }

  began(): void {
    this.#inFlight += 1
  }

  ended(): void {
    this.#inFlight -= 1
  }

  attemptBegan(attempt: RunningAttempt): void {
    this.#running.add(attempt)
  }

  attemptEnded(attempt: RunningAttempt): void {
    this.#running.delete(attempt)
  }

  abort(reason: unknown): void {
    for (const attempt of this.#running) attempt.abort(reason)
  }
}
