// Ids for the raw queues, which do not make their own.

/** Ids like those of Holdfast: increasing, and of the same length. */
export function makeIds(count: number, from = 0): string[] {
  return Array.from({ length: count }, (_, i) => `0190a5b0-7c00-7000-8000-${(from + i).toString(16).padStart(12, '0')}`)
}
