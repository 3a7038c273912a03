// Figures from a machine that also does other work: medians, and the spread of the rounds.

export function median(values: readonly number[]): number {
  return quantile(values, 0.5)
}

/** By nearest rank, so that p99 of a hundred samples is one of them. */
export function quantile(values: readonly number[], q: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  if (sorted.length === 0) return Number.NaN
  if (q === 0.5 && sorted.length % 2 === 0) {
    const half = sorted.length / 2
    return ((sorted[half - 1] as number) + (sorted[half] as number)) / 2
  }
  return sorted[Math.max(0, Math.ceil(q * sorted.length) - 1)] as number
}

/**
 * Half the distance between the best and the worst round, in percent of the median; null for fewer than two rounds or a median of
 * 0.
 */
export function spreadPercent(values: readonly number[]): number | null {
  const middle = median(values)
  if (values.length < 2 || middle === 0) return null
  return Math.round(Math.abs((Math.max(...values) - Math.min(...values)) / 2 / middle) * 100)
}

/** Round by round, because whatever slows one side of a round down also slows the other. */
export function ratios(over: readonly number[], under: readonly number[]): number[] {
  return over.map((value, round) => value / (under[round] as number))
}
