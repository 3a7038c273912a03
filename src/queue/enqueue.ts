// Sends jobs to the store: grouped with other enqueues, or as part of the caller's own transaction. The settings of a queue are
// stored before its first job.

import { adapterHint } from '../adapters/hint.ts'
import { connectionLater, connectionOf } from '../adapters/transaction.ts'
import { Group } from '../client/group.ts'
import type { Waiters } from '../client/waiters.ts'
import { weightMax, weightOf } from '../client/weight.ts'
import { HoldfastError, isRefused, toError } from '../errors.ts'
import type { Events } from '../events.ts'
import type { NewJob, QueueSettings } from '../job/record.ts'
import { settingsText } from '../job/stored-definition.ts'
import type {
  EnqueueAnswer,
  Enqueued,
  EnqueueRequest,
  ItemsAnswer,
  ItemsRequest,
  Store,
  UnstoredDefinition,
} from '../store/store.ts'
import type { Sweeper } from '../sweep/sweeper.ts'
import { type AnyDefinition, defineQueue } from './definition.ts'
import type { Definitions } from './stored-definitions.ts'

/** What this needs of the client. */
export interface EnqueuesContext {
  readonly store: Store
  readonly events: Events
  readonly waiters: Waiters
  readonly sweeper: Sweeper
  readonly definitions: Definitions
}

/** The most definitions that a process remembers to have stored. */
const definedMax = 10_000

interface Defined {
  readonly stored: Promise<void>
  isStored: boolean
}

export class Enqueues {
  readonly #context: EnqueuesContext
  readonly #group: Group<EnqueueRequest, EnqueueAnswer>
  /** By the text of its settings: this process stores each definition once, whatever other processes store later. */
  readonly #defined = new Map<string, Defined>()
  /** The same by the settings object, which avoids making the text. */
  readonly #known = new WeakMap<QueueSettings, Defined>()

  constructor(context: EnqueuesContext) {
    this.#context = context
    this.#group = new Group({ flush: (r) => this.#flush(r), weigh: (r) => weightOf(r.jobs), weightMax })
  }

  async enqueue(definition: AnyDefinition, jobs: readonly NewJob[], tx: unknown): Promise<readonly Enqueued[]> {
    if (tx !== undefined && !this.#context.store.capabilities.callerTransaction) {
      throw new HoldfastError('UNSUPPORTED', 'This store cannot enqueue in your own transaction; leave out tx.', {
        capability: 'callerTransaction',
      })
    }
    if (tx === undefined) await this.define(definition)
    const answer = await (tx === undefined ? this.#group.add({ jobs }) : this.#enqueueIn(tx, { jobs }, definition))
    if (isRefused(answer)) throw toError(answer)
    for (const { delayMs } of jobs) if (delayMs > 0) this.#context.sweeper.expect(delayMs)
    if (tx === undefined && this.#context.events.hasListener('job.enqueued'))
      this.#emitEnqueued(definition.name, answer)
    return answer
  }

  /** A job that was prepared before, of a queue whose settings the store knows. */
  async enqueueOne(job: NewJob): Promise<Enqueued> {
    const [enqueued] = await this.enqueue(defineQueue(job.queue), [job], undefined)
    return enqueued as Enqueued
  }

  /** Items of a batch, of queues whose settings the store knows. */
  async addItems(request: ItemsRequest): Promise<ItemsAnswer> {
    const { store, sweeper, events } = this.#context
    const answer = await store.addItems(request)
    if (isRefused(answer)) return answer
    const { enqueued } = answer
    const taken = request.jobs.slice(request.jobs.length - enqueued.length)
    for (const { delayMs } of taken) if (delayMs > 0) sweeper.expect(delayMs)
    if (events.hasListener('job.enqueued')) {
      for (const [i, { queue }] of taken.entries()) this.#emitEnqueued(queue, enqueued.slice(i, i + 1))
    }
    return answer
  }

  /** Whether the enqueue must complete without awaiting: the caller may commit before it awaits the answer. */
  takesAtOnce(tx: unknown): boolean {
    const { capabilities, enqueueSync } = this.#context.store
    const isStores = tx !== undefined && capabilities.callerTransaction && enqueueSync !== undefined
    return isStores && connectionLater(tx) === null
  }

  /** Stores the settings of this definition, once. */
  define({ settings }: AnyDefinition): Promise<void> | undefined {
    if (settings === null) return undefined
    const known = this.#known.get(settings)
    if (known) return known.stored
    const text = settingsText(settings)
    const defined = this.#defined.get(text) ?? this.#store(settings)
    this.#defined.set(text, defined)
    const [oldest] = this.#defined.size > definedMax ? this.#defined.keys() : []
    if (oldest !== undefined) this.#defined.delete(oldest)
    this.#known.set(settings, defined)
    const { stored } = defined
    stored.then(
      () => {
        defined.isStored = true
      },
      () => {
        this.#defined.delete(text)
        this.#known.delete(settings)
      },
    )
    return stored
  }

  #store(settings: QueueSettings): Defined {
    return { stored: this.#storeAndEmit(settings), isStored: false }
  }

  async #storeAndEmit(settings: QueueSettings): Promise<void> {
    const { store, events, definitions } = this.#context
    const [defined] = await store.define([settings])
    definitions.forget(settings.name)
    if (defined === undefined || defined.versionBefore === defined.version || defined.versionBefore === 0) return
    const { queue, versionBefore: from, version: to, changes } = defined
    events.emit('queue.redefined', { queue, from, to, changes })
  }

  /** Whether this process has stored it outside of callers' transactions. */
  #isStored(settings: QueueSettings): boolean {
    const defined = this.#known.get(settings) ?? this.#defined.get(settingsText(settings))
    return defined?.isStored === true
  }

  /** Null: it is stored. Otherwise it is being stored, over a connection that may have to wait for callers' transactions. */
  #unstored(definition: AnyDefinition): UnstoredDefinition | null {
    const { settings } = definition
    const stored = this.define(definition)
    if (settings === null || stored === undefined || this.#isStored(settings)) return null
    return { settings, stored }
  }

  #enqueueIn(tx: unknown, request: EnqueueRequest, definition: AnyDefinition): EnqueueAnswer | Promise<EnqueueAnswer> {
    const { settings } = definition
    const isSync = this.#context.store.enqueueSync !== undefined
    if (!isSync && typeof (tx as { query?: unknown } | null)?.query !== 'function') {
      throw new HoldfastError(
        'INVALID_OPTION',
        `tx is your open transaction: anything with query(text, values).${adapterHint(tx)}`,
        { option: 'tx' },
      )
    }
    if (request.jobs.some(({ dedup }) => dedup?.replace)) {
      throw new HoldfastError(
        'UNSUPPORTED',
        'dedup.replace cannot be part of your own transaction: it would keep the queue from being claimed until you commit. Leave out tx or replace.',
        { option: 'dedup.replace' },
      )
    }
    const store = this.#context.store as Required<Store>
    if (!isSync) return store.enqueueIn(tx, request, this.#unstored(definition))
    const enqueueOn = (connection: unknown) =>
      store.enqueueSync(connection, request, settings && (this.#isStored(settings) ? null : settings))
    return connectionLater(tx)?.().then(enqueueOn) ?? enqueueOn(connectionOf(tx))
  }

  /** Claims that wait for these jobs are sent right after the enqueue, before its answer. */
  async #flush(requests: readonly EnqueueRequest[]): Promise<(EnqueueAnswer | Promise<EnqueueAnswer>)[]> {
    const { store, waiters } = this.#context
    const answered = store.enqueue(requests)
    if (waiters.size === 0 || !store.claimsFollowEnqueues) return answered
    const due = new Map<string, number>()
    for (const { jobs } of requests) {
      for (const { queue, delayMs, runAt } of jobs)
        if (delayMs === 0 && runAt === null) due.set(queue, (due.get(queue) ?? 0) + 1)
    }
    const early = [...due].map(([queue, count]) => [queue, waiters.wakeEarly(queue, count)] as const)
    try {
      return await answered
    } finally {
      for (const [queue, woken] of early) waiters.forgetEarly(queue, woken)
    }
  }

  /** Not for jobs of a caller's transaction: it may be rolled back. */
  #emitEnqueued(queue: string, enqueued: readonly Enqueued[]): void {
    for (const { id, status } of enqueued) this.#context.events.emit('job.enqueued', { id, queue, status })
  }
}
