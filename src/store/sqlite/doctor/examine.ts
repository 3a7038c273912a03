// Checks inside the database, on the store's own connection. Checks of the file itself are in `file.ts`.

import { few, fine, wrong } from '../../findings.ts'
import type { ExamineRequest, Finding } from '../../store.ts'
import type { SqliteTransaction } from '../transaction.ts'
import { clockSetBack } from './clock.ts'
import { groupsMiscounted, recountGroups } from './error-groups.ts'
import { astray, miscounted, putBack, recount, unswept } from './jobs.ts'
import { journals, removeOrphans } from './journals.ts'
import { labels, relist } from './labels.ts'
import { batchesMiscounted, heldBack, recountBatches, recountKeys } from './limits.ts'

/** Reads only. */
export function examine(tx: SqliteTransaction, request: ExamineRequest): readonly Finding[] {
  return [
    ...journalMode(tx),
    ...integrity(tx, request),
    ...clockSetBack(tx),
    ...unswept(tx, request),
    ...astray(tx),
    ...miscounted(tx, request),
    ...groupsMiscounted(tx, request),
    ...heldBack(tx, request),
    ...batchesMiscounted(tx),
    ...labels(tx, request),
    ...journals(tx, request),
  ]
}

function journalMode(tx: SqliteTransaction): Finding[] {
  const mode = tx.db.get<{ journal_mode: string }>('pragma journal_mode')?.journal_mode ?? ''
  if (mode === 'wal' || mode === 'memory') return [fine('journal-mode', `The journal mode is ${mode}.`, { mode })]
  const fix = 'holdfast doctor --fix sets it back: the store does, whenever it opens a file to write.'
  return [wrong('journal-mode', `The journal mode is ${mode}: readers and writers block each other.`, fix, { mode })]
}

const faultsMax = 10

function integrity(tx: SqliteTransaction, { full }: ExamineRequest): Finding[] {
  const check = full ? 'integrity_check' : 'quick_check'
  const rows = tx.db.all<Record<string, string>>(`pragma ${check}(${faultsMax})`).map((row) => row[check] ?? '')
  if (rows.length === 1 && rows[0] === 'ok')
    return [fine('integrity', full ? 'The file is sound.' : 'The file is sound, as far as a quick check tells.')]
  const fix =
    'Stop every process that writes, keep a copy of the file, and restore a backup, or what sqlite3 .recover finds.'
  return [wrong('integrity', `The file is damaged: ${few(rows)}.`, fix, { faults: rows })]
}

/** Repairs what it can. The counts come last, so they include the changes of the other repairs. */
export function repair(tx: SqliteTransaction): readonly Finding[] {
  return [
    ...putBack(tx),
    ...recountKeys(tx),
    ...recountBatches(tx),
    ...recountGroups(tx),
    ...relist(tx),
    ...removeOrphans(tx),
    ...recount(tx),
  ]
}
