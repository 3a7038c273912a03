// Every value of a label is a time series that is never removed. Names that users choose are used as values up to a bound; all
// later ones share one value.

/** The value for all names beyond the bound. */
export const other = 'other'

export class Bounded {
  readonly #max: number
  readonly #seen = new Set<string>()

  constructor(max: number) {
    this.#max = max
  }

  /** The value itself up to the bound, `other` after that. */
  of(value: string): string {
    return this.has(value) ? value : other
  }

  has(value: string): boolean {
    if (this.#seen.has(value)) return true
    if (this.#seen.size >= this.#max) return false
    this.#seen.add(value)
    return true
  }

  /** Frees a place within the bound. */
  forget(value: string): void {
    this.#seen.delete(value)
  }
}
