// An option that does not exist is refused with a sentence that names those that do: a typing error must not change what is done.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  defineQueue,
  healthHandler,
  isHoldfastError,
  type Lease,
  open,
  Permanent,
  postgres,
  sqlite,
  tracing,
} from '../../src/index.ts'
import { metrics } from '../../src/observe/metrics.ts'
import { createHandler } from '../../src/server/index.ts'
import { drain, expectEnqueued, handlerJob, openInMemory, runOnce } from '../../src/testing/index.ts'
import { rejects } from '../conformance/expect.ts'

const unknown = { readonly: true } as object

test('open refuses an option that does not exist, and opens nothing', async () => {
  await rejects(open('sqlite::memory:', unknown), 'INVALID_OPTION', { option: 'readonly' })
  await rejects(open('sqlite::memory:', { readOnly: 'yes' as never }), 'INVALID_OPTION', { option: 'readOnly' })
})

test('so do the stores, the metrics, the tracing and the handlers', async () => {
  await using holdfast = await open('sqlite::memory:')
  const calls: Record<string, () => unknown> = {
    sqlite: () => sqlite({ path: ':memory:', ...unknown }),
    postgres: () => postgres({ url: 'postgres://127.0.0.1:1/app', ...unknown }),
    metrics: () => metrics(holdfast, unknown),
    tracing: () => tracing(unknown),
    createHandler: () => createHandler(holdfast, unknown),
    'health of createHandler': () => createHandler(holdfast, { health: unknown }),
    healthHandler: () => healthHandler({}, unknown),
    'parts of healthHandler': () => healthHandler(unknown),
  }
  for (const [name, call] of Object.entries(calls)) {
    assert.throws(call, { code: 'INVALID_OPTION', message: /There is no option "readonly"/ }, name)
  }
})

test('postgres refuses a pool and a url together', () => {
  const both = { pool: {} as never, url: 'postgres://127.0.0.1:1/app' }
  assert.throws(() => postgres(both), { code: 'INVALID_OPTION', message: /a pool or a url, not both/ })
})

test('close with an option that does not exist is refused, and closes nothing', async () => {
  await using holdfast = await open('sqlite::memory:')
  holdfast.work('mail', () => 7)
  await rejects(holdfast.close({ grce: 0 } as object), 'INVALID_OPTION', { option: 'grce' })
  await rejects(holdfast.close({ grace: 'soon' as never }), 'INVALID_OPTION', { option: 'grace' })
  const { id } = await holdfast.queue('mail').enqueue(1)
  assert.equal(await holdfast.result(id), 7)
})

test('null is not an object of options: every call refuses it, and does nothing', async () => {
  await using holdfast = await open('sqlite::memory:')
  const mail = defineQueue('mail')
  const none = null as never
  const queue = holdfast.queue(mail)
  const { id } = await queue.enqueue(1)
  const batch = await holdfast.batch({ name: 'b', open: true })
  const job = handlerJob(mail, 1)
  const calls: Record<string, () => unknown> = {
    open: () => open('sqlite::memory:', none),
    defineQueue: () => defineQueue('mail', none),
    'queue by name': () => holdfast.queue('mail', none),
    'queue by definition': () => holdfast.queue(mail as never, none),
    'queue by definition with options': () => holdfast.queue(mail as never, { attempts: 1 } as never),
    work: () => holdfast.work(mail, () => 1, none),
    'work with pairs': () => holdfast.work([[mail, () => 1]], none),
    'work with pairs and a handler': () => holdfast.work([[mail, () => 1]], () => 1),
    'work with pairs and two options': () => holdfast.work([[mail, () => 1]], {}, {}),
    'work with options of a pair': () => holdfast.work([[mail, () => 1, none]]),
    'work without a handler': () => holdfast.work(mail, none),
    'work with a list of queues': () => holdfast.work([mail] as never),
    'threads of work': () => holdfast.work(mail, new URL(import.meta.url), { threads: none }),
    claim: () => holdfast.claim([mail], none),
    'claim of a queue': () => queue.claim(none),
    'claim without a list': () => holdfast.claim(mail as never),
    enqueue: () => queue.enqueue(1, none),
    enqueueMany: () => queue.enqueueMany(none),
    jobs: () => holdfast.jobs(none),
    result: () => holdfast.result(id, none),
    'result of a queue': () => queue.result(id, none),
    watch: () => holdfast.watch(none),
    cancel: () => holdfast.cancel(id, none),
    'effects of cancel': () => holdfast.cancel(id, { effects: none }),
    deleteAll: () => holdfast.deleteAll(none),
    'options of deleteAll': () => holdfast.deleteAll({ queue: mail }, none),
    cancelAll: () => holdfast.cancelAll(none),
    'options of cancelAll': () => holdfast.cancelAll({ queue: mail }, none),
    'time of rescheduleAll': () => holdfast.rescheduleAll({ queue: mail }, none),
    'options of rescheduleAll': () => holdfast.rescheduleAll({ queue: mail }, { delay: 0 }, none),
    'options of reprioritiseAll': () => holdfast.reprioritiseAll({ queue: mail }, 1, none),
    requeueAll: () => holdfast.requeueAll(none),
    'options of requeueAll': () => holdfast.requeueAll({ queue: mail }, none),
    pause: () => holdfast.pause(mail, none),
    batch: () => holdfast.batch(none),
    'items of a batch': () => holdfast.batch({ name: 'b' }, none),
    'onComplete of a batch': () => holdfast.batch({ name: 'b', onComplete: none }),
    batches: () => holdfast.batches(none),
    'pause of a batch': () => batch.pause(none),
    finished: () => batch.finished(none),
    schedule: () => holdfast.schedule('s', none),
    gate: () => holdfast.gate('g', none),
    reaper: () => holdfast.reaper('r', none),
    doctor: () => holdfast.doctor(none),
    'on without a name': () => holdfast.on(undefined as never, () => undefined),
    'on without a listener': () => holdfast.on('job.done', none as never),
    'on with a function alone': () => holdfast.on((() => undefined) as never, undefined as never),
    'on with a name that no event has': () => holdfast.on('job.finished' as never, () => undefined),
    'onAll without a listener': () => holdfast.onAll(none as never),
    close: () => holdfast.close(none),
    closeOnSignals: () => holdfast.closeOnSignals(none),
    'effects.enqueue': () => job.effects.enqueue(mail, 1, none),
    'effects.put': () => job.effects.put('k', 1, none),
    'effects.sql': () => job.effects.sql('select 1', none),
    'values of a statement': () => job.effects.sql({ text: 'select 1', values: [] } as never, [1]),
    offer: () => job.offer(1, none),
    outcome: () => job.outcome('x', 1, none),
    handlerJob: () => handlerJob(mail, 1, none),
    drain: () => drain(holdfast, [[mail, () => 1]], none),
    runOnce: () => runOnce(holdfast, mail, () => 1, none),
    expectEnqueued: () => expectEnqueued(holdfast, mail, none),
    openInMemory: () => openInMemory(none),
  }
  const accepted: string[] = []
  for (const [name, call] of Object.entries(calls)) {
    const error = await Promise.try(call).then(
      () => null,
      (reason: unknown) => reason,
    )
    if (!isHoldfastError(error, 'INVALID_OPTION')) accepted.push(`${name}: ${error}`)
  }
  assert.deepEqual(accepted, [])
  assert.equal((await holdfast.stats(mail)).ready, 1)
})

test('null is not an object of options for a lease', async () => {
  await using holdfast = await open('sqlite::memory:')
  const none = null as never
  const settle: Record<string, (lease: Lease) => Promise<unknown>> = {
    'effects of done': (lease) => lease.done(1, none),
    'annotations of done': (lease) => lease.done(1, undefined, none),
    retry: (lease) => lease.retry(new Error('x'), none),
    'retry of a permanent error': (lease) => lease.retry(new Permanent('x'), none),
    'effects of dead': (lease) => lease.dead(new Error('x'), none),
    dead: (lease) => lease.dead(new Error('x'), undefined, none),
    cancelled: (lease) => lease.cancelled(none),
  }
  for (const [name, call] of Object.entries(settle)) {
    await holdfast.queue('mail').enqueue(name)
    const [lease] = await holdfast.queue('mail').claim()
    assert(lease)
    await assert.rejects(call(lease as Lease), { code: 'INVALID_OPTION' }, name)
  }
})
