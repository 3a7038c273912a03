// What an execution waits for: times, signals, ends of children. While the run is not parked, one timer serves all waits, and the
// mailbox is read again every second, because nothing reports a message to a run that is executed.

import { HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import type { AwaitedKey, Message, StepRecord } from '../job/journal.ts'
import type { CheckpointItem } from '../worker/checkpoint-buffer.ts'
import type { Execution } from './execution.ts'

type NewRecord = Omit<StepRecord, 'no'>

export interface TimeWait {
  /** By the store's time. */
  readonly until: number
  /** A wait that is shorter keeps its slot. */
  readonly keptMs: number
  /** What is recorded when the run parks; null: it is recorded already. */
  readonly start: NewRecord | null
}

export interface MessageWait {
  /** Null: it does not end by itself. */
  readonly until: number | null
  readonly start: NewRecord | null
  /** The signal is sent to this key; null: to the run. */
  readonly key: AwaitedKey | null
  isFor(message: Message): boolean
}

interface Wait {
  readonly until: number | null
  readonly keptMs: number
  readonly start: NewRecord | null
  readonly message: MessageWait | null
  hasLooked: boolean
  readonly end: (message: Message | null) => void
}

const lookMs = 1_000
/** A run that waits without an end looks at itself so often. */
export const parkMaxMs = 10 * 366 * 86_400_000

export class Waits {
  readonly #execution: Execution
  readonly #waits = new Set<Wait>()
  /** Messages that this execution has used. */
  readonly #used = new Set<number>()
  #awaits: readonly AwaitedKey[] = []
  #isLooking = false
  #looksAgain = false
  #callOff: (() => void) | null = null

  constructor(execution: Execution) {
    this.#execution = execution
  }

  /** The keys that the run awaits already. */
  begin(awaits: readonly AwaitedKey[]): void {
    this.#awaits = awaits
  }

  get size(): number {
    return this.#waits.size
  }

  forTime({ until, keptMs, start }: TimeWait): Promise<void> {
    return this.#wait({ until, keptMs, start, message: null }).then(() => undefined)
  }

  /** Null: its time is over, and no message has come. */
  async forMessage(message: MessageWait): Promise<Message | null> {
    const { until, start, key } = message
    if (key !== null) await this.#awaitKey(key)
    const { sleepMs: keptMs } = this.#execution.host.keptWaits
    const answer = this.#wait({ until, keptMs, start, message })
    void this.#look()
    return answer
  }

  /** No wait ends soon, and the mailbox was read for each. */
  areLong(): boolean {
    const now = this.#execution.host.storeNow()
    const isLong = ({ until, keptMs }: Wait) => until === null || until - now >= Math.max(1, keptMs)
    const isRead = ({ message, hasLooked }: Wait) => message === null || hasLooked
    return this.#waits.size > 0 && !this.#isLooking && [...this.#waits].every((wait) => isLong(wait) && isRead(wait))
  }

  /** How long the run may wait, and what it records before. */
  park(): { readonly delayMs: number; readonly item: CheckpointItem } {
    const now = this.#execution.host.storeNow()
    const waits = [...this.#waits]
    const until = Math.min(...waits.map((wait) => wait.until ?? Number.POSITIVE_INFINITY), now + parkMaxMs)
    const records = waits.flatMap(({ start }) => start ?? [])
    const awaits = keysOf(waits)
    const isSame = awaits.length === this.#awaits.length // keys are only added before
    return { delayMs: Math.max(1, until - now), item: { records, ...(!isSame && { awaits }) } }
  }

  /** The run is not parked: a timer ends its waits. */
  arm(): void {
    this.#callOff?.()
    this.#callOff = null
    if (this.#waits.size === 0) return
    const { host } = this.#execution
    const now = host.storeNow()
    const inMs = ({ until, message }: Wait) =>
      Math.min(until === null ? Number.POSITIVE_INFINITY : until - now, message ? lookMs : Number.POSITIVE_INFINITY)
    const next = Math.min(...[...this.#waits].map(inMs))
    this.#callOff = host.after(Math.max(0, next), () => this.#visit())
  }

  /** Nothing is waited for any more. */
  clear(): void {
    this.#waits.clear()
    this.#callOff?.()
    this.#callOff = null
  }

  #wait(wait: Omit<Wait, 'end' | 'hasLooked'>): Promise<Message | null> {
    const { promise, resolve } = Promise.withResolvers<Message | null>()
    this.#waits.add({ ...wait, hasLooked: false, end: resolve })
    this.#execution.suspended()
    return promise
  }

  #end(wait: Wait, message: Message | null): void {
    if (!this.#waits.delete(wait)) return
    this.#execution.resumed()
    wait.end(message)
  }

  #visit(): void {
    this.#callOff = null
    const now = this.#execution.host.storeNow()
    for (const wait of this.#waits) if (wait.message === null && isDue(wait, now)) this.#end(wait, null)
    if ([...this.#waits].some(({ message }) => message)) void this.#look()
    else this.arm()
  }

  /** Reads the mailbox, once for all waits. A wait whose time is over ends after this look. */
  async #look(): Promise<void> {
    if (this.#isLooking) {
      this.#looksAgain = true
      return
    }
    this.#isLooking = true
    try {
      do {
        this.#looksAgain = false
        await this.#lookOnce()
      } while (this.#looksAgain)
    } catch (error) {
      this.#execution.failed(error as Error)
    }
    this.#isLooking = false
    this.#execution.changed()
  }

  async #lookOnce(): Promise<void> {
    const { host, id } = this.#execution
    const asking = [...this.#waits].filter(({ message }) => message !== null)
    if (asking.length === 0) return
    const now = host.storeNow()
    const isOwn = asking.some(({ message }) => message?.key === null)
    const messages = await host.messages({ id: isOwn ? id : null, keys: keysOf(asking) })
    for (const wait of asking) {
      const found = messages.find((message) => !this.#used.has(message.no) && wait.message?.isFor(message))
      if (found) this.#used.add(found.no)
      if (found || isDue(wait, now)) this.#end(wait, found ?? null)
      else wait.hasLooked = true
    }
  }

  /** It is committed before the mailbox of the key is read: so no message is missed between the look and the park. */
  async #awaitKey(key: AwaitedKey): Promise<void> {
    if (this.#awaits.some((each) => isSameKey(each, key))) return
    const awaits = [...this.#awaits, key]
    checkAwaits(awaits.length)
    this.#awaits = awaits
    await this.#execution.commit({ awaits })
  }
}

function isDue({ until }: Wait, now: number): boolean {
  return until !== null && now >= until
}

function keysOf(waits: readonly Wait[]): readonly AwaitedKey[] {
  const keys = waits.flatMap(({ message }) => message?.key ?? [])
  return keys.filter((key, i) => keys.findIndex((each) => isSameKey(each, key)) === i)
}

function isSameKey(a: AwaitedKey, b: AwaitedKey): boolean {
  return a.key === b.key && a.name === b.name
}

function checkAwaits(count: number): void {
  if (count <= bounds.awaitsMax) return
  const message = `A run awaits signals of at most ${bounds.awaitsMax} keys at a time.`
  throw new HoldfastError('INVALID_STATE', message, { most: bounds.awaitsMax })
}
