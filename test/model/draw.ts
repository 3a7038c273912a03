// How moves are drawn. Each run first draws its own kind (swarm testing): how many queues, ids and keys there are, how often they
// are used, which moves are frequent and which never come. Such uneven runs reach states that an even mixture does not: two of
// the first bugs found here needed one id, one key and many deaths, and did not show in 600 even runs.

import fc from 'fast-check'
import type { Labels } from '../../src/job/labels.ts'
import type { Annotations, Costs, JobState } from '../../src/job/record.ts'
import type { BatchAction } from '../../src/store/store.ts'
import {
  type AlterSpec,
  anyFilter,
  type BatchPick,
  type BulkSpec,
  batchKeys,
  type CheckpointSpec,
  type ChildSpec,
  dedupKeys,
  type EffectsSpec,
  type FilterSpec,
  givenIds,
  type HoldPick,
  idempotencyKeys,
  type JobPick,
  type JobSpec,
  type JournalSpec,
  type KvSpec,
  kvKeys,
  type LimitSpec,
  limitKeys,
  type MessagePick,
  type Move,
  outcomes,
  type PutSpec,
  payloads,
  queueNames,
  type SettleSpec,
  type Step,
  signalKeys,
  signalNames,
  stepNames,
  type TargetSpec,
  warnings,
} from './steps.ts'

const day = 86_400_000
const stepsMax = 60

interface Swarm {
  readonly queues: number
  readonly givenIds: number
  readonly dedupKeys: number
  readonly givenIdOneIn: number
  readonly dedupOneIn: number
  /** Numbers are windows. */
  readonly scopes: readonly ('live' | 'waiting' | number)[]
  /** Jobs have limit keys, and queues limits. Then nothing races, because racing calls admit jobs together. */
  readonly isLimited: boolean
  /**
   * Limits have rates too. Then there is one key and no clock is set back: the order in which keys are admitted is not promised.
   */
  readonly isRated: boolean
  /** There are batches. Then nothing races, and cancels, requeues and other changes by hand come one by one. */
  readonly hasBatches: boolean
  /** Jobs are flow runs: they have journals, park, get signals and start children; queues have notices of ends. */
  readonly hasFlows: boolean
  /** The additional weight of a settlement as dead. */
  readonly deaths: number
  /** Multiplies the usual weight of each kind of move. 0: never. */
  readonly factors: Readonly<Record<Exclude<Step['do'], 'enqueue' | 'claim' | 'settle'>, number>>
}

const factor = fc.constantFrom(1, 3, 1, 0)

const swarm: fc.Arbitrary<Swarm> = fc.record({
  queues: fc.constantFrom(3, 1, 2),
  givenIds: fc.constantFrom(3, 1),
  dedupKeys: fc.constantFrom(2, 1),
  givenIdOneIn: fc.constantFrom(4, 2, 12),
  dedupOneIn: fc.constantFrom(3, 1, 12),
  scopes: fc.constantFrom<Swarm['scopes'][]>(['live', 'waiting', 2_000, 40_000], ['live']),
  isLimited: fc.constantFrom(false, true, false),
  isRated: fc.boolean(),
  hasBatches: fc.constantFrom(true, false),
  hasFlows: fc.boolean(),
  deaths: fc.constantFrom(1, 8),
  factors: fc.record({
    ...{
      pass: factor,
      sweep: factor,
      race: factor,
      renew: factor,
      progress: factor,
      cancel: factor,
      requeue: factor,
      alter: factor,
      changeAll: factor,
    },
    ...{ checkpoint: fc.constantFrom(1, 2), signal: fc.constantFrom(1, 2, 3), clearSignals: factor },
    ...{ define: factor, pause: factor, kv: factor, advance: factor, read: factor, accept: factor },
    ...{ openBatch: fc.constant(1), addItems: fc.constant(1), control: fc.constantFrom(1, 2), items: fc.constant(1) },
  }),
})

/** The steps of one run. `shrink.ts` shrinks them. */
export const runs: fc.Arbitrary<Step[]> = fc.noShrink(swarm.chain(stepsOf))

/** The same without moves of flows. */
export const runsWithoutFlows: fc.Arbitrary<Step[]> = fc.noShrink(
  swarm.map((drawn) => ({ ...drawn, hasFlows: false })).chain(stepsOf),
)

function stepsOf(drawn: Swarm): fc.Arbitrary<Step[]> {
  const any = fc.array(stepOf(drawn), { minLength: 1, maxLength: stepsMax, size: 'max' })
  const { openBatch, addItems, enqueue, claim } = movesOf(drawn)
  // Otherwise most runs would end before a batch has finished.
  if (drawn.hasBatches) return fc.tuple(openBatch, addItems, any).map(([open, add, rest]) => [open, add, ...rest])
  return drawn.hasFlows ? fc.tuple(enqueue(3), claim, any).map(([first, then, rest]) => [first, then, ...rest]) : any
}

function stepOf(swarm: Swarm): fc.Arbitrary<Step> {
  const { factors, hasBatches, hasFlows, isLimited, isRated } = swarm
  const moves = movesOf(swarm)
  const ofBatches = hasBatches ? 1 : 0
  const ofFlows = hasFlows ? 1 : 0
  const byHand = hasBatches ? 1 : 2
  return fc.oneof(
    { weight: hasBatches ? 3 : 10, arbitrary: moves.enqueue(3) },
    { weight: (hasBatches ? 40 : 10) + 15 * ofFlows, arbitrary: moves.claim },
    { weight: (hasBatches ? 60 : 10) + 10 * ofFlows, arbitrary: moves.settle(hasBatches ? 6 : 3) },
    { weight: 20 * factors.checkpoint * ofFlows, arbitrary: moves.checkpoint(2) },
    { weight: 8 * factors.signal * ofFlows, arbitrary: moves.signal(2) },
    { weight: 1 * factors.clearSignals * ofFlows, arbitrary: moves.clearSignals },
    { weight: 8 * factors.pass, arbitrary: pass({ isBackward: !(isLimited && isRated) }) },
    { weight: 6 * factors.sweep, arbitrary: moves.sweep },
    { weight: isLimited || hasBatches ? 0 : 6 * factors.race, arbitrary: moves.race },
    { weight: 3 * factors.renew, arbitrary: moves.renew(3) },
    { weight: 2 * factors.progress, arbitrary: moves.progress(3) },
    { weight: 3 * factors.cancel, arbitrary: moves.cancel(byHand) },
    { weight: 3 * factors.requeue, arbitrary: moves.requeue(byHand) },
    { weight: 4 * factors.alter, arbitrary: moves.alter(byHand) },
    { weight: 6 * factors.changeAll, arbitrary: moves.changeAll(byHand) },
    { weight: isLimited ? 4 : 2 * factors.define, arbitrary: moves.define },
    { weight: 2 * factors.pause, arbitrary: moves.pause },
    { weight: 3 * factors.kv, arbitrary: moves.kv(3) },
    { weight: 3 * factors.advance, arbitrary: moves.advance(3) },
    { weight: 1 * factors.read, arbitrary: moves.read },
    { weight: 2 * factors.accept, arbitrary: moves.accept },
    { weight: 5 * ofBatches, arbitrary: moves.openBatch },
    { weight: 12 * ofBatches, arbitrary: moves.addItems },
    { weight: 30 * factors.control * ofBatches, arbitrary: moves.control },
    { weight: 4 * ofBatches, arbitrary: moves.items },
  )
}

const nth = fc.nat({ max: 11 })

/** A value once in `of` times, otherwise null. */
function rarely<T>(of: number, value: fc.Arbitrary<T>): fc.Arbitrary<T | null> {
  return fc.oneof({ weight: of - 1, arbitrary: fc.constant(null) }, { weight: 1, arbitrary: value })
}

function mostly<T>(usual: T, ...others: T[]): fc.Arbitrary<T> {
  return fc.oneof({ weight: 3, arbitrary: fc.constant(usual) }, { weight: 2, arbitrary: fc.constantFrom(...others) })
}

function few<T>(value: fc.Arbitrary<T>, max: number, min = 1): fc.Arbitrary<T[]> {
  return fc.array(value, { minLength: min, maxLength: max, size: 'max' })
}

const hold: fc.Arbitrary<HoldPick> = fc.record({ among: mostly('current', 'gone', 'any'), nth })
const held: fc.Arbitrary<HoldPick> = fc.record({ among: fc.constant('current' as const), nth })
const jobOf = (usual: JobPick['among'], ...others: JobPick['among'][]): fc.Arbitrary<JobPick> =>
  fc.record({ among: mostly(usual, ...others), nth })

function pass({ isBackward }: { readonly isBackward: boolean }): fc.Arbitrary<Step> {
  return fc.record({
    do: fc.constant('pass' as const),
    ms: fc.oneof(
      { weight: 6, arbitrary: fc.constantFrom(1_000, 1, 999, 5_000, 2_000) },
      { weight: 2, arbitrary: fc.constantFrom(31_000, 12_000) },
      { weight: 1, arbitrary: fc.constantFrom(day, 15 * day) },
      { weight: isBackward ? 1 : 0, arbitrary: fc.constantFrom(-1, -1_500, -20_000) },
    ),
  })
}

function movesOf(swarm: Swarm) {
  const queues = queueNames.slice(0, swarm.queues)
  const queue = fc.constantFrom(...queues)
  const dedupKey = fc.constantFrom(...dedupKeys.slice(0, swarm.dedupKeys))
  const givenId = fc.constantFrom(...givenIds.slice(0, swarm.givenIds))

  const job: fc.Arbitrary<JobSpec> = fc.record({
    queue,
    payload: fc.constantFrom(...payloads),
    headers: rarely(6, fc.constant('{"trace":"t1"}')),
    priority: mostly<number | null>(null, 5, 0, 9),
    maxAttempts: fc.constantFrom(2, 1, 3, null),
    timeoutMs: rarely(6, fc.constant(60_000)),
    delayMs: mostly(0, 0, 0, 1_000, 5_000),
    runIn: rarely(8, fc.constantFrom(1_000, 5_000, 0, -1_000)),
    startIn: rarely(6, fc.constantFrom(4_000, 500, 40_000, 0, -1)),
    dedup: rarely(
      swarm.dedupOneIn,
      fc.record({
        key: dedupKey,
        scope: fc.constantFrom(...swarm.scopes),
        replace: fc.boolean(),
      }),
    ),
    idempotencyKey: rarely(6, fc.constantFrom(...idempotencyKeys)),
    givenId: rarely(swarm.givenIdOneIn, givenId),
    limitKey: swarm.isLimited
      ? mostly<string | null>(limitKeys[0], null, swarm.isRated ? limitKeys[0] : limitKeys[1])
      : fc.constant(null),
    labels: rarely(6, fc.constantFrom('{"customer":"c1"}', '{"customer":"c2","region":"eu"}')),
  })

  const brisk = { delayMs: 0, runIn: null, startIn: null, maxAttempts: 1 }

  const cost = rarely(3, fc.constantFrom<Costs>({ tokens: 3 }, { tokens: 0.5, usd: 2 }))
  const annotation: fc.Arbitrary<Annotations | null> = rarely(
    2,
    fc.oneof(
      fc.record({
        outcome: fc.constantFrom(...outcomes),
        warning: rarely(2, fc.constantFrom(...warnings)),
        costs: cost,
      }),
      fc.constant({ outcome: null, warning: warnings[0], costs: { usd: 1 } }),
    ),
  )

  const put: fc.Arbitrary<PutSpec> = fc.record({
    key: fc.constantFrom(...kvKeys),
    value: fc.constantFrom('1', '{"v":2}', '"three"'),
    ttlMs: rarely(3, fc.constantFrom(3_000, 60_000)),
  })

  const effects: fc.Arbitrary<EffectsSpec | null> = rarely(
    2,
    fc.record({
      put: few(put, 2, 0),
      delete: few(fc.constantFrom(...kvKeys), 2, 0),
      enqueue: few(job, 2, 0),
      badSql: mostly(false, false, false, true),
    }),
  )

  const child: fc.Arbitrary<ChildSpec> = fc.record({
    step: fc.constantFrom(...stepNames),
    isForeign: mostly(false, false, false, false, true),
    job: fc
      .tuple(job, mostly(true, false))
      .map(([spec, isPlain]) => (isPlain ? { ...spec, ...brisk, dedup: null } : spec)),
  })

  const journal: fc.Arbitrary<JournalSpec> = fc.record({
    records: few(fc.record({ step: fc.constantFrom(...stepNames), part: fc.constantFrom(0, -1, 1) }), 2, 0),
    consume: rarely(
      2,
      few(fc.record<MessagePick>({ among: mostly('own', 'own', 'key', 'other', 'never'), nth }), 2),
    ).map((picks) => picks ?? []),
    clear: rarely(8, few(fc.constantFrom(...signalNames, stepNames[0]), 2)).map((names) => names ?? []),
    partial: rarely(4, fc.constantFrom('{"n":1}', '2')),
    awaits: rarely(
      3,
      few(fc.record({ key: fc.constantFrom(...signalKeys), name: fc.constantFrom(...signalNames) }), 2, 0),
    ),
  })
  const ofFlow: fc.Arbitrary<JournalSpec | null> = swarm.hasFlows ? rarely(2, journal) : fc.constant(null)

  /** Of a job that may start children. */
  const ownEffects: fc.Arbitrary<EffectsSpec | null> = swarm.hasFlows
    ? fc.tuple(effects, rarely(2, few(child, 2))).map(([plain, children]) => {
        if (children === null) return plain
        return { ...(plain ?? { put: [], delete: [], enqueue: [], badSql: false }), children }
      })
    : effects

  const oneCheckpoint: fc.Arbitrary<CheckpointSpec> = fc.record({
    ...{ hold: mostly(true, false).chain((isHeld) => (isHeld ? held : hold)), effects: ownEffects, journal },
    startsOver: mostly(false, true),
    leaseMs: fc.constantFrom(5_000, 1_500, 30_000),
  })
  const checkpoint = (max: number): fc.Arbitrary<Move> =>
    fc.record({ do: fc.constant('checkpoint' as const), checkpoints: few(oneCheckpoint, max) })

  const target: fc.Arbitrary<TargetSpec> = fc.oneof(
    { weight: 3, arbitrary: fc.record({ job: jobOf('scheduled', 'running', 'waiting', 'any', 'ended', 'unknown') }) },
    { weight: 2, arbitrary: fc.record({ key: fc.constantFrom(...signalKeys) }) },
  )
  const oneSignal = fc.record({
    to: target,
    name: fc.constantFrom(...signalNames),
    value: fc.constantFrom('1', '{"ok":true}', '"é"'),
    ttlMs: fc.constantFrom(5_000, 60_000, day),
  })
  const signal = (max: number): fc.Arbitrary<Move> =>
    fc.record({ do: fc.constant('signal' as const), signals: few(oneSignal, max) })
  const clearSignals: fc.Arbitrary<Move> = fc.record({
    ...{ do: fc.constant('clearSignals' as const), to: target },
    name: rarely(2, fc.constantFrom(...signalNames)),
  })

  const result = rarely(2, fc.constant('{"ok":true}'))
  const reason = swarm.hasFlows ? rarely(6, fc.constant('not today')) : fc.constant(null)
  const oneSettle: fc.Arbitrary<SettleSpec> = fc.oneof(
    fc.record({
      ...{ hold, journal: ofFlow, as: fc.constant('done' as const), result, effects: ownEffects },
      ...{ annotations: annotation, reason },
    }),
    fc.record({
      ...{ hold, journal: ofFlow },
      as: fc.constant('retry' as const),
      delayMs: fc.constantFrom(0, 1_000, 5_000),
      ending: fc.constantFrom('failed' as const, 'timeout' as const, 'crashed' as const),
      costs: cost,
      ifDead: effects,
    }),
    {
      weight: swarm.deaths,
      arbitrary: fc.record({
        ...{ hold, journal: ofFlow },
        as: fc.constant('dead' as const),
        error: fc.constantFrom('boom', 'bang'),
        effects,
        costs: cost,
      }),
    },
    fc.record({ hold, journal: ofFlow, as: fc.constant('release' as const) }),
    fc.record({
      ...{ hold, journal: ofFlow, as: fc.constant('snooze' as const) },
      ...{ delayMs: fc.constantFrom(0, 1_000, 5_000), effects: ownEffects },
    }),
    fc.record({ hold, journal: ofFlow, as: fc.constant('cancelled' as const), effects: ownEffects, reason }),
    {
      weight: swarm.hasFlows ? 4 : 0,
      arbitrary: fc.record({
        ...{ hold, journal: ofFlow, as: fc.constant('snooze' as const), parks: fc.constant(true) },
        ...{ delayMs: fc.constantFrom(20 * day, 5_000, 60_000), effects: ownEffects },
      }),
    },
  )

  const expected = fc.constantFrom('current' as const, 'stale' as const, 'absent' as const, 'never' as const)
  const kvWrite: fc.Arbitrary<KvSpec> = fc.oneof(
    put.map((spec) => ({ as: 'put' as const, ...spec })),
    fc.record({ as: fc.constant('delete' as const), key: fc.constantFrom(...kvKeys) }),
    fc.tuple(put, expected).map(([spec, expect]) => ({ as: 'compareAndSet' as const, expect, ...spec })),
    fc.record({ as: fc.constant('compareAndDelete' as const), expect: expected, key: fc.constantFrom(...kvKeys) }),
  )

  const enqueue = (max: number): fc.Arbitrary<Move> =>
    fc.record({
      do: fc.constant('enqueue' as const),
      requests: few(fc.oneof({ weight: 3, arbitrary: few(job, 1) }, { weight: 2, arbitrary: few(job, 4) }), max),
    })

  const claim: fc.Arbitrary<Move> = fc.record({
    do: fc.constant('claim' as const),
    queues: fc.oneof(fc.constant(null), fc.shuffledSubarray(queues, { minLength: 1 })),
    max: fc.constantFrom(2, 1, 5, 20),
    leaseMs: fc.constantFrom(5_000, 1_000, 30_000),
    worker: fc.constantFrom('w1', 'w2'),
    journals: swarm.hasFlows ? mostly(true, false) : fc.constant(false),
  })

  const renew = (max: number): fc.Arbitrary<Move> =>
    fc.record({
      do: fc.constant('renew' as const),
      renewals: few(fc.record({ hold, leaseMs: fc.constantFrom(5_000, 1, 30_000) }), max),
    })

  const report = fc.record({
    hold,
    progress: fc.constantFrom(0, 0.1, 1 / 3, 1),
    message: fc.constantFrom(null, 'rendering', 'é'),
  })
  const progress = (max: number): fc.Arbitrary<Move> =>
    fc.record({ do: fc.constant('progress' as const), reports: few(report, max) })

  /**
   * If one call ends a batch with its first job, it is not promised whether the batch is finished before the effects of the
   * others.
   */
  const inOrder = ([first, ...rest]: SettleSpec[]): SettleSpec[] => {
    const alone = swarm.hasBatches ? rest.map((spec) => ('effects' in spec ? { ...spec, effects: null } : spec)) : rest
    return first ? [first, ...alone] : []
  }
  const settle = (max: number): fc.Arbitrary<Move> =>
    fc.record({ do: fc.constant('settle' as const), settles: few(oneSettle, max).map(inOrder) })

  const sweep: fc.Arbitrary<Move> = fc.record({ do: fc.constant('sweep' as const), max: mostly(100, 1, 2) })

  const cancel = (max: number): fc.Arbitrary<Move> =>
    fc.record({
      do: fc.constant('cancel' as const),
      cancels: few(fc.record({ job: jobOf('waiting', 'running', 'ended', 'any', 'unknown'), effects }), max),
    })

  const requeue = (max: number): fc.Arbitrary<Move> =>
    fc.record({ do: fc.constant('requeue' as const), jobs: few(jobOf('dead', 'ended', 'any', 'unknown'), max) })

  const pause: fc.Arbitrary<Move> = fc.record({
    ...{ do: fc.constant('pause' as const), queue, paused: fc.boolean() },
    forMs: rarely(2, fc.constantFrom(1, 2_000, 20_000)),
  })
  const kv = (max: number): fc.Arbitrary<Move> =>
    fc.record({ do: fc.constant('kv' as const), writes: few(kvWrite, max) })

  const advance = (max: number): fc.Arbitrary<Move> =>
    fc.record({
      do: fc.constant('advance' as const),
      key: fc.constantFrom(...kvKeys),
      value: fc.constantFrom('1', '{"v":2}'),
      expect: fc.oneof({ weight: 2, arbitrary: fc.constant('current' as const) }, { weight: 1, arbitrary: expected }),
      jobs: few(job, max, 0),
    })

  const accept: fc.Arbitrary<Move> = fc.record({
    do: fc.constant('accept' as const),
    job: jobOf('scheduled', 'waiting', 'any', 'unknown'),
    key: fc.constantFrom(...kvKeys),
    expect: fc.oneof({ weight: 4, arbitrary: fc.constant('current' as const) }, { weight: 1, arbitrary: expected }),
    result,
    annotations: annotation,
    effects,
  })

  const limitOf = (concurrency: fc.Arbitrary<number | null>): fc.Arbitrary<LimitSpec | null> =>
    fc
      .record({ concurrency, starts: swarm.isRated ? fc.constantFrom(2, 1, 3, null) : fc.constant(null) })
      .map((spec) => (spec.concurrency === null && spec.starts === null ? null : spec))

  const define: fc.Arbitrary<Move> = fc.record({
    do: fc.constant('define' as const),
    queue,
    retainDoneMs: fc.constantFrom(10_000, 0, day, Number.POSITIVE_INFINITY),
    retainDeadMs: fc.constantFrom(20_000, 0, 14 * day, Number.POSITIVE_INFINITY),
    onDead: rarely(2, fc.constantFrom(...queueNames)),
    onEnd: swarm.hasFlows ? rarely(2, fc.constantFrom(...queueNames)) : fc.constant(null),
    attempts: fc.constantFrom(2, 1, 3),
    priority: mostly(5, 0, 9),
    limit: swarm.isLimited ? limitOf(rarely(2, fc.constantFrom(1, 2, 3))) : fc.constant(null),
    keyLimit: swarm.isLimited ? limitOf(mostly<number | null>(1, null, 2, 3)) : fc.constant(null),
  })

  const batchOf = (usual: BatchPick['among'], ...others: BatchPick['among'][]): fc.Arbitrary<BatchPick> =>
    fc.record({ among: mostly(usual, ...others), nth })

  const openBatch: fc.Arbitrary<Move> = fc.record({
    do: fc.constant('openBatch' as const),
    key: rarely(3, fc.constantFrom(...batchKeys)),
    concurrency: fc.constantFrom(null, 1, 2, 3),
    failShare: rarely(3, fc.constantFrom(0.4, 0, 0.6)),
    retainMs: fc.constantFrom(14 * day, 20_000, 0, Number.POSITIVE_INFINITY),
    onComplete: rarely(
      2,
      job.map((spec) => ({ ...spec, startIn: null, runIn: null, delayMs: 0 })),
    ),
  })

  /** Most items may start at once, so that batches finish. They keep dedup keys that replace, which would else be rare. */
  const item: fc.Arbitrary<JobSpec> = fc
    .tuple(job, mostly(true, true, false))
    .map(([spec, isBrisk]) => (isBrisk ? { ...spec, ...brisk, dedup: spec.dedup?.replace ? spec.dedup : null } : spec))

  const addItems: fc.Arbitrary<Move> = fc.record({
    do: fc.constant('addItems' as const),
    batch: batchOf('open', 'open', 'any', 'unknown'),
    at: mostly<'next' | 'again' | 'hole' | null>(null, 'next', 'again', 'hole'),
    jobs: few(item, 2, 0),
  })

  const controlAs = (as: BatchAction, batch: fc.Arbitrary<BatchPick>): fc.Arbitrary<Move> =>
    fc.record({ do: fc.constant('control' as const), batch, as: fc.constant(as), by: fc.constantFrom(null, 'ada') })
  const anyBatch = batchOf('any', 'closed', 'finished', 'unknown')
  const control: fc.Arbitrary<Move> = fc.oneof(
    { weight: 6, arbitrary: controlAs('close', batchOf('open', 'any', 'unknown')) },
    { weight: 6, arbitrary: controlAs('retryFailed', batchOf('finished', 'any')) },
    { weight: 2, arbitrary: controlAs('pause', batchOf('closed', 'open', 'any')) },
    { weight: 1, arbitrary: controlAs('resume', anyBatch) },
    { weight: 1, arbitrary: controlAs('cancel', anyBatch) },
    { weight: 1, arbitrary: controlAs('delete', anyBatch) },
  )

  const items: fc.Arbitrary<Move> = fc.record({
    do: fc.constant('items' as const),
    batch: batchOf('any', 'unknown'),
    state: rarely(3, fc.constantFrom('ready' as const, 'dead' as const, 'done' as const, 'held' as const)),
    outcome: rarely(3, fc.constantFrom(...outcomes)),
    warning: rarely(4, fc.constantFrom(...warnings)),
  })

  const meant = { job: jobOf('waiting', 'running', 'ended', 'any', 'unknown') }
  const alteration: fc.Arbitrary<AlterSpec> = fc.oneof(
    fc.record({ ...meant, as: fc.constant('wake' as const), data: fc.constantFrom(null, '{"woken":1}', '"é"') }),
    fc.record({ ...meant, as: fc.constant('reschedule' as const), inMs: fc.constantFrom(0, 1, 5_000, -1_000) }),
    fc.record({ ...meant, as: fc.constant('reprioritise' as const), priority: fc.constantFrom(0, 5, 9) }),
    fc.record({
      ...{ ...meant, as: fc.constant('change' as const) },
      parts: fc.record(
        {
          payload: fc.constantFrom('{"changed":1}', '"é"'),
          attempts: fc.constantFrom(1, 2, 7),
          headers: fc.constantFrom('{}', '{"changed":"1"}'),
          labels: fc.constantFrom(null, '{"customer":"c2"}'),
          limitKey: swarm.isLimited
            ? fc.constantFrom(null, limitKeys[0], swarm.isRated ? limitKeys[0] : limitKeys[1])
            : fc.constant(null),
        },
        { requiredKeys: [] },
      ),
    }),
    fc.record({ ...meant, as: fc.constant('delete' as const) }),
  )
  const alter = (max: number): fc.Arbitrary<Move> =>
    fc.record({ do: fc.constant('alter' as const), alterations: few(alteration, max) })

  const waiting = ['scheduled', 'held', 'ready'] as const
  const ended = ['dead', 'cancelled', 'done'] as const
  const filterOf = (states: readonly JobState[]): fc.Arbitrary<FilterSpec> =>
    fc.record({
      states: fc.subarray([...states], { minLength: 1 }),
      queue: rarely(3, queue),
      jobs: fc.constant(null),
      limitKey: rarely(8, fc.constantFrom(...limitKeys)),
      labels: rarely(8, fc.constantFrom<Labels>({ customer: 'c1' }, { customer: 'c2' })),
      ...{ sinceIn: fc.constant(null), beforeIn: fc.constant(null), error: fc.constant(null) },
    })
  const endedFilter: fc.Arbitrary<FilterSpec> = fc
    .tuple(
      filterOf(ended),
      fc.record({
        states: fc.oneof(fc.constant<JobState[]>(['dead']), fc.subarray([...ended], { minLength: 1 })),
        sinceIn: rarely(5, fc.constantFrom(-5_000, 0)),
        beforeIn: rarely(5, fc.constantFrom(0, 1, -2_000)),
        error: rarely(5, fc.constantFrom('boom', 'lease')),
      }),
    )
    .map(([filter, more]) => ({ ...filter, ...more }))
  /** Where changes come one by one, or admit jobs, they are of few jobs in a known order. */
  const liveFilter = (states: readonly JobState[], max: number): fc.Arbitrary<FilterSpec> => {
    const byId = few(jobOf('waiting', 'running', 'any', 'unknown'), max).map((jobs) => ({ ...anyFilter, states, jobs }))
    return swarm.isLimited || swarm.hasBatches ? byId : fc.oneof(byId, filterOf(states))
  }
  const changeAll = (max: number): fc.Arbitrary<Move> => {
    const of = (change: fc.Arbitrary<BulkSpec>, filter: fc.Arbitrary<FilterSpec>): fc.Arbitrary<Move> =>
      fc.record({ do: fc.constant('changeAll' as const), change, filter, dryRun: mostly(false, true) })
    const plainly = (as: 'cancel' | 'requeue' | 'delete') => fc.constant({ as })
    const inMs = fc.constantFrom(0, 1, 5_000, -1_000)
    const priority = fc.constantFrom(0, 5, 9)
    return fc.oneof(
      { weight: 6, arbitrary: of(plainly('requeue'), endedFilter) },
      { weight: 2, arbitrary: of(plainly('delete'), filterOf([...waiting, 'running', ...ended])) },
      { weight: 3, arbitrary: of(plainly('cancel'), liveFilter([...waiting, 'running'], max)) },
      {
        weight: 2,
        arbitrary: of(fc.record({ as: fc.constant('reschedule' as const), inMs }), liveFilter(waiting, max)),
      },
      {
        weight: 2,
        arbitrary: of(fc.record({ as: fc.constant('reprioritise' as const), priority }), liveFilter(waiting, max)),
      },
    )
  }

  const read: fc.Arbitrary<Move> = fc.record({
    do: fc.constant('read' as const),
    job: jobOf('any', 'waiting', 'running', 'ended', 'unknown'),
    key: fc.constantFrom(...kvKeys),
  })

  const race: fc.Arbitrary<Step> = fc.record({
    do: fc.constant('race' as const),
    moves: few(
      fc.oneof(
        { weight: 3, arbitrary: enqueue(1) },
        { weight: 3, arbitrary: claim },
        { weight: 3, arbitrary: settle(1) },
        { weight: 1, arbitrary: renew(1) },
        { weight: 1, arbitrary: progress(1) },
        { weight: 1, arbitrary: sweep },
        { weight: swarm.hasFlows ? 3 : 0, arbitrary: checkpoint(1) },
        { weight: swarm.hasFlows ? 3 : 0, arbitrary: signal(1) },
        { weight: 1, arbitrary: cancel(1) },
        { weight: 1, arbitrary: requeue(1) },
        { weight: 2, arbitrary: alter(1) },
        { weight: 1, arbitrary: kv(1) },
        { weight: 2, arbitrary: advance(2) },
      ),
      3,
      2,
    ),
  })

  return {
    enqueue,
    claim,
    settle,
    checkpoint,
    signal,
    clearSignals,
    renew,
    progress,
    sweep,
    cancel,
    requeue,
    alter,
    changeAll,
    define,
    pause,
    kv,
    advance,
    read,
    race,
    accept,
    openBatch,
    addItems,
    control,
    items,
  }
}
