// One run of one job, from the claim to the settlement. It reads: decode, call, normalise, settle.
//
//   running ──returned or threw──▶ settling ──answered──▶ ended
//      │ abort: cancelled, too long, lease lost, shutdown
//      ▼
//   unwinding ──ended in time──▶ settling
//      └────────ignored its signal──▶ settling, and the handler is abandoned
//
// The place of a run is free once its handler has ended or was abandoned; its settlement needs none. Whatever an abandoned
// handler does later is thrown away: the settlement was decided when it was left behind, and is decided only once. A handler
// that never asked for its signal cannot follow it, so nobody waits for it to unwind.
//
// What is settled after an abort: too long fails the attempt, whatever the handler says; a cancelled job that finished all
// the same is done, else cancelled; one that made way for a shutdown is done if it finished, else released without cost;
// a lost lease settles nothing.

import { type AnyDefinition, isRetryable } from '../definition.ts'
import type { Duration } from '../duration.ts'
import { toMs } from '../duration.ts'
import { type Effects, prepareEffects } from '../effects.ts'
import { HoldfastError, isRefused, toError } from '../errors.ts'
import type { Events, JobFacts, RunFacts } from '../events.ts'
import { backoffMs } from '../job/backoff.ts'
import { bounds } from '../job/bounds.ts'
import { encodeJson, resultRule } from '../job/codec.ts'
import { jobError } from '../job/error.ts'
import { checkNumber } from '../job/names.ts'
import type { EffectSet, JobError } from '../job/record.ts'
import type { FailedEnding, Settlement } from '../job/transition.ts'
import { isPermanent } from '../permanent.ts'
import { readPayload, validate } from '../prepare.ts'
import type { Capabilities, ClaimedJob, SettleAnswer, SettleRequest } from '../store/store.ts'
import { ThreadCrashed } from './crash.ts'
import { type Fate, isFate } from './fate.ts'
import { Job, type JobDesk } from './job.ts'

/** How a queue is served: what runs its jobs, middleware included. */
export interface Service {
  readonly definition: AnyDefinition
  call(job: Job): unknown
  /** Ends a handler by force, where that can be done; then it is never abandoned. */
  kill?(job: Job): void
  close?(): Promise<void>
}

/** The right to close the gate that a job came through. */
export interface GatePass {
  close(reason: string): Promise<unknown>
}

/** What a run needs of its worker. */
export interface RunDesk {
  readonly worker: string
  readonly events: Events
  readonly capabilities: Capabilities
  readonly unwindMs: number
  now(): number
  random(): number
  /** Looks at all runs at this time at the latest. */
  lookBy(at: number): void
  passNow(): GatePass | null
  progress(run: Run, value: number, message: string | null): void
  renew(run: Run, leaseMs: number): Promise<void>
  settle(run: Run, request: SettleRequest): void
  /** Its place is free. */
  left(run: Run): void
  /** Nothing is to be done for it any more. */
  ended(run: Run): void
  abandoned(run: Run): void
  /** An abandoned handler has ended after all. */
  returned(run: Run): void
}

export type AbortKind = 'timeout' | 'cancelled' | 'lost' | 'shutdown'

interface Abort {
  readonly kind: AbortKind
  readonly error: HoldfastError
}

export class Run implements JobDesk {
  readonly claimed: ClaimedJob
  readonly leaseMs: number
  readonly #desk: RunDesk
  readonly #service: Service
  readonly #startedAt: number
  readonly #pass: GatePass | null
  state: 'running' | 'settling' | 'ended' = 'running'
  /** When the lease runs out unless it is renewed, by this process's time. */
  leaseUntil: number
  #deadlineAt: number
  #job: Job | null = null
  #controller: AbortController | null = null
  #abort: Abort | null = null
  #unwindUntil = Number.POSITIVE_INFINITY
  #isAbandoned = false
  #endedAt = 0
  #settlement: Settlement | null = null
  #fate: Fate | null = null

  constructor(desk: RunDesk, service: Service, claimed: ClaimedJob) {
    this.#desk = desk
    this.#service = service
    this.claimed = claimed
    this.#startedAt = desk.now()
    this.#pass = desk.passNow()
    this.leaseMs = claimed.expiresAt - claimed.startedAt
    this.leaseUntil = this.#startedAt + this.leaseMs
    this.#deadlineAt = this.#startedAt + this.timeoutMs
  }

  get timeoutMs(): number {
    return this.claimed.timeoutMs ?? this.#service.definition.timeoutMs
  }

  /** When somebody must look after it next. */
  get lookAt(): number {
    return this.#abort ? this.#unwindUntil : this.#deadlineAt
  }

  /** Why it was aborted. */
  get reason(): AbortKind | null {
    return this.#abort?.kind ?? null
  }

  get isCancelled(): boolean {
    return this.#abort?.kind === 'cancelled'
  }

  start(): void {
    let payload: unknown
    try {
      payload = this.#readPayload()
    } catch (error) {
      return this.#unreadable(error)
    }
    if (payload instanceof Promise)
      payload.then(
        (late) => this.#call(late),
        (error) => this.#unreadable(error),
      )
    else this.#call(payload)
  }

  /** Too late, or too long since it was told to end? */
  look(now: number): void {
    if (this.state !== 'running') return
    if (this.#abort) {
      if (now >= this.#unwindUntil) this.#leaveBehind()
    } else if (now >= this.#deadlineAt) {
      const message = `Job ${this.claimed.id} took longer than ${this.timeoutMs} ms.`
      this.abort('timeout', new HoldfastError('JOB_TIMEOUT', message, { id: this.claimed.id, timeoutMs: this.timeoutMs }))
    }
  }

  abort(kind: AbortKind, error: HoldfastError): void {
    if (this.state !== 'running' || this.#abort) return
    this.#abort = { kind, error }
    if (kind === 'lost') this.#desk.events.emit('lease.lost', { ...this.#facts(), during: 'run' })
    if (!this.#controller && !this.#service.kill) return this.#leaveBehind()
    this.#unwindUntil = this.#desk.now() + this.#desk.unwindMs
    this.#desk.lookBy(this.#unwindUntil)
    this.#controller?.abort(error)
  }

  /** Gives it back unstarted: it came too late for this worker. */
  giveBack(): void {
    this.#finish()
    this.#settle({ as: 'release' })
  }

  // What the job asks of its run.

  signal(): AbortSignal {
    if (!this.#controller) {
      this.#controller = new AbortController()
      if (this.#abort) this.#controller.abort(this.#abort.error)
    }
    return this.#controller.signal
  }

  progress(value: number, message: string | null): void {
    checkNumber(value, 'progress', 0, 1)
    if (this.state !== 'running') return
    this.#desk.progress(this, value, message)
    if (this.#desk.events.hears('job.progress'))
      this.#desk.events.emit('job.progress', { ...this.#facts(), progress: value, message })
  }

  log(message: string, facts: Readonly<Record<string, unknown>>): void {
    if (this.#desk.events.hears('job.log'))
      this.#desk.events.emit('job.log', { ...this.#facts(), message: String(message), facts })
  }

  async extend(duration: Duration): Promise<void> {
    const ms = toMs(duration, 'extend', { min: 1, max: bounds.leaseMaxMs })
    if (this.state !== 'running' || this.#abort) throw this.#abort?.error ?? lateError(this.claimed.id)
    this.#deadlineAt = Math.max(this.#deadlineAt, this.#desk.now() + ms)
    if (this.#desk.now() + ms > this.leaseUntil) await this.#desk.renew(this, Math.max(ms, this.leaseMs))
  }

  // Running.

  #readPayload(): unknown | Promise<unknown> {
    const raw = readPayload(this.claimed)
    const { payloadSchema } = this.#service.definition
    return payloadSchema ? validate(payloadSchema, raw, 'payload', this.claimed.queue) : raw
  }

  #unreadable(error: unknown): void {
    if (this.#finish()) this.#settle({ as: 'dead', error: jobError(error), effects: null })
  }

  #call(payload: unknown): void {
    if (this.state !== 'running') return this.#desk.returned(this)
    this.#job = new Job(this, payload)
    if (this.#desk.events.hears('job.started')) this.#tellStarted()
    let returned: unknown
    try {
      returned = this.#service.call(this.#job)
    } catch (error) {
      return this.#threw(error)
    }
    if (typeof returned !== 'object' || returned === null) return this.#returned(returned)
    Promise.resolve(returned).then(
      (value) => this.#returned(value),
      (error) => this.#threw(error),
    )
  }

  /** The handler has ended: false where its end no longer matters. */
  #finish(): boolean {
    if (this.#isAbandoned) {
      this.#desk.returned(this)
      return false
    }
    if (this.state !== 'running') return false
    this.state = 'settling'
    this.#endedAt = this.#desk.now()
    this.#desk.left(this)
    return true
  }

  #leaveBehind(): void {
    const abort = this.#abort as Abort
    if (this.#service.kill && this.#job) {
      this.#unwindUntil = Number.POSITIVE_INFINITY
      return this.#service.kill(this.#job) // then its call ends, and with it the run
    }
    this.#finish()
    this.#isAbandoned = true
    this.#desk.abandoned(this)
    this.#settleUnfinished(abort, abort.error)
  }

  #returned(value: unknown): void {
    if (!this.#finish()) return
    if (this.#abort && (this.#abort.kind === 'timeout' || this.#abort.kind === 'lost'))
      return this.#settleUnfinished(this.#abort, this.#abort.error)
    try {
      const settlement = isFate(value) ? this.#settlementOf(value) : this.#done(value)
      if (settlement instanceof Promise) settlement.then((late) => this.#settle(late)).catch((e) => this.#fail(e))
      else this.#settle(settlement)
    } catch (error) {
      this.#fail(error)
    }
  }

  #threw(error: unknown): void {
    if (!this.#finish()) return
    if (this.#abort) this.#settleUnfinished(this.#abort, error)
    else if (isGateClosed(error)) this.#closeGate(error.reason)
    else this.#fail(error)
  }

  // Normalising: from what the handler said to a settlement.

  #settlementOf(fate: Fate): Settlement | Promise<Settlement> {
    this.#fate = fate
    switch (fate.fate) {
      case 'outcome':
        return this.#done(fate.result)
      case 'snooze':
        return { as: 'snooze', delayMs: fate.delayMs }
      case 'release':
        return { as: 'release' }
      case 'closeGate':
        return this.#gateClosed(fate.reason).then(() => ({ as: 'release' }))
    }
  }

  #done(result: unknown): Settlement | Promise<Settlement> {
    const { resultSchema, name } = this.#service.definition
    const checked = resultSchema ? validate(resultSchema, result, 'result', name) : undefined
    if (checked instanceof Promise) return checked.then(() => this.#doneWith(result))
    return this.#doneWith(result)
  }

  #doneWith(result: unknown): Settlement | Promise<Settlement> {
    const text = result === undefined ? null : encodeJson(result, resultRule)
    const staged = this.#job && Job.stagedIn(this.#job)
    if (!staged) return { as: 'done', result: text, effects: null }
    return this.#prepared(staged.all()).then((effects) => ({ as: 'done', result: text, effects }))
  }

  #prepared(effects: Effects): Promise<EffectSet | null> {
    return prepareEffects(effects, this.#desk.capabilities)
  }

  #closeGate(reason: string): void {
    this.#fate = { fate: 'closeGate', reason }
    this.#gateClosed(reason).then(
      () => this.#settle({ as: 'release' }),
      (error) => this.#fail(error),
    )
  }

  async #gateClosed(reason: string): Promise<void> {
    if (this.#pass) return void (await this.#pass.close(reason))
    const message = 'The handler closed its gate, but its worker has none; give the worker one: work(queue, handler, { gate }).'
    throw new HoldfastError('INVALID_STATE', message, { reason })
  }

  #settleUnfinished({ kind, error: reason }: Abort, error: unknown): void {
    switch (kind) {
      case 'lost':
        return this.#end()
      case 'timeout':
        return this.#fail(reason, 'timeout')
      case 'shutdown':
        return this.#settle({ as: 'release' })
      case 'cancelled':
        if (error === reason || isAbortError(error)) return this.#settle({ as: 'cancelled', effects: null })
        return this.#fail(error) // the store makes it cancelled, and the history keeps the error
    }
  }

  #fail(error: unknown, ending: FailedEnding = error instanceof ThreadCrashed ? 'crashed' : 'failed'): void {
    const described = jobError(error)
    if (isPermanent(error)) {
      if (error.effects === undefined) return this.#die(described, ending, null)
      this.#prepared(error.effects).then(
        (effects) => this.#die(described, ending, effects),
        (unprepared) => this.#retry(jobError(unprepared), 'failed'),
      )
    } else if (isRetryable(this.#service.definition, error)) this.#retry(described, ending)
    else this.#die(described, ending, null)
  }

  #die(error: JobError, ending: FailedEnding, effects: EffectSet | null): void {
    this.#settle({ as: 'dead', error, effects, ending })
  }

  #retry(error: JobError, ending: FailedEnding): void {
    this.#settle({ as: 'retry', error, delayMs: this.#backoffMs(), ending })
  }

  #backoffMs(): number {
    return backoffMs(this.#service.definition.backoff, this.claimed.attempt, this.#desk.random())
  }

  // Settling.

  #settle(settlement: Settlement): void {
    this.#settlement = settlement
    const { id, fence } = this.claimed
    const mayFail = 'effects' in settlement && settlement.effects !== null
    this.#desk.settle(this, { id, fence, settlement, retryDelayMs: mayFail ? this.#backoffMs() : 0 })
  }

  /** What the store said to its settlement. */
  answered(answer: SettleAnswer): void {
    const { events } = this.#desk
    if (answer === 'lost') {
      events.emit('lease.lost', { ...this.#facts(), during: 'settle' })
    } else if (isRefused(answer)) {
      const error = toError(answer)
      events.emit('settle.failed', { ...this.#facts(), error, state: null })
      // Refused as it was: then the attempt has failed. That cannot be refused, but if it is, the lease runs out.
      if (this.#settlement?.as !== 'retry') return this.#retry(jobError(error), 'failed')
    } else if ('failed' in answer) {
      events.emit('settle.failed', { ...this.#facts(), error: toError(answer.failed), state: answer.state })
      if (answer.state === 'dead') this.#tellDead(jobError(toError(answer.failed)), 'failed')
    } else {
      this.#tell(answer.state, answer.runAt)
    }
    this.#end()
  }

  /** The store could not be asked, and nobody will ask again. */
  gaveUp(error: Error): void {
    this.#desk.events.emit('settle.failed', { ...this.#facts(), error, state: null })
    this.#end()
  }

  #end(): void {
    this.state = 'ended'
    this.#desk.ended(this)
  }

  // Telling.

  #facts(): JobFacts {
    const { id, queue, attempt, maxAttempts } = this.claimed
    return { id, queue, attempt, maxAttempts, worker: this.#desk.worker }
  }

  #runFacts(): RunFacts {
    return { ...this.#facts(), durationMs: this.#endedAt - this.#startedAt }
  }

  #tellStarted(): void {
    const { createdAt, startedAt } = this.claimed
    const waitedMs = Math.max(0, startedAt - createdAt)
    this.#desk.events.emit('job.started', { ...this.#facts(), createdAt: new Date(createdAt), waitedMs })
  }

  #tell(state: string, runAtMs: number | null): void {
    const { events } = this.#desk
    const settlement = this.#settlement as Settlement
    const runAt = runAtMs === null ? null : new Date(runAtMs)
    if (state === 'done') {
      if (!events.hears('job.done')) return
      const { outcome = null, warning = null } = this.#fate?.fate === 'outcome' ? this.#fate : {}
      events.emit('job.done', { ...this.#runFacts(), outcome, warning })
    } else if (state === 'dead') {
      if ('error' in settlement) this.#tellDead(settlement.error, settlement.ending ?? 'failed')
      else this.#tellDead({ message: `Released or snoozed ${bounds.freeReleases} times without finishing.` }, 'failed')
    } else if (state === 'cancelled') events.emit('job.cancelled', this.#runFacts())
    else if (settlement.as === 'retry')
      events.emit('job.retrying', { ...this.#runFacts(), error: settlement.error, ending: settlement.ending, runAt })
    else if (settlement.as === 'snooze') events.emit('job.snoozed', { ...this.#runFacts(), runAt })
    else if (settlement.as === 'release') events.emit('job.released', { ...this.#runFacts(), reason: this.#reason() })
  }

  #tellDead(error: JobError, ending: FailedEnding): void {
    this.#desk.events.emit('job.dead', { ...this.#runFacts(), error, ending })
  }

  #reason(): string {
    if (this.#fate && 'reason' in this.#fate) return this.#fate.reason
    return 'the worker stops'
  }
}

/** By its name: it may come from another thread. */
function isGateClosed(error: unknown): error is Error & { readonly reason: string } {
  return error instanceof Error && error.name === 'GateClosed' && 'reason' in error && typeof error.reason === 'string'
}

function isAbortError(error: unknown): boolean {
  return error instanceof Error && error.name === 'AbortError'
}

function lateError(id: string): HoldfastError {
  return new HoldfastError('LEASE_LOST', `Job ${id} has ended; there is nothing to extend.`, { id })
}
