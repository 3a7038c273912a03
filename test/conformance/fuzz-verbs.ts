// Every public verb, and how its arguments are drawn: valid ones, invalid ones, and values of another type.
import fc from 'fast-check'
import type { Holdfast } from '../../src/holdfast.ts'
import type { Lease } from '../../src/lease/lease.ts'
import { defineQueue } from '../../src/queue/definition.ts'

export interface Hands {
  readonly holdfast: Holdfast
  /** Claims a job. */
  lease(): Promise<Lease>
}

// biome-ignore lint/suspicious/noExplicitAny: arguments of every type are drawn on purpose
export type Called = (hands: Hands, args: any[]) => unknown

export type JobArgument = '@ready' | '@held' | '@dead' | '@scheduled' | '@absent'

interface Verb {
  /** A job argument is replaced by the id of such a job. */
  readonly args: fc.Arbitrary<unknown[]>
  readonly call: Called
}

const someId = '00000000-0000-7000-8000-000000000000'

const circular: Record<string, unknown> = {}
circular['self'] = circular
const deep = Array.from({ length: 600 }).reduce((inner: unknown) => [inner], 1)

const oddities: readonly unknown[] = [
  ...[undefined, null, true, false, Number.NaN, Number.POSITIVE_INFINITY, -0, 0, -1, 1, 1.5, 2 ** 31, 2 ** 53, 1e308],
  ...['', ' ', '\0', '\ud800', 'nul\0', '__proto__', 'constructor', '5 m', '1e9d', '-5s', `${'9'.repeat(400)}s`],
  ...[
    'x'.repeat(100_000),
    "'; drop table job; --",
    10n,
    Symbol('s'),
    () => 1,
    class Long {
      a = 'x'.repeat(1)
    },
  ],
  ...[[], {}, [null], [undefined], Array(3), { length: 3 }, new Date(Number.NaN), new Date(8.64e15), new Date(-1)],
  ...[new Map([['a', 1]]), new Set([1]), /x/, new Error('e'), Object.create(null), Buffer.from('x'), new String('s')],
  ...[
    circular,
    deep,
    { payloadSchema: null },
    { payloadSchema: null, name: 'mail' },
    { name: 'mail' },
    Promise.resolve(1),
  ],
]

const odd: fc.Arbitrary<unknown> = fc.oneof(
  { weight: 4, arbitrary: fc.constantFrom(...oddities) },
  { weight: 1, arbitrary: fc.anything({ maxDepth: 2, withBigInt: true, withDate: true, withNullPrototype: true }) },
  { weight: 1, arbitrary: fc.string({ unit: 'binary' }) },
)

function good(...values: readonly unknown[]): fc.Arbitrary<unknown> {
  return fc.oneof({ weight: 2, arbitrary: fc.constantFrom(...values) }, { weight: 1, arbitrary: odd })
}

/** Some of these options, each valid or unusual, or a value that is no options object. */
function options(values: Readonly<Record<string, fc.Arbitrary<unknown>>>): fc.Arbitrary<unknown> {
  return fc.oneof(
    { weight: 8, arbitrary: fc.record(values, { requiredKeys: [] }) },
    { weight: 1, arbitrary: fc.record({ ...values, unknown: odd }) },
    { weight: 1, arbitrary: odd },
  )
}

function listOf(value: fc.Arbitrary<unknown>): fc.Arbitrary<unknown> {
  return fc.oneof({ weight: 4, arbitrary: fc.array(value, { maxLength: 3 }) }, { weight: 1, arbitrary: odd })
}

const id = good('@ready', '@held', '@dead', '@scheduled', '@absent', someId.slice(1), `{${someId}}`)
const name = good('mail', 'post', 'a b', 'x'.repeat(255), 'x'.repeat(256), 'ü')
const duration = good(0, 1, '1s', '1.5h', '36525d', '36526d', -1, 'soon')
/** How long a call waits: never long, whatever is drawn. */
const wait = fc.constantFrom<unknown>(0, 1, '2ms', -1, Number.NaN, Number.POSITIVE_INFINITY, 'soon', null, {}, 1n)
const time = good(
  new Date(0),
  new Date(8.64e15),
  0,
  Date.now(),
  Date.UTC(9999, 11, 31),
  Date.UTC(10_000, 1),
  '2020-01-01',
)
const priority = good(0, 9, 10, -1, '5')
const attempts = good(1, 10_000, 10_001, 0, 2.5)
const headers = good({}, { a: 'b' }, { 'nul\0': '\ud800' }, { n: 1 }, { big: 'x'.repeat(20_000) }, new Date(0), ['a'])
const key = good('k', 'x'.repeat(512), 'x'.repeat(513), 'ü', 'nul\0')
const by = good('ada', '', 'x'.repeat(1_025), 'nul\0')
const noSignal = fc.constantFrom<unknown>(undefined, null, 5, {}, 'signal')
const signal = fc.oneof(fc.constantFrom(AbortSignal.abort(), new AbortController().signal), noSignal)

const enqueueOptions = {
  id: good(undefined, someId.slice(1)),
  delay: duration,
  runAt: time,
  startBefore: time,
  priority,
  attempts,
  timeout: duration,
  dedup: options({ key, scope: good('live', 'waiting', { window: '1h' }, { window: 0 }), replace: good(true, false) }),
  idempotencyKey: key,
  headers,
}
const followUp = options({ queue: name, payload: odd, ...enqueueOptions })
const effects = options({
  enqueue: listOf(followUp),
  put: listOf(options({ key, value: odd, ttl: duration })),
  delete: listOf(key),
})
/** Cursors that no store has written, in the form of `next`. */
const noPlaces = [['mail'], ['mail', 1], ['mail', 9, 1, 1], ['empty', 1, -1], ['empty', 'ready', 0, 0], [], {}, null, 5]
const mark = good(...noPlaces.map((place) => Buffer.from(JSON.stringify(place)).toString('base64url')))
/** Filters of jobs, mostly of few: each is drawn with other jobs in the store. */
const conditions = options({
  queue: good('mail', 'empty', ['mail', 'post']),
  state: good('ready', 'dead', ['done', 'cancelled'], ['ready', 'running'], 'lost', []),
  ids: good([someId], ['x'], [], 'x'),
  ended: options({ since: time, before: time }),
  error: good('given up', 'nul\0', '\ud800', '%', ''),
  labels: good({ customer: 'c1' }, {}, { a: 1 }),
  payload: options({ path: good('a.b', '', '..'), equals: odd }),
})
const bulkOptions = options({
  ...{ dryRun: good(true, false, 'yes'), by: good('ann', ''), after: mark, signal },
  onProgress: good(() => {}, 'no'),
})
const definition = {
  attempts,
  backoff: options({
    base: duration,
    factor: good(1, 100, 101, '2', 2n),
    max: duration,
    jitter: good(0, 1, '0.5', true),
  }),
  lease: duration,
  timeout: duration,
  retain: options({ done: duration, dead: good(0, Number.POSITIVE_INFINITY, -1) }),
  onDead: options({ queue: good('graves', defineQueue('graves'), 'a b') }),
  payload: odd,
  result: odd,
}

const field = fc.constantFrom(
  '*',
  '*/5',
  '0',
  '1-5',
  '59',
  '60',
  '31',
  '29',
  'L',
  'MON',
  '1#5',
  '15W',
  '?',
  '5-1',
  '9999',
  'x',
  '*/0',
)
const cron = fc.oneof(
  good('30 2 * * *', '@daily', '@nonsense', '0 0 31 2 *', '0 0 29 2 *', '* * * * * * 9999', '2030-01-01T00:00:00'),
  fc.array(field, { minLength: 4, maxLength: 8 }).map((fields) => fields.join(' ')),
)
const schedule = {
  cron,
  timeZone: good('UTC', 'Europe/Berlin', 'Mars/Olympus', '+01:00', 'utc'),
  queue: good('mail', defineQueue('mail'), 'a b'),
  payload: odd,
  missed: good('skip', 'once', 'all', 'some'),
  ...{ delay: duration, priority, attempts, timeout: duration, dedup: enqueueOptions.dedup, headers },
}
const scheduleName = good('nightly', 'a b', 'x'.repeat(256))

export const verbs: Readonly<Record<string, Verb>> = {
  enqueue: {
    args: fc.tuple(name, odd, options(enqueueOptions)),
    call: ({ holdfast }, [queue, payload, given]) => holdfast.queue(queue).enqueue(payload, given),
  },
  enqueueMany: {
    args: fc.tuple(name, listOf(options({ payload: odd, ...enqueueOptions }))),
    call: ({ holdfast }, [queue, entries]) => holdfast.queue(queue).enqueueMany(entries),
  },
  'a queue definition': {
    args: fc.tuple(name, options(definition)),
    call: ({ holdfast }, [queue, given]) => holdfast.queue(queue, given).enqueue({}),
  },
  claim: {
    args: fc.tuple(
      good('*', ['mail'], ['mail', 'post'], []),
      options({ max: good(1, 10_000, 10_001, 0), lease: duration, wait, worker: good('w', 'x'.repeat(256)), signal }),
    ),
    call: async ({ holdfast }, [queues, given]) => {
      const leases = await holdfast.claim(queues, given)
      await Promise.all(leases.map((lease) => lease.release()))
    },
  },
  'claim of one queue': {
    args: fc.tuple(options({ max: odd, lease: odd, wait, worker: odd, signal })),
    call: ({ holdfast }, [given]) => holdfast.queue('empty').claim(given),
  },
  'lease.renew': { args: fc.tuple(duration), call: async ({ lease }, [given]) => (await lease()).renew(given) },
  'lease.progress': {
    args: fc.tuple(
      good(0, 1, 0.5, -0, 1.01, '0.5', 1n),
      good('rendering', '', 'x'.repeat(1025), 'nul\0', '\ud800', null),
    ),
    call: async ({ lease }, [value, message]) => (await lease()).progress(value, message),
  },
  'lease.done': {
    args: fc.tuple(odd, effects),
    call: async ({ lease }, [result, given]) => (await lease()).done(result, given),
  },
  'lease.retry': {
    args: fc.tuple(odd, options({ delay: duration })),
    call: async ({ lease }, [error, given]) => (await lease()).retry(error, given),
  },
  'lease.dead': {
    args: fc.tuple(odd, effects),
    call: async ({ lease }, [error, given]) => (await lease()).dead(error, given),
  },
  'lease.release': { args: fc.tuple(odd), call: async ({ lease }, args) => (await lease()).release(...(args as [])) },
  'lease.snooze': { args: fc.tuple(duration), call: async ({ lease }, [delay]) => (await lease()).snooze(delay) },
  'lease.cancelled': { args: fc.tuple(effects), call: async ({ lease }, [given]) => (await lease()).cancelled(given) },
  cancel: {
    args: fc.tuple(id, options({ effects })),
    call: ({ holdfast }, [job, given]) => holdfast.cancel(job, given),
  },
  'cancel of a job that runs': {
    args: fc.tuple(options({ effects })),
    call: async ({ holdfast, lease }, [given]) => {
      const held = await lease()
      await holdfast.cancel(held.job.id, given)
      return held.release()
    },
  },
  requeue: {
    args: fc.tuple(id, options({ by })),
    call: ({ holdfast }, [job, given]) => holdfast.requeue(job, given),
  },
  requeueAll: {
    args: fc.tuple(conditions, bulkOptions),
    call: ({ holdfast }, [filter, given]) => holdfast.requeueAll(filter, given),
  },
  cancelAll: {
    args: fc.tuple(conditions, bulkOptions),
    call: ({ holdfast }, [filter, given]) => holdfast.cancelAll(filter, given),
  },
  deleteAll: {
    args: fc.tuple(conditions, bulkOptions),
    call: ({ holdfast }, [filter, given]) => holdfast.deleteAll(filter, given),
  },
  rescheduleAll: {
    args: fc.tuple(conditions, options({ runAt: time, delay: duration }), bulkOptions),
    call: ({ holdfast }, [filter, when, given]) => holdfast.rescheduleAll(filter, when, given),
  },
  reprioritiseAll: {
    args: fc.tuple(conditions, priority, bulkOptions),
    call: ({ holdfast }, [filter, to, given]) => holdfast.reprioritiseAll(filter, to, given),
  },
  wake: { args: fc.tuple(id, odd), call: ({ holdfast }, [job, data]) => holdfast.wake(job, data) },
  reschedule: {
    args: fc.tuple(id, time, options({ by })),
    call: ({ holdfast }, [job, at, given]) => holdfast.reschedule(job, at, given),
  },
  reprioritise: {
    args: fc.tuple(id, priority, options({ by })),
    call: ({ holdfast }, [job, to, given]) => holdfast.reprioritise(job, to, given),
  },
  change: {
    args: fc.tuple(
      id,
      options({ payload: odd, attempts, headers, labels: good({}, { a: 'b' }, { 'a b': 'c' }), limitKey: key }),
      options({ by }),
    ),
    call: ({ holdfast }, [job, changes, given]) => holdfast.change(job, changes, given),
  },
  delete: { args: fc.tuple(id), call: ({ holdfast }, [job]) => holdfast.delete(job) },
  pause: { args: fc.tuple(name), call: ({ holdfast }, [queue]) => holdfast.pause(queue) },
  resume: { args: fc.tuple(name), call: ({ holdfast }, [queue]) => holdfast.resume(queue) },
  job: { args: fc.tuple(id), call: ({ holdfast }, [job]) => holdfast.job(job) },
  jobs: {
    args: fc.tuple(
      options({ queue: good('mail', 'empty'), state: good('ready', 'lost'), limit: good(1, 1_001), after: mark }),
    ),
    call: ({ holdfast }, [filter]) => holdfast.jobs(filter),
  },
  stats: { args: fc.tuple(name), call: ({ holdfast }, [queue]) => holdfast.stats(queue) },
  result: {
    args: fc.tuple(
      good('@dead', '@absent', someId.slice(1)),
      options({ timeout: fc.constantFrom<unknown>('20s', -1, Number.NaN, 'soon', null, {}, 1n), signal: noSignal }),
    ),
    call: ({ holdfast }, [job, given]) => holdfast.result(job, given),
  },
  schedule: {
    args: fc.tuple(scheduleName, options(schedule)),
    call: async ({ holdfast }, [of, given]) => (await holdfast.schedule(of, given)).name,
  },
  unschedule: { args: fc.tuple(scheduleName), call: ({ holdfast }, [of]) => holdfast.unschedule(of) },
  pauseSchedule: { args: fc.tuple(scheduleName), call: ({ holdfast }, [of]) => holdfast.pauseSchedule(of) },
  resumeSchedule: { args: fc.tuple(scheduleName), call: ({ holdfast }, [of]) => holdfast.resumeSchedule(of) },
  runScheduleNow: { args: fc.tuple(scheduleName), call: ({ holdfast }, [of]) => holdfast.runScheduleNow(of) },
  'kv.get': { args: fc.tuple(key), call: ({ holdfast }, [of]) => holdfast.kv.get(of) },
  'kv.put': {
    args: fc.tuple(key, odd, options({ ttl: duration })),
    call: ({ holdfast }, [of, value, given]) => holdfast.kv.put(of, value, given),
  },
  'kv.delete': { args: fc.tuple(key), call: ({ holdfast }, [of]) => holdfast.kv.delete(of) },
  'kv.compareAndSet': {
    args: fc.tuple(key, good(null, 1, -1, 2 ** 53), odd, options({ ttl: duration })),
    call: ({ holdfast }, [of, version, value, given]) => holdfast.kv.compareAndSet(of, version, value, given),
  },
  'kv.scan': {
    args: fc.tuple(good('', 'k', '\u{10ffff}')),
    call: ({ holdfast }, [prefix]) => Array.fromAsync(holdfast.kv.scan(prefix)),
  },
}
