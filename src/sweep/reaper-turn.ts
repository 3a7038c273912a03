// What all processes know of a reaper: when one of them last took its turn, and whether it has failed since.

export const reaperKeyPrefix = 'holdfast.reaper.'

export interface ReaperTurn {
  readonly turnAt: number
  readonly everyMs: number
  /** Null once it has succeeded again. */
  readonly failure: { readonly since: number; readonly error: string } | null
}

/** Null: somebody wrote something else there. */
export function toTurn(value: unknown): ReaperTurn | null {
  const { turnAt, everyMs, failure = null } = Object(value) as Record<keyof ReaperTurn, unknown>
  if (!Number.isFinite(turnAt) || !Number.isFinite(everyMs)) return null
  const { since, error } = Object(failure) as Record<string, unknown>
  const isFailure = Number.isFinite(since) && typeof error === 'string'
  return {
    turnAt: turnAt as number,
    everyMs: everyMs as number,
    failure: isFailure ? { since: since as number, error } : null,
  }
}

export function readTurn(text: string): ReaperTurn | null {
  try {
    return toTurn(JSON.parse(text))
  } catch {
    return null
  }
}
