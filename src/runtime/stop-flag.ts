// A flag that one thread sets and another one reads between short sleeps. A thread that sleeps receives no messages, so a message
// could not end its wait.

export class StopFlag {
  /** Memory that both threads share. */
  readonly memory: SharedArrayBuffer
  readonly #words: Int32Array

  constructor(memory: SharedArrayBuffer = new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT)) {
    this.memory = memory
    this.#words = new Int32Array(memory)
  }

  get isSet(): boolean {
    return Atomics.load(this.#words, 0) !== 0
  }

  /** Also ends a sleep under way. */
  set(): void {
    Atomics.store(this.#words, 0, 1)
    Atomics.notify(this.#words, 0)
  }

  /** Blocks this thread. Returns at once if the flag is set. */
  sleep(ms: number): void {
    Atomics.wait(this.#words, 0, 0, ms)
  }
}
