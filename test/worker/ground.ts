// Where workers of several processes meet: one store, reached by its URL, in a database that also holds a table of the
// application's own.
import { DatabaseSync } from 'node:sqlite'
import pg from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { jobsFile } from '../sqlite/jobs-file.ts'
import { testDatabase } from '../support/postgres.ts'

export interface Ground extends AsyncDisposable {
  readonly url: string
  /** A client in this process; closed with the ground. */
  open(): Promise<Holdfast>
  /** The application's own connection. */
  query(text: string): Promise<Record<string, unknown>[]>
}

export type MakeGround = () => Promise<Ground>

export async function sqliteGround(): Promise<Ground> {
  const file = await jobsFile()
  return {
    url: file.url,
    open: () => file.open(),
    async query(text) {
      using db = new DatabaseSync(file.path, { timeout: 10_000 })
      return db.prepare(text).all()
    },
    [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
  }
}

export async function postgresGround(): Promise<Ground> {
  const database = await testDatabase()
  const { url } = database
  const clients: Holdfast[] = []
  return {
    url,
    async open() {
      const client = await open(url)
      clients.push(client)
      return client
    },
    async query(text) {
      const client = new pg.Client({ connectionString: url })
      await client.connect()
      try {
        return (await client.query(text)).rows
      } finally {
        await client.end()
      }
    },
    async [Symbol.asyncDispose]() {
      await Promise.all(clients.map((client) => client.close()))
      await database[Symbol.asyncDispose]()
    },
  }
}
