// The options of `releaseWorker`, as callers write them.

import { checkBoolean, checkBy, checkOptions, checkWorkerName } from '../job/names.ts'

export interface ReleaseWorkerOptions {
  /** The name of the operator or program that asks. The history of each job says it. */
  readonly by?: string
  /** Only counts the jobs, and changes nothing. */
  readonly dryRun?: boolean
}

export interface ReleasePlan {
  readonly worker: string
  readonly by: string | null
  readonly dryRun: boolean
}

export function toReleasePlan(worker: string, options: ReleaseWorkerOptions): ReleasePlan {
  checkOptions(options, 'release options', ['by', 'dryRun'])
  return {
    worker: checkWorkerName(worker),
    by: checkBy(options.by),
    dryRun: options.dryRun === undefined ? false : checkBoolean(options.dryRun, 'dryRun'),
  }
}
