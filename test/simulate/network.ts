// The simulated network between the processes and the store that they share. A call is sent, commits, and is answered, each some
// time later. Calls that are in flight at the same time may commit together. The faults of the plan happen here, when a process
// makes a call.
//
// The store keeps its contract all the same: a settlement that is repeated under its token gets the same answer as the first
// time, and wake-ups are hints that may be lost.

import { HoldfastError, isHoldfastError, refuse } from '../../src/errors.ts'
import type { ClaimRequest, SignalRequest, Store, Subscriber } from '../../src/store/store.ts'
import { Random } from '../torture/random.ts'
import type { Fault, Plan } from './plan.ts'
import type { Actor, Timeline } from './timeline.ts'
import type { Trace } from './trace.ts'

export const verbs = [
  ...(['define', 'enqueue', 'claim', 'renew', 'progress', 'cancelRequested', 'settle', 'sweep'] as const),
  ...(['cancel', 'requeue', 'alter', 'changeAll', 'pause'] as const),
  ...(['job', 'outcomes', 'find', 'count', 'stats', 'kvGet', 'kvWrite', 'kvScan', 'advance', 'time'] as const),
  ...(['definitions', 'overrideLimit'] as const),
  ...(['watch', 'changes', 'examine', 'openBatch', 'addItems', 'controlBatch', 'batch', 'batches', 'items'] as const),
  ...(['checkpoint', 'signal', 'clearSignals', 'journal', 'messages'] as const),
]

export type Verb = (typeof verbs)[number]

/** Verbs that may answer STORE_UNAVAILABLE for single requests. */
const partial: ReadonlySet<Verb> = new Set([
  ...(['enqueue', 'renew', 'progress', 'settle', 'checkpoint', 'cancel', 'requeue', 'alter', 'kvWrite'] as const),
])

/** A process that makes calls. */
export interface Caller extends Actor {
  readonly name: string
  readonly place: number
  cutOffUntil: number
  noWakeUpsUntil: number
  /** Called when it makes a call. */
  asks(verb: Verb): void
  /** A fault affects it until this time. */
  disturb(until: number): void
  die(): void
  freeze(ms: number): void
  /** Gets a signal to end, with this grace period. */
  end(graceMs: number): void
}

export interface Call {
  readonly caller: Caller
  readonly verb: Verb
  readonly args: readonly unknown[]
}

/** Sees every call when it is made, when it commits, and when its answer arrives. */
export interface Observer {
  sent(call: Call): void
  committed(call: Call, answer: unknown): void
  answered(call: Call, answer: unknown): void
}

interface Sent extends Call {
  readonly fault: Fault | null
  readonly commitAt: number
  readonly resolve: (answer: unknown) => void
  readonly reject: (error: unknown) => void
}

interface Committed {
  readonly answer: unknown
  readonly isAgain: boolean
}

/** A caller that was refused repeats its call within this time, heartbeats first. */
const recoveryMs = 500
/** How long a store waits before it repeats a call. */
const repeatMs = 30

export class Network {
  readonly #timeline: Timeline
  readonly #store: Store
  readonly #plan: Plan
  readonly #trace: Trace
  readonly #observers: readonly Observer[]
  readonly #random: Random
  readonly #faults: ReadonlyMap<string, Fault>
  readonly #callers = new Set<Caller>()
  readonly #closed = new Set<Caller>()
  readonly #calls = new Map<number, number>()
  readonly #inFlight = new Set<Sent>()
  readonly #unanswered = new Set<Sent>()
  readonly #lastCommitAt = new Map<Caller, number>()
  readonly #settled = new Map<string, unknown>()
  #claims = 0
  #signals = 0
  #awayUntil = 0
  #isCalm = false
  #isOver = false

  constructor(timeline: Timeline, store: Store, plan: Plan, trace: Trace, observers: readonly Observer[]) {
    this.#timeline = timeline
    this.#store = store
    this.#plan = plan
    this.#trace = trace
    this.#observers = observers
    this.#random = new Random(plan.seed ^ 0x5eed)
    this.#faults = new Map(plan.faults.map((fault) => [`${fault.place} ${fault.call}`, fault]))
  }

  /** No more faults come. */
  calm(): void {
    this.#isCalm = true
  }

  /** The store as this process sees it. */
  storeOf(caller: Caller, onClose: () => void): Store {
    this.#callers.add(caller)
    const { capabilities } = this.#store
    const calls = verbs.map((verb) => [verb, (...args: unknown[]) => this.#send(caller, verb, args)])
    return {
      ...Object.fromEntries(calls),
      signal: (requests: readonly SignalRequest[]) => this.#signal(caller, requests),
      capabilities: { ...capabilities, sqlEffects: false }, // a table in memory cannot be read by the judge
      claimsFollowEnqueues: this.#plan.inOrder,
      subscribe: (subscriber: Subscriber) => this.#subscribe(caller, subscriber),
      close: async () => {
        this.#closed.add(caller)
        onClose()
      },
    } as Store
  }

  /** Rejects every call that will never be answered, so that nothing waits for it. */
  end(): void {
    this.#isOver = true
    for (const { reject } of this.#unanswered) reject(over())
  }

  /** A store repeats a signal inside the verb, under a token of its own, until it is answered. */
  async #signal(caller: Caller, requests: readonly SignalRequest[]): Promise<unknown> {
    this.#signals += 1
    const token = `signal ${this.#signals}`
    for (;;) {
      const answer = await this.#send(caller, 'signal', [requests, token]).catch((error: unknown) => error)
      if (!isHoldfastError(answer)) return answer
      if (answer.code !== 'STORE_UNAVAILABLE') throw answer
      await new Promise<void>((resolve) => this.#timeline.after(repeatMs, caller, resolve))
      if (this.#closed.has(caller)) throw over()
    }
  }

  #send(caller: Caller, verb: Verb, args: readonly unknown[]): Promise<unknown> {
    if (this.#isOver) return Promise.reject(over())
    const { promise, resolve, reject } = Promise.withResolvers()
    const fault = caller.isDead ? null : this.#nextFault(caller)
    const commitAt = this.#commitTime(caller, fault)
    const sent: Sent = { caller, verb, args: this.#nameClaim(caller, verb, args), fault, commitAt, resolve, reject }
    this.#unanswered.add(sent)
    if (caller.isDead) return promise
    caller.asks(verb)
    this.#trace.add(caller.name, `asks ${verb}${fault ? `, ${fault.as} ${fault.ms}` : ''}`)
    for (const observer of this.#observers) observer.sent(sent)
    if (fault) this.#apply(caller, fault)
    if (this.#isAway(caller) || fault?.as === 'refused') this.#refuse(sent)
    else if (fault?.as !== 'killed' || this.#random.chance(0.5)) this.#schedule(sent)
    return promise
  }

  /** Gives each claim of a worker a name of its own, so that the history of a job names the claim. */
  #nameClaim(caller: Caller, verb: Verb, args: readonly unknown[]): readonly unknown[] {
    const [request] = args as [ClaimRequest]
    if (verb !== 'claim' || request.worker !== caller.name) return args
    this.#claims += 1
    return [{ ...request, worker: `${request.worker}#${this.#claims}` }]
  }

  /** No fault lasts longer than `calmAt`. */
  #nextFault({ place }: Caller): Fault | null {
    const call = this.#calls.get(place) ?? 0
    this.#calls.set(place, call + 1)
    const fault = this.#isCalm ? undefined : this.#faults.get(`${place} ${call}`)
    return fault ? { ...fault, ms: Math.min(fault.ms, this.#plan.calmAt - this.#timeline.now) } : null
  }

  #commitTime(caller: Caller, fault: Fault | null): number {
    const { now } = this.#timeline
    const at = now + this.#latency() + (fault?.as === 'slowThere' ? fault.ms : 0)
    if (!this.#plan.inOrder) return at
    const inTurn = Math.max(at, this.#lastCommitAt.get(caller) ?? 0)
    this.#lastCommitAt.set(caller, inTurn)
    return inTurn
  }

  #latency(): number {
    const luck = this.#isCalm ? 0 : this.#random.fraction()
    if (luck < 0.75) return this.#random.between(0.1, 3)
    return luck < 0.97 ? this.#random.between(3, 20) : this.#random.between(20, 100)
  }

  #apply(caller: Caller, { as, ms }: Fault): void {
    const until = this.#timeline.now + ms
    if (as === 'killed') caller.die()
    else if (as === 'frozen') caller.freeze(ms)
    else if (as === 'stopped') this.#timeline.after(0, caller, () => caller.end(ms))
    else if (as === 'noWakeUps') caller.noWakeUpsUntil = Math.max(caller.noWakeUpsUntil, until)
    else if (as === 'cutOff') caller.cutOffUntil = Math.max(caller.cutOffUntil, until)
    else if (as === 'outage') this.#awayUntil = Math.max(this.#awayUntil, until)
    else if (as === 'clock') this.#setForward(ms)
    if (as === 'slowThere' || as === 'slowBack') caller.disturb(until + recoveryMs)
  }

  /** Leases run out all at the same time. */
  #setForward(ms: number): void {
    this.#timeline.setForward(ms)
    for (const caller of this.#callers) caller.disturb(this.#timeline.now)
  }

  #isAway(caller: Caller): boolean {
    return Math.max(this.#awayUntil, caller.cutOffUntil) > this.#timeline.now
  }

  #refuse(sent: Sent): void {
    this.#fail(sent, new HoldfastError('STORE_UNAVAILABLE', 'The store is away.', { mayHaveLanded: false }))
  }

  #fail(sent: Sent, error: HoldfastError): void {
    const inMs = this.#latency()
    sent.caller.disturb(this.#timeline.now + inMs + recoveryMs)
    this.#timeline.after(inMs, sent.caller, () => {
      this.#trace.add(sent.caller.name, `is refused ${sent.verb}`)
      this.#unanswered.delete(sent)
      sent.reject(error)
    })
  }

  #schedule(sent: Sent): void {
    this.#inFlight.add(sent)
    this.#timeline.after(sent.commitAt - this.#timeline.now, null, () => this.#commit(sent))
  }

  /** In one of four cases together with all calls that are due soon after. */
  async #commit(first: Sent): Promise<void> {
    if (!this.#inFlight.has(first)) return // it has committed together with another call
    const until = this.#timeline.now + (this.#random.chance(0.25) ? 4 : 0)
    const group = [...this.#inFlight]
      .filter(({ commitAt }) => commitAt <= until)
      .sort((a, b) => a.commitAt - b.commitAt)
    for (const sent of group) this.#inFlight.delete(sent)
    const results = await Promise.allSettled(group.map((sent) => this.#perform(sent)))
    group.forEach((sent, i) => {
      this.#afterCommit(sent, results[i] as PromiseSettledResult<Committed>)
    })
  }

  /** A settlement, a checkpoint or a signal that has committed before gets the same answer as then. */
  async #perform({ verb, args, fault }: Sent): Promise<Committed> {
    const [requests, token] = args as [readonly { readonly id: string }[], string | undefined]
    const isRepeatable = verb === 'settle' || verb === 'checkpoint' || verb === 'signal'
    const key = isRepeatable && token !== undefined ? [token, ...requests.map(({ id }) => id)].join(' ') : null
    if (key !== null && this.#settled.has(key)) return { answer: this.#settled.get(key), isAgain: true }
    const answer = await (fault?.as === 'partly' ? this.#performPartly(verb, args) : this.#call(verb, args))
    if (key !== null && fault?.as !== 'partly') this.#settled.set(key, answer)
    return { answer, isAgain: false }
  }

  async #performPartly(verb: Verb, args: readonly unknown[]): Promise<unknown> {
    const away = 'The store is away.'
    if (!partial.has(verb)) throw new HoldfastError('STORE_UNAVAILABLE', away, {})
    const [requests, ...rest] = args as [readonly unknown[]]
    const commits = requests.map((_, i) => requests.length > 1 && i % 2 === 0)
    const answers = (await this.#call(verb, [requests.filter((_, i) => commits[i]), ...rest])) as unknown[]
    return commits.map((isCommitted) => (isCommitted ? answers.shift() : refuse('STORE_UNAVAILABLE', away)))
  }

  #call(verb: Verb, args: readonly unknown[]): Promise<unknown> {
    return (this.#store[verb] as (...args: unknown[]) => Promise<unknown>)(...args)
  }

  #afterCommit(sent: Sent, result: PromiseSettledResult<Committed>): void {
    const { caller, verb, fault } = sent
    if (result.status === 'rejected') {
      this.#fail(sent, result.reason as HoldfastError)
      return
    }
    const { answer, isAgain } = result.value
    this.#trace.add('store', `${verb} of ${caller.name}: ${this.#brief(verb, answer)}`)
    if (!isAgain) for (const observer of this.#observers) observer.committed(sent, answer)
    if (fault?.as === 'partly') caller.disturb(this.#timeline.now + recoveryMs)
    if (fault?.as === 'killedBeforeAnswer' && !caller.isDead) caller.die()
    else if (fault?.as === 'unanswered')
      this.#fail(sent, new HoldfastError('STORE_UNAVAILABLE', 'The answer was lost.', { mayHaveLanded: true }))
    else this.#answer(sent, answer)
  }

  #answer(sent: Sent, answer: unknown): void {
    const { caller, fault, verb } = sent
    this.#timeline.after(this.#latency() + (fault?.as === 'slowBack' ? fault.ms : 0), caller, () => {
      this.#trace.add(caller.name, `gets the answer to ${verb}`)
      this.#unanswered.delete(sent)
      for (const observer of this.#observers) observer.answered(sent, answer)
      sent.resolve(answer)
    })
  }

  #brief(verb: Verb, answer: unknown): string {
    const each = Array.isArray(answer) ? answer : [answer]
    const words = each.map((one) => {
      if (typeof one !== 'object' || one === null) return verb === 'watch' || verb === 'time' ? '-' : String(one)
      if ('fence' in one) return `${this.#trace.nameOf(one.id)} ${one.attempt}/${one.maxAttempts}`
      if ('expired' in one) return `${one.rescued} rescued, ${one.promoted} promoted, ${one.overdue} overdue`
      return one.refused ?? one.failed?.refused ?? one.state ?? one.status ?? '+'
    })
    return words.slice(0, 8).join(', ')
  }

  #subscribe(caller: Caller, subscriber: Subscriber): () => void {
    if (!this.#plan.wakes) return () => {}
    const deliver = (call: () => void) => {
      if (caller.isDead || caller.noWakeUpsUntil > this.#timeline.now || (!this.#isCalm && this.#random.chance(0.03)))
        return
      this.#timeline.after(this.#latency(), caller, call)
    }
    return this.#store.subscribe({
      onReady: (queue, count) => deliver(() => subscriber.onReady?.(queue, count)),
      onCancel: (ids) => deliver(() => subscriber.onCancel?.(ids)),
    })
  }
}

function over(): HoldfastError {
  return new HoldfastError('CLOSED', 'The simulation is over.')
}
