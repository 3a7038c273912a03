// A fresh world for each test: an empty store, a clock that stands still until it is moved, and any number of clients.
// Only the public interface, `advance` and, for what no client shows, the seam are used, so that every store can be judged by
// the same tests. Each test ends
// with a recount: whatever it did, the counts are what counting the jobs gives.
import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import type { BatchProgress } from '../../src/batch/progress.ts'
import { isHoldfastError } from '../../src/errors.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import type { JobState } from '../../src/job/record.ts'
import type { Store } from '../../src/store/store.ts'
import { allJobs } from './expect.ts'

export interface TestClock {
  now(): number
  advance(ms: number): void | Promise<void>
}

export interface StoreUnderTest {
  readonly name: string
  /** Runs SQL effects. */
  readonly runsSql?: true
  /** Lives in a database that an application reaches by SQL: then `open` hands out `sql`. */
  readonly dialect?: Dialect
  /** There is a way in behind its back: then `open` hands out `overwrite`. */
  readonly canBeDamaged?: true
  /** A store that is empty, whose time is the clock's. */
  open(): Promise<StoreInHand>
}

/** What differs between databases that applications speak SQL to. */
export interface Dialect {
  /** Whoever has written keeps everybody else from writing until the transaction ends. */
  readonly oneWriter: boolean
  /** Fails when it is run. */
  readonly broken: string
  /** Each fails in its own way. `$notes` is a table whose column `n` is unique, at least 0, and 7 in its only row. */
  readonly failing: Readonly<Record<string, FailingSql>>
  /** Each fails in its own way with an error that the store itself might fail with. */
  readonly failingLikeTheStore: Readonly<Record<string, FailingSql>>
  /** Each fails when the transaction is committed and not before. `$schema` is the schema of the application's tables. */
  readonly failingAtCommit: Readonly<Record<string, SqlFailingAtCommit>>
  /** Values of every kind, the types of the columns they go to, and what is read there again. */
  readonly values: readonly KeptValue[]
  /** Where the store keeps a key, jobs that are ready, a job that has ended, and changes: what stands behind `from`. */
  readonly from: {
    key(schema: string, key: string): string
    ready(schema: string): string
    ended(schema: string, id: string): string
    changes(schema: string): string
  }
}

export interface FailingSql {
  /** What it needs. `$schema` is the schema of the application's tables. */
  readonly make?: readonly string[]
  readonly text: string
  readonly values?: readonly unknown[]
  readonly says: RegExp
}

/** A table that takes every number but 7, which it minds at the commit only. */
export interface SqlFailingAtCommit {
  /** Makes the table. */
  readonly make: readonly string[]
  /** Statements that add the number `n`. */
  add(n: number): readonly { readonly text: string; readonly values?: readonly unknown[] }[]
  /** Where the numbers are that landed. */
  readonly table: string
  /** A variant of one before it: a settlement is enough to show it. */
  readonly isVariant?: true
  readonly says: RegExp
}

export interface KeptValue {
  readonly what: string
  readonly type: string
  readonly given: unknown
  /** As given, unless it says otherwise. */
  readonly read?: unknown
}

/** Text that a store keeps: of a job, found by its id, or of a key-value entry, found by its key. */
export type KeptText = 'payload' | 'headers' | 'past' | 'cancel' | 'result' | 'error' | 'value'
export type Overwrite = (part: KeptText, id: string, text: string) => Promise<void>

/** The database that the store lives in, as the application uses it for its own tables. */
export interface SqlHand {
  /** For tables of one's own; gone with the store. */
  readonly schema: string
  query(text: string, values?: readonly unknown[]): Promise<Record<string, unknown>[]>
  /** A transaction of the application's own. */
  begin(how?: string): Promise<CallerTx>
  /** Rolls back what was left open: somebody may wait for it. */
  end(): Promise<void>
}

export interface CallerTx {
  /** What an enqueue takes. */
  readonly tx: object
  query(text: string, values?: readonly unknown[]): Promise<{ readonly rows: Record<string, unknown>[] }>
  commit(): Promise<void>
  rollback(): Promise<void>
}

export interface StoreInHand {
  readonly clock: TestClock
  /** Where the store lives in a database that speaks SQL. */
  readonly sql?: SqlHand
  /** Writes something else there, as no client would. */
  readonly overwrite?: Overwrite
  /** A new client on this store, as another process would open it. */
  client(options?: ClientOptions): Promise<Holdfast>
  /** The same without a client. */
  store(): Promise<Store>
  /** Called when every client was closed. */
  close(): PromiseLike<void>
}

export interface World {
  readonly holdfast: Holdfast
  readonly clock: TestClock
  /** The application's own way into the same database; only where the store has one. */
  readonly sql: SqlHand | undefined
  /** Damages what is stored; only where there is a way to. */
  readonly overwrite: Overwrite | undefined
  /** A second client on the same store. */
  another(options?: ClientOptions): Promise<Holdfast>
  /** The store as another process opens it, without a client: for what is promised to the client alone. */
  store(): Promise<Store>
}

export interface ClientOptions {
  readonly readOnly?: boolean
}

export type Show = (world: World, t: TestContext) => Promise<void>
/** Makes the body of a test: `test('a promise', inWorld(async ({ holdfast }) => { … }))`. */
export type InWorld = (show: Show) => (t: TestContext) => Promise<void>

/** The same for stores that live in a database of the application's. */
export type InSqlWorld = (
  show: (world: World & { readonly sql: SqlHand }, t: TestContext) => Promise<void>,
) => (t: TestContext) => Promise<void>

export function withSql(inWorld: InWorld): InSqlWorld {
  return (show) =>
    inWorld(async (world, t) => {
      const { sql } = world
      assert.ok(sql, 'a store that speaks SQL hands it out')
      await show({ ...world, sql }, t)
    })
}

export function worldOf(underTest: StoreUnderTest): InWorld {
  return (show) => async (t) => {
    const inHand = await underTest.open()
    const clients: Holdfast[] = []
    const stores: Store[] = []
    const another = async (options: ClientOptions = {}) => {
      const client = await inHand.client(options)
      clients.push(client)
      return client
    }
    const store = async () => {
      const opened = await inHand.store()
      stores.push(opened)
      return opened
    }
    try {
      const holdfast = await another()
      const { clock, sql, overwrite } = inHand
      await show({ holdfast, clock, sql, overwrite, another, store }, t)
      await recount(await stillOpen(holdfast, another))
    } finally {
      await inHand.sql?.end()
      await Promise.all([...clients, ...stores].map((each) => each.close()))
      await inHand.close()
    }
  }
}

async function stillOpen(holdfast: Holdfast, another: () => Promise<Holdfast>): Promise<Holdfast> {
  const [known] = await Promise.allSettled([holdfast.queues()])
  return known.status === 'rejected' && isHoldfastError(known.reason, 'CLOSED') ? another() : holdfast
}

const states: readonly JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']

/** What the store counts is what counting its jobs gives, and every job is in order. */
export async function recount(holdfast: Holdfast): Promise<void> {
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
  await recountBatches(holdfast)
  for (const job of jobs) {
    assert.ok(job.attempts >= 0 && job.attempts <= job.maxAttempts, `attempts of job ${job.id} stay within the cap`)
    assert.equal(job.worker !== null, job.state === 'running', `job ${job.id} is held if and only if it runs`)
    const ended = ['done', 'dead', 'cancelled'].includes(job.state)
    assert.equal(job.finishedAt !== null, ended, `job ${job.id} is finished if and only if its state says so`)
  }
}

/** What every batch counts is what counting its items gives; those that ended may have been pruned, and count on. */
async function recountBatches(holdfast: Holdfast): Promise<void> {
  for await (const { id, waiting, running, done, dead, cancelled } of allBatches(holdfast)) {
    const batch = await holdfast.getBatch(id)
    const counted = { waiting: 0, running: 0, done: 0, dead: 0, cancelled: 0 }
    for await (const { state, batch: of } of batch?.items() ?? []) {
      assert.equal(of, id, 'an item knows its batch')
      counted[state === 'held' || state === 'scheduled' || state === 'ready' ? 'waiting' : state] += 1
    }
    assert.deepEqual(
      [counted.waiting, counted.running],
      [waiting, running],
      `the counts of batch ${id} equal a recount`,
    )
    const isLess = counted.done <= done && counted.dead <= dead && counted.cancelled <= cancelled
    assert.ok(isLess, `batch ${id} counts every item that has ended`)
  }
}

async function* allBatches(holdfast: Holdfast): AsyncGenerator<BatchProgress> {
  let after: string | undefined
  do {
    const page = await holdfast.batches({ limit: 100, ...(after !== undefined && { after }) })
    yield* page.batches
    after = page.next ?? undefined
  } while (after !== undefined)
}
