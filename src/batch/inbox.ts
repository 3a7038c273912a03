// The inbox. A handler that returns `job.offer(value, …)` snoozes its job and stores the value in the key-value store until the
// snooze ends. A consumer then accepts or rejects the offer.
//
// - To accept is one transaction of the store: the job becomes done and the entry is deleted, if both are unchanged since they
//   were read.
// - If two consumers accept the same offer, the first wins and the second gets INVALID_STATE. So does an accept after the offer
//   has expired.
// - If no consumer accepts the offer before it expires, the job runs again.

import { HoldfastError, isHoldfastError, isRefused, toError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { encodeJson, resultRule, wakeRule } from '../job/codec.ts'
import { inboxesPrefix, inboxKey, inboxOf, inboxPrefix, type Offered, readOffered, taken } from '../job/inbox.ts'
import { checkInboxName, checkInteger, checkOptions, checkText } from '../job/names.ts'
import { writeEntry } from '../kv/entries.ts'
import { type AnnotationOptions, toAnnotations } from '../lease/annotations.ts'
import { type Define, type Effects, prepareEffects } from '../queue/effects.ts'
import type { AcceptRequest, Enqueued, KvEntry, Store } from '../store/store.ts'

/** The part of the client that an inbox needs. */
export interface InboxContext {
  readonly store: Store
  readonly define: Define
  run<T>(action: () => Promise<T>): Promise<T>
  look<T>(action: () => Promise<T>): Promise<T>
}

export interface AcceptOptions extends AnnotationOptions {
  /** What is written in the same transaction. */
  readonly effects?: Effects
}

export interface InboxPageFilter {
  readonly limit?: number
  /** `next` of the page before. */
  readonly after?: string
}

const pagePickups = 100
/** How long the entry of a rejected offer is kept at most. */
const givenBackMs = 1_000

export class Inbox<Value = unknown> {
  readonly name: string
  readonly #context: InboxContext

  constructor(context: InboxContext, name: string) {
    this.#context = context
    this.name = name
  }

  /** The current offers, by the ids of the jobs. Offers that are made during the iteration may be among them. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Pickup<Value>, void> {
    let after: string | undefined
    do {
      const page = await this.page({ limit: pagePickups, ...(after !== undefined && { after }) })
      yield* page.pickups
      after = page.next ?? undefined
    } while (after !== undefined)
  }

  async page(
    filter: InboxPageFilter = {},
  ): Promise<{ readonly pickups: readonly Pickup<Value>[]; readonly next: string | null }> {
    checkOptions(filter, 'the filter', ['limit', 'after'])
    const query = {
      prefix: inboxPrefix(this.name),
      limit: checkInteger(filter.limit ?? pagePickups, 'limit', 1, bounds.pageMax),
      after: filter.after === undefined ? null : checkText(filter.after, 'after', bounds.keyBytes),
    }
    const { entries, next } = await this.#context.look(() => this.#context.store.kvScan(query))
    return { pickups: entries.flatMap((entry) => this.#toPickup(entry)), next }
  }

  /** The offer of this job; null if there is none. */
  async get(id: string): Promise<Pickup<Value> | null> {
    const key = inboxKey(this.name, id)
    const entry = await this.#context.look(() => this.#context.store.kvGet(key))
    return entry === null ? null : (this.#toPickup({ ...entry, key })[0] ?? null)
  }

  #toPickup(entry: KvEntry & { readonly key: string }): [Pickup<Value>] | [] {
    const offered = readOffered(this.name, entry.key, entry.value)
    return offered === null ? [] : [new Pickup<Value>(this.#context, offered, entry)]
  }
}

/**
 * A page of names of inboxes that have offers, by their keys. One read finds the first key of the next inbox, however many offers
 * the inboxes have: it continues after every key that the inbox before can have, because ids of jobs sort before `~`.
 */
export async function listInboxes(
  { store, look }: InboxContext,
  filter: InboxPageFilter,
): Promise<{ readonly inboxes: readonly string[]; readonly next: string | null }> {
  checkOptions(filter, 'the filter', ['limit', 'after'])
  const limit = checkInteger(filter.limit ?? pagePickups, 'limit', 1, bounds.pageMax)
  const inboxes: string[] = []
  let last = filter.after === undefined ? null : checkInboxName(filter.after)
  let after = last && afterOffersOf(last)
  for (;;) {
    const query = { prefix: inboxesPrefix, limit: 1, after }
    const { entries } = await look(() => store.kvScan(query))
    const key = entries[0]?.key
    if (key === undefined) return { inboxes, next: null }
    const name = inboxOf(key)
    if (name !== null && inboxes.length === limit) return { inboxes, next: last }
    if (name !== null) inboxes.push(name)
    last = name ?? last
    after = name === null ? key : afterOffersOf(name) // an entry of the application may only begin like an offer
  }
}

function afterOffersOf(inbox: string): string {
  return `${inboxPrefix(inbox)}~`
}

/** The offer of one job, to be accepted or rejected. */
export class Pickup<Value = unknown> {
  /** The id of the job. */
  readonly id: string
  readonly queue: string
  readonly batch: string | null
  readonly attempt: number
  readonly value: Value
  /** When the offer expires and the job runs again. */
  readonly expiresAt: Date | null
  readonly #context: InboxContext
  readonly #key: string
  readonly #version: number

  constructor(
    context: InboxContext,
    { id, queue, batch, attempt, value }: Offered & { readonly id: string },
    { key, version, expiresAt }: KvEntry & { readonly key: string },
  ) {
    this.#context = context
    this.#key = key
    this.#version = version
    this.id = id
    this.queue = queue
    this.batch = batch
    this.attempt = attempt
    this.value = value as Value
    this.expiresAt = expiresAt === null ? null : new Date(expiresAt)
  }

  /** Makes the job done, with this result. INVALID_STATE: another consumer was first, or the offer has expired. */
  accept(result?: unknown, options: AcceptOptions = {}): Promise<{ readonly enqueued: readonly Enqueued[] }> {
    return this.#context.run(async () => {
      checkOptions(options, 'accept options', ['outcome', 'warning', 'costs', 'effects'])
      const { effects, ...annotations } = options
      const { store, define } = this.#context
      const request: AcceptRequest = {
        ...{ id: this.id, key: this.#key, version: this.#version },
        result: result === undefined ? null : encodeJson(result, resultRule),
        annotations: toAnnotations(annotations, 'accept options'),
        effects: await prepareEffects(effects, store.capabilities, define),
      }
      const answer = await store.accept(request)
      if (answer === 'stale') throw this.#gone('accept')
      if (isRefused(answer)) throw toError(answer)
      return answer
    })
  }

  /** Makes the job run again at once, with `{ rejected: reason }` in `job.wake`. INVALID_STATE as for `accept`. */
  reject(reason: string): Promise<void> {
    return this.#context.run(async () => {
      const rejected = checkText(reason, 'reason', bounds.progressMessageBytes)
      const data = encodeJson({ rejected }, wakeRule)
      if (!(await this.#takeAway())) throw this.#gone('reject')
      const [answer] = await this.#context.store.alter([{ as: 'wake', id: this.id, data }])
      if (isRefused(answer)) throw this.#gone('reject', toError(answer))
    })
  }

  /** Only one of the callers that read the same version succeeds. If it dies after that, the job runs when its snooze ends. */
  async #takeAway(): Promise<boolean> {
    const write = { key: this.#key, version: this.#version, value: taken, ttlMs: givenBackMs }
    const answer = await writeEntry(this.#context.store, { as: 'compareAndSet', ...write })
    if (isRefused(answer)) throw toError(answer)
    return answer.applied
  }

  #gone(verb: string, cause?: HoldfastError): HoldfastError {
    const message = `Cannot ${verb} the offer of job ${this.id}: another consumer was first, or the offer has expired.`
    const state = isHoldfastError(cause) ? cause.facts['state'] : undefined
    return new HoldfastError('INVALID_STATE', message, { id: this.id, state }, cause && { cause })
  }
}
