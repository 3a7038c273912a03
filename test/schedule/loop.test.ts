// Schedules fire beside workers: soon, without a call, and not if they are switched off.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import test from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { closedError } from '../../src/client/calls.ts'
import { HoldfastError } from '../../src/errors.ts'
import { Events } from '../../src/events.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import type { Logger } from '../../src/observe/logger.ts'
import { open } from '../../src/open.ts'
import type { Firing } from '../../src/schedule/firing.ts'
import { ScheduleLoop } from '../../src/schedule/schedule-loop.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { VirtualTimers } from '../../src/testing/virtual-timers.ts'
import { scratchDirectory } from '../support/scratch.ts'

const everySecond = { cron: '* * * * * *', queue: 'ticks', missed: 'all' } as const

test('beside a worker a slot is fired within a second, also one that another client declared', async () => {
  await using world = await setup()
  const { holdfast, another } = world
  const fired = listen(holdfast)
  holdfast.work('ticks', async () => null)
  await (await another()).schedule('tick', everySecond)
  await fired.until(3)
  assert.ok(
    fired.events.every(({ lateMs }) => lateMs >= 0 && lateMs < 1_000),
    JSON.stringify(fired.events),
  )
})

test('without a worker nothing fires until a sweep', async () => {
  await using world = await setup()
  await world.holdfast.schedule('tick', everySecond)
  await sleep(1_500)
  assert.equal((await world.holdfast.stats()).ready, 0)
  assert.ok((await world.holdfast.sweep()).fired > 0)
})

test('HOLDFAST_DISABLE=schedule and { sweep: false } leave firing to other clients', async () => {
  await using world = await setup()
  const { holdfast, another } = world
  await holdfast.schedule('tick', everySecond)
  process.env['HOLDFAST_DISABLE'] = 'schedule'
  try {
    holdfast.work('ticks', async () => null)
    await sleep(100)
  } finally {
    delete process.env['HOLDFAST_DISABLE']
  }
  const other = await another()
  other.work('ticks', async () => null, { sweep: false })
  await sleep(1_500)
  const [tick] = await holdfast.schedules()
  assert.equal(tick?.fired, 0)
  assert.ok(tick?.overdueSince)
})

test('a machine that slept for hours fires missed slots by each schedule’s `missed` option, within a second of waking', async () => {
  const clock = new VirtualClock()
  await using holdfast = await open('sqlite::memory:', { clock, logger: false })
  const fired = listen(holdfast)
  await holdfast.schedule('all', { cron: '0 * * * *', queue: 'ticks', missed: 'all' })
  await holdfast.schedule('once', { cron: '0 * * * *', queue: 'ticks', missed: 'once' })
  await holdfast.schedule('skip', { cron: '0 * * * *', queue: 'ticks' })
  const seen: string[] = []
  holdfast.work('ticks', async (job) => void seen.push(String(job.headers['holdfast-schedule'])))
  await sleep(200)
  assert.equal(fired.events.length, 0)
  clock.advance(4.5 * 3_600_000)
  await fired.until(5)
  await sleep(300)
  assert.deepEqual(seen.sort(), ['all', 'all', 'all', 'all', 'once'])
})

test('slots do not fire again after the clock is set back', async () => {
  const clock = new VirtualClock()
  await using holdfast = await open('sqlite::memory:', { clock, logger: false })
  const fired = listen(holdfast)
  await holdfast.schedule('tick', everySecond)
  holdfast.work('ticks', async () => null)
  for (const ms of [3_000, -2_000, 1_000, 2_000]) {
    clock.advance(ms)
    await sleep(1_100)
  }
  assert.deepEqual(
    fired.events.map(({ slot }) => slot.getUTCSeconds()),
    [1, 2, 3, 4],
  )
})

test('a failing look at the schedules is reported once, and so is its end; an outage is left to the workers', async () => {
  const away = new HoldfastError('STORE_UNAVAILABLE', 'away')
  const missing = new Error('no such table')
  const answers = [missing, missing, null, away, away, null, new Error('disk'), closedError()]
  const reported: string[] = []
  const timers = new VirtualTimers()
  const events = new Events()
  events.on('firing.failed', ({ error }) => reported.push(error.message))
  events.on('firing.resumed', ({ failedMs }) => reported.push(failedMs >= 1_000 ? 'resumed' : `after ${failedMs}`))
  let looks = 0
  const fireDue = async () => {
    const error = answers[looks++] ?? null
    if (error) throw error
    return { fired: 0, skipped: 0, nextInMs: null }
  }
  const loop = new ScheduleLoop({ fireDue } as unknown as Firing, events, { timers, random: Math.random })
  const leave = loop.join({
    away: ({ message }, askedAt) => reported.push(askedAt <= timers.now() ? message : 'asked later'),
    answered: () => reported.push('answered'),
  })
  while (looks < 9) {
    timers.advance(1_000, () => undefined)
    await sleep(0)
  }
  leave()
  await sleep(0)
  const first = ['no such table', 'resumed', 'answered']
  assert.deepEqual(reported, [...first, 'away', 'away', 'answered', 'disk', 'resumed', 'answered'])
})

test('a worker that fires schedules reports a missing table, also in its log', async () => {
  await using world = await setup()
  const lines: string[] = []
  const holdfast = await world.another({ info() {}, warn() {}, error: (line) => void lines.push(line) })
  await holdfast.schedule('tick', everySecond)
  using db = new DatabaseSync(world.path)
  db.exec('alter table holdfast_kv rename to elsewhere')
  const down = new Promise((resolve) => holdfast.on('store.down', resolve))
  holdfast.work('ticks', async () => null)
  await down
  assert.match(lines.join(), /no such table|holdfast_kv/)
})

async function setup() {
  const scratch = await scratchDirectory()
  const clients: Holdfast[] = []
  const path = join(scratch.path, 'jobs.db')
  const another = async (logger: Logger | false = false) => {
    const client = await open(`sqlite:${path}`, { logger })
    clients.push(client)
    return client
  }
  const holdfast = await another()
  const dispose = async () => {
    await Promise.all(clients.map((client) => client.close()))
    await scratch[Symbol.asyncDispose]()
  }
  return { holdfast, another, path, [Symbol.asyncDispose]: dispose }
}

function listen(holdfast: Holdfast) {
  const events: { readonly slot: Date; readonly lateMs: number }[] = []
  let wanted: { readonly count: number; readonly resolve: () => void } | null = null
  holdfast.on('schedule.fired', (event) => {
    events.push(event)
    if (wanted && events.length >= wanted.count) wanted.resolve()
  })
  const until = (count: number) =>
    new Promise<void>((resolve) => {
      wanted = { count, resolve }
      if (events.length >= count) resolve()
    })
  return { events, until }
}
