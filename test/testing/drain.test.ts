// What `drain` and `runOnce` promise to tests of handlers, on every store.
import assert, { AssertionError } from 'node:assert/strict'
import test from 'node:test'
import { z } from 'zod'
import { defineQueue, type HandlerOf, type Holdfast, open, Permanent } from '../../src/index.ts'
import { drain, openInMemory, runOnce, VirtualClock } from '../../src/testing/index.ts'
import { testDatabase } from '../support/postgres.ts'

const mails = defineQueue<{ to: string }, { sent: boolean }>('mails', {
  attempts: 3,
  backoff: { base: '10s', factor: 2, jitter: 0.5 },
})
const receipts = defineQueue<{ for: string }>('receipts')
const dates = defineQueue('dates', {
  payload: z.object({ at: z.string().transform((text) => new Date(text)) }),
  result: z.object({ year: z.number() }),
})

interface World extends AsyncDisposable {
  readonly holdfast: Holdfast
  readonly clock: VirtualClock
}

const stores: Readonly<Record<string, () => Promise<World>>> = {
  'SQLite in memory': async () => {
    const { holdfast, clock } = await openInMemory()
    return { holdfast, clock, [Symbol.asyncDispose]: () => holdfast.close() }
  },
  PostgreSQL: async () => {
    const database = await testDatabase()
    const clock = new VirtualClock()
    const holdfast = await open(database.url, { clock, logger: false })
    const dispose = async () => {
      await holdfast.close()
      await database[Symbol.asyncDispose]()
    }
    return { holdfast, clock, [Symbol.asyncDispose]: dispose }
  },
}

for (const [store, setup] of Object.entries(stores)) {
  for (const [of, limit] of [
    ['a key', { key: 'k', rate: { count: 20, per: '1s' } }],
    ['a queue', { rate: { count: 20, per: '1s' } }],
    ['a key with one slot', { key: 'k', concurrency: 1, rate: { count: 20, per: '1s' } }],
  ] as const)
    test(`${store}: drain moves the clock to the next start that the rate of ${of} allows`, async () => {
      await using world = await setup()
      const { holdfast, clock } = world
      const rated = defineQueue<{ k: string }>('rated', { limit })
      await holdfast.queue(rated).enqueueMany(Array.from({ length: 50 }, () => ({ payload: { k: 'a' } })))
      const startedAt = clock.now()
      const starts: number[] = []
      const report = await drain(holdfast, [[rated, () => void starts.push(clock.now() - startedAt)]], { clock })
      assert.equal(report.done, 50)
      for (const [i, at] of starts.entries()) assert.ok(at >= 1_000 * Math.floor(i / 20), `start ${i} at ${at}`)
      assert.ok(clock.now() - startedAt <= 3_000)
    })

  test(`${store}: drain moves the clock no further than it may, also for a rate`, async () => {
    await using world = await setup()
    const { holdfast, clock } = world
    const rated = defineQueue<{ k: string }>('rated', { limit: { key: 'k', rate: { count: 20, per: '1m' } } })
    await holdfast.queue(rated).enqueueMany(Array.from({ length: 50 }, () => ({ payload: { k: 'a' } })))
    assert.equal((await drain(holdfast, [[rated, () => null]])).done, 20)
    assert.equal((await drain(holdfast, [[rated, () => null]], { clock, until: '90s' })).done, 20)
  })

  test(`${store}: drain runs ready jobs and their follow-ups, in the order of claiming`, async () => {
    await using world = await setup()
    const { holdfast } = world
    await holdfast.queue(mails).enqueueMany([{ payload: { to: 'b' } }, { payload: { to: 'a' }, priority: 1 }])
    await holdfast.queue(receipts).enqueue({ for: 'early' })
    const report = await drain(holdfast, [
      [
        mails,
        (job) => {
          job.effects.enqueue(receipts, { for: job.payload.to })
          return { sent: true }
        },
      ],
      [receipts, () => undefined],
    ])
    assert.deepEqual(
      report.runs.map(({ queue, payload, outcome, result }) => ({ queue, payload, outcome, result })),
      [
        { queue: 'mails', payload: { to: 'a' }, outcome: 'done', result: { sent: true } },
        { queue: 'mails', payload: { to: 'b' }, outcome: 'done', result: { sent: true } },
        { queue: 'receipts', payload: { for: 'early' }, outcome: 'done', result: null },
        { queue: 'receipts', payload: { for: 'a' }, outcome: 'done', result: null },
        { queue: 'receipts', payload: { for: 'b' }, outcome: 'done', result: null },
      ],
    )
    const { runs, ...counts } = report
    assert.deepEqual(counts, { done: 5, dead: 0, retried: 0, snoozed: 0, released: 0, cancelled: 0, lost: 0 })
  })

  test(`${store}: with the clock, time moves to retries, snoozes and delays, each exactly when it is due`, async () => {
    await using world = await setup()
    const { holdfast, clock } = world
    const startedAt = clock.now()
    await holdfast.queue(mails).enqueue({ to: 'late' }, { delay: '1h' })
    await holdfast.queue(mails).enqueue({ to: 'flaky' })
    const ran: [string, number][] = []
    const report = await drain(
      holdfast,
      [
        [
          mails,
          (job) => {
            ran.push([job.payload.to, clock.now() - startedAt])
            if (job.payload.to === 'late') return ran.length < 5 ? job.snooze('1h') : { sent: true }
            throw new Error('no answer')
          },
        ],
      ],
      { clock },
    )
    assert.deepEqual(ran, [
      ['flaky', 0],
      ['flaky', 10_000],
      ['flaky', 30_000],
      ['late', 3_600_000],
      ['late', 7_200_000],
    ])
    assert.deepEqual(
      report.runs.map(({ outcome, attempt, error }) => [outcome, attempt, error?.message]),
      [
        ['retried', 1, 'no answer'],
        ['retried', 2, 'no answer'],
        ['dead', 3, 'no answer'],
        ['snoozed', 1, undefined],
        ['done', 1, undefined],
      ],
    )
    assert.equal((await holdfast.stats()).dead, 1)
  })

  test(`${store}: with the clock, every slot of a schedule until the end fires, exactly when it is due`, async () => {
    await using world = await setup()
    const { holdfast, clock } = world
    const startedAt = clock.now()
    await holdfast.schedule('mornings', { cron: '0 8 * * *', queue: mails, payload: { to: 'all' } })
    await holdfast.schedule('unserved', { cron: '0 * * * *', queue: 'other' })
    await holdfast.schedule('paused', { cron: '0 9 * * *', queue: mails, payload: { to: 'none' } })
    await holdfast.pauseSchedule('paused')
    const ran: [string, number][] = []
    const handler: HandlerOf<typeof mails> = ({ payload, attempt }) => {
      ran.push([payload.to, clock.now() - startedAt])
      if (attempt === 1) throw new Error('no answer')
      return { sent: true }
    }
    const hour = 3_600_000
    const report = await drain(holdfast, [[mails, handler]], { clock, until: '48h' })
    assert.deepEqual([report.retried, report.done], [2, 2])
    assert.deepEqual(ran, [
      ['all', 8 * hour],
      ['all', 8 * hour + 10_000],
      ['all', 32 * hour],
      ['all', 32 * hour + 10_000],
    ])
    assert.equal(clock.now() - startedAt, 48 * hour)
    assert.equal((await holdfast.stats('other')).ready, 48) // none was missed on the way
    const again = await drain(holdfast, [[mails, handler]], { clock })
    assert.deepEqual([again.runs.length, clock.now() - startedAt], [0, 48 * hour]) // a schedule has no end
    clock.advance('8h')
    assert.equal((await drain(holdfast, [[mails, () => ({ sent: true })]])).done, 1) // due without a clock
  })

  test(`${store}: without the clock, scheduled jobs are left waiting`, async () => {
    await using world = await setup()
    const { holdfast } = world
    await holdfast.queue(mails).enqueue({ to: 'x' })
    const fail = () => {
      throw new Error('no answer')
    }
    assert.equal((await drain(holdfast, [[mails, fail]])).retried, 1)
    assert.equal((await drain(holdfast, [[mails, fail]])).retried, 0)
    assert.equal((await holdfast.stats()).scheduled, 1)
  })

  test(`${store}: runOnce runs one job and returns its outcome`, async () => {
    await using world = await setup()
    const { holdfast, clock } = world
    await holdfast
      .queue(dates)
      .enqueueMany([
        { payload: { at: '2031-01-01T00:00:00Z' } },
        { payload: { at: '2032-01-01T00:00:00Z' }, delay: '5m' },
        { payload: { at: '2033-01-01T00:00:00Z' }, delay: '1.5h' },
      ])
    const run = await runOnce(holdfast, dates, ({ payload }) => ({ year: payload.at.getUTCFullYear() }))
    assert.deepEqual([run.outcome, run.result, run.payload.at], ['done', { year: 2031 }, new Date('2031-01-01')])
    await assert.rejects(
      runOnce(holdfast, dates, () => ({ year: 1 })),
      (error: Error) => {
        assert.ok(error instanceof AssertionError)
        assert.match(
          error.message,
          /^Nothing is ready in queue dates: 2 are scheduled, the next due in 5m; 1 is done\.$/,
        )
        return true
      },
    )
    clock.advance('5m')
    const next = await runOnce(holdfast, dates, (job) => job.outcome('odd', { year: 1 }, { warning: 'old' }))
    assert.deepEqual([next.outcome, next.result, next.label, next.warning], ['done', { year: 1 }, 'odd', 'old'])
  })
}

async function setup(options?: Parameters<typeof openInMemory>[0]) {
  const { holdfast, clock } = await openInMemory(options)
  return { holdfast, clock, [Symbol.asyncDispose]: () => holdfast.close() }
}

test('an endless chain of follow-ups ends at maxJobs, with an error that says so', async () => {
  await using world = await setup()
  const { holdfast } = world
  await holdfast.queue(receipts).enqueue({ for: 'ever' })
  const again = drain(holdfast, [[receipts, (job) => job.effects.enqueue(receipts, { for: 'ever' })]], { maxJobs: 25 })
  await assert.rejects(again, (error: Error) => {
    assert.ok(error instanceof AssertionError)
    assert.match(error.message, /drain ran 25 jobs, its maxJobs, and 1 more wait.*receipts \(attempt 1, done\)/s)
    return true
  })
  await drain(holdfast, [[receipts, () => undefined]], { maxJobs: 1 })
})

test('every kind of end is reported: dead at once, released, cancelled while it runs, unreadable, wrong result', async () => {
  await using world = await setup()
  const { holdfast } = world
  await holdfast.queue(mails).enqueueMany([{ payload: { to: 'invalid' } }, { payload: { to: 'back' } }])
  const { id } = await holdfast.queue(mails).enqueue({ to: 'unwanted' })
  let releases = 0
  const report = await drain(holdfast, [
    [
      mails,
      async (job) => {
        if (job.payload.to === 'invalid') throw new Permanent('no such address')
        if (job.payload.to === 'back') return releases++ === 0 ? job.release() : { sent: true }
        const { signal } = job
        await holdfast.cancel(id)
        await new Promise((resolve) => signal.addEventListener('abort', resolve))
        throw signal.reason
      },
    ],
  ])
  assert.deepEqual(
    report.runs.map(({ payload, outcome }) => [payload, outcome]),
    [
      [{ to: 'invalid' }, 'dead'],
      [{ to: 'back' }, 'released'],
      [{ to: 'back' }, 'done'],
      [{ to: 'unwanted' }, 'cancelled'],
    ],
  )
  assert.equal(report.runs[0]?.error?.message, 'no such address')

  await holdfast.queue('dates').enqueue({ at: 7 })
  const unread = await runOnce(holdfast, dates, () => assert.fail('the handler was called with an unreadable payload'))
  assert.deepEqual([unread.outcome, unread.payload], ['dead', { at: 7 }])
  await holdfast.queue(dates).enqueue({ at: '2031-01-01' })
  const wrong = await runOnce(holdfast, dates, () => ({ year: 'soon' }) as never)
  assert.deepEqual([wrong.outcome, wrong.result], ['retried', null])
  assert.match(wrong.error?.message ?? '', /does not fit the schema/)
})

test('until bounds how far the clock moves, and the clock ends there', async () => {
  await using world = await setup()
  const { holdfast, clock } = world
  const startedAt = clock.now()
  await holdfast.queue(mails).enqueue({ to: 'poll' })
  const report = await drain(holdfast, [[mails, (job) => job.snooze('10m')]], { clock, until: '1h' })
  assert.deepEqual([report.snoozed, clock.now() - startedAt], [7, 3_600_000])
  const none = await drain(holdfast, [[receipts, () => undefined]], { clock, until: new Date(startedAt + 4_000_000) })
  assert.deepEqual([none.runs.length, clock.now() - startedAt], [0, 4_000_000])
  await assert.rejects(drain(holdfast, [[receipts, () => undefined]], { until: '1h' }), { code: 'INVALID_OPTION' })
})

test('a clock that is not the store’s is refused instead of being moved without end', async () => {
  await using world = await setup()
  const { holdfast } = world
  await holdfast.queue(mails).enqueue({ to: 'x' }, { delay: '1m' })
  await assert.rejects(drain(holdfast, [[mails, () => ({ sent: true })]], { clock: new VirtualClock(0) }), {
    code: 'INVALID_OPTION',
  })
})

test('time does not move for a paused queue, nor for queues without a handler', async () => {
  await using world = await setup()
  const { holdfast, clock } = world
  const startedAt = clock.now()
  await holdfast.queue(mails).enqueue({ to: 'x' }, { delay: '1m' })
  await holdfast.queue(receipts).enqueue({ for: 'x' }, { delay: '1m' })
  await holdfast.pause('mails')
  assert.equal((await drain(holdfast, [[mails, () => ({ sent: true })]], { clock })).runs.length, 0)
  assert.equal(clock.now(), startedAt)
  assert.equal((await drain(holdfast, [['*', () => undefined]], { clock })).done, 1)
})

test('with concurrency a handler may wait for a job that it enqueued', async () => {
  await using world = await setup()
  const { holdfast } = world
  await holdfast.queue(mails).enqueue({ to: 'x' })
  const report = await drain(
    holdfast,
    [
      [
        mails,
        async (job) => {
          const { id } = await holdfast.queue(receipts).enqueue({ for: job.payload.to })
          await holdfast.result(id)
          return { sent: true }
        },
      ],
      [receipts, () => undefined],
    ],
    { concurrency: 2 },
  )
  assert.equal(report.done, 2)
})

test('middleware runs around the handler, and its result counts', async () => {
  await using world = await setup()
  const { holdfast } = world
  await holdfast.queue(mails).enqueue({ to: 'x' })
  const seen: string[] = []
  const run = await runOnce(holdfast, mails, () => ({ sent: false }), {
    middleware: [
      async (job, next) => {
        seen.push(job.queue)
        return { ...((await next()) as object), sent: true }
      },
    ],
  })
  assert.deepEqual([seen, run.result], [['mails'], { sent: true }])
})

test('a handler may close its gate; while it is closed nothing runs', async () => {
  await using world = await setup()
  const { holdfast } = world
  const gate = holdfast.gate('session')
  await holdfast.queue(mails).enqueueMany([{ payload: { to: 'a' } }, { payload: { to: 'b' } }])
  const report = await drain(holdfast, [[mails, (job) => job.closeGate('expired')]], { gate })
  assert.deepEqual([report.released, report.runs.length, (await gate.state()).open], [1, 1, false])
  await assert.rejects(
    runOnce(holdfast, mails, () => ({ sent: true }), { gate }),
    /gate session is closed/,
  )
  await gate.open()
  assert.equal((await drain(holdfast, [[mails, () => ({ sent: true })]], { gate })).done, 2)
})

test('a handler in a module runs in its thread', async () => {
  await using world = await setup()
  const { holdfast } = world
  await holdfast.queue('shout').enqueue({ word: 'hey' })
  const run = await runOnce(holdfast, 'shout', new URL('./programs/shout.ts', import.meta.url), { threads: 1 })
  assert.deepEqual([run.outcome, run.payload, run.result], ['done', { word: 'hey' }, 'HEY'])
  assert.equal((await holdfast.kv.get('shouted'))?.value, 'hey')
})

test('a job that another caller has claimed is left alone', async () => {
  await using world = await setup()
  const { holdfast, clock } = world
  await holdfast.queue(mails).enqueueMany([{ payload: { to: 'a' } }, { payload: { to: 'b' } }])
  const [lease] = await holdfast.queue(mails).claim()
  const report = await drain(holdfast, [[mails, () => ({ sent: true })]], { clock })
  assert.deepEqual(
    report.runs.map(({ payload }) => payload),
    [{ to: 'b' }],
  )
  await assert.rejects(
    runOnce(holdfast, mails, () => ({ sent: true })),
    /1 is running, leased elsewhere; 1 is done/,
  )
  await lease?.done({ sent: true })
})

test('a drain whose client is closed meanwhile ends, and releases its running jobs', async () => {
  const { holdfast } = await openInMemory()
  await holdfast.queue(mails).enqueue({ to: 'x' })
  const started = Promise.withResolvers<void>()
  const draining = drain(holdfast, [
    [
      mails,
      async ({ signal }) => {
        started.resolve()
        await new Promise((resolve) => signal.addEventListener('abort', resolve))
        throw signal.reason
      },
    ],
  ])
  await started.promise
  await holdfast.close({ grace: 0 })
  assert.equal((await draining).released, 1)
})

test('with virtual timers a timeout happens when the clock is moved', async () => {
  await using world = await setup({ timers: 'virtual' })
  const { holdfast, clock } = world
  await holdfast.queue(mails).enqueue({ to: 'slow' }, { timeout: '10m', attempts: 1 })
  const started = Promise.withResolvers<void>()
  const run = runOnce(holdfast, mails, async ({ signal }) => {
    started.resolve()
    await new Promise((resolve) => signal.addEventListener('abort', resolve))
    return { sent: false }
  })
  await started.promise
  clock.advance('10m')
  const { outcome, error } = await run
  assert.equal(outcome, 'dead')
  assert.match(error?.message ?? '', /took longer than its timeout of 10 min/)
})

test('an hour is an hour, although timers wait for fractions of a millisecond', async () => {
  const clock = new VirtualClock(Date.UTC(2030, 0, 1), { timers: 'virtual' })
  const began = clock.now()
  let rings = 0
  const again = () => {
    rings += 1
    clock.timers?.after(0.1 + rings / 7, again)
  }
  again()
  clock.advance('1h')
  assert.ok(rings > 1_000)
  assert.equal(clock.now(), began + 3_600_000)
})

test('a worker with virtual timers waits until the clock moves, and then finds due jobs', async () => {
  await using world = await setup({ timers: 'virtual' })
  const { holdfast, clock } = world
  await holdfast.queue(receipts).enqueue({ for: 'later' }, { delay: '1h' })
  const worker = holdfast.work(receipts, () => undefined)
  const done = new Promise((resolve) => holdfast.on('job.done', resolve))
  await new Promise((resolve) => holdfast.on('claim.ended', resolve))
  assert.equal((await holdfast.stats()).scheduled, 1)
  clock.advance('1h')
  await done
  await worker.stop()
})

test('drain ends though a result schema does not answer: the attempt fails with its timeout', async () => {
  await using world = await setup()
  const validate = () => new Promise<never>(() => {})
  const silent = defineQueue('silent', {
    result: { '~standard': { version: 1, vendor: 'test', validate } },
    timeout: '20ms',
    attempts: 1,
  })
  await world.holdfast.queue(silent).enqueue(1)
  const { dead, runs } = await drain(world.holdfast, [[silent, () => 'sent']])
  assert.deepEqual([dead, runs[0]?.error?.code], [1, 'JOB_TIMEOUT'])
})

test('the duration of a run ends with its handler, also if its result is validated for longer', async () => {
  await using world = await setup()
  const { holdfast } = world
  const begun = performance.now()
  let asked = begun
  const validate = async (value: unknown) => {
    asked = performance.now()
    while (performance.now() < asked + (asked - begun)) await new Promise(setImmediate) // as long as all before it
    return { value }
  }
  const slow = defineQueue('slow', { result: { '~standard': { version: 1, vendor: 'test', validate } } })
  await holdfast.queue(slow).enqueue(1)
  const durations: number[] = []
  holdfast.on('job.done', ({ durationMs }) => durations.push(durationMs))
  await drain(holdfast, [[slow, () => 'sent']])
  assert.equal(durations.length, 1)
  assert.ok((durations[0] ?? Number.NaN) <= asked - begun, `${durations[0]} ms of ${asked - begun}`)
})
