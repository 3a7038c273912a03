// The state of a reaper that all processes share: when one of them last took its turn, and whether it has failed since.

import { isTime } from '../job/names.ts'

export const reaperKeyPrefix = 'holdfast.reaper.'

/** The most characters of an error message that are stored. */
export const errorLength = 500

export interface ReaperTurn {
  readonly turnAt: number
  readonly everyMs: number
  /** Null once it has succeeded again. */
  readonly failure: { readonly since: number; readonly error: string } | null
}

/** Null: the stored value is not a turn of a reaper. */
export function toTurn(value: unknown): ReaperTurn | null {
  const { turnAt, everyMs, failure } = Object(value) as Record<keyof ReaperTurn, unknown>
  if (!isTime(turnAt) || !isTime(everyMs)) return null
  const { since, error } = Object(failure) as Record<string, unknown>
  const isFailure = isTime(since) && typeof error === 'string'
  return { turnAt, everyMs, failure: isFailure ? { since, error: error.slice(0, errorLength) } : null }
}

export function readTurn(text: string): ReaperTurn | null {
  try {
    return toTurn(JSON.parse(text))
  } catch {
    return null
  }
}
