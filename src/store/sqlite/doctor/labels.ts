// Checks of the labels: rows that serve the search without a job, and jobs whose labels no search would find.

import { counted, fine, repaired, wrong } from '../../findings.ts'
import type { ExamineRequest, Finding } from '../../store.ts'
import { listLabels } from '../labels.ts'
import type { SqliteTransaction } from '../transaction.ts'

/** Without `--full`, so many of the newest jobs with labels, and of the first label rows, are looked at. */
const sampleMax = 10_000
/** Without a bound. */
const all = -1

const hasLabel = `exists (select 1 from holdfast_labelled t, json_each(iif(json_valid(t.labels), t.labels, '{}')) e
                           where t.seq = l.seq and e.key = l.name and e.value = l.value)`
const hasJob = (row: string) => `exists (select 1 from holdfast_job j where j.seq = ${row}.seq)`

const selectLeft = `select name, value, seq from (select * from holdfast_label limit ?) l where not (${hasJob('l')} and ${hasLabel})`
const selectOrphans = `select seq from (select seq from holdfast_labelled order by seq desc limit ?) t where not ${hasJob('t')}`
const selectUnlisted = `select distinct t.seq, t.labels
    from (select seq, labels from holdfast_labelled order by seq desc limit ?) t,
         json_each(iif(json_valid(t.labels), t.labels, '{}')) e
   where ${hasJob('t')}
     and not exists (select 1 from holdfast_label l where l.name = e.key and l.value = e.value and l.seq = t.seq)`

function look(tx: SqliteTransaction, max: number) {
  return {
    left: tx.db.all<{ name: string; value: string; seq: number }>(selectLeft, max),
    orphans: tx.db.all<{ seq: number }>(selectOrphans, max),
    unlisted: tx.db.all<{ seq: number; labels: string }>(selectUnlisted, max),
  }
}

export function labels(tx: SqliteTransaction, { full }: ExamineRequest): Finding[] {
  const { left, orphans, unlisted } = look(tx, full ? all : sampleMax)
  const facts = { rows: left.length + orphans.length, jobs: unlisted.length }
  if (facts.rows + facts.jobs === 0)
    return [fine('labels', 'The rows that find jobs by their labels equal the labels.')]
  const sentence = `${counted(facts.rows, 'row')} of labels without a job, and ${counted(facts.jobs, 'job')} that a search by label would miss.`
  return [wrong('labels', sentence, 'holdfast doctor --fix removes the rows, and lists the labels again.', facts)]
}

export function relist(tx: SqliteTransaction): Finding[] {
  const { left, orphans, unlisted } = look(tx, all)
  for (const { name, value, seq } of left)
    tx.db.run('delete from holdfast_label where name = ? and value = ? and seq = ?', name, value, seq)
  for (const { seq } of orphans) tx.db.run('delete from holdfast_labelled where seq = ?', seq)
  for (const { seq, labels: text } of unlisted) listLabels(tx, seq, text)
  const facts = { rows: left.length + orphans.length, jobs: unlisted.length }
  if (facts.rows + facts.jobs === 0) return []
  const sentence = `Removed ${counted(facts.rows, 'row')} of labels without a job; ${counted(facts.jobs, 'job')} can be found by label again.`
  return [repaired('labels', sentence, facts)]
}
