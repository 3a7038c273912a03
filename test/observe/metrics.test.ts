import assert from 'node:assert/strict'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { type OpenMetricsContentType, Registry } from 'prom-client'
import { isHoldfastError } from '../../src/errors.ts'
import { Events, type HoldfastEvents } from '../../src/events.ts'
import { open } from '../../src/index.ts'
import { catalogue, type MetricEntry } from '../../src/observe/catalogue.ts'
import { type MetricsOptions, metrics } from '../../src/observe/metrics.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { root } from '../support/checkout.ts'

const job = { id: 'j1', queue: 'mail', attempt: 1, maxAttempts: 3, worker: 'w1' }
const run = { ...job, durationMs: 20 }
const failure = { ...run, ending: 'failed', error: { message: 'refused' } } as const
const started = { ...job, createdAt: new Date(0), waitedMs: 400 }

async function setup(options: MetricsOptions = {}) {
  const holdfast = await open('sqlite::memory:')
  const events = new Events()
  let queues = () => holdfast.queues()
  let asked = 0
  const measured = {
    on: events.on.bind(events),
    queues: () => {
      asked += 1
      return queues()
    },
  }
  const observed = metrics(measured, options)
  return {
    ...{ holdfast, events, observed },
    asked: () => asked,
    answerWith: (answer: typeof queues) => {
      queues = answer
    },
    /** The samples of the metrics with this text in their name. */
    samples: async (name: string) =>
      (await observed.text()).split('\n').filter((line) => line.includes(name) && !line.startsWith('#')),
    [Symbol.asyncDispose]: () => holdfast.close(),
  }
}

test('every run that ends is counted, by its outcome', async () => {
  await using world = await setup()
  const { events } = world
  events.emit('job.done', { ...run, outcome: null, warning: null })
  events.emit('job.done', { ...run, outcome: null, warning: null })
  events.emit('job.retrying', { ...failure, runAt: null })
  events.emit('job.dead', failure)
  events.emit('job.snoozed', { ...run, runAt: null })
  events.emit('job.released', { ...run, reason: 'stop' })
  events.emit('job.cancelled', run)
  events.emit('lease.lost', { ...job, during: 'run' })
  events.emit('settle.failed', { ...job, error: new Error('x'), state: 'scheduled' })
  assert.deepEqual(await world.samples('holdfast_jobs_total'), [
    'holdfast_jobs_total{queue="mail",outcome="done"} 2',
    'holdfast_jobs_total{queue="mail",outcome="retrying"} 1',
    'holdfast_jobs_total{queue="mail",outcome="dead"} 1',
    'holdfast_jobs_total{queue="mail",outcome="snoozed"} 1',
    'holdfast_jobs_total{queue="mail",outcome="released"} 1',
    'holdfast_jobs_total{queue="mail",outcome="cancelled"} 1',
    'holdfast_jobs_total{queue="mail",outcome="lost"} 1',
  ])
  assert.deepEqual(await world.samples('run_duration_seconds_count'), [
    'holdfast_run_duration_seconds_count{queue="mail"} 7',
  ])
  assert.deepEqual(await world.samples('leases_lost'), ['holdfast_leases_lost_total{queue="mail",during="run"} 1'])
})

test('durations are in seconds, and the other events have their counters', async () => {
  await using world = await setup()
  const { events } = world
  events.emit('job.enqueued', { id: 'j1', queue: 'mail', status: 'duplicate' })
  events.emit('job.started', started)
  events.emit('claim.ended', { worker: 'w1', claimed: 3, durationMs: 2 })
  events.emit('settle.ended', { worker: 'w1', settled: 3, durationMs: 3 })
  events.emit('sweep.ended', { rescued: 1, dead: 0, promoted: 2, overdue: 3, admitted: 6, pruned: 4, durationMs: 5 })
  events.emit('batch.submitted', { batch: 'b1', name: 'b', added: 9, duplicates: 1, durationMs: 5 })
  events.emit('batch.finished', { batch: 'b1', name: 'b', state: 'done', round: 1 })
  events.emit('heartbeat.failed', { worker: 'w1', jobs: 1, error: new Error('x') })
  events.emit('handler.abandoned', { ...job, reason: 'timeout', abandoned: 1 })
  events.emit('thread.stuck', { ...job, thread: 7, reason: 'timeout', stuck: 1 })
  events.emit('thread.leftover', {
    ...{ worker: 'w1', queue: 'mail', thread: 7, kind: 'exit', job: 'j1', current: null },
    error: { message: 'x' },
  })
  events.emit('settle.failed', { ...job, error: new Error('x'), state: null })
  const wanted = [
    'holdfast_enqueued_total{queue="mail",status="duplicate"} 1',
    'holdfast_wait_duration_seconds_sum{queue="mail"} 0.4',
    'holdfast_claim_duration_seconds_sum 0.002',
    'holdfast_settle_duration_seconds_sum 0.003',
    'holdfast_rescued_total 1',
    'holdfast_promoted_total 2',
    'holdfast_overdue_total 3',
    'holdfast_admitted_total 6',
    'holdfast_pruned_total 4',
    'holdfast_batch_items_total{status="created"} 9',
    'holdfast_batches_finished_total{state="done"} 1',
    'holdfast_heartbeat_failures_total 1',
    'holdfast_handlers_abandoned_total{queue="mail"} 1',
    'holdfast_threads_stuck_total{queue="mail"} 1',
    'holdfast_thread_leftovers_total{queue="mail",kind="exit"} 1',
    'holdfast_settle_failures_total{queue="mail"} 1',
  ]
  const lines = (await world.observed.text()).split('\n')
  assert.deepEqual(
    wanted.filter((line) => !lines.includes(line)),
    [],
  )
})

test('schedules, webhooks and reapers are counted', async () => {
  await using world = await setup()
  const { events } = world
  const slot = { schedule: 'nightly', queue: 'reports', id: 'j1', slot: new Date(0) }
  events.emit('schedule.fired', { ...slot, lateMs: 300 })
  events.emit('schedule.fired', { ...slot, lateMs: 700 })
  events.emit('schedule.skipped', { schedule: 'nightly', slots: 3, reason: 'missed' })
  events.emit('schedule.skipped', { schedule: 'nightly', slots: 1, reason: 'duplicate' })
  events.emit('schedule.failed', { schedule: 'nightly', error: new Error('x') })
  events.emit('firing.failed', { error: new Error('x') })
  const delivery = { ...job, queue: 'hooks', host: 'example.org', durationMs: 250 }
  events.emit('delivery.ended', { ...delivery, status: 204, outcome: 'done' })
  events.emit('delivery.ended', { ...delivery, status: 503, outcome: 'retry' })
  events.emit('delivery.ended', { ...delivery, status: null, outcome: 'retry' })
  events.emit('reaper.ran', { reaper: 'orders', found: 5, revived: 2, duplicates: 2, failed: 1, durationMs: 40 })
  events.emit('reaper.failed', { reaper: 'orders', error: new Error('x') })
  const wanted = [
    'holdfast_schedule_fired_total{schedule="nightly"} 2',
    'holdfast_schedule_lag_seconds_sum{schedule="nightly"} 1',
    'holdfast_schedule_skipped_total{schedule="nightly",reason="missed"} 3',
    'holdfast_schedule_skipped_total{schedule="nightly",reason="duplicate"} 1',
    'holdfast_schedule_failures_total{schedule="nightly"} 1',
    'holdfast_firing_failures_total 1',
    'holdfast_webhook_deliveries_total{queue="hooks",outcome="done",status="2xx"} 1',
    'holdfast_webhook_deliveries_total{queue="hooks",outcome="retry",status="5xx"} 1',
    'holdfast_webhook_deliveries_total{queue="hooks",outcome="retry",status="none"} 1',
    'holdfast_webhook_duration_seconds_sum{queue="hooks"} 0.75',
    'holdfast_reaper_runs_total{reaper="orders"} 1',
    'holdfast_reaper_revived_total{reaper="orders"} 2',
    'holdfast_reaper_failures_total{reaper="orders"} 1',
    'holdfast_reaper_duration_seconds_sum{reaper="orders"} 0.04',
  ]
  const lines = (await world.observed.text()).split('\n')
  assert.deepEqual(
    wanted.filter((line) => !lines.includes(line)),
    [],
  )
})

test('a slot that is not fired shows in the metrics of every process until it is', async (t) => {
  let now = 1_000
  t.mock.method(performance, 'now', () => now)
  const clock = new VirtualClock(Date.now() - 7_200_000)
  await using holdfast = await open('sqlite::memory:', { clock })
  const { text } = metrics(holdfast)
  const overdue = async () => {
    now += 1_001
    const line = (await text()).split('\n').find((each) => each.startsWith('holdfast_schedule_overdue'))
    return Number(line?.split(' ')[1])
  }
  await holdfast.schedule('hourly', { cron: '0 * * * *', queue: 'reports' })
  assert.equal(await overdue(), 0)
  clock.advance('90m')
  assert.ok((await overdue()) > 3_000)
  await holdfast.sweep()
  assert.equal(await overdue(), 0)
})

test('a worker has gauges while it runs, and an end that is emitted twice counts once', async () => {
  await using world = await setup()
  const { events } = world
  events.emit('worker.started', { worker: 'w1', queues: null, concurrency: 5 })
  events.emit('job.started', started)
  events.emit('job.started', { ...started, id: 'j2' })
  assert.deepEqual(await world.samples('{worker='), [
    'holdfast_running{worker="w1"} 2',
    'holdfast_capacity{worker="w1"} 5',
  ])
  events.emit('lease.lost', { ...job, during: 'run' })
  events.emit('lease.lost', { ...job, during: 'settle' })
  assert.deepEqual(await world.samples('holdfast_running'), ['holdfast_running{worker="w1"} 1'])
  events.emit('job.done', { ...run, id: 'j2', outcome: null, warning: null })
  assert.deepEqual(await world.samples('holdfast_running'), ['holdfast_running{worker="w1"} 0'])
  events.emit('worker.stopped', { worker: 'w1' })
  assert.deepEqual(await world.samples('{worker='), [])
})

test('queues are read from the store on a scrape, at most once a second', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  let now = 1_000
  t.mock.method(performance, 'now', () => now)
  await using world = await setup()
  await world.holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2, delay: '1h' }])
  await world.holdfast.pause('mail')
  assert.deepEqual(
    (await world.samples('holdfast_queue')).filter((line) => !line.endsWith(' 0')),
    [
      'holdfast_queue_jobs{queue="mail",state="scheduled"} 1',
      'holdfast_queue_jobs{queue="mail",state="ready"} 1',
      'holdfast_queue_paused{queue="mail"} 1',
    ],
  )
  assert.match((await world.samples('waiting_age')).join(), /^holdfast_waiting_age_seconds\{queue="mail"\} [\d.]+$/)
  assert.equal(world.asked(), 1)
  now += 1_001
  await world.observed.text()
  assert.equal(world.asked(), 2)
})

test('a store that fails or hangs removes only its own gauges', async (t) => {
  let now = 1_000
  t.mock.method(performance, 'now', () => now)
  await using world = await setup()
  await world.holdfast.queue('mail').enqueue(1)
  assert.deepEqual(await world.samples('store_up'), ['holdfast_store_up 1'])
  const hung = () => new Promise<never>(() => undefined)
  const failed = () => Promise.reject(new Error('connection refused'))
  for (const answer of [failed, hung]) {
    world.answerWith(answer)
    now += 1_001
    t.mock.timers.enable({ apis: ['setTimeout'] })
    const reading = world.samples('holdfast_')
    t.mock.timers.tick(2_000)
    const lines = await reading
    t.mock.timers.reset()
    assert.ok(lines.includes('holdfast_store_up 0'))
    assert.ok(lines.includes('holdfast_rescued_total 0'))
    assert.deepEqual(
      lines.filter((line) => line.includes('mail')),
      [],
    )
  }
})

test('names that users choose are bounded', async () => {
  await using world = await setup()
  const done = (queue: string, outcome: string, warning: string | null = null): HoldfastEvents['job.done'] => ({
    ...{ ...run, queue, outcome, warning },
  })
  for (let i = 0; i < 150; i++) world.events.emit('job.done', done('mail', `outcome-${i}`))
  world.events.emit('job.done', done('mail', 'late', 'consent-wall'))
  world.events.emit('job.done', done('mail', 'outcome-3'))
  const outcomes = await world.samples('holdfast_outcomes_total')
  assert.equal(outcomes.length, 102)
  assert.ok(outcomes.includes('holdfast_outcomes_total{queue="mail",outcome="outcome-3",warning=""} 2'))
  assert.ok(outcomes.includes('holdfast_outcomes_total{queue="mail",outcome="other",warning=""} 50'))
  assert.ok(outcomes.includes('holdfast_outcomes_total{queue="mail",outcome="other",warning="other"} 1'))
  for (let i = 0; i < 1_200; i++) world.events.emit('job.cancelled', { ...run, queue: `queue-${i}` })
  const cancelled = await world.samples('outcome="cancelled"')
  assert.equal(cancelled.length, 1_000)
  assert.ok(cancelled.includes('holdfast_jobs_total{queue="other",outcome="cancelled"} 201'))
})

test('a Holdfast client can be measured', async () => {
  await using holdfast = await open('sqlite::memory:')
  const { text } = metrics(holdfast)
  await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2, dedup: { key: 'a' } }])
  await holdfast.queue('mail').enqueue(3, { dedup: { key: 'a' } })
  const lines = (await text()).split('\n')
  assert.ok(lines.includes('holdfast_enqueued_total{queue="mail",status="created"} 2'))
  assert.ok(lines.includes('holdfast_enqueued_total{queue="mail",status="duplicate"} 1'))
  assert.ok(lines.includes('holdfast_queue_jobs{queue="mail",state="ready"} 2'))
})

test('metrics can be added to an application’s registry, and removed again', async () => {
  const registry = new Registry()
  await using world = await setup({ registry, prefix: 'jobs_' })
  assert.match(world.observed.contentType, /^text\/plain/)
  assert.equal(world.observed.registry, registry)
  await using second = await setup({ registry })
  await assert.rejects(setup({ registry, prefix: 'jobs_' }), (error) => isHoldfastError(error, 'INVALID_OPTION'))
  await assert.rejects(setup({ prefix: 'no good' }), (error) => isHoldfastError(error, 'INVALID_OPTION'))
  world.observed.stop()
  assert.equal(world.events.hasListener('job.done'), false)
  const text = await second.observed.text()
  assert.ok(text.includes('holdfast_store_up 1') && !text.includes('jobs_store_up'))
})

test('no two families share a name, also in OpenMetrics', async () => {
  const registry = new Registry<OpenMetricsContentType>()
  registry.setContentType(Registry.OPENMETRICS_CONTENT_TYPE)
  await using world = await setup({ registry })
  const families = (await world.observed.text()).split('\n').filter((line) => line.startsWith('# TYPE'))
  const names = families.map((line) => line.split(' ')[2])
  assert.equal(names.length, Object.keys(catalogue).length)
  assert.equal(new Set(names).size, names.length)
})

test('the reference lists every metric', () => {
  const file = join(root, 'docs/reference/metrics.md')
  const rows = Object.entries<MetricEntry>(catalogue).map(([name, { type, labels, help }]) => {
    const shown = labels.map((label) => `\`${label}\``).join(', ')
    return `| \`holdfast_${name}\` | ${type} | ${shown} | ${help} |\n`
  })
  const table = /(?<=\|---\|---\|---\|---\|\n)(?:\|.*\n)+/
  const read = () => readFileSync(file, 'utf8')
  if (process.env['UPDATE_GOLDEN'])
    writeFileSync(
      file,
      read().replace(table, () => rows.join('')),
    )
  assert.equal(
    table.exec(read())?.[0],
    rows.join(''),
    'UPDATE_GOLDEN=1 npm test -- test/observe/metrics.test.ts writes it',
  )
})
