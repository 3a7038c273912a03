// How much work a request is, counted in jobs, so that the work of one call to the store is bounded.

import type { JournalWrites } from '../job/journal.ts'
import type { EffectSet, KvWrite, NewJob } from '../job/record.ts'
import { comparesOf, effectsIn } from '../job/settlement.ts'
import type { CheckpointRequest, SettleRequest } from '../store/store.ts'

/** The most work in one group commit. */
export const weightMax = 2_000
/** This many characters of JSON count as one more job. */
const charsAJob = 16 * 1024

export function weightOf(jobs: readonly NewJob[]): number {
  let chars = 0
  for (const { payload, kv } of jobs) {
    chars += payload.length
    if (kv !== undefined) for (const write of kv) if ('value' in write) chars += write.value.length
  }
  return jobs.length + chars / charsAJob
}

export function settleWeight({ settlement }: SettleRequest): number {
  const result = settlement.as === 'done' && settlement.result !== null ? settlement.result.length / charsAJob : 0
  return 1 + result + effectsWeight(effectsIn(settlement)) + journalWeight(settlement.journal)
}

export function checkpointWeight({ effects, journal }: CheckpointRequest): number {
  return 1 + effectsWeight(effects) + journalWeight(journal)
}

function effectsWeight(effects: EffectSet | null): number {
  if (effects === null) return 0
  const puts = [...effects.put, ...comparesOf(effects)]
  const chars = puts.reduce((sum, put) => sum + ('value' in put ? put.value.length : 0), 0)
  return weightOf(effects.enqueue) + chars / charsAJob
}

function journalWeight(journal: JournalWrites | undefined): number {
  if (journal === undefined) return 0
  const { records, partial = '' } = journal
  return records.reduce((chars, { body }) => chars + body.length, partial.length) / charsAJob
}

export function kvWeight(write: KvWrite): number {
  return 1 + ('value' in write ? write.value.length / charsAJob : 0)
}
