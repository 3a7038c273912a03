// A store that several processes share, reached by its URL. Its database also has a table of the application.
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import pg from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { testDatabase } from '../support/postgres.ts'
import { scratchDirectory } from '../support/scratch.ts'

export interface SharedStore extends AsyncDisposable {
  readonly url: string
  /** A client in this process; closed with the shared store. */
  open(): Promise<Holdfast>
  /** The application's own connection. */
  query(text: string): Promise<Record<string, unknown>[]>
  /** Stops the process (SIGSTOP) in a moment in which it holds no lock on the store. */
  suspend(process: Suspended): Promise<void>
}

interface Suspended {
  kill(signal: NodeJS.Signals): void
}

export type MakeSharedStore = () => Promise<SharedStore>

export async function sqliteSharedStore(): Promise<SharedStore> {
  const scratch = await scratchDirectory()
  const path = join(scratch.path, 'jobs.db')
  const query = async (text: string) => {
    using db = new DatabaseSync(path, { timeout: 10_000 })
    return db.prepare(text).all()
  }
  // A process that is stopped while it writes keeps its lock on the file, and no other process can write until it goes on.
  const suspend = async (process: Suspended) => {
    for (;;) {
      process.kill('SIGSTOP')
      try {
        using db = new DatabaseSync(path, { timeout: 500 })
        db.exec('begin immediate; rollback')
        return
      } catch {
        process.kill('SIGCONT')
      }
    }
  }
  return sharedStoreOn(`sqlite:${path}`, { query, suspend }, scratch)
}

export async function postgresSharedStore(): Promise<SharedStore> {
  const database = await testDatabase()
  const query = async (text: string) => {
    const client = new pg.Client({ connectionString: database.url })
    await client.connect()
    try {
      return (await client.query(text)).rows
    } finally {
      await client.end()
    }
  }
  const suspend = async (process: Suspended) => process.kill('SIGSTOP') // the server releases the locks of the process
  return sharedStoreOn(database.url, { query, suspend }, database)
}

function sharedStoreOn(
  url: string,
  methods: Pick<SharedStore, 'query' | 'suspend'>,
  database: AsyncDisposable,
): SharedStore {
  const clients: Holdfast[] = []
  return {
    url,
    ...methods,
    async open() {
      const client = await open(url, { logger: false })
      clients.push(client)
      return client
    },
    async [Symbol.asyncDispose]() {
      await Promise.all(clients.map((client) => client.close({ grace: 0 })))
      await database[Symbol.asyncDispose]()
    },
  }
}
