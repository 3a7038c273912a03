// A gate that workers of all processes pass before they claim. Whoever finds that the session behind it has expired closes
// it; everybody idles until it is opened again.
//
// An open gate costs nothing: `whenOpen` and `passNow` answer from what is known. What is known is the gate as it was last
// read. It is read again about once a second while it is watched, and by every call that changes it, so a change from
// this process is known at once, and one from elsewhere a poll later. Reads and writes overtake each other on the way
// back; an answer that set out before the last change was learnt is not trusted, and the gate is read again.
//
// While the store does not answer, the last known state stays. Only whoever asks before anything is known hears of it.
//
// A pass is the generation that a job started in. Closing by a pass compares and sets on it: a straggler of an old session
// does not close a gate that was opened anew since.

import { HoldfastError } from '../../errors.ts'
import type { Events } from '../../events.ts'
import { checkOptions, checkSignal, checkWorkerName } from '../../job/names.ts'
import type { Kv } from '../../kv/kv.ts'
import { type Duration, toMs } from '../../runtime/duration.ts'
import { Poll } from '../poll.ts'
import { type GateState, gateKeyPrefix, type ReadGate, readGate, type StoredClosing, toReason } from './gate-state.ts'
import { Parked } from './parked.ts'

export interface GateOptions {
  /** How often a watched gate is read; `'1s'` unless given. */
  readonly poll?: Duration
}

export interface GateCloseOptions {
  /** Who closes it, for people; `process-<pid>` unless given. */
  readonly by?: string
}

/** The generation that somebody was let in by. */
export interface Pass {
  readonly generation: number
  /** Closes the gate if it is still open in this generation. Answers whether it was this call that did. */
  close(reason: string, options?: GateCloseOptions): Promise<boolean>
}

/** What a gate needs of the client it came from. */
export interface GateContext {
  readonly kv: Kv
  readonly events: Events
}

const defaultPollMs = 1_000
/** How often a change is tried again because others changed the gate in between. */
const triesMax = 20

export class Gate {
  readonly name: string
  readonly #key: string
  readonly #context: GateContext
  readonly #poll: Poll
  readonly #parked: Parked
  #known: ReadGate | null = null
  #changes = 0
  #isWatched = false
  #isEnded = false

  constructor(context: GateContext, name: string, options: GateOptions) {
    checkOptions(options, 'gate options', ['poll'])
    this.#context = context
    this.name = name
    this.#key = gateKeyPrefix + name
    this.#parked = new Parked(`gate ${name}`)
    this.#poll = new Poll(() => this.#read(), toMs(options.poll ?? defaultPollMs, 'poll', { min: 10, max: 3_600_000 }))
  }

  /** Whether it is known to be open. False while nobody watches it: what was read once says little later. */
  get isOpen(): boolean {
    return this.#poll.isRunning && this.#isKnownOpen()
  }

  /** Reads it from the store. */
  async state(): Promise<GateState> {
    return (await this.#read()).state
  }

  /** Answers whether it was this call that closed it; one that is closed keeps its first reason. */
  async close(reason: string, options: GateCloseOptions = {}): Promise<boolean> {
    return this.#change(false, toClosing(reason, options))
  }

  /** Answers whether it was this call that opened it. */
  open(): Promise<boolean> {
    return this.#change(true, () => ({ open: true }))
  }

  /** Waits until it is open. Rejects with the signal's reason when that aborts, with CLOSED when the client is closed. */
  async whenOpen(signal?: AbortSignal): Promise<void> {
    checkSignal(signal)?.throwIfAborted()
    if (!this.#isWatched) await this.watch()
    signal?.throwIfAborted()
    if (!this.#isKnownOpen()) await this.#wait(signal)
  }

  /** Waits until it is open and answers the pass to enter by. */
  async pass(options: { readonly signal?: AbortSignal } = {}): Promise<Pass> {
    checkOptions(options, 'pass options', ['signal'])
    do await this.whenOpen(options.signal)
    while (!this.#isKnownOpen()) // closed again before the turn came
    return this.passNow()
  }

  /** The pass of the generation that it was last known in, without waiting. Of a closed gate it closes nothing. */
  passNow(): Pass {
    const { version, state } = this.#known ?? readGate(null)
    const close = async (reason: string, options: GateCloseOptions = {}) => {
      const closing = toClosing(reason, options)(state.generation)
      return state.open && this.#write(version, closing)
    }
    return { generation: state.generation, close }
  }

  /** Reads it, and goes on reading it in the background until `stop`. The background keeps no process alive. */
  async watch(): Promise<void> {
    await this.#read()
    this.#isWatched = !this.#isEnded
    this.#lookWhileWanted()
  }

  /** No longer reads in the background, except for those who wait for it to open. */
  stop(): void {
    this.#isWatched = false
    this.#lookWhileWanted()
  }

  /** The client is closed: whoever waits is refused. */
  end(): void {
    this.#isEnded = true
    this.#isWatched = false
    this.#poll.stop()
    this.#parked.refuseAll(clientClosed())
  }

  #isKnownOpen(): boolean {
    return this.#known?.state.open ?? false
  }

  async #change(toOpen: boolean, valueFor: (generation: number) => unknown): Promise<boolean> {
    for (let tries = 0; tries < triesMax; tries++) {
      const { state, version } = await this.#read()
      if (state.open === toOpen) return false
      if (await this.#write(version, valueFor(state.generation))) return true
    }
    const sentence = `Others keep changing gate ${this.name}; try again.`
    throw new HoldfastError('STORE_UNAVAILABLE', sentence, { gate: this.name })
  }

  async #read(): Promise<ReadGate> {
    for (;;) {
      const asOf = this.#changes
      const read = readGate(await this.#context.kv.get(this.#key))
      if (asOf !== this.#changes) continue
      this.#learn(read)
      return read
    }
  }

  async #write(expected: number | null, value: unknown): Promise<boolean> {
    const asOf = this.#changes
    const { applied, version } = await this.#context.kv.compareAndSet(this.#key, expected, value)
    if (applied && asOf === this.#changes) this.#learn(readGate({ value, version: version as number }))
    else await this.#read().catch(() => undefined) // it was written or not, whatever can be read now
    return applied
  }

  #learn(next: ReadGate): void {
    const last = this.#known
    if (last && last.version === next.version) return
    this.#known = next
    this.#changes += 1
    if (next.state.open) this.#parked.letAllIn()
    this.#tell(last?.state ?? null, next.state)
  }

  #tell(last: GateState | null, next: GateState): void {
    const { events } = this.#context
    const gate = this.name
    if (!next.open && last?.open !== false) events.emit('gate.closed', { gate, reason: next.reason })
    if (next.open && last?.open === false) {
      events.emit('gate.opened', { gate, closedMs: Math.max(0, Date.now() - last.closedAt.getTime()) })
    }
  }

  /** Whoever waits keeps the process alive. */
  async #wait(signal: AbortSignal | undefined): Promise<void> {
    if (this.#isEnded) throw clientClosed()
    const waiting = this.#parked.wait(signal)
    this.#lookWhileWanted()
    await waiting.finally(() => this.#lookWhileWanted())
  }

  #lookWhileWanted(): void {
    const isWaitedFor = this.#parked.size > 0
    if (!this.#isEnded && (this.#isWatched || isWaitedFor)) this.#poll.start()
    else this.#poll.stop()
    this.#poll.holdsProcess = isWaitedFor
  }
}

/** Checked at once, made when it is known which generation it ends. */
function toClosing(reason: string, options: GateCloseOptions): (generation: number) => StoredClosing {
  checkOptions(options, 'close options', ['by'])
  const by = checkWorkerName(options.by ?? `process-${process.pid}`)
  const text = toReason(reason)
  return (generation) => ({ open: false, reason: text, closedAt: Date.now(), by, generation })
}

function clientClosed(): HoldfastError {
  return new HoldfastError('CLOSED', 'This Holdfast was closed while you waited for a gate to open.')
}
