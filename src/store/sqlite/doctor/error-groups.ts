// Whether the counts of error groups equal a recount of the dead jobs.

import { counted, few, fine, repaired, wrong } from '../../findings.ts'
import type { ExamineRequest, Finding } from '../../store.ts'
import type { SqliteTransaction } from '../transaction.ts'

/** Up to so many dead jobs, groups are recounted without `--full`. */
const recountMax = 200_000

interface Miscounted {
  readonly queue: number
  readonly name: string
  readonly fingerprint: string
  /** Null: there is no such group, or no dead job. */
  readonly said: number | null
  readonly dead: number | null
  readonly last_died_at: number | null
}

const selectMiscounted = `
  with recounted (queue, fingerprint, dead, last_died_at) as (
    select s.queue, coalesce(e.error_group, ''), count(*), max(e.finished_at)
      from holdfast_retention_class s join holdfast_ended e on e.retention_class = s.no
     where s.state = 'dead' group by 1, 2
  )
  select coalesce(r.queue, g.queue) as queue, q.name, coalesce(r.fingerprint, g.fingerprint) as fingerprint, g.dead as said,
         r.dead, r.last_died_at
    from recounted r full join holdfast_error_group g on g.queue = r.queue and g.fingerprint = r.fingerprint
    join holdfast_queue q on q.no = coalesce(r.queue, g.queue)
   where g.dead is not r.dead`

export function groupsMiscounted(tx: SqliteTransaction, { full }: ExamineRequest): Finding[] {
  const total = tx.db.get<{ dead: number }>('select coalesce(sum(dead), 0) as dead from holdfast_queue')?.dead ?? 0
  if (total > recountMax && !full) {
    const sentence = `Not recounted: there are more than ${counted(recountMax, 'dead job')}. holdfast doctor --full does.`
    return [fine('error-groups', sentence)]
  }
  const off = tx.db.all<Miscounted>(selectMiscounted)
  if (off.length === 0) return [fine('error-groups', 'The counts of error groups equal a recount.')]
  const queues = [...new Set(off.map(({ name }) => name))]
  const sentence = `The counts of error groups of ${few(queues)} differ from a recount.`
  return [wrong('error-groups', sentence, 'holdfast doctor --fix corrects them.', { queues })]
}

/** A group that had no row gets one without the words of its error, which the next death adds. */
export function recountGroups(tx: SqliteTransaction): Finding[] {
  const off = tx.db.all<Miscounted>(selectMiscounted)
  for (const { queue, fingerprint, dead, last_died_at } of off) {
    if (dead === null) {
      tx.db.run('delete from holdfast_error_group where queue = ? and fingerprint = ?', queue, fingerprint)
      continue
    }
    tx.db.run(
      `insert into holdfast_error_group (queue, fingerprint, message, dead, last_died_at) values (?, ?, '', ?, ?)
       on conflict (queue, fingerprint) do update set dead = excluded.dead`,
      queue,
      fingerprint,
      dead,
      last_died_at,
    )
  }
  if (off.length === 0) return []
  const queues = [...new Set(off.map(({ name }) => name))]
  return [repaired('error-groups', `The counts of error groups of ${few(queues)} are right again.`, { queues })]
}
