// What a look at the evidence comes to: how often a promise was put to the test, and what speaks against it.

export interface Ruling {
  readonly checks: number
  readonly faults: readonly string[]
}

/** Every case is one check. */
export function check<T>(cases: readonly T[], faultsIn: (each: T, n: number) => readonly string[]): Ruling {
  return { checks: cases.length, faults: cases.flatMap(faultsIn) }
}

export function together(...rulings: readonly Ruling[]): Ruling {
  return {
    checks: rulings.reduce((sum, { checks }) => sum + checks, 0),
    faults: [...new Set(rulings.flatMap(({ faults }) => faults))],
  }
}
