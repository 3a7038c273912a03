// The message readers of both sides: what they accept has the shape that the code behind them relies on.
import assert from 'node:assert/strict'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { test } from 'node:test'
import { MessageChannel, Worker } from 'node:worker_threads'
import fc from 'fast-check'
import { handlerJob } from '../../src/testing/index.ts'
import { Job } from '../../src/worker/job.ts'
import {
  type FromThread,
  isFateShape,
  readFromThread,
  readToThread,
  type SentError,
  type ThreadData,
  type ToThread,
} from '../../src/worker/threads/messages.ts'

const error: SentError = { name: 'Error', message: 'no' }
const effects = {
  put: [{ key: 'a', value: '1', ttlMs: null }],
  delete: ['b'],
  sql: [{ text: 'select 1', values: [1, 'x', null] }],
  enqueue: [],
}
const claimed = Job.claimedOf(handlerJob('tasks', 1) as Job)

const toThread: readonly ToThread[] = [
  { type: 'start', job: 1, claimed, timeoutMs: 1_000, payload: { a: 1 } },
  { type: 'abort', job: 1, error: { ...error, code: 'JOB_TIMEOUT', stack: 'at' } },
  { type: 'answered', job: 1, call: 2, error: null },
  { type: 'answered', job: 1, call: 2, error },
]
const fromThread: readonly FromThread[] = [
  { type: 'began', job: 1 },
  { type: 'progress', job: 1, progress: 0.5, message: null },
  { type: 'log', job: 1, message: 'so far', facts: { rows: 3 } },
  { type: 'delivered', job: 1, facts: { host: 'x', status: 200, outcome: 'done', durationMs: 3 } },
  { type: 'extend', job: 1, call: 1, ms: 1_000 },
  { type: 'returned', job: 1, returned: 1, isFate: false, effects, ifDead: { effects }, costs: { tokens: 3 } },
  {
    type: 'returned',
    job: 1,
    returned: { fate: 'snooze', delayMs: 3 },
    isFate: true,
    effects: null,
    ifDead: null,
    costs: null,
  },
  {
    type: 'threw',
    job: 1,
    error: { ...error, isPermanent: true, effects, delayMs: 3, reason: 'shut' },
    ifDead: { error },
    costs: null,
  },
  { type: 'crashed', job: 1, error },
  { type: 'leftover', job: 0, kind: 'uncaught', of: null, error },
  { type: 'leftover', job: 3, kind: 'exit', of: { id: 'x', attempt: 1 }, error },
]

test('valid messages are read unchanged', () => {
  for (const message of toThread) assert.equal(readToThread(message), message)
  for (const message of fromThread) assert.equal(readFromThread(message), message)
  for (const message of toThread) assert.equal(readFromThread(message), null)
  for (const message of fromThread) assert.equal(readToThread(message), null)
})

test('fates that were changed are recognised', () => {
  const fates = [
    handlerJob('tasks', 1).snooze('1s'),
    handlerJob('tasks', 1).release(),
    handlerJob('tasks', 1).outcome('saved', { rows: 3 }, { warning: 'slow' }),
    handlerJob('tasks', 1).offer(1, { inbox: 'in' }),
    handlerJob('tasks', 1).closeGate('logged out'),
  ]
  for (const fate of fates) {
    assert.ok(isFateShape(fate))
    for (const [name] of Object.entries(fate).filter(([name]) => name !== 'result'))
      for (const other of [undefined, Symbol('x'), Number.NaN, {}])
        assert.ok(!isFateShape({ ...fate, [name]: other }), `${fate.fate} ${name} ${String(other)}`)
  }
})

test('any other value is not a message, and never an error', (t) => {
  const seed = randomInt(2 ** 31)
  t.diagnostic(`seed ${seed}`)
  const type = fc.constantFrom(...[...toThread, ...fromThread].map((message) => message.type), '__proto__', 'toString')
  const strange = fc.anything({ maxDepth: 3, withBigInt: true, withDate: true, withMap: true, withNullPrototype: true })
  const typed = fc.tuple(type, strange).map(([type, rest]) => ({ ...(rest as object), type }))
  fc.assert(
    fc.property(fc.oneof(strange, typed), (message) => {
      for (const read of [readToThread, readFromThread]) {
        const answer = read(message)
        if (answer !== null) requireSound(answer)
      }
    }),
    { seed, numRuns: 5_000 },
  )
})

test('a valid message with one field replaced is refused, or still has a valid shape', (t) => {
  const seed = randomInt(2 ** 31)
  t.diagnostic(`seed ${seed}`)
  const all = [...toThread, ...fromThread]
  const property = fc.property(
    fc.constantFrom(...all),
    fc.nat(),
    fc.anything({ withBigInt: true }),
    (good, at, value) => {
      const paths = pathsIn(good)
      const path = paths[at % paths.length] as readonly string[]
      const bad = structuredClone(good)
      replace(bad, path, value)
      for (const read of [readToThread, readFromThread]) {
        const answer = read(bad)
        if (answer !== null) requireSound(answer)
      }
    },
  )
  fc.assert(property, { seed, numRuns: 5_000 })
})

test('a thread ignores invalid messages on its own port, and runs the next job', async () => {
  const { port1, port2 } = new MessageChannel()
  const permit = new Int32Array(new SharedArrayBuffer(4))
  const module = new URL('./handlers/costs.ts', import.meta.url).href
  const workerData: ThreadData = { module, port: port2, permit }
  const program = new URL('../../src/worker/threads/thread-main.ts', import.meta.url)
  const thread = new Worker(program, { workerData, transferList: [port2] })
  const received: FromThread[] = []
  const ended = new Promise<void>((resolve) => {
    port1.on('message', (message: FromThread) => {
      received.push(message)
      if (message.type === 'returned') resolve()
    })
  })
  const noise = [null, undefined, 'start', 7, [], {}, { type: 'start' }, { type: 'start', job: 9, claimed: {} }]
  const stray = [
    { type: 'abort', job: 8, error },
    { type: 'answered', job: 8, call: 1, error: null },
    { type: 'abort', job: 1, error: null },
  ]
  for (const message of [...noise, ...stray]) port1.postMessage(message)
  // A start that was withdrawn does not begin.
  Atomics.store(permit, 0, 7)
  port1.postMessage({ type: 'start', job: 6, claimed, timeoutMs: 1_000, payload: 'save' })
  port1.postMessage({ type: 'start', job: 7, claimed, timeoutMs: 1_000, payload: 'save' })
  await ended
  assert.deepEqual(
    received.map((message) => [message.type, 'job' in message ? message.job : null]),
    [
      ['loaded', null],
      ['began', 7],
      ['returned', 7],
    ],
  )
  assert.equal(Atomics.load(permit, 0), -7)
  const gone = once(thread, 'exit')
  await thread.terminate()
  await gone
})

/** Reads fields without checks, as the code behind the readers does. */
function requireSound(message: ToThread | FromThread): void {
  if ('job' in message) assert.ok(Number.isSafeInteger(message.job) && message.job >= 0)
  else assert.ok(message.type === 'loaded' || message.type === 'unloadable')
  if ('error' in message && message.error !== null) {
    assert.equal(typeof message.error.name, 'string')
    assert.equal(typeof message.error.message, 'string')
  }
  switch (message.type) {
    case 'start':
      assert.equal(typeof message.claimed.id, 'string')
      break
    case 'progress':
      assert.equal(typeof message.progress, 'number')
      break
    case 'log':
      assert.equal(typeof message.facts, 'object')
      break
    case 'extend':
      assert.ok(message.ms >= 0)
      break
    case 'returned':
      for (const list of Object.values(message.effects ?? {})) assert.ok(Array.isArray(list))
      for (const amount of Object.values(message.costs ?? {})) assert.ok(Number.isFinite(amount))
      if (message.isFate) assert.ok(isFateShape(message.returned))
      break
    default:
  }
}

function pathsIn(value: unknown, path: readonly string[] = []): string[][] {
  if (typeof value !== 'object' || value === null) return []
  return Object.entries(value).flatMap(([name, inner]) => [[...path, name], ...pathsIn(inner, [...path, name])])
}

function replace(root: unknown, path: readonly string[], value: unknown): void {
  const [name, ...rest] = path as [string, ...string[]]
  if (rest.length === 0) Reflect.set(root as object, name, value)
  else replace(Reflect.get(root as object, name), rest, value)
}
