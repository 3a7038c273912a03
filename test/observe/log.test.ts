import assert from 'node:assert/strict'
import { PassThrough } from 'node:stream'
import { type TestContext, test } from 'node:test'
import { WriteStream } from 'node:tty'
import { isHoldfastError } from '../../src/errors.ts'
import { Events, type HoldfastEvents } from '../../src/events.ts'
import { logTo } from '../../src/observe/log.ts'
import { type Logger, stderrSink } from '../../src/observe/logger.ts'

delete process.env['FORCE_COLOR'] // a test runner on a terminal sets it

const run = {
  ...{ id: '018f0000-0000-7000-8000-000000000001', queue: 'mail', attempt: 5, maxAttempts: 5, worker: 'w1' },
  durationMs: 12,
}
const dead: HoldfastEvents['job.dead'] = { ...run, ending: 'failed', error: { message: 'refused', name: 'Error' } }

const { id: job, ...rest } = run
/** A job has its id in `job`. */
const logged = { job, ...rest }

type Written = [level: string, message: string, facts: Record<string, unknown>]

function setup() {
  const events = new Events()
  const written: Written[] = []
  const writing = (level: string) => (message: string, facts: object) =>
    void written.push([level, message, { ...facts }])
  const logger = { debug: writing('debug'), info: writing('info'), warn: writing('warn'), error: writing('error') }
  return { events, written, logger, messages: () => written.map(([, message]) => message) }
}

/** The lines on stderr while this runs. */
function stderrOf(t: TestContext, act: (events: Events) => void): string[] {
  const lines: string[] = []
  const write = t.mock.method(process.stderr, 'write', (text: string) => lines.push(text))
  const events = new Events()
  const stop = logTo(events, undefined)
  act(events)
  stop()
  write.mock.restore()
  return lines
}

test('the facts of a line have the labels of its job, and no field for a job without any', () => {
  const { events, written, logger } = setup()
  const stop = logTo(events, logger)
  const done = { outcome: null, warning: null }
  events.emit('job.done', { ...run, ...done, labels: { customer: 'c1' } })
  events.emit('job.done', { ...run, ...done })
  stop()
  assert.deepEqual(
    written.map(([, , facts]) => facts['labels']),
    [{ customer: 'c1' }, undefined],
  )
  assert.ok(!('labels' in (written[1]?.[2] ?? {})))
})

test('the first failed attempt of a queue is a warning with the error and the next attempt; later ones are not', (t) => {
  const runAt = new Date('2030-01-01T00:00:10Z')
  const retrying = {
    ...run,
    attempt: 1,
    ending: 'failed',
    error: { message: 'refused', name: 'Error' },
    runAt,
  } as const
  const lines = stderrOf(t, (events) => {
    for (const queue of ['mail', 'mail', 'other']) events.emit('job.retrying', { ...retrying, queue })
  })
  assert.equal(lines.length, 2)
  assert.match(
    lines[0] ?? '',
    /warn: Attempt 1 of 5 of job \S+ of queue mail failed: refused\. The next attempt is scheduled/,
  )
  assert.match(lines[1] ?? '', /of queue other/)
  const { events, written, logger } = setup()
  logTo(events, logger)
  for (const _ of [1, 2]) events.emit('job.retrying', retrying)
  assert.deepEqual(
    written.map(([level]) => level),
    ['warn', 'info'],
  )
})

test('a logger gets a sentence and its fields, at the level of the event', () => {
  const { events, written, logger } = setup()
  logTo(events, logger)
  events.emit('job.dead', dead)
  events.emit('job.done', { ...run, outcome: 'saved', warning: null })
  assert.deepEqual(written[0], [
    'error',
    'Job 018f0000-0000-7000-8000-000000000001 of queue mail is dead: attempt 5 of 5 failed: refused.',
    { ...logged, ending: 'failed', error: { message: 'refused', name: 'Error', stack: undefined } },
  ])
  assert.equal(written[1]?.[0], 'debug')
  assert.match(written[1]?.[1] ?? '', /is done as saved after 12 ms\.$/)
})

test('a log line says what caused an error, and has the causes in its fields', () => {
  const { events, written, logger } = setup()
  logTo(events, logger)
  const causes = [{ message: 'connect to 127.0.0.1:1', name: 'Error', code: 'ECONNREFUSED' }]
  events.emit('job.dead', { ...dead, error: { message: 'fetch failed', name: 'TypeError', causes } })
  const [, message, facts] = written[0] as Written
  assert.match(message, /failed: fetch failed \(caused by connect to 127\.0\.0\.1:1 \[ECONNREFUSED\]\)\.$/)
  assert.deepEqual((facts['error'] as { causes: unknown }).causes, causes)
})

test('pino gets the fields first, and its level is respected', () => {
  const { events, written, logger } = setup()
  let level = 'info'
  const pino = {
    bindings: () => ({}),
    child: () => pino,
    isLevelEnabled: (asked: string) => asked !== 'debug' || level === 'debug',
    debug: (facts: object, message?: string) => logger.debug(message ?? '', facts),
    info: (facts: object, message?: string) => logger.info(message ?? '', facts),
    warn: (facts: object, message?: string) => logger.warn(message ?? '', facts),
    error: (facts: object, message?: string) => logger.error(message ?? '', facts),
  }
  logTo(events, pino as unknown as Logger)
  events.emit('worker.stopped', { worker: 'w1' })
  events.emit('job.cancelled', run)
  events.emit('job.snoozed', { ...run, runAt: null })
  level = 'debug'
  events.emit('job.snoozed', { ...run, runAt: null })
  assert.deepEqual(
    written.map(([at, message]) => [at, message]),
    [
      ['info', 'Worker w1 has stopped.'],
      ['info', `Job ${run.id} of queue mail was cancelled while it ran.`],
      ['debug', `Job ${run.id} of queue mail was snoozed.`],
    ],
  )
  assert.deepEqual(written[0]?.[2], { worker: 'w1' })
})

test('without a logger stderr shows what needs attention, one line each', (t) => {
  const error = new Error('connection refused')
  const lines = stderrOf(t, (events) => {
    events.emit('job.dead', dead)
    events.emit('store.down', { by: 'worker w1', error })
    events.emit('store.up', { by: 'worker w1', awayMs: 12_400 })
    events.emit('worker.failed', { worker: 'w1', error })
    events.emit('settle.failed', { ...run, error, state: 'scheduled' })
    events.emit('handler.abandoned', { ...run, reason: 'timeout', abandoned: 2 })
    events.emit('thread.stuck', { ...run, thread: 7, reason: 'timeout', stuck: 2 })
    events.emit('thread.freed', { ...run, thread: 7, stuckMs: 9_000, stuck: 1 })
    const leftover = { worker: 'w1', queue: 'mail', thread: 7, error: { message: 'late' } }
    events.emit('thread.leftover', { ...leftover, kind: 'uncaught', job: 'j1', current: 'j2' })
    events.emit('thread.leftover', { ...leftover, kind: 'exit', job: 'j1', current: 'j2' })
    events.emit('thread.leftover', { ...leftover, kind: 'uncaught', job: null, current: null })
    events.emit('job.retrying', { ...dead, ending: 'failed', runAt: null })
    events.emit('job.log', { ...run, message: 'of a handler', facts: {} })
    events.emit('worker.started', { worker: 'w1', queues: null, concurrency: 1 })
  })
  const wanted = [
    /error: Job .* of queue mail is dead/,
    /error: The store does not answer \(worker w1\): connection refused\. The call is repeated until it succeeds\./,
    /warn: The store answers again after 12 s/,
    /error: Worker w1 failed and has stopped: connection refused\./,
    /error: Job .* ran, but its settlement failed: connection refused\. The job is scheduled now\./,
    /warn: The handler of job .* ignored its signal \(timeout\) and was abandoned\. 2 such handlers still run in worker w1\./,
    /warn: Thread 7, which ran job .*, was terminated \(timeout\) but does not end: .* 2 threads of worker w1 are stuck\./,
    /warn: In thread 7 of queue mail, job j1, which had ended, threw .*: late\. Job j2 continues\. The thread is not used again\./,
    /warn: In thread 7 of queue mail, job j1, which had ended, ended the thread: late\. Job j2 is released\./,
    /warn: In thread 7 of queue mail, code that belongs to no job threw .*: late\. The thread is not used again\./,
    /warn: Attempt 5 of 5 of job .* of queue mail failed: refused\./,
  ]
  assert.equal(lines.length, wanted.length, lines.join(''))
  for (const [index, pattern] of wanted.entries()) {
    assert.match(lines[index] ?? '', pattern)
    assert.match(lines[index] ?? '', /^\d{4}-\d\d-\d\dT[^\n]*\n$/)
  }
})

test('nothing is computed for an event without a line', () => {
  const silent = new Events()
  logTo(silent, false)
  assert.equal(silent.hasListener('job.dead'), false)
  const quiet = new Events()
  const stop = logTo(quiet, undefined)
  assert.deepEqual(
    (['job.dead', 'job.done', 'job.enqueued', 'claim.ended'] as const).map((name) => quiet.hasListener(name)),
    [true, false, false, false],
  )
  stop()
  assert.equal(quiet.hasListener('job.dead'), false)
})

test('a heartbeat that fails once writes no line, and one that keeps failing does', (t) => {
  const failure = { jobs: 3, error: new Error('timed out') }
  const lines = stderrOf(t, (events) => {
    events.emit('heartbeat.failed', { ...failure, worker: 'w1' })
    events.emit('heartbeat.failed', { ...failure, worker: 'w2' })
    events.emit('heartbeat.failed', { ...failure, worker: 'w1' })
  })
  assert.equal(lines.length, 1)
  assert.match(lines[0] ?? '', /Worker w1 could not renew its leases \(3 jobs\): timed out\./)
})

test('a flood of one kind is summarised in one line, and hides no other kind', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const { events, messages, logger, written } = setup()
  const stop = logTo(events, logger)
  for (let i = 0; i < 67; i++) events.emit('job.dead', dead)
  events.emit('job.dead', { ...dead, queue: 'other' })
  assert.equal(written.length, 11)
  t.mock.timers.tick(1_000)
  assert.equal(messages().at(-1), '… and 57 more dead jobs in queue mail in the last second')
  assert.equal(written.at(-1)?.[0], 'error')
  for (let i = 0; i < 11; i++) events.emit('job.dead', dead)
  assert.equal(written.length, 22)
  stop()
  assert.equal(messages().at(-1), '… and 1 more dead jobs in queue mail in the last second')
  t.mock.timers.tick(1_000)
  assert.equal(written.length, 23)
})

test('lines of a handler are never suppressed, and cannot claim to be of another job', () => {
  const { events, written, logger } = setup()
  logTo(events, logger)
  for (let i = 0; i < 50; i++) events.emit('job.log', { ...run, message: `line ${i}`, facts: { job: 'mine', page: i } })
  assert.equal(written.length, 50)
  const { durationMs: _, ...own } = logged
  assert.deepEqual(written[7], ['info', 'line 7', { ...own, facts: { job: 'mine', page: 7 } }])
})

test('an error message neither breaks the line nor contains terminal control sequences', () => {
  const stream = new PassThrough()
  stderrSink(stream as unknown as WriteStream).write(
    'error',
    `one\nholdfast error: two \u001b[31mred\u001b[0m \u0007 \u202e\u009b ${'x'.repeat(5_000)}`,
    {},
  )
  const text = String(stream.read())
  assert.match(
    text,
    /^\S+ holdfast error: one holdfast error: two \\u001b\[31mred\\u001b\[0m \\u0007 \\u202e\\u009b x+…\n$/,
  )
  assert.ok(text.length < 1_100)
})

test('a logger gets no control character and no bidirectional override in a message', () => {
  const { events, messages, logger } = setup()
  logTo(events, logger)
  events.emit('job.dead', { ...dead, error: { message: 'a\u202eb\u009b31m\u001b[8mc\nd' } })
  assert.match(messages()[0] ?? '', /failed: a\\u202eb\\u009b31m\\u001b\[8mc\nd\.$/)
})

test('durations are whole milliseconds in the fields of every line', () => {
  const { events, written, logger } = setup()
  logTo(events, logger)
  events.emit('job.done', { ...run, durationMs: 19_999.494731000003, outcome: null, warning: null })
  events.emit('job.started', { ...run, createdAt: new Date(0), waitedMs: 0.4 })
  events.emit('store.up', { by: 'worker w1', awayMs: 12_400.6 })
  events.emit('thread.freed', { ...run, thread: 7, stuckMs: 9_000.5, stuck: 1 })
  const durations = written.map(([, , { durationMs, waitedMs, awayMs, stuckMs }]) => [
    ...[durationMs, waitedMs, awayMs, stuckMs].filter((ms) => ms !== undefined),
  ])
  assert.deepEqual(durations, [[19_999], [0], [12_401], [9_001]])
})

test('no field of a line has a name that pino, bunyan or winston uses for itself', () => {
  const reserved = ['level', 'time', 'msg', 'pid', 'hostname', 'name', 'id', 'v', 'src', 'message', 'timestamp']
  const { written, logger } = setup()
  const listeners: ((event: never) => void)[] = []
  const on = (_: string, listener: (event: never) => void) => {
    listeners.push(listener)
    return () => undefined
  }
  const stop = logTo({ on } as Pick<Events, 'on'>, logger)
  for (const listener of listeners) listener(anything() as never)
  stop()
  assert.ok(listeners.length > 30)
  assert.ok(written.length > 30, `${written.length} lines`)
  const used = new Set(written.flatMap(([, , facts]) => Object.keys(facts)))
  assert.deepEqual(
    reserved.filter((name) => used.has(name)),
    [],
  )
})

/** An event that has every field: a list, a count, a text, a time and an object at once. */
function anything(): unknown {
  const texts = {
    message: 'refused',
    causes: [],
    toISOString: () => '2030-01-31T09:00:00.000Z',
    join: () => 'a',
    toFixed: () => '1',
  }
  return new Proxy(
    Object.assign(() => 1, texts),
    {
      get: (target, name) => (name === Symbol.toPrimitive ? () => 1 : (Reflect.get(target, name) ?? anything())),
      ownKeys: () => [],
      getOwnPropertyDescriptor: () => undefined,
    },
  )
}

test('colours are for terminals, and not with NO_COLOR', () => {
  const isColoured = (isTTY: boolean, env: NodeJS.ProcessEnv) => {
    const getColorDepth = () => WriteStream.prototype.getColorDepth(env)
    const stream = Object.assign(new PassThrough(), { isTTY, getColorDepth })
    stderrSink(stream as unknown as WriteStream).write('error', 'x', {})
    return String(stream.read()).includes('\u001b[')
  }
  const env = { TERM: 'xterm-256color' }
  assert.deepEqual([isColoured(true, env), isColoured(false, env)], [true, false])
  assert.equal(isColoured(true, { ...env, NO_COLOR: '1' }), false)
})

test('a logger that throws causes no other failure', async (t) => {
  const warned: string[] = []
  t.mock.method(process, 'emitWarning', (error: Error) => warned.push(error.message))
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const events = new Events()
  const fail = () => {
    throw new Error('disk full')
  }
  logTo(events, { info: fail, warn: fail, error: fail })
  for (let i = 0; i < 12; i++) events.emit('job.dead', dead)
  t.mock.timers.tick(1_000)
  assert.equal(warned.length, 11)
})

test('an invalid logger is refused', () => {
  for (const logger of [true, 'console', null, {}, { info: console.info }]) {
    assert.throws(
      () => logTo(new Events(), logger as unknown as Logger),
      (error) => isHoldfastError(error, 'INVALID_OPTION'),
    )
  }
})

// Never called: only the compiler checks it. `LogFn` as pino 10 and pino 9 declare it, console as Node does.
export function fits(): Logger[] {
  type Pino10 = {
    (message: string): void
    <T, Message extends string = string>(facts: T, message?: T extends string ? never : Message): void
  }
  type Pino9 = {
    <T extends object>(facts: T, message?: string, ...args: unknown[]): void
    (facts: unknown, message?: string, ...args: unknown[]): void
    (message: string, ...args: unknown[]): void
  }
  type Library<Write> = { debug: Write; info: Write; warn: Write; error: Write; bindings(): object }
  const own: Logger = { info: (message, facts) => [message.length, facts['job']], warn: () => {}, error: () => {} }
  return [{} as Library<Pino10>, {} as Library<Pino9>, console, own]
}

test('the line of a sweep counts the jobs that were rescued apart from those that died', () => {
  const { events, logger, messages } = setup()
  logTo(events, logger)
  const nothing = { dead: 0, promoted: 0, overdue: 0, admitted: 0, pruned: 0, durationMs: 1 }
  events.emit('sweep.ended', { ...nothing, rescued: 0 })
  events.emit('sweep.ended', { ...nothing, rescued: 2 })
  events.emit('sweep.ended', { ...nothing, rescued: 3, dead: 1 })
  events.emit('sweep.ended', { ...nothing, rescued: 1, dead: 1 })
  assert.deepEqual(messages(), [
    'The sweep rescued 2 jobs whose leases had expired.',
    'The sweep found 3 jobs whose leases had expired: 2 rescued, 1 dead after the last attempt.',
    'The sweep found 1 job whose lease had expired: 0 rescued, 1 dead after the last attempt.',
  ])
})
