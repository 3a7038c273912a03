// Checks of the jobs: leased by workers that are gone, due and not promoted, in no list, miscounted.

import { span } from '../../../runtime/duration.ts'
import { counted, few, fine, repaired, wrong } from '../../findings.ts'
import type { ExamineRequest, Finding } from '../../store.ts'
import { listOrHold, place } from '../job.ts'
import type { QueueRow } from '../queue.ts'
import type { SqliteTransaction } from '../transaction.ts'

interface Late {
  readonly jobs: number
  readonly first: number | null
}

export function unswept(tx: SqliteTransaction, { patienceMs }: ExamineRequest): Finding[] {
  const before = tx.now - patienceMs
  const look = (text: string) => tx.db.get<Late>(text, before) as Late
  const leases = look('select count(*) as jobs, min(expires_at) as first from holdfast_lease where expires_at < ?')
  const due = look('select count(*) as jobs, min(run_at) as first from holdfast_scheduled where run_at < ?')
  const fix = 'Start a worker: every worker sweeps. holdfast sweep does it once.'
  const facts = ({ jobs, first }: Late) => ({ jobs, overdueMs: tx.now - (first ?? tx.now) })
  const ago = (late: Late) => span(facts(late).overdueMs)
  const findings: Finding[] = []
  if (leases.jobs > 0) {
    const sentence = `${counted(leases.jobs, 'job')} ${leases.jobs === 1 ? 'is' : 'are'} held by leases that ran out, the first ${ago(leases)} ago: the worker is gone, and no process sweeps.`
    findings.push(wrong('leases-expired', sentence, fix, facts(leases)))
  }
  if (due.jobs > 0) {
    const sentence = `${counted(due.jobs, 'job')} ${due.jobs === 1 ? 'has' : 'have'} been due for up to ${ago(due)} and ${due.jobs === 1 ? 'is' : 'are'} still scheduled: no process sweeps.`
    findings.push(wrong('jobs-not-promoted', sentence, fix, facts(due)))
  }
  if (findings.length > 0) return findings
  return [fine('leases-expired', 'Leases that run out are taken back, and due jobs are promoted.')]
}

const listed = `
  with listed (seq, queue, state) as (
    select seq, queue, 'ready' from holdfast_ready
    union all select seq, queue, 'held' from holdfast_held
    union all select seq, queue, 'scheduled' from holdfast_scheduled
    union all select l.seq, j.queue, 'running' from holdfast_lease l join holdfast_job j on j.seq = l.seq
    union all select e.seq, s.queue, s.state from holdfast_ended e join holdfast_retention_class s on s.no = e.retention_class
  )`

interface AstrayRow {
  readonly seq: number
  readonly id: string
  readonly queue: number
  readonly priority: number
  readonly batch: number
  readonly limit_key: string | null
}

const astrayMax = 1_000

function findAstray(tx: SqliteTransaction): AstrayRow[] {
  return tx.db.all(
    `select seq, id, queue, priority, batch, limit_key from holdfast_job j
      where not exists (select 1 from holdfast_ended e where e.seq = j.seq)
        and not exists (select 1 from holdfast_lease l where l.seq = j.seq)
        and not exists (select 1 from holdfast_ready r where r.queue = j.queue and r.batch = j.batch and r.priority = j.priority and r.ord = j.ord and r.seq = j.seq and j.held = 0)
        and not exists (select 1 from holdfast_held h where h.queue = j.queue and h.key = j.limit_key and h.batch = j.batch and h.priority = j.priority and h.ord = j.ord and h.seq = j.seq and j.held = 1)
        and not exists (select 1 from holdfast_scheduled s where s.queue = j.queue and s.run_at = j.run_at and s.seq = j.seq)
      limit ${astrayMax}`,
  )
}

export function astray(tx: SqliteTransaction): Finding[] {
  const ids = findAstray(tx).map(({ id }) => id)
  if (ids.length === 0)
    return [fine('jobs-astray', 'Every job is listed where a claim finds it, or is held by a lease.')]
  const them = ids.length === 1 ? 'it' : 'them'
  const sentence = `${counted(ids.length, 'job')} ${ids.length === 1 ? 'is' : 'are'} in no list: no lease holds ${them}, and no claim will find ${them} (${few(ids)}).`
  return [wrong('jobs-astray', sentence, 'holdfast doctor --fix makes them ready again.', { ids })]
}

const states = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled'] as const
/** Up to so many jobs, counts are compared without `--full`. */
const recountMax = 200_000

type Counts = Readonly<Record<(typeof states)[number], number>>

interface Miscounted {
  readonly queue: QueueRow
  readonly right: Counts
}

function findMiscounted(tx: SqliteTransaction): Miscounted[] {
  const sums = states.map((state) => `coalesce(sum(l.state = '${state}'), 0) as ${state}`)
  return tx.db
    .all<Counts & { no: number }>(
      `${listed} select q.no, ${sums} from holdfast_queue q left join listed l on l.queue = q.no group by q.no`,
    )
    .map((right) => ({ queue: tx.queueByNo(right.no), right }))
    .filter(({ queue, right }) => states.some((state) => queue[state] !== right[state]))
}

export function miscounted(tx: SqliteTransaction, { full }: ExamineRequest): Finding[] {
  const total = tx.db.get<{ jobs: number }>(
    `select coalesce(sum(abs(${states.join(') + abs(')})), 0) as jobs from holdfast_queue`,
  )
  if ((total?.jobs ?? 0) > recountMax && !full)
    return [
      fine('counts', `Not recounted: there are more than ${counted(recountMax, 'job')}. holdfast doctor --full does.`),
    ]
  const off = findMiscounted(tx)
  if (off.length === 0) return [fine('counts', 'Counts equal a recount.')]
  const queues = off.map(({ queue }) => queue.name)
  const sentence = `The counts of ${few(queues)} differ from a recount.`
  return [wrong('counts', sentence, 'holdfast doctor --fix corrects them.', { queues })]
}

/** Makes stray jobs ready again, first in their queue like rescued ones. */
export function putBack(tx: SqliteTransaction): Finding[] {
  const rows = findAstray(tx)
  for (const job of rows) {
    const ord = place(tx, true)
    tx.db.run(
      'update holdfast_job set ord = ?, line_ord = null, held = 0, run_at = ? where seq = ?',
      ord,
      tx.now,
      job.seq,
    )
    listOrHold(tx, tx.queueByNo(job.queue), job, ord)
  }
  if (rows.length === 0) return []
  const ids = rows.map(({ id }) => id)
  const sentence = `${counted(ids.length, 'job')} that no claim would have found ${ids.length === 1 ? 'is' : 'are'} ready again.`
  return [repaired('jobs-astray', sentence, { ids })]
}

/** Corrects the counts, which this transaction writes at its end. */
export function recount(tx: SqliteTransaction): Finding[] {
  const off = findMiscounted(tx)
  for (const { queue, right } of off) {
    for (const state of states) tx.count(queue, state, right[state] - queue[state])
  }
  if (off.length === 0) return []
  const queues = off.map(({ queue }) => queue.name)
  return [repaired('counts', `The counts of ${few(queues)} are right again.`, { queues })]
}
