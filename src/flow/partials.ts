// The partial result of a run as it is stored: the value, and what was published so far. A publish that an earlier execution has
// made is skipped. So a replay never puts an older value over a newer one. Publishes without a name are counted.

import { HoldfastError } from '../errors.ts'
import { decodeJson, isPlainObject } from '../job/codec.ts'

const namesMax = 1_000

interface StoredPartial {
  readonly value: unknown
  readonly count: number
  readonly names: readonly string[]
}

export class Partials {
  /** Publishes without a name that were made, in all executions. */
  #count = 0
  readonly #names = new Set<string>()
  /** The same, in this execution. */
  #called = 0

  begin(stored: string | null): void {
    const partial = readPartial(stored)
    if (partial === null) return
    this.#count = partial.count
    for (const name of partial.names) this.#names.add(name)
  }

  /** Answers how it is written once its value is known; null: an earlier execution has published it. */
  next(name: string | null): ((value: string) => string) | null {
    if (name !== null) {
      if (this.#names.has(name)) return null
      if (this.#names.size >= namesMax) {
        const message = `A run publishes under at most ${namesMax} names. Publish without a name, or under fewer.`
        throw new HoldfastError('INVALID_OPTION', message, { option: 'name', most: namesMax })
      }
      return (value) => {
        this.#names.add(name)
        return this.#encode(value)
      }
    }
    this.#called += 1
    const number = this.#called
    if (number <= this.#count) return null
    return (value) => {
      this.#count = Math.max(this.#count, number)
      return this.#encode(value)
    }
  }

  #encode(value: string): string {
    return `{"count":${this.#count},"names":${JSON.stringify([...this.#names])},"value":${value}}`
  }
}

/** Null: nothing was published. */
export function readPartial(stored: string | null): StoredPartial | null {
  const partial = stored === null ? null : decodeJson(stored)
  return partial !== null && isPlainObject(partial) ? (partial as unknown as StoredPartial) : null
}
