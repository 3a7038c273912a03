// Checks of the labels: label rows without a job, and jobs with labels that a search by label would miss.

import { counted, fine, repaired, wrong } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import { labelHash } from '../schema/hash.ts'
import type { Examination } from './examine.ts'

/** Without `full`, so many label rows and so many jobs, live and ended, are looked at; no job, if there is no label row. */
const sampleMax = 1_000

const hash = labelHash('n.name', 'n.value')

/** Rows whose job is gone, or has no such label. The statement has one snapshot, so a job that ends meanwhile is found. */
const left = (max: string) => `
  select s.hash, s.seq
    from (select * from holdfast.label limit ${max}) s
   where not exists (select from holdfast.job j cross join lateral jsonb_each_text(j.labels) n(name, value)
                      where j.id = s.id and j.seq = s.seq and j.labels is not null and ${hash} = s.hash)
     and not exists (select from holdfast.ended e cross join lateral jsonb_each_text(e.labels) n(name, value)
                      where e.id = s.id and e.seq = s.seq and e.labels is not null and ${hash} = s.hash)`

/** Labels of jobs without a row. Jobs past their retention may have none: their partition is about to be dropped. */
const missing = (max: string) => `
  select ${hash} as hash, o.seq, o.id
    from (select * from (select seq, id, labels from holdfast.job limit ${max}) j
          union all
          select * from (select seq, id, labels from holdfast.ended where keep_until > holdfast.now_ms(null) limit ${max}) e) o
   cross join lateral jsonb_each_text(o.labels) n(name, value)
   where o.labels is not null and not exists (select from holdfast.label l where l.hash = ${hash} and l.seq = o.seq)`

export async function labels({ db, request }: Examination): Promise<Finding[]> {
  const isWhole = request.full || request.fix
  const max = isWhole ? 'all' : String(sampleMax)
  const [used] = await db.query('select from holdfast.label limit 1', [])
  if (!isWhole && used === undefined) return [fine('labels', 'No job that is found by a label is stored.')]
  const [row] = request.fix
    ? await db.transact(async (tx) => tx.query(repair, []))
    : await db.query(
        `select (select count(*) from (${left(max)}) f), (select count(distinct f.seq) from (${missing(max)}) f)`,
        [],
      )
  const [rows, jobs] = [Number(row?.[0]), Number(row?.[1])]
  if (rows + jobs === 0) return [fine('labels', 'The rows that find jobs by their labels equal the labels.')]
  if (request.fix) {
    const sentence = `Removed ${counted(rows, 'row')} of labels without a job; ${counted(jobs, 'job')} can be found by label again.`
    return [repaired('labels', sentence, { rows, jobs })]
  }
  const sentence = `${counted(rows, 'row')} of labels without a job, and ${counted(jobs, 'job')} that a search by label would miss.`
  return [
    wrong('labels', sentence, 'holdfast doctor --fix removes the rows, and lists the labels again.', { rows, jobs }),
  ]
}

const repair = `
  with removed as (
    delete from holdfast.label l using (${left('all')}) f where l.hash = f.hash and l.seq = f.seq returning l.seq
  ),
  added as (
    insert into holdfast.label (hash, seq, id) select hash, seq, id from (${missing('all')}) f on conflict do nothing returning seq
  )
  select (select count(*) from removed), (select count(distinct seq) from added)`
