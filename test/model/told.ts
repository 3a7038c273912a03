// Whoever watches hears of every transition: what was told last of a job is the state it is in. Asked each time state and
// model are compared. Where time has passed for longer than a watch lasts, it begins anew with what is there.

import { isHoldfastError } from '../../src/errors.ts'
import type { JobRecord } from '../../src/job/record.ts'
import type { Store } from '../../src/store/store.ts'
import { givenIds } from './steps.ts'

export class Told {
  readonly #store: Store
  #states = new Map<string, string>()
  #mark: string | null = null

  constructor(store: Store) {
    this.#store = store
  }

  async begin(records: readonly JobRecord[]): Promise<void> {
    this.#mark = await this.#store.watch()
    this.#states = new Map(records.map(({ id, state }) => [id, state]))
  }

  /** How what was told differs from what is, or null. */
  async differenceOf(records: readonly JobRecord[]): Promise<string | null> {
    if (this.#mark === null) return null
    if (!(await this.#hear(this.#mark))) {
      await this.begin(records)
      return null
    }
    await this.#store.watch() // goes on
    for (const [id, states] of statesOf(records.filter(isNamedOnce))) {
      const told = this.#states.get(id) ?? 'nothing'
      if (!states.includes(told)) return `job ${id} is ${states.join(' or ')}, and ${told} was told of it last`
    }
    return null
  }

  async #hear(mark: string): Promise<boolean> {
    let after = mark
    try {
      for (let more = true; more; ) {
        const page = await this.#store.changes({ after, queue: null, states: null, ids: null })
        for (const { id, state } of page.changes) this.#states.set(id, state)
        after = page.next
        more = page.more
      }
    } catch (error) {
      if (isHoldfastError(error, 'INVALID_OPTION')) return false
      throw error
    }
    this.#mark = after
    return true
  }
}

/** Of each id the state of the job, or of several that had it. */
function statesOf(records: readonly JobRecord[]): Map<string, string[]> {
  const named = Map.groupBy(records, ({ id }) => id)
  return new Map([...named].map(([id, jobs]) => [id, jobs.map(({ state }) => state)]))
}

/** An id that is used again names several jobs, of which some are gone: what was told last may be of any of them. */
function isNamedOnce({ id }: JobRecord): boolean {
  return !givenIds.includes(id)
}
