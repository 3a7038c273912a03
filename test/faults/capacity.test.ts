// Many workers with few connections, and several schemas in one database.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { open } from '../../src/open.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { allJobs, claimOne } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import { machineMs } from '../sqlite/process.ts'
import { channelsOf, fromListeningSessions } from '../support/listeners.ts'
import { testDatabase } from '../support/postgres.ts'
import { enqueue } from '../worker/processes.ts'
import { WorkerProcess } from '../worker/worker-process.ts'
import { query } from './scene.ts'

test('twenty workers of 10 slots each, in four processes, need no more than 20 connections together', async (t) => {
  const [processes, workers, connections, jobs] = [4, 5, 5, 2_000]
  await using database = await testDatabase()
  await using holdfast = await open(`${database.url}?application_name=producer`)
  await using stack = new AsyncDisposableStack()
  const fleet = await Promise.all(
    Array.from({ length: processes }, (_, n) => {
      const url = `${database.url}?application_name=fleet`
      const options = { lease: '20s', concurrency: 10, workers, postgres: { url, connections } } as const
      return WorkerProcess.start(url, `fleet-${n}`, options)
    }),
  )
  for (const process of fleet) stack.use(process)
  const used = new ConnectionCount(database.url)
  const from = machineMs()
  const ids = await enqueue(holdfast, jobs, { do: 'work', ms: 50 })
  await Promise.all(ids.map((id) => holdfast.result(id, { timeout: '60s' })))
  const tookMs = machineMs() - from
  const max = await used.stop()
  const done = await allJobs(holdfast, { queue: 'tasks', state: 'done' })
  const byWorker = Map.groupBy(done, ({ history }) => history.at(-1)?.worker)
  const shares = [...byWorker.values()].map(({ length }) => length)
  t.diagnostic(
    `${jobs} jobs of 50 ms in ${tookMs.toFixed()} ms on ${max} connections at most; ` +
      `a worker did ${Math.min(...shares)} to ${Math.max(...shares)}`,
  )
  assert.equal(done.length, jobs)
  assert.ok(done.every(({ attempts }) => attempts === 1))
  assert.ok(max <= processes * connections, `${max} connections`)
  assert.equal(byWorker.size, processes * workers, 'every worker did some')
  await recount(holdfast)
})

test('schemas of one database are independent, also if their long names begin alike', async () => {
  await using database = await testDatabase()
  const long = 'the schema of an application that gives very long names'
  const names = ['plain', `${long} äää`, `${long} ööö`]
  await using stack = new AsyncDisposableStack()
  const stores = await Promise.all(
    names.map(async (schema) => stack.use(await open(postgres({ url: database.url, schema })))),
  )
  for (const [n, store] of stores.entries()) {
    const waiting = store.claim(['mail'], { wait: '20s' })
    const others = stores.filter((other) => other !== store)
    await untilListening(database.url, n + 1)
    for (const other of others) await other.queue('mail').enqueue(1, { id: crypto.randomUUID(), dedup: { key: 'k' } })
    for (const other of others) await (await claimOne(other, 'mail')).done()
    await store.queue('mail').enqueue(2)
    const [lease] = await waiting
    assert.equal(lease?.job.payload, 2)
    await lease?.done()
    await recount(store)
  }
  const pids = (await query(database.url, `select pid ${fromListeningSessions()}`)).map((row) => row['pid'] as number)
  const channels = channelsOf(pids)
  assert.equal(new Set(channels).size, names.length, 'a channel each')
})

test('a lock that is held in one schema blocks no call in another', async () => {
  await using database = await testDatabase()
  await using one = await open(postgres({ url: database.url, schema: 'one' }))
  await using two = await open(postgres({ url: database.url, schema: 'two' }))
  for (const store of [one, two]) await store.queue('mail').enqueue(1)
  const stranger = new pg.Client({ connectionString: database.url })
  await stranger.connect()
  await stranger.query('begin')
  const [claimed] = (await stranger.query(`select * from one.claim(gen_random_uuid(), 'w', 1000, 1, null, '{}', null)`))
    .rows
  assert.ok(claimed, 'a claim is under way, and holds its locks')
  const blocked = one.claim(['mail'], { max: 1 })
  await (await claimOne(two, 'mail')).done()
  await two.sweep()
  await recount(two)
  await stranger.query('rollback')
  await stranger.end()
  assert.equal((await blocked).length, 1)
})

/** How many connections of the fleet there are, asked again and again. */
class ConnectionCount {
  #max = 0
  #isOver = false
  readonly #counting: Promise<void>

  constructor(url: string) {
    this.#counting = this.#count(url)
  }

  async #count(url: string): Promise<void> {
    const client = new pg.Client({ connectionString: url })
    await client.connect()
    for (; !this.#isOver; await sleep(20)) {
      const { rows } = await client.query(
        `select count(*)::int as n from pg_stat_activity where application_name = 'fleet'`,
      )
      this.#max = Math.max(this.#max, rows[0].n)
    }
    await client.end()
  }

  async stop(): Promise<number> {
    this.#isOver = true
    await this.#counting
    return this.#max
  }
}

async function untilListening(url: string, count: number): Promise<void> {
  for (
    const deadline = machineMs() + 10_000;
    (await query(url, `select pid ${fromListeningSessions()}`)).length < count;
    await sleep(20)
  )
    assert.ok(machineMs() < deadline, `${count} listen`)
}
