// Checks of the jobs: leased by workers that are gone, due and not promoted, behind the cursor without a lease, miscounted.

import { span } from '../../../runtime/duration.ts'
import { counted, few, fine, repaired, wrong } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import { list } from '../connection/columns.ts'
import type { Database, PgTransaction } from '../connection/database.ts'
import type { Examination } from './examine.ts'
import { countJobsWithoutLane } from './laneless.ts'

const selectExpired = `
  select count(*), max(holdfast.now_ms($1) - l.expires_at), array_to_string(array_agg(distinct l.worker), ', ')
    from holdfast.lease l
   cross join lateral unnest(l.xids, l.ords) u(xid, ord)
   cross join lateral (select from holdfast.job k where k.lane = l.lane and k.ready_xid = u.xid and k.ord = u.ord offset 0) j
   where l.expires_at < holdfast.now_ms($1) - $2::bigint
     and not exists (select from holdfast.lease y
                      where y.token = l.token and y.lane = l.lane and y.no > l.no and u.ord = any (y.ords))`

const countedMax = 100_000

const selectDue = `
  select count(*), holdfast.now_ms($1) - min(d.run_at)
    from (select run_at from holdfast.job where ready_xid is null and not is_held and run_at < holdfast.now_ms($1) - $2::bigint
           order by run_at limit ${countedMax}) d`

const sweepStepsMax = 1_000

/** Jobs that a sweep would have rescued or promoted long ago. */
export async function unsweptJobs({ db, request, sweep }: Examination): Promise<Finding[]> {
  const values = [db.now, request.patienceMs]
  const [expired] = await db.query(selectExpired, values)
  const [due] = await db.query(selectDue, values)
  const [leases, late] = [Number(expired?.[0]), Number(due?.[0])]
  if (leases + late === 0)
    return [fine('leases-expired', 'Leases that run out are taken back, and due jobs are promoted.')]
  if (request.fix) {
    for (let steps = 0; steps < sweepStepsMax && (await sweep()).more; steps++);
    const sentence = `Swept: ${counted(leases, 'expired lease')}, ${counted(late, 'due job')}.`
    return [repaired('leases-expired', sentence, { leases, late })]
  }
  const fix = 'Start a worker: every worker sweeps. holdfast sweep does it once.'
  const findings: Finding[] = []
  if (leases > 0)
    findings.push(
      wrong(
        'leases-expired',
        `${counted(leases, 'job')} ${leases === 1 ? 'has a lease' : 'have leases'} that ran out, the first ${span(Number(expired?.[1]))} ago (${few((expired?.[2] ?? '').split(', '))}): the worker is gone, and no process sweeps.`,
        fix,
        { jobs: leases, overdueMs: Number(expired?.[1]), workers: expired?.[2]?.split(', ') },
      ),
    )
  if (late > 0)
    findings.push(
      wrong(
        'jobs-not-promoted',
        `${counted(late, 'job')} ${late === 1 ? 'has' : 'have'} been due for up to ${span(Number(due?.[1]))} and ${late === 1 ? 'is' : 'are'} still scheduled: no process sweeps.`,
        fix,
        {
          jobs: late,
          overdueMs: Number(due?.[1]),
        },
      ),
    )
  return findings
}

const astrayMax = 1_000
/** How many lanes are locked in one transaction, because the server's lock table is bounded. */
const lanesMax = 64

/**
 * How many jobs behind the cursor are looked at, the oldest of each lane first: running jobs end and leave their places, a job
 * that no lease lists stays.
 */
const behindMax = { lane: 10_000, all: 50_000 } as const
const farMore = Number.MAX_SAFE_INTEGER

const noneAstray = 'Every job waits where a claim finds it, or is held by a lease.'
const noneAstrayAmongOldest = `Of the jobs that were claimed, the oldest ${counted(behindMax.lane, 'job')} of each lane, and ${behindMax.all.toLocaleString('en')} in all, are held by a lease. The others were not looked at: holdfast doctor --full does.`

const behind = `
  select b.*, c.gap_xids, c.gap_ords
    from cursors c cross join lateral (
      select k.id, k.lane, k.ready_xid, k.ord, k.start_before, k.seq from holdfast.job k
       where k.lane = c.lane and (k.ready_xid, k.ord) <= (c.xid, c.ord) order by k.ready_xid, k.ord limit $1) b
   limit $2`

/** The same of given jobs. */
const behindOf = `
  select b.*, c.gap_xids, c.gap_ords
    from unnest($1::uuid[]) u(id)
   cross join lateral (select k.id, k.lane, k.ready_xid, k.ord, k.start_before, k.seq from holdfast.job k where k.id = u.id offset 0) b
    join cursors c on c.lane = b.lane and (b.ready_xid, b.ord) <= (c.xid, c.ord)`

/**
 * Jobs that the cursor of their lane has passed, and that are in no gap, were not skipped for being late, and are in no lease:
 * no claim will find them. This is one statement, so it has one snapshot: cursor and lease of a claim are committed in one
 * transaction. It is written in steps, because the planner else asks of every job of the table whether it waits: 23 s at 400,000.
 */
const withAstray = (passed: string) => `
  with cursors as materialized (select distinct on (lane) * from holdfast.lane_cursor order by lane, no desc),
  behind as materialized (${passed}),
  leased as materialized (
    select l.lane, u.ord from holdfast.lease l cross join lateral unnest(l.ords) u(ord)
     where l.lane in (select b.lane from behind b)
  ),
  astray as (
    select b.id, b.lane from behind b
     where not exists (select from leased l where l.lane = b.lane and l.ord = b.ord)
       and not exists (select from unnest(b.gap_xids, b.gap_ords) g(xid, ord) where g.xid = b.ready_xid and b.ord > g.ord)
       and not exists (select from holdfast.overdue o where o.start_before = b.start_before and o.seq = b.seq and o.passed)
     limit ${astrayMax}
  )`

/** One row with no id if there is none. The last column: whether all jobs behind cursors were looked at. */
const selectAstray = `${withAstray(behind)}
  select a.id, a.lane, n.is_all
    from (select coalesce(sum(c.jobs), 0) < $2 and coalesce(max(c.jobs), 0) < $1 as is_all
            from (select count(*) as jobs from behind group by lane) c) n
    left join astray a on true`

const selectStillAstray = `${withAstray(behindOf)} select a.id from astray a`

export async function astrayJobs({ db, request }: Examination): Promise<Finding[]> {
  const bounds = request.full ? [farMore, farMore] : [behindMax.lane, behindMax.all]
  const found = await db.query(selectAstray, bounds)
  const rows = found.filter(([id]) => id != null)
  const ids = rows.map(([id]) => id as string)
  if (ids.length === 0) return [fine('jobs-astray', found[0]?.[2] === 't' ? noneAstray : noneAstrayAmongOldest)]
  const [jobs, have, facts] = [counted(ids.length, 'job'), ids.length === 1 ? 'has' : 'have', { ids }]
  if (!request.fix)
    return [
      wrong(
        'jobs-astray',
        `${jobs} ${have} been claimed, and the lease is missing: no worker holds ${ids.length === 1 ? 'it' : 'them'}, and no claim will find ${ids.length === 1 ? 'it' : 'them'} (${few(ids)}).`,
        'holdfast doctor --fix makes them ready again.',
        facts,
      ),
    ]
  let moved = 0
  const lanes = [...new Set(rows.map(([, lane]) => lane as string))]
  for (let from = 0; from < lanes.length; from += lanesMax) {
    const some = lanes.slice(from, from + lanesMax)
    const there = rows.filter(([, lane]) => some.includes(lane as string)).map(([id]) => id as string)
    moved += await db.transact((tx) => putBack(tx, there, some))
  }
  return [
    repaired(
      'jobs-astray',
      `${counted(moved, 'job')} that no claim would have found ${moved === 1 ? 'is' : 'are'} ready again.`,
      facts,
    ),
  ]
}

/** Makes them ready as a rescue does, in the lanes of rescued jobs, and corrects the counts, in which they were running. */
async function putBack(tx: PgTransaction, ids: readonly string[], lanes: readonly string[]): Promise<number> {
  await tx.query('select holdfast.lock_lanes($1)', [list(lanes)])
  await tx.readClock()
  const still = (await tx.query(selectStillAstray, [list(ids)])).map(([id]) => id as string)
  await tx.query(
    `with moved as (
       update holdfast.job set ready_xid = pg_current_xact_id(), ord = nextval('holdfast.number'), lane = lane | 1, run_at = $2
        where id = any ($1::uuid[]) returning lane
     )
     insert into holdfast.tally (xid, queue, running, ready)
     select pg_current_xact_id(), l.queue, -count(*), count(*)
       from moved m join holdfast.lane l on l.no = m.lane & ~1 group by l.queue`,
    [list(still), tx.now],
  )
  return still.length
}

/** Up to so many rows, counts are compared also without `full`. */
const recountMax = 200_000
const states = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled'] as const

/** Queues whose stored counts (`stored`) differ from a recount (`recounted`), in one snapshot. */
const selectMiscounted = `
  with place as (
    select distinct l.lane, u.xid, u.ord from holdfast.lease l cross join lateral unnest(l.xids, l.ords) u(xid, ord)
  ),
  listed (queue, state) as (
    select l.queue, case when j.is_held then 'held' when j.ready_xid is null then 'scheduled' when p.lane is null then 'ready'
                         else 'running' end
      from holdfast.job j join holdfast.lane l on l.no = j.lane & ~1
      left join place p on p.lane = j.lane and p.xid = j.ready_xid and p.ord = j.ord
     union all
    select queue, state from holdfast.ended
  ),
  recounted as (
    select queue, ${states.map((state) => `count(*) filter (where state = '${state}') as ${state}`).join(', ')}
      from listed group by queue
  ),
  stored as (
    select queue, ${states.map((state) => `sum(${state}) as ${state}`).join(', ')}
      from holdfast.tally where xid >= holdfast.low_tally() group by queue
  ),
  difference as (
    select q.no, q.name, ${states.map((state) => `coalesce(h.${state}, 0) - coalesce(t.${state}, 0) as ${state}`).join(', ')}
      from holdfast.queue q left join recounted h on h.queue = q.no left join stored t on t.queue = q.no
  )
  select * from difference where (${states.join(', ')}) <> (${states.map(() => 0)})`

const correct = `
  with miscounted as (${selectMiscounted})
  insert into holdfast.tally (xid, queue, ${states.join(', ')})
  select pg_current_xact_id(), no, ${states.join(', ')} from miscounted`

const countStored = `
  select coalesce(sum(${states.map((state) => `abs(${state})`).join(' + ')}), 0)
    from holdfast.tally where xid >= holdfast.low_tally()`

export async function counts({ db, request }: Examination): Promise<Finding[]> {
  const [stored] = await db.query(countStored, [])
  if (Number(stored?.[0]) > recountMax && !request.full)
    return [
      fine('counts', `Not recounted: there are more than ${counted(recountMax, 'job')}. holdfast doctor --full does.`),
    ]
  const rows = await db.query(selectMiscounted, [])
  if (rows.length === 0) return [fine('counts', 'Counts equal a recount.')]
  const queues = rows.map(([, name]) => name as string)
  const off = rows.map(([, queue, ...differences]) => ({ queue, ...differencesOf(differences) }))
  const lost = await countJobsWithoutLane(db)
  if (lost > 0) return [countsOfLost(queues, { lost, off })]
  if (request.fix) {
    await correctCounts(db)
    return [repaired('counts', `The counts of ${few(queues)} are right again.`, { off })]
  }
  return [
    wrong('counts', `The counts of ${few(queues)} differ from a recount.`, 'holdfast doctor --fix corrects them.', {
      off,
    }),
  ]
}

/** A recount does not find jobs without a lane. If the counts were corrected, no trace of these jobs would be left. */
function countsOfLost(queues: readonly string[], facts: { readonly lost: number; readonly off: unknown }): Finding {
  return wrong(
    'counts',
    `The counts of ${few(queues)} differ from a recount, which misses ${counted(facts.lost, 'job')} whose lane does not exist.`,
    'Repair jobs-without-lane first: the counts are the only trace of these jobs, and are corrected once they are back.',
    facts,
  )
}

/** The inserted difference is exact, whatever is counted meanwhile: all of it is of one snapshot. */
export async function correctCounts(db: Database): Promise<void> {
  await db.transact(async (tx) => {
    await tx.readClock()
    await tx.query(correct, [])
  })
}

/** Queues whose counts have more live jobs than there are, and how many more. */
export async function surplusOf(db: Database): Promise<readonly (readonly [queue: string, jobs: number])[]> {
  const rows = await db.query(selectMiscounted, [])
  return rows
    .map(([, queue, held, scheduled, ready, running]) => {
      const live = [held, scheduled, ready, running].reduce((sum, difference) => sum - Number(difference), 0)
      return [queue as string, live] as const
    })
    .filter(([, jobs]) => jobs > 0)
}

/** What has to be added to the count of each state. */
function differencesOf(values: readonly (string | null)[]): Record<string, number> {
  return Object.fromEntries(states.map((state, i) => [state, Number(values[i])] as const).filter(([, n]) => n !== 0))
}
