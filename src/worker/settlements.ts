// Sends settlements to the store, as `flushes.ts` describes.

import { settleWeight } from '../client/weight.ts'
import { HoldfastError } from '../errors.ts'
import type { Events } from '../events.ts'
import type { Settlement } from '../job/transition.ts'
import { orAborted } from '../runtime/aborted.ts'
import type { Timers } from '../runtime/clock.ts'
import type { SettleAnswer, SettleRequest } from '../store/store.ts'
import { type Answers, Flushes, type Pending } from './flushes.ts'
import type { Outage } from './outage.ts'
import type { Run } from './run.ts'

/**
 * A request, and the run that waits for its answer.
 *
 * It is a class and not an object literal, because V8 records for each literal how long its objects live. Most of these live
 * until the next flush, so V8 would allocate them in the old generation. There each would keep its run, its job and all their
 * texts until a full collection. That took a third of a worker's processor time: 4.3 against 2.9 µs a job.
 */
class PendingSettlement implements SettleRequest, Pending<SettleAnswer> {
  readonly run: Run
  readonly id: string
  readonly fence: string
  readonly settlement: Settlement
  readonly retryDelayMs: number

  constructor(run: Run, settlement: Settlement, retryDelayMs: number) {
    this.run = run
    this.id = run.claimed.id
    this.fence = run.claimed.fence
    this.settlement = settlement
    this.retryDelayMs = retryDelayMs
  }

  answered(answer: SettleAnswer): void {
    this.run.answered(answer)
  }

  gaveUp(error: Error): void {
    this.run.gaveUp(error)
  }
}

export interface SettlementsContext {
  readonly worker: string
  readonly events: Events
  readonly timers: Timers
  readonly outage: Outage
  settle(requests: readonly SettleRequest[], token: string): Promise<Answers<SettleAnswer>>
  /** These requests are about to be sent. */
  settling(requests: readonly SettleRequest[]): void
  /** These requests were answered. */
  settled(requests: readonly SettleRequest[]): void
}

export class Settlements {
  readonly #context: SettlementsContext
  readonly #over = new AbortController()
  readonly #flushes: Flushes<PendingSettlement, SettleAnswer>
  #callOff: (() => void) | null = null
  #overAt = Number.POSITIVE_INFINITY

  constructor(context: SettlementsContext) {
    const { worker, events, timers, outage } = context
    this.#context = context
    this.#flushes = new Flushes<PendingSettlement, SettleAnswer>({
      ...{ timers, outage, over: this.#over.signal, weigh: settleWeight, stopped: stoppedWaiting },
      send: (requests, token) => this.#send(requests, token),
      flushed: (settled, durationMs) => {
        if (events.hasListener('settle.ended')) events.emit('settle.ended', { worker, settled, durationMs })
      },
    })
  }

  /** How many are not answered yet. */
  get size(): number {
    return this.#flushes.size
  }

  add(run: Run, settlement: Settlement, retryDelayMs: number): void {
    this.#flushes.add(new PendingSettlement(run, settlement, retryDelayMs))
  }

  /** Aborts when settlements that were not answered are given up. */
  get over(): AbortSignal {
    return this.#over.signal
  }

  get isDraining(): boolean {
    return this.#callOff !== null
  }

  /**
   * Resolves when all settlements were answered, including those that are added until `complete` resolves. After `ms` the rest is
   * given up.
   */
  async drain(ms: number, complete: Promise<void>): Promise<void> {
    this.giveUpAfter(ms)
    await orAborted(complete, this.#over.signal)
    await this.#flushes.idle()
  }

  /** Another call with less time shortens that of the first. */
  giveUpAfter(ms: number): void {
    const { timers } = this.#context
    if (this.#over.signal.aborted || timers.now() + ms >= this.#overAt) return
    this.#callOff?.()
    this.#overAt = timers.now() + ms
    this.#callOff = timers.after(ms, () => this.#over.abort())
  }

  /** Nothing waits for this worker any more. */
  end(): void {
    this.#callOff?.()
  }

  async #send(requests: readonly SettleRequest[], token: string): Promise<Answers<SettleAnswer>> {
    const { settling, settle, settled } = this.#context
    settling(requests)
    const answers = await settle(requests, token)
    const late = requests.filter((request, i) => {
      const answer = answers[i]
      if (!(answer instanceof Promise)) return false
      const settledLater = () => settled([request])
      answer.then(settledLater, () => undefined) // `flushes.ts` handles its failure
      return true
    })
    settled(late.length === 0 ? requests : requests.filter((request) => !late.includes(request)))
    return answers
  }
}

function stoppedWaiting(): HoldfastError {
  return new HoldfastError(
    'CLOSED',
    'The worker stopped before the store had answered the settlement. The lease runs out, and the job is rescued.',
  )
}
