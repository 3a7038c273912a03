// A database of one's own with a pool on it. It is dropped once everybody has left: a pool says that it has ended before
// its connections have, and one of them that the server ends first has nobody left who listens to its error.
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { type Database, type Server, testDatabase } from '../support/postgres.ts'

export interface TestDatabase extends AsyncDisposable {
  readonly url: string
  readonly name: string
  readonly pool: pg.Pool
  /** Rows of a statement, outside of every pool that a test watches. */
  rows<T extends pg.QueryResultRow = Record<string, never>>(text: string, values?: readonly unknown[]): Promise<T[]>
  /** How many others are connected. */
  connections(): Promise<number>
}

/**
 * A database on a server of the test's own. Transactions of every database of a server are in one another's snapshots, and
 * what one of them changes in its catalogs may make the others plan anew: where that would blur what is measured.
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
