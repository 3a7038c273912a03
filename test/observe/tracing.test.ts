import assert from 'node:assert/strict'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { after, before, test } from 'node:test'
import { context, type Span, SpanKind, SpanStatusCode, trace } from '@opentelemetry/api'
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks'
import {
  BasicTracerProvider,
  InMemorySpanExporter,
  type ReadableSpan,
  SimpleSpanProcessor,
} from '@opentelemetry/sdk-trace-base'
import { type Holdfast, open } from '../../src/index.ts'
import { bounds } from '../../src/job/bounds.ts'
import { injectTrace } from '../../src/observe/trace-context.ts'
import { type TracedJob, type TracingOptions, tracing } from '../../src/observe/tracing.ts'
import { scratchDirectory } from '../support/scratch.ts'

const exporter = new InMemorySpanExporter()

before(() => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable())
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }))
})
after(() => {
  trace.disable()
  context.disable()
})

async function setup() {
  exporter.reset()
  const holdfast = await open('sqlite::memory:')
  return { holdfast, [Symbol.asyncDispose]: () => holdfast.close() }
}

function within<T>(name: string, act: (span: Span) => Promise<T>): Promise<T> {
  return trace.getTracer('application').startActiveSpan(name, async (span) => {
    try {
      return await act(span)
    } finally {
      span.end()
    }
  })
}

async function claimOne(holdfast: Holdfast, queue: string) {
  const [lease] = await holdfast.queue(queue).claim()
  assert.ok(lease)
  return lease
}

/** Runs the job as a worker does. */
function runTraced(job: TracedJob, handler: () => Promise<unknown>, options: TracingOptions = {}): Promise<unknown> {
  return tracing(options)(job, handler)
}

function spanNamed(name: string): ReadableSpan {
  const span = exporter.getFinishedSpans().find((each) => each.name === name)
  assert.ok(span, `no span ${name}`)
  return span
}

const traceOf = (span: ReadableSpan) => span.spanContext().traceId
const idOf = (span: ReadableSpan) => span.spanContext().spanId
const traceparentOf = (span: ReadableSpan) => `00-${traceOf(span)}-${idOf(span)}-01`

const tracedJob: TracedJob = {
  ...{ id: 'j1', queue: 'mail', attempt: 2, maxAttempts: 5 },
  headers: { traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', tracestate: 'vendor=1' },
}

test('a trace goes from the producer through the headers into the handler', async () => {
  await using world = await setup()
  const { id } = await within('request', () => world.holdfast.queue('mail').enqueue(1, { headers: { tenant: 'a' } }))
  const lease = await claimOne(world.holdfast, 'mail')
  await runTraced(lease.job, () => within('smtp', async () => undefined))

  const [send, run, inner] = [spanNamed('send mail'), spanNamed('process mail'), spanNamed('smtp')]
  assert.equal(send.parentSpanContext?.spanId, idOf(spanNamed('request')))
  assert.deepEqual(lease.job.headers, { tenant: 'a', traceparent: traceparentOf(send) })
  assert.equal(run.parentSpanContext?.spanId, idOf(send))
  assert.equal(inner.parentSpanContext?.spanId, idOf(run))
  assert.equal(new Set([send, run, inner].map(traceOf)).size, 1)
  assert.deepEqual([send.kind, run.kind], [SpanKind.PRODUCER, SpanKind.CONSUMER])
  const shared = { 'messaging.system': 'holdfast', 'messaging.destination.name': 'mail', 'messaging.message.id': id }
  assert.deepEqual(send.attributes, {
    ...{ ...shared, 'messaging.operation.name': 'send', 'messaging.operation.type': 'send' },
  })
  assert.deepEqual(run.attributes, {
    ...{ ...shared, 'messaging.operation.name': 'process', 'messaging.operation.type': 'process' },
    ...{ 'holdfast.attempt': 1, 'holdfast.max_attempts': lease.job.maxAttempts, 'holdfast.run': 'returned' },
  })
})

test('the span of a run has the labels of its job as attributes', async () => {
  await using world = await setup()
  await world.holdfast.queue('mail').enqueue(1, { labels: { customer: 'c1', region: 'eu' } })
  const lease = await claimOne(world.holdfast, 'mail')
  await runTraced(lease.job, async () => undefined)
  const { attributes } = spanNamed('process mail')
  assert.deepEqual([attributes['holdfast.label.customer'], attributes['holdfast.label.region']], ['c1', 'eu'])
})

test('jobs that are enqueued together have one send span and the same context', async () => {
  await using world = await setup()
  await within('request', () => world.holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }]))
  const send = spanNamed('send mail')
  assert.equal(send.attributes['messaging.batch.message_count'], 2)
  assert.equal(send.attributes['messaging.message.id'], undefined)
  const leases = await world.holdfast.queue('mail').claim({ max: 2 })
  for (const { job } of leases) assert.deepEqual(job.headers, { traceparent: traceparentOf(send) })
})

test('without an active span there is no span and no header', async () => {
  await using world = await setup()
  await world.holdfast.queue('mail').enqueue(1)
  const lease = await claimOne(world.holdfast, 'mail')
  await lease.done(undefined, { enqueue: [{ queue: 'next', payload: 1 }] })
  assert.deepEqual((await claimOne(world.holdfast, 'next')).job.headers, {})
  assert.deepEqual([lease.job.headers, exporter.getFinishedSpans()], [{}, []])
})

test("an application's own traceparent stays, and a trace that exceeds the header limit is left out", async () => {
  await using world = await setup()
  const own = { Traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00' }
  const full = { text: 'x'.repeat(bounds.headersBytes - '{"text":""}'.length) }
  for (const headers of [own, full]) {
    await within('request', () => world.holdfast.queue('mail').enqueue(1, { headers }))
    assert.deepEqual((await claimOne(world.holdfast, 'mail')).job.headers, headers)
  }
})

test('an enqueue in a caller’s transaction is still written before the call first waits', async () => {
  await using scratch = await scratchDirectory()
  const path = join(scratch.path, 'jobs.db')
  await using holdfast = await open(`sqlite:${path}`)
  using database = new DatabaseSync(path)
  await within('request', async () => {
    database.exec('begin')
    const enqueued = holdfast.queue('mail').enqueue(1, { tx: database })
    database.exec('commit')
    await enqueued
  })
  assert.match((await claimOne(holdfast, 'mail')).job.headers['traceparent'] ?? '', /^00-/)
})

test('an enqueue that is refused fails its span', async () => {
  await using world = await setup()
  const { id } = await world.holdfast.queue('mail').enqueue(1)
  await assert.rejects(within('request', () => world.holdfast.queue('mail').enqueue(2, { id })))
  const { status, attributes, events } = spanNamed('send mail')
  assert.equal(status.code, SpanStatusCode.ERROR)
  assert.equal(attributes['error.type'], 'DUPLICATE_JOB_ID')
  assert.equal(events[0]?.name, 'exception')
})

test('follow-up jobs carry the context of the settlement, or of the handler that staged them', async () => {
  await using world = await setup()
  await world.holdfast.queue('mail').enqueue(1)
  const lease = await claimOne(world.holdfast, 'mail')
  await within('by hand', () => lease.done(undefined, { enqueue: [{ queue: 'next', payload: 1 }] }))
  const settle = spanNamed('settle')
  assert.equal(settle.kind, SpanKind.CLIENT)
  assert.deepEqual(settle.attributes, {
    'messaging.system': 'holdfast',
    'messaging.operation.name': 'settle',
    'messaging.operation.type': 'settle',
    'messaging.message.id': lease.job.id,
    'holdfast.settlement': 'done',
  })
  assert.deepEqual((await claimOne(world.holdfast, 'next')).job.headers, { traceparent: traceparentOf(settle) })

  let staged: Readonly<Record<string, string>> = {}
  await runTraced(tracedJob, async () => {
    staged = injectTrace({ tenant: 'a' })
  })
  const { traceparent } = staged
  assert.equal(traceparent, traceparentOf(spanNamed('process mail')))
  assert.deepEqual(Object.keys(staged), ['tenant', 'traceparent', 'tracestate'])
})

test('effects of a cancel carry the context too', async () => {
  await using world = await setup()
  const { id } = await world.holdfast.queue('mail').enqueue(1)
  await within('request', () => world.holdfast.cancel(id, { effects: { enqueue: [{ queue: 'next', payload: 1 }] } }))
  const { headers } = (await claimOne(world.holdfast, 'next')).job
  assert.deepEqual(headers, { traceparent: traceparentOf(spanNamed('request')) })
})

test('a settlement by a lost lease fails its span', async () => {
  await using world = await setup()
  await world.holdfast.queue('mail').enqueue(1)
  const lease = await claimOne(world.holdfast, 'mail')
  await lease.done()
  await assert.rejects(within('by hand', () => lease.done()))
  assert.deepEqual(spanNamed('settle').status, { code: SpanStatusCode.ERROR, message: 'The lease was lost.' })
})

test('a handler that fails fails its span, with the error', async () => {
  await using _world = await setup()
  const refused = Object.assign(new Error('refused'), { code: 'ECONNREFUSED' })
  await assert.rejects(
    runTraced(tracedJob, () => Promise.reject(refused)),
    refused,
  )
  const { status, attributes, events } = spanNamed('process mail')
  assert.deepEqual(status, { code: SpanStatusCode.ERROR, message: 'refused' })
  assert.deepEqual([attributes['error.type'], attributes['holdfast.run']], ['ECONNREFUSED', 'failed'])
  assert.equal(events[0]?.attributes?.['exception.message'], 'refused')

  exporter.reset()
  const aborted = { ...tracedJob, signal: AbortSignal.abort() }
  await assert.rejects(runTraced(aborted, () => Promise.reject('gone')))
  assert.equal(spanNamed('process mail').attributes['holdfast.run'], 'aborted')
})

test('a run may be linked to its enqueue instead of being its child', async () => {
  await using _world = await setup()
  await runTraced(tracedJob, async () => 1, { relation: 'link' })
  const run = spanNamed('process mail')
  assert.equal(run.parentSpanContext, undefined)
  assert.equal(run.links[0]?.context.spanId, 'b7ad6b7169203331')
  assert.notEqual(traceOf(run), '0af7651916cd43dd8448eb211c80319c')
})

test('a job without a trace starts its own, whatever span was active when its worker started', async () => {
  await using _world = await setup()
  const broken = [
    '',
    'nonsense',
    `00-${'0'.repeat(32)}-b7ad6b7169203331-01`,
    'ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
  ]
  for (const traceparent of broken) {
    exporter.reset()
    await within('start', () => runTraced({ ...tracedJob, headers: { traceparent } }, async () => 1))
    const run = spanNamed('process mail')
    assert.equal(run.parentSpanContext, undefined)
    assert.notEqual(traceOf(run), traceOf(spanNamed('start')))
  }
})

test('a custom tracer is used', async () => {
  await using _world = await setup()
  const own = new InMemorySpanExporter()
  const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(own)] })
  await runTraced(tracedJob, async () => 1, { tracer: provider.getTracer('mine') })
  assert.deepEqual([own.getFinishedSpans().length, exporter.getFinishedSpans().length], [1, 0])
})
