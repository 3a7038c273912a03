// What may happen, as data: the moves that fast-check draws, shrinks and prints. A move does not name a job or a fence but
// says how to pick one ("the third of the holds that are gone"), so that it means something in every world it is tried in,
// also after shrinking took away half of what came before. The universe is small on purpose: two dozen names meet often.

import fc from 'fast-check'

export const queueNames = ['a', 'b', 'c'] as const
export const dedupKeys = ['k1', 'k2'] as const
export const idempotencyKeys = ['i1', 'i2'] as const
export const kvKeys = ['x', 'x/1', 'x/é', 'y'] as const
export const payloads = ['{"n":1}', '{"n":2}', '"é\\n"', 'null'] as const
export const givenIds = [1, 2, 3].map((n) => `00000000-0000-4000-8000-00000000000${n}`)

const day = 86_400_000

/** Which of several: an index into those that qualify, or into all of them when none does. */
export interface Pick<Among extends string> {
  readonly among: Among
  readonly nth: number
}

export type HoldPick = Pick<'current' | 'gone' | 'any'>
export type JobPick = Pick<'waiting' | 'running' | 'dead' | 'ended' | 'any' | 'unknown'>

/** Times are relative: they become times when the move is made. */
export interface JobSpec {
  readonly queue: string
  readonly payload: string
  readonly headers: string | null
  readonly priority: number
  readonly maxAttempts: number
  readonly timeoutMs: number | null
  readonly delayMs: number
  readonly runIn: number | null
  readonly startIn: number | null
  readonly dedup: {
    readonly key: string
    readonly scope: 'live' | 'waiting' | number
    readonly replace: boolean
  } | null
  readonly idempotencyKey: string | null
  readonly givenId: string | null
}

export interface PutSpec {
  readonly key: string
  readonly value: string
  readonly ttlMs: number | null
}

export interface EffectsSpec {
  readonly put: readonly PutSpec[]
  readonly delete: readonly string[]
  readonly enqueue: readonly JobSpec[]
  readonly badSql: boolean
}

export type SettleSpec = { readonly hold: HoldPick } & (
  | { readonly as: 'done'; readonly result: string | null; readonly effects: EffectsSpec | null }
  | { readonly as: 'retry'; readonly delayMs: number; readonly ending: 'failed' | 'timeout' | 'crashed' }
  | { readonly as: 'dead'; readonly error: string; readonly effects: EffectsSpec | null }
  | { readonly as: 'release' }
  | { readonly as: 'snooze'; readonly delayMs: number }
  | { readonly as: 'cancelled'; readonly effects: EffectsSpec | null }
)

export type KvSpec =
  | ({ readonly as: 'put' } & PutSpec)
  | { readonly as: 'delete'; readonly key: string }
  | ({ readonly as: 'compareAndSet'; readonly expect: 'current' | 'stale' | 'absent' | 'never' } & PutSpec)

export type Move =
  | { readonly do: 'enqueue'; readonly requests: readonly (readonly JobSpec[])[] }
  | {
      readonly do: 'claim'
      readonly queues: readonly string[] | null
      readonly max: number
      readonly leaseMs: number
      readonly worker: string
    }
  | { readonly do: 'renew'; readonly renewals: readonly { readonly hold: HoldPick; readonly leaseMs: number }[] }
  | { readonly do: 'settle'; readonly settles: readonly SettleSpec[] }
  | { readonly do: 'sweep'; readonly max: number }
  | {
      readonly do: 'cancel'
      readonly cancels: readonly { readonly job: JobPick; readonly effects: EffectsSpec | null }[]
    }
  | { readonly do: 'requeue'; readonly jobs: readonly JobPick[] }
  | {
      readonly do: 'requeueAll'
      readonly queue: string | null
      readonly sinceIn: number | null
      readonly beforeIn: number | null
      readonly error: string | null
      readonly dryRun: boolean
    }
  | { readonly do: 'pause'; readonly queue: string; readonly paused: boolean }
  | { readonly do: 'kv'; readonly writes: readonly KvSpec[] }
  | {
      readonly do: 'define'
      readonly queue: string
      readonly retainDoneMs: number
      readonly retainDeadMs: number
      readonly onDead: string | null
    }
  | { readonly do: 'read'; readonly job: JobPick; readonly key: string }

export type Step =
  | Move
  | { readonly do: 'advance'; readonly ms: number }
  /** Calls that start together; any order of them may be the one that happened. */
  | { readonly do: 'race'; readonly moves: readonly Move[] }

const nth = fc.nat({ max: 11 })
const queue = fc.constantFrom(...queueNames)

/** One time in `of`; otherwise null. */
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
const jobOf = (usual: JobPick['among'], ...others: JobPick['among'][]): fc.Arbitrary<JobPick> =>
  fc.record({ among: mostly(usual, ...others), nth })

const job: fc.Arbitrary<JobSpec> = fc.record({
  queue,
  payload: fc.constantFrom(...payloads),
  headers: rarely(6, fc.constant('{"trace":"t1"}')),
  priority: mostly(5, 0, 9),
  maxAttempts: fc.constantFrom(2, 1, 3),
  timeoutMs: rarely(6, fc.constant(60_000)),
  delayMs: mostly(0, 0, 0, 1_000, 5_000),
  runIn: rarely(8, fc.constantFrom(1_000, 5_000, 0, -1_000)),
  startIn: rarely(6, fc.constantFrom(4_000, 500, 40_000, 0, -1)),
  dedup: rarely(
    3,
    fc.record({
      key: fc.constantFrom(...dedupKeys),
      scope: fc.constantFrom<('live' | 'waiting' | number)[]>('live', 'waiting', 2_000, 40_000),
      replace: fc.boolean(),
    }),
  ),
  idempotencyKey: rarely(6, fc.constantFrom(...idempotencyKeys)),
  givenId: rarely(4, fc.constantFrom(...givenIds)),
})

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

const settle: fc.Arbitrary<SettleSpec> = fc.oneof(
  fc.record({ hold, as: fc.constant('done' as const), result: rarely(2, fc.constant('{"ok":true}')), effects }),
  fc.record({
    hold,
    as: fc.constant('retry' as const),
    delayMs: fc.constantFrom(0, 1_000, 5_000),
    ending: fc.constantFrom('failed' as const, 'timeout' as const, 'crashed' as const),
  }),
  fc.record({ hold, as: fc.constant('dead' as const), error: fc.constantFrom('boom', 'bang'), effects }),
  fc.record({ hold, as: fc.constant('release' as const) }),
  fc.record({ hold, as: fc.constant('snooze' as const), delayMs: fc.constantFrom(0, 1_000, 5_000) }),
  fc.record({ hold, as: fc.constant('cancelled' as const), effects }),
)

const kvWrite: fc.Arbitrary<KvSpec> = fc.oneof(
  put.map((spec) => ({ as: 'put' as const, ...spec })),
  fc.record({ as: fc.constant('delete' as const), key: fc.constantFrom(...kvKeys) }),
  fc
    .tuple(put, fc.constantFrom('current' as const, 'stale' as const, 'absent' as const, 'never' as const))
    .map(([spec, expect]) => ({ as: 'compareAndSet' as const, expect, ...spec })),
)

const enqueue = (max: number): fc.Arbitrary<Move> =>
  fc.record({ do: fc.constant('enqueue' as const), requests: few(few(job, 4), max) })

const claim: fc.Arbitrary<Move> = fc.record({
  do: fc.constant('claim' as const),
  queues: fc.oneof(fc.constant(null), fc.shuffledSubarray([...queueNames], { minLength: 1 })),
  max: fc.constantFrom(2, 1, 5, 20),
  leaseMs: fc.constantFrom(5_000, 1_000, 30_000),
  worker: fc.constantFrom('w1', 'w2'),
})

const renew = (max: number): fc.Arbitrary<Move> =>
  fc.record({
    do: fc.constant('renew' as const),
    renewals: few(fc.record({ hold, leaseMs: fc.constantFrom(5_000, 1, 30_000) }), max),
  })

const settleUpTo = (max: number): fc.Arbitrary<Move> =>
  fc.record({ do: fc.constant('settle' as const), settles: few(settle, max) })

const sweep: fc.Arbitrary<Move> = fc.record({ do: fc.constant('sweep' as const), max: mostly(100, 1, 2) })

const cancel = (max: number): fc.Arbitrary<Move> =>
  fc.record({
    do: fc.constant('cancel' as const),
    cancels: few(fc.record({ job: jobOf('waiting', 'running', 'ended', 'any', 'unknown'), effects }), max),
  })

const requeue = (max: number): fc.Arbitrary<Move> =>
  fc.record({ do: fc.constant('requeue' as const), jobs: few(jobOf('dead', 'ended', 'any', 'unknown'), max) })

const requeueAll: fc.Arbitrary<Move> = fc.record({
  do: fc.constant('requeueAll' as const),
  queue: rarely(2, queue),
  sinceIn: rarely(3, fc.constantFrom(-5_000, 0)),
  beforeIn: rarely(3, fc.constantFrom(0, 1, -2_000)),
  error: rarely(3, fc.constantFrom('boom', 'lease')),
  dryRun: fc.boolean(),
})

const pause: fc.Arbitrary<Move> = fc.record({ do: fc.constant('pause' as const), queue, paused: fc.boolean() })
const kv = (max: number): fc.Arbitrary<Move> => fc.record({ do: fc.constant('kv' as const), writes: few(kvWrite, max) })

const define: fc.Arbitrary<Move> = fc.record({
  do: fc.constant('define' as const),
  queue,
  retainDoneMs: fc.constantFrom(10_000, 0, day, Number.POSITIVE_INFINITY),
  retainDeadMs: fc.constantFrom(20_000, 0, 14 * day, Number.POSITIVE_INFINITY),
  onDead: rarely(2, queue),
})

const read: fc.Arbitrary<Move> = fc.record({
  do: fc.constant('read' as const),
  job: jobOf('any', 'waiting', 'running', 'ended', 'unknown'),
  key: fc.constantFrom(...kvKeys),
})

const advance: fc.Arbitrary<Step> = fc.record({
  do: fc.constant('advance' as const),
  ms: fc.oneof(
    { weight: 6, arbitrary: fc.constantFrom(1_000, 1, 999, 5_000, 2_000) },
    { weight: 2, arbitrary: fc.constantFrom(31_000, 12_000) },
    { weight: 1, arbitrary: fc.constantFrom(day, 15 * day) },
    { weight: 1, arbitrary: fc.constantFrom(-1, -1_500, -20_000) },
  ),
})

const race: fc.Arbitrary<Step> = fc.record({
  do: fc.constant('race' as const),
  moves: few(
    fc.oneof(
      { weight: 3, arbitrary: enqueue(1) },
      { weight: 3, arbitrary: claim },
      { weight: 3, arbitrary: settleUpTo(1) },
      { weight: 1, arbitrary: renew(1) },
      { weight: 1, arbitrary: sweep },
      { weight: 1, arbitrary: cancel(1) },
      { weight: 1, arbitrary: requeue(1) },
      { weight: 1, arbitrary: kv(1) },
    ),
    3,
    2,
  ),
})

const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 10, arbitrary: enqueue(3) },
  { weight: 10, arbitrary: claim },
  { weight: 10, arbitrary: settleUpTo(3) },
  { weight: 8, arbitrary: advance },
  { weight: 6, arbitrary: sweep },
  { weight: 6, arbitrary: race },
  { weight: 3, arbitrary: renew(3) },
  { weight: 3, arbitrary: cancel(2) },
  { weight: 3, arbitrary: requeue(2) },
  { weight: 2, arbitrary: requeueAll },
  { weight: 2, arbitrary: define },
  { weight: 2, arbitrary: pause },
  { weight: 3, arbitrary: kv(3) },
  { weight: 1, arbitrary: read },
)

const stepsMax = 60

export const steps: fc.Arbitrary<Step[]> = fc.noShrink(
  fc.array(step, { minLength: 1, maxLength: stepsMax, size: 'max' }),
)
