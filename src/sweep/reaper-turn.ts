// What all processes know of a reaper: when one of them last took its turn, and whether it has failed since.

import { isTime } from '../job/names.ts'

export const reaperKeyPrefix = 'holdfast.reaper.'

/** How much of what went wrong is kept. */
export const errorLength = 500

export interface ReaperTurn {
  readonly turnAt: number
  readonly everyMs: number
  /** Null once it has succeeded again. */
  readonly failure: { readonly since: number; readonly error: string } | null
}

/** Null: what is stored there is no turn of a reaper. */
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
