// An application with a table of its own, written as many are: the row is one thing, the job another, and whoever dies in
// between leaves the row behind.
import { DatabaseSync } from 'node:sqlite'
import { defineQueue } from '../../src/index.ts'

export type DocumentState = 'submitted' | 'extracting' | 'extracted' | 'refining' | 'done'

export interface DocumentRow {
  readonly id: number
  readonly state: DocumentState
}

// One attempt: the queue itself brings nothing back, so that what is brought back was brought by the reaper.
export const extract = defineQueue<{ id: number }>('extract', { attempts: 1 })
export const refine = defineQueue<{ id: number }>('refine', { attempts: 1 })

export function openDocuments(path: string): DatabaseSync {
  const db = new DatabaseSync(path, { timeout: 10_000 })
  db.exec('create table if not exists document (id integer primary key, state text not null, touched_at real not null)')
  return db
}

export function submit(db: DatabaseSync, id: number): void {
  db.prepare(`insert into document values (?, 'submitted', unixepoch('subsec'))`).run(id)
}

export function setState(db: DatabaseSync, id: number, state: DocumentState): void {
  db.prepare(`update document set state = ?, touched_at = unixepoch('subsec') where id = ?`).run(state, id)
}

/** Those that nobody has touched for a while, and that are not done. */
export function leftBehind(db: DatabaseSync, limit: number): DocumentRow[] {
  const text = `select id, state from document where state <> 'done' and touched_at < unixepoch('subsec') - 2 limit ?`
  return db.prepare(text).all(limit) as unknown as DocumentRow[]
}

/** The job that takes a row further from where it stands. */
export function revival({ id, state }: DocumentRow) {
  const queue = state === 'submitted' || state === 'extracting' ? extract : refine
  return { queue, payload: { id }, dedup: { key: `document ${id}` } }
}
