// Checks of the server: its version, durability, connections, clock, and whether it logs payloads.

import { span } from '../../../runtime/duration.ts'
import { fine, warning, wrong } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import type { Database } from '../connection/database.ts'
import type { Examination } from './examine.ts'

const oldestVersion = 140_000

export async function serverVersion({ db }: Examination): Promise<Finding[]> {
  const { server_version: version, server_version_num: number } = await settings(db, [
    'server_version',
    'server_version_num',
  ])
  const [installed] = await db.query('select schema from holdfast.meta', [])
  const facts = { version, schema: db.schema.name, schemaVersion: Number(installed?.[0]) }
  if (Number(number) < oldestVersion)
    return [wrong('server-version', `PostgreSQL ${version} is too old.`, 'Upgrade the server to 14 or newer.', facts)]
  return [
    fine('server-version', `PostgreSQL ${version}, schema ${db.schema.name} at version ${installed?.[0]}.`, facts),
  ]
}

/** The harm that each of these settings does when it is off. */
const harm: Readonly<Record<string, string>> = {
  fsync: 'a crash of the machine may leave the whole database damaged',
  full_page_writes: 'a crash of the machine may leave pages half written',
  synchronous_commit: 'an enqueue or settlement that was answered may be lost in a crash of the server',
}

export async function durability({ db }: Examination): Promise<Finding[]> {
  const set = await settings(db, Object.keys(harm))
  const off = Object.keys(harm).filter((name) => set[name] === 'off')
  if (off.length === 0) return [fine('durability', 'What was committed survives a crash of the server.', set)]
  return off.map((name) =>
    wrong(
      'durability',
      `${name} is off: ${harm[name]}.`,
      `Set ${name} = on in postgresql.conf, or wherever it was set for this database or role, and reload.`,
      { setting: name },
    ),
  )
}

const fullAt = 0.9

export async function connections({ db }: Examination): Promise<Finding[]> {
  const [row] = await db.query(
    `select count(*), current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
       from pg_stat_activity where backend_type = 'client backend'`,
    [],
  )
  const [used, max] = [Number(row?.[0]), Number(row?.[1])]
  const facts = { used, max }
  if (used < max * fullAt) return [fine('connections', `${used} of ${max} connections are in use.`, facts)]
  return [
    warning(
      'connections',
      `${used} of ${max} connections are in use: the server may refuse the next ones.`,
      'Raise max_connections, make pools smaller, or put a pooler in front.',
      facts,
    ),
  ]
}

const skewMaxMs = 2_000

/** Compares the server's time with the middle of the call. A difference that is shorter than the call cannot be measured. */
export async function serverClock({ db }: Examination): Promise<Finding[]> {
  const before = Date.now()
  const [row] = await db.query('select holdfast.now_ms(null)', [])
  const tookMs = Date.now() - before
  const skewMs = Math.round(Number(row?.[0]) - (before + tookMs / 2))
  const facts = { skewMs, tookMs }
  if (Math.abs(skewMs) <= skewMaxMs + tookMs)
    return [fine('clock-skew', 'This machine and the server agree on the time.', facts)]
  return [
    warning(
      'clock-skew',
      `The clock of this machine is ${span(Math.abs(skewMs))} ${skewMs > 0 ? 'behind' : 'ahead of'} the server’s. Jobs follow the server’s; times that this machine works out (runAt, startBefore) are off by as much.`,
      'Have both machines set their clocks by NTP.',
      facts,
    ),
  ]
}

/** Payloads go to the server as parameters, so these settings decide whether they are written into its log. */
export async function loggedPayloads({ db }: Examination): Promise<Finding[]> {
  const set = await settings(db, ['log_statement', 'log_min_duration_statement', 'log_parameter_max_length'])
  const logsStatements =
    ['all', 'mod'].includes(set['log_statement'] ?? '') || set['log_min_duration_statement'] !== '-1'
  if (!logsStatements || set['log_parameter_max_length'] === '0')
    return [fine('logged-payloads', 'The server does not write payloads into its log.', set)]
  return [
    warning(
      'logged-payloads',
      'The server logs statements with their parameters, so payloads and results end up in its log.',
      'Set log_parameter_max_length = 0, unless that is wanted.',
      set,
    ),
  ]
}

async function settings(db: Database, names: readonly string[]): Promise<Record<string, string>> {
  const rows = await db.query(`select name, setting from pg_settings where name = any ($1::text[])`, [`{${names}}`])
  return Object.fromEntries(rows.map(([name, setting]) => [name, setting]))
}
