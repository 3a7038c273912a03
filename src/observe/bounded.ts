// Every value of a label is a time series for ever. Names that users choose are let through up to a bound; later ones
// share one name.

/** What a value beyond the bound is called. */
export const other = 'other'

export class Bounded {
  readonly #max: number
  readonly #seen = new Set<string>()

  constructor(max: number) {
    this.#max = max
  }

  /** The value itself while there is room, `other` after that. */
  of(value: string): string {
    return this.has(value) ? value : other
  }

  has(value: string): boolean {
    if (this.#seen.has(value)) return true
    if (this.#seen.size >= this.#max) return false
    this.#seen.add(value)
    return true
  }

  /** Makes room again. */
  forget(value: string): void {
    this.#seen.delete(value)
  }
}
