// Stored definitions, for workers and claims that name a queue without a definition. They are read before a claim and cached for
// a few seconds, because lease, timeout and backoff must be known before a job is claimed or fails. Producers do not need them:
// the store fills in what a job does not set.

import { createHash } from 'node:crypto'
import type { QueueSettings } from '../job/record.ts'
import { definitionText, redefined, type StoredDefinition, undefinedQueue } from '../job/stored-definition.ts'
import type { Timers } from '../runtime/clock.ts'
import type { DefinitionRecord, Store } from '../store/store.ts'
import type { AnyDefinition } from './definition.ts'

/** How long a worker by name may use the old definition after another process has changed it. */
const cachedMs = 5_000

/** What workers and claims by name need of a definition. */
type Behaviour = Pick<AnyDefinition, 'attempts' | 'backoff' | 'leaseMs' | 'timeoutMs' | 'priority'>

export class Definitions {
  readonly #store: Pick<Store, 'definitions'>
  readonly #timers: Timers
  readonly #known = new Map<string, DefinitionRecord>()
  /** When a queue, or all of them, were read last. */
  readonly #readAt = new Map<string | null, number>()
  /** Definitions by name, completed by the stored settings. Valid until the stored record changes. */
  readonly #completed = new WeakMap<
    AnyDefinition,
    { readonly record: DefinitionRecord; readonly completed: AnyDefinition }
  >()

  constructor(store: Pick<Store, 'definitions'>, timers: Timers) {
    this.#store = store
    this.#timers = timers
  }

  /** Reads the definitions of these queues (null: of all) if the cached ones are too old; undefined: they are not. */
  refresh(queues: readonly string[] | null): Promise<void> | undefined {
    const from = this.#timers.now() - cachedMs
    const isFresh = (name: string | null) => (this.#readAt.get(name) ?? Number.NEGATIVE_INFINITY) > from
    if (isFresh(null) || queues?.every(isFresh)) return undefined
    return this.#read(queues)
  }

  /** The same for queues of claimed jobs that this process has not read yet. */
  meet(queues: readonly string[]): Promise<void> | undefined {
    const unknown = queues.filter((name) => !this.#known.has(name) && !this.#readAt.has(name))
    return unknown.length === 0 ? undefined : this.#read([...new Set(unknown)])
  }

  /** This process has just defined the queue, so its definition is read again. */
  forget(queue: string): void {
    this.#readAt.delete(queue)
    this.#readAt.delete(null)
  }

  /** The definition in force: one with settings unchanged, any other with the stored settings. */
  effective(definition: AnyDefinition): AnyDefinition {
    if (definition.settings !== null) return definition
    const record = this.#known.get(definition.name)
    if (record === undefined) return definition
    const known = this.#completed.get(definition)
    if (known?.record === record) return known.completed
    const completed = { ...definition, ...behaviourOf(record) }
    this.#completed.set(definition, { record, completed })
    return completed
  }

  /** Of these queues, or of all that there are. */
  shortestLeaseMs(definitions: Iterable<AnyDefinition> | null): number {
    const leases = definitions
      ? Array.from(definitions, (definition) => this.effective(definition).leaseMs)
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
   * Keeps the same object while nothing changes, so that completed definitions stay valid. A restored database may use versions
   * again, so the text of the definition is compared too.
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

/** A short digest of a definition. A worker publishes it, to be compared with the stored definition. */
export function settingsDigest(settings: QueueSettings): string {
  return digestOf(redefined(null, settings), settings.limits !== null)
}

/** Whether a worker with this digest has the stored definition. */
export function isDigestOf(digest: string, stored: StoredDefinition): boolean {
  return digest === digestOf(stored, true) || digest === digestOf(stored, false)
}

function digestOf(definition: StoredDefinition, withLimits: boolean): string {
  return createHash('sha256').update(definitionText(definition, { withLimits })).digest('base64url').slice(0, 16)
}
