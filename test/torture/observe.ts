// Everything that can be seen of a store, to judge it by.

import type { BatchProgress } from '../../src/batch/progress.ts'
import type { JobInfo } from '../../src/client/job-info.ts'
import type { QueueInfo } from '../../src/client/queues.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { allJobs } from '../conformance/expect.ts'
import { allBatches } from './batches.ts'

export interface Observation {
  readonly jobs: readonly JobInfo[]
  readonly batches: readonly BatchProgress[]
  readonly queues: readonly QueueInfo[]
  readonly kv: ReadonlyMap<string, unknown>
  /** The tags in the table of the application; null where a store has none. */
  readonly rows: readonly string[] | null
  /** Rows of the application that still wait for a reaper. */
  readonly orphans: readonly string[] | null
}

/** While nobody else is at it. */
export async function observe(
  holdfast: Holdfast,
  { rows, orphans }: Pick<Observation, 'rows' | 'orphans'>,
): Promise<Observation> {
  return {
    jobs: await allJobs(holdfast),
    batches: await allBatches({ holdfast }),
    queues: await holdfast.queues(),
    kv: new Map((await Array.fromAsync(holdfast.kv.scan(''))).map(({ key, value }) => [key, value])),
    rows,
    orphans,
  }
}

/** Where the application has no tables. */
export const noTables = { rows: null, orphans: null }
