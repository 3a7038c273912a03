// One execution of a flow's function: from a claim of its run until the run ends, waits, or is given up.
//
// RESUMING. The function runs from its beginning in every execution. A call of the handle (`flow.step`, `flow.sleep`, …) finds
// its record by its name. If the outcome is recorded, the call returns it and runs nothing. Calls that are made in the same turn
// return recorded outcomes in the order in which these were committed: so a race has the same winner in every execution.
//
//   executing ──the function returned──▶ returning ──the rest is written──▶ over: done, failed or cancelled
//      │  ▲                                  ▲
//      │  └─ a call goes on                  └─ the function threw: the attempt of the run has failed, or the run is dead
//      ├──only waits are left──▶ over: parked
//      └──aborted (cancel, shutdown, timeout, lost lease)──▶ closing ──no step runs any more──▶ over
//
// WHAT IS IN FLIGHT. Each call is in one of three places:
//
//   busy       it goes on by itself: a step runs, a mailbox is read, a schema answers
//   in a write its item waits in the buffer (`worker/checkpoint-buffer.ts`), or is being committed
//   waiting    for a time, a signal, the end of a child (`waits.ts`)
//
// WRITES. A turn of the event loop after something was added to the buffer, all of it goes in one checkpoint. Two things travel
// with the settlement instead: the outcomes of steps after which the function returns in the same turn, and everything that is
// there when the run parks.
//
// EARLY RETURN. A step returns its value before its outcome is committed, if its attempt has staged no effect and nothing else is
// waited for. Otherwise a function that ends after a step could never take the outcome along. The function may use the value at
// once. But no other step starts before the outcome is committed, and if it cannot be, the attempt of the run fails.
//
// PARKING. A run is parked when a turn of the event loop has passed in which no call was busy, nothing had to be committed first,
// and every wait is longer than what is worth a slot. One settlement writes the deadlines, children that were started, and the
// keys whose signals are awaited. Then the function is abandoned: its promises never settle, and its signal aborts.
//
// NOTHING IS LOST:
//
// - Between two commits, a crash repeats what came after the first: attempts of steps, and code of the function between them.
// - A step that stages effects returns only after its outcome and its effects were committed together.
// - A signal is consumed in the commit that records it. Until then it stays in its mailbox.
// - A signal that arrives after the mailbox was read wakes the run. The keys that it awaits are committed before their mailboxes
//   are read. So a message is either found, or its sender finds the run that waits, whichever commits first.
// - A child and the record of its start are one commit. Its end waits in the mailbox of the run.
// - A commit whose answer is lost is asked for again under its token.
// - A lease that is lost ends the execution. Its fence keeps everything out that it still writes.

import { type HoldfastError, toError } from '../errors.ts'
import { hasWrites, type JournalWrites, journalFull } from '../job/journal.ts'
import type { EffectSet } from '../job/record.ts'
import type { Settlement } from '../job/transition.ts'
import { together } from '../queue/effects.ts'
import type { Enqueued } from '../store/store.ts'
import type { CheckpointItem } from '../worker/checkpoint-buffer.ts'
import { type FlowEnd, flowEnd } from '../worker/fate.ts'
import type { FlowHost, FlowListener } from '../worker/flow-host.ts'
import type { Job } from '../worker/job.ts'
import type { AnyFlow } from './definition.ts'
import { settlementOf } from './end.ts'
import { executionOver, nameUsedTwice } from './errors.ts'
import { Flow } from './flow.ts'
import { emitFlowSettled } from './flow-events.ts'
import { Partials } from './partials.ts'
import { Records } from './records.ts'
import { StepsRunning } from './steps-running.ts'
import { Waits } from './waits.ts'

const leftWhy = 'it was parked, or the run is settled'

interface Replay {
  readonly no: number
  readonly deliver: () => void
}

export class Execution implements FlowListener {
  readonly host: FlowHost
  readonly definition: AnyFlow
  readonly job: Job
  readonly records = new Records()
  readonly partials = new Partials()
  readonly steps = new StepsRunning()
  readonly waits: Waits
  /** Made when the function asks for the signal. */
  #controller: AbortController | null = null
  readonly #end = Promise.withResolvers<FlowEnd>()
  /** Names that calls of this execution have used. */
  readonly #names = new Set<string>()
  /** How often a default name was used in this execution. */
  readonly #defaultNames = new Map<string, number>()
  /** Calls that have not returned. */
  #calls = 0
  /** Of these, calls that are busy. */
  #busy = 0
  #state: 'executing' | 'returning' | 'closing' | 'over' = 'executing'
  /** The end of the run waits until the buffer is committed. */
  #isFlushing = false
  #onCommitted: (() => void)[] = []
  #replays: Replay[] = []
  hasOptionalFailure = false

  constructor(host: FlowHost, definition: AnyFlow, job: Job) {
    this.host = host
    this.definition = definition
    this.job = job
    this.waits = new Waits(this)
    host.attach(this)
  }

  async run(): Promise<FlowEnd> {
    const { host } = this
    if (await this.#readJournal()) return flowEnd({ as: 'cancelled', effects: null })
    host.signal().addEventListener('abort', () => this.#onAbort(), { once: true })
    if (host.signal().aborted) this.#onAbort()
    const { run } = this.definition.flow
    const flow = new Flow(this) as never
    const returned = new Promise((resolve) => resolve(run(flow, this.job.payload as never)))
    returned.then(
      (value) => this.#onReturned(value),
      (error) => this.#onThrown(error),
    )
    return this.#end.promise
  }

  /** Aborts when the run is cancelled, too long, or stopped, and when this execution is over. */
  get abortSignal(): AbortSignal {
    this.#controller ??= new AbortController()
    if (this.isOver) this.#controller.abort(executionOver(this.id, leftWhy))
    else if (this.host.signal().aborted) this.#controller.abort(this.host.signal().reason)
    return this.#controller.signal
  }

  get id(): string {
    return this.host.claimed.id
  }

  get isOver(): boolean {
    return this.#state === 'over'
  }

  /** Its function has ended: what its steps still do does not count. */
  get isEnding(): boolean {
    return this.isOver || this.#state === 'returning'
  }

  /** It was aborted: calls of the function do not go on. */
  get isClosing(): boolean {
    return this.#state === 'closing'
  }

  // For the calls of the handle.

  /** A call of the function. Its promise settles only while this execution goes on. */
  call<T>(made: () => Promise<T>): Promise<T> {
    if (this.isOver) return rejected(executionOver(this.id, 'it was parked, or has returned'))
    const { promise, resolve, reject } = Promise.withResolvers<T>()
    promise.catch(() => undefined) // a call that the function does not await is no uncaught error
    if (this.#calls === 0) this.host.pauseTimeout()
    this.#calls += 1
    if (this.isClosing) {
      setImmediate(() => this.#tryClose())
      return promise
    }
    this.#busy += 1
    const ended = (settle: () => void) => {
      this.#busy -= 1
      this.#calls -= 1
      if (this.#calls === 0) this.host.restartTimeout()
      if (!this.isOver) settle()
      this.changed()
    }
    made().then(
      (value) => ended(() => resolve(value)),
      (error) => ended(() => reject(error)),
    )
    return promise
  }

  /** Throws if this execution has used the name. */
  claimName(name: string): string {
    if (this.#names.has(name)) throw nameUsedTwice(name)
    this.#names.add(name)
    return name
  }

  /** `signal:paid` the first time in this execution, then `signal:paid#2`. */
  defaultName(base: string): string {
    const count = (this.#defaultNames.get(base) ?? 0) + 1
    this.#defaultNames.set(base, count)
    return count === 1 ? base : `${base}#${count}`
  }

  /** Resolves when the outcomes that were recorded earlier than this one, and asked for in the same turn, have been returned. */
  replayed(no: number): Promise<void> {
    return new Promise((resolve) => {
      this.#replays.push({ no, deliver: resolve })
      if (this.#replays.length > 1) return
      queueMicrotask(() => {
        const replays = this.#replays.sort((a, b) => a.no - b.no)
        this.#replays = []
        for (const { deliver } of replays) deliver()
      })
    })
  }

  /** The call is no longer busy until `resumed`. */
  suspended(): void {
    this.#busy -= 1
    this.changed()
  }

  resumed(): void {
    this.#busy += 1
  }

  /** Something has changed: in the next turn of the event loop the run may park, or is closed. */
  changed(): void {
    if (this.isOver) return
    if (this.waits.size > 0 || this.isClosing) this.host.askCheckpoint()
  }

  /** Throws if no more records fit into the journal. */
  requireRoom(): void {
    if (this.host.buffer.isFull) throw toError(journalFull())
  }

  /** Is committed with the next checkpoint, or when the run parks or ends. If it cannot be, the attempt of the run has failed. */
  addLater(item: CheckpointItem): void {
    this.host.buffer.add({ refused: (error) => this.failed(error), ...item })
    this.host.askCheckpoint()
  }

  commit(item: CheckpointItem): Promise<readonly Enqueued[]> {
    const { promise, resolve, reject } = Promise.withResolvers<readonly Enqueued[]>()
    this.host.buffer.add({ ...item, isAwaited: true, committed: resolve, refused: reject })
    this.host.askCheckpoint()
    return promise
  }

  /** See EARLY RETURN. */
  async commitOutcome(item: CheckpointItem): Promise<void> {
    const mustWait = item.effects || item.consume || this.host.buffer.hasAwaitedOutcome
    if (mustWait) await this.commit({ ...item, isOutcome: true })
    else this.addLater({ ...item, isOutcome: true })
  }

  /** Resolves when everything is committed that the function has been told. */
  async whenCommitted(): Promise<void> {
    await this.#committed()
    if (this.isClosing || this.isOver) await this.never
  }

  /** Never settles: the execution ends instead. */
  get never(): Promise<never> {
    return new Promise(() => undefined)
  }

  // FlowListener.

  get hasStepInFlight(): boolean {
    return this.steps.hasAny
  }

  endsInstead(): boolean {
    switch (this.#state) {
      case 'over':
        return true
      case 'returning':
        return !this.#isFlushing
      case 'closing':
        return this.#tryClose()
      case 'executing':
        if (this.#mayPark()) this.#park()
        else this.waits.arm()
        return this.isOver
    }
  }

  checkpointed(): void {
    const waiting = this.#onCommitted
    this.#onCommitted = []
    for (const resolve of waiting) resolve()
    if (this.isClosing) this.#tryClose()
    this.changed()
  }

  /** This attempt of the run cannot go on. */
  failed(error: Error): void {
    if (this.isOver) return
    this.#leave()
    this.#end.reject(error)
  }

  readonly settled: FlowListener['settled'] = (settlement, state, runAt) =>
    emitFlowSettled(this, settlement, state, runAt)

  // The ends.

  /** Answers whether the run is asked to cancel. */
  async #readJournal(): Promise<boolean> {
    const { host, records } = this
    const { journal } = host.claimed
    if (journal === undefined) return false
    records.add(journal.records)
    for (let { next } = journal; next !== null; ) {
      const page = await host.journal({ id: this.id, after: next })
      records.add(page?.records ?? [])
      next = page?.next ?? null
    }
    host.buffer.begin(records.size)
    this.partials.begin(journal.partial)
    this.waits.begin(journal.awaits)
    return journal.cancelRequested
  }

  #mayPark(): boolean {
    const { buffer, claimed } = this.host
    if (this.#busy > 0 || !buffer.canTravel || !this.waits.areLong()) return false
    // With a new outcome attempts start over, and only a checkpoint does that. And a refused effect must not undo an outcome.
    return !buffer.hasOutcome || (claimed.attempt === 1 && !buffer.hasEffects)
  }

  #onReturned(value: unknown): void {
    this.#onEnded(() => this.#return(value))
  }

  #onThrown(error: unknown): void {
    this.#onEnded(() => this.#throw(error))
  }

  /** The function has ended. After an abort only a stop of the worker accepts its end. */
  #onEnded(end: () => Promise<void>): void {
    const { abortKind } = this.host
    if (this.isOver) return
    if (this.isClosing && abortKind === 'cancelled') {
      this.#tryClose()
      return
    }
    const wasAborted = this.isClosing && abortKind !== 'shutdown'
    this.#state = 'returning'
    void (wasAborted ? this.#throw(this.host.signal().reason) : end())
  }

  async #return(value: unknown): Promise<void> {
    this.#stopCalls('its function has returned')
    try {
      const settlement = await settlementOf(value, this)
      if (this.isOver) return
      const { buffer } = this.host
      const isRisky = settlement.effects !== null && buffer.hasOutcome // a refused effect must not undo an outcome
      if (isRisky || !buffer.canTravel) await this.#flush()
      if (!this.isOver) this.#finish({ ...settlement, ...this.#takeAlong(settlement.effects) })
    } catch (error) {
      await this.#throw(error)
    }
  }

  async #throw(error: unknown): Promise<void> {
    this.#stopCalls('its function has thrown')
    await this.#flush() // if an outcome is new, the attempts start over
    this.failed(error as Error)
  }

  #onAbort(): void {
    if (this.isOver) return
    const { reason } = this.host.signal()
    if (this.#state === 'executing') this.#state = 'closing'
    this.#controller?.abort(reason)
    this.steps.abort(reason)
    this.waits.clear()
    setImmediate(() => this.#tryClose())
  }

  /** Ends an execution that was aborted, once no step runs any more. Answers whether it has. */
  #tryClose(): boolean {
    const { buffer, abortKind } = this.host
    if (!this.isClosing) return this.isOver
    if (this.steps.isRunning || buffer.isInFlight) return false
    if (abortKind === 'cancelled') {
      this.#finish({ as: 'cancelled', ...this.#takeAlong(null) })
      return true
    }
    if (this.#calls === 0) return false // the function runs code of its own, and may end by itself
    if (!buffer.isEmpty) {
      this.host.askCheckpoint()
      return false
    }
    this.failed(this.host.signal().reason)
    return true
  }

  #park(): void {
    const { delayMs, item } = this.waits.park()
    this.host.buffer.add(item)
    this.#finish({ as: 'snooze', delayMs, parks: true, ...this.#takeAlong(null) })
  }

  #finish(settlement: Settlement): void {
    this.#leave()
    this.#end.resolve(flowEnd(settlement))
  }

  #leave(): void {
    this.#state = 'over'
    this.#stopCalls(leftWhy)
    this.#controller?.abort(executionOver(this.id, leftWhy))
  }

  #stopCalls(why: string): void {
    if (this.steps.isRunning) this.steps.abort(executionOver(this.id, why))
    this.waits.clear()
  }

  #takeAlong(own: EffectSet | null): { readonly effects: EffectSet | null; readonly journal?: JournalWrites } {
    const { journal, effects } = this.host.buffer.takeAll()
    return { effects: together(effects, own), ...(hasWrites(journal) && { journal }) }
  }

  async #flush(): Promise<void> {
    this.#isFlushing = true
    await this.#committed()
    this.#isFlushing = false
  }

  async #committed(): Promise<void> {
    while (!this.host.buffer.isCommitted) {
      this.host.askCheckpoint()
      await new Promise<void>((resolve) => this.#onCommitted.push(resolve))
    }
  }
}

function rejected(error: HoldfastError): Promise<never> {
  const promise = Promise.reject(error)
  promise.catch(() => undefined)
  return promise
}
