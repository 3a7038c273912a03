// A store, a virtual clock, and the models that could be it. There is one model until calls race: then every order of them
// is tried on a copy, the orders that explain answers and state stay, and what comes later tells them apart. Where no order
// does, calls that go part by part (a claim from lane to lane, a sweep from task to task) may have had others come in
// between. A step fails when no model is left.

import { isDeepStrictEqual } from 'node:util'
import type { JobRecord } from '../../src/job/record.ts'
import type { DeathNotice } from '../../src/job/transition.ts'
import type { FinishedBatch, LeaseRef, Store } from '../../src/store/store.ts'
import type { VirtualClock } from '../../src/testing/index.ts'
import { type Answered, type Call, kvGetCall, type Race, show, toCall } from './commands.ts'
import { type Lane, Model, type Oracle } from './model.ts'
import { differenceOf, observe, readRecords } from './observe.ts'
import { kvKeys, type Step } from './steps.ts'
import { Told } from './told.ts'

/** Store and model disagree: the judge's finding. */
export class Disagreement extends Error {
  readonly trace: readonly string[]

  constructor(message: string, trace: readonly string[]) {
    super(message)
    this.name = 'Disagreement'
    this.trace = trace
  }
}

export class World {
  readonly #store: Store
  readonly #clock: VirtualClock
  readonly #told: Told
  readonly #holds: LeaseRef[] = []
  readonly #fences = new Set<string>()
  readonly #ids = new Set<string>()
  /** Every kind of answer that was met. */
  readonly kinds = new Set<string>()
  readonly #trace: (() => string)[] = []
  readonly #finished: FinishedBatch[] = []
  #models: Model[]
  #lastId = 0

  constructor(store: Store, clock: VirtualClock) {
    this.#store = store
    this.#clock = clock
    this.#told = new Told(store)
    store.subscribe({ onFinished: (finished) => this.#finished.push(finished) })
    this.#models = [new Model(clock.now(), { admitsLate: !store.claimsFollowEnqueues })]
  }

  /** Everything that was asked and answered so far. */
  get trace(): string[] {
    return this.#trace.map((line) => line())
  }

  /** Any of the models; they answer alike to all that was asked so far. */
  get model(): Model {
    return this.#models[0] as Model
  }

  async make(step: Step): Promise<void> {
    if (step.do === 'pass') {
      this.#trace.push(() => `pass(${step.ms})`)
      this.#clock.advance(step.ms)
      for (const model of this.#models) model.pass(step.ms)
      return
    }
    if (step.do === 'race') return this.call(...step.moves.map((move) => toCall(move, this.#scene())))
    if (step.do === 'kv') for (const { key } of step.writes) await this.call(kvGetCall(key))
    if (step.do === 'accept') for (const key of kvKeys) await this.call(kvGetCall(key))
    if (step.do === 'advance') await this.call(kvGetCall(step.key))
    if (step.do === 'read') await this.call(kvGetCall(step.key))
    return this.call(toCall(step, this.#scene()))
  }

  /** Makes the calls, all at once where there are several, and keeps the models that explain the answers. */
  async call(...calls: Call[]): Promise<void> {
    const answered = await Promise.all(calls.map((call) => call(this.#store)))
    this.#trace.push(() => answered.map((each) => each.text()).join('\n  while '))
    for (const kind of answered.flatMap(({ kinds }) => kinds)) this.kinds.add(kind)
    this.#checkFences(answered)
    const oracle = await this.oracle(answered)
    if (calls.length === 1) await this.#explain(answered[0] as Answered, oracle)
    else await this.#explainRace(answered, oracle)
    this.#remember()
  }

  async #explain(answered: Answered, oracle: Oracle): Promise<void> {
    const ticks = new Map(this.#models.map((model) => [model, model.state.tick]))
    this.keep((model) => answered.judge(model, oracle))
    if (this.model.state.live.some(({ batch, limitKey }) => batch !== null && limitKey !== null)) {
      const records = await readRecords(this.#store, { queue: null, state: null })
      for (const model of this.#models) model.adoptAdmissions(records)
    }
    const isKeyed = this.model.state.live.some(({ state, limitKey }) => state === 'ready' && limitKey !== null)
    if (!this.model.admitsLate || !isKeyed) return
    const ready = (await readRecords(this.#store, { queue: null, state: 'ready' })).map(({ id }) => id)
    for (const model of this.#models) model.adoptOrder(ready, ticks.get(model) ?? 0)
  }

  async #explainRace(answered: readonly Answered[], oracle: Oracle): Promise<void> {
    const observed = await observe(this.#store)
    const lanes = lanesOf(observed.records)
    const orders = permutations(answered)
    const births: string[][] = [] // who commits first need not have been inserted first
    let firstDifference: string | null = null
    const explains = (model: Model, difference: string | null): boolean => {
      model.adoptAdmissions(observed.records)
      const found = difference ?? differenceOf(model, observed)
      firstDifference ??= found
      return found === null
    }
    const inOrder = this.#models.flatMap((model) =>
      orders.flatMap((order) => {
        const copy = model.clone()
        const difference = order.reduce<string | null>((before, each) => before ?? each.judge(copy, oracle), null)
        if (model.admitsLate) births.push(copy.bornSince(model.state.tick))
        return explains(copy, difference) ? [copy] : []
      }),
    )
    const explained =
      inOrder.length > 0
        ? inOrder
        : this.#models.flatMap((model) => {
            const ends = interleaved(model, answered, { oracle, lanes })
            return ends.find((end) => explains(end, null)) ?? [] // one is enough: there may be thousands, all alike
          })
    const bornOtherwise = explained.flatMap((model) => births.map((ids) => model.bornInOrder(ids)))
    if (explained.length === 0) this.#fail(firstDifference ?? 'no model is left', orders.length)
    this.#models = distinct([...explained, ...bornOtherwise.filter((model) => differenceOf(model, observed) === null)])
  }

  /** The whole state agrees. */
  async compare(): Promise<void> {
    const observed = await observe(this.#store)
    this.keep((model) => differenceOf(model, observed) ?? this.#completionsDiffer(model))
    const untold = await this.#told.differenceOf(observed.records)
    if (untold !== null) this.#fail(untold, 1)
  }

  #completionsDiffer({ batches }: Model): string | null {
    if (batches.hasTold(this.#finished)) return null
    return `completions told are ${show(this.#finished)} and should be ${show(batches.told)}`
  }

  /** From now on everything that happens must be told. */
  watch(): Promise<void> {
    return this.#told.begin([])
  }

  /** Keeps the models that do not differ. */
  keep(difference: (model: Model) => string | null): void {
    const differences = this.#models.map(difference)
    const left = this.#models.filter((_, i) => differences[i] === null)
    if (left.length === 0) this.#fail(differences[0] ?? 'no model is left', 1)
    this.#models = distinct(left)
  }

  #fail(difference: string, orders: number): never {
    const tried = orders > 1 ? `none of ${orders} orders explains it; in the order given: ` : ''
    throw new Disagreement(tried + difference, this.trace)
  }

  #scene() {
    return {
      model: this.model,
      holds: this.#holds,
      ids: [...this.#ids],
      sqlEffects: this.#store.capabilities.sqlEffects,
      deletesAtOnce: this.#store.claimsFollowEnqueues,
      newId: () => {
        this.#lastId += 1
        return `00000000-0000-4000-9000-${String(this.#lastId).padStart(12, '0')}`
      },
    }
  }

  /** A fence is never given out twice, and long enough to hold 128 bits. */
  #checkFences(answered: readonly Answered[]): void {
    for (const { id, fence } of answered.flatMap(({ claimed }) => claimed)) {
      if (this.#fences.has(fence)) this.#fail(`the fence ${fence} was given out before`, 1)
      if (fence.length < 22) this.#fail(`the fence ${fence} is too short for 128 random bits`, 1)
      this.#fences.add(fence)
      this.#holds.push({ id, fence })
    }
  }

  /** Fences as the store gave them; notices as the store made them: jobs nobody knew, that tell of this death. */
  async oracle(answered: readonly Answered[] = []): Promise<Oracle> {
    const claimed = answered.flatMap((each) => each.claimed)
    const fences = new Map(claimed.map(({ id, fence }) => [id, fence]))
    const turns = new Map(claimed.map(({ id }, turn) => [id, turn]))
    const { settings, batches } = this.model.state
    const told = batches.batches.flatMap(({ onComplete }) => onComplete?.job.queue ?? [])
    const targets = new Set([...settings.flatMap(({ onDead }) => onDead ?? []), ...told])
    const strangers: JobRecord[] = []
    for (const queue of targets) {
      const records = await readRecords(this.#store, { queue, state: null })
      strangers.push(...records.filter(({ id }) => !this.#ids.has(id)))
    }
    return {
      fence: (id) => fences.get(id) ?? 'not claimed',
      noticeId: (notice) => strangers.find((record) => tellsOf(record, notice))?.id ?? `no notice of ${notice.id}`,
      completionId: (completion) => {
        const told = strangers.find(({ payload }) => isDeepStrictEqual(JSON.parse(payload), { told: 1, ...completion }))
        return told?.id ?? `no word of ${completion.batchId}`
      },
      turnOf: (id) => turns.get(id) ?? Number.POSITIVE_INFINITY,
    }
  }

  #remember(): void {
    for (const model of this.#models) for (const { id } of model.all()) this.#ids.add(id)
  }
}

function tellsOf({ payload, createdAt }: JobRecord, { id, queue, diedAt }: DeathNotice): boolean {
  const told: unknown = JSON.parse(payload)
  if (typeof told !== 'object' || told === null || createdAt !== diedAt) return false
  return 'id' in told && told.id === id && 'queue' in told && told.queue === queue
}

/** Some seconds of looking for an explanation. */
const schedulesMax = 50_000

/** What could become of the model where calls come in between the parts of others, as far as the answers allow. */
function* interleaved(
  model: Model,
  answered: readonly Answered[],
  { oracle, lanes }: { readonly oracle: Oracle; readonly lanes: readonly Lane[] },
): Generator<Model> {
  const named = new Set(answered.flatMap(({ names }) => names))
  const known = new Set(lanesOf(model.all()).map((lane) => JSON.stringify(lane)))
  const misses = ({ queue, priority, front }: Lane) => !known.has(JSON.stringify({ queue, priority, front }))
  let tried = 0
  for (const how of lanes.flatMap((turn) => [
    { turn, misses: () => false, busy: new Set<string>() },
    { turn, misses, busy: named },
  ])) {
    const schedules: (readonly number[])[] = [[]]
    for (let schedule = schedules.pop(); schedule && tried < schedulesMax; schedule = schedules.pop()) {
      tried += 1
      const race = { model: model.clone(), oracle, ...how }
      const parts = answered.map((each) => each.judgeInParts?.(race) ?? atOnce(each, race))
      const ends = schedule.map((i) => ({ i, ...(parts[i] as Generator<void, string | null>).next() }))
      const ended = ends.filter(({ done }) => done)
      if (ended.some(({ value }) => value !== null)) continue
      if (ended.length === answered.length) yield race.model
      for (const i of answered.keys()) if (!ended.some((end) => end.i === i)) schedules.push([...schedule, i])
    }
  }
}

function lanesOf(jobs: readonly { readonly queue: string; readonly priority: number }[]): Lane[] {
  const lanes = jobs.flatMap(({ queue, priority }) => [true, false].map((front) => ({ queue, priority, front })))
  return [...new Map(lanes.map((lane) => [JSON.stringify(lane), lane])).values()]
}

// biome-ignore lint/correctness/useYield: one part, so nothing comes in between
function* atOnce(each: Answered, { model, oracle }: Race): Generator<void, string | null> {
  return each.judge(model, oracle)
}

function permutations<T>(list: readonly T[]): T[][] {
  if (list.length <= 1) return [[...list]]
  return list.flatMap((first, i) => permutations(list.toSpliced(i, 1)).map((rest) => [first, ...rest]))
}

/** Orders that came to the same end are one from here on. */
function distinct(models: readonly Model[]): Model[] {
  if (models.length === 1) return [...models]
  const byEssence = new Map(models.map((model) => [model.essence(), model]))
  return [...byEssence.values()]
}
