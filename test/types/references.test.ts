// A queue is named by its name, its definition, or the queue itself, in every call; and what goes into it is typed by its
// definition. `tsc` checks every line. The tests also run the same lines.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { z } from 'zod'
import {
  type BatchItem,
  defineQueue,
  type Effects,
  type FollowUp,
  type HandlerOf,
  type Holdfast,
  open,
  Permanent,
  type QueueReference,
} from '../../src/index.ts'
import { drain, expectEnqueued, expectNothingEnqueued, handlerJob, runOnce } from '../../src/testing/index.ts'

/** Compiles only if the two types are the same. */
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
function same<A, B>(_: Same<A, B>): void {}

const crawl = defineQueue('crawl', {
  payload: z.object({ url: z.string(), kind: z.enum(['page', 'image']) }),
  result: z.object({ at: z.string().transform((text) => new Date(text)) }),
})
const plain = defineQueue<{ readonly n: number }, string>('plain')
const report = defineQueue<{ readonly batchId: string; readonly state: string; readonly mail: string }>('report')
const page = { url: 'x', kind: 'page' } as const

test('every call that names a queue takes its name, its definition, or the queue itself', async () => {
  for (const way of ['name', 'definition', 'queue']) {
    await using holdfast = await open('sqlite::memory:')
    const handle = holdfast.queue(plain)
    const queue = way === 'name' ? 'plain' : way === 'definition' ? plain : handle
    same<typeof queue extends QueueReference ? true : false, true>(true)
    await holdfast.queue(plain).enqueue({ n: 1 })
    assert.equal((await holdfast.stats(queue)).ready, 1)
    assert.equal((await holdfast.jobs({ queue })).jobs.length, 1)
    await holdfast.pause(queue)
    await holdfast.resume(queue)
    await holdfast.overrideLimit(queue, { limit: { concurrency: 3 } })
    await holdfast.overrideLimit(queue, null)
    await expectEnqueued(holdfast, queue)
    assert.equal((await holdfast.deleteAll({ queue })).changed, 1)
    assert.equal((await holdfast.requeueAll({ queue })).changed, 0)
    await holdfast.watch({ queue, signal: AbortSignal.abort() }).next()
    await holdfast.schedule('s', { cron: '@yearly', queue, payload: { n: 1 } })
    await holdfast.batch({ name: 'b', onComplete: { queue, payload: { n: 1 } } }, [{ queue, payload: { n: 1 } }])
    const [lease] = await holdfast.claim([queue])
    await lease?.done('x', { enqueue: [{ queue, payload: { n: 2 } }] })
    await runOnce(holdfast, queue as typeof plain, (job) => {
      job.effects.enqueue(queue, { n: 3 })
      return 'done'
    })
    const { runs } = await drain(holdfast, [[queue, () => 'done']])
    assert.equal(runs.length, 2)
    await expectNothingEnqueued(holdfast, queue)
    assert.equal(handlerJob(queue as string, { n: 1 }).queue, 'plain')
    assert.equal(defineQueue('other', { onDead: { queue } }).settings?.onDead, 'plain')
    assert.equal(holdfast.queue(queue as typeof plain).name, 'plain')
    await using _ = holdfast.work(queue as typeof plain, () => 'done')
    await using reaper = holdfast.reaper('r', {
      every: '1h',
      find: () => [1],
      enqueue: (n) => ({ queue, payload: { n }, dedup: { key: `${n}` } }),
    })
    assert(reaper)
  }
})

test('payloads of batch items are those of their queues', async () => {
  await using holdfast = await open('sqlite::memory:')
  await holdfast.batch({ name: 'b' }, [
    { queue: crawl, payload: { url: 'x', kind: 'page' } },
    { queue: plain, payload: { n: 1 }, delay: '1m' },
    { queue: holdfast.queue(plain), payload: { n: 1 } },
    { queue: 'by-name', payload: ['anything'] },
    { queue: 'by-name' },
  ])
  const batch = await holdfast.batch({ name: 'b', open: true })
  await batch.add([{ queue: plain, payload: { n: 1 } }])
  await batch.add(
    (function* () {
      yield { queue: plain, payload: { n: 1 } }
      yield { queue: crawl, payload: page }
    })(),
  )
  const declared: BatchItem[] = [{ queue: plain, payload: { n: 1 } }]
  await batch.add(declared)

  // @ts-expect-error: n is a number (nothing checks it at run time without a schema)
  await batch.add([{ queue: plain, payload: { n: 'one' } }])
  // @ts-expect-error: the same through the queue itself
  await batch.add([{ queue: holdfast.queue(plain), payload: { n: 'one' } }])
  // @ts-expect-error: the payload is missing
  await batch.add([{ queue: plain }])
  // @ts-expect-error: there is no such kind
  await assert.rejects(batch.add([{ queue: crawl, payload: { url: 'x', kind: 'film' } }]))
  await assert.rejects(
    batch.add([
      // @ts-expect-error: each item is checked against its own queue
      { queue: crawl, payload: { n: 1 } },
      { queue: plain, payload: { n: 1 } },
    ]),
  )
  // @ts-expect-error: there is no such option
  await assert.rejects(batch.add([{ queue: plain, payload: { n: 1 }, delya: '1m' }]))
  // @ts-expect-error: items are not part of the caller's transaction
  await assert.rejects(batch.add([{ queue: plain, payload: { n: 1 }, tx: {} }]))
  // @ts-expect-error: the same in a batch, and from a generator
  await holdfast.batch({ name: 'b' }, wrong())
})

function* wrong() {
  yield { queue: plain, payload: { n: 'one' } }
}

test('payloads of follow-ups are those of their queues', async () => {
  await using holdfast = await open('sqlite::memory:')
  const job = handlerJob(plain, { n: 1 })
  job.effects.enqueue(holdfast.queue(crawl), { url: 'x', kind: 'page' })
  // @ts-expect-error: there is no such kind
  job.effects.enqueue(holdfast.queue(crawl), { url: 'x', kind: 'film' })
  const declared: FollowUp[] = [{ queue: plain, payload: { n: 1 } }]
  const effects: Effects = { enqueue: declared }

  async function lease() {
    await holdfast.queue(plain).enqueue({ n: 1 })
    const [claimed] = await holdfast.queue(plain).claim()
    assert(claimed)
    return claimed
  }
  await (await lease()).done('x', effects)
  await (await lease()).done('x', { enqueue: [{ queue: crawl, payload: { url: 'x', kind: 'page' } }] })
  // @ts-expect-error: n is a number
  await (await lease()).done('x', { enqueue: [{ queue: plain, payload: { n: 'one' } }] })
  // @ts-expect-error: the same for a dead job
  await (await lease()).dead(new Error('x'), { enqueue: [{ queue: plain, payload: { n: 'one' } }] })
  const { id } = await holdfast.queue('waits').enqueue(1)
  // @ts-expect-error: the same for a cancelled job
  await holdfast.cancel(id, { effects: { enqueue: [{ queue: plain, payload: { n: 'one' } }] } })
  new Permanent('x', { effects: { enqueue: [{ queue: plain, payload: { n: 1 } }] } })
  // @ts-expect-error: the same for a permanent error
  new Permanent('x', { effects: { enqueue: [{ queue: plain, payload: { n: 'one' } }] } })
})

test('the payload of a completion is that of its queue, without the facts of the batch', async () => {
  await using holdfast = await open('sqlite::memory:')
  await holdfast.batch({ name: 'b', onComplete: { queue: report, payload: { mail: 'x' } } })
  await holdfast.batch({ name: 'b', onComplete: { queue: holdfast.queue(report), payload: { mail: 'x' } } })
  await holdfast.batch({ name: 'b', onComplete: { queue: 'by-name' } })
  // @ts-expect-error: mail is a text
  await holdfast.batch({ name: 'b', onComplete: { queue: report, payload: { mail: 1 } } })
  // @ts-expect-error: mail is missing
  await holdfast.batch({ name: 'b', onComplete: { queue: report } })
  // @ts-expect-error: there is no such option
  await assert.rejects(holdfast.batch({ name: 'b', onComplete: { queue: report, payload: { mail: 'x' }, delya: 1 } }))
})

test('the payload of a schedule and of a reaper is that of its queue', async () => {
  await using holdfast = await open('sqlite::memory:')
  await holdfast.schedule('a', { cron: '@daily', queue: holdfast.queue(plain), payload: { n: 1 } })
  // @ts-expect-error: n is a number
  await holdfast.schedule('b', { cron: '@daily', queue: holdfast.queue(plain), payload: { n: 'x' } })
  // @ts-expect-error: the payload is missing
  await holdfast.schedule('c', { cron: '@daily', queue: plain })
  await holdfast.schedule('d', { cron: '@daily', queue: 'by-name' })
  const [every, find, dedup] = ['1h', () => [1], { key: 'k' }] as const
  await using _a = holdfast.reaper('a', { every, find, enqueue: (n) => ({ queue: plain, payload: { n }, dedup }) })
  // @ts-expect-error: n is a number
  await using _b = holdfast.reaper('b', { every, find, enqueue: () => ({ queue: plain, payload: { n: 'x' }, dedup }) })
})

test('a queue answers results with the output type of its definition, checked by its schema', async () => {
  await using holdfast = await open('sqlite::memory:')
  const { id } = await holdfast.queue(crawl).enqueue({ url: 'x', kind: 'page' })
  await using _ = holdfast.work(crawl, () => ({ at: '2030-01-01T00:00:00Z' }))
  const result = await holdfast.queue(crawl).result(id)
  same<typeof result, { at: Date }>(true)
  assert.deepEqual(result, { at: new Date('2030-01-01T00:00:00Z') })
  assert.deepEqual(await holdfast.result(id), { at: '2030-01-01T00:00:00Z' })
})

const named: HandlerOf<typeof plain> = (job) => job.payload.n.toFixed()
// @ts-expect-error: the result is a text
const unfit: HandlerOf<typeof plain> = (job) => job.payload.n
const handle = {} as ReturnType<typeof queueOf>
function queueOf(holdfast: Holdfast) {
  return holdfast.queue(plain)
}

function declaredResults(holdfast: Holdfast): void {
  holdfast.work(plain, named)
  holdfast.work(plain, unfit)
  same<HandlerOf<typeof handle>, HandlerOf<typeof plain>>(true)
  holdfast.work(plain, (job) => job.snooze('1m'))
  holdfast.work(defineQueue<number>('no-result'), () => {})
  holdfast.work(defineQueue<number, string | undefined>('perhaps'), () => {})
  holdfast.work(defineQueue<number, void>('nothing'), async () => {})
  // @ts-expect-error: the declared result is missing
  holdfast.work(plain, () => {})
  // @ts-expect-error: the same, asynchronous
  holdfast.work(plain, async () => {})
  // @ts-expect-error: the same on one way out
  holdfast.work(plain, async (job) => (job.attempt > 1 ? 'x' : undefined))
  // @ts-expect-error: the same with a label
  holdfast.work(plain, (job) => job.outcome('skipped'))
  holdfast.work(plain, (job) => job.outcome('saved', 'x'))
  holdfast.work(defineQueue<number>('no-result'), (job) => job.outcome('skipped'))
  holdfast.work([
    [crawl, () => ({ at: 'x' })],
    // @ts-expect-error: the same in a pair
    [plain, () => {}],
  ])
  // @ts-expect-error: options are an object
  holdfast.work(plain, named, null)
  // @ts-expect-error: a handler is missing
  holdfast.work(plain)
  // @ts-expect-error: a module cannot serve every queue
  holdfast.work('*', new URL('file:///x.js'))
}

test('a handler that forgets a declared result does not compile', async () => {
  declaredResults({ work: () => undefined } as unknown as Holdfast)
  await using holdfast = await open('sqlite::memory:')
  await holdfast.queue(plain).enqueue({ n: 1 })
  const [lease] = await holdfast.queue(plain).claim()
  // @ts-expect-error: the declared result is missing (nothing checks it at run time without a schema)
  await lease?.done()
})

test('job.effects offers what handlers use, and nothing else', () => {
  const job = handlerJob(plain, { n: 1 })
  same<keyof typeof job.effects, 'enqueue' | 'put' | 'delete' | 'compareAndSet' | 'compareAndDelete' | 'sql'>(true)
  job.effects.put('k', 1)
  assert.deepEqual(job.staged.put, [{ key: 'k', value: 1 }])
})
