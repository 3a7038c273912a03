// A fresh world for each test: an empty store, a clock that stands still until it is moved, and any number of clients.
// Only the public interface and `advance` are used, so that every store can be judged by the same tests. Each test ends
// with a recount: whatever it did, the counts are what counting the jobs gives.
import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import { isHoldfastError } from '../../src/errors.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import type { JobState } from '../../src/job/record.ts'
import { allJobs } from './expect.ts'

export interface TestClock {
  now(): number
  advance(ms: number): void | Promise<void>
}

export interface StoreUnderTest {
  readonly name: string
  /** A store that is empty, whose time is the clock's. */
  open(): Promise<StoreInHand>
}

export interface StoreInHand {
  readonly clock: TestClock
  /** A new client on this store, as another process would open it. */
  client(): Promise<Holdfast>
  /** Called when every client was closed. */
  close(): PromiseLike<void>
}

export interface World {
  readonly holdfast: Holdfast
  readonly clock: TestClock
  /** A second client on the same store. */
  another(): Promise<Holdfast>
}

export type Show = (world: World, t: TestContext) => Promise<void>
/** Makes the body of a test: `test('a promise', inWorld(async ({ holdfast }) => { … }))`. */
export type InWorld = (show: Show) => (t: TestContext) => Promise<void>

export function worldOf(store: StoreUnderTest): InWorld {
  return (show) => async (t) => {
    const inHand = await store.open()
    const clients: Holdfast[] = []
    const another = async () => {
      const client = await inHand.client()
      clients.push(client)
      return client
    }
    try {
      const holdfast = await another()
      await show({ holdfast, clock: inHand.clock, another }, t)
      await recount(await stillOpen(holdfast, another))
    } finally {
      await Promise.all(clients.map((client) => client.close()))
      await inHand.close()
    }
  }
}

async function stillOpen(holdfast: Holdfast, another: () => Promise<Holdfast>): Promise<Holdfast> {
  const [known] = await Promise.allSettled([holdfast.queues()])
  return known.status === 'rejected' && isHoldfastError(known.reason, 'CLOSED') ? another() : holdfast
}

const states: readonly JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']

async function recount(holdfast: Holdfast): Promise<void> {
  const counted = new Map<string, Record<string, number>>()
  const zero = () => Object.fromEntries(states.map((state) => [state, 0]))
  const jobs = await allJobs(holdfast)
  for (const { queue, state } of jobs) {
    const counts = counted.get(queue) ?? zero()
    counted.set(queue, { ...counts, [state]: (counts[state] ?? 0) + 1 })
  }
  for (const queue of await holdfast.queues()) {
    const said = Object.fromEntries(states.map((state) => [state, queue[state]]))
    assert.deepEqual(said, counted.get(queue.name) ?? zero(), `the counts of queue ${queue.name} equal a recount`)
    counted.delete(queue.name)
  }
  assert.deepEqual([...counted.keys()], [], 'every queue with jobs is counted')
  for (const job of jobs) {
    assert.ok(job.attempts >= 0 && job.attempts <= job.maxAttempts, `attempts of job ${job.id} stay within the cap`)
    assert.equal(job.worker !== null, job.state === 'running', `job ${job.id} is held if and only if it runs`)
    const ended = ['done', 'dead', 'cancelled'].includes(job.state)
    assert.equal(job.finishedAt !== null, ended, `job ${job.id} is finished if and only if its state says so`)
  }
}
