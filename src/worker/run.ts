// One run of one job, from the claim to the settlement. It reads: decode, call, normalise, settle.
//
//   running ──returned or threw──▶ preparing ──prepared──▶ settling ──answered──▶ ended
//      │ abort: cancelled, too long, lease lost, shutdown
//      ▼
//   unwinding ──ended in time──▶ preparing
//      └────────ignored its signal──▶ settling, and the handler is abandoned
//
// PREPARING. The result and the follow-ups may have asynchronous schemas, which are code of the application. So preparing is part
// of the run: it keeps its slot, and its timeout, a cancel and a stop end it. A preparation that does not end is abandoned too.
//
// SLOTS. The slot of a run is free once its settlement is prepared, or its handler was abandoned; to settle needs no slot.
//
// ABANDONED HANDLERS. What an abandoned handler does later has no effect: its settlement was decided when it was abandoned, and
// is decided only once. A handler that never read its signal cannot follow it, so the run does not wait for it to unwind.
//
// What is settled after an abort:
//
//   timeout      the attempt has failed, whatever the handler returns; if it was the last, with the effects that were staged for
//                the death (`job.ifDead`), unless their preparation takes too long as well
//   cancelled    done if the handler returned all the same and its settlement is prepared in time, otherwise cancelled
//   shutdown     done if the handler returned and its settlement is prepared in time, otherwise released at no cost
//   lost lease   nothing is settled

import { HoldfastError, isRefused, type Refused, toError } from '../errors.ts'
import type { DeliveryFacts, Events, RunFacts } from '../events.ts'
import { causeChain, jobError } from '../job/error.ts'
import type { Message } from '../job/journal.ts'
import type { Costs, EffectSet } from '../job/record.ts'
import { effectsIn } from '../job/settlement.ts'
import type { Settlement } from '../job/transition.ts'
import type { AnyDefinition } from '../queue/definition.ts'
import { type Define, type Effects, prepareEffects, requireCapable } from '../queue/effects.ts'
import { emitEnqueued } from '../queue/enqueued-event.ts'
import { isUnreadable, readPayload, validate } from '../queue/prepare.ts'
import { type Duration, span, toMs } from '../runtime/duration.ts'
import type {
  Capabilities,
  CheckpointAnswer,
  CheckpointRequest,
  ClaimedJob,
  Journal,
  JournalQuery,
  MessagesQuery,
  SettleAnswer,
} from '../store/store.ts'
import { CheckpointBuffer } from './checkpoint-buffer.ts'
import type { CheckpointSource } from './checkpoints.ts'
import type { FlowHost, FlowListener, KeptWaits } from './flow-host.ts'
import { checkProgress, extendRule, Job, type JobContext } from './job.ts'
import { jobCancelled, jobEnded, leaseLost } from './lease-errors.ts'
import {
  type Abort,
  type AbortKind,
  ofAborted,
  ofReturned,
  ofThrown,
  retry,
  retryDelayMs,
  type SettlementFacts,
  unpreparedInTime,
} from './normalise.ts'
import { emitSettled, factsOf, type SettledEvent } from './settled-event.ts'
import type { StagedEffects } from './staged-effects.ts'
import { killMs } from './threads/thread-pool.ts'

/** How the jobs of a queue are run, middleware included. */
export interface Service {
  readonly definition: AnyDefinition
  call(job: Job): unknown
  /** Ends a handler by force, if that is possible. Its call ends within `killMs`, even if the handler runs on. */
  kill?(job: Job): void
  close?(): Promise<void>
}

/** Closes the gate that was open when the job started. */
export interface GatePass {
  close(reason: string, options: { readonly by: string }): Promise<unknown>
}

/** What a run needs of its worker. */
export interface RunContext {
  readonly worker: string
  readonly events: Events
  readonly capabilities: Capabilities
  readonly define: Define
  readonly unwindMs: number
  now(): number
  random(): number
  /** Looks at all runs at this time at the latest. */
  lookBy(at: number): void
  passNow(): GatePass | null
  progress(run: Run, value: number, message: string | null): void
  renew(run: Run, leaseMs: number): Promise<void>
  settle(run: Run, settlement: Settlement, retryDelayMs: number): void
  /** `takeCheckpoint` of the run is called soon. */
  checkpoint(run: Run): void
  messages(query: MessagesQuery): Promise<Message[]>
  journal(query: JournalQuery): Promise<Journal | null>
  after(ms: number, call: () => void): () => void
  /** Which waits of a flow keep their lease. */
  readonly keptWaits: KeptWaits
  /** Null: the store's time is reckoned from the time of the claim. */
  readonly storeNow: (() => number) | null
  /** The slot of this run is free. */
  left(run: Run): void
  /** The run is settled, or its lease is lost. */
  ended(run: Run): void
  abandoned(run: Run): void
  /** An abandoned handler has ended. */
  returned(run: Run): void
}

/** The least time that middleware has after its handler was ended by force, and effects of a run that was too long. */
const afterKillMs = 1_000

export class Run implements JobContext, SettlementFacts, CheckpointSource, FlowHost {
  /** Its attempt is 1 again after a checkpoint that started over. */
  claimed: ClaimedJob
  readonly leaseMs: number
  readonly #context: RunContext
  readonly #service: Service
  readonly #claimedAt: number
  #startedAt: number
  readonly #pass: GatePass | null
  state: 'running' | 'preparing' | 'settling' | 'ended' = 'running'
  /** When the lease runs out unless it is renewed, by the clock of this process. */
  leaseUntil: number
  #deadlineAt: number
  /** Of a handler in a thread, which begins later than it is called: its timeout is paused, and then restarted. */
  #clock: 'running' | 'paused' | 'restarted' = 'running'
  #extendedUntil = Number.NEGATIVE_INFINITY
  #job: Job | null = null
  #controller: AbortController | null = null
  #abort: Abort | null = null
  #unwindUntil = Number.POSITIVE_INFINITY
  #isKilled = false
  #isAbandoned = false
  #endedAt = 0
  #returned: unknown
  #settlement: Settlement | null = null
  /** While effects of a run that was too long are prepared: what is settled if that takes too long as well. */
  #fallback: Settlement | null = null
  #buffer: CheckpointBuffer | null = null
  #isCheckpointAsked = false
  #startsOver = false
  /** The flow that this run executes. */
  #flow: FlowListener | null = null

  constructor(context: RunContext, service: Service, claimed: ClaimedJob) {
    this.#context = context
    this.#service = service
    this.claimed = claimed
    this.#claimedAt = context.now()
    this.#startedAt = this.#claimedAt
    this.#pass = context.passNow()
    this.leaseMs = claimed.expiresAt - claimed.startedAt
    this.leaseUntil = this.#startedAt + this.leaseMs
    this.#deadlineAt = this.#startedAt + this.timeoutMs
  }

  get timeoutMs(): number {
    return this.claimed.timeoutMs ?? this.#service.definition.timeoutMs
  }

  /** Its handler runs, or its settlement is being prepared. */
  get isUnderWay(): boolean {
    return this.state === 'running' || this.state === 'preparing'
  }

  /** When `look` must be called next. */
  get lookAt(): number {
    if (!this.isUnderWay && this.#fallback === null) return Number.POSITIVE_INFINITY
    return this.#abort ? this.#unwindUntil : this.#deadlineAt
  }

  /** Why it was aborted. */
  get abortKind(): AbortKind | null {
    return this.#abort?.kind ?? null
  }

  start(): void {
    let payload: unknown
    try {
      payload = this.#readPayload()
    } catch (error) {
      this.#onUnread(error)
      return
    }
    if (payload instanceof Promise)
      payload.then(
        (late) => this.#call(late),
        (error) => this.#onUnread(error),
      )
    else this.#call(payload)
  }

  /** Aborts a run that has exceeded its timeout, and abandons one that has not unwound in time. */
  look(now: number): void {
    if (this.#fallback !== null && now >= this.#unwindUntil) this.#settleFirst(this.#fallback)
    if (!this.isUnderWay) return
    if (this.#abort) {
      if (now >= this.#unwindUntil) this.#abandon(this.#abort)
    } else if (now >= this.#deadlineAt)
      this.abort('timeout', tookTooLong(this.claimed.id, this.timeoutMs, this.state === 'preparing'))
  }

  abort(kind: AbortKind, error: HoldfastError): void {
    if (!this.isUnderWay || this.#abort) return
    this.#abort = { kind, error }
    if (kind === 'lost')
      this.#context.events.emit('lease.lost', { ...factsOf(this.claimed, this.#context.worker), during: 'run' })
    if (this.state === 'preparing') {
      if (kind === 'timeout' || kind === 'lost') this.#abandon(this.#abort)
      else this.#unwindBy(this.#context.now() + this.#context.unwindMs)
    } else if (this.#controller || this.#service.kill) {
      this.#unwindBy(this.#context.now() + this.#context.unwindMs)
      this.#controller?.abort(error)
    } else this.#abandon(this.#abort)
  }

  /** No time to unwind: a run that was aborted is abandoned now. */
  hurry(): void {
    const isWaiting = this.#fallback !== null || (this.isUnderWay && this.#abort !== null)
    if (isWaiting) this.#unwindBy(this.#context.now())
  }

  /** Releases the job without starting it: the worker stops, or its gate is closed. */
  giveBack(): void {
    this.#finish()
    this.#settle({ as: 'release' })
  }

  // For the job: JobContext.

  signal(): AbortSignal {
    if (!this.#controller) {
      this.#controller = new AbortController()
      if (this.#abort) this.#controller.abort(this.#abort.error)
    }
    return this.#controller.signal
  }

  progress(value: number, message: string | null): void {
    checkProgress(value, message)
    if (this.state !== 'running') return
    const { events, worker } = this.#context
    this.#context.progress(this, value, message)
    if (events.hasListener('job.progress'))
      events.emit('job.progress', { ...factsOf(this.claimed, worker), progress: value, message })
  }

  log(message: string, facts: Readonly<Record<string, unknown>>): void {
    const { events, worker } = this.#context
    if (events.hasListener('job.log'))
      events.emit('job.log', { ...factsOf(this.claimed, worker), message: String(message), facts })
  }

  delivered(facts: DeliveryFacts): void {
    const { events, worker } = this.#context
    if (events.hasListener('delivery.ended'))
      events.emit('delivery.ended', { ...factsOf(this.claimed, worker), ...facts })
  }

  async extend(duration: Duration): Promise<void> {
    const ms = toMs(duration, 'extend', extendRule)
    if (this.state !== 'running' || this.#abort) throw this.#abort?.error ?? jobEnded(this.claimed, 'extend')
    const until = this.#context.now() + ms
    this.#extendedUntil = Math.max(this.#extendedUntil, until)
    this.#deadlineAt = Math.max(this.#deadlineAt, until)
    if (until > this.leaseUntil) await this.#context.renew(this, Math.max(ms, this.leaseMs))
  }

  /** Middleware may call its handler again; the timeout is paused for the first call only. */
  pauseClock(): void {
    if (this.#clock !== 'running' || this.state !== 'running' || this.#abort) return
    this.#clock = 'paused'
    this.#deadlineAt = Number.POSITIVE_INFINITY
  }

  startClock(): void {
    if (this.#clock !== 'paused') return
    this.#clock = 'restarted'
    if (this.state !== 'running') return
    this.#startedAt = this.#context.now()
    this.#deadlineAt = Math.max(this.#startedAt + this.timeoutMs, this.#extendedUntil)
    if (!this.#abort) this.#context.lookBy(this.#deadlineAt)
  }

  isHeld(): boolean {
    return this.state === 'running'
  }

  async checkpoint(given: Effects, inThread?: EffectSet): Promise<void> {
    const effects = inThread
      ? requireCapable(inThread, this.capabilities)
      : await prepareEffects(given, this.capabilities, this.define)
    if (this.state !== 'running') throw jobEnded(this.claimed, 'write')
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    this.buffer.add({ effects, isAwaited: true, committed: () => resolve(), refused: reject })
    this.askCheckpoint()
    return promise
  }

  flowHost(): FlowHost {
    return this
  }

  // Checkpoints: CheckpointSource.

  get buffer(): CheckpointBuffer {
    this.#buffer ??= new CheckpointBuffer()
    return this.#buffer
  }

  askCheckpoint(): void {
    if (this.#isCheckpointAsked || this.buffer.isInFlight) return
    this.#isCheckpointAsked = true
    this.#context.checkpoint(this)
  }

  takeCheckpoint(): CheckpointRequest | null {
    this.#isCheckpointAsked = false
    if (this.state !== 'running') {
      if (!this.buffer.isCommitted) this.buffer.drop(jobEnded(this.claimed, 'write'))
      return null
    }
    if (this.#flow?.endsInstead()) return null
    const writes = this.buffer.take()
    if (writes === null) return null
    const { journal, effects, hasOutcome } = writes
    this.#startsOver = hasOutcome && this.#flow?.hasStepInFlight === false
    const { id, fence } = this.claimed
    return { id, fence, effects, journal, startsOver: this.#startsOver, leaseMs: this.leaseMs }
  }

  checkpointAnswered(answer: CheckpointAnswer): void {
    if (answer === 'lost') {
      this.abort('lost', leaseLost(this.claimed))
      this.buffer.drop(leaseLost(this.claimed))
      this.#flow?.checkpointed()
      return
    }
    const { jobs } = this.buffer
    const isCommitted = this.buffer.answered(answer)
    if (isCommitted && this.#startsOver && this.claimed.attempt > 1) this.claimed = { ...this.claimed, attempt: 1 }
    if ('enqueued' in answer) {
      emitEnqueued(this.#context.events, jobs, answer.enqueued)
      if (answer.cancelRequested) this.abort('cancelled', jobCancelled(this.claimed))
    }
    if (!this.buffer.isEmpty) this.askCheckpoint()
    this.#flow?.checkpointed()
  }

  checkpointGivenUp(error: Error): void {
    this.buffer.drop(new HoldfastError('STORE_UNAVAILABLE', error.message, {}, { cause: error }))
    this.#flow?.failed(error)
  }

  // For a flow: FlowHost.

  get worker(): string {
    return this.#context.worker
  }

  get events(): Events {
    return this.#context.events
  }

  get keptWaits(): KeptWaits {
    return this.#context.keptWaits
  }

  now(): number {
    return this.#context.now()
  }

  /** Never later than the store's time, as long as its clock goes forward: the answer of a claim takes time. */
  storeNow(): number {
    const { storeNow, now } = this.#context
    return Math.floor(storeNow?.() ?? this.claimed.startedAt + now() - this.#claimedAt)
  }

  after(ms: number, call: () => void): () => void {
    return this.#context.after(ms, call)
  }

  messages(query: MessagesQuery): Promise<Message[]> {
    return this.#context.messages(query)
  }

  journal(query: JournalQuery): Promise<Journal | null> {
    return this.#context.journal(query)
  }

  attach(flow: FlowListener): void {
    this.#flow = flow
  }

  pauseTimeout(): void {
    if (this.state === 'running' && !this.#abort) this.#deadlineAt = Number.POSITIVE_INFINITY
  }

  restartTimeout(): void {
    if (this.state !== 'running' || this.#abort) return
    this.#deadlineAt = Math.max(this.#context.now() + this.timeoutMs, this.#extendedUntil)
    this.#context.lookBy(this.#deadlineAt)
  }

  // For the settlement: SettlementFacts.

  get definition(): AnyDefinition {
    return this.#service.definition
  }

  get attempt(): number {
    return this.claimed.attempt
  }

  get capabilities(): Capabilities {
    return this.#context.capabilities
  }

  get define(): Define {
    return this.#context.define
  }

  get staged(): StagedEffects | null {
    return this.#job && Job.stagedIn(this.#job)
  }

  get stagedIfDead(): StagedEffects | null {
    return this.#job && Job.stagedIfDeadIn(this.#job)
  }

  get costs(): Costs | null {
    return this.#job && Job.costsIn(this.#job)
  }

  async closeGate(reason: string): Promise<void> {
    if (!this.#pass) throw noGate(reason)
    await this.#pass.close(reason, { by: this.#context.worker })
  }

  readonly random = (): number => this.#context.random()

  // Running.

  #readPayload(): unknown | Promise<unknown> {
    const raw = readPayload(this.claimed)
    const { payloadSchema } = this.#service.definition
    return payloadSchema ? validate(payloadSchema, raw, 'payload', this.claimed.queue) : raw
  }

  #onUnread(error: unknown): void {
    if (!isUnreadable(error)) this.#onThrown(error)
    else if (this.#handlerEnded()) this.#prepared({ as: 'dead', error: jobError(error), effects: null })
  }

  #call(payload: unknown): void {
    if (this.state !== 'running') {
      this.#handlerEnded()
      return
    }
    this.#job = new Job(this, payload)
    if (this.#context.events.hasListener('job.started')) this.#emitStarted()
    let returned: unknown
    try {
      returned = this.#service.call(this.#job)
      if (typeof returned === 'object' && returned !== null) {
        // In the try: a promise of the application may have a constructor or a `then` that throws.
        Promise.resolve(returned).then(
          (value) => this.#onReturned(value),
          (error) => this.#onThrown(error),
        )
        return
      }
    } catch (error) {
      this.#onThrown(error)
      return
    }
    this.#onReturned(returned)
  }

  #onReturned(value: unknown): void {
    if (!this.#handlerEnded()) return
    this.#returned = value
    const { kind } = this.#abort ?? {}
    if (this.#abort && (kind === 'timeout' || kind === 'lost')) this.#settleAborted(this.#abort, value)
    else this.#prepare(ofReturned(value, this))
  }

  #onThrown(error: unknown): void {
    if (!this.#handlerEnded()) return
    if (this.#abort) this.#settleAborted(this.#abort, error)
    else this.#prepare(ofThrown(error, this))
  }

  /** False: the handler was abandoned, and the run was settled then. So this end has no effect. */
  #handlerEnded(): boolean {
    if (this.#isAbandoned) this.#context.returned(this)
    if (this.state !== 'running') return false
    this.startClock() // a clock that is still paused would leave the preparation without a bound
    this.#endedAt = this.#context.now()
    this.state = 'preparing'
    return true
  }

  #abandon(abort: Abort): void {
    if (this.state === 'running' && this.#service.kill && this.#job && !this.#isKilled) {
      this.#isKilled = true
      this.#unwindBy(this.#context.now() + killMs + Math.max(afterKillMs, this.#context.unwindMs))
      this.#service.kill(this.#job) // within killMs its call ends, and with it the run, unless middleware goes on
      return
    }
    this.#finish()
    this.#isAbandoned = true
    this.#context.abandoned(this)
    this.#settleAborted(abort, abort.error)
  }

  #unwindBy(at: number): void {
    this.#unwindUntil = at
    this.#context.lookBy(at)
  }

  // Settling.

  #prepare(settlement: Settlement | Promise<Settlement>): void {
    if (settlement instanceof Promise) settlement.then((late) => this.#prepared(late))
    else this.#prepared(settlement)
  }

  #prepared(settlement: Settlement): void {
    if (this.#isAbandoned) this.#context.returned(this)
    if (this.state !== 'preparing') return
    this.#finish()
    this.#settle(settlement)
  }

  #settleAborted(abort: Abort, error: unknown): void {
    if (this.isUnderWay) this.#finish()
    const settlement = ofAborted(abort, error, this)
    if (settlement === null) this.#end()
    else if (!(settlement instanceof Promise)) this.#settle(settlement)
    else {
      this.#fallback = unpreparedInTime(abort, this)
      this.#unwindBy(this.#context.now() + Math.max(afterKillMs, this.#context.unwindMs))
      settlement.then((prepared) => this.#settleFirst(prepared))
    }
  }

  /** The settlement that was prepared, or its fallback: whichever comes first. */
  #settleFirst(settlement: Settlement): void {
    if (this.#fallback === null) return
    this.#fallback = null
    this.#settle(settlement)
  }

  /** What is to be settled is decided: the slot is free. */
  #finish(): void {
    if (this.state === 'running') this.#endedAt = this.#context.now()
    this.state = 'settling'
    this.#context.left(this)
  }

  #settle(settlement: Settlement): void {
    this.#settlement = settlement
    const mayFail = effectsIn(settlement) !== null
    this.#context.settle(this, settlement, mayFail ? retryDelayMs(this) : 0)
  }

  /** The store has answered the settlement. */
  answered(answer: SettleAnswer): void {
    const { events, worker } = this.#context
    if (answer === 'lost') events.emit('lease.lost', { ...factsOf(this.claimed, worker), during: 'settle' })
    else if (isRefused(answer)) {
      const error = toError(answer)
      events.emit('settle.failed', { ...factsOf(this.claimed, worker), error, state: null })
      if (this.#settlement?.as !== 'retry') {
        this.#settle(retry(error, this)) // a refused settlement fails the attempt; if this is refused too, the lease runs out
        return
      }
    } else if ('failed' in answer) this.#emitFailed(this.#refusedBy(answer.failed), answer.state)
    else {
      const settlement = this.#settlement as Settlement
      const effects = effectsIn(settlement)
      if (effects) emitEnqueued(events, effects.enqueue, answer.enqueued)
      this.#emitSettled(settlement, answer.state, answer.runAt)
    }
    this.#end()
  }

  /** The settlement could not be sent, and is not sent again. */
  gaveUp(error: Error): void {
    const { events, worker } = this.#context
    events.emit('settle.failed', { ...factsOf(this.claimed, worker), error, state: null })
    this.#end()
  }

  #end(): void {
    this.state = 'ended'
    this.#context.ended(this)
  }

  // Events.

  #emitStarted(): void {
    const { createdAt, startedAt } = this.claimed
    const waitedMs = Math.max(0, startedAt - createdAt)
    const facts = factsOf(this.claimed, this.#context.worker)
    this.#context.events.emit('job.started', { ...facts, createdAt: new Date(createdAt), waitedMs })
  }

  #emitSettled(settlement: Settlement, state: SettledEvent['state'], runAt: number | null): void {
    const facts = (): RunFacts => ({
      ...factsOf(this.claimed, this.#context.worker),
      durationMs: this.#endedAt - this.#startedAt,
    })
    emitSettled(this.#context.events, { facts, settlement, returned: this.#returned, state, runAt })
    this.#flow?.settled(settlement, state, runAt)
  }

  /** An effect was refused. If the attempt had failed already, that error is the cause. */
  #refusedBy({ refused, message, facts }: Refused): HoldfastError {
    const settlement = this.#settlement
    const failure = settlement && 'error' in settlement ? settlement.error : null
    const { name = 'Error', message: said, code, causes = [] } = failure ?? { message: '' }
    const own = { name, message: said, ...(code !== undefined && { code }) }
    return new HoldfastError(refused, message, facts, failure ? { cause: causeChain([own, ...causes]) } : {})
  }

  /** An effect could not be applied, so the attempt failed instead. */
  #emitFailed(error: HoldfastError, state: SettledEvent['state']): void {
    const { events, worker } = this.#context
    events.emit('settle.failed', { ...factsOf(this.claimed, worker), error, state })
    this.#emitSettled(retry(error, this), state, null)
  }
}

function tookTooLong(id: string, timeoutMs: number, isPreparing: boolean): HoldfastError {
  const said = `The attempt took longer than its timeout of ${span(timeoutMs)}`
  const where = ': its handler had ended, but a schema of its result or of a follow-up had not answered'
  return new HoldfastError('JOB_TIMEOUT', `${said}${isPreparing ? where : ''}.`, { id, timeoutMs })
}

function noGate(reason: string): HoldfastError {
  const message =
    'The handler closed its gate, but its worker has none; give the worker one: work(queue, handler, { gate }).'
  return new HoldfastError('INVALID_STATE', message, { reason })
}
