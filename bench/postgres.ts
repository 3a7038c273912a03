// The PostgreSQL store compared with queues in bare SQL, on one server on the same machine as this process.
//
// Holdfast is used as in an application: `open('postgres://…')`, its own pool, the public API, a payload of about 100 bytes that
// is checked, encoded and parsed again. raw-postgres.ts describes what the references do and leave out. All take turns on fresh
// schemas, and each schema is checked afterwards. A run in which a job was not claimed and done exactly once, or whose counts are
// not those of its rows, gives no figure.
//
// A ratio is the median of the rounds' own ratios.

import { type Aim, aimsSection } from './aims.ts'
import { backlogSection } from './postgres-backlog.ts'
import { costSection } from './postgres-costs.ts'
import { enqueueSection } from './postgres-enqueue.ts'
import { latencySection, pollSection } from './postgres-idle.ts'
import { benchServer, type Measured, type Place, serverSection, toSizes } from './postgres-place.ts'
import { snapshotSection } from './postgres-snapshot.ts'
import { cycleSection, drainSection } from './postgres-throughput.ts'
import { showProgress } from './progress.ts'
import { checkBareCursor } from './raw-postgres-check.ts'
import type { Section } from './report.ts'
import type { BenchOptions } from './run.ts'

const steps: readonly (readonly [title: string, run: (place: Place) => Promise<Measured>])[] = [
  ['cycle', cycleSection],
  ['drain', drainSection],
  ['backlog', backlogSection],
  ['snapshot', snapshotSection],
  ['enqueue', enqueueSection],
  ['latency', latencySection],
  ['polls', pollSection],
  ['costs', costSection],
]

export async function* postgresBench({ jobs, rounds, isQuick, only }: BenchOptions): AsyncGenerator<Section> {
  const chosen = steps.filter(([title]) => title.includes(only))
  if (chosen.length === 0) return
  showProgress('starting a server')
  await using server = await benchServer()
  const place = { url: server.url, sizes: toSizes(jobs, rounds, isQuick) }
  yield serverSection(server.url, server.where)
  showProgress('checking that the bare cursor finds every job')
  await checkBareCursor(server.url, Date.now() % 2 ** 31)
  const aims: Aim[] = []
  for (const [, run] of chosen) {
    const measured = await run(place)
    yield* measured.sections
    aims.push(...measured.aims)
  }
  if (aims.length > 0) yield aimsSection(aims)
}
