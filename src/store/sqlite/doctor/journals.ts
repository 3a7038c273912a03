// Checks of the journals: rows whose job is gone.

import { counted, fine, repaired, wrong } from '../../findings.ts'
import type { ExamineRequest, Finding } from '../../store.ts'
import type { SqliteTransaction } from '../transaction.ts'

/** Without `--full`, so many rows of each table are looked at. */
const sampleMax = 10_000
/** Without a bound. */
const all = -1

const tables = ['journal', 'record', 'message', 'await', 'child'] as const

interface Orphans {
  readonly table: string
  /** Numbers of jobs that are gone. */
  readonly seqs: readonly number[]
}

function look(tx: SqliteTransaction, max: number): Orphans[] {
  const found = tables.map((table) => {
    const select = `select distinct t.seq from (select seq from holdfast_${table} where seq is not null limit ?) t
       where not exists (select 1 from holdfast_job j where j.seq = t.seq)`
    return { table, seqs: tx.db.all<{ seq: number }>(select, max).map(({ seq }) => seq) }
  })
  return found.filter(({ seqs }) => seqs.length > 0)
}

function jobsOf(orphans: readonly Orphans[]): number {
  return new Set(orphans.flatMap(({ seqs }) => seqs)).size
}

export function journals(tx: SqliteTransaction, { full }: ExamineRequest): Finding[] {
  const jobs = jobsOf(look(tx, full ? all : sampleMax))
  if (jobs === 0) return [fine('journals', 'Every journal belongs to a job.')]
  const sentence = `Journals of ${counted(jobs, 'job')} were left behind when the jobs were removed.`
  return [wrong('journals', sentence, 'holdfast doctor --fix removes them.', { jobs })]
}

export function removeOrphans(tx: SqliteTransaction): Finding[] {
  const orphans = look(tx, all)
  if (orphans.length === 0) return []
  for (const { table, seqs } of orphans)
    for (const seq of seqs) tx.db.run(`delete from holdfast_${table} where seq = ?`, seq)
  const jobs = jobsOf(orphans)
  return [repaired('journals', `Removed what journals of ${counted(jobs, 'removed job')} had left behind.`, { jobs })]
}
