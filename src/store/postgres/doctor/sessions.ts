// Checks for what keeps old row versions alive. A transaction that stays open keeps dead rows of the whole database from being
// removed, and counts from being folded. If it has a transaction number, every claim that passes it keeps a gap in the cursor.

import { span } from '../../../runtime/duration.ts'
import { counted, fine, warning, wrong } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import type { Examination } from './examine.ts'

/** After so many times `patienceMs`, an old transaction is `wrong`, no longer a `warning`. */
const farTooLong = 12
const shownMax = 5

const selectOld = `
  select a.pid, coalesce(a.usename, '?'), coalesce(a.datname, '?'), coalesce(a.application_name, ''), coalesce(a.state, '?'),
         floor(extract(epoch from clock_timestamp() - a.xact_start) * 1000)::bigint
    from pg_stat_activity a
   where a.pid <> pg_backend_pid() and a.backend_type in ('client backend', 'background worker')
     and a.xact_start < clock_timestamp() - $1 * interval '1 millisecond'
     and (a.backend_xid is not null or (a.backend_xmin is not null and a.datname = current_database()))
   order by a.xact_start limit ${shownMax}`

const countGaps = `
  select count(*)
    from (select distinct on (lane) gap_xids from holdfast.lane_cursor order by lane, no desc) c
   cross join lateral unnest(c.gap_xids) g(xid)
   where not pg_visible_in_snapshot(g.xid, pg_current_snapshot())`

const countHidden = `select count(*), current_user from pg_stat_activity where query = '<insufficient privilege>'`

export async function oldTransactions({ db, request }: Examination): Promise<Finding[]> {
  const old = await db.query(selectOld, [request.patienceMs])
  const [hidden] = await db.query(countHidden, [])
  const [gaps] = await db.query(countGaps, [])
  const findings = old.map(([pid, user, database, application, state, ageMs]) => {
    const age = Number(ageMs)
    const owner = `${user}${application ? ` (${application})` : ''} in database ${database}, pid ${pid}`
    const facts = { pid: Number(pid), user, database, application, state, ageMs: age, gaps: Number(gaps?.[0]) }
    return (age > request.patienceMs * farTooLong ? wrong : warning)(
      'old-transaction',
      `A transaction of ${owner}, has been open for ${span(age)} and is ${state}: dead rows stay, and counts are not added up.${gapText(Number(gaps?.[0]))}`,
      `Find out what it does, or end it: select pg_terminate_backend(${pid}). idle_in_transaction_session_timeout ends forgotten ones by itself.`,
      facts,
    )
  })
  if (Number(hidden?.[0]) > 0) findings.push(hiddenSessions(Number(hidden?.[0]), hidden?.[1] as string))
  return findings.length > 0 ? findings : [fine('old-transaction', 'No transaction has been open for long.')]
}

function gapText(gaps: number): string {
  return gaps === 0 ? '' : ` Claims keep ${counted(gaps, 'gap')} open for transactions that have not ended.`
}

function hiddenSessions(sessions: number, role: string): Finding {
  return warning(
    'sessions-hidden',
    `Role ${role} cannot see what ${counted(sessions, 'session')} of other roles ${sessions === 1 ? 'does' : 'do'}, so an old transaction may be missed.`,
    `grant pg_read_all_stats to "${role}", or run the doctor as a role that has it.`,
    { sessions, role },
  )
}

export async function preparedTransactions({ db, request }: Examination): Promise<Finding[]> {
  const rows = await db.query(
    `select gid, owner, database, floor(extract(epoch from clock_timestamp() - prepared) * 1000)::bigint
       from pg_prepared_xacts where prepared < clock_timestamp() - $1 * interval '1 millisecond'
      order by prepared limit ${shownMax}`,
    [request.patienceMs],
  )
  return rows.map(([gid, owner, database, ageMs]) =>
    wrong(
      'prepared-transaction',
      `Transaction ${gid} of ${owner} in database ${database} was prepared ${span(Number(ageMs))} ago and never ended: it outlives restarts, keeps its locks, and dead rows stay.`,
      `In database ${database}: commit prepared '${gid}', or rollback prepared '${gid}'.`,
      { gid, owner, database, ageMs: Number(ageMs) },
    ),
  )
}

/** How many transactions a standby or a slot may be behind before it is reported. */
const behindMax = 1_000_000

const selectSlots = (behind: number) => `
  select slot_name, active, coalesce(greatest(age(xmin), age(catalog_xmin)), 0),
         coalesce(pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_receive_lsn() else pg_current_wal_lsn() end,
                                  restart_lsn), 0)::bigint
    from pg_replication_slots where not active or greatest(age(xmin), age(catalog_xmin)) > ${behind}`

const selectStandbys = (behind: number) => `
  select application_name, age(backend_xmin) from pg_stat_replication where age(backend_xmin) > ${behind}`

export function replication(examination: Examination): Promise<Finding[]> {
  return replicationBehind(examination, behindMax)
}

/** Reports slots and standbys that are more than `most` transactions behind, and slots without a reader. */
export async function replicationBehind({ db }: Pick<Examination, 'db'>, most: number): Promise<Finding[]> {
  const slots = (await db.query(selectSlots(most), [])).map(([name, active, behind, bytes]) => {
    const mib = Math.round(Number(bytes) / 2 ** 20)
    const how = active === 't' ? `is ${counted(Number(behind), 'transaction')} behind` : 'has no reader'
    return warning(
      'replication-slot',
      `Replication slot ${name} ${how}: it keeps ${mib.toLocaleString('en')} MiB of log, and dead rows.`,
      `Let its reader catch up. If the reader is gone for good: select pg_drop_replication_slot('${name}').`,
      { slot: name, active: active === 't', behind: Number(behind), bytes: Number(bytes) },
    )
  })
  const standbys = (await db.query(selectStandbys(most), [])).map(([name, behind]) =>
    warning(
      'standby-feedback',
      `Standby ${name} reports by hot_standby_feedback that it still reads rows that are ${counted(Number(behind), 'transaction')} old: dead rows stay.`,
      'End the long query on the standby, or switch hot_standby_feedback off there.',
      { standby: name, behind: Number(behind) },
    ),
  )
  return [...slots, ...standbys]
}
