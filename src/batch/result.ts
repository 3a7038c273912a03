// The result of one item as plain data: a line of a batch's results.

import type { JobInfo } from '../client/job-info.ts'
import type { Costs, EndState, JobError } from '../job/record.ts'

export interface ItemResult {
  readonly id: string
  readonly queue: string
  readonly state: EndState
  readonly outcome: string | null
  readonly warning: string | null
  readonly costs: Costs | null
  readonly attempts: number
  readonly payload: unknown
  readonly result: unknown
  readonly error: JobError | null
}

/** Null: the item has not ended. */
export function toResult(item: JobInfo): ItemResult | null {
  const { id, queue, state, outcome, warning, costs, attempts, payload, result, error } = item
  if (state !== 'done' && state !== 'dead' && state !== 'cancelled') return null
  return { id, queue, state, outcome, warning, costs, attempts, payload, result, error }
}
