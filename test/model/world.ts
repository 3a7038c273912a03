// A store, a virtual clock, and the models that may describe the store.
//
// There is one model until calls race. Then every order of the calls is tried on a copy. The orders that explain answers and
// state are kept, and later answers decide between them. If no order explains them, calls are tried in parts, with other calls in
// between (a claim goes from lane to lane, a sweep from task to task). A step fails when no model is left.

import { isDeepStrictEqual } from 'node:util'
import type { EndNotice } from '../../src/job/end-notice.ts'
import type { JobRecord } from '../../src/job/record.ts'
import type { DeathNotice } from '../../src/job/transition.ts'
import type { FinishedBatch, LeaseRef, Store } from '../../src/store/store.ts'
import type { VirtualClock } from '../../src/testing/index.ts'
import { type Answered, type Call, consumersOf, kvGetCall, messagesCall, type Race, show, toCall } from './commands.ts'
import { type Lane, Model, type Oracle } from './model.ts'
import { differenceOf, observe, readRecords } from './observe.ts'
import { kvKeys, type Move, type Step } from './steps.ts'
import { WatchCheck } from './watch-check.ts'

/** Store and model disagree. */
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
  readonly #watch: WatchCheck
  readonly #holds: LeaseRef[] = []
  readonly #fences = new Set<string>()
  readonly #ids = new Set<string>()
  /** Every kind of answer so far. */
  readonly kinds = new Set<string>()
  readonly #trace: (() => string)[] = []
  readonly #finished: FinishedBatch[] = []
  #models: Model[]
  #lastId = 0

  constructor(store: Store, clock: VirtualClock) {
    this.#store = store
    this.#clock = clock
    this.#watch = new WatchCheck(store)
    store.subscribe({ onFinished: ({ completion: _, ...finished }) => this.#finished.push(finished) })
    this.#models = [new Model(clock.now(), { admitsLate: !store.claimsFollowEnqueues })]
  }

  /** Every call and answer so far. */
  get trace(): string[] {
    return this.#trace.map((line) => line())
  }

  /** Any of the models. They agree on all answers so far. */
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
    await this.#learnMessages(step.do === 'race' ? step.moves : [step])
    if (step.do === 'race') return this.call(...step.moves.map((move) => toCall(move, this.#scene())))
    if (step.do === 'kv') for (const { key } of step.writes) await this.call(kvGetCall(key))
    if (step.do === 'accept') for (const key of kvKeys) await this.call(kvGetCall(key))
    if (step.do === 'advance') await this.call(kvGetCall(step.key))
    if (step.do === 'read') await this.call(kvGetCall(step.key))
    return this.call(toCall(step, this.#scene()))
  }

  /** So that the step can name messages by their numbers. */
  async #learnMessages(moves: readonly Move[]): Promise<void> {
    const ids = new Set(moves.flatMap((move) => consumersOf(move, this.#scene())))
    for (const id of ids) await this.call(messagesCall(id))
  }

  /** Makes the calls, all at once if there are several, and keeps the models that explain the answers. */
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
    if (this.model.hasKeyedItems()) {
      const records = await readRecords(this.#store)
      for (const model of this.#models) model.adoptAdmissions(records)
    }
    await this.#adoptWakes()
    const isKeyed = this.model.state.live.some(({ state, limitKey }) => state === 'ready' && limitKey !== null)
    if (!this.model.admitsLate || !isKeyed) return
    const ready = (await readRecords(this.#store, { states: ['ready'] })).map(({ id }) => id)
    for (const model of this.#models) model.adoptOrder(ready, ticks.get(model) ?? 0)
  }

  /** Of a store where waking is a transaction of its own. */
  async #adoptWakes(): Promise<void> {
    const isParked = this.model.state.live.some(({ state, journal }) => state === 'scheduled' && journal.isParked)
    if (!this.model.admitsLate || !isParked) return
    const records = await readRecords(this.#store, { states: ['ready', 'held'] })
    for (const model of this.#models) model.adoptWakes(records)
  }

  async #explainRace(answered: readonly Answered[], oracle: Oracle): Promise<void> {
    const observed = await this.#observe()
    const lanes = lanesOf(observed.records)
    const orders = permutations(answered)
    const births: string[][] = [] // the first to commit need not be the first inserted
    let firstDifference: string | null = null
    const explains = (model: Model, difference: string | null): boolean => {
      model.adoptWakes(observed.records)
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
            return ends.find((end) => explains(end, null)) ?? [] // one is enough: there may be thousands of equal ones
          })
    const bornOtherwise = explained.flatMap((model) => births.map((ids) => model.bornInOrder(ids)))
    if (explained.length === 0) this.#fail(firstDifference ?? 'no model is left', orders.length)
    this.#models = distinct([...explained, ...bornOtherwise.filter((model) => differenceOf(model, observed) === null)])
  }

  /** Compares the whole state of store and model. */
  async compare(): Promise<void> {
    const observed = await this.#observe()
    this.keep((model) => differenceOf(model, observed) ?? this.#completionsDiffer(model))
    const missed = await this.#watch.differenceOf(observed.records)
    if (missed !== null) this.#fail(missed, 1)
  }

  /** Reads the journals and mailboxes of jobs that have one in a model. */
  #observe() {
    const ids = this.#models.flatMap((model) => model.withJournal().map(({ id }) => id))
    return observe(this.#store, ids)
  }

  #completionsDiffer({ batches }: Model): string | null {
    if (batches.hasSameCompletions(this.#finished)) return null
    return `the reported completions are ${show(this.#finished)} and should be ${show(batches.completions)}`
  }

  /** From now on every transition must be reported by the watch. */
  watch(): Promise<void> {
    return this.#watch.begin([])
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

  /** A fence is never given twice, and is long enough for 128 bits. */
  #checkFences(answered: readonly Answered[]): void {
    for (const { id, fence } of answered.flatMap(({ claimed }) => claimed)) {
      if (this.#fences.has(fence)) this.#fail(`the fence ${fence} was given before`, 1)
      if (fence.length < 22) this.#fail(`the fence ${fence} is too short for 128 random bits`, 1)
      this.#fences.add(fence)
      this.#holds.push({ id, fence })
    }
  }

  /**
   * The choices of the store: fences from its answers, and ids of notices and completions from new jobs that have such a payload.
   */
  async oracle(answered: readonly Answered[] = []): Promise<Oracle> {
    const claimed = answered.flatMap((each) => each.claimed)
    const fences = new Map(claimed.map(({ id, fence }) => [id, fence]))
    const turns = new Map(claimed.map(({ id }, turn) => [id, turn]))
    const { settings, batches } = this.model.state
    const completionQueues = batches.batches.flatMap(({ onComplete }) => onComplete?.job.queue ?? [])
    const targets = new Set([
      ...settings.flatMap(({ onDead, onEnd }) => [onDead ?? [], onEnd ?? []].flat()),
      ...completionQueues,
    ])
    const newJobs: JobRecord[] = []
    for (const queue of targets) {
      const records = await readRecords(this.#store, { queues: [queue] })
      newJobs.push(...records.filter(({ id }) => !this.#ids.has(id)))
    }
    return {
      fence: (id) => fences.get(id) ?? 'not claimed',
      noticeId: (notice) => newJobs.find((record) => isNoticeOf(record, notice))?.id ?? `no notice of ${notice.id}`,
      endNoticeIds: (notice) => newJobs.filter((record) => isEndNoticeOf(record, notice)).map(({ id }) => id),
      completionId: (completion) => {
        const expected = { completed: 1, ...completion }
        const found = newJobs.find(({ payload }) => isDeepStrictEqual(JSON.parse(payload), expected))
        return found?.id ?? `no completion of ${completion.batchId}`
      },
      turnOf: (id) => turns.get(id) ?? Number.POSITIVE_INFINITY,
    }
  }

  #remember(): void {
    for (const model of this.#models) for (const { id } of model.all()) this.#ids.add(id)
  }
}

function isNoticeOf({ payload, createdAt }: JobRecord, { id, queue, diedAt }: DeathNotice): boolean {
  const notice: unknown = JSON.parse(payload)
  if (typeof notice !== 'object' || notice === null || createdAt !== diedAt) return false
  return 'id' in notice && notice.id === id && 'queue' in notice && notice.queue === queue
}

function isEndNoticeOf({ payload, createdAt }: JobRecord, { id, queue, state, endedAt }: EndNotice): boolean {
  const notice = JSON.parse(payload) as Partial<EndNotice> | null
  return (
    createdAt === endedAt &&
    isDeepStrictEqual([notice?.id, notice?.queue, notice?.state, notice?.endedAt], [id, queue, state, endedAt])
  )
}

/** Trying so many takes a few seconds. */
const schedulesMax = 50_000

/** The models that result if calls run between the parts of others, as far as the answers allow. */
function* interleaved(
  model: Model,
  answered: readonly Answered[],
  { oracle, lanes }: { readonly oracle: Oracle; readonly lanes: readonly Lane[] },
): Generator<Model> {
  const named = new Set(answered.flatMap(({ names }) => names))
  const known = new Set(lanesOf(model.all()).map((lane) => JSON.stringify(lane)))
  const misses = ({ queue, priority, front }: Lane) => !known.has(JSON.stringify({ queue, priority, front }))
  let tried = 0
  const hows = lanes.flatMap((turn) => [
    { turn, misses: () => false, busy: new Set<string>(), looksFirst: false },
    { turn, misses, busy: named, looksFirst: false },
    { turn, misses, busy: named, looksFirst: true },
  ])
  for (const how of hows.sort((a, b) => Number(a.looksFirst) - Number(b.looksFirst))) {
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

/** Models that have reached the same state are one from here on. */
function distinct(models: readonly Model[]): Model[] {
  if (models.length === 1) return [...models]
  const byForm = new Map(models.map((model) => [model.canonicalForm(), model]))
  return [...byForm.values()]
}
