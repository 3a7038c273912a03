// How much work a request is, counted in jobs, so that the work of one call to the store is bounded.

import type { NewJob } from '../job/record.ts'
import type { KvWrite, SettleRequest } from '../store/store.ts'

/** The most work in one group commit. */
export const weightMax = 2_000
/** This many characters of JSON count as one more job. */
const charsAJob = 16 * 1024

export function weightOf(jobs: readonly NewJob[]): number {
  let chars = 0
  for (const { payload } of jobs) chars += payload.length
  return jobs.length + chars / charsAJob
}

export function settleWeight({ settlement }: SettleRequest): number {
  const result = settlement.as === 'done' && settlement.result !== null ? settlement.result.length / charsAJob : 0
  const effects = 'effects' in settlement ? settlement.effects : null
  if (effects === null) return 1 + result
  return (
    1 + result + weightOf(effects.enqueue) + effects.put.reduce((sum, { value }) => sum + value.length, 0) / charsAJob
  )
}

export function kvWeight(write: KvWrite): number {
  return 1 + ('value' in write ? write.value.length / charsAJob : 0)
}
