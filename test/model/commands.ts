// How a move is made: the request that it becomes in the current world, the call of the store, the answer of the model to the
// same request, and whether the two agree. `plain` leaves out of the comparison what a store may choose (sentences, fences,
// versions). Everything else must be equal.

import { inspect, isDeepStrictEqual } from 'node:util'
import { isHoldfastError, isRefused, type Refused, refuse } from '../../src/errors.ts'
import type { BatchSettings } from '../../src/job/batch.ts'
import type { EndNotice } from '../../src/job/end-notice.ts'
import type { JobFilter } from '../../src/job/filter.ts'
import type { AwaitedKey, JournalWrites, Message } from '../../src/job/journal.ts'
import type { EffectSet, JobError, JobRecord, KvWrite, Limit, NewJob, QueueSettings } from '../../src/job/record.ts'
import { undefinedQueue } from '../../src/job/stored-definition.ts'
import type { DeathNotice, Settlement } from '../../src/job/transition.ts'
import type {
  AlterRequest,
  ClaimedJob,
  DefinedQueue,
  EnqueueAnswer,
  Enqueued,
  EnqueueRequest,
  ItemsQuery,
  JobsPage,
  LeaseRef,
  SettleAnswer,
  SignalTarget,
  SkipReason,
  Store,
  SweepReport,
} from '../../src/store/store.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import type { ModelBatch } from './batch-model.ts'
import {
  type BulkRequest,
  type BulkSums,
  bulkBy,
  type ClaimParts,
  compare,
  isWaiting,
  type Model,
  type ModelJob,
  type Oracle,
  sortSkipped,
} from './model.ts'
import {
  type AlterSpec,
  type BatchPick,
  type EffectsSpec,
  type ExpectSpec,
  type FilterSpec,
  type HoldPick,
  type JobPick,
  type JobSpec,
  type JournalSpec,
  type KvSpec,
  type LimitSpec,
  type MessagePick,
  type Move,
  type SettleSpec,
  signalKeys,
  signalNames,
  type TargetSpec,
  windowMs,
} from './steps.ts'

/** What the picks of a move are resolved against. */
export interface Scene {
  readonly model: Model
  /** Every hold that was ever given out, oldest first. */
  readonly holds: readonly LeaseRef[]
  /** Every job id that was ever seen, oldest first. */
  readonly ids: readonly string[]
  readonly sqlEffects: boolean
  /**
   * Whether a deleted batch is removed at once, with its ended items, also while other items run. Otherwise when the last has
   * ended.
   */
  readonly deletesAtOnce: boolean
  newId(): string
}

/** A call with its answer, to be judged against a model in the state before the call. */
export interface Answered {
  text(): string
  readonly claimed: readonly ClaimedJob[]
  /** The kinds of its answers. */
  readonly kinds: readonly string[]
  /** Ids, keys and claims in its request. */
  readonly names: readonly string[]
  /** Applies the call to the model. Returns how the answers differ, or null. */
  judge(model: Model, oracle: Oracle): string | null
  /** The same in parts, between which racing calls may run. Null: the call has one part. */
  readonly judgeInParts: ((race: Race) => Generator<void, string | null>) | null
}

/** A race, for one of its calls. */
export interface Race extends ClaimParts {
  readonly model: Model
  readonly oracle: Oracle
  /** Ids, keys and claims that the racing calls use meanwhile. */
  readonly busy: ReadonlySet<string>
}

export type Call = (store: Store) => Promise<Answered>

interface Question<Answer, Expected> {
  readonly name: string
  readonly request: unknown
  ask(store: Store): Promise<Answer>
  expect(model: Model, oracle: Oracle, answer: Answer): Expected
  /** For a call in several parts, between which others may run. */
  expectInParts?(race: Race): Generator<void, Expected>
  /** Replaces the test for equality. */
  agrees?(expected: Expected, answer: Answer, model: Model, busy?: ReadonlySet<string>): boolean
}

const { limit: _limit, keyLimit: _keyLimit, key: _key, ...behaviour } = undefinedQueue

export function toCall(move: Move, scene: Scene): Call {
  switch (move.do) {
    case 'define': {
      const { queue: name, retainDoneMs, retainDeadMs, attempts, priority } = move
      const onDead = move.onDead === name ? null : move.onDead
      const onEnd = move.onEnd == null || move.onEnd === name ? {} : { onEnd: move.onEnd }
      const { limit, keyLimit } = { limit: toLimit(move.limit), keyLimit: toLimit(move.keyLimit) }
      const limits = { limit, keyLimit, key: null }
      const settings = [
        { name, ...behaviour, attempts, priority, retainDoneMs, retainDeadMs, onDead, ...onEnd, limits },
      ]
      return call({
        ...{ name: 'define', request: settings, ask: (store) => defined(store, settings) },
        expect: (model, oracle) => model.define(settings, oracle),
      })
    }
    case 'pause':
      return call({
        ...{ name: move.paused ? 'pause' : 'resume', request: move.queue },
        ask: (store) => store.pause(move.queue, move.paused, 'ada', move.forMs === null ? null : { forMs: move.forMs }),
        expect: (model) => model.pause(move.queue, move.paused, 'ada', move.forMs),
      })
    case 'enqueue': {
      const requests = move.requests.map((jobs) => ({ jobs: jobs.map((job) => toNewJob(job, scene)) }))
      return call({
        ...{ name: 'enqueue', request: requests, ask: async (store) => Promise.all(await store.enqueue(requests)) },
        expect: (model, oracle) => model.enqueue(requests, oracle),
        expectInParts: (race) => enqueueInParts(race, requests),
      })
    }
    case 'claim': {
      const { do: _, journals, ...asked } = move
      const request = journals ? { ...asked, journals } : asked
      return call({
        ...{ name: 'claim', request, ask: (store) => store.claim(request) },
        expect: (model, oracle) => model.claim(request, oracle),
        expectInParts: ({ model, oracle, ...how }) => model.claimInParts(request, oracle, how),
      })
    }
    case 'renew': {
      const requests = move.renewals.map(({ hold, leaseMs }) => ({ ...pickHold(hold, scene), leaseMs }))
      return call({
        ...{ name: 'renew', request: requests, ask: (store) => store.renew(requests) },
        expect: (model) => model.renew(requests),
      })
    }
    case 'progress': {
      const requests = move.reports.map(({ hold, ...report }) => ({ ...pickHold(hold, scene), ...report }))
      return call({
        ...{ name: 'progress', request: requests, ask: (store) => store.progress(requests) },
        expect: (model) => model.progress(requests),
      })
    }
    case 'checkpoint': {
      const requests = move.checkpoints.map(({ hold, effects, journal, startsOver, leaseMs }) => {
        const lease = pickHold(hold, scene)
        const staged = effects && toEffects(effects, scene, lease.id)
        return { ...lease, effects: staged, journal: toJournal(journal, lease, scene), startsOver, leaseMs }
      })
      return call({
        name: 'checkpoint',
        request: requests,
        ask: async (store) => Promise.all(await store.checkpoint(requests)),
        expect: (model, oracle) => model.checkpoint(requests, oracle),
      })
    }
    case 'signal': {
      const requests = move.signals.map(({ to, ...signal }) => ({ ...signal, to: toTarget(to, scene) }))
      return call({
        ...{ name: 'signal', request: requests, ask: (store) => store.signal(requests) },
        expect: (model, oracle) => model.signal(requests, oracle),
        agrees: (expected, answers, model) =>
          answers.length === expected.length &&
          expected.every((each, i) => {
            const real = answers[i]
            if (!real || isRefused(each) || isRefused(real)) return isDeepStrictEqual(plain(each), plain(real))
            if (!Number.isSafeInteger(real.no) || model.mail.isKnown(real.no)) return false
            model.mail.learn(each.count, real.no)
            return true
          }),
      })
    }
    case 'clearSignals': {
      const to = toTarget(move.to, scene)
      const { name } = move
      return call({
        name: 'clearSignals',
        request: { to, name },
        ask: async (store) => ({ cleared: await store.clearSignals(to, name) }),
        expect: (model) => model.clearSignals(to, name),
        agrees: ([least, most], { cleared }) => cleared >= least && cleared <= most,
      })
    }
    case 'settle': {
      const requests = move.settles.map((spec) => {
        const lease = pickHold(spec.hold, scene)
        return { ...lease, settlement: toSettlement(spec, scene, lease), retryDelayMs: 3_000 }
      })
      return call<readonly SettleAnswer[], readonly SettleAnswer[]>({
        name: 'settle',
        request: requests,
        ask: async (store) => Promise.all(await store.settle(requests)),
        expect: (model, oracle, answers) => model.settle(requests, oracle, answers),
        agrees: statesAgree,
      })
    }
    case 'sweep':
      return sweepCall(needsLarge(scene.model, move.max) ? 1_000 : move.max)
    case 'cancel': {
      const requests = move.cancels.map(({ job, effects }) => ({
        id: pickJob(job, scene),
        effects: effects && toEffects(effects, scene),
      }))
      return call({
        ...{ name: 'cancel', request: requests, ask: (store) => store.cancel(requests) },
        expect: (model, oracle) => model.cancel(requests, oracle),
      })
    }
    case 'requeue': {
      const ids = move.jobs.map((job) => pickJob(job, scene))
      return call({
        ...{ name: 'requeue', request: ids, ask: (store) => store.requeue(ids, 'ada') },
        expect: (model, oracle) => model.requeue(ids, 'ada', oracle),
      })
    }
    case 'alter': {
      const requests = move.alterations.map((spec) => toAlteration(spec, scene))
      return call({
        ...{ name: 'alter', request: requests, ask: (store) => store.alter(requests) },
        expect: (model, oracle) => model.alter(requests, oracle),
        agrees: statesAgree,
      })
    }
    case 'changeAll': {
      const { now } = scene.model.state
      const change =
        move.change.as === 'reschedule' ? { as: 'reschedule' as const, runAt: now + move.change.inMs } : move.change
      const request = { filter: toFilter(move.filter, scene), change, dryRun: move.dryRun }
      return call({
        ...{ name: `${change.as}All`, request, ask: (store) => inOnePass(store, request) },
        expect: (model, oracle) => model.changeAll(request, oracle),
        agrees: sumsAgree,
      })
    }
    case 'kv': {
      const writes = move.writes.map((spec) => toKvWrite(spec, scene.model))
      return call({
        ...{ name: 'kvWrite', request: writes, ask: async (store) => Promise.all(await store.kvWrite(writes)) },
        expect: (model) => writes.map((write) => model.kv.write(write)),
        agrees: (expected, answers, model) =>
          answers.length === writes.length &&
          writes.every(({ key }, i) => {
            const [answer, real] = [expected[i], answers[i]]
            return answer !== undefined && real !== undefined && model.kv.acceptsAnswer(key, answer, real)
          }),
      })
    }
    case 'advance': {
      const { key, value } = move
      const jobs = move.jobs.map((job) => toNewJob(job, scene))
      const request = { key, value, version: expectedVersion(move, scene.model.kv), jobs }
      return call({
        ...{ name: 'advance', request, ask: (store) => store.advance(request) },
        expect: (model, oracle) => model.advance(request, oracle),
        agrees: (expected, answer, model) => {
          if (typeof expected !== 'object' || !('write' in expected))
            return isDeepStrictEqual(plain(expected), plain(answer))
          return (
            typeof answer === 'object' &&
            'version' in answer &&
            model.kv.accepts(key, expected.write, answer.version) &&
            isDeepStrictEqual(plain(expected.enqueued), plain(answer.enqueued))
          )
        },
      })
    }
    case 'openBatch':
    case 'addItems':
    case 'control':
    case 'items':
      return batchCall(move, scene)
    case 'accept': {
      const { result, annotations } = move
      const { kv } = scene.model
      const key = (kv.get(move.key) ?? kv.scan('')[0])?.key ?? move.key
      const version = expectedVersion({ ...move, key }, kv) ?? neverVersion
      const effects = move.effects && toEffects(move.effects, scene)
      const request = { id: pickJob(move.job, scene), key, version, result, annotations, effects }
      return call({
        ...{ name: 'accept', request, ask: (store) => store.accept(request) },
        expect: (model, oracle) => model.accept(request, oracle),
      })
    }
    case 'read': {
      const id = pickJob(move.job, scene)
      return call({
        ...{ name: 'job', request: id, ask: (store) => store.job(id) },
        expect: (model) => model.job(id),
      })
    }
  }
}

function batchCall(move: BatchMove, scene: Scene): Call {
  switch (move.do) {
    case 'openBatch': {
      const settings = toSettings(move, scene)
      return call({
        ...{ name: 'openBatch', request: settings, ask: (store) => store.openBatch(settings) },
        expect: (model) => model.openBatch(settings),
      })
    }
    case 'addItems': {
      const batch = pickBatch(move.batch, scene)
      const submitted = scene.model.batches.find(batch)?.submitted ?? 0
      const at = move.at && { next: submitted, again: Math.max(0, submitted - 1), hole: submitted + 1 }[move.at]
      const request = { batch, at, jobs: move.jobs.map((job) => toNewJob(job, scene)) }
      return call({
        ...{ name: 'addItems', request, ask: (store) => store.addItems(request) },
        expect: (model, oracle) => model.addItems(request, oracle),
      })
    }
    case 'control': {
      const { by } = move
      const batch = pickBatch(move.batch, scene)
      const runs = scene.model.itemsOf(batch).some(({ hold }) => hold !== null)
      const as = move.as === 'delete' && runs && !scene.deletesAtOnce ? 'cancel' : move.as
      const request = { batch, as, by, reason: as === 'cancel' ? 'enough' : null }
      return call({
        ...{ name: as, request, ask: (store) => store.controlBatch(request) },
        expect: (model, oracle) => model.controlBatch(request, oracle),
        // What the answer shows of a deleted batch is not promised.
        agrees: (expected, answer) =>
          as === 'delete' && !isRefused(expected)
            ? !isRefused(answer) && answer.id === expected.id
            : isDeepStrictEqual(plain(expected), plain(answer)),
      })
    }
    case 'items': {
      const { state, outcome, warning } = move
      const query = { batch: pickBatch(move.batch, scene), state, outcome, warning }
      return call({
        ...{ name: 'items', request: query, ask: (store) => readItems(store, query) },
        expect: (model) => model.items(query),
        agrees: itemsAgree,
      })
    }
  }
}

type BatchMove = Extract<Move, { do: 'openBatch' | 'addItems' | 'control' | 'items' }>

/** Reads all items, page by page. */
export async function readItems(store: Store, query: Omit<ItemsQuery, 'limit' | 'after'>): Promise<JobRecord[]> {
  const items: JobRecord[] = []
  let after: string | null = null
  do {
    const page: JobsPage = await store.items({ ...query, limit: 3, after })
    items.push(...page.jobs)
    after = page.next
  } while (after !== null && items.length < 10_000)
  return items
}

/** Ended items come first, in the order of submission, then the others in any order. */
export function itemsAgree(expected: readonly JobRecord[], real: readonly JobRecord[]): boolean {
  const isEnded = ({ finishedAt }: JobRecord) => finishedAt !== null
  const firstLive = real.findIndex((job) => !isEnded(job))
  if (firstLive >= 0 && real.slice(firstLive).some(isEnded)) return false
  const sorted = (items: readonly JobRecord[]) => [
    ...items.filter(isEnded),
    ...items.filter((job) => !isEnded(job)).toSorted(compareRecords),
  ]
  return isDeepStrictEqual(plain(sorted(expected)), plain(sorted(real)))
}

export function kvGetCall(key: string): Call {
  return call({
    ...{ name: 'kvGet', request: key, ask: (store) => store.kvGet(key) },
    expect: (model) => model.kv.get(key),
    agrees: (entry, real, model) => model.kv.acceptsEntry(key, entry, real),
  })
}

/** Reads messages, so that the model learns their numbers: of this job, and of all keys. */
export function messagesCall(id: string | null): Call {
  const query = { id, keys: allKeys }
  return call({
    ...{ name: 'messages', request: id, ask: (store) => store.messages(query) },
    expect: (model) => model,
    agrees: (model, real) => acceptsMessages(model, id, real),
  })
}

export function acceptsMessages(model: Model, id: string | null, real: readonly Message[]): boolean {
  const job = id === null ? undefined : model.find(id)
  return model.mail.accepts(job?.born ?? null, { id, keys: allKeys }, real)
}

export const allKeys: readonly AwaitedKey[] = signalKeys.flatMap((key) => signalNames.map((name) => ({ key, name })))

/** The jobs whose messages the move may use up. */
export function consumersOf(move: Move, scene: Scene): string[] {
  const specs = move.do === 'settle' ? move.settles : move.do === 'checkpoint' ? move.checkpoints : []
  const consumers = specs.filter(({ journal }) => (journal?.consume.length ?? 0) > 0)
  return [...new Set(consumers.map(({ hold }) => pickHold(hold, scene).id))]
}

function toTarget(to: TargetSpec, scene: Scene): SignalTarget {
  return 'job' in to ? { id: pickJob(to.job, scene) } : to
}

function toJournal(spec: JournalSpec, { id }: LeaseRef, scene: Scene): JournalWrites {
  const { records, consume, clear, partial, awaits } = spec
  const job = scene.model.find(id)
  const next = 1 + (job?.journal.records.length ?? 0)
  return {
    records: records.map(({ step, part }, i) => ({ step, part, no: next + i, body: `{"value":"${step}"}` })),
    ...(consume.length > 0 && { consume: consume.map((pick) => pickMessage(pick, job, scene)) }),
    ...(clear.length > 0 && { clear }),
    ...(partial !== null && { partial }),
    ...(awaits !== null && { awaits }),
  }
}

function pickMessage({ among, nth }: MessagePick, job: ModelJob | undefined, { model }: Scene): number {
  const { mail } = model
  const born = job?.born ?? -1
  const fit = { own: mail.ofJob(born), key: mail.ofKeys(), other: mail.ofOthers(born), never: [] }[among]
  return nthOf(fit, nth)?.no ?? neverVersion
}

function toAlteration({ job, ...spec }: AlterSpec, scene: Scene): AlterRequest {
  const id = pickJob(job, scene)
  if (spec.as === 'reschedule') return { as: spec.as, id, runAt: scene.model.state.now + spec.inMs, by: 'ada' }
  if (spec.as === 'reprioritise') return { ...spec, id, by: 'ada' }
  if (spec.as === 'change') return { as: spec.as, id, by: 'ada', ...spec.parts }
  return { ...spec, id }
}

/** Job by job, if none is refused: a dedup key may be released in between. */
function* enqueueInParts(
  { model, oracle }: Race,
  requests: readonly EnqueueRequest[],
): Generator<void, EnqueueAnswer[]> {
  if (model.clone().enqueue(requests, oracle).some(isRefused)) return model.enqueue(requests, oracle)
  const answers: Enqueued[][] = []
  for (const { jobs } of requests) {
    const answer: Enqueued[] = []
    for (const job of jobs) {
      const [enqueued] = model.enqueue([{ jobs: [job] }], oracle)
      if (isRefused(enqueued)) return [enqueued]
      answer.push(...(enqueued ?? []))
      yield
    }
    answers.push(answer)
  }
  return answers
}

function sweepCall(max: number): Call {
  const toReport = (model: Model, swept: ReturnType<Model['sweep']>) => ({ ...swept, now: model.state.now })
  return call({
    ...{ name: 'sweep', request: { max }, ask: (store) => store.sweep({ max }) },
    expect: (model, oracle) => toReport(model, model.sweep(max, oracle)),
    *expectInParts({ model, oracle, busy }) {
      const leaves = ({ id, fence, dedupKey }: ModelJob) =>
        [id, claimOf(fence ?? ''), dedupKey ?? ''].some((name) => busy.has(name))
      return toReport(model, yield* model.sweepInParts(max, oracle, leaves))
    },
    agrees: (expected, { more, expired, ...answer }, model, busy) => {
      if (expired.length !== answer.rescued) return false
      const isLeft = [model.expiredLeases(), model.overdue(), model.due()].some((jobs) => jobs.length > 0)
      const counts = [answer.rescued, answer.overdue, answer.promoted, answer.admitted, answer.pruned]
      const isFull = counts.some((count) => count >= max)
      // Where batches and limit keys leave a choice, the number of admitted jobs depends on which ones are admitted.
      const report = model.hasKeyedItems() ? { ...answer, admitted: expected.admitted } : answer
      // A rescued job may be admitted before its batch is given up, or cancelled while it is held. The completion may take a
      // dedup key before or after that was pruned. The resulting states are compared later.
      const { admitted, pruned } = model.admitsLate && model.batches.completions.length > 0 ? expected : report
      const nextDueAt = isWindowEnd(model, report, expected) ? expected.nextDueAt : report.nextDueAt
      // A store that wakes jobs later counts those that it wakes in this sweep. Which they are shows in the states.
      const hasWoken = model.admitsLate && report.promoted > expected.promoted
      const promoted = hasWoken ? expected.promoted : report.promoted
      const adjusted = {
        ...report,
        promoted,
        admitted,
        pruned,
        nextDueAt: model.hasParked() ? expected.nextDueAt : nextDueAt,
      }
      if (busy === undefined) return isDeepStrictEqual(adjusted, expected) && (more ? isFull : !isLeft)
      // In a race, the next due time depends on how far the other calls are.
      return isDeepStrictEqual({ ...report, promoted, nextDueAt: expected.nextDueAt }, expected) && (!more || isFull)
    },
  })
}

/** With late admission, a job may be admitted after the answer. So `held` and `ready` count as equal. */
function statesAgree(expected: readonly unknown[], answers: readonly unknown[], model: Model): boolean {
  const isSame = (a: unknown, b: unknown) =>
    isDeepStrictEqual(plain(a), plain(b)) ||
    (model.admitsLate && isDeepStrictEqual(plain(asReady(a)), plain(asReady(b))))
  return answers.length === expected.length && expected.every((answer, i) => isSame(answer, answers[i]))
}

function asReady(answer: unknown): unknown {
  const isHeld = typeof answer === 'object' && answer !== null && 'state' in answer && answer.state === 'held'
  return isHeld ? { ...answer, state: 'ready' } : answer
}

/** A store may announce the end of a rate window as the next due time, whether or not a job waits for it. */
function isWindowEnd(model: Model, real: Pick<SweepReport, 'nextDueAt'>, expected: Pick<SweepReport, 'nextDueAt'>) {
  const isEarly = real.nextDueAt !== null && real.nextDueAt <= (expected.nextDueAt ?? Number.POSITIVE_INFINITY)
  return isEarly && model.state.starts.some(({ until }) => until === real.nextDueAt)
}

/** The fences of one claim begin with the same token. */
function claimOf(fence: string): string {
  return fence.split('.')[0] as string
}

/** Every string in a request, and the claim token of every fence. */
function namesIn(request: unknown): string[] {
  if (typeof request === 'string') return request === '' ? [] : [request, claimOf(request)]
  return typeof request === 'object' && request !== null ? Object.values(request).flatMap(namesIn) : []
}

function call<Answer, Expected>(question: Question<Answer, Expected>): Call {
  const { name, request, ask, expect, expectInParts, agrees } = question
  return async (store) => {
    const answer = await ask(store)
    const differenceTo = (expected: Expected, model: Model, busy?: ReadonlySet<string>) => {
      const agreed = agrees ? agrees(expected, answer, model, busy) : isDeepStrictEqual(plain(expected), plain(answer))
      return agreed
        ? null
        : `${name} answered\n${show(plain(answer), true)}\nand should have answered\n${show(plain(expected), true)}`
    }
    return {
      text: () => `${name}(${show(request)}) → ${show(answer)}`,
      claimed: name === 'claim' ? (answer as ClaimedJob[]) : [],
      kinds: kindsOf(answer).map((kind) => `${name}: ${kind}`),
      names: namesIn(request),
      judge: (model, oracle) => differenceTo(expect(model, oracle, answer), model),
      judgeInParts: expectInParts
        ? function* (race) {
            return differenceTo(yield* expectInParts(race), race.model, race.busy)
          }
        : null,
    }
  }
}

/** The kinds of an answer, to check that the runs meet them all. */
function kindsOf(answer: unknown): string[] {
  if (typeof answer === 'string') return [answer]
  if (Array.isArray(answer)) return answer.flatMap(kindsOf)
  if (typeof answer !== 'object' || answer === null) return []
  if (isRefused(answer)) return ['heldBy' in answer.facts ? `${answer.refused} heldBy` : answer.refused]
  if (isDeepStrictEqual(Object.keys(answer), ['id'])) return ['requeued']
  return Object.entries(answer).flatMap(([key, part]) => {
    if (key === 'state' || key === 'status') return [String(part)]
    if (key === 'no') return ['sent']
    if (key === 'failed') return ['failed', ...kindsOf(part)]
    if (key === 'skipped') return part.map(([reason]: readonly string[]) => `skipped ${reason}`)
    if (key === 'enqueued') return kindsOf(part).map((kind) => `follow-up ${kind}`)
    if (typeof part === 'number') return sweepParts.includes(key) && part > 0 ? [key] : []
    return typeof part === 'boolean' ? [part ? key : `not ${key}`] : []
  })
}

const sweepParts = ['rescued', 'promoted', 'overdue', 'admitted', 'pruned', 'changed', 'requested', 'cleared']

/** In small sweeps, the order in which limit keys are reviewed, delays corrected and rows pruned is the store's choice. */
function needsLarge(model: Model, max: number): boolean {
  const { reviewed, starts } = model.state
  return model.garbage() > max || reviewed.length > 0 || starts.length > 0 || model.isClockBehind()
}

function toLimit(spec: LimitSpec | null): Limit | null {
  return spec && { concurrency: spec.concurrency, rate: spec.starts === null ? null : { count: spec.starts, windowMs } }
}

function toSettings(move: Extract<Move, { do: 'openBatch' }>, scene: Scene): BatchSettings {
  const { key, concurrency, failShare, retainMs, onComplete } = move
  const target = () => {
    const { id, idGiven, ...job } = toNewJob(onComplete as JobSpec, scene)
    return { job: { ...job, payload: '{"completed":1}' }, into: null }
  }
  return {
    id: scene.newId(),
    name: 'letters',
    key,
    concurrency,
    failShare,
    retainMs,
    onComplete: onComplete && target(),
  }
}

// Picks

function pickHold({ among, nth }: HoldPick, { holds, model }: Scene): LeaseRef {
  const isCurrent = ({ id, fence }: LeaseRef) => model.state.live.some((job) => job.id === id && job.fence === fence)
  const all = [...holds].reverse()
  const fit = among === 'any' ? all : all.filter((hold) => isCurrent(hold) === (among === 'current'))
  return nthOf(fit, nth) ?? nthOf(all, nth) ?? { id: unknownId, fence: 'never-given-out.1' }
}

function pickJob({ among, nth }: JobPick, { ids, model }: Scene): string {
  if (among === 'unknown') return unknownId
  const fits = (job: ModelJob) => {
    if (among === 'waiting') return isWaiting(job)
    if (among === 'ended') return job.finishedAt !== null
    return among === 'any' || job.state === among
  }
  const fit = [...model.state.live, ...model.state.ended].filter(fits).map(({ id }) => id)
  return nthOf(fit, nth) ?? nthOf(ids, nth) ?? unknownId
}

function pickBatch({ among, nth }: BatchPick, { model }: Scene): string {
  const { batches } = model.state.batches
  const fits = ({ isClosed, finishedAt }: ModelBatch) => {
    if (among === 'open') return !isClosed
    if (among === 'closed') return isClosed && finishedAt === null
    return among === 'any' || (among === 'finished' && finishedAt !== null)
  }
  const fit = among === 'unknown' ? undefined : (nthOf(batches.filter(fits), nth) ?? nthOf(batches, nth))
  return fit?.id ?? unknownId
}

const unknownId = '00000000-0000-4000-8000-ffffffffffff'

function nthOf<T>(list: readonly T[], nth: number): T | undefined {
  return list.length === 0 ? undefined : list[nth % list.length]
}

// From specs to requests

function toNewJob(spec: JobSpec, { model, newId }: Scene): NewJob {
  const { givenId, runIn, startIn, dedup, idempotencyKey, delayMs, ...same } = spec
  const { now } = model.state
  return {
    ...same,
    id: givenId ?? newId(),
    idGiven: givenId !== null,
    delayMs: runIn === null ? delayMs : 0,
    runAt: runIn === null ? null : now + runIn,
    startBefore: startIn === null ? null : now + startIn,
    dedup: dedup && { ...dedup, scope: typeof dedup.scope === 'number' ? { windowMs: dedup.scope } : dedup.scope },
    idempotency: idempotencyKey === null ? null : { key: idempotencyKey, hash: `hash of ${spec.payload}` },
    limitKey: spec.limitKey,
  }
}

/** `owner`: the job whose effects they are. */
function toEffects(spec: EffectsSpec, scene: Scene, owner = unknownId): EffectSet {
  const sql = spec.badSql && scene.sqlEffects ? [{ text: 'insert into no_such_table values (1)', values: [] }] : []
  const children = (spec.children ?? []).map(({ step, isForeign, job }) => ({
    ...toNewJob(job, scene),
    parent: { id: isForeign ? unknownId : owner, step },
  }))
  const enqueue = [...spec.enqueue.map((job) => toNewJob(job, scene)), ...children]
  return { put: spec.put, delete: spec.delete, sql, enqueue }
}

function toSettlement(spec: SettleSpec, scene: Scene, lease: LeaseRef): Settlement {
  const settlement = toVerb(spec, scene, lease)
  return spec.journal ? { ...settlement, journal: toJournal(spec.journal, lease, scene) } : settlement
}

function toVerb(spec: SettleSpec, scene: Scene, { id }: LeaseRef): Settlement {
  const effects = 'effects' in spec && spec.effects ? toEffects(spec.effects, scene, id) : null
  const reason = 'reason' in spec && spec.reason != null && { error: { name: 'FlowFailed', message: spec.reason } }
  switch (spec.as) {
    case 'done':
      return { as: 'done', result: spec.result, effects, annotations: spec.annotations, ...reason }
    case 'retry':
      return {
        as: 'retry',
        error: { message: `it ${spec.ending}`, name: 'Error' },
        delayMs: spec.delayMs,
        ending: spec.ending,
        costs: spec.costs,
        ifDead: spec.ifDead ? toEffects(spec.ifDead, scene, id) : null,
      }
    case 'dead':
      return { as: 'dead', error: { message: spec.error }, effects, costs: spec.costs }
    case 'cancelled':
      return { as: 'cancelled', effects, ...reason }
    case 'release':
      return { as: 'release' }
    case 'snooze':
      return { as: 'snooze', delayMs: spec.delayMs, effects, ...(spec.parks && { parks: spec.parks }) }
  }
}

function toFilter(spec: FilterSpec, scene: Scene): JobFilter {
  const { queue, jobs, states, limitKey, labels, sinceIn, beforeIn, error } = spec
  const { now } = scene.model.state
  const ended = {
    ...(sinceIn !== null && { since: now + sinceIn }),
    ...(beforeIn !== null && { before: now + beforeIn }),
  }
  return {
    states,
    ...(queue !== null && { queues: [queue] }),
    ...(jobs !== null && { ids: [...new Set(jobs.map((job) => pickJob(job, scene)))] }),
    ...(limitKey !== null && { limitKey }),
    ...(labels !== null && { labels }),
    ...(Object.keys(ended).length > 0 && { ended }),
    ...(error !== null && { error }),
  }
}

/** A skipped job that the store has counted and not named. */
const unnamed = '?'

function sumsAgree(expected: BulkSums, answer: BulkSums): boolean {
  const named = ({ skipped }: BulkSums) => skipped.filter(([, id]) => id !== unnamed).map((each) => each.join(' '))
  const known = new Set(named(expected))
  const reasons = ({ skipped }: BulkSums) => skipped.map(([reason]) => reason).sort()
  return (
    answer.changed === expected.changed &&
    answer.requested === expected.requested &&
    isDeepStrictEqual(reasons(answer), reasons(expected)) &&
    named(answer).every((each) => known.has(each))
  )
}

/** All steps, and what they add up to. In a dry run the first job that is found with a dedup key takes it. */
async function inOnePass(store: Store, request: BulkRequest): Promise<BulkSums> {
  const sums = { changed: 0, requested: 0 }
  const skipped: (readonly [SkipReason, string])[] = []
  const keys = new Set<string>()
  let mark: { readonly after: string | null; readonly until: string | null } = { after: null, until: null }
  do {
    const step = await store.changeAll({ ...request, ...mark, by: bulkBy })
    sums.changed += step.changed
    sums.requested += step.requested
    for (const { reason, ids, count } of step.skipped) {
      for (let n = 0; n < count; n++) skipped.push([reason, ids[n] ?? unnamed])
    }
    for (const { id, key } of step.keyed) {
      if (keys.has(key)) skipped.push(['dedupKeyHeld', id])
      else sums.changed += 1
      keys.add(key)
    }
    mark = { after: step.next, until: step.until }
  } while (mark.after !== null)
  return { ...sums, skipped: sortSkipped(skipped) }
}

function toKvWrite(spec: KvSpec, { kv }: Model): KvWrite {
  if (spec.as === 'put' || spec.as === 'delete') return spec
  const version = expectedVersion(spec, kv)
  if (spec.as === 'compareAndDelete') return { as: spec.as, key: spec.key, version: version ?? neverVersion }
  const { expect, ...put } = spec
  return { ...put, version }
}

function expectedVersion(
  { key, expect }: { readonly key: string; readonly expect: ExpectSpec },
  kv: Model['kv'],
): number | null {
  if (expect === 'absent') return null
  const current = kv.versionOf(kv.get(key))
  if (expect === 'current') return Number.isNaN(current) ? neverVersion : current
  const stale = kv.seenVersions(key).filter((version) => version !== current)
  return expect === 'stale' ? (stale.at(-1) ?? neverVersion) : neverVersion
}

const neverVersion = 2 ** 50

/** The answer, or the refusal of a cycle of death notices. */
async function defined(store: Store, settings: readonly QueueSettings[]): Promise<DefinedQueue[] | Refused> {
  try {
    return await store.define(settings)
  } catch (error) {
    if (!isHoldfastError(error, 'INVALID_OPTION')) throw error
    return refuse(error.code, error.message, error.facts)
  }
}

// Comparison

/** The part of an answer that the contract promises. */
export function plain(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(plain)
  if (typeof value !== 'object' || value === null) return value
  if (isRefused(value)) return { refused: value.refused, heldBy: value.facts['heldBy'] }
  const entries = Object.entries(value).map(([key, part]) => [key, plainPart(key, part)])
  return Object.fromEntries(entries)
}

function plainPart(key: string, part: unknown): unknown {
  if (key === 'payload' && typeof part === 'string') return plainPayload(part)
  if (key === 'error' && part) return plainError(part as JobError)
  if (key === 'labels' && typeof part === 'string') return JSON.parse(part)
  if (key === 'errorGroup') return null // the words of some errors are the store's; `observe.ts` recounts the groups
  return plain(part)
}

/** A notice contains an error, and may contain another notice. */
function plainPayload(text: string): unknown {
  const value: unknown = JSON.parse(text)
  return isNotice(value) ? plainNotice(value) : text
}

type AnyNotice = DeathNotice | EndNotice

function plainNotice(notice: AnyNotice): unknown {
  const { error, payload } = notice
  return { ...notice, error: error && plainError(error), payload: isNotice(payload) ? plainNotice(payload) : payload }
}

function isNotice(value: unknown): value is AnyNotice {
  return typeof value === 'object' && value !== null && ('diedAt' in value || 'endedAt' in value)
}

const wordedByStore = ['Overdue', 'EffectFailed']

function plainError({ noticeDropped, ...known }: JobError): unknown {
  const error = { ...known, ...(noticeDropped !== undefined && { noticeDropped: true }) }
  return wordedByStore.includes(error.name ?? '') ? { name: error.name } : error
}

/** By id. Jobs with the same id are ordered by everything that can be read of them. */
export function compareRecords(a: JobRecord, b: JobRecord): number {
  return compare(a.id, b.id) || compare(textOf(a), textOf(b))
}

function textOf(job: JobRecord): string {
  return JSON.stringify(Object.entries(plain(job) as object).sort(([a], [b]) => compare(a, b)))
}

/** A short text: without null and empty parts, with numbered ids, and with times from the start of the run. */
export function show(value: unknown, wide = false): string {
  const options = { depth: 9, breakLength: wide ? 120 : Number.POSITIVE_INFINITY, compact: wide ? 3 : true }
  return inspect(brief(value), { ...options, maxStringLength: 400 })
    .replaceAll(/'0{8}-0{4}-4000-9000-0*(\d+)'/g, 'job$1')
    .replaceAll(/'0{8}-0{4}-4000-8000-0*(\d+)'/g, 'id$1')
    .replaceAll(/\b1[89]\d{11}\b/g, (time) => `t+${Number(time) - startAt}`)
}

const startAt = new VirtualClock().now()

function brief(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(brief)
  if (typeof value !== 'object' || value === null) return value
  const isEmpty = (part: unknown) => part === null || (Array.isArray(part) && part.length === 0)
  return Object.fromEntries(
    Object.entries(value)
      .filter(([key, part]) => !isEmpty(part) && !(key === 'message' && 'refused' in value))
      .map(([key, part]) => [key, brief(part)]),
  )
}
