/** Where a store takes its time from. Milliseconds since 1970; a virtual one stands in under test. */
export interface Clock {
  now(): number
  /** Where the time lies as one float64, for a store that works in a thread of its own. */
  readonly shared?: SharedArrayBuffer
}

export const systemClock: Clock = { now: () => Date.now() }

/** A clock that reads what another thread writes. */
export function sharedClock(shared: SharedArrayBuffer): Clock {
  const ms = new Float64Array(shared)
  return { now: () => ms[0] as number, shared }
}
