// Where rounds take place: a directory or a server that lasts for the whole run, with a fresh store for each round.

import { appendFileSync, mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { open } from '../../src/open.ts'
import { assertRecount } from '../postgres/exactness-recount.ts'
import { assertCountsEqualRecount } from '../sqlite/recount.ts'
import { type CuttingProxy, cuttingProxy, type Moment } from '../support/cutting-proxy.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { runOk } from '../support/shell.ts'
import { applicationAt } from './application.ts'
import { enqueueReservedJob } from './drain.ts'
import { Journal } from './journal.ts'
import { type Observation, observe } from './observe.ts'
import { queues, tables, tick } from './world.ts'

export type StoreName = 'sqlite' | 'postgres'

export interface Site extends AsyncDisposable {
  readonly store: StoreName
  /** Faults that cannot be injected here, and why. */
  readonly missing: readonly string[]
  prepare(directory: string): Promise<TortureStore>
}

/** The store of a round. */
export interface TortureStore extends AsyncDisposable {
  /** The URL that the fleet uses. */
  readonly url: string
  /** Observes the store, after every statement that dead processes have sent has ended. */
  observe(): Promise<Observation>
  /** Reads the tables directly. Fails unless tables, lists and counts agree and the store is undamaged. */
  inspect(): Promise<void>
  /** The same while the fleet is running. At any one moment all must agree. */
  inspectRunning(): Promise<void>
  readonly storeFaults: StoreFaults
}

/** Faults of a store. Each resolves when it is over. */
export interface StoreFaults {
  /** Another connection holds a snapshot for `ms`. */
  holdSnapshot(ms: number): Promise<void>
  /** Another connection holds an open write transaction for `ms`. */
  holdTransaction(ms: number): Promise<void>
  fillDisk?(ms: number): Promise<void>
  /** The server crashes (`immediate`) or shuts down (`fast`), and starts again after `ms`. */
  stopServer?(mode: 'fast' | 'immediate', ms: number): Promise<void>
  dropConnections?(): Promise<void>
  holdConnections?(ms: number): Promise<void>
  /** Cuts the connection of the next call, at this moment of the call. */
  cutCall?(moment: Moment): Promise<void>
  /** Ends the sessions that listen for wake-ups. */
  unsubscribe?(): Promise<void>
  /** Sends messages that no store writes to all sessions that listen for wake-ups. */
  forge?(): Promise<void>
}

const isRoot = process.getuid?.() === 0
const diskMb = { sqlite: 256, postgres: 512 }
/** Waiting for a lock is synchronous here, so it blocks the whole process. */
const lockMaxMs = 200
const noSmallDisk = 'no full disk: only root can mount a small one'

export async function sqliteSite(): Promise<Site> {
  const scratch = await scratchDirectory()
  if (isRoot) await runOk('mount', ['-t', 'tmpfs', '-o', `size=${diskMb.sqlite}m`, 'tmpfs', scratch.path])
  let rounds = 0
  return {
    store: 'sqlite',
    missing: isRoot ? [] : [noSmallDisk],
    async prepare(directory) {
      const home = join(scratch.path, String(rounds++))
      mkdirSync(home)
      return createSqliteStore(join(home, 'jobs.db'), directory)
    },
    async [Symbol.asyncDispose]() {
      if (isRoot) await runOk('umount', [scratch.path])
      await scratch[Symbol.asyncDispose]()
    },
  }
}

async function createSqliteStore(path: string, directory: string): Promise<TortureStore> {
  const url = `sqlite:${path}`
  const connect = (timeout: number) => new DatabaseSync(path, { timeout })
  const holding = async (begin: string, ms: number) => {
    const db = connect(lockMaxMs)
    try {
      db.exec(begin)
      await sleep(ms)
      db.exec('rollback')
    } catch {
      // another process has the lock and may be stopped, or the disk is full
    } finally {
      db.close()
    }
  }
  const inspect = async () => {
    const db = connect(30_000)
    try {
      assertCountsEqualRecount(db)
    } finally {
      db.close()
    }
  }
  await prepareDatabase(url, directory)
  return {
    url,
    observe: () => observeAt(url),
    inspect,
    inspectRunning: inspect,
    storeFaults: {
      holdSnapshot: (ms) => holding('begin; select count(*) from holdfast_job', ms),
      holdTransaction: (ms) => holding('begin immediate', ms),
      ...(isRoot && { fillDisk: (ms: number) => fillDiskAt(join(path, '..', 'disk-filler'), ms) }),
    },
    [Symbol.asyncDispose]: async () => rmSync(join(path, '..'), { recursive: true }),
  }
}

export async function postgresSite(): Promise<Site> {
  const settings = { max_wal_size: '96MB', min_wal_size: '32MB' }
  const server = await startServer(isRoot ? { diskMb: diskMb.postgres, settings } : { settings })
  let rounds = 0
  return {
    store: 'postgres',
    missing: ['no other time on the server: only processes have wrong clocks', ...(isRoot ? [] : [noSmallDisk])],
    async prepare(directory) {
      const name = `round${rounds++}`
      await withClient(server.url(), (client) => client.query(`create database ${name} template template0`))
      return createPostgresStore(server, name, directory)
    },
    [Symbol.asyncDispose]: () => server[Symbol.asyncDispose](),
  }
}

async function createPostgresStore(server: Server, name: string, directory: string): Promise<TortureStore> {
  const url = server.url(name)
  await prepareDatabase(url, directory)
  const proxy = await cuttingProxy(url)
  return {
    url: proxy.url,
    async observe() {
      await withClient(url, sessionsEnded)
      return observeAt(url)
    },
    async inspect() {
      await withClient(url, sessionsEnded)
      await withClient(url, assertRecount)
    },
    inspectRunning: () => withClient(url, async (client) => void (await assertRecount(client))),
    storeFaults: postgresFaults(server, url, proxy),
    async [Symbol.asyncDispose]() {
      await proxy[Symbol.asyncDispose]()
      await withClient(server.url(), (client) => client.query(`drop database ${name} with (force)`))
    },
  }
}

function postgresFaults(server: Server, url: string, proxy: CuttingProxy): StoreFaults {
  const holding = (begin: string, ms: number) =>
    withClient(url, async (client) => {
      await client.query(begin)
      await sleep(ms)
    }).catch(() => {}) // the server may have been stopped meanwhile
  return {
    holdSnapshot: (ms) => holding('begin isolation level repeatable read; select count(*) from effect', ms),
    holdTransaction: (ms) => holding(`begin; select pg_current_xact_id()`, ms),
    ...(isRoot && {
      async fillDisk(ms: number) {
        await fillDiskAt(join(server.dataDirectory, 'disk-filler'), ms)
        if (!server.isRunning) await server.start() // as a service manager would
      },
    }),
    async stopServer(mode, ms) {
      await server.stop(mode)
      await sleep(ms)
      await server.start()
    },
    dropConnections: async () => proxy.drop(),
    holdConnections: (ms) => proxy.hold(ms),
    cutCall: (moment) => proxy.cut('', moment),
    unsubscribe: () =>
      withClient(url, (client) =>
        client.query(`select pg_terminate_backend(pid) from pg_stat_activity where query ilike 'listen %'`),
      ).then(
        () => {},
        () => {}, // the server may be down
      ),
    forge: () => withClient(url, forgeMessages).catch(() => {}), // the server may be down
  }
}

/** Kinds of messages that once ended processes, hid wake-ups or multiplied queries. */
const forged = [
  ...[
    '{"ready":[null]}',
    '{"ready":[["torture",-5]]}',
    '{"ready":[["torture",1e308]]}',
    '{"cancel":[null,1,"x"]}',
    'null',
    '[]',
  ],
  ...[
    'not JSON',
    '{"ready":{"length":1e9}}',
    '{"__proto__":{"ready":1}}',
    '{"from":"unknown"}',
    `{"ready":[["${'q'.repeat(5_000)}",1]]}`,
  ],
]

async function forgeMessages(client: pg.Client): Promise<void> {
  const { rows } = await client.query(
    `select distinct substring(query from '"(.*)"') as channel from pg_stat_activity
      where datname = current_database() and query ilike 'listen %'`,
  )
  for (const { channel } of rows) {
    for (const text of forged) await client.query('select pg_notify($1, $2)', [channel, text])
  }
}

/** Creates tables, queues, the schedule and the job with the reserved id. */
async function prepareDatabase(url: string, directory: string): Promise<void> {
  await using holdfast = await open(url)
  await using application = applicationAt(url)
  await application.make(tables)
  for (const queue of queues) await holdfast.queue(queue as (typeof queues)[0]).claim()
  await holdfast.schedule(tick.name, {
    cron: tick.cron,
    queue: tick.queue,
    missed: tick.missed,
    payload: { kind: 'tick' },
  })
  await enqueueReservedJob({ holdfast, journal: Journal.at(join(directory, 'setup.log'), { mayBeDown: false }) })
}

async function observeAt(url: string): Promise<Observation> {
  await using holdfast = await open(url)
  await using application = applicationAt(url)
  const orphans = await application.abandoned(1_000_000)
  return await observe(holdfast, { rows: await application.rows(), orphans })
}

/** Fills the disk until no write succeeds, and keeps it full for `ms`. */
async function fillDiskAt(path: string, ms: number): Promise<void> {
  for (const bytes of [1_000_000, 4_096]) {
    try {
      for (;;) appendFileSync(path, Buffer.alloc(bytes))
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error
    }
  }
  await sleep(ms)
  rmSync(path)
}

async function withClient<T>(url: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => {})
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end().catch(() => {})
  }
}

/** Waits until no other session is left: the server finishes the statements that a killed process has sent. */
async function sessionsEnded(client: pg.Client): Promise<void> {
  const others = `select pid, state, wait_event, now() - state_change as since, left(query, 200) as query from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()`
  const deadline = performance.now() + 15_000
  for (;;) {
    const { rows } = await client.query(others)
    if (rows.length === 0) return
    if (performance.now() > deadline)
      throw new Error(`Sessions of killed processes do not end: ${JSON.stringify(rows)}`)
    await sleep(20)
  }
}
