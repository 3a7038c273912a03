// What a real worker does shows in logs, metrics, traces and health.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { context, trace } from '@opentelemetry/api'
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks'
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base'
import {
  type Handler,
  type HandlerModule,
  type HoldfastEvents,
  healthHandler,
  open,
  Permanent,
  tracing,
  type WorkOptions,
} from '../../src/index.ts'
import { metrics } from '../../src/observe/metrics.ts'

const exporter = new InMemorySpanExporter()

before(() => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable())
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }))
})
after(() => {
  trace.disable()
  context.disable()
})

async function setup(handler: Handler | HandlerModule, options: WorkOptions = {}) {
  exporter.reset()
  const lines: string[] = []
  const write = (message: string) => lines.push(message)
  const holdfast = await open('sqlite::memory:', { logger: { info: write, warn: write, error: write } })
  const { text } = metrics(holdfast)
  const worker = holdfast.work('mail', handler, { name: 'w1', ...options })
  const nextEvent = <Name extends keyof HoldfastEvents>(name: Name) =>
    new Promise<HoldfastEvents[Name]>((resolve) => holdfast.on(name, resolve))
  return { holdfast, worker, lines, text, nextEvent, [Symbol.asyncDispose]: () => holdfast.close() }
}

test('a dead job is logged and counted', async () => {
  await using world = await setup(() => Promise.reject(new Permanent('no such user')))
  const dead = world.nextEvent('job.dead')
  await world.holdfast.queue('mail').enqueue({ secret: 'swordfish' })
  const { id } = await dead
  const said = world.lines.find((line) => line.includes('is dead'))
  assert.equal(said, `Job ${id} of queue mail is dead: attempt 1 of 5 failed: no such user.`)
  const metricsText = await world.text()
  assert.match(metricsText, /^holdfast_jobs_total\{queue="mail",outcome="dead"\} 1$/m)
  assert.match(metricsText, /^holdfast_queue_jobs\{queue="mail",state="dead"\} 1$/m)
  assert.match(metricsText, /^holdfast_running\{worker="w1"\} 0$/m)
  assert.match(metricsText, /^holdfast_settle_duration_seconds_count [1-9]/m)
  assert.ok(!world.lines.join().includes('swordfish'))
})

test('an outcome is counted by its label and is an attribute of the span', async () => {
  await using world = await setup(async (job) => job.outcome('saved', 1, { warning: 'short' }), {
    middleware: [tracing()],
  })
  const done = world.nextEvent('job.done')
  await world.holdfast.queue('mail').enqueue(1)
  await done
  assert.match(await world.text(), /^holdfast_outcomes_total\{queue="mail",outcome="saved",warning="short"\} 1$/m)
  const [run] = exporter.getFinishedSpans()
  assert.equal(run?.name, 'process mail')
  assert.equal(run.attributes['holdfast.outcome'], 'saved')
  assert.equal(run.attributes['holdfast.warning'], 'short')
})

test('follow-up jobs that a handler stages belong to its trace', async () => {
  const handler: Handler = async (job) => {
    job.effects.enqueue('next', 1, { headers: { tenant: 'a' } })
    job.effects.enqueue('next', 2)
  }
  await using world = await setup(handler, { middleware: [tracing()] })
  const done = world.nextEvent('job.done')
  await world.holdfast.queue('mail').enqueue(1)
  await done
  const { traceId, spanId } = exporter.getFinishedSpans()[0]?.spanContext() ?? {}
  const leases = await world.holdfast.queue('next').claim({ max: 2 })
  assert.deepEqual(
    leases.map(({ job }) => job.headers),
    [{ tenant: 'a', traceparent: `00-${traceId}-${spanId}-01` }, { traceparent: `00-${traceId}-${spanId}-01` }],
  )
})

test('follow-up jobs that a handler in a thread stages belong to its trace', async () => {
  const module = new URL('./programs/stages-a-job.ts', import.meta.url)
  await using world = await setup(module, { middleware: [tracing()], threads: 1 })
  const done = world.nextEvent('job.done')
  await world.holdfast.queue('mail').enqueue(1)
  await done
  const { traceId, spanId } = exporter.getFinishedSpans()[0]?.spanContext() ?? {}
  const [lease] = await world.holdfast.queue('next').claim()
  assert.deepEqual(lease?.job.headers, { tenant: 'a', traceparent: `00-${traceId}-${spanId}-01` })
})

test('a worker is a part of the readiness check', async () => {
  await using world = await setup(async () => undefined)
  const health = healthHandler({ ready: { worker: () => world.worker.health() } })
  const status = async () => (await health(new Request('http://localhost/health/ready'))).status
  const done = world.nextEvent('job.done')
  await world.holdfast.queue('mail').enqueue(1)
  await done
  assert.equal(await status(), 200)
  await world.worker.stop()
  assert.equal(await status(), 503)
  assert.doesNotMatch(await world.text(), /worker="w1"/)
})
