// Stored definitions, for those who serve a queue by its name: they are read before a claim and remembered for a few seconds,
// because lease, timeout and backoff must be known before a job is claimed or fails. Producers never ask here: what a job does not
// state is filled in by the store.

import { createHash } from 'node:crypto'
import type { QueueSettings } from '../job/record.ts'
import { definitionText, redefined, type StoredDefinition, undefinedQueue } from '../job/stored-definition.ts'
import type { Timers } from '../runtime/clock.ts'
import type { DefinitionRecord, Store } from '../store/store.ts'
import type { AnyDefinition } from './definition.ts'

/** How long after a change in another process workers by name may go on by what was stored before. */
const rememberedMs = 5_000

/** What workers and claims by name need of a definition. */
type Behaviour = Pick<AnyDefinition, 'attempts' | 'backoff' | 'leaseMs' | 'timeoutMs' | 'priority'>

export class Definitions {
  readonly #store: Pick<Store, 'definitions'>
  readonly #timers: Timers
  readonly #known = new Map<string, DefinitionRecord>()
  /** When a queue, or all of them, were read last. */
  readonly #readAt = new Map<string | null, number>()
  /** What definitions that say nothing were made into, until something else is stored. */
  readonly #obeying = new WeakMap<
    AnyDefinition,
    { readonly record: DefinitionRecord; readonly obeyed: AnyDefinition }
  >()

  constructor(store: Pick<Store, 'definitions'>, timers: Timers) {
    this.#store = store
    this.#timers = timers
  }

  /** Makes sure that what is known of these queues (null: of all) is no older than a few seconds; undefined: it is not. */
  refresh(queues: readonly string[] | null): Promise<void> | undefined {
    const from = this.#timers.now() - rememberedMs
    const isFresh = (name: string | null) => (this.#readAt.get(name) ?? Number.NEGATIVE_INFINITY) > from
    if (isFresh(null) || queues?.every(isFresh)) return undefined
    return this.#read(queues)
  }

  /** The same for queues of claimed jobs that this process has not read yet. */
  meet(queues: readonly string[]): Promise<void> | undefined {
    const unknown = queues.filter((name) => !this.#known.has(name) && !this.#readAt.has(name))
    return unknown.length === 0 ? undefined : this.#read([...new Set(unknown)])
  }

  /** It was defined by this process just now. */
  forget(queue: string): void {
    this.#readAt.delete(queue)
    this.#readAt.delete(null)
  }

  /** One that says how jobs behave as it is; any other with what is stored. */
  obeyed(definition: AnyDefinition): AnyDefinition {
    if (definition.settings !== null) return definition
    const record = this.#known.get(definition.name)
    if (record === undefined) return definition
    const known = this.#obeying.get(definition)
    if (known?.record === record) return known.obeyed
    const obeyed = { ...definition, ...behaviourOf(record) }
    this.#obeying.set(definition, { record, obeyed })
    return obeyed
  }

  /** Of these queues, or of all that there are. */
  shortestLeaseMs(definitions: Iterable<AnyDefinition> | null): number {
    const leases = definitions
      ? Array.from(definitions, (definition) => this.obeyed(definition).leaseMs)
      : [...this.#known.values()].map(({ definition }) => definition.leaseMs)
    return leases.length === 0 ? undefinedQueue.leaseMs : Math.min(...leases)
  }

  async #read(queues: readonly string[] | null): Promise<void> {
    const readAt = this.#timers.now()
    const records = await this.#store.definitions(queues)
    const found = new Set(records.map(({ queue }) => queue))
    for (const name of queues ?? this.#known.keys()) if (!found.has(name)) this.#known.delete(name)
    for (const record of records) this.#keep(record)
    for (const name of queues ?? [null]) this.#readAt.set(name, readAt)
  }

  /**
   * The same object while nothing changes, so that what was made of it can be kept. A database that was set back counts versions
   * again, so what the definition says is compared, too.
   */
  #keep(record: DefinitionRecord): void {
    const known = this.#known.get(record.queue)
    if (known === undefined || textOf(known) !== textOf(record)) this.#known.set(record.queue, record)
  }
}

function textOf({ version, definition }: DefinitionRecord): string {
  return `${version} ${definitionText(definition, { withLimits: true })}`
}

function behaviourOf({ definition }: DefinitionRecord): Behaviour {
  const { attempts, backoff, leaseMs, timeoutMs, priority } = definition
  return { attempts, backoff, leaseMs, timeoutMs, priority }
}

/** Short, and the same for the same definition: what a worker says of itself, to be compared with what is stored. */
export function settingsDigest(settings: QueueSettings): string {
  return digestOf(redefined(null, settings), settings.limits !== null)
}

/** Whether a worker that says this of its definition has the one that is stored. */
export function isDigestOf(digest: string, stored: StoredDefinition): boolean {
  return digest === digestOf(stored, true) || digest === digestOf(stored, false)
}

function digestOf(definition: StoredDefinition, withLimits: boolean): string {
  return createHash('sha256').update(definitionText(definition, { withLimits })).digest('base64url').slice(0, 16)
}
