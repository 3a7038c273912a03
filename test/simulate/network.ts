// Between the processes and the one store they share. A call sets out, lands, and its answer comes back, each some time
// later; calls that are on their way at the same time may land in one commit. This is where things go wrong: what a plan
// says befalls a process as it makes a call.
//
// A store keeps its contract all the same: a settlement whose answer was lost is answered under its token as it was then,
// and wake-ups are hints that may be lost.

import { HoldfastError, refuse } from '../../src/errors.ts'
import type { ClaimRequest, Store, Subscriber } from '../../src/store/store.ts'
import { Random } from '../torture/random.ts'
import type { Fault, Plan } from './plan.ts'
import type { Actor, Timeline } from './timeline.ts'
import type { Trace } from './trace.ts'

export const verbs = [
  ...(['define', 'enqueue', 'claim', 'renew', 'progress', 'cancelRequested', 'settle', 'sweep'] as const),
  ...(['cancel', 'requeue', 'requeueAll', 'alter', 'purge', 'pause'] as const),
  ...(['job', 'outcomes', 'jobs', 'stats', 'kvGet', 'kvWrite', 'kvScan', 'advance', 'time'] as const),
  ...(['definitions', 'overrideLimit'] as const),
  ...(['watch', 'changes', 'examine', 'openBatch', 'addItems', 'controlBatch', 'batch', 'batches', 'items'] as const),
]

export type Verb = (typeof verbs)[number]

/** Whose answers may say of each request that the store is away. */
const partial: ReadonlySet<Verb> = new Set([
  ...(['enqueue', 'renew', 'progress', 'settle', 'cancel', 'requeue', 'alter', 'kvWrite'] as const),
])

/** Who makes calls. */
export interface Caller extends Actor {
  readonly name: string
  readonly place: number
  cutOffUntil: number
  deafUntil: number
  /** It makes a call. */
  asks(verb: Verb): void
  /** It may not do what it should before this time. */
  disturb(until: number): void
  die(): void
  freeze(ms: number): void
  /** Asked to end, within so many milliseconds. */
  end(graceMs: number): void
}

export interface Call {
  readonly caller: Caller
  readonly verb: Verb
  readonly args: readonly unknown[]
}

/** Who sees every call, as it is made, as it lands, and as its answer is heard. */
export interface Observer {
  sent(call: Call): void
  landed(call: Call, answer: unknown): void
  heard(call: Call, answer: unknown): void
}

interface Sent extends Call {
  readonly fault: Fault | null
  readonly landAt: number
  readonly resolve: (answer: unknown) => void
  readonly reject: (error: unknown) => void
}

interface Landed {
  readonly answer: unknown
  readonly isAgain: boolean
}

/** Who was refused comes back within this time, heartbeats first. */
const recoveryMs = 500

export class Network {
  readonly #timeline: Timeline
  readonly #store: Store
  readonly #plan: Plan
  readonly #trace: Trace
  readonly #observers: readonly Observer[]
  readonly #random: Random
  readonly #faults: ReadonlyMap<string, Fault>
  readonly #callers = new Set<Caller>()
  readonly #calls = new Map<number, number>()
  readonly #onTheirWay = new Set<Sent>()
  readonly #unheard = new Set<Sent>()
  readonly #lastLandAt = new Map<Caller, number>()
  readonly #settled = new Map<string, unknown>()
  #claims = 0
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

  /** Nothing goes wrong any more. */
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
      capabilities: { ...capabilities, sqlEffects: false }, // a table in memory cannot be looked at
      claimsFollowEnqueues: this.#plan.inOrder,
      subscribe: (subscriber: Subscriber) => this.#subscribe(caller, subscriber),
      close: async () => onClose(),
    } as Store
  }

  /** What nobody will ever hear is told to nobody, so that nothing is waited for. */
  end(): void {
    this.#isOver = true
    for (const { reject } of this.#unheard) reject(over())
  }

  #send(caller: Caller, verb: Verb, args: readonly unknown[]): Promise<unknown> {
    if (this.#isOver) return Promise.reject(over())
    const { promise, resolve, reject } = Promise.withResolvers()
    const fault = caller.isDead ? null : this.#nextFault(caller)
    const landAt = this.#landAt(caller, fault)
    const sent: Sent = { caller, verb, args: this.#apart(caller, verb, args), fault, landAt, resolve, reject }
    this.#unheard.add(sent)
    if (caller.isDead) return promise
    caller.asks(verb)
    this.#trace.add(caller.name, `asks ${verb}${fault ? `, ${fault.as} ${fault.ms}` : ''}`)
    for (const observer of this.#observers) observer.sent(sent)
    if (fault) this.#befall(caller, fault)
    if (this.#isAway(caller) || fault?.as === 'refused') this.#refuse(sent)
    else if (fault?.as !== 'killed' || this.#random.chance(0.5)) this.#setOut(sent)
    return promise
  }

  /** Each claim of a worker under a name of its own, so that a job's history tells which claim it speaks of. */
  #apart(caller: Caller, verb: Verb, args: readonly unknown[]): readonly unknown[] {
    const [request] = args as [ClaimRequest]
    if (verb !== 'claim' || request.worker !== caller.name) return args
    this.#claims += 1
    return [{ ...request, worker: `${request.worker}#${this.#claims}` }]
  }

  /** Everything is over when calm begins. */
  #nextFault({ place }: Caller): Fault | null {
    const call = this.#calls.get(place) ?? 0
    this.#calls.set(place, call + 1)
    const fault = this.#isCalm ? undefined : this.#faults.get(`${place} ${call}`)
    return fault ? { ...fault, ms: Math.min(fault.ms, this.#plan.calmAt - this.#timeline.now) } : null
  }

  #landAt(caller: Caller, fault: Fault | null): number {
    const { now } = this.#timeline
    const at = now + this.#latency() + (fault?.as === 'slowThere' ? fault.ms : 0)
    if (!this.#plan.inOrder) return at
    const inTurn = Math.max(at, this.#lastLandAt.get(caller) ?? 0)
    this.#lastLandAt.set(caller, inTurn)
    return inTurn
  }

  #latency(): number {
    const luck = this.#isCalm ? 0 : this.#random.fraction()
    if (luck < 0.75) return this.#random.between(0.1, 3)
    return luck < 0.97 ? this.#random.between(3, 20) : this.#random.between(20, 100)
  }

  #befall(caller: Caller, { as, ms }: Fault): void {
    const until = this.#timeline.now + ms
    if (as === 'killed') caller.die()
    else if (as === 'frozen') caller.freeze(ms)
    else if (as === 'stopped') this.#timeline.after(0, caller, () => caller.end(ms))
    else if (as === 'deaf') caller.deafUntil = Math.max(caller.deafUntil, until)
    else if (as === 'cutOff') caller.cutOffUntil = Math.max(caller.cutOffUntil, until)
    else if (as === 'outage') this.#awayUntil = Math.max(this.#awayUntil, until)
    else if (as === 'clock') this.#setForward(ms)
    if (as === 'slowThere' || as === 'slowBack') caller.disturb(until + recoveryMs)
  }

  /** Leases run out all at once. */
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
      this.#unheard.delete(sent)
      sent.reject(error)
    })
  }

  #setOut(sent: Sent): void {
    this.#onTheirWay.add(sent)
    this.#timeline.after(sent.landAt - this.#timeline.now, null, () => this.#land(sent))
  }

  /** Now and then with all that would land soon after, in one commit. */
  async #land(first: Sent): Promise<void> {
    if (!this.#onTheirWay.has(first)) return // with another, before
    const until = this.#timeline.now + (this.#random.chance(0.25) ? 4 : 0)
    const group = [...this.#onTheirWay].filter(({ landAt }) => landAt <= until).sort((a, b) => a.landAt - b.landAt)
    for (const sent of group) this.#onTheirWay.delete(sent)
    const landed = await Promise.allSettled(group.map((sent) => this.#perform(sent)))
    group.forEach((sent, i) => {
      this.#hasLanded(sent, landed[i] as PromiseSettledResult<Landed>)
    })
  }

  /** A settlement that has landed before is answered as it was then. */
  async #perform({ verb, args, fault }: Sent): Promise<Landed> {
    const [requests, token] = args as [readonly { readonly id: string }[], string | undefined]
    const key = verb === 'settle' && token !== undefined ? [token, ...requests.map(({ id }) => id)].join(' ') : null
    if (key !== null && this.#settled.has(key)) return { answer: this.#settled.get(key), isAgain: true }
    const answer = await (fault?.as === 'partly' ? this.#performPartly(verb, args) : this.#call(verb, args))
    if (key !== null && fault?.as !== 'partly') this.#settled.set(key, answer)
    return { answer, isAgain: false }
  }

  async #performPartly(verb: Verb, args: readonly unknown[]): Promise<unknown> {
    const away = 'The store is away.'
    if (!partial.has(verb)) throw new HoldfastError('STORE_UNAVAILABLE', away, {})
    const [requests, ...rest] = args as [readonly unknown[]]
    const isLucky = requests.map((_, i) => requests.length > 1 && i % 2 === 0)
    const landed = (await this.#call(verb, [requests.filter((_, i) => isLucky[i]), ...rest])) as unknown[]
    return isLucky.map((lands) => (lands ? landed.shift() : refuse('STORE_UNAVAILABLE', away)))
  }

  #call(verb: Verb, args: readonly unknown[]): Promise<unknown> {
    return (this.#store[verb] as (...args: unknown[]) => Promise<unknown>)(...args)
  }

  #hasLanded(sent: Sent, landed: PromiseSettledResult<Landed>): void {
    const { caller, verb, fault } = sent
    if (landed.status === 'rejected') {
      this.#fail(sent, landed.reason as HoldfastError)
      return
    }
    const { answer, isAgain } = landed.value
    this.#trace.add('store', `${verb} of ${caller.name}: ${this.#brief(verb, answer)}`)
    if (!isAgain) for (const observer of this.#observers) observer.landed(sent, answer)
    if (fault?.as === 'partly') caller.disturb(this.#timeline.now + recoveryMs)
    if (fault?.as === 'killedUnheard' && !caller.isDead) caller.die()
    else if (fault?.as === 'unanswered')
      this.#fail(sent, new HoldfastError('STORE_UNAVAILABLE', 'The answer was lost.', { mayHaveLanded: true }))
    else this.#answer(sent, answer)
  }

  #answer(sent: Sent, answer: unknown): void {
    const { caller, fault, verb } = sent
    this.#timeline.after(this.#latency() + (fault?.as === 'slowBack' ? fault.ms : 0), caller, () => {
      this.#trace.add(caller.name, `hears ${verb}`)
      this.#unheard.delete(sent)
      for (const observer of this.#observers) observer.heard(sent, answer)
      sent.resolve(answer)
    })
  }

  #brief(verb: Verb, answer: unknown): string {
    const each = Array.isArray(answer) ? answer : [answer]
    const words = each.map((one) => {
      if (typeof one !== 'object' || one === null) return verb === 'watch' || verb === 'time' ? '-' : String(one)
      if ('fence' in one) return `${this.#trace.nameOf(one.id)} ${one.attempt}/${one.maxAttempts}`
      if ('lapsed' in one) return `${one.rescued} rescued, ${one.promoted} promoted, ${one.overdue} overdue`
      return one.refused ?? one.failed?.refused ?? one.state ?? one.status ?? '+'
    })
    return words.slice(0, 8).join(', ')
  }

  #subscribe(caller: Caller, subscriber: Subscriber): () => void {
    if (!this.#plan.wakes) return () => {}
    const tell = (call: () => void) => {
      if (caller.isDead || caller.deafUntil > this.#timeline.now || (!this.#isCalm && this.#random.chance(0.03))) return
      this.#timeline.after(this.#latency(), caller, call)
    }
    return this.#store.subscribe({
      onReady: (queue, count) => tell(() => subscriber.onReady?.(queue, count)),
      onCancel: (ids) => tell(() => subscriber.onCancel?.(ids)),
    })
  }
}

function over(): HoldfastError {
  return new HoldfastError('CLOSED', 'The simulation is over.')
}
