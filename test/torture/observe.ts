// Everything that a store shows through the public interface, for the judge.

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
  /** The tags in the table of the application. Null: the store has no such table. */
  readonly rows: readonly string[] | null
  /** Rows of the application that still wait for the reaper. */
  readonly orphans: readonly string[] | null
}

/** Only while no other process uses the store. */
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

/** For a store without tables of the application. */
export const noTables = { rows: null, orphans: null }
