// One run: processes with faults for a while, then a time without faults in which every job must end, then the verdict.

import type { QueueInfo } from '../../src/client/queues.ts'
import { Holdfast } from '../../src/holdfast.ts'
import type { Clock, Timers } from '../../src/runtime/clock.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import type { Store } from '../../src/store/store.ts'
import type { MakeLoop } from '../../src/worker/worker.ts'
import { readRecords } from '../model/observe.ts'
import { WatchCheck } from '../model/watch-check.ts'
import { enqueueReservedJob, isDrained } from '../torture/drain.ts'
import { setPaused } from '../torture/interference.ts'
import { Journal, type Note, parseJournal } from '../torture/journal.ts'
import { undisturbed } from '../torture/judge/evidence.ts'
import { logInMemory } from '../torture/log.ts'
import { noTables, type Observation, observe } from '../torture/observe.ts'
import { Random } from '../torture/random.ts'
import { claim, settleAs } from '../torture/settlements.ts'
import { reservedJob, type World } from '../torture/world.ts'
import { FlowRuns, flowNames, judgeFlows, sendMissingSignals } from './flows.ts'
import { guardedNames, judgeBatches, resumeBatches } from './guarded.ts'
import { judgeRun, type Violation } from './judge.ts'
import { LeaseChecker, type Watched } from './lease-checker.ts'
import { Ledger } from './ledger.ts'
import { Network } from './network.ts'
import type { Plan } from './plan.ts'
import { Process, type Surroundings, scheduleName, ticks } from './process.ts'
import { rest, Timeline } from './timeline.ts'
import { Trace } from './trace.ts'

/** A deliberate error in a store or a worker, to test the judge. */
export interface Flaw {
  /** Of the store that all processes share. */
  readonly store?: (store: Store) => Partial<Store>
  /** Of the store as one process sees it. */
  readonly wire?: (store: Store) => Partial<Store>
  readonly makeLoop?: MakeLoop
}

interface Host extends World {
  readonly notes: () => Note[]
}

export interface Outcome {
  readonly plan: Plan
  readonly violations: readonly Violation[]
  readonly trace: readonly string[]
  readonly hash: string
  readonly events: number
  readonly virtualMs: number
}

const lookEveryMs = 250
/** Calls that are under way when the faults end arrive within this time. */
const arrivalMs = 500
/** How long schedules go on after the faults, and how long all other jobs may take to end. */
const scheduleMs = 2_500
const drainMs = 30_000
const closeMs = 20_000
/** A caller that was refused for long repeats its call within this time. */
const recoverMs = 7_000

export async function simulate(plan: Plan, flaw: Flaw = {}): Promise<Outcome> {
  const run = new Run(plan, flaw)
  await run.live()
  return run.outcome
}

class Run {
  readonly #plan: Plan
  readonly #flaw: Flaw
  readonly #timeline = new Timeline()
  readonly #trace = new Trace(this.#timeline)
  readonly #violations: Violation[] = []
  readonly #processes: Process[] = []
  readonly #checker: LeaseChecker
  readonly #ledger: Ledger
  readonly #random: Random
  readonly #flows = new FlowRuns()
  #around: Surroundings | null = null
  #ticks = 0
  #isCalm = false
  #isOver = false

  constructor(plan: Plan, flaw: Flaw) {
    this.#plan = plan
    this.#flaw = flaw
    this.#random = new Random(plan.seed ^ 0xca11)
    this.#checker = new LeaseChecker(this.#timeline, (promise, what) => this.#accuse(promise, what))
    this.#ledger = new Ledger(() => this.#noteTime())
  }

  get outcome(): Outcome {
    return {
      plan: this.#plan,
      violations: this.#violations,
      trace: this.#trace.lines,
      hash: this.#trace.hash,
      events: this.#timeline.count,
      virtualMs: this.#timeline.now,
    }
  }

  async live(): Promise<void> {
    const store = await this.#open()
    const changes = new WatchCheck(store)
    await changes.begin([])
    const host = this.#host(store)
    await enqueueReservedJob(host)
    await this.#declare(host.holdfast)
    const declaredAt = this.#timeline.clock
    const network = new Network(this.#timeline, store, this.#plan, this.#trace, [this.#checker, this.#ledger])
    const around = this.#surroundings(network)
    this.#around = around
    await this.#trouble(around)
    network.calm()
    const found = withoutTicks(await observe(host.holdfast, noTables))
    const unscheduledAt = await this.#heal(around, host, store)
    await this.#close()

    const left = await observe(host.holdfast, noTables)
    const ofProcesses = this.#processes.flatMap((process) => process.notes)
    const notes = [...this.#ledger.notes, ...ofProcesses, ...host.notes()].sort((a, b) => a.at - b.at)
    const findings = { notes, found, left: withoutTicks(left), conditions: undisturbed, watchLog: null, received: null }
    const slots = left.jobs.filter(({ queue }) => queue === ticks.name)
    const unreported = await changes.differenceOf(await readRecords(store))
    const verdict = judgeRun({ findings, slots, unreported, missed: this.#plan.missed, declaredAt, unscheduledAt })
    const ofBatches = await judgeBatches(host.holdfast)
    const ofFlows = this.#plan.flows ? await judgeFlows(store, this.#flows) : []
    for (const { promise, what } of [...verdict, ...ofBatches, ...ofFlows]) this.#accuse(promise, what)
    network.end()
    await rest()
    await host.holdfast.close()
  }

  async #trouble(around: Surroundings): Promise<void> {
    for (let place = 0; place < this.#plan.places; place++) this.#start(around, place, 0)
    for (const { at, place, as } of this.#plan.deeds)
      this.#timeline.after(at, null, () => void this.#in(place)?.make(as))
    await this.#timeline.run(this.#plan.calmAt)
    this.#trace.add('', 'no more faults from here on')
    this.#isCalm = true
  }

  /** Every job ends. Answers when the schedule was removed. */
  async #heal(around: Surroundings, host: Host, store: Store): Promise<number> {
    const { holdfast, journal } = host
    if (this.#alive.length === 0) this.#start(around, 0, this.#processes.length)
    await this.#drain(host, this.#timeline.now + arrivalMs, () => false)
    await sendMissingSignals(store, this.#flows)
    if (this.#plan.missed !== null) {
      await this.#drain(host, this.#timeline.now + scheduleMs, () => false)
      await holdfast.unschedule(scheduleName)
    }
    const unscheduledAt = this.#timeline.clock
    const isAtEnd = (queue: QueueInfo) => queue.name === reservedJob.queue || isDrained(queue)
    await this.#drain(host, this.#timeline.now + drainMs, async () => (await holdfast.queues()).every(isAtEnd))
    const id = reservedJob.id as string
    await journal.ask('cancel', { id, tag: null }, () => holdfast.cancel(id))
    return unscheduledAt
  }

  /** The client of the simulation itself: it brings the run to its end, and has no faults. */
  #host(store: Store): Host {
    const timers: Timers = {
      now: () => this.#timeline.now,
      after: (ms, call) => this.#timeline.after(ms, null, () => void call()),
    }
    const holdfast = new Holdfast(this.#observed(store), { timers, logger: false, random: () => 0.5 })
    const lines: string[] = []
    const journal = new Journal(
      logInMemory((line) => lines.push(line)),
      { mayBeDown: false, now: () => this.#noteTime() },
    )
    const world = {
      holdfast,
      journal,
      random: this.#random,
      processName: 'host',
      now: () => this.#timeline.clock,
      waitMs: 0,
    }
    return { ...world, notes: () => parseJournal(lines.join('')) }
  }

  async #open(): Promise<Store> {
    const clock: Clock = { now: () => this.#timeline.clock }
    const store = await sqlite({ path: ':memory:' })({ clock })
    return overlaid(store, { capabilities: { ...store.capabilities, sqlEffects: false }, ...this.#flaw.store?.(store) })
  }

  /** The checker sees the calls of the host, too. */
  #observed(store: Store): Store {
    const caller = this.#hostAsCaller()
    const observe = (verb: 'claim' | 'settle' | 'sweep' | 'controlBatch') => async (request: never) => {
      const answer = await store[verb](request)
      this.#checker.committed({ caller, verb, args: [request] }, answer)
      return answer
    }
    const observed = {
      ...{ claim: observe('claim'), settle: observe('settle'), sweep: observe('sweep') },
      controlBatch: observe('controlBatch'),
    }
    return overlaid(store, observed as Partial<Store>)
  }

  #hostAsCaller(): Watched {
    const state = { isDead: false, isEnding: false, frozenUntil: 0, cutOffUntil: 0, noWakeUpsUntil: 0, calmSince: 0 }
    const nothing = () => {}
    const acts = { asks: nothing, disturb: nothing, die: nothing, freeze: nothing, end: nothing }
    return { name: 'host', place: -1, runs: [], ...state, ...acts }
  }

  #surroundings(network: Network): Surroundings {
    const { makeLoop, wire } = this.#flaw
    return {
      ...{ timeline: this.#timeline, plan: this.#plan, trace: this.#trace },
      noteTime: () => this.#noteTime(),
      isCalm: () => this.#isCalm,
      flows: this.#flows,
      accuse: (promise, what) => this.#accuse(promise, what),
      storeOf: (process, onClose) => {
        const store = network.storeOf(process, onClose)
        return wire ? overlaid(store, wire(store)) : store
      },
      reported: (process, id) => this.#checker.reported(process, id),
      gone: (process) => this.#succeed(process),
      ...(makeLoop && { makeLoop }),
    }
  }

  get #alive(): Process[] {
    return this.#processes.filter(({ isDead }) => !isDead)
  }

  #in(place: number): Process | undefined {
    return this.#alive.find((process) => process.place === place)
  }

  #start(around: Surroundings, place: number, nth: number): void {
    const process = new Process(around, { name: `p${place}.${nth}`, place })
    this.#processes.push(process)
    this.#declare(process.holdfast).catch(() => undefined) // the host has declared it
  }

  async #declare(holdfast: Holdfast): Promise<void> {
    const { missed } = this.#plan
    if (missed === null) return
    await holdfast.schedule(scheduleName, { cron: '* * * * * *', queue: ticks, payload: { label: 'tick' }, missed })
  }

  /** Another process starts in its place after a while. */
  #succeed({ place }: Process): void {
    const nth = this.#processes.filter((process) => process.place === place).length
    this.#timeline.after(this.#random.between(1, 800), null, () => {
      if (!this.#isOver && !this.#in(place)) this.#start(this.#around as Surroundings, place, nth)
    })
  }

  /** Until a time: resumes every paused queue and batch, and empties the queues that no worker serves. */
  async #drain(world: World, untilMs: number, isDone: () => boolean | Promise<boolean>): Promise<void> {
    while (this.#timeline.now < untilMs && !(await isDone())) {
      for (const { name, paused, ready } of await world.holdfast.queues()) {
        if (paused) await setPaused(world, name, false)
        this.#checker.pause(name, false)
        if (name.startsWith('own-') && ready > 0) await this.#empty(world, name)
      }
      await resumeBatches(world.holdfast)
      await this.#timeline.run(Math.min(untilMs, this.#timeline.now + lookEveryMs))
    }
  }

  async #empty(world: World, queue: string): Promise<void> {
    const worker = `host-${this.#noteTime()}`
    for (const lease of await claim(world, worker, { queues: [queue], max: 100, wait: 0 }))
      await settleAs(world, lease, { worker, as: 'done' })
  }

  async #close(): Promise<void> {
    await this.#timeline.run(this.#timeline.now + recoverMs, () => this.#alive.every(isWell))
    this.#isOver = true
    for (const process of this.#alive) {
      if (!isWell(process))
        this.#accuse('a surviving worker is healthy', `${process.name}: ${JSON.stringify(process.worker.health())}`)
      process.end(1_000)
    }
    await this.#timeline.run(this.#timeline.now + closeMs, () => this.#alive.length === 0)
  }

  #accuse(promise: string, what: string): void {
    const text = this.#trace.rename(what)
    this.#trace.add('JUDGE', `${promise}: ${text}`)
    this.#violations.push({ promise, what: text })
  }

  /** A little later with every note, so that notes have an order. */
  #noteTime(): number {
    this.#ticks += 1
    return this.#timeline.now + this.#ticks * 1e-6
  }
}

/** Healthy with nothing to settle, or ending. */
function isWell({ worker, isEnding }: Process): boolean {
  const { ok, running, unsettled, abandoned } = worker.health()
  return isEnding || ((ok || abandoned > 0) && running === 0 && unsettled === 0)
}

function isJudgedApart(queue: string): boolean {
  return guardedNames.has(queue) || flowNames.has(queue)
}

/** Without slots of the schedule, jobs with limits or of a batch, and flows: these are judged separately. */
function withoutTicks({ jobs, queues, ...rest }: Observation): Observation {
  return {
    ...rest,
    batches: [],
    jobs: jobs.filter(({ queue }) => queue !== ticks.name && !isJudgedApart(queue)),
    queues: queues.filter(({ name }) => name !== ticks.name && !isJudgedApart(name)),
  }
}

/** The same store with some of its methods replaced. */
function overlaid(store: Store, instead: Partial<Store>): Store {
  return new Proxy(store, {
    get: (target, name) => {
      const value = Reflect.get(instead, name) ?? Reflect.get(target, name)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}
