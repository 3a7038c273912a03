export interface Backoff {
  readonly baseMs: number
  readonly factor: number
  readonly maxMs: number
  /** Share of the delay by which it may be shorter or longer: 0.2 is ±20 %. */
  readonly jitter: number
}

/** The delay after the given attempt has failed: base × factor^(attempt − 1), capped, then jittered. `random` is 0 to 1. */
export function backoffMs(backoff: Backoff, attempt: number, random: number): number {
  const { baseMs, factor, maxMs, jitter } = backoff
  const growth = Math.min(factor ** (attempt - 1), Number.MAX_VALUE) // 0 × Infinity is NaN
  const plain = Math.min(maxMs, baseMs * growth)
  return Math.round(plain * (1 + jitter * (2 * random - 1)))
}
