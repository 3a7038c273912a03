// The labels of jobs: one row of `holdfast_labelled` for a job that has any, and one row of `holdfast_label` for each of its
// labels. Both are written with the job and removed with it. Jobs without labels have neither.

import { decodeLabels } from '../../job/labels.ts'
import type { SqliteTransaction } from './transaction.ts'

/** For a job that this transaction inserts. */
export function addLabels(tx: SqliteTransaction, seq: number, labels: string | null): void {
  if (labels === null) return
  tx.hasLabels = true
  tx.bare.run('insert into holdfast_labelled (seq, labels) values (?, ?)', seq, labels)
  tx.listNewLabels(seq)
}

/** A waiting job that is replaced has other labels. */
export function replaceLabels(tx: SqliteTransaction, seq: number, labels: string | null): void {
  removeLabels(tx, seq)
  if (labels === null) return
  tx.hasLabels = true
  tx.db.run('insert into holdfast_labelled (seq, labels) values (?, ?)', seq, labels)
  listLabels(tx, seq, labels)
}

export function listLabels(tx: SqliteTransaction, seq: number, labels: string): void {
  for (const [name, value] of Object.entries(decodeLabels(labels))) {
    tx.bare.run('insert or ignore into holdfast_label (name, value, seq) values (?, ?, ?)', name, value, seq)
  }
}

/** As they are stored; null: the job has none. */
export function labelsOf(tx: SqliteTransaction, seq: number): string | null {
  if (!tx.hasLabels) return null
  return tx.db.get<{ labels: string }>('select labels from holdfast_labelled where seq = ?', seq)?.labels ?? null
}

/** For a job that is removed. */
export function removeLabels(tx: SqliteTransaction, seq: number): void {
  const labels = labelsOf(tx, seq)
  if (labels === null) return
  tx.bare.run('delete from holdfast_labelled where seq = ?', seq)
  for (const [name, value] of Object.entries(decodeLabels(labels))) {
    tx.bare.run('delete from holdfast_label where name = ? and value = ? and seq = ?', name, value, seq)
  }
}
