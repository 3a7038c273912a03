// A store that processes are killed on: where it is, and what can be seen of it besides the queue's own word.

import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { open } from '../../src/open.ts'
import { assertRecount } from '../postgres/exactness-recount.ts'
import { assertCountsEqualRecount } from '../sqlite/recount.ts'
import { startServer, testDatabase } from '../support/postgres.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { dropAnchor } from './drain.ts'
import { Journal, type Note, readJournals } from './journal.ts'
import { type Observation, observe } from './observe.ts'
import { queues, table } from './world.ts'

export interface Ground extends AsyncDisposable {
  readonly url: string
  /** Of a process of this name. */
  log(life: string): string
  notes(): Note[]
  /** What there is, once everything that the dead have sent has come to its end. */
  observe(): Promise<Observation>
  /** Looks behind the queue: fails unless tables, lists and counts agree and the store is whole. */
  inspect(): Promise<void>
}

export interface ServerGround extends Ground {
  /** The server stops as in a crash, and comes back. */
  crash(downMs: number): Promise<void>
}

interface Engine {
  readonly url: string
  readonly makeTable: () => Promise<void>
  readonly rows: () => Promise<readonly string[]>
  readonly quiet: () => Promise<void>
  readonly inspect: () => Promise<void>
}

export async function sqliteGround(): Promise<Ground> {
  const scratch = await scratchDirectory()
  const path = join(scratch.path, 'jobs.db')
  const using = <T>(work: (db: DatabaseSync) => T): T => {
    const db = new DatabaseSync(path, { timeout: 30_000 })
    try {
      return work(db)
    } finally {
      db.close()
    }
  }
  const ground = await prepare(scratch.path, {
    url: `sqlite:${path}`,
    makeTable: async () => using((db) => db.exec(table)),
    rows: async () =>
      using((db) =>
        db
          .prepare('select tag from effect')
          .all()
          .map(({ tag }) => String(tag)),
      ),
    quiet: async () => {},
    inspect: async () => using(assertCountsEqualRecount),
  })
  return { ...ground, [Symbol.asyncDispose]: () => scratch[Symbol.asyncDispose]() }
}

export async function postgresGround(): Promise<Ground> {
  const scratch = await scratchDirectory()
  const database = await testDatabase()
  const ground = await prepare(scratch.path, postgresEngine(database.url))
  return {
    ...ground,
    async [Symbol.asyncDispose]() {
      await database[Symbol.asyncDispose]()
      await scratch[Symbol.asyncDispose]()
    },
  }
}

export async function serverGround(): Promise<ServerGround> {
  const scratch = await scratchDirectory()
  const server = await startServer()
  const ground = await prepare(scratch.path, postgresEngine(server.url()))
  return {
    ...ground,
    async crash(downMs) {
      await server.stop('immediate')
      await sleep(downMs)
      await server.start()
    },
    async [Symbol.asyncDispose]() {
      await server[Symbol.asyncDispose]()
      await scratch[Symbol.asyncDispose]()
    },
  }
}

function postgresEngine(url: string): Engine {
  const using = async <T>(work: (client: pg.Client) => Promise<T>): Promise<T> => {
    const client = new pg.Client({ connectionString: url })
    await client.connect()
    try {
      return await work(client)
    } finally {
      await client.end()
    }
  }
  return {
    url,
    makeTable: () => using(async (client) => void (await client.query(table))),
    rows: () => using(async (client) => (await client.query('select tag from effect')).rows.map(({ tag }) => tag)),
    quiet: () => using(quiet),
    inspect: () => using(async (client) => void (await assertRecount(client))),
  }
}

/** The server goes on with what a killed process has sent. */
async function quiet(client: pg.Client): Promise<void> {
  const others = `select count(*)::int as count from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()`
  const deadline = performance.now() + 10_000
  for (;;) {
    const { rows } = await client.query(others)
    if (rows[0]?.count === 0) return
    if (performance.now() > deadline) throw new Error(`${rows[0]?.count} sessions of the dead do not end`)
    await sleep(20)
  }
}

async function prepare(directory: string, { url, makeTable, rows, quiet, inspect }: Engine) {
  const log = (life: string) => join(directory, `${life}.log`)
  await using holdfast = await open(url)
  const { sqlEffects } = holdfast.capabilities
  if (sqlEffects) await makeTable()
  for (const queue of queues) await holdfast.queue(queue).claim()
  await dropAnchor({ holdfast, journal: Journal.at(log('setup'), { mayBeDown: false }) })
  return {
    url,
    log,
    notes: () => readJournals(directory),
    async observe(): Promise<Observation> {
      await quiet()
      await using holdfast = await open(url)
      return await observe(holdfast, sqlEffects ? await rows() : null)
    },
    async inspect() {
      await quiet()
      await inspect()
    },
  }
}
