// A ruling on a promise: how often it was checked, and the faults that were found.

export interface Ruling {
  readonly checks: number
  readonly faults: readonly string[]
}

/** Every case is one check. */
export function check<T>(cases: readonly T[], faultsIn: (each: T, n: number) => readonly string[]): Ruling {
  return { checks: cases.length, faults: cases.flatMap(faultsIn) }
}

export function combine(...rulings: readonly Ruling[]): Ruling {
  return {
    checks: rulings.reduce((sum, { checks }) => sum + checks, 0),
    faults: [...new Set(rulings.flatMap(({ faults }) => faults))],
  }
}
