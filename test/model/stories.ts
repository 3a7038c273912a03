// Fixed runs. Each is a list of steps that a store once got wrong, or that random runs would rarely produce. They run against
// store and model like any other run.

import { bounds } from '../../src/job/bounds.ts'
import type { BatchAction } from '../../src/store/store.ts'
import {
  anyFilter,
  type EffectsSpec,
  givenIds,
  type JobSpec,
  type JournalSpec,
  type Move,
  type SettleSpec,
  type Step,
} from './steps.ts'

const givenId = givenIds[0] ?? ''
const otherId = givenIds[1] ?? ''

const claim: Extract<Move, { do: 'claim' }> = { do: 'claim', queues: null, max: 1, leaseMs: 5_000, worker: 'w1' }
const release: Move = settle({ hold: { among: 'current', nth: 0 }, as: 'release' })
const die: readonly Move[] = [
  claim,
  settle({ hold: { among: 'current', nth: 0 }, as: 'dead', error: 'boom', effects: null, costs: null }),
]
const oneStart = { concurrency: null, starts: 1 }
const current = { among: 'current', nth: 0 } as const
const noWrites: JournalSpec = { records: [], consume: [], clear: [], partial: null, awaits: null }
const noEffects: EffectsSpec = { put: [], delete: [], enqueue: [], badSql: false }
const park: Move = settle({ hold: current, as: 'snooze', delayMs: 60_000, effects: null, parks: true })
const cancel: Move = { do: 'cancel', cancels: [{ job: { among: 'waiting', nth: 0 }, effects: null }] }

export const stories: Readonly<Record<string, readonly Step[]>> = {
  'if the holder of a dedup window has ended and its id is used in another queue, a replace leaves that job alone': [
    enqueue({ givenId, dedup: { key: 'k1', scope: 40_000, replace: false } }),
    cancel,
    enqueue({ givenId, queue: 'b' }),
    enqueue({ dedup: { key: 'k1', scope: 'live', replace: true }, payload: '{"n":2}' }),
  ],

  'an id names its newest job: requeueAll skips and reports a dead job whose id was used again': [
    enqueue({ givenId }),
    ...die,
    enqueue({ givenId }),
    cancel,
    requeueAll(false),
    { do: 'read', job: { among: 'waiting', nth: 0 }, key: 'x' },
    enqueue({ givenId }),
    cancel,
  ],

  'of two dead jobs with one id requeueAll requeues the newer, and a dry run reports the same': [
    enqueue({ givenId }),
    ...die,
    enqueue({ givenId }),
    ...die,
    requeueAll(true),
    requeueAll(false),
  ],

  'the newest dead job is the one that died last, whatever its retention': [
    define(Number.POSITIVE_INFINITY),
    enqueue({ dedup: { key: 'k1', scope: 'live', replace: false } }),
    ...die,
    { do: 'pass', ms: 1_000 },
    define(20_000),
    enqueue({ dedup: { key: 'k1', scope: 'live', replace: false } }),
    ...die,
    requeueAll(true),
    requeueAll(false),
  ],

  'a job is cancelled even if the effects of the cancel request cannot be applied': [
    enqueue({ givenId }),
    claim,
    enqueue({ givenId: otherId }),
    {
      do: 'cancel',
      cancels: [
        {
          job: { among: 'running', nth: 0 },
          effects: {
            ...{ put: [{ key: 'x', value: '1', ttlMs: null }], delete: [], badSql: false },
            enqueue: [{ ...plainJob(), givenId: otherId }],
          },
        },
      ],
    },
    release,
  ],

  'two jobs that reach a limit key in one call are admitted in their order, also after a less urgent job of the key': [
    enqueue({ limitKey: 't1' }),
    claim,
    enqueue({ limitKey: 't1', priority: 9 }),
    claim,
    {
      do: 'settle',
      settles: [
        {
          ...{ hold: { among: 'current', nth: 0 }, as: 'cancelled' },
          effects: { put: [], delete: [], badSql: false, enqueue: [{ ...plainJob(), limitKey: 't1' }] },
        },
        { hold: { among: 'current', nth: 1 }, as: 'snooze', delayMs: 0, effects: null },
      ],
    },
  ],

  'after a limit is raised, a new scheduled job or the delete or cancel of a held job admits no job before the sweep': [
    { ...define(10_000), keyLimit: { concurrency: 1, starts: null } },
    ...Array.from({ length: 4 }, () => enqueue({ limitKey: 't1' })),
    { ...define(10_000), keyLimit: { concurrency: 3, starts: null } },
    enqueue({ limitKey: 't1', delayMs: 5_000, startIn: 40_000 }),
    {
      ...{ do: 'advance', key: 'x/1', value: '1', expect: 'absent' },
      jobs: [{ ...plainJob(), limitKey: 't1', delayMs: 5_000 }],
    },
    { do: 'alter', alterations: [{ job: { among: 'waiting', nth: 3 }, as: 'delete' }] },
    { do: 'cancel', cancels: [{ job: { among: 'waiting', nth: 2 }, effects: null }] },
  ],

  'jobs past their latest start take no place of other jobs in a claim of several lanes': [
    enqueue({ priority: 0 }),
    ...[1, 2, 3, 4].map((priority) => enqueue({ queue: 'b', priority, startIn: -1 })),
    enqueue({ priority: 5 }),
    { ...claim, max: 2 },
  ],

  'a retry of failed items begins another round, with a completion of its own': [
    {
      ...{ do: 'openBatch', key: 'b1', concurrency: 1, failShare: null, retainMs: 20_000 },
      onComplete: { ...plainJob(), queue: 'c' },
    },
    { do: 'addItems', batch: { among: 'open', nth: 0 }, at: null, jobs: [plainJob(), plainJob()] },
    control('close'),
    ...die,
    control('pause'),
    control('resume'),
    ...die,
    control('retryFailed'),
    ...die,
    claim,
    { do: 'pass', ms: 6_000 },
    { do: 'sweep', max: 100 },
    ...die,
    control('retryFailed'),
    control('cancel'),
    control('delete'),
  ],

  'a sweep reports that there is more if more windows end than it may handle': [
    ...['a', 'b', 'c'].map((queue) => ({ ...define(20_000), queue, limit: oneStart, keyLimit: oneStart })),
    ...['a', 'b', 'c'].map((queue) => enqueue({ queue, limitKey: 't1' })),
  ],

  'a slot that one request of a call frees is used before the next request of the call': [
    { ...define(10_000), keyLimit: { concurrency: 1, starts: null } },
    enqueue({ delayMs: 5_000 }),
    enqueue({ limitKey: 't1' }),
    enqueue({ limitKey: 't1' }),
    {
      do: 'alter',
      alterations: [
        { job: { among: 'waiting', nth: 1 }, as: 'delete' },
        { job: { among: 'scheduled', nth: 0 }, as: 'reschedule', inMs: 0 },
      ],
    },
  ],

  'a child and its parked parent are deleted in one step: the end of the child wakes the parent, which is then deleted':
    [
      enqueue({ queue: 'b' }),
      claim,
      startChild({ queue: 'a' }),
      park,
      {
        ...{ do: 'changeAll', change: { as: 'delete' }, dryRun: false },
        filter: { ...anyFilter, states: ['scheduled', 'ready'] },
      },
      { do: 'sweep', max: 100 },
    ],

  'a child and its replaced parent miss their latest start in one sweep': [
    enqueue({ dedup: { key: 'k1', scope: 'live', replace: true } }),
    claim,
    startChild({ queue: 'b', startIn: 3_000 }),
    park,
    enqueue({ dedup: { key: 'k1', scope: 'live', replace: true }, delayMs: 1_000, startIn: 4_000 }),
    { do: 'pass', ms: 5_000 },
    { do: 'sweep', max: 100 },
  ],

  'a child that dies by lease expiry wakes its parked parent': [
    enqueue({}),
    claim,
    startChild({ queue: 'b', maxAttempts: 1 }),
    park,
    claim,
    { do: 'pass', ms: 6_000 },
    { do: 'sweep', max: 100 },
    { ...claim, journals: true },
  ],

  'a message that comes while a run is on its way ends its next park at once': [
    enqueue({}),
    claim,
    { do: 'signal', signals: [{ to: { job: { among: 'running', nth: 0 } }, name: 'go', value: '1', ttlMs: 60_000 }] },
    park,
    { ...claim, journals: true },
    {
      do: 'checkpoint',
      checkpoints: [
        {
          ...{ hold: current, effects: null, startsOver: true, leaseMs: 30_000 },
          journal: { ...noWrites, records: [{ step: 's1', part: 0 }], consume: [{ among: 'own', nth: 0 }] },
        },
      ],
    },
    park,
  ],

  'the history keeps only the newest attempts': [
    enqueue({}),
    ...Array.from({ length: bounds.attemptsKept + 3 }, () => [claim, release]).flat(),
    ...die,
    requeueAll(false),
  ],

  'a job may be released a thousand times, then the next release makes it dead': [
    enqueue({}),
    ...Array.from({ length: bounds.freeReleases + 1 }, () => [claim, release]).flat(),
  ],
}

function enqueue(options: Partial<JobSpec>): Move {
  return { do: 'enqueue', requests: [[{ ...plainJob(), ...options }]] }
}

function settle(spec: SettleSpec): Move {
  return { do: 'settle', settles: [spec] }
}

/** The current run starts a child, in step s1. */
function startChild(options: Partial<JobSpec>): Move {
  const children = [{ step: 's1', isForeign: false, job: { ...plainJob(), ...options } }]
  const journal = { ...noWrites, records: [{ step: 's1', part: -1 }] }
  const checkpoint = { hold: current, effects: { ...noEffects, children }, journal, startsOver: false, leaseMs: 5_000 }
  return { do: 'checkpoint', checkpoints: [checkpoint] }
}

function control(as: BatchAction): Move {
  return { do: 'control', batch: { among: 'any', nth: 0 }, as, by: 'ada' }
}

function requeueAll(dryRun: boolean): Move {
  return { do: 'changeAll', change: { as: 'requeue' }, filter: { ...anyFilter, states: ['dead'] }, dryRun }
}

function define(retainDeadMs: number): Extract<Move, { do: 'define' }> {
  return {
    do: 'define',
    queue: 'a',
    retainDoneMs: 10_000,
    retainDeadMs,
    onDead: null,
    attempts: 5,
    priority: 5,
    limit: null,
    keyLimit: null,
  }
}

function plainJob(): JobSpec {
  return {
    ...{ queue: 'a', payload: '{"n":1}', headers: null, priority: 5, maxAttempts: 3, timeoutMs: null, delayMs: 0 },
    ...{ runIn: null, startIn: null, dedup: null, idempotencyKey: null, givenId: null, limitKey: null },
  }
}
