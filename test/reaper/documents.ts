// An application with a table of its own in the database of its jobs, on either store.
import { DatabaseSync } from 'node:sqlite'
import pg from 'pg'
import { defineQueue } from '../../src/index.ts'

export type DocumentState = 'submitted' | 'extracting' | 'extracted' | 'refining' | 'done'

export interface DocumentRow {
  readonly id: number
  readonly state: DocumentState
}

// Each document has its own queues, so that processes that die at the same time do not share one. Jobs have one attempt: the
// queue itself repeats nothing, so every repetition comes from the reaper.
export const extract = (id: number) => defineQueue<{ id: number }>(`extract-${id}`, { attempts: 1 })
export const refine = (id: number) => defineQueue<{ id: number }>(`refine-${id}`, { attempts: 1 })

export class Documents implements AsyncDisposable {
  /** One connection, for statements of the application and for enqueues. */
  readonly tx: DatabaseSync | pg.Client
  readonly #query: (text: string) => Promise<unknown[]>

  static async open(store: string): Promise<Documents> {
    const documents = store.startsWith('sqlite:') ? onSqlite(store) : await onPostgres(store)
    await documents.run('create table if not exists document (id integer primary key, state text, touched_at float8)')
    return documents
  }

  constructor(tx: DatabaseSync | pg.Client, query: (text: string) => Promise<unknown[]>) {
    this.tx = tx
    this.#query = query
  }

  async run(text: string): Promise<void> {
    await this.#query(text)
  }

  async submit(id: number): Promise<void> {
    await this.run(`insert into document values (${id}, 'submitted', ${this.#now})`)
  }

  async setState(id: number, state: DocumentState): Promise<void> {
    await this.run(this.updateText(id, state))
  }

  /** The statement, to be run in a transaction of the caller. */
  updateText(id: number, state: DocumentState): string {
    return `update document set state = '${state}', touched_at = ${this.#now} where id = ${id}`
  }

  /** Rows that are not done, and have not changed for a while. */
  async orphans(limit: number): Promise<DocumentRow[]> {
    const isOrphan = `state <> 'done' and touched_at < ${this.#now} - 2`
    return (await this.#query(`select id, state from document where ${isOrphan} limit ${limit}`)) as DocumentRow[]
  }

  async states(): Promise<DocumentState[]> {
    const rows = (await this.#query('select id, state from document order by id')) as DocumentRow[]
    return rows.map(({ state }) => state)
  }

  get #now(): string {
    return this.tx instanceof DatabaseSync ? `unixepoch('subsec')` : `extract(epoch from clock_timestamp())`
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.tx instanceof DatabaseSync) this.tx.close()
    else await this.tx.end()
  }
}

/** The job that continues from the state of a row. */
export function revival({ id, state }: DocumentRow) {
  const queue = state === 'submitted' || state === 'extracting' ? extract : refine
  return { queue: queue(id), payload: { id }, dedup: { key: `document ${id}` } }
}

function onSqlite(store: string): Documents {
  const db = new DatabaseSync(store.slice('sqlite:'.length), { timeout: 10_000 })
  return new Documents(db, async (text) => db.prepare(text).all())
}

async function onPostgres(store: string): Promise<Documents> {
  const client = new pg.Client(store)
  await client.connect()
  return new Documents(client, async (text) => (await client.query(text)).rows)
}
