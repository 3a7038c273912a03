// Handlers that misbehave: each harms its own job and nothing else.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { EventName, HoldfastEvents } from '../../src/events.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { readJob, stateOf } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import type { MakeSharedStore } from './shared-store.ts'

interface Misbehaviour {
  readonly handler: () => unknown
  /** What the error of the job says; null if the job is done all the same, with result 1. */
  readonly says: RegExp | null
}

const circle: Record<string, unknown> = {}
circle['itself'] = circle
const anything = (trap: string) => () => {
  throw new Error(`the trap of ${trap}`)
}
const traps: ProxyHandler<object> = {
  get: anything('get'),
  has: anything('has'),
  getPrototypeOf: anything('getPrototypeOf'),
  ownKeys: anything('ownKeys'),
  getOwnPropertyDescriptor: anything('getOwnPropertyDescriptor'),
}
const opaque = () => new Proxy({}, traps)
const rejectingWith = (reason: unknown) => () => Promise.reject(reason)
const throwing = (thrown: unknown) => () => {
  throw thrown
}

const misbehaviours: Readonly<Record<string, Misbehaviour>> = {
  'throws undefined': { handler: throwing(undefined), says: /threw undefined/ },
  'throws null': { handler: throwing(null), says: /threw null/ },
  'rejects with undefined': { handler: rejectingWith(undefined), says: /threw undefined/ },
  'rejects twice': {
    handler: () =>
      new Promise((_, reject) => {
        reject(new Error('the first'))
        reject(new Error('the second'))
      }),
    says: /^the first$/,
  },
  'throws after it resolved': {
    handler: () =>
      new Promise((resolve) => {
        resolve(1)
        throw new Error('too late')
      }),
    says: null,
  },
  'rejects after it resolved': {
    handler: () =>
      new Promise((resolve, reject) => {
        resolve(1)
        reject(new Error('too late'))
      }),
    says: null,
  },
  'returns an object that contains itself': { handler: () => circle, says: /result.*(circular|refers back|itself)/i },
  'returns a big integer': { handler: () => 12n, says: /result.*big ?int/i },
  'returns a promise of a big integer': { handler: async () => [12n], says: /result.*big ?int/i },
  'returns a function': { handler: () => () => 1, says: /result.*function/i },
  'returns an object that cannot be read': { handler: opaque, says: /trap of get/ },
  'returns an object whose `then` throws': {
    handler: () => Object.defineProperty({}, 'then', { get: throwing(new Error('no then')) }),
    says: /no then/,
  },
  'returns an object whose `toJSON` throws': {
    handler: () => ({ toJSON: throwing(new Error('no JSON')) }),
    says: /JSON/,
  },
  'throws a frozen error': { handler: throwing(Object.freeze(new Error('frozen'))), says: /^frozen$/ },
  'throws a frozen object': { handler: throwing(Object.freeze({ code: 7 })), says: /^{"code":7}$/ },
  'throws an object that contains itself': { handler: throwing(circle), says: /\[cycle\]/ },
  'throws an object that cannot be read': { handler: throwing(opaque()), says: /cannot be described/ },
  'rejects with an object that cannot be read': { handler: rejectingWith(opaque()), says: /cannot be described/ },
  'throws a function': { handler: throwing(() => 1), says: /1/ },
  'throws a symbol': { handler: throwing(Symbol('strange')), says: /strange/ },
  'throws an error whose message cannot be read': {
    handler: throwing(Object.defineProperty(new Error(), 'message', { get: throwing(new Error('no')) })),
    says: /cannot be described/,
  },
}

export function handlerTests(makeSharedStore: MakeSharedStore): void {
  test('a handler that misbehaves fails its own job with a readable error; its neighbours are done', async () => {
    await using sharedStore = await makeSharedStore()
    const holdfast = await sharedStore.open()
    const tasks = defineQueue<string>('tasks', { attempts: 1 })
    const worker = holdfast.work(tasks, ({ payload }) => misbehaviours[payload]?.handler() ?? 'fine', {
      concurrency: 50,
    })
    const entries = Object.entries(misbehaviours)
    const jobs = entries.flatMap(([name]) => [{ payload: name }, { payload: 'neighbour' }])
    const ids = (await holdfast.queue(tasks).enqueueMany(jobs)).map(({ id }) => id)
    const outcomes = await Promise.allSettled(ids.map((id) => holdfast.result(id)))
    for (const [at, [name, { says }]] of entries.entries()) {
      const { state, error, result } = await readJob(holdfast, ids[2 * at] as string)
      if (says === null) assert.deepEqual([state, result], ['done', 1], name)
      else {
        assert.equal(state, 'dead', name)
        assert.match(error?.message ?? '', says, name)
      }
      assert.deepEqual(outcomes[2 * at + 1], { status: 'fulfilled', value: 'fine' })
    }
    assert.equal(worker.health().ok, true)
    await recount(holdfast)
  })

  test('a second stop with no grace leaves an unwinding handler no time', async () => {
    await using sharedStore = await makeSharedStore()
    const holdfast = await sharedStore.open()
    const aborted = Promise.withResolvers<void>()
    const worker = holdfast.work('tasks', ({ signal }) => {
      signal.addEventListener('abort', () => aborted.resolve())
      return new Promise(() => {})
    })
    const started = next(holdfast, 'job.started')
    const { id } = await holdfast.queue('tasks').enqueue(1)
    await started
    const stopped = worker.stop({ grace: 0 })
    await aborted.promise
    const askedAt = performance.now()
    await worker.stop({ grace: 0 })
    await stopped
    assert.ok(performance.now() - askedAt < 2_000, 'unwinding takes 5 s')
    const { state, attempts } = await readJob(holdfast, id)
    assert.deepEqual([state, attempts], ['ready', 0])
  })

  test('a cancelled handler that throws an object that cannot be read leaves a cancelled job', async () => {
    await using sharedStore = await makeSharedStore()
    const holdfast = await sharedStore.open()
    const worker = holdfast.work('tasks', ({ signal }) => {
      return new Promise((_, reject) => signal.addEventListener('abort', () => reject(opaque())))
    })
    const started = next(holdfast, 'job.started')
    const { id } = await holdfast.queue('tasks').enqueue(1)
    await started
    await holdfast.cancel(id)
    await assert.rejects(holdfast.result(id), { code: 'JOB_CANCELLED' })
    assert.equal(worker.health().ok, true)
  })

  describe('a handler that ignores its signal after a timeout', () => {
    test('is abandoned: its slot is free, its job has failed, and what it returns is dropped', async () => {
      await using sharedStore = await makeSharedStore()
      const holdfast = await sharedStore.open()
      const late = Promise.withResolvers<string>()
      const tasks = defineQueue<string>('tasks', { attempts: 1, timeout: 100 })
      const worker = holdfast.work(
        tasks,
        ({ payload, signal }) => (payload === 'late' && !signal.aborted ? late.promise : 'fine'),
        {
          concurrency: 2,
          unwind: 20,
        },
      )
      const abandoned = next(holdfast, 'handler.abandoned')
      const dead = next(holdfast, 'job.dead')
      const { id } = await holdfast.queue(tasks).enqueue('late')
      const { reason, abandoned: count } = await abandoned
      assert.deepEqual([reason, count], ['timeout', 1])
      assert.equal((await dead).ending, 'timeout')
      assert.deepEqual([worker.health().ok, worker.health().running, worker.health().abandoned], [true, 0, 1])
      const settlements = countOf(holdfast, 'settle.ended')
      late.resolve('late')
      const other = await holdfast.queue(tasks).enqueue('other')
      assert.equal(await holdfast.result(other.id), 'fine')
      assert.equal(settlements(), 1, 'only the other job was settled')
      const job = await readJob(holdfast, id)
      assert.deepEqual([job.state, job.result, job.error?.code], ['dead', null, 'JOB_TIMEOUT'])
      assert.deepEqual(
        job.history.map(({ ending }) => ending),
        ['timeout'],
      )
      assert.equal(worker.health().abandoned, 0)
      await recount(holdfast)
    })

    test('stops the worker from claiming, with a reason in its health, once all slots have one and until one of them ends', async () => {
      await using sharedStore = await makeSharedStore()
      const holdfast = await sharedStore.open()
      const gates = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
      const tasks = defineQueue<number>('tasks', { attempts: 1, timeout: 50 })
      const worker = holdfast.work(tasks, ({ payload }) => gates[payload]?.promise, { concurrency: 2 })
      let left = 0
      const bothLeft = new Promise<void>((resolve) => holdfast.on('handler.abandoned', () => ++left === 2 && resolve()))
      await holdfast.queue(tasks).enqueueMany([{ payload: 0 }, { payload: 1 }])
      await bothLeft
      const { ok, why, abandoned, running } = worker.health()
      assert.deepEqual([ok, abandoned, running], [false, 2, 0])
      assert.match(why ?? '', /2 handlers ignored their signal/)
      const { id } = await holdfast.queue(tasks).enqueue(2)
      await next(holdfast, 'sweep.ended') // a claim that was under way has been answered, and its job was released
      assert.equal(await stateOf(holdfast, id), 'ready')
      gates[0]?.resolve()
      await holdfast.result(id)
      assert.deepEqual([worker.health().ok, worker.health().abandoned], [true, 1])
      gates[1]?.resolve()
      await worker.stop()
      await recount(holdfast)
    })
  })
}

export function next<Name extends EventName>(holdfast: Holdfast, name: Name): Promise<HoldfastEvents[Name]> {
  return new Promise((resolve) => {
    const stop = holdfast.on(name, (event) => {
      stop()
      resolve(event)
    })
  })
}

/** How often the event was emitted since. */
function countOf(holdfast: Holdfast, name: EventName): () => number {
  let times = 0
  holdfast.on(name, () => {
    times += 1
  })
  return () => times
}
