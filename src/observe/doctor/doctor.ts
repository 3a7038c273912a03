// What threatens the store, in sentences that say what to do. The doctor is a list of small checks, and the store's own checks
// are one of them. Every part that keeps data in the store may add a check here. A check only reads, unless `fix` is set.

import { checkBoolean, checkOptions } from '../../job/names.ts'
import { type Duration, toMs } from '../../runtime/duration.ts'
import { type Check, runChecks } from '../../store/findings.ts'
import type { ExamineRequest, Finding, Severity, Store } from '../../store/store.ts'
import { deadJobs } from './dead-jobs.ts'
import { differingDefinitions } from './definitions.ts'
import { unattendedQueues } from './queues.ts'
import { neglectedReapers } from './reapers.ts'
import { neglectedSchedules } from './schedules.ts'

export interface DoctorOptions {
  /** Repair what can be repaired: counts, jobs that no claim would find, overdue sweeps, the schema's own functions. */
  readonly fix?: boolean
  /** Examine every row, however many there are. */
  readonly full?: boolean
  /** How long something may wait, run or stay open before it is reported; 5 minutes unless given. */
  readonly patience?: Duration
}

export interface Patient {
  readonly store: Store
  readonly request: ExamineRequest
}

const checks: Readonly<Record<string, Check<Patient>>> = {
  store: ({ store, request }) => store.examine(request),
  queues: unattendedQueues,
  'dead-jobs': deadJobs,
  definitions: differingDefinitions,
  schedules: neglectedSchedules,
  reapers: neglectedReapers,
}

const order: readonly Severity[] = ['wrong', 'warning', 'fine']

/** Findings, the worst first. */
export async function diagnose(store: Store, request: ExamineRequest): Promise<Finding[]> {
  const findings = await runChecks(checks, { store, request })
  return findings.sort((a, b) => order.indexOf(a.severity) - order.indexOf(b.severity))
}

export function toExamineRequest(options: DoctorOptions): ExamineRequest {
  checkOptions(options, 'doctor options', ['fix', 'full', 'patience'])
  const { fix = false, full = false, patience = '5m' } = options
  return {
    fix: checkBoolean(fix, 'fix'),
    full: checkBoolean(full, 'full'),
    patienceMs: toMs(patience, 'patience'),
  }
}
