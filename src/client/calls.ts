// Every call to a client goes through here: refused once the client is closed, and waited for by `close` when it began before.

import { HoldfastError } from '../errors.ts'

export class Calls {
  readonly #onEnded: () => void
  readonly #idle = Promise.withResolvers<void>()
  #running = 0
  #isClosed = false

  constructor(onEnded: () => void) {
    this.#onEnded = onEnded
  }

  /** A call after which something may be different. */
  run<T>(action: () => Promise<T>): Promise<T> {
    return this.#track(action, this.#leaveChanged)
  }

  /** A call that only looks. */
  look<T>(action: () => Promise<T>): Promise<T> {
    return this.#track(action, this.#leave)
  }

  refuse(): void {
    this.#isClosed = true
  }

  /** Resolves when every call that was let in has ended. */
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
  return new HoldfastError('CLOSED', 'This Holdfast was closed; open it again to go on.')
}

/** What throws at once is refused like what throws later. (`Promise.try` makes a promise more.) */
function begin<T>(action: () => Promise<T>): Promise<T> {
  try {
    return action()
  } catch (error) {
    return Promise.reject(error)
  }
}
