// All checks of the PostgreSQL store. Causes come before their consequences, and a repair comes before the check that would
// find what it leaves.

import { type Check, runChecks } from '../../findings.ts'
import type { ExamineRequest, Finding, SweepReport } from '../../store.ts'
import type { Database } from '../connection/database.ts'
import { schemaDrift } from './drift.ts'
import { errorGroups } from './error-groups.ts'
import { astrayJobs, counts, unsweptJobs } from './jobs.ts'
import { journals, undelivered } from './journals.ts'
import { labels } from './labels.ts'
import { jobsWithoutLane } from './laneless.ts'
import { notifications } from './notifications.ts'
import { publications } from './publications.ts'
import { grants, ownersFunctions } from './rights.ts'
import { connections, durability, loggedPayloads, serverClock, serverVersion } from './server.ts'
import { oldTransactions, preparedTransactions, replication } from './sessions.ts'
import { waitingCommits } from './standby.ts'
import { autovacuum, deadRows, partitions } from './tables.ts'

export interface Examination {
  readonly db: Database
  /** How this store was opened to listen for wake-ups: by the pool, at a URL of its own, or not at all. */
  readonly listen: boolean | string
  readonly request: ExamineRequest
  sweep(): Promise<SweepReport>
}

const checks: Readonly<Record<string, Check<Examination>>> = {
  'server-version': serverVersion,
  durability,
  connections,
  'clock-skew': serverClock,
  'logged-payloads': loggedPayloads,
  'schema-drift': schemaDrift,
  grants,
  'owners-functions': ownersFunctions,
  'old-transaction': oldTransactions,
  'prepared-transaction': preparedTransactions,
  replication,
  publications,
  autovacuum,
  'dead-rows': deadRows,
  partitions,
  'leases-expired': unsweptJobs,
  'jobs-astray': astrayJobs,
  'jobs-without-lane': jobsWithoutLane,
  counts,
  'error-groups': errorGroups,
  labels,
  journals,
  undelivered,
  notifications,
}

/** A repair would wait as other commits do. So if they wait, nothing is repaired. */
export async function examine(examination: Examination): Promise<Finding[]> {
  const first = await runChecks({ 'waiting-commits': waitingCommits }, examination)
  const request = { ...examination.request, fix: examination.request.fix && !first.some(isWrong) }
  return [...first, ...(await runChecks(checks, { ...examination, request }))]
}

function isWrong({ severity }: Finding): boolean {
  return severity === 'wrong'
}
