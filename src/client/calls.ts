// Every call to a client goes through here. After `close` it is refused; `close` waits for the calls that began before.

import { HoldfastError } from '../errors.ts'

export class Calls {
  readonly #onEnded: () => void
  readonly #idle = Promise.withResolvers<void>()
  #running = 0
  #isClosed = false

  constructor(onEnded: () => void) {
    this.#onEnded = onEnded
  }

  /** A call that may change something. */
  run<T>(action: () => Promise<T>): Promise<T> {
    return this.#track(action, this.#leaveChanged)
  }

  /** A call that only reads. */
  look<T>(action: () => Promise<T>): Promise<T> {
    return this.#track(action, this.#leave)
  }

  refuse(): void {
    this.#isClosed = true
  }

  /** Resolves when every call that was accepted has ended. */
  async ended(): Promise<void> {
    if (this.#running > 0) await this.#idle.promise
  }

  #track<T>(action: () => Promise<T>, leave: () => void): Promise<T> {
    if (this.#isClosed) return Promise.reject(closedError())
    const promise = begin(action)
    this.#running += 1
    promise.then(leave, leave)
    return promise
  }

  readonly #leave = (): void => {
    this.#running -= 1
    if (this.#running === 0 && this.#isClosed) this.#idle.resolve()
  }

  readonly #leaveChanged = (): void => {
    this.#leave()
    this.#onEnded()
  }
}

export function closedError(): HoldfastError {
  return new HoldfastError('CLOSED', 'This Holdfast was closed. Open it again to continue.')
}

/** A synchronous throw becomes a rejection. (`Promise.try` would create one more promise.) */
function begin<T>(action: () => Promise<T>): Promise<T> {
  try {
    return action()
  } catch (error) {
    return Promise.reject(error)
  }
}
