// The virtual time of a simulation, and its coming events, one after the other. All work that an event starts has come to rest
// before the next event, so that only the seed decides the order.

/** The process of an event. A dead process gets no event any more; a frozen one gets it late. */
export interface Actor {
  readonly isDead: boolean
  readonly frozenUntil: number
}

interface Event {
  at: number
  readonly actor: Actor | null
  readonly call: () => unknown
  isOff: boolean
}

/** The clock of the store begins here. */
export const epochMs = Date.UTC(2030, 0, 1)

/** Turns of the event loop within which all work comes to rest: a flush waits for one, and so does a loop without a free slot. */
const turnsToRest = 2

export class Timeline {
  /** Sorted, the next one last. */
  readonly #events: Event[] = []
  #now = 0
  #count = 0
  #jumpedMs = 0

  /** Milliseconds since the beginning. */
  get now(): number {
    return this.#now
  }

  /** The time of day, as the store reads it. */
  get clock(): number {
    return epochMs + Math.floor(this.#now) + this.#jumpedMs
  }

  /** Sets the clock forward; timers do not notice. */
  setForward(ms: number): void {
    this.#jumpedMs += Math.floor(ms)
  }

  /** How many events there were. */
  get count(): number {
    return this.#count
  }

  /** A promise that `call` returns is awaited before the next event. Returns a function that cancels the event. */
  after(ms: number, actor: Actor | null, call: () => unknown): () => void {
    const event = { at: this.#now + Math.max(0, ms), actor, call, isOff: false }
    this.#insert(event)
    return () => {
      event.isOff = true
    }
  }

  /** Runs events until `isDone`, or until this time; answers whether it is done. */
  async run(untilMs: number, isDone: () => boolean = () => false): Promise<boolean> {
    await rest()
    for (;;) {
      if (isDone()) return true
      const event = this.#events.at(-1)
      if (!event || event.at > untilMs) break
      this.#events.pop()
      if (event.isOff || event.actor?.isDead) continue
      if (event.actor && event.actor.frozenUntil > event.at) {
        event.at = event.actor.frozenUntil
        this.#insert(event)
        continue
      }
      this.#now = event.at
      this.#count += 1
      await event.call()
      await rest()
    }
    this.#now = Math.max(this.#now, untilMs)
    return isDone()
  }

  /** After all events of the same time. */
  #insert(event: Event): void {
    let [low, high] = [0, this.#events.length]
    while (low < high) {
      const middle = (low + high) >>> 1
      if ((this.#events[middle] as Event).at > event.at) low = middle + 1
      else high = middle
    }
    this.#events.splice(low, 0, event)
  }
}

/** Resolves when all promises of this process that can resolve have done so. */
export async function rest(): Promise<void> {
  for (let turn = 0; turn < turnsToRest; turn++) await new Promise((resolve) => setImmediate(resolve))
}
