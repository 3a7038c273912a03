export interface Backoff {
  readonly baseMs: number
  readonly factor: number
  readonly maxMs: number
  /** Share of the delay by which it may be shorter or longer: 0.2 is ±20 %. */
  readonly jitter: number
}

/**
 * The delay after the given attempt has failed: base × factor^(attempt − 1), spread by the jitter, and never above the maximum.
 * A delay that would reach the maximum is spread below it, so that many jobs do not come back at the same moment. `random` is 0
 * to 1.
 */
export function backoffMs(backoff: Backoff, attempt: number, random: number): number {
  const { baseMs, factor, maxMs, jitter } = backoff
  const growth = Math.min(factor ** (attempt - 1), Number.MAX_VALUE) // 0 × Infinity is NaN
  const plain = Math.min(maxMs / (1 + jitter), baseMs * growth)
  return Math.min(maxMs, Math.round(plain * (1 + jitter * (2 * random - 1))))
}
