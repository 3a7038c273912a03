// A fresh world for each test: an empty store, a clock that moves only when a test moves it, and any number of clients. Tests use
// only the public interface, `advance` and, for what no client shows, the store interface. So the same tests apply to every
// store. Each test ends with a recount: the counts must equal the counted jobs.
import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import type { BatchProgress } from '../../src/batch/progress.ts'
import type { JobInfo } from '../../src/client/job-info.ts'
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
  /** Whether the store runs SQL effects. */
  readonly runsSql?: true
  /** For a store in a database that an application uses by SQL. Then `open` returns `sql`. */
  readonly dialect?: Dialect
  /** Whether a test can write to its tables directly. Then `open` returns `overwrite`. */
  readonly canBeDamaged?: true
  /** Opens an empty store with the time of the clock. */
  open(): Promise<OpenedStore>
}

/** How SQL databases differ. */
export interface Dialect {
  /** Whether a transaction that has written blocks all other writers until it ends. */
  readonly oneWriter: boolean
  /** A statement that fails when it is run. */
  readonly broken: string
  /**
   * Statements that fail, each in its own way. `$notes` is a table with a unique column `n` of at least 0, and 7 in its only row.
   */
  readonly failing: Readonly<Record<string, FailingSql>>
  /** Statements that fail with an error that the store itself might fail with. */
  readonly failingLikeTheStore: Readonly<Record<string, FailingSql>>
  /** Statements that fail at the commit and not before. `$schema` is the schema of the application's tables. */
  readonly failingAtCommit: Readonly<Record<string, SqlFailingAtCommit>>
  /** Statements after which the store's own tables refuse the result `7` of a job, and one that undoes them. */
  refusesSeven(schema: string): { readonly make: string; readonly drop: string }
  /** The same for a payload, or for the value of an entry, that contains the text `forbidden`. */
  refusesForbidden(
    schema: string,
    what: 'payload' | 'changed job' | 'entry',
  ): { readonly make: string; readonly drop: string }
  /** Values of every kind, the types of their columns, and what is read back. */
  readonly values: readonly KeptValue[]
  /** The `from` clause of a key, of ready jobs, of an ended job, and of changes. */
  readonly from: {
    key(schema: string, key: string): string
    ready(schema: string): string
    ended(schema: string, id: string): string
    changes(schema: string): string
  }
  /** A query of the names of the store's tables, and how such a name is written. */
  storeTables(schema: string): string
  tableOf(schema: string, name: string): string
  /** Tables that keep limit keys for a while, whatever becomes of their jobs. */
  readonly keepKeys: readonly string[]
  /** A query of label rows that no job has, and of labels of jobs that have no row. */
  wrongLabelRows(schema: string): string
  /** Statements that remove one row of each job with labels, and add one without a job. `$schema` is the store's schema. */
  readonly damagedLabels: readonly [remove: string, orphan: string]
  /** A query of the numbers of jobs that are gone and have left parts of their journals behind. */
  orphanedJournals(schema: string): string
  /** Statements that leave such a part behind. `$schema` is the store's schema. */
  readonly orphanedRecord: string
}

export interface FailingSql {
  /** Statements that prepare it. `$schema` is the schema of the application's tables. */
  readonly make?: readonly string[]
  readonly text: string
  readonly values?: readonly unknown[]
  readonly says: RegExp
}

/** A table that accepts every number except 7, which it refuses only at the commit. */
export interface SqlFailingAtCommit {
  /** Statements that create the table. */
  readonly make: readonly string[]
  /** Statements that add the number `n`. */
  add(n: number): readonly { readonly text: string; readonly values?: readonly unknown[] }[]
  /** The table with the numbers that were committed. */
  readonly table: string
  /** A variant of an earlier entry, so it is tested with settlements only. */
  readonly isVariant?: true
  readonly says: RegExp
}

export interface KeptValue {
  readonly what: string
  readonly type: string
  readonly given: unknown
  /** Default: as given. */
  readonly read?: unknown
}

/** Text that a store keeps: of a job, by its id, or of a key-value entry, by its key. */
export type KeptText = 'payload' | 'headers' | 'past' | 'cancel' | 'result' | 'error' | 'value'
export type Overwrite = (part: KeptText, id: string, text: string) => Promise<void>

/** The database of the store, as the application uses it for its own tables. */
export interface ApplicationSql {
  /** The schema for tables of the application. Dropped with the store. */
  readonly schema: string
  query(text: string, values?: readonly unknown[]): Promise<Record<string, unknown>[]>
  /** Begins a transaction of the application. */
  begin(how?: string): Promise<CallerTx>
  /** Rolls back open transactions: other calls may wait for them. */
  end(): Promise<void>
}

export interface CallerTx {
  /** The value of the option `tx` of an enqueue. */
  readonly tx: object
  query(text: string, values?: readonly unknown[]): Promise<{ readonly rows: Record<string, unknown>[] }>
  commit(): Promise<void>
  rollback(): Promise<void>
}

export interface OpenedStore {
  readonly clock: TestClock
  /** Present if the store is in an SQL database. */
  readonly sql?: ApplicationSql
  /** Overwrites stored text, as no client would. */
  readonly overwrite?: Overwrite
  /** A new client on this store, as another process would open it. */
  client(options?: ClientOptions): Promise<Holdfast>
  /** The same store without a client. */
  store(): Promise<Store>
  /** Called after every client was closed. */
  close(): PromiseLike<void>
}

export interface World {
  readonly holdfast: Holdfast
  readonly clock: TestClock
  /** The application's access to the same database, if the store has one. */
  readonly sql: ApplicationSql | undefined
  /** Overwrites stored text, if a test can. */
  readonly overwrite: Overwrite | undefined
  /** A second client on the same store. */
  another(options?: ClientOptions): Promise<Holdfast>
  /** The store as another process opens it, without a client: for promises that the store makes to the client. */
  store(): Promise<Store>
}

export interface ClientOptions {
  readonly readOnly?: boolean
}

export type Show = (world: World, t: TestContext) => Promise<void>
/** Returns the body of a test: `test('a promise', inWorld(async ({ holdfast }) => { … }))`. */
export type InWorld = (show: Show) => (t: TestContext) => Promise<void>

/** The same for stores in a database of the application. */
export type InSqlWorld = (
  show: (world: World & { readonly sql: ApplicationSql }, t: TestContext) => Promise<void>,
) => (t: TestContext) => Promise<void>

export function withSql(inWorld: InWorld): InSqlWorld {
  return (show) =>
    inWorld(async (world, t) => {
      const { sql } = world
      assert.ok(sql, 'a store with a dialect provides `sql`')
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
      if (sql && underTest.dialect) await recountRows(sql, underTest.dialect)
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

/** Asserts that the counts of the store equal its counted jobs, and that every job is consistent. */
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
  assert.deepEqual([...counted.keys()], [], 'every queue with jobs has counts')
  await recountBatches(holdfast)
  await recountDeadGroups(holdfast, jobs)
  for (const job of jobs) {
    assert.ok(job.attempts >= 0 && job.attempts <= job.maxAttempts, `attempts of job ${job.id} stay within the cap`)
    assert.equal(job.worker !== null, job.state === 'running', `job ${job.id} is held if and only if it runs`)
    const ended = ['done', 'dead', 'cancelled'].includes(job.state)
    assert.equal(job.finishedAt !== null, ended, `job ${job.id} is finished if and only if its state says so`)
  }
}

/** Asserts that the counts of the error groups equal the counted dead jobs. */
async function recountDeadGroups(holdfast: Holdfast, jobs: readonly JobInfo[]): Promise<void> {
  const keyOf = (queue: string, group: string | null) => `${queue} ${group ?? ''}`
  const counted = new Map<string, number>()
  for (const { queue, errorGroup } of jobs.filter(({ state }) => state === 'dead')) {
    counted.set(keyOf(queue, errorGroup), (counted.get(keyOf(queue, errorGroup)) ?? 0) + 1)
  }
  const said = new Map<string, number>()
  for (let after: string | undefined, more = true; more; more = after !== undefined) {
    const page = await holdfast.deadGroups({ limit: 1000, ...(after !== undefined && { after }) })
    for (const { queue, group, dead } of page.groups) said.set(keyOf(queue, group), dead)
    after = page.next ?? undefined
  }
  const sorted = (counts: Map<string, number>) => [...counts].sort(([a], [b]) => (a < b ? -1 : 1))
  assert.deepEqual(sorted(said), sorted(counted), 'the counts of error groups equal a recount')
}

/**
 * Asserts that the rows by which jobs are found by their labels equal the labels of the stored jobs, and that every part of a
 * journal belongs to a stored job.
 */
export async function recountRows(sql: ApplicationSql, dialect: Dialect): Promise<void> {
  assert.deepEqual(await sql.query(dialect.wrongLabelRows(sql.schema)), [], 'label rows equal the labels of the jobs')
  assert.deepEqual(
    await sql.query(dialect.orphanedJournals(sql.schema)),
    [],
    'every part of a journal belongs to a job',
  )
}

/** Asserts that the counts of every batch equal its counted items. Ended items may have been pruned, and still count. */
async function recountBatches(holdfast: Holdfast): Promise<void> {
  for await (const { id, waiting, running, done, dead, cancelled } of allBatches(holdfast)) {
    const batch = await holdfast.getBatch(id)
    const counted = { waiting: 0, running: 0, done: 0, dead: 0, cancelled: 0 }
    for await (const { state, batch: of } of batch?.items() ?? []) {
      assert.equal(of, id, 'an item has the id of its batch')
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
