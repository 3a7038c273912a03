// Journals and mailboxes: how they are written and read. See `schema/functions/journal.ts`.

import type { Refused } from '../../errors.ts'
import { bounds } from '../../job/bounds.ts'
import {
  type AwaitedKey,
  type JournalWrites,
  journalFull,
  type Message,
  recordExists,
  type StepRecord,
  signalGone,
} from '../../job/journal.ts'
import type { Journal, JournalQuery, MessagesQuery } from '../store.ts'
import type { Row } from './connection/call.ts'
import { list, texts } from './connection/columns.ts'
import type { Database, PgTransaction } from './connection/database.ts'
import { toParent } from './read.ts'

/** What is written for one job, whose row is locked. */
export interface JobWrites {
  readonly id: string
  readonly seq: string
  readonly journal: JournalWrites
  /** Its attempts count from this lease on. */
  readonly startsOver?: boolean
}

/** Why each of them was refused; undefined: it was written. */
export async function writeJournals(
  tx: PgTransaction,
  jobs: readonly JobWrites[],
): Promise<readonly (Refused | undefined)[]> {
  if (jobs.length === 0) return []
  const writes = JSON.stringify(jobs.map(({ journal, startsOver = false }) => writesJson(journal, startsOver)))
  const text = 'select holdfast.write_journals($1::jsonb, $2, $3, $4)::text'
  const [row] = await tx.query(text, [writes, list(jobs.map(({ seq }) => seq)), list(jobs.map(({ id }) => id)), tx.now])
  const refused = JSON.parse(row?.[0] ?? '{}') as RefusedWrites
  return jobs.map((_, i) => refusalOf(refused, i))
}

export function writesJson(journal: JournalWrites, startsOver: boolean): object {
  return { ...journal, ...(startsOver && { startsOver }) }
}

/** By turn, from 1. */
export type RefusedWrites = Readonly<Record<string, RefusedWrite>>

type RefusedWrite = { readonly full: true } | { readonly gone: number } | Pick<StepRecord, 'step' | 'part'>

/** Why the write with this index was refused. */
export function refusalOf(refused: RefusedWrites, i: number): Refused | undefined {
  const why = refused[i + 1]
  if (why === undefined) return undefined
  if ('full' in why) return journalFull()
  return 'gone' in why ? signalGone(why.gone) : recordExists(why)
}

const selectJournals = 'select * from holdfast.journals($1, $2, $3, $4)'

export async function readJournal(db: Database, { id, after }: JournalQuery): Promise<Journal | null> {
  const rows = await db.query(selectJournals, [list([id]), after ?? 0, bounds.pageBytes, true])
  return toJournals(rows, after).get(0) ?? null
}

/** Of jobs that have journals, by their index. */
export async function readJournals(db: Database, ids: readonly string[]): Promise<ReadonlyMap<number, Journal>> {
  return toJournals(await db.query(selectJournals, [list(ids), 0, bounds.pageBytes, false]), null)
}

function toJournals(rows: readonly Row[], after: number | null): Map<number, Journal> {
  const journals = new Map<number, Journal>()
  for (const [turn, ofTurn] of Map.groupBy(rows, ([turn]) => Number(turn))) {
    const [head, ...rest] = ofTurn
    if (!head) continue
    const [, , , , partial, parent, cancel, awaits, last] = head
    const records = rest.map(toRecord)
    const reached = records.at(-1)?.no ?? after ?? 0
    journals.set(turn - 1, {
      records,
      next: Number(last ?? 0) > reached ? reached : null,
      partial: partial ?? null,
      parent: toParent(parent ?? null),
      cancelRequested: cancel === 't',
      awaits: JSON.parse(awaits ?? '[]') as AwaitedKey[],
    })
  }
  return journals
}

function toRecord([, no, step, part, body]: Row): StepRecord {
  return { no: Number(no), step: step as string, part: Number(part), body: body as string }
}

export async function readMessages(db: Database, { id, keys }: MessagesQuery): Promise<Message[]> {
  const named = [texts(keys.map(({ key }) => key)), texts(keys.map(({ name }) => name))]
  const rows = await db.query('select * from holdfast.messages($1, $2, $3, $4, $5)', [
    id,
    ...named,
    bounds.pageBytes,
    db.now,
  ])
  return rows.map(([no, name, child, key, value, at]) => ({
    no: Number(no),
    name: name as string,
    child: child ?? null,
    key: key ?? null,
    value: value as string,
    at: Number(at),
  }))
}
