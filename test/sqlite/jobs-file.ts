// A database file for one test, with clients on it and connections outside of the store: `await using file = await jobsFile()`.
// Everything that is opened through it is closed with it.
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import type { Clock } from '../../src/runtime/clock.ts'
import { systemClock } from '../../src/runtime/clock.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import type { Store } from '../../src/store/store.ts'
import { scratchDirectory } from '../support/scratch.ts'

export interface JobsFile extends AsyncDisposable {
  readonly directory: string
  readonly path: string
  readonly url: string
  open(options?: { readonly clock?: Clock }): Promise<Holdfast>
  /** A client whose store is wrapped by `wrap`, to count its calls. */
  openThrough(wrap: (store: Store) => Store): Promise<Holdfast>
  /** A plain connection to the same file, as another application would open it. */
  raw(): DatabaseSync
}

export async function jobsFile(): Promise<JobsFile> {
  const scratch = await scratchDirectory()
  const path = join(scratch.path, 'jobs.db')
  const clients: Holdfast[] = []
  const connections: DatabaseSync[] = []
  const keep = (client: Holdfast) => {
    clients.push(client)
    return client
  }
  return {
    directory: scratch.path,
    path,
    url: `sqlite:${path}`,
    open: async (options) => keep(await open(`sqlite:${path}`, options)),
    openThrough: async (wrap) => keep(new Holdfast(wrap(await sqlite({ path })({ clock: systemClock })))),
    raw() {
      const connection = new DatabaseSync(path, { timeout: 30_000 })
      connections.push(connection)
      return connection
    },
    async [Symbol.asyncDispose]() {
      for (const connection of connections) if (connection.isOpen) connection.close()
      await Promise.all(clients.map((client) => client.close()))
      await scratch[Symbol.asyncDispose]()
    },
  }
}

/** How many transactions the write-ahead log holds. Each ends in a frame with the new size of the database. */
export function committed(path: string): number {
  const log = existsSync(`${path}-wal`) ? readFileSync(`${path}-wal`) : Buffer.alloc(0)
  if (log.length < 32) return 0
  const pageBytes = log.readUInt32BE(8)
  const salt = log.subarray(16, 24)
  let commits = 0
  for (let at = 32; at + 24 + pageBytes <= log.length; at += 24 + pageBytes) {
    if (!log.subarray(at + 8, at + 16).equals(salt)) break // from before the log was restarted
    if (log.readUInt32BE(at + 4) > 0) commits += 1
  }
  return commits
}
