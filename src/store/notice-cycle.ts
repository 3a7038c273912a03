// A notice of a death or of an end is a job, and may make a notice itself. So the queues of notices form no cycle.

/** The way from this queue back to it along the queues of notices; null: there is none. */
export function cycleFrom(name: string, nextOf: (queue: string) => readonly (string | null)[]): string[] | null {
  const seen = new Set<string>()
  const search = (queue: string, path: readonly string[]): string[] | null => {
    for (const next of nextOf(queue)) {
      if (next === name) return [...path, next]
      if (next === null || seen.has(next)) continue
      seen.add(next)
      const found = search(next, [...path, next])
      if (found) return found
    }
    return null
  }
  return search(name, [name])
}
