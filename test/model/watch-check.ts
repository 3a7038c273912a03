// Checks that a watch reports every transition: the last reported state of a job is its current state. It is checked each time
// store and model are compared. If more time has passed than a watch lasts, it starts again from the current state.

import { isHoldfastError } from '../../src/errors.ts'
import type { JobRecord } from '../../src/job/record.ts'
import type { Store } from '../../src/store/store.ts'
import { givenIds } from './steps.ts'

export class WatchCheck {
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

  /** How the reported states differ from the current ones, or null. */
  async differenceOf(records: readonly JobRecord[]): Promise<string | null> {
    if (this.#mark === null) return null
    if (!(await this.#readChanges(this.#mark))) {
      await this.begin(records)
      return null
    }
    await this.#store.watch() // extends the watch
    for (const [id, states] of statesOf(records.filter(isNamedOnce))) {
      const last = this.#states.get(id) ?? 'nothing'
      if (!states.includes(last)) return `job ${id} is ${states.join(' or ')}, and the watch last reported ${last}`
    }
    return null
  }

  async #readChanges(mark: string): Promise<boolean> {
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

/** For each id the state of its job, or of all jobs that have it. */
function statesOf(records: readonly JobRecord[]): Map<string, string[]> {
  const named = Map.groupBy(records, ({ id }) => id)
  return new Map([...named].map(([id, jobs]) => [id, jobs.map(({ state }) => state)]))
}

/**
 * A given id may name several jobs, of which some are deleted. The last report may be about any of them, so it is not checked.
 */
function isNamedOnce({ id }: JobRecord): boolean {
  return !givenIds.includes(id)
}
