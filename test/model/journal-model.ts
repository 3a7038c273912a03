// The journal part of the model: records, partial results, awaited keys and mailboxes. The number of a message is the store's
// choice. So the model keeps messages in the order of their commits, and learns the store's number of each when it first sees it.

import { isDeepStrictEqual } from 'node:util'
import { type Refused, refuse } from '../../src/errors.ts'
import { type AwaitedKey, hasWrites, type JournalWrites, type Message, type StepRecord } from '../../src/job/journal.ts'
import type { MessagesQuery, SignalTarget } from '../../src/store/store.ts'

export interface ModelJournal {
  readonly records: readonly StepRecord[]
  readonly partial: string | null
  readonly awaits: readonly AwaitedKey[]
  /** Its last settlement was a park: messages wake it while it is scheduled. */
  readonly isParked: boolean
}

export const noJournal: ModelJournal = { records: [], partial: null, awaits: [], isParked: false }

export interface ModelMessage extends Omit<Message, 'no'> {
  /** Counted by the model. */
  readonly count: number
  /** `born` of the job in whose mailbox it is; null: it is for a key. */
  readonly to: number | null
  readonly expiresAt: number | null
  readonly ttlMs: number | null
  /** The number that the store gave it; null: it was not seen yet. */
  readonly no: number | null
}

export interface MailState {
  /** In the order of their commits. */
  messages: ModelMessage[]
  count: number
}

type NewMessage = Pick<ModelMessage, 'to' | 'key' | 'name' | 'child' | 'value' | 'ttlMs'>

/** A job, as far as its journal is concerned. */
interface Owner {
  readonly born: number
  hasJournal: boolean
  journal: ModelJournal
}

export class MailModel {
  readonly #state: MailState
  readonly #now: number

  constructor(state: MailState, now: number) {
    this.#state = state
    this.#now = now
  }

  add(message: NewMessage): number {
    const count = this.#state.count + 1
    const expiresAt = message.ttlMs === null ? null : this.#now + message.ttlMs
    this.#state.count = count
    this.#state.messages = [...this.#state.messages, { ...message, count, at: this.#now, expiresAt, no: null }]
    return count
  }

  /** Everything of it, or the reason why nothing is written. The caller undoes what was written before a refusal. */
  write(job: Owner, journal: JournalWrites): Refused | null {
    if (!hasWrites(journal)) return null
    const { records, consume = [], clear = [], partial, awaits } = journal
    job.hasJournal = true
    for (const record of records) {
      const { step, part, no } = record
      const isTaken = job.journal.records.some((one) => one.no === no || (one.step === step && one.part === part))
      if (isTaken) return refuse('INVALID_STATE', '')
      job.journal = { ...job.journal, records: [...job.journal.records, record] }
    }
    for (const no of consume) if (!this.#take(job, no)) return refuse('SIGNAL_GONE', '')
    this.#remove(({ to, name, child }) => to === job.born && child === null && clear.includes(name))
    if (partial !== undefined) job.journal = { ...job.journal, partial }
    if (awaits !== undefined) job.journal = { ...job.journal, awaits: sortKeys(awaits) }
    return null
  }

  #take({ born }: Owner, no: number): boolean {
    const message = this.#alive().find((each) => each.no === no && (each.to === born || each.to === null))
    if (message) this.#remove((each) => each === message)
    return message !== undefined
  }

  /** How many are removed at least, and at most: whether those count whose time is over is not promised. */
  clear(born: number | null, target: SignalTarget, name: string | null): readonly [least: number, most: number] {
    const isMeant = (message: ModelMessage) =>
      message.child === null &&
      (name === null || message.name === name) &&
      ('key' in target ? message.key === target.key : born !== null && message.to === born)
    const least = this.#alive().filter(isMeant).length
    const most = this.#state.messages.filter(isMeant).length
    this.#remove(isMeant)
    return [least, most]
  }

  /** The job is removed, and its mailbox with it. */
  drop(isGone: (born: number) => boolean): void {
    this.#remove(({ to }) => to !== null && isGone(to))
  }

  ofJob(born: number): ModelMessage[] {
    return this.#state.messages.filter(({ to }) => to === born)
  }

  ofKey({ key, name }: AwaitedKey): ModelMessage[] {
    return this.#alive().filter((message) => message.key === key && message.name === name)
  }

  isAwaited({ journal }: Pick<Owner, 'journal'>): boolean {
    return journal.awaits.some((awaited) => this.ofKey(awaited).length > 0)
  }

  /** Messages that are not in the mailbox of this job. */
  ofOthers(born: number): ModelMessage[] {
    return this.#state.messages.filter(({ to }) => to !== null && to !== born)
  }

  ofKeys(): ModelMessage[] {
    return this.#alive().filter(({ key }) => key !== null)
  }

  garbage(): number {
    return this.#state.messages.length - this.#alive().length
  }

  prune(): void {
    this.#state.messages = this.#alive()
  }

  /** After the clock was set back. */
  correctTtls(): void {
    this.#state.messages = this.#state.messages.map((message) =>
      message.expiresAt === null || message.ttlMs === null
        ? message
        : { ...message, expiresAt: Math.min(message.expiresAt, this.#now + message.ttlMs) },
    )
  }

  /**
   * Whether these are the messages that the query finds; learns their numbers. Signals of one mailbox are in their order. Ends
   * of children that end in one call may be in any order.
   */
  accepts(born: number | null, { keys }: MessagesQuery, real: readonly Message[]): boolean {
    const own = born === null ? [] : this.ofJob(born)
    const mailboxes = [own, ...keys.map((key) => this.ofKey(key))]
    const found = keys.map((key) => real.filter((message) => message.key === key.key && message.name === key.name))
    const ofReal = [real.filter(({ key }) => key === null), ...found]
    return (
      real.length === mailboxes.flat().length &&
      mailboxes.every((expected, i) => this.#acceptsMailbox(expected, ofReal[i] as Message[]))
    )
  }

  #acceptsMailbox(expected: readonly ModelMessage[], real: readonly Message[]): boolean {
    const isRising = real.every(({ no }, i) => i === 0 || no > (real[i - 1] as Message).no)
    if (expected.length !== real.length || !isRising) return false
    const signals = expected.filter(({ child }) => child === null)
    const ends = expected.filter(({ child }) => child !== null)
    const realEnds = real.filter(({ child }) => child !== null)
    return (
      real.filter(({ child }) => child === null).every((message, i) => this.#acceptsAs(signals[i], message)) &&
      ends.every((end) => this.#acceptsAs(end, realEnds.find((message) => isSame(end, message) && this.#mayBe(end, message)))) // biome-ignore format: one condition
    )
  }

  #acceptsAs(expected: ModelMessage | undefined, real: Message | undefined): boolean {
    if (!expected || !real || !isSame(expected, real) || !this.#mayBe(expected, real)) return false
    this.learn(expected.count, real.no)
    return true
  }

  /** The store showed this number for this message before, or shows both for the first time. */
  #mayBe({ count }: ModelMessage, { no }: Message): boolean {
    const known = this.#state.messages.find((each) => each.no === no)
    if (known) return known.count === count
    return this.#state.messages.find((each) => each.count === count)?.no === null
  }

  learn(count: number, no: number): void {
    this.#state.messages = this.#state.messages.map((each) => (each.count === count ? { ...each, no } : each))
  }

  isKnown(no: number): boolean {
    return this.#state.messages.some((each) => each.no === no)
  }

  #alive(): ModelMessage[] {
    return this.#state.messages.filter(({ expiresAt }) => expiresAt === null || expiresAt > this.#now)
  }

  #remove(isMeant: (message: ModelMessage) => boolean): void {
    this.#state.messages = this.#state.messages.filter((message) => !isMeant(message))
  }
}

export function sortKeys(keys: readonly AwaitedKey[]): AwaitedKey[] {
  const unique = new Map(keys.map(({ key, name }) => [`${key} ${name}`, { key, name }]))
  return [...unique].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, key]) => key)
}

function isSame(expected: ModelMessage, real: Message): boolean {
  const { name, child, key, at } = expected
  return (
    isDeepStrictEqual([name, child, key, at], [real.name, real.child, real.key, real.at]) &&
    isDeepStrictEqual(plainValue(expected), plainValue(real))
  )
}

const wordedByStore = ['Overdue', 'EffectFailed']

/** The words of some errors are the store's. */
function plainValue({ child, value }: Pick<Message, 'child' | 'value'>): unknown {
  if (child === null) return value
  const end = JSON.parse(value) as { readonly error?: { readonly name?: string; readonly noticeDropped?: string } }
  if (!end.error) return end
  const { noticeDropped, ...error } = end.error
  const isStores = wordedByStore.includes(error.name ?? '')
  return { ...end, error: [isStores ? error.name : error, noticeDropped !== undefined] }
}
