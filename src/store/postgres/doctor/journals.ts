// Checks of journals: parts whose job is gone, and messages or notices of ends that are not delivered.

import { counted, fine, repaired, wrong } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import type { Examination } from './examine.ts'

/** Without `full`, so many rows of each table are looked at. */
const sampleMax = 1_000

const tables = ['record', 'journal', 'message', 'await_key'] as const

/** A message may be there before it is delivered: then its wake event is there too. */
const orphansIn = (table: string, max: string) => `
  select distinct s.seq from (select t.seq from holdfast.${table} t where t.seq is not null limit ${max}) s
    left join lateral (select o.id from holdfast.journal o where o.seq = s.seq order by o.no desc limit 1) o on true
   where not exists (select from holdfast.job j where j.id = o.id and j.seq = s.seq)
     and not exists (select from holdfast.ended e where e.id = o.id and e.seq = s.seq)
     and not exists (select from holdfast.wake_event e where e.seq = s.seq)`

const orphans = (max: string) => tables.map((table) => orphansIn(table, max)).join(' union ')

export async function journals({ db, request }: Examination): Promise<Finding[]> {
  const isWhole = request.full || request.fix
  const [used] = await db.query(
    `select ${tables.map((table) => `exists (select from holdfast.${table})`).join(' or ')}`,
    [],
  )
  if (used?.[0] !== 't') return [fine('journals', 'No job has a journal.')]
  const [row] = request.fix
    ? await db.transact(async (tx) => tx.query(repair, []))
    : await db.query(`select count(*) from (${orphans(isWhole ? 'all' : String(sampleMax))}) o`, [])
  const jobs = Number(row?.[0])
  if (jobs === 0) return [fine('journals', 'Every journal belongs to a job.')]
  if (request.fix)
    return [repaired('journals', `Removed what journals of ${counted(jobs, 'removed job')} had left behind.`, { jobs })]
  const sentence = `Journals of ${counted(jobs, 'job')} were left behind when the jobs were removed.`
  return [wrong('journals', sentence, 'holdfast doctor --fix removes them.', { jobs })]
}

const repair = `
  with gone as materialized (${orphans('all')})
  select count(*), holdfast.drop_journals(array_agg(g.seq)) from gone g`

const undeliveredRows = `
  select (select count(*) from holdfast.wake_event e where e.at < holdfast.now_ms($1) - $2::bigint),
         (select count(*) from holdfast.end_notice n where n.at < holdfast.now_ms($1) - $2::bigint)`

/** A sweep delivers both. With `fix`, the sweep that repairs other things has just done so. */
export async function undelivered({ db, request, sweep }: Examination): Promise<Finding[]> {
  const look = async () => {
    const [row] = await db.query(undeliveredRows, [db.now, request.patienceMs])
    return { messages: Number(row?.[0]), notices: Number(row?.[1]) }
  }
  const before = await look()
  if (before.messages + before.notices === 0)
    return [fine('undelivered', 'No message and no notice of an end is overdue.')]
  if (request.fix) await sweep()
  const left = request.fix ? await look() : before
  const { messages, notices } = left
  if (messages + notices === 0) {
    const sentence = `Delivered ${counted(before.messages, 'message')} and ${counted(before.notices, 'notice')} of ends.`
    return [repaired('undelivered', sentence, before)]
  }
  const sentence = `${counted(messages, 'message')} to jobs and ${counted(notices, 'notice')} of ends are not delivered.`
  const fix =
    'Any process that sweeps delivers them: run a worker, or holdfast sweep. If they stay, another transaction has locked the jobs.'
  return [wrong('undelivered', sentence, fix, left)]
}
