// A database for one test, with a pool. It is dropped when all connections have ended: a pool reports its end before its
// connections have ended, and an error of a connection that the server ends then has no listener.
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { type Database, type Server, testDatabase } from '../support/postgres.ts'

export interface TestDatabase extends AsyncDisposable {
  readonly url: string
  readonly name: string
  readonly pool: pg.Pool
  /** The rows of a statement, on a connection outside of every pool that a test observes. */
  rows<T extends pg.QueryResultRow = Record<string, never>>(text: string, values?: readonly unknown[]): Promise<T[]>
  /** How many other sessions are connected. */
  connections(): Promise<number>
}

/**
 * A database on a server of the test's own, for tests that measure. Transactions of all databases of a server share snapshots,
 * and a catalog change in one database may cause new plans in the others.
 */
export async function databaseOn(server: Server): Promise<Database> {
  const name = `test_${databases++}`
  const administer = async (statement: string) => {
    const client = new pg.Client({ connectionString: server.url() })
    await client.connect()
    await client.query(statement)
    await client.end()
  }
  await administer(`create database ${name} template template0`)
  const drop = () => administer(`drop database ${name} with (force)`)
  return { url: server.url(name), name, [Symbol.asyncDispose]: drop }
}

let databases = 0

export async function setup(server?: Server): Promise<TestDatabase> {
  const database = await (server ? databaseOn(server) : testDatabase())
  const client = new pg.Client({ connectionString: database.url })
  client.on('error', () => {})
  await client.connect()
  const pool = new pg.Pool({ connectionString: database.url, max: 10 })
  pool.on('error', () => {})
  pool.on('connect', (connected) => connected.on('error', () => {}))
  const count =
    'select count(*)::int as n from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()'
  const connections = async () => (await client.query(count)).rows[0].n as number
  return {
    url: database.url,
    name: database.name,
    pool,
    rows: async (text, values = []) => (await client.query(text, [...values])).rows,
    connections,
    async [Symbol.asyncDispose]() {
      await Promise.race([pool.end(), sleep(1_000)]) // a test that failed may have a client out
      for (let tries = 0; tries < 50 && (await connections()) > 0; tries++) await sleep(10)
      await client.end()
      await database[Symbol.asyncDispose]()
    },
  }
}
