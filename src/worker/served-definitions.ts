// The definitions of the queues that a worker serves. A queue may be served by a definition of this program, which the worker
// stores when it starts. Or it is served by its name alone. Then the stored definition counts, and is read again every few
// seconds.

import { byName } from '../lease/claim.ts'
import type { AnyDefinition } from '../queue/definition.ts'
import type { Definitions } from '../queue/stored-definitions.ts'
import { aborted } from '../runtime/aborted.ts'
import { pause, type Timers } from '../runtime/clock.ts'
import type { Plan } from './options.ts'
import type { Outage } from './outage.ts'

export interface ServedDefinitionsContext {
  readonly definitions: Definitions
  readonly timers: Timers
  readonly outage: Outage
  /** Makes sure that the store has the settings of this queue. */
  define(definition: AnyDefinition): Promise<void> | undefined
  /** The worker cannot go on. */
  fail(error: unknown): void
}

/** How long a worker that starts waits until its definitions are stored. */
const storedMaxMs = 1_000

export class ServedDefinitions {
  readonly #context: ServedDefinitionsContext
  readonly #plan: Plan
  /** By queue; null: every queue of the store. */
  readonly #given: ReadonlyMap<string, AnyDefinition> | null
  /** Queues that are served by name; null: all. */
  readonly #byName: readonly string[] | null

  constructor(context: ServedDefinitionsContext, plan: Plan) {
    this.#context = context
    this.#plan = plan
    this.#given = plan.all ? null : new Map([...plan.queues].map(([name, { definition }]) => [name, definition]))
    this.#byName = byName(this.#given)
  }

  /** Whether any queue is served by name. */
  get hasStored(): boolean {
    return this.#byName?.length !== 0
  }

  /** How long a claim leases jobs for. */
  get leaseMs(): number {
    return this.#plan.leaseMs ?? this.#context.definitions.shortestLeaseMs(this.#given?.values() ?? null)
  }

  /**
   * Stores the given definitions. If another open transaction blocks one of them, the other queues do not wait for it: after a
   * second the worker starts without it, and that definition is stored when the transaction has ended.
   */
  async store(halt: AbortSignal): Promise<void> {
    const { define, outage, timers, fail } = this.#context
    const store = ({ definition }: { readonly definition: AnyDefinition }) =>
      outage.survive(() => define(definition) ?? Promise.resolve(), halt)
    const stored = Promise.all(Array.from(this.#plan.queues.values(), store))
    stored.catch((error) => {
      if (!halt.aborted) fail(error)
    })
    const started = new AbortController()
    const late = pause(timers, storedMaxMs, started.signal)
    try {
      await Promise.race([stored, late, aborted(halt)])
    } finally {
      started.abort()
    }
  }

  /** Reads the stored definitions again if they were read more than a few seconds ago; undefined: they are fresh. */
  refresh(): Promise<void> | undefined {
    return this.hasStored ? this.#context.definitions.refresh(this.#byName) : undefined
  }
}
