// A gate that workers of all processes pass before they claim. A job that finds the session behind it expired closes the gate.
// Then all workers wait until it is opened again.
//
// WHAT IS KNOWN. An open gate costs no call to the store: `whenOpen` and `passNow` answer from the gate as it was last read. It
// is read again about once a second while it is watched, and by every call that changes it. So a change by this process is
// known at once, and a change by another process a poll later. Answers may arrive in another order than they were sent. An
// answer to a call that was made before the last known change is dropped, and the gate is read again.
//
// OUTAGES. While the store does not answer, the last known state stays. Only a call before the first read rejects.
//
// PASSES. A pass is the generation that a job started in. Closing by a pass compares and sets on it. So a job of an old session
// cannot close a gate that was opened again since.

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
  /** The name to record as having closed it; `process-<pid>` unless given. */
  readonly by?: string
}

/** The generation that a job passed the gate in. */
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
/** How often a change is tried again because other processes changed the gate in between. */
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

  /** Whether it is known to be open. False while it is not watched, because the last read may be old. */
  get isOpen(): boolean {
    return this.#poll.isRunning && this.#isKnownOpen()
  }

  /** Reads it from the store. */
  async state(): Promise<GateState> {
    return (await this.#read()).state
  }

  /** Answers whether it was this call that closed it. A gate that is closed already keeps its first reason. */
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

  /** Waits until it is open and answers the pass of that generation. */
  async pass(options: { readonly signal?: AbortSignal } = {}): Promise<Pass> {
    checkOptions(options, 'pass options', ['signal'])
    do await this.whenOpen(options.signal)
    while (!this.#isKnownOpen()) // it was closed again before this code ran
    return this.passNow()
  }

  /** The pass of the last known generation, without waiting. If the gate is closed, closing by this pass does nothing. */
  passNow(): Pass {
    const { version, state } = this.#known ?? readGate(null)
    const close = async (reason: string, options: GateCloseOptions = {}) => {
      const closing = toClosing(reason, options)(state.generation)
      return state.open && this.#write(version, closing)
    }
    return { generation: state.generation, close }
  }

  /** Reads it, and goes on reading it in the background until `stop`. The background reads do not keep the process alive. */
  async watch(): Promise<void> {
    await this.#read()
    this.#isWatched = !this.#isEnded
    this.#pollWhileUsed()
  }

  /** Stops reading in the background, unless a caller waits for the gate to open. */
  stop(): void {
    this.#isWatched = false
    this.#pollWhileUsed()
  }

  /** The client is closed: callers that wait get CLOSED. */
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
    const sentence = `Other processes keep changing gate ${this.name}; try again.`
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
    else await this.#read().catch(() => undefined) // the write has its answer, whether this read succeeds or not
    return applied
  }

  #learn(next: ReadGate): void {
    const last = this.#known
    if (last && last.version === next.version) return
    this.#known = next
    this.#changes += 1
    if (next.state.open) this.#parked.letAllIn()
    this.#emitChange(last?.state ?? null, next.state)
  }

  #emitChange(last: GateState | null, next: GateState): void {
    const { events } = this.#context
    const gate = this.name
    if (!next.open && last?.open !== false) events.emit('gate.closed', { gate, reason: next.reason })
    if (next.open && last?.open === false) {
      events.emit('gate.opened', { gate, closedMs: Math.max(0, Date.now() - last.closedAt.getTime()) })
    }
  }

  /** A caller that waits keeps the process alive. */
  async #wait(signal: AbortSignal | undefined): Promise<void> {
    if (this.#isEnded) throw clientClosed()
    const waiting = this.#parked.wait(signal)
    this.#pollWhileUsed()
    await waiting.finally(() => this.#pollWhileUsed())
  }

  #pollWhileUsed(): void {
    const isWaitedFor = this.#parked.size > 0
    if (!this.#isEnded && (this.#isWatched || isWaitedFor)) this.#poll.start()
    else this.#poll.stop()
    this.#poll.holdsProcess = isWaitedFor
  }
}

/** Checks the options at once; the value to store is made when the generation is known. */
function toClosing(reason: string, options: GateCloseOptions): (generation: number) => StoredClosing {
  checkOptions(options, 'close options', ['by'])
  const by = checkWorkerName(options.by ?? `process-${process.pid}`)
  const text = toReason(reason)
  return (generation) => ({ open: false, reason: text, closedAt: Date.now(), by, generation })
}

function clientClosed(): HoldfastError {
  return new HoldfastError('CLOSED', 'This Holdfast was closed while you waited for a gate to open.')
}
