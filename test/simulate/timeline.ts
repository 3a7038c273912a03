// Where a simulation takes place: a time that nobody waits for, and the events that are to come, one after the other. What
// an event sets in motion comes to rest before the next one happens, so that nothing but the seed decides what meets what.

/** Whose events these are. Who is dead is past all of them; who is frozen meets them late. */
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

/** The store's time begins here. */
export const epochMs = Date.UTC(2030, 0, 1)

/** Turns of the event loop within which all comes to rest: a settlement waits for one, and so does who waits for a place. */
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

  /** What a store or a person would read from a clock. */
  get clock(): number {
    return epochMs + Math.floor(this.#now) + this.#jumpedMs
  }

  /** Somebody sets the clock forward; timers do not notice. */
  setForward(ms: number): void {
    this.#jumpedMs += Math.floor(ms)
  }

  /** How many events there were. */
  get count(): number {
    return this.#count
  }

  /** What it answers is waited for before the next event. Answers how to call it off. */
  after(ms: number, actor: Actor | null, call: () => unknown): () => void {
    const event = { at: this.#now + Math.max(0, ms), actor, call, isOff: false }
    this.#insert(event)
    return () => {
      event.isOff = true
    }
  }

  /** Goes on until it is done, or this time has come; answers whether it is done. */
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

  /** Behind all that happen at the same time. */
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

/** Everything that is on its way in this process arrives. */
export async function rest(): Promise<void> {
  for (let turn = 0; turn < turnsToRest; turn++) await new Promise((resolve) => setImmediate(resolve))
}
