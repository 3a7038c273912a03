// Checks of the store's tables: whether dead rows are removed, and whether finished jobs are in their partitions.

import { span } from '../../../runtime/duration.ts'
import { counted, fine, warning, wrong } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import type { Database } from '../connection/database.ts'
import { isServerRefusal } from '../connection/failures.ts'
import { dropPartitions, makePartitions } from '../schema/partitions.ts'
import type { Examination } from './examine.ts'

export async function autovacuum({ db }: Examination): Promise<Finding[]> {
  const [row] = await db.query(
    `select current_setting('autovacuum'), current_setting('track_counts'),
            array_to_string(array(
              select c.relname from pg_class c, lateral pg_options_to_table(c.reloptions) o
               where c.relnamespace = $1::regnamespace and o.option_name = 'autovacuum_enabled' and not o.option_value::boolean
               order by 1), ' ')`,
    [db.schema.quoted],
  )
  const findings: Finding[] = []
  const off = row?.[0] === 'off' ? 'autovacuum' : row?.[1] === 'off' ? 'track_counts' : null
  if (off !== null)
    findings.push(
      wrong(
        'autovacuum-off',
        `${off} is off: dead rows are never removed.`,
        `Set ${off} = on in postgresql.conf, and reload.`,
        {
          setting: off,
        },
      ),
    )
  for (const table of (row?.[2] ?? '').split(' ').filter(Boolean)) {
    const name = `${db.schema.quoted}.${table}`
    const fix = `alter table ${name} reset (autovacuum_enabled)`
    findings.push(
      wrong('autovacuum-off', `Autovacuum was switched off for ${name}: its dead rows are never removed.`, fix, {
        table,
      }),
    )
  }
  return findings
}

/** Dead rows are reported from so many times the number at which autovacuum should have run. */
const overdueTimes = 5
const deadMin = 10_000

const option = (name: string) =>
  `coalesce((select o.option_value from pg_options_to_table(c.reloptions) o where o.option_name = '${name}'),
            current_setting('${name}'))::float8`

const selectDead = `
  select c.relname, s.n_dead_tup, s.n_live_tup,
         floor(extract(epoch from clock_timestamp() - greatest(s.last_autovacuum, s.last_vacuum)) * 1000)::bigint
    from pg_stat_all_tables s join pg_class c on c.oid = s.relid
   where c.relnamespace = $1::regnamespace and s.n_dead_tup > ${deadMin}
     and s.n_dead_tup > ${overdueTimes} * (${option('autovacuum_vacuum_threshold')}
                                           + ${option('autovacuum_vacuum_scale_factor')} * s.n_live_tup)
   order by s.n_dead_tup desc`

export async function deadRows({ db }: Examination): Promise<Finding[]> {
  const rows = await db.query(selectDead, [db.schema.quoted])
  if (rows.length === 0) return [fine('dead-rows', 'Autovacuum keeps up with dead rows.')]
  return rows.map(([table, dead, live, agoMs]) => {
    const name = `${db.schema.quoted}.${table}`
    const last = agoMs == null ? 'it was never vacuumed' : `it was last vacuumed ${span(Number(agoMs))} ago`
    return warning(
      'dead-rows',
      `Table ${name} has ${counted(Number(dead), 'dead row')} beside ${counted(Number(live), 'live one')}, and ${last}: autovacuum does not keep up.`,
      `vacuum ${name}. If the dead rows stay, something keeps them: an old transaction, a replication slot or a standby.`,
      { table, dead: Number(dead), live: Number(live) },
    )
  })
}

/**
 * Counts the partitions of the next time range that `make_partitions` should have made. A partition of the current range may
 * never be made: if some of its jobs ended before, it cannot be attached, and they are deleted one by one.
 */
const countMissing = `
  select count(*)
    from (select distinct c.class, (holdfast.now_ms(null) + r.retain_ms) / w.width + 1 as bucket
            from (select retain_done_ms as retain_ms from holdfast.queue union select retain_dead_ms from holdfast.queue) r,
                 lateral (select holdfast.retention_class(r.retain_ms) as class) c,
                 lateral (select holdfast.retention_width(c.class) as width) w
           where r.retain_ms > 0) need
   where not exists (
     select from pg_inherits i join pg_class c on c.oid = i.inhrelid
      where i.inhparent = 'holdfast.ended'::regclass and c.relname = format('ended_%s_%s', need.class, need.bucket))`

const countOver = `
  select count(*), max(holdfast.now_ms(null) - (m[2]::bigint + 1) * holdfast.retention_width(m[1]::int))
    from pg_inherits i join pg_class c on c.oid = i.inhrelid, lateral regexp_match(c.relname, '^ended_([1-4])_([0-9]+)$') m
   where i.inhparent = 'holdfast.ended'::regclass and m is not null
     and (m[2]::bigint + 1) * holdfast.retention_width(m[1]::int) < holdfast.now_ms(null) - $1::bigint`

const restMax = 100_000

const countRest = `
  select count(*) from (select from holdfast.ended_rest where finished_at < holdfast.now_ms(null) - $1::bigint limit ${restMax}) r`

/** Sweeps make and drop partitions about once a minute. */
const upkeepMs = 120_000

/** A store with a clock of its own has no partitions. */
export async function partitions({ db, request }: Examination): Promise<Finding[]> {
  if (db.now !== null) return []
  const refused = request.fix ? await refusedDdl(db) : null
  const [missing] = await db.query(countMissing, [])
  const [over] = await db.query(countOver, [Math.max(request.patienceMs, request.fix ? 0 : upkeepMs)])
  const [rest] = await db.query(countRest, [request.patienceMs])
  const findings = [
    ...missingPartitions(Number(missing?.[0]), refused),
    ...overduePartitions(Number(over?.[0]), Number(over?.[1])),
    ...jobsInNone(Number(rest?.[0])),
  ]
  const isFine = findings.length === 0
  return isFine ? [fine('partitions', 'Finished jobs are in partitions that are made and dropped in time.')] : findings
}

/** Makes and drops partitions. Null, or why the server refuses some of them. */
async function refusedDdl(db: Database): Promise<string | null> {
  let why: string | null = null
  for (const keep of [() => makePartitions(db), () => dropPartitions(db, () => {})]) {
    try {
      await keep()
    } catch (error) {
      if (!isServerRefusal(error)) throw error
      why ??= (error.cause as Error).message
    }
  }
  return why
}

function missingPartitions(missing: number, refused: string | null): Finding[] {
  if (missing === 0) return []
  const fix =
    'holdfast sweep makes them. If that does not help, the server refuses it, and the event upkeep.failed says why: an event trigger forbids DDL, or the role that sweeps lacks its grants.'
  const why =
    refused === null
      ? 'no process sweeps, or the server refuses to make them'
      : `the server refuses to make them: ${refused}`
  const sentence = `${counted(missing, 'partition')} that finished jobs need by now ${missing === 1 ? 'is' : 'are'} missing: ${why}.`
  return [warning('partitions-missing', sentence, fix, { missing })]
}

function overduePartitions(over: number, sinceMs: number): Finding[] {
  if (over === 0) return []
  const fix = 'holdfast sweep drops them. If they stay, other sessions read the table all the time.'
  const sentence = `${counted(over, 'partition')} of finished jobs should have been dropped, the first ${span(sinceMs)} ago.`
  return [warning('partitions-overdue', sentence, fix, { over, sinceMs })]
}

function jobsInNone(jobs: number): Finding[] {
  if (jobs === 0) return []
  const many = jobs >= restMax ? `More than ${counted(restMax, 'finished job')}` : counted(jobs, 'finished job')
  const fix =
    'They are deleted one by one when their retention is over. If there are more and more, look for missing partitions.'
  return [
    warning(
      'partitions-none',
      `${many} ${jobs === 1 ? 'is' : 'are'} in no partition of ${jobs === 1 ? 'its' : 'their'} own.`,
      fix,
      { jobs },
    ),
  ]
}
