// The server of the PostgreSQL benchmark, and the sizes of its loads.

import { startServer } from '../test/support/postgres.ts'
import type { Aim } from './aims.ts'
import { batch } from './contender.ts'
import { roundUp } from './lines.ts'
import { withClient } from './postgres-contenders.ts'
import type { Section } from './report.ts'

export interface Sizes {
  /** Jobs a round in batches; fewer for loads in which a job costs more. */
  readonly jobs: number
  readonly singles: number
  readonly rounds: number
  readonly backlog: number
  /** How many turns of ten thousand jobs drain the backlog. */
  readonly backlogTurns: number
  readonly heldMs: number
  /** The length of the first and of the last part of `heldMs`, which are compared. */
  readonly windowMs: number
  readonly samples: number
  readonly longPauses: number
  readonly idleMs: number
}

export interface Place {
  readonly url: string
  readonly sizes: Sizes
}

export interface Measured {
  readonly sections: readonly Section[]
  readonly aims: readonly Aim[]
}

export function toSizes(jobs: number | null, rounds: number | null, isQuick: boolean): Sizes {
  const count = roundUp(jobs ?? (isQuick ? 20_000 : 50_000), batch)
  return {
    jobs: count,
    singles: Math.ceil(count / 4),
    rounds: rounds ?? (isQuick ? 2 : 3),
    backlog: isQuick ? 100_000 : 1_000_000,
    backlogTurns: isQuick ? 3 : 8,
    heldMs: isQuick ? 15_000 : 90_000,
    windowMs: isQuick ? 5_000 : 10_000,
    samples: isQuick ? 60 : 150,
    longPauses: isQuick ? 2 : 3,
    idleMs: isQuick ? 3_000 : 5_000,
  }
}

/** A server started for the benchmark with PostgreSQL's defaults, or the one that HOLDFAST_BENCH_POSTGRES names. */
export async function benchServer(): Promise<AsyncDisposable & { readonly url: string; readonly where: string }> {
  const given = process.env['HOLDFAST_BENCH_POSTGRES']
  if (given) return { url: given, where: 'HOLDFAST_BENCH_POSTGRES', [Symbol.asyncDispose]: async () => undefined }
  const server = await startServer()
  const dispose = () => server[Symbol.asyncDispose]()
  return { url: server.url(), where: 'started for this', [Symbol.asyncDispose]: dispose }
}

/** Settings that decide how fast the server can be. */
const shownSettings = [
  'server_version',
  'shared_buffers',
  'fsync',
  'synchronous_commit',
  'full_page_writes',
  'wal_sync_method',
  'autovacuum',
  'max_wal_size',
]

export async function serverSection(url: string, where: string): Promise<Section> {
  const settings = await withClient(url, async (client) => {
    const shown = shownSettings.map((name) => `current_setting('${name}') as ${name}`)
    const { rows } = await client.query<Record<string, string>>(`select ${shown.join(', ')}`)
    return rows[0] ?? {}
  })
  const { server_version: version, ...rest } = settings
  const text = Object.entries(rest).map(([name, value]) => `${name} ${value}`)
  return { title: `PostgreSQL ${version}, ${where}`, note: text.join(', '), columns: [], lines: [] }
}
