// The application's database, which is also the store: transactions of the application around an enqueue, and its own rows.

import { DatabaseSync } from 'node:sqlite'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { HoldfastError } from '../../src/errors.ts'

export interface Application extends AsyncDisposable {
  /** The connections to a server, which the store may share. SQLite has none. */
  readonly pool?: pg.Pool
  /** How long a transaction may stay open without blocking the other processes. */
  readonly holdMaxMs: number
  /** Inserts a row with this tag, runs `work` in the same transaction, then commits or rolls back. */
  transact<T>(tag: string, end: TransactionEnd, work: (tx: object) => Promise<T>): Promise<T>
  /** Inserts a row that only the reaper will find. */
  abandon(tag: string): Promise<void>
  abandoned(limit: number): Promise<string[]>
  rows(): Promise<string[]>
  make(tables: readonly string[]): Promise<void>
}

export interface TransactionEnd {
  readonly as: 'commit' | 'rollback'
  readonly holdMs: number
}

export function applicationAt(url: string): Application {
  return url.startsWith('sqlite:') ? onSqlite(url.slice('sqlite:'.length)) : onPostgres(url)
}

// Tags are letters, digits and dashes. Written into the statement, they make it the same on both databases.
const insertEffect = (tag: string) => `insert into effect (tag) values ('${tag}')`
const insertOrphan = (tag: string) => `insert into orphan (tag) values ('${tag}')`

function onSqlite(path: string): Application {
  const db = new DatabaseSync(path, { timeout: 30_000 })
  const tagsOf = (text: string) =>
    outage(async () =>
      db
        .prepare(text)
        .all()
        .map(({ tag }) => String(tag)),
    )
  let last: Promise<unknown> = Promise.resolve()
  /** A connection has one transaction at a time, so transactions run one after the other. */
  const inTurn = <T>(work: () => Promise<T>): Promise<T> => {
    const turn = last.then(() => outage(work))
    last = turn.catch(() => {})
    return turn
  }
  return {
    holdMaxMs: 15,
    transact: (tag, { as, holdMs }, work) =>
      inTurn(async () => {
        db.exec('begin immediate')
        try {
          db.exec(insertEffect(tag))
          const made = await work(db)
          await sleep(holdMs)
          db.exec(as)
          return made
        } finally {
          if (db.isTransaction) db.exec('rollback')
        }
      }),
    abandon: (tag) => inTurn(async () => db.exec(insertOrphan(tag))),
    abandoned: (limit) => tagsOf(`select tag from orphan limit ${limit}`),
    rows: () => tagsOf('select tag from effect'),
    make: async (tables) => tables.forEach((table) => void db.exec(table)),
    [Symbol.asyncDispose]: async () => db.close(),
  }
}

function onPostgres(url: string): Application {
  const pool = new pg.Pool({ connectionString: url, max: 3, connectionTimeoutMillis: 5_000 })
  pool.on('error', () => {})
  const tagsOf = (text: string) => outage(async () => (await pool.query(text)).rows.map(({ tag }) => tag as string))
  return {
    pool,
    holdMaxMs: 300,
    transact: (tag, { as, holdMs }, work) =>
      outage(async () => {
        const client = await pool.connect()
        const onError = () => {}
        client.on('error', onError)
        try {
          await client.query('begin')
          await client.query(insertEffect(tag))
          const made = await work(client)
          await sleep(holdMs)
          await client.query(as)
          client.release()
          return made
        } catch (error) {
          client.release(true)
          throw error
        } finally {
          client.off('error', onError)
        }
      }),
    abandon: (tag) => outage(async () => void (await pool.query(insertOrphan(tag)))),
    abandoned: (limit) => tagsOf(`select tag from orphan limit ${limit}`),
    rows: () => tagsOf('select tag from effect'),
    make: async (tables) => void (await pool.query(tables.join(';'))),
    [Symbol.asyncDispose]: () => pool.end(),
  }
}

/** Reports a database error as the queue reports it: STORE_UNAVAILABLE, with an unknown result. */
async function outage<T>(call: () => Promise<T>): Promise<T> {
  try {
    return await call()
  } catch (error) {
    if (error instanceof HoldfastError) throw error
    throw new HoldfastError('STORE_UNAVAILABLE', 'The application’s database did not answer.', {}, { cause: error })
  }
}
