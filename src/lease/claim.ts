// Claims without a worker: sweep if a sweep is due, claim, wait to be woken, claim again.

import type { Waiters } from '../client/waiters.ts'
import { backoffMs } from '../job/backoff.ts'
import { jobError } from '../job/error.ts'
import type { Settlement } from '../job/transition.ts'
import { type AnyDefinition, defineQueue, isRetryable } from '../queue/definition.ts'
import { isUnreadable, readPayload, validate } from '../queue/prepare.ts'
import type { Definitions } from '../queue/stored-definitions.ts'
import type { Timers } from '../runtime/clock.ts'
import type { ClaimedJob, ClaimRequest } from '../store/store.ts'
import type { Sweeper } from '../sweep/sweeper.ts'
import { Lease, type LeaseContext } from './lease.ts'
import { isPermanent } from './permanent.ts'
import { delayAskedBy } from './retry-later.ts'

/** What this needs of the client. */
export interface ManualClaimsContext {
  readonly timers: Timers
  readonly waiters: Waiters
  readonly sweeper: Sweeper
  readonly leaseContext: LeaseContext
  readonly definitions: Definitions
  claim(request: ClaimRequest): Promise<ClaimedJob[]>
}

export interface Wanted {
  readonly request: Omit<ClaimRequest, 'leaseMs'>
  /** Null: the shortest lease of the queues. */
  readonly leaseMs: number | null
  /** Null: every queue there is. */
  readonly definitions: ReadonlyMap<string, AnyDefinition> | null
  readonly waitMs: number
  readonly signal: AbortSignal | undefined
}

/** The longest time between two claims of a waiter, even without a wake-up. */
const backstopMs = 1_000

export class ManualClaims {
  readonly #context: ManualClaimsContext

  constructor(context: ManualClaimsContext) {
    this.#context = context
  }

  async claim(wanted: Wanted): Promise<Lease[]> {
    const { request, definitions, waitMs, signal } = wanted
    const { timers, waiters, sweeper, leaseContext } = this.#context
    const deadline = timers.now() + waitMs
    let wokenFor: string | null = null
    while (!signal?.aborted) {
      const waiter = waiters.join(request.queues)
      try {
        await leaseContext.run(() => sweeper.ifDue())
        const claimed = await leaseContext.run(() => this.#claim(wanted))
        if (claimed.length > 0) {
          waiter.leave()
          // Woken for one queue but served by another: the wake-up goes to the next claim that waits for that queue.
          if (!claimed.some((job) => job.queue === wokenFor)) waiters.passOn(wokenFor)
          wokenFor = null
          // Woken during the claim: that wake-up was for other jobs than the ones it got.
          waiters.passOn(waiter.takeWakeUp())
          const leases = await this.#toLeases(claimed, definitions)
          if (leases.length > 0) return leases
          continue
        }
        if (waiter.woken) continue
        const left = deadline - timers.now()
        if (left <= 0) break
        await waiter.wait(Math.min(left, backstopMs, sweeper.dueInMs), signal)
      } catch (error) {
        waiters.passOn(waiter.takeWakeUp())
        throw error
      } finally {
        waiter.leave()
        wokenFor = waiter.wokenFor ?? wokenFor
      }
    }
    waiters.passOn(wokenFor)
    return []
  }

  /** For queues that are given by name only, the stored definition has the length of the lease. */
  async #claim({ request, leaseMs, definitions }: Wanted): Promise<ClaimedJob[]> {
    const { definitions: stored } = this.#context
    const unknown = byName(definitions)
    if (unknown === null || unknown.length > 0) await stored.refresh(unknown)
    const shortestMs = leaseMs ?? stored.shortestLeaseMs(definitions?.values() ?? null)
    const claimed = await this.#context.claim({ ...request, leaseMs: shortestMs })
    if (definitions === null) await stored.meet(claimed.map(({ queue }) => queue))
    return claimed
  }

  async #toLeases(claimed: readonly ClaimedJob[], definitions: Wanted['definitions']): Promise<Lease[]> {
    const { leaseContext, definitions: stored } = this.#context
    const leases: Lease[] = []
    const unread: Promise<unknown>[] = []
    for (const job of claimed) {
      let definition: AnyDefinition | null = null
      try {
        definition = stored.effective(definitions?.get(job.queue) ?? defineQueue(job.queue))
        const raw = readPayload(job)
        const payload = definition.payloadSchema
          ? await validate(definition.payloadSchema, raw, 'payload', job.queue)
          : raw
        leases.push(new Lease(leaseContext, definition, job, payload))
      } catch (error) {
        const settlement = this.#settlementOf(error, definition, job)
        unread.push(leaseContext.settle({ id: job.id, fence: job.fence, settlement, retryDelayMs: 0 }))
      }
    }
    await Promise.all(unread)
    return leases
  }

  /** Of a job whose payload was not read. No definition: its queue has a name that is none. */
  #settlementOf(error: unknown, definition: AnyDefinition | null, { attempt }: ClaimedJob): Settlement {
    if (definition === null || isUnreadable(error) || isPermanent(error) || !isRetryable(definition, error))
      return { as: 'dead', error: jobError(error), effects: null }
    const delayMs = delayAskedBy(error) ?? backoffMs(definition.backoff, attempt, this.#context.leaseContext.random())
    return { as: 'retry', error: jobError(error), delayMs, ending: 'failed' }
  }
}

/** Queues that are given by name only, without settings; null: all. */
export function byName(definitions: ReadonlyMap<string, AnyDefinition> | null): string[] | null {
  if (definitions === null) return null
  return [...definitions.values()].filter(({ settings }) => settings === null).map(({ name }) => name)
}
