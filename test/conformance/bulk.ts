// Verbs that change all jobs of a filter: what each does to jobs of each state, what is skipped, dry runs, and steps that stop,
// go on, and run beside workers and producers.
//
//   HOLDFAST_BULK_SEED=1 npm test -- test/conformance/sqlite-file.test.ts      replays seed 1
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import type { BulkAnswer, BulkOptions, BulkProgress } from '../../src/client/bulk.ts'
import type { JobConditions } from '../../src/client/filter.ts'
import type { JobInfo } from '../../src/client/job-info.ts'
import type { RunTime } from '../../src/client/run-time.ts'
import { HoldfastError } from '../../src/errors.ts'
import { Holdfast } from '../../src/holdfast.ts'
import type { JobState } from '../../src/job/record.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import type { ChangeAllRequest, SkipReason, Store } from '../../src/store/store.ts'
import {
  abortOf,
  allJobs,
  claimOne,
  claimOrder,
  day,
  deadJob,
  everything,
  heard,
  hour,
  minute,
  readJob,
  rejects,
  stateOf,
} from './expect.ts'
import { type Dialect, type InWorld, type StoreUnderTest, type World, withSql } from './world.ts'

const seed = Number(process.env['HOLDFAST_BULK_SEED'] ?? Date.now() % 0x7fffffff)
/** More jobs than two steps take. */
const many = 2_100
/** More jobs than one step takes. */
const some = 1_100
const dedup = { key: 'k' }
const keyed = defineQueue<number>('keyed', { limit: { key: () => 'a', concurrency: 1 } })

export function bulkTests(inWorld: InWorld, { dialect }: StoreUnderTest): void {
  describe('cancelAll', () => cancelTests(inWorld))
  describe('requeueAll', () => requeueTests(inWorld))
  describe('deleteAll', () => deleteTests(inWorld))
  describe('rescheduleAll', () => rescheduleTests(inWorld))
  describe('reprioritiseAll', () => reprioritiseTests(inWorld))
  describe('every bulk verb', () => {
    dryRunTests(inWorld)
    stepTests(inWorld)
    besideTests(inWorld)
    optionTests(inWorld)
    if (dialect) refusedTests(inWorld, dialect)
  })
}

function cancelTests(inWorld: InWorld): void {
  test(
    'leaves the given name in the history of every job, and a single cancel too',
    inWorld(async ({ holdfast, clock }) => {
      const [waits, runs, single] = await holdfast.queue('mail').enqueueMany([1, 2, 3].map((payload) => ({ payload })))
      const lease = (await holdfast.claim(['mail'], { max: 1 }))[0]
      assert.equal(lease?.job.id, waits?.id)
      await holdfast.cancel(single?.id as string, { by: 'bob' })
      await holdfast.cancelAll({ queue: 'mail' }, { by: 'ada' })
      const changesOf = async (job: { id: string } | undefined) => (await readJob(holdfast, job?.id as string)).changes
      const by = (name: string) => [{ as: 'cancelled', by: name, at: new Date(clock.now()) }]
      assert.deepEqual(await changesOf(waits), by('ada'))
      assert.deepEqual(await changesOf(runs), by('ada'))
      assert.deepEqual(await changesOf(single), by('bob'))
      await lease?.cancelled()
      assert.deepEqual(await changesOf(waits), by('ada'), 'after its end')
    }),
  )

  test(
    'of running jobs finds those that started before the clock was set back',
    inWorld(async ({ holdfast, clock }) => {
      await holdfast.queue('mail').enqueue(1)
      await claimOne(holdfast, 'mail')
      await clock.advance(-hour)
      assert.equal((await holdfast.cancelAll({ queue: 'mail', state: 'running' })).requested, 1)
    }),
  )

  test(
    'ends every waiting job that matches, asks running ones to stop, and leaves all others as they are',
    inWorld(async ({ holdfast, clock }) => {
      const ids = await oneOfEach(holdfast, clock.now())
      const before = await byId(holdfast)
      const answer = await holdfast.cancelAll({ queue: ['mail', 'keyed'] })
      assert.deepEqual(short(answer), { changed: 4, requested: 1, skipped: {}, next: null })
      const after = await byId(holdfast)
      for (const state of ['scheduled', 'held', 'ready'] as const) {
        assert.equal(after.get(ids[state])?.state, 'cancelled', state)
        assert.deepEqual(after.get(ids[state])?.finishedAt, new Date(clock.now()))
      }
      for (const id of [ids.dead, ids.done, ids.cancelled, ids.other]) assert.deepEqual(after.get(id), before.get(id))
      assert.deepEqual(
        [after.get(ids.running)?.state, after.get(ids.running)?.cancelRequested],
        ['running', true],
        'its worker is asked',
      )
    }),
  )

  test(
    'notifies the worker of a running job, and does not count a job that is asked already',
    inWorld(async ({ holdfast }) => {
      await holdfast.queue('mail').enqueue(1)
      const started = Promise.withResolvers<void>()
      const cancelled = heard(holdfast, 'job.cancelled')
      const worker = holdfast.work('mail', async ({ signal }) => {
        started.resolve()
        await abortOf(signal)
        signal.throwIfAborted()
      })
      await started.promise
      assert.deepEqual(short(await holdfast.cancelAll({ queue: 'mail' })), {
        ...{ changed: 1, requested: 1, skipped: {}, next: null },
      })
      await cancelled
      await worker.stop()
      await holdfast.queue('post').enqueue(1)
      await claimOne(holdfast, 'post')
      assert.equal((await holdfast.cancelAll({ queue: 'post' })).requested, 1)
      const { changed, requested } = await holdfast.cancelAll({ queue: 'post' })
      assert.deepEqual([changed, requested], [0, 0])
    }),
  )

  test(
    'frees dedup keys and the slots of limit keys: held jobs of other keys and queues are admitted before it answers',
    inWorld(async ({ holdfast }) => {
      const both = defineQueue<{ key: string }>('both', { limit: { key: 'key', concurrency: 1 } })
      const first = await holdfast.queue(both).enqueue({ key: 'a' }, { dedup, labels: { round: '1' } })
      const second = await holdfast.queue(both).enqueue({ key: 'a' }, { labels: { round: '2' } })
      assert.equal(await stateOf(holdfast, second.id), 'held')
      assert.equal((await holdfast.cancelAll({ labels: { round: '1' } })).changed, 1)
      assert.deepEqual([await stateOf(holdfast, first.id), await stateOf(holdfast, second.id)], ['cancelled', 'ready'])
      assert.equal((await holdfast.queue(both).enqueue({ key: 'b' }, { dedup })).status, 'created')
    }),
  )

  test(
    'finishes a batch whose last items it cancels, and counts them there',
    inWorld(async ({ holdfast }) => {
      const items = [1, 2, 3].map((payload) => ({ queue: 'mail', payload }))
      const batch = await holdfast.batch({ name: 'letters', onComplete: { queue: 'report' } }, items)
      await (await claimOne(holdfast, 'mail')).done()
      assert.equal((await holdfast.cancelAll({ batch: batch.id })).changed, 2)
      const { state, done, cancelled, waiting } = await batch.progress()
      assert.deepEqual([state, done, cancelled, waiting], ['done', 1, 2, 0])
      assert.equal((await holdfast.stats('report')).ready, 1)
    }),
  )

  test(
    'of ready jobs alone does not take a job that is ready only because another was cancelled',
    inWorld(async ({ holdfast }) => {
      const each = defineQueue<{ key: string }>('each', { limit: { key: 'key', concurrency: 1 } })
      const payloads = Array.from({ length: some }, (_, n) => ({ payload: { key: `k${n}` } }))
      await holdfast.queue(each).enqueueMany(payloads)
      await holdfast.queue(each).enqueueMany(payloads)
      const dry = await holdfast.cancelAll({ queue: 'each', state: 'ready' }, { dryRun: true })
      const answer = await holdfast.cancelAll({ queue: 'each', state: 'ready' })
      assert.deepEqual([dry.changed, answer.changed], [some, some])
      const { ready, held, cancelled } = await holdfast.stats('each')
      assert.deepEqual([ready, held, cancelled], [some, 0, some])
    }),
  )

  test(
    'of running jobs alone asks those that run, and none that starts meanwhile',
    inWorld(async ({ holdfast, clock }) => {
      await holdfast.queue('mail').enqueueMany(Array.from({ length: 5 }, (_, payload) => ({ payload })))
      await holdfast.claim(['mail'], { max: 2 })
      await clock.advance(1)
      const claims: Promise<unknown>[] = []
      const onProgress = () => claims.push(holdfast.claim(['mail'], { max: 1 }))
      const { changed, requested } = await holdfast.cancelAll({ queue: 'mail', state: 'running' }, { onProgress })
      assert.deepEqual([changed, requested], [2, 2])
      await Promise.all(claims)
    }),
  )
}

function requeueTests(inWorld: InWorld): void {
  test(
    'takes dead jobs unless the filter names other states; all get all their attempts again, and keep their history',
    inWorld(async ({ holdfast, clock }) => {
      const ids = await oneOfEach(holdfast, clock.now())
      const before = await byId(holdfast)
      assert.deepEqual(short(await holdfast.requeueAll({ queue: 'mail' })), done(1))
      assert.equal(await stateOf(holdfast, ids.dead), 'ready')
      for (const id of [ids.done, ids.cancelled]) assert.deepEqual(await readJob(holdfast, id), before.get(id))
      assert.deepEqual(short(await holdfast.requeueAll({ queue: 'mail', state: ['done', 'cancelled'] })), done(2))
      for (const state of ['dead', 'done', 'cancelled'] as const) {
        const job = await readJob(holdfast, ids[state])
        assert.deepEqual([job.state, job.attempts, job.finishedAt, job.error], ['ready', 0, null, null], state)
        assert.deepEqual(job.result ?? null, null, 'a result is dropped')
        assert.deepEqual(job.history, before.get(ids[state])?.history)
        assert.deepEqual(job.payload, before.get(ids[state])?.payload)
      }
      assert.equal((await readJob(holdfast, ids.done)).history.length, 1)
      assert.deepEqual(await readJob(holdfast, ids.other), before.get(ids.other))
    }),
  )

  test(
    'of one done or cancelled job works as of a dead one; a live job is INVALID_STATE',
    inWorld(async ({ holdfast, clock }) => {
      const ids = await oneOfEach(holdfast, clock.now())
      for (const state of ['done', 'cancelled', 'dead'] as const) {
        await holdfast.requeue(ids[state])
        assert.equal(await stateOf(holdfast, ids[state]), 'ready')
      }
      for (const state of ['scheduled', 'held', 'ready', 'running'] as const)
        await rejects(holdfast.requeue(ids[state]), 'INVALID_STATE', { id: ids[state] })
      const leases = await holdfast.claim(['mail'], { max: 10 })
      for (const lease of leases) assert.equal((await lease.done(lease.job.id)).state, 'done')
      assert.equal(await holdfast.result(ids.done), ids.done, 'the result is that of the new run')
    }),
  )

  test(
    'of each dedup key requeues the newest, and skips the others; a dry run says the same',
    inWorld(async ({ holdfast, clock }) => {
      const ids: string[] = []
      for (const payload of [1, 2, 3]) {
        const { id } = await holdfast.queue('mail').enqueue(payload, { dedup })
        await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
        await clock.advance(1_000)
        ids.push(id)
      }
      const [oldest = '', older = '', newest = ''] = ids
      const free = await deadJob(holdfast, 'mail', 'no key')
      const before = await everything(holdfast)
      const dry = await holdfast.requeueAll({ queue: 'mail' }, { dryRun: true })
      assert.deepEqual(await everything(holdfast), before)
      const answer = await holdfast.requeueAll({ queue: 'mail' })
      assert.deepEqual(short(dry), short(answer))
      assert.deepEqual(short(answer), done(2, { dedupKeyHeld: [oldest, older] }))
      for (const id of [newest, free]) assert.equal(await stateOf(holdfast, id), 'ready')
      for (const id of [oldest, older]) assert.equal(await stateOf(holdfast, id), 'dead')
      assert.deepEqual(await holdfast.queue('mail').enqueue(4, { dedup }), { id: newest, status: 'duplicate' })
    }),
  )

  test(
    'of each dedup key the newest is the job that ended last, also over several steps and with infinite retention',
    inWorld(async ({ holdfast, clock }) => {
      const queue = holdfast.queue('mail', { retain: { dead: Number.POSITIVE_INFINITY } })
      const die = async () => {
        await clock.advance(minute)
        const leases = await holdfast.claim(['mail'], { max: 10_000 })
        await Promise.all(leases.map((lease) => lease.dead(new Error('no'))))
      }
      const jobs = Array.from({ length: some }, (_, n) => ({ payload: n, dedup: { key: `k${n}` } }))
      const first = await queue.enqueueMany(jobs)
      await die()
      const second = await queue.enqueueMany(jobs.toReversed())
      await die()
      await holdfast.requeue(first[7]?.id as string)
      await die()
      const dry = await holdfast.requeueAll({ queue: 'mail' }, { dryRun: true })
      const answer = await holdfast.requeueAll({ queue: 'mail' })
      assert.deepEqual(sums(dry), sums(answer))
      assert.deepEqual(sums(answer), { changed: some, requested: 0, skipped: { dedupKeyHeld: some } })
      const ready = new Set((await allJobs(holdfast, { state: 'ready' })).map(({ id }) => id))
      const wanted = second.map(({ id }) => id).with(some - 1 - 7, first[7]?.id as string)
      assert.deepEqual(ready, new Set(wanted))
    }),
  )

  test(
    'skips jobs whose key or id another job has, and items of cancelled batches, each with its reason',
    inWorld(async ({ holdfast }) => {
      const held = await holdfast.queue('mail').enqueue(1, { dedup })
      await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
      await holdfast.queue('mail').enqueue(2, { dedup })
      await claimOne(holdfast, 'mail')
      const taken = await deadJob(holdfast, 'mail')
      await holdfast.queue('post').enqueue('has the same id', { id: taken })
      const batch = await holdfast.batch({ name: 'letters' }, [
        { queue: 'mail', payload: 1 },
        { queue: 'other', payload: 2 },
      ])
      const item = await claimOne(holdfast, 'mail')
      await item.dead(new Error('no'))
      await batch.cancel()
      const free = await deadJob(holdfast, 'mail')
      const dry = await holdfast.requeueAll({ queue: 'mail' }, { dryRun: true })
      const answer = await holdfast.requeueAll({ queue: 'mail' })
      assert.deepEqual(short(dry), short(answer))
      const skipped = { dedupKeyHeld: [held.id], idTaken: [taken], batchCancelled: [item.job.id] }
      assert.deepEqual(short(answer), done(1, skipped))
      assert.equal(await stateOf(holdfast, free), 'ready')
    }),
  )

  test(
    'skips jobs whose limit key cannot be known',
    inWorld(async ({ holdfast }) => {
      const graves = defineQueue<{ id: string }>('graves', { limit: { key: () => 'k', concurrency: 1 } })
      await holdfast.queue(graves).enqueue({ id: 'opens the queue' })
      await holdfast.cancelAll({ queue: 'graves' })
      await deadJob(holdfast, defineQueue('mail', { attempts: 1, onDead: { queue: 'graves' } }))
      const [notice] = await allJobs(holdfast, { queue: 'graves', state: 'dead' })
      assert.ok(notice, 'the notice is stored as a dead job')
      const dry = await holdfast.requeueAll({ queue: 'graves' }, { dryRun: true })
      const answer = await holdfast.requeueAll({ queue: 'graves' })
      assert.deepEqual(short(dry), short(answer))
      assert.deepEqual(short(answer), done(0, { limitKeyUnknown: [notice.id] }))
    }),
  )

  test(
    'of an item begins a new round of its batch, and takes back its outcome and its counts',
    inWorld(async ({ holdfast }) => {
      const items = [1, 2, 3].map((payload) => ({ queue: 'mail', payload }))
      const batch = await holdfast.batch({ name: 'letters', concurrency: 5, onComplete: { queue: 'report' } }, items)
      const [a, b, c] = await holdfast.claim(['mail'], { max: 3 })
      await a?.done('a', undefined, { outcome: 'saved', warning: 'slow', costs: { tokens: 5 } })
      await b?.done('b', undefined, { outcome: 'saved' })
      await c?.dead(new Error('no'))
      assert.equal((await batch.progress()).state, 'done')
      assert.equal(
        (await holdfast.requeueAll({ ids: [a?.job.id as string, c?.job.id as string], state: ['done', 'dead'] }))
          .changed,
        2,
      )
      const { state, round, waiting, done: ended, dead, outcomes, warnings, costs } = await batch.progress()
      assert.deepEqual(
        { state, round, waiting, ended, dead, outcomes, warnings, costs },
        {
          ...{ state: 'running', round: 2, waiting: 2, ended: 1, dead: 0 },
          ...{ outcomes: { saved: 1 }, warnings: {}, costs: { tokens: 5 } },
        },
      )
      for (const lease of await holdfast.claim(['mail'], { max: 3 }))
        await lease.done('again', undefined, { outcome: 'saved' })
      const over = await batch.progress()
      assert.deepEqual([over.state, over.done, over.outcomes], ['done', 3, { saved: 3 }])
    }),
  )

  test(
    'of jobs with a limit key keeps the limit: one is ready, the others are held, and run one after the other',
    inWorld(async ({ holdfast }) => {
      for (const n of [1, 2, 3]) {
        await holdfast.queue(keyed).enqueue(n)
        await (await claimOne(holdfast, keyed)).done()
      }
      assert.deepEqual(short(await holdfast.requeueAll({ queue: 'keyed', state: 'done' })), done(3))
      const { ready, held } = await holdfast.stats('keyed')
      assert.deepEqual([ready, held], [1, 2])
      for (let n = 0; n < 3; n++) await (await claimOne(holdfast, keyed)).done()
      assert.equal((await holdfast.stats('keyed')).done, 3)
    }),
  )

  test(
    'of a job with a key of a time window neither needs the key nor takes it: the window goes on from its enqueue',
    inWorld(async ({ holdfast, clock }) => {
      const window = { dedup: { key: 'k', scope: { window: '1h' } } } as const
      const { id } = await holdfast.queue('mail').enqueue(1, window)
      await (await claimOne(holdfast, 'mail')).done()
      await clock.advance(minute)
      assert.deepEqual(short(await holdfast.requeueAll({ queue: 'mail', state: 'done' })), done(1))
      assert.deepEqual(await holdfast.queue('mail').enqueue(2, window), { id, status: 'duplicate' })
      await (await claimOne(holdfast, 'mail')).done()
      await clock.advance(hour)
      const next = await holdfast.queue('mail').enqueue(3, window)
      assert.equal(next.status, 'created')
      assert.deepEqual(short(await holdfast.requeueAll({ ids: [id], state: 'done' })), done(1))
      assert.deepEqual(await holdfast.queue('mail').enqueue(4, window), { id: next.id, status: 'duplicate' })
    }),
  )

  test(
    'never takes a job twice: one that it has requeued and that ends again meanwhile stays ended',
    inWorld(async ({ holdfast, clock }) => {
      await holdfast.queue('mail').enqueueMany(Array.from({ length: many }, (_, payload) => ({ payload })))
      const leases = await holdfast.claim(['mail'], { max: many })
      await Promise.all(leases.map((lease, n) => (n % 2 === 0 ? lease.dead(new Error('no')) : lease.done())))
      await clock.advance(1)
      const ends: Promise<unknown>[] = []
      let advanced: Promise<unknown> | null = null
      const onProgress = () => {
        advanced ??= Promise.resolve(clock.advance(minute))
        const end = async () => {
          await advanced
          for (const lease of await holdfast.claim(['mail'], { max: 200 })) await lease.done()
        }
        ends.push(end())
      }
      const states = ['dead', 'done'] as const
      const answer = await holdfast.requeueAll({ queue: 'mail', state: states }, { onProgress })
      await Promise.all(ends)
      assert.equal(answer.changed, many)
      const jobs = await allJobs(holdfast, { queue: 'mail' })
      assert.ok(
        jobs.some(({ state, history }) => state === 'done' && history.length === 2),
        'some have ended again',
      )
      assert.ok(jobs.every(({ history }) => history.length <= 2))
    }),
  )
}

function deleteTests(inWorld: InWorld): void {
  test(
    'removes every job that matches with its keys and counts, and skips running jobs',
    inWorld(async ({ holdfast, clock }) => {
      const ids = await oneOfEach(holdfast, clock.now())
      const before = await byId(holdfast)
      const answer = await holdfast.deleteAll({ queue: ['mail', 'keyed'] })
      assert.deepEqual(short(answer), done(6, { running: [ids.running] }))
      assert.deepEqual(new Set((await byId(holdfast)).keys()), new Set([ids.running, ids.other]))
      assert.deepEqual(await readJob(holdfast, ids.other), before.get(ids.other))
      assert.deepEqual((await holdfast.deadGroups({ queue: 'mail' })).groups, [])
    }),
  )

  test(
    'frees dedup, idempotency and limit keys, and the label rows of the jobs',
    inWorld(async ({ holdfast }) => {
      const options = { dedup, idempotencyKey: 'i', labels: { customer: 'c1' } }
      const window = { dedup: { key: 'w', scope: { window: '1h' } } } as const
      for (const end of ['ready', 'done', 'dead', 'cancelled']) {
        const { id, status } = await holdfast.queue('mail').enqueue(1, options)
        assert.equal(status, 'created')
        if (end === 'cancelled') await holdfast.cancel(id)
        if (end === 'done') await (await claimOne(holdfast, 'mail')).done()
        if (end === 'dead') await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
        assert.equal((await holdfast.deleteAll({ labels: { customer: 'c1' } })).changed, 1, end)
      }
      await holdfast.queue('mail').enqueue(1, window)
      await (await claimOne(holdfast, 'mail')).done()
      assert.equal((await holdfast.deleteAll({ state: 'done' })).changed, 1)
      assert.equal((await holdfast.queue('mail').enqueue(1, window)).status, 'created')
      await holdfast.queue(keyed).enqueue(1)
      const { id } = await holdfast.queue(keyed).enqueue(2)
      assert.equal((await holdfast.deleteAll({ queue: 'keyed', state: 'ready' })).changed, 1)
      assert.equal(await stateOf(holdfast, id), 'ready', 'the held job is admitted')
    }),
  )

  test(
    'answers how many jobs match afterwards: those that run, and the notice of a job that died meanwhile',
    inWorld(async ({ holdfast }) => {
      const queue = defineQueue<number>('mail', { onDead: { queue: 'alerts' } })
      await holdfast
        .queue(queue)
        .enqueueMany([...Array(some).keys()].map((payload) => ({ payload, labels: { customer: 'ada' } })))
      const [dying, running] = await holdfast.claim([queue], { max: 2 })
      const filter = { labels: { customer: 'ada' } }
      assert.equal((await holdfast.deleteAll(filter, { dryRun: true })).remaining, null)
      const abort = new AbortController()
      const first = await holdfast.deleteAll(filter, {
        signal: abort.signal,
        async onProgress() {
          abort.abort()
          await dying?.dead(new Error('no'))
        },
      })
      assert.equal(first.remaining, null, 'it was stopped')
      const rest = await holdfast.deleteAll(filter, { after: first.next as string })
      assert.deepEqual([rest.next, rest.remaining], [null, 2])
      await running?.done()
      assert.equal((await holdfast.deleteAll(filter)).remaining, 0)
      assert.deepEqual(await allJobs(holdfast), [])
    }),
  )

  test(
    'ends beside a caller that requeues what was cancelled or deleted, and goes on with its `next`',
    inWorld(async ({ holdfast }) => {
      const { id } = await holdfast.queue('mail').enqueue(1)
      const requeue = { onProgress: () => holdfast.requeueAll({ queue: 'mail', state: 'cancelled' }) }
      const first = await holdfast.cancelAll({ queue: 'mail' }, requeue)
      assert.equal(first.changed, 10)
      const last = await holdfast.cancelAll({ queue: 'mail' }, { after: first.next as string })
      assert.deepEqual([last.changed, last.next], [1, null])
      assert.equal(await stateOf(holdfast, id), 'cancelled')
    }),
  )

  test(
    'removes exactly the jobs that match: an older or newer job with the same id stays',
    inWorld(async ({ holdfast }) => {
      const id = randomUUID()
      for (const n of [1, 2]) {
        await holdfast.queue('mail').enqueue(n, { id })
        const lease = await claimOne(holdfast, 'mail')
        if (n === 1) await lease.done()
        else await lease.dead(new Error('no'))
      }
      await holdfast.queue('mail').enqueue(3, { id })
      const left = async () => (await allJobs(holdfast)).map(({ payload }) => payload).sort()
      assert.deepEqual(short(await holdfast.deleteAll({ queue: 'mail', state: 'dead' })), done(1))
      assert.deepEqual(await left(), [1, 3])
      assert.deepEqual(short(await holdfast.deleteAll({ ids: [id] })), done(1), 'an id names the newest')
      assert.deepEqual(await left(), [1])
    }),
  )

  test(
    'of items: counts, outcomes and warnings of the batch are without them, costs stay; a batch without live items is finished',
    inWorld(async ({ holdfast }) => {
      const items = [1, 2, 3, 4].map((payload) => ({ queue: 'mail', payload }))
      const batch = await holdfast.batch({ name: 'letters', concurrency: 5 }, items)
      const [a, b] = await holdfast.claim(['mail'], { max: 2 })
      await a?.done('a', undefined, { outcome: 'saved', warning: 'slow', costs: { tokens: 5 } })
      await b?.dead(new Error('no'))
      assert.equal((await holdfast.deleteAll({ batch: batch.id, state: ['done', 'dead'] })).changed, 2)
      const { done: ended, dead, waiting, outcomes, warnings, costs, state } = await batch.progress()
      assert.deepEqual(
        { ended, dead, waiting, outcomes, warnings, costs, state },
        { ended: 0, dead: 0, waiting: 2, outcomes: {}, warnings: {}, costs: { tokens: 5 }, state: 'running' },
      )
      assert.equal((await holdfast.deleteAll({ queue: 'mail', state: 'ready' })).changed, 2)
      assert.equal((await batch.progress()).state, 'done')
    }),
  )

  test(
    'keeps the counts of error groups exact',
    inWorld(async ({ holdfast }) => {
      for (const message of ['no host', 'no host', 'no user']) {
        await holdfast.queue('mail').enqueue(message)
        await (await claimOne(holdfast, 'mail')).dead(new Error(message))
      }
      const groups = async () =>
        (await holdfast.deadGroups({ queue: 'mail' })).groups.map(({ message, dead }) => [message, dead]).sort()
      assert.deepEqual(await groups(), [
        ['no host', 2],
        ['no user', 1],
      ])
      const [hosts] = (await holdfast.deadGroups({ queue: 'mail', order: 'largest' })).groups
      assert.equal((await holdfast.requeueAll({ errorGroup: hosts?.group as string }, { dryRun: true })).changed, 2)
      assert.equal((await holdfast.deleteAll({ errorGroup: hosts?.group as string })).changed, 2)
      assert.deepEqual(await groups(), [['no user', 1]])
      assert.equal((await holdfast.requeueAll({ error: 'no user' })).changed, 1)
      assert.deepEqual(await groups(), [])
    }),
  )
}

function rescheduleTests(inWorld: InWorld): void {
  test(
    'leaves a job alone that fails again after it was moved: its retry keeps its time, and its attempts are not used up',
    { timeout: 60_000 },
    inWorld(async (world) => {
      const { holdfast, clock } = world
      const store = await world.store()
      const entries = Array.from({ length: many }, (_, payload) => ({ payload, delay: hour }))
      await holdfast.queue('mail').enqueueMany(entries)
      const runAt = clock.now()
      const request = { filter: { queues: ['mail'], states: waiting }, change: { as: 'reschedule', runAt } } as const
      let step = await store.changeAll({ ...request, dryRun: false, by: null, after: null, until: null })
      let { changed } = step
      assert.ok(changed < many && step.next !== null, 'more jobs than one step takes')
      await clock.advance(1)
      const lease = await claimOne(holdfast, 'mail')
      await lease.retry(new Error('no'), { delay: day })
      while (step.next !== null) {
        step = await store.changeAll({ ...request, dryRun: false, by: null, after: step.next, until: step.until })
        changed += step.changed
      }
      assert.equal(changed, many)
      assert.deepEqual((await readJob(holdfast, lease.job.id)).runAt, new Date(clock.now() + day))
      const again = await holdfast.rescheduleAll({ ids: [lease.job.id] }, { runAt })
      assert.equal(again.changed, 1, 'a verb that begins later moves it')
    }),
  )

  test(
    'moves every waiting job that matches to one time, and leaves running and ended jobs as they are',
    inWorld(async ({ holdfast, clock }) => {
      const ids = await oneOfEach(holdfast, clock.now())
      const before = await byId(holdfast)
      const runAt = clock.now() + day
      assert.deepEqual(short(await holdfast.rescheduleAll({ queue: ['mail', 'keyed'] }, { runAt })), done(3))
      const after = await byId(holdfast)
      for (const state of ['scheduled', 'held', 'ready'] as const) {
        const job = after.get(ids[state])
        assert.deepEqual([job?.state, job?.runAt], ['scheduled', new Date(runAt)], state)
      }
      for (const state of ['running', 'done', 'dead', 'cancelled', 'other'] as const)
        assert.deepEqual(after.get(ids[state]), before.get(ids[state]), state)
      assert.deepEqual(short(await holdfast.rescheduleAll({ queue: ['mail', 'keyed'] }, { runAt })), done(0))
      await clock.advance(day)
      await holdfast.sweep()
      assert.equal((await holdfast.stats('mail')).ready, 2)
    }),
  )

  test(
    'to a time that has come makes scheduled jobs ready, wakes a waiting claim, and leaves ready and held jobs in their places',
    inWorld(async ({ holdfast }) => {
      await holdfast.queue('mail').enqueue('late', { delay: '1h' })
      await holdfast.queue(keyed).enqueue(1)
      await holdfast.queue(keyed).enqueue(2)
      const claimed = holdfast.claim(['mail'], { wait: '10s' })
      assert.deepEqual(
        short(await holdfast.rescheduleAll({ state: ['scheduled', 'held', 'ready'] }, { delay: 0 })),
        done(1),
      )
      assert.deepEqual(
        (await claimed).map(({ job }) => job.payload),
        ['late'],
      )
      const { ready, held } = await holdfast.stats('keyed')
      assert.deepEqual([ready, held], [1, 1])
    }),
  )

  test(
    'skips a job that must start before that time',
    inWorld(async ({ holdfast, clock }) => {
      const startBefore = clock.now() + hour
      const { id } = await holdfast.queue('mail').enqueue(1, { startBefore })
      await holdfast.queue('mail').enqueue(2)
      const dry = await holdfast.rescheduleAll({ queue: 'mail' }, { delay: '1h' }, { dryRun: true })
      const answer = await holdfast.rescheduleAll({ queue: 'mail' }, { delay: '1h' })
      assert.deepEqual(short(dry), short(answer))
      assert.deepEqual(short(answer), done(1, { startBefore: [id] }))
      assert.equal(await stateOf(holdfast, id), 'ready')
      const earlier = await holdfast.rescheduleAll({ ids: [id] }, { runAt: new Date(startBefore - 1) })
      assert.deepEqual(short(earlier), done(1))
    }),
  )

  test(
    'gives back the slots of limit keys: held jobs that do not match are admitted',
    inWorld(async ({ holdfast }) => {
      const first = await holdfast.queue(keyed).enqueue(1)
      const second = await holdfast.queue(keyed).enqueue(2)
      assert.equal((await holdfast.rescheduleAll({ ids: [first.id] }, { delay: '1h' })).changed, 1)
      assert.equal(await stateOf(holdfast, second.id), 'ready')
    }),
  )

  test(
    'counts a delay from the beginning of the first call, also in the call that goes on',
    inWorld(async ({ holdfast, clock }) => {
      await holdfast.queue('mail').enqueueMany(Array.from({ length: some }, (_, payload) => ({ payload })))
      const runAt = new Date(clock.now() + hour)
      const stop = new AbortController()
      const first = await holdfast.rescheduleAll({ queue: 'mail' }, { delay: '1h' }, stopAfterOne(stop))
      assert.ok(first.next !== null && first.changed > 0 && first.changed < some)
      await clock.advance(minute)
      const rest = await holdfast.rescheduleAll({ queue: 'mail' }, { delay: '1h' }, { after: first.next })
      assert.equal(first.changed + rest.changed, some)
      const jobs = await allJobs(holdfast, { queue: 'mail' })
      assert.ok(jobs.every((job) => job.runAt.getTime() === runAt.getTime()))
    }),
  )
}

function reprioritiseTests(inWorld: InWorld): void {
  test(
    'moves every waiting job that matches behind the jobs of the new priority, and keeps their order and their time',
    inWorld(async ({ holdfast, clock }) => {
      await holdfast.queue('mail').enqueueMany([1, 2, 3].map((payload) => ({ payload, labels: { kind: 'vip' } })))
      await holdfast.queue('mail').enqueueMany([4, 5].map((payload) => ({ payload, priority: 0 })))
      await holdfast.queue('mail').enqueue('usual')
      const late = await holdfast.queue('mail').enqueue('late', { delay: '1h', labels: { kind: 'vip' } })
      await holdfast.queue('mail').enqueue('has it', { priority: 0, delay: '1h', labels: { kind: 'vip' } })
      assert.deepEqual(short(await holdfast.reprioritiseAll({ labels: { kind: 'vip' } }, 0)), done(4))
      const { priority, runAt, state } = await readJob(holdfast, late.id)
      assert.deepEqual([priority, runAt, state], [0, new Date(clock.now() + hour), 'scheduled'])
      const order = await claimOrder(holdfast, ['mail'])
      assert.deepEqual(order.slice(0, 2), [4, 5])
      assert.deepEqual(order.slice(2, 5).sort(), [1, 2, 3])
      assert.deepEqual(order.slice(5), ['usual'])
    }),
  )

  test(
    'leaves running and ended jobs as they are, and keeps the limit of a key',
    inWorld(async ({ holdfast, clock }) => {
      const ids = await oneOfEach(holdfast, clock.now())
      const before = await byId(holdfast)
      assert.deepEqual(short(await holdfast.reprioritiseAll({ queue: ['mail', 'keyed'] }, 9)), done(3))
      const after = await byId(holdfast)
      for (const state of ['scheduled', 'held', 'ready'] as const) assert.equal(after.get(ids[state])?.priority, 9)
      for (const state of ['running', 'done', 'dead', 'cancelled', 'other'] as const)
        assert.deepEqual(after.get(ids[state]), before.get(ids[state]), state)
      assert.deepEqual(short(await holdfast.reprioritiseAll({ queue: ['mail', 'keyed'] }, 9)), done(0))
      await holdfast.queue(keyed).enqueueMany([2, 3, 4].map((payload) => ({ payload })))
      await holdfast.reprioritiseAll({ queue: 'keyed' }, 2)
      const { ready, running } = await holdfast.stats('keyed')
      assert.ok(ready + running <= 1, `${ready} ready, ${running} running`)
    }),
  )
}

function dryRunTests(inWorld: InWorld): void {
  test(
    'changes nothing in a dry run, and then does what the dry run has said, in a random store',
    { timeout: 120_000 },
    inWorld(async (world, t) => {
      t.diagnostic(`HOLDFAST_BULK_SEED=${seed}`)
      const { holdfast, clock } = world
      const random = new Random(seed)
      const batches: string[] = []
      for (let round = 0; round < 30; round++) {
        if (round % 6 === 0) batches.push(await randomJobs(world, random))
        const verb = random.of(verbs)
        const filter = randomFilter(random, await allJobs(holdfast), batches, verb)
        const why = `round ${round} of seed ${seed}: ${verb.name} ${JSON.stringify(filter)}`
        const when = clock.now() + random.of([0, hour, day])
        const priority = random.below(10)
        const run = (options: BulkOptions) => verb.run(holdfast, filter, { options, when, priority })
        const before = await everything(holdfast)
        const dry = await run({ dryRun: true })
        assert.deepEqual(await everything(holdfast), before, why)
        const answer = await run({})
        assert.deepEqual(sums(answer), sums(dry), why)
        assert.deepEqual([dry.next, answer.next], [null, null], why)
      }
    }),
  )

  test(
    'reports what it changes to a watch',
    inWorld(async ({ holdfast }) => {
      const { id } = await holdfast.queue('mail').enqueue(1)
      await using watch = holdfast.watch({ queue: 'mail' })
      await watch.begun
      await holdfast.rescheduleAll({ queue: 'mail' }, { delay: '1h' })
      await holdfast.rescheduleAll({ queue: 'mail' }, { delay: 0 })
      await holdfast.cancelAll({ queue: 'mail' })
      await holdfast.requeueAll({ queue: 'mail', state: 'cancelled' })
      await holdfast.deleteAll({ queue: 'mail' })
      for (const state of ['scheduled', 'ready', 'cancelled', 'ready', 'deleted']) {
        const { value } = await watch.next()
        assert.deepEqual([value?.id, value?.state], [id, state])
      }
    }),
  )
}

function stepTests(inWorld: InWorld): void {
  for (const verb of verbs) {
    test(
      `${verb.name} stops after the step in which its signal aborts, and goes on from \`next\``,
      inWorld(async ({ holdfast, clock }) => {
        await manyFor(holdfast, verb)
        const run = (options: BulkOptions) =>
          verb.run(holdfast, { queue: 'mail' }, { options, when: clock.now() + hour, priority: 1 })
        assert.equal((await run({ dryRun: true })).changed, many)
        const stop = new AbortController()
        const first = await run(stopAfterOne(stop))
        assert.ok(first.changed > 0 && first.changed < many, `${first.changed} in one step`)
        assert.ok(first.next !== null)
        const progress: BulkProgress[] = []
        const rest = await run({ after: first.next, onProgress: (each) => progress.push(each) })
        assert.deepEqual([first.changed + rest.changed, rest.next], [many, null])
        assert.ok(progress.length > 1, 'progress is reported after each step')
        const numbers = progress.map(({ changed }) => changed)
        assert.deepEqual(
          numbers,
          numbers.toSorted((a, b) => a - b),
        )
        assert.deepEqual(progress.at(-1), { changed: rest.changed, looked: rest.looked, skipped: 0 })
        assert.equal((await run({})).changed, 0)
      }),
    )
  }

  test(
    'makes no step if its signal has aborted before, and answers where to begin',
    inWorld(async ({ holdfast }) => {
      await holdfast.queue('mail').enqueue(1)
      const answer = await holdfast.cancelAll({ queue: 'mail' }, { signal: AbortSignal.abort() })
      assert.deepEqual([answer.changed, answer.looked], [0, 0])
      assert.equal((await holdfast.stats('mail')).ready, 1)
      assert.equal((await holdfast.cancelAll({ queue: 'mail' }, { after: answer.next as string })).changed, 1)
    }),
  )

  test(
    'says in the error of a store that fails what was done before, and goes on from there',
    inWorld(async ({ store }) => {
      const opened = await store()
      let left = 1
      const failing = new Proxy(opened, {
        get(target, name) {
          if (name === 'close') return async () => {}
          const value = Reflect.get(target, name, target)
          if (name !== 'changeAll') return typeof value === 'function' ? value.bind(target) : value
          return (request: ChangeAllRequest) =>
            left-- > 0
              ? target.changeAll(request)
              : Promise.reject(new HoldfastError('STORE_UNAVAILABLE', 'The store is away.', { why: 'a test' }))
        },
      }) as Store
      await using client = new Holdfast(failing)
      await client.queue('mail').enqueueMany(Array.from({ length: many }, (_, payload) => ({ payload })))
      const error = await rejects(client.cancelAll({ queue: 'mail' }), 'STORE_UNAVAILABLE', { why: 'a test' })
      const { changed, next } = error.facts as { changed: number; next: string }
      assert.equal((await client.stats('mail')).cancelled, changed)
      assert.ok(changed > 0)
      left = Number.POSITIVE_INFINITY
      assert.equal((await client.cancelAll({ queue: 'mail' }, { after: next })).changed, many - changed)
    }),
  )

  test(
    'a step of the store is bounded, answers where the next begins, and takes no job that came after the first',
    inWorld(async ({ holdfast, store }) => {
      const opened = await store()
      await holdfast.queue('mail').enqueueMany(Array.from({ length: many }, (_, payload) => ({ payload })))
      const request = {
        filter: { queues: ['mail'], states: ['ready'] },
        change: { as: 'cancel' },
        ...{ dryRun: false, by: null },
      } as const
      const first = await opened.changeAll({ ...request, after: null, until: null })
      assert.ok(first.changed > 0 && first.changed <= 1_000, `${first.changed} in one step`)
      const late = await holdfast.queue('mail').enqueueMany(Array.from({ length: 10 }, (_, payload) => ({ payload })))
      let sum = first.changed
      for (let { next, until } = first; next !== null; ) {
        const step = await opened.changeAll({ ...request, after: next, until })
        assert.equal(step.until, until)
        sum += step.changed
        next = step.next
      }
      assert.equal(sum, many)
      for (const { id } of late) assert.equal(await stateOf(holdfast, id), 'ready')
    }),
  )
}

function besideTests(inWorld: InWorld): void {
  test(
    'ends beside a producer that never stops, and leaves the jobs that came later',
    inWorld(async ({ holdfast, another }) => {
      const producer = await another()
      for (const verb of ['cancelAll', 'deleteAll'] as const) {
        await holdfast.queue('mail').enqueueMany(Array.from({ length: some }, (_, payload) => ({ payload })))
        const produced: Promise<unknown>[] = []
        let count = 0
        const onProgress = () => {
          count += 400
          produced.push(producer.queue('mail').enqueueMany(Array.from({ length: 400 }, (_, payload) => ({ payload }))))
        }
        assert.equal((await holdfast[verb]({ queue: 'mail' }, { onProgress })).changed, some)
        await Promise.all(produced)
        assert.equal((await holdfast.stats('mail')).ready, count)
        await holdfast.deleteAll({ queue: 'mail' })
      }
    }),
  )

  test(
    'beside running workers: every job ends once, as done or as cancelled, and counts are right',
    { timeout: 120_000 },
    inWorld(async ({ holdfast, another }) => {
      const limited = defineQueue<number>('limited', {
        limit: { key: (n) => `k${n % 7}`, concurrency: 2 },
        backoff: { base: 0 },
        attempts: 3,
      })
      const items = Array.from({ length: 300 }, (_, payload) => ({ queue: limited, payload }))
      const batch = await holdfast.batch({ name: 'letters', concurrency: 20 }, items)
      await holdfast.queue(limited).enqueueMany(Array.from({ length: 600 }, (_, payload) => ({ payload })))
      const others = await another()
      const ends = new Map<string, number>()
      const begun = Promise.withResolvers<void>()
      for (const name of ['job.done', 'job.cancelled'] as const) {
        others.on(name, ({ id }) => {
          ends.set(id, (ends.get(id) ?? 0) + 1)
          if (ends.size >= 50) begun.resolve()
        })
      }
      const worker = others.work(
        limited,
        async ({ payload }) => {
          if (payload % 11 === 3) throw new Error('again')
        },
        { concurrency: 10 },
      )
      await begun.promise
      const steps: Promise<unknown>[] = []
      await holdfast.reprioritiseAll({ queue: 'limited' }, 1, {
        onProgress: () => steps.push(holdfast.rescheduleAll({ queue: 'limited', attempts: 0 }, { delay: 0 })),
      })
      await Promise.all(steps)
      await holdfast.cancelAll({ queue: 'limited' })
      await worker.stop()
      await holdfast.cancelAll({ queue: 'limited' })
      const { done: finished, cancelled, dead, ready, held, scheduled, running } = await holdfast.stats('limited')
      assert.equal(finished + cancelled + dead, 900)
      assert.deepEqual([ready, held, scheduled, running], [0, 0, 0, 0])
      assert.ok([...ends.values()].every((count) => count === 1))
      assert.equal((await batch.progress()).state, 'done')
    }),
  )

  test(
    'two calls of one verb at the same time change each job once',
    inWorld(async ({ holdfast, another }) => {
      const clients = [holdfast, await another()]
      await manyFor(holdfast, requeue)
      const changed = await Promise.all(
        clients.map(async (client) => (await client.requeueAll({ queue: 'mail' })).changed),
      )
      assert.equal((changed[0] as number) + (changed[1] as number), many)
      const cancelled = await Promise.all(
        clients.map(async (client) => (await client.cancelAll({ queue: 'mail' })).changed),
      )
      assert.equal((cancelled[0] as number) + (cancelled[1] as number), many)
      const deleted = await Promise.all(
        clients.map(async (client) => (await client.deleteAll({ queue: 'mail' })).changed),
      )
      assert.equal((deleted[0] as number) + (deleted[1] as number), many)
    }),
  )
}

function optionTests(inWorld: InWorld): void {
  test(
    'refuses the `next` of another verb or filter, and a time in it that is none',
    inWorld(async ({ holdfast }) => {
      await holdfast.queue('mail').enqueue(1, { labels: { customer: 'c1' } })
      const stopped = AbortSignal.abort()
      const { next } = await holdfast.cancelAll({ labels: { customer: 'c1' } }, { signal: stopped })
      const after = next as string
      await rejects(holdfast.cancelAll({ labels: { customer: 'c2' } }, { after }), 'INVALID_OPTION')
      await rejects(holdfast.deleteAll({ labels: { customer: 'c1' } }, { after }), 'INVALID_OPTION')
      const mark = JSON.parse(Buffer.from(after, 'base64url').toString())
      const crafted = Buffer.from(JSON.stringify(mark.with(3, 2 ** 53 - 1))).toString('base64url')
      await rejects(holdfast.cancelAll({ labels: { customer: 'c1' } }, { after: crafted }), 'INVALID_OPTION')
      assert.equal((await holdfast.cancelAll({ labels: { customer: 'c1' } }, { after })).changed, 1)
    }),
  )

  for (const verb of verbs) {
    test(
      `${verb.name} refuses the \`next\` of a dry run, which changed nothing that it went over, and the other way round`,
      inWorld(async ({ holdfast, clock }) => {
        await manyFor(holdfast, verb)
        const when = clock.now() + hour
        const run = (options: BulkOptions) => verb.run(holdfast, { queue: 'mail' }, { options, when, priority: 1 })
        const dry = await run({ ...stopAfterOne(new AbortController()), dryRun: true })
        const after = dry.next as string
        assert.ok(dry.changed > 0 && dry.changed < many)
        await rejects(run({ after }), 'INVALID_OPTION', { option: 'after' })
        const { changed } = await run({ dryRun: true, after })
        assert.equal(dry.changed + changed, many)
        const first = await run(stopAfterOne(new AbortController()))
        await rejects(run({ dryRun: true, after: first.next as string }), 'INVALID_OPTION', { option: 'after' })
        assert.equal(first.changed + (await run({ after: first.next as string })).changed, many)
      }),
    )
  }

  test(
    'refuses the `next` of a call with another time, delay or priority',
    inWorld(async ({ holdfast, clock }) => {
      await holdfast.queue('mail').enqueue(1)
      const signal = AbortSignal.abort()
      const filter = { queue: 'mail' }
      const runAt = clock.now() + hour
      const times: readonly RunTime[] = [{ runAt }, { runAt: runAt + 1 }, { delay: '1h' }, { delay: '2h' }]
      for (const time of times) {
        const after = (await holdfast.rescheduleAll(filter, time, { signal })).next as string
        for (const other of times) {
          if (other !== time) await rejects(holdfast.rescheduleAll(filter, other, { after }), 'INVALID_OPTION')
        }
        await holdfast.rescheduleAll(filter, time, { after, signal })
      }
      const after = (await holdfast.reprioritiseAll(filter, 3, { signal })).next as string
      await rejects(holdfast.reprioritiseAll(filter, 4, { after }), 'INVALID_OPTION', { option: 'after' })
      assert.equal((await holdfast.reprioritiseAll(filter, 3, { after })).changed, 1)
    }),
  )

  test(
    'refuses a condition that is undefined: without it, more jobs would be changed',
    inWorld(async ({ holdfast }) => {
      await holdfast.queue('mail').enqueue(1)
      const t = new Date()
      const lost: Readonly<Record<string, object>> = {
        labels: { labels: undefined },
        'ended.since': { ended: { since: undefined, before: t } },
        'ended.before': { ended: { since: t, before: undefined } },
        'started.since': { started: { since: undefined, before: t } },
        'enqueued.before': { enqueued: { since: t, before: undefined } },
        'attempts.min': { attempts: { min: undefined, max: 3 } },
        'attempts.max': { attempts: { min: 0, max: undefined } },
      }
      for (const { run } of verbs) {
        for (const [option, condition] of Object.entries(lost)) {
          const filter = { queue: 'mail', ...condition } as JobConditions
          await rejects(run(holdfast, filter, { options: {}, when: 0, priority: 1 }), 'INVALID_OPTION', { option })
        }
      }
      assert.equal((await holdfast.stats('mail')).ready, 1)
    }),
  )

  test(
    'ends after the step whose onProgress throws, also later, with an error that says where to go on',
    inWorld(async ({ holdfast }) => {
      const no = new Error('no')
      const throwing: readonly (() => unknown)[] = [
        () => {
          throw no
        },
        () => Promise.reject(no),
      ]
      for (const onProgress of throwing) {
        await holdfast.queue('mail').enqueueMany(Array.from({ length: some }, (_, payload) => ({ payload })))
        const error = await rejects(holdfast.cancelAll({ queue: 'mail' }, { onProgress }), 'INVALID_OPTION')
        assert.equal(error.cause, no)
        const { changed, next } = error.facts as { changed: number; next: string }
        assert.ok(changed > 0 && changed < some)
        assert.equal((await holdfast.stats('mail')).ready, some - changed, 'the step was made')
        assert.equal((await holdfast.cancelAll({ queue: 'mail' }, { after: next })).changed, some - changed)
        await holdfast.deleteAll({ queue: 'mail' })
      }
      await holdfast.queue('mail').enqueue(1)
      const [onProgress] = throwing as [() => unknown]
      const facts = { changed: 1, next: null }
      await rejects(holdfast.reprioritiseAll({ queue: 'mail' }, 1, { onProgress }), 'INVALID_OPTION', facts)
    }),
  )

  test(
    'says which conditions collide if no job can match',
    inWorld(async ({ holdfast }) => {
      const says = async (call: Promise<unknown>, pattern: RegExp, conditions: readonly string[]) =>
        assert.match((await rejects(call, 'INVALID_OPTION', { conditions })).message, pattern)
      await says(
        holdfast.deleteAll({ state: 'ready', ended: { since: 0 } }),
        /^No job can match this filter: state names ready, and ended is only for jobs that have ended\.$/,
        ['state', 'ended'],
      )
      await says(
        holdfast.cancelAll({ error: 'no' }),
        /^No job .*: cancelAll takes jobs that are scheduled, held, ready, running, and error is only .* ended\.$/,
        ['error'],
      )
      await says(
        holdfast.requeueAll({ state: 'done', errorGroup: '' }),
        /: state names done, and errorGroup is only for jobs that are dead\.$/,
        ['state', 'errorGroup'],
      )
    }),
  )

  test(
    'refuses a filter without conditions, or with states that it cannot change, and unknown options',
    inWorld(async ({ holdfast, clock }) => {
      await oneOfEach(holdfast, clock.now())
      const before = await everything(holdfast)
      const wrong: Record<string, readonly JobConditions[]> = {
        cancelAll: [{ state: 'dead' }, { state: ['ready', 'done'] }, { error: 'no' }, { ended: { since: 0 } }],
        requeueAll: [{ state: 'ready' }, { state: ['dead', 'running'] }, { state: 'done', errorGroup: '' }],
        deleteAll: [],
        rescheduleAll: [{ state: 'running' }, { state: 'dead' }, { errorGroup: '' }],
        reprioritiseAll: [{ state: 'running' }, { state: 'cancelled' }, { error: 'no' }],
      }
      for (const { name, run } of verbs) {
        const call = (filter: unknown, options: unknown = {}) =>
          run(holdfast, filter as never, { options: options as never, when: clock.now(), priority: 1 })
        for (const filter of [{}, { queue: undefined }, null, 'mail', { que: 'mail' }, ...(wrong[name] ?? [])])
          await rejects(call(filter), 'INVALID_OPTION')
        for (const options of [
          ...[{ dryRun: 'yes' }, { onProgress: 7 }, { signal: 'no' }, { after: 7 }, { after: 'nonsense' }, { by: 7 }],
          ...[{ by: 'x'.repeat(2_000) }, { limit: 5 }, null, 7],
        ])
          await rejects(call({ queue: 'mail' }, options), 'INVALID_OPTION')
        await rejects(call({ queue: 'a b' }), 'INVALID_NAME')
        for (const mark of [
          [],
          ['', '', 1],
          ['', '', 1, 0, 0],
          ['', 'x', 1, 0],
          ['x', '', 1, 0],
          ['[]', '', 1, 0],
          null,
        ]) {
          const after = Buffer.from(JSON.stringify(mark)).toString('base64url')
          await rejects(call({ queue: 'mail' }, { after }), 'INVALID_OPTION')
        }
      }
      for (const when of [{}, { runAt: 0, delay: 0 }, { runAt: Number.NaN }, { delay: 'soon' }, null, 5])
        await rejects(holdfast.rescheduleAll({ queue: 'mail' }, when as never), 'INVALID_OPTION')
      for (const priority of [-1, 10, 1.5, '3' as never])
        await rejects(holdfast.reprioritiseAll({ queue: 'mail' }, priority), 'INVALID_OPTION')
      assert.deepEqual(await everything(holdfast), before)
    }),
  )

  test(
    'finds nothing in a queue, a batch and an id that do not exist',
    inWorld(async ({ holdfast, clock }) => {
      await oneOfEach(holdfast, clock.now())
      const before = await everything(holdfast)
      for (const { run } of verbs) {
        for (const filter of [{ queue: 'nowhere' }, { batch: randomUUID() }, { ids: [randomUUID()] }]) {
          const answer = await run(holdfast, filter, { options: { by: 'ann' }, when: clock.now(), priority: 1 })
          assert.deepEqual(sums(answer), { changed: 0, requested: 0, skipped: {} })
        }
      }
      assert.deepEqual(await everything(holdfast), before)
    }),
  )
}

function refusedTests(inWorld: InWorld, dialect: Dialect): void {
  test(
    'skips a job alone that the database refuses to change, and says why; its neighbours are changed',
    withSql(inWorld)(async ({ holdfast, sql }) => {
      const refuses = dialect.refusesForbidden(sql.schema, 'changed job')
      const payloads = ['a', 'forbidden 1', 'b', 'c', 'forbidden 2', 'd'].map((payload) => ({ payload }))
      const waiting = await holdfast.queue('mail').enqueueMany(payloads)
      const dead = await holdfast.queue('dead', { attempts: 1 }).enqueueMany(payloads)
      for (const lease of await holdfast.claim(['dead'], { max: 10 })) await lease.dead(new Error('no'))
      const forbidden = (jobs: readonly { readonly id: string }[]) => [jobs[1]?.id, jobs[4]?.id].sort()
      await sql.query(refuses.make)
      try {
        for (const [jobs, answer] of [
          [waiting, await holdfast.reprioritiseAll({ queue: 'mail' }, 1)],
          [dead, await holdfast.requeueAll({ queue: 'dead' })],
        ] as const) {
          const [skipped, ...others] = answer.skipped
          assert.deepEqual([answer.changed, others], [4, []])
          assert.deepEqual([skipped?.reason, skipped?.count, skipped?.ids.toSorted()], ['refused', 2, forbidden(jobs)])
          assert.match(skipped?.message ?? '', /not_allowed/)
        }
        assert.equal((await holdfast.stats('dead')).dead, 2)
      } finally {
        await sql.query(refuses.drop)
      }
      assert.deepEqual(sums(await holdfast.requeueAll({ queue: 'dead' })).changed, 2)
    }),
  )
}

interface Given {
  readonly options: BulkOptions
  readonly when: number
  readonly priority: number
}

interface Verb {
  readonly name: string
  readonly can: readonly JobState[]
  run(holdfast: Holdfast, filter: JobConditions, given: Given): Promise<BulkAnswer & { readonly requested?: number }>
}

const waiting: readonly JobState[] = ['scheduled', 'held', 'ready']
const ended: readonly JobState[] = ['dead', 'cancelled', 'done']

const requeue: Verb = {
  ...{ name: 'requeueAll', can: ended },
  run: (holdfast, filter, { options }) => holdfast.requeueAll(filter, options),
}

const verbs: readonly Verb[] = [
  {
    ...{ name: 'cancelAll', can: [...waiting, 'running'] },
    run: (holdfast, filter, { options }) => holdfast.cancelAll(filter, options),
  },
  requeue,
  {
    ...{ name: 'deleteAll', can: [...waiting, 'running', ...ended] },
    run: (holdfast, filter, { options }) => holdfast.deleteAll(filter, options),
  },
  {
    ...{ name: 'rescheduleAll', can: waiting },
    run: (holdfast, filter, { options, when }) => holdfast.rescheduleAll(filter, { runAt: when }, options),
  },
  {
    ...{ name: 'reprioritiseAll', can: waiting },
    run: (holdfast, filter, { options, priority }) => holdfast.reprioritiseAll(filter, priority, options),
  },
]

/** An answer without how many jobs were looked at; all examples are named. */
function short({ looked: _, remaining: __, skipped, ...answer }: BulkAnswer & { readonly remaining?: number | null }) {
  return { ...answer, skipped: Object.fromEntries(skipped.map(({ reason, ids }) => [reason, ids.toSorted()])) }
}

function done(changed: number, skipped: Partial<Record<SkipReason, readonly string[]>> = {}) {
  const named = Object.fromEntries(Object.entries(skipped).map(([reason, ids]) => [reason, ids.toSorted()]))
  return { changed, skipped: named, next: null }
}

function sums({ changed, skipped, requested = 0 }: BulkAnswer & { readonly requested?: number }) {
  return { changed, requested, skipped: Object.fromEntries(skipped.map(({ reason, count }) => [reason, count])) }
}

function stopAfterOne(stop: AbortController): BulkOptions {
  return { signal: stop.signal, onProgress: () => stop.abort() }
}

async function byId(holdfast: Holdfast): Promise<Map<string, JobInfo>> {
  return new Map((await allJobs(holdfast)).map((job) => [job.id, job]))
}

/** A job in each state, in the queues `mail` and `keyed`, and one in another queue. */
async function oneOfEach(holdfast: Holdfast, now: number) {
  const mail = holdfast.queue('mail')
  const id = async (enqueued: Promise<{ readonly id: string }>) => (await enqueued).id
  const ids = {
    done: await id(mail.enqueue('done', { labels: { a: 'b' } })),
    dead: '',
    cancelled: '',
    running: '',
    held: '',
    scheduled: await id(mail.enqueue('scheduled', { runAt: now + hour })),
    ready: '',
    other: await id(holdfast.queue('other').enqueue('other')),
  }
  await (await claimOne(holdfast, 'mail')).done({ is: 'done' })
  ids.dead = await deadJob(holdfast, 'mail', 'dead')
  ids.cancelled = await id(mail.enqueue('cancelled'))
  await holdfast.cancel(ids.cancelled)
  ids.running = await id(holdfast.queue(keyed).enqueue(0))
  await claimOne(holdfast, keyed, { lease: '6d' })
  ids.held = await id(holdfast.queue(keyed).enqueue(1))
  ids.ready = await id(mail.enqueue('ready'))
  return ids
}

/** As many jobs as one step cannot take, in a state that the verb changes. */
async function manyFor(holdfast: Holdfast, { can }: Verb): Promise<void> {
  await holdfast.queue('mail').enqueueMany(Array.from({ length: many }, (_, payload) => ({ payload })))
  if (can.includes('ready')) return
  const leases = await holdfast.claim(['mail'], { max: many })
  await Promise.all(leases.map((lease) => lease.dead(new Error('no'))))
}

class Random {
  #state: number

  constructor(start: number) {
    this.#state = start >>> 0
  }

  /** Less than `max` (mulberry32). */
  below(max: number): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0
    let t = this.#state
    t = Math.imul(t ^ (t >>> 15), t | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return Math.floor((((t ^ (t >>> 14)) >>> 0) / 2 ** 32) * max)
  }

  of<T>(values: readonly T[]): T {
    return values[this.below(values.length)] as T
  }

  subset<T>(values: readonly T[]): T[] {
    const chosen = values.filter(() => this.below(2) === 0)
    return chosen.length > 0 ? chosen : [this.of(values)]
  }
}

const limited = defineQueue<{ n: number; key: string }>('b', { attempts: 2, limit: { key: 'key', concurrency: 1 } })

/** Some jobs in every state, with keys of every scope, labels, items of a batch. Answers the batch. */
async function randomJobs({ holdfast, clock }: World, random: Random): Promise<string> {
  const scopes = ['live', 'waiting', { window: '1h' }] as const
  const options = () => ({
    ...(random.below(3) === 0 && { dedup: { key: `d${random.below(3)}`, scope: random.of(scopes) } }),
    ...(random.below(4) === 0 && { delay: random.of([hour, day]) }),
    ...(random.below(4) === 0 && { startBefore: clock.now() + random.of([hour - 1, 2 * day]) }),
    ...(random.below(3) === 0 && { labels: { customer: `c${random.below(2)}` } }),
    priority: random.below(10),
  })
  const payload = () => ({ n: random.below(4), key: `k${random.below(3)}` })
  const queues = [holdfast.queue<{ n: number; key: string }>('a'), holdfast.queue(limited)]
  const enqueue = () =>
    random
      .of(queues)
      .enqueue(payload(), options())
      .catch((error: unknown) => rejects(Promise.reject(error), 'INVALID_OPTION')) // a startBefore that has no time left
  for (let n = 0; n < 30; n++) await enqueue()
  const items = Array.from({ length: 6 }, () => ({
    queue: limited,
    payload: payload(),
    ...options(),
    startBefore: undefined,
  }))
  const batch = await holdfast.batch(
    { name: 'letters', concurrency: 3 },
    items.map(({ startBefore: _, dedup: __, ...item }) => item),
  )
  const ids = new Set<string>()
  for (let turn = 0; turn < 4; turn++) {
    for (const lease of await holdfast.claim('*', { max: 8, worker: `w${turn}`, lease: '6d' })) {
      const way = random.below(6)
      if (way === 0) await lease.done({ way }, undefined, { outcome: 'saved' })
      else if (way === 1) await lease.dead(new Error(random.of(['no host', 'no user'])))
      else if (way === 2) await lease.retry(new Error('again'), { delay: random.of([0, hour]) })
      else if (way === 3) await lease.release()
      else if (way === 4) await lease.done()
      if (way !== 5) ids.add(lease.job.id)
    }
    await clock.advance(1_000)
    for (let n = 0; n < 4; n++) await enqueue()
  }
  for (const { id, state } of (await holdfast.jobs({ limit: 1_000 })).jobs) {
    if (random.below(8) === 0 && waiting.includes(state)) await holdfast.cancel(id)
    if (random.below(8) === 0 && ended.includes(state)) {
      await holdfast
        .queue('a')
        .enqueue(payload(), { id })
        .catch((error: unknown) => rejects(Promise.reject(error), 'DUPLICATE_JOB_ID')) // an older job: a newer one with its id is live
    }
  }
  if (random.below(4) === 0) await batch.cancel()
  return batch.id
}

function randomFilter(
  random: Random,
  jobs: readonly JobInfo[],
  batches: readonly string[],
  { can }: Verb,
): JobConditions {
  const times = jobs.map(({ createdAt }) => createdAt)
  const ways: readonly (() => JobConditions)[] = [
    () => ({ queue: random.of(['a', 'b', ['a', 'b']]) }),
    () => ({ state: random.subset(can) }),
    () => ({ ids: random.subset(jobs.map(({ id }) => id)) }),
    () => ({ batch: random.of(batches) }),
    () => ({ labels: { customer: `c${random.below(2)}` } }),
    () => ({ enqueued: { since: random.of(times) } }),
    () => ({ limitKey: `k${random.below(3)}` }),
    () => ({ attempts: { max: random.below(2) } }),
    () => ({ payload: { path: 'n', equals: random.below(4) } }),
    () => ({ queue: 'a', dedupKey: `d${random.below(3)}` }),
    () => ({ worker: `w${random.below(4)}` }),
  ]
  return {
    ...random.of(ways)(),
    ...(random.below(2) === 0 && random.of(ways)()),
    ...(random.below(2) === 0 && { state: random.subset(can) }),
  }
}
