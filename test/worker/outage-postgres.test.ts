// The server stops while a worker runs jobs, and starts again.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { open } from '../../src/open.ts'
import { recount } from '../conformance/world.ts'
import { machineMs } from '../sqlite/process.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { endingsOf, enqueue, idsOf, jobsOf } from './processes.ts'
import { WorkerProcess } from './worker-process.ts'

/** A worker repeats its calls less and less often, but at least every few seconds. */
const backMs = 10_000

let server: Server

before(async () => {
  server = await startServer()
})
after(() => server[Symbol.asyncDispose]())

test('jobs that end while the server is away are settled once it is back, each once; the outage is reported once', async (t) => {
  const url = `${server.url()}?schema=away`
  await using holdfast = await open(url)
  await using worker = await WorkerProcess.start(url, 'worker', { lease: '30s', concurrency: 5 })
  const running = await enqueue(holdfast, 5, { do: 'waitForGo' })
  await worker.until(() => worker.began.length === running.length)
  const waiting = await enqueue(holdfast, 10, { do: 'work' }) // committed durably, and with it the claims before it
  await server.stop('immediate')
  worker.go()
  await worker.happened('store.down', 1)
  await server.start()
  const backAt = machineMs()
  const ids = [...running, ...waiting]
  await worker.happened('job.done', ids.length)
  const tookMs = machineMs() - backAt
  t.diagnostic(`all was settled ${tookMs.toFixed()} ms after the server was back`)
  assert.ok(tookMs < backMs)
  assert.deepEqual(idsOf(worker.events('job.done')), ids.toSorted())
  assert.deepEqual(idsOf(worker.began), ids.toSorted(), 'each ran once')
  for (const job of await jobsOf(holdfast, ids)) assert.deepEqual(endingsOf(job), ['worker done'])
  assert.deepEqual([worker.events('store.down').length, worker.events('store.up').length], [1, 1])
  assert.deepEqual(worker.events('lease.lost'), [])
  await recount(holdfast)
})

test('an idle worker logs a short outage in two lines: its begin, and its end with the time since the first failed call', async () => {
  const lines: string[] = []
  const log = (line: string) => void lines.push(line)
  await using holdfast = await open(`${server.url()}?schema=idle`, { logger: { info() {}, warn: log, error: log } })
  const worker = holdfast.work('mail', async () => null)
  const heard = (name: 'worker.started' | 'store.down' | 'store.up') =>
    new Promise<number>((resolve) => holdfast.on(name, () => resolve(machineMs())))
  await heard('worker.started')
  const isBack = new Promise<number>((resolve) => holdfast.on('store.up', ({ awayMs }) => resolve(awayMs)))
  const isAway = heard('store.down')
  await server.stop('immediate')
  const stoppedAt = machineMs()
  await isAway // a shorter outage may pass without a call that fails
  await sleep(1_000)
  await server.start()
  const awayMs = await isBack
  const tookMs = machineMs() - stoppedAt
  await sleep(1_200)
  await worker.stop()
  assert.equal(lines.length, 2, lines.join('\n'))
  assert.match(lines[0] ?? '', /^The store does not answer/)
  assert.match(lines[1] ?? '', /^The store answers again after/)
  assert.ok(awayMs > 900 && awayMs <= tookMs + 1_500, `${awayMs} ms of ${tookMs} ms`)
})

test('every job is done once although the server crashes under load again and again', async (t) => {
  const url = `${server.url()}?schema=crashes`
  await using holdfast = await open(url)
  await using worker = await WorkerProcess.start(url, 'worker', { lease: '2s', concurrency: 10 })
  const crashes = 2
  const ids = await enqueue(holdfast, 200, { do: 'work', ms: 10 })
  for (let crash = 1; crash <= crashes; crash++) {
    await worker.happened('job.done', crash * 60)
    await server.stop('immediate')
    await worker.happened('store.down', crash)
    await server.start()
    await worker.happened('store.up', crash)
  }
  await Promise.all(ids.map((id) => holdfast.result(id)))
  await worker.happened('job.done', ids.length) // the worker emits it a moment after the store has it
  t.diagnostic(`${worker.began.length} runs for ${ids.length} jobs, ${worker.events('lease.lost').length} leases lost`)
  assert.deepEqual(idsOf(worker.events('job.done')), ids.toSorted(), 'each was settled once')
  assert.deepEqual([worker.events('store.down').length, worker.events('store.up').length], [crashes, crashes])
  await recount(holdfast)
})

test('a worker that is stopped while the server is away ends, and another worker repeats what it could not settle', async (t) => {
  const url = `${server.url()}?schema=ends`
  await using holdfast = await open(url)
  await using worker = await WorkerProcess.start(url, 'worker', { lease: '2s', concurrency: 5 })
  const ids = await enqueue(holdfast, 5, { do: 'waitForGo' })
  await worker.until(() => worker.began.length === ids.length)
  await server.stop('immediate')
  worker.go()
  await worker.happened('store.down', 1)
  worker.kill('SIGTERM')
  await worker.happened('worker.stopping', 1)
  worker.kill('SIGTERM')
  const askedAt = machineMs()
  assert.equal(await worker.ended, 'SIGTERM')
  const tookMs = machineMs() - askedAt
  t.diagnostic(`ended ${tookMs.toFixed()} ms after the second signal`)
  assert.ok(tookMs < backMs)
  await server.start()
  await using other = await WorkerProcess.start(url, 'other', { lease: '2s', concurrency: 5 })
  other.go()
  await other.happened('job.done', ids.length)
  assert.deepEqual(idsOf(other.events('job.done')), ids.toSorted())
  await recount(holdfast)
})

test('a worker and its client stop within their timeout while the server is away', async (t) => {
  const url = `${server.url()}?schema=stopping`
  const holdfast = await open(url, { logger: false })
  const started = new Promise((resolve) => holdfast.on('worker.started', resolve))
  const began = Promise.withResolvers<void>()
  const { promise: go, resolve: finish } = Promise.withResolvers<void>()
  const worker = holdfast.work('mail', async () => {
    began.resolve()
    await go
  })
  await started
  await holdfast.queue('mail').enqueue(1)
  await began.promise
  const isAway = new Promise((resolve) => holdfast.on('store.down', resolve))
  await server.stop('immediate')
  try {
    finish()
    await isAway
    const beganAt = machineMs()
    await worker.stop({ grace: 0, timeout: '1s' })
    const stoppedMs = machineMs() - beganAt
    await holdfast.close({ timeout: '1s' })
    const closedMs = machineMs() - beganAt
    t.diagnostic(`stopped after ${stoppedMs.toFixed()} ms, closed after ${closedMs.toFixed()} ms`)
    assert.ok(stoppedMs < 3_000)
    assert.ok(closedMs < 6_000)
  } finally {
    await server.start()
  }
})
