// Settlements on their way to the store. They collect while a flush is in flight and go out as one; each run hears its own
// answer. While the store is away they are kept and sent again, under the same token, so that a flush that landed although
// its answer was lost is not taken for a lost lease. They are given up only when the worker was told to stop and its time is
// over; then the leases run out, and the jobs come back.

import { randomUUID } from 'node:crypto'
import type { Timers } from '../clock.ts'
import type { Events } from '../events.ts'
import type { SettleAnswer, SettleRequest } from '../store/store.ts'
import { settleWeight, weightMax } from '../weight.ts'
import type { Outage } from './outage.ts'
import { isOutage } from './outage.ts'
import type { Run } from './run.ts'

interface Kept {
  readonly run: Run
  readonly request: SettleRequest
}

export interface SettlementsDesk {
  readonly worker: string
  readonly events: Events
  readonly timers: Timers
  readonly outage: Outage
  settle(requests: readonly SettleRequest[], token: string): Promise<SettleAnswer[]>
}

export class Settlements {
  readonly #desk: SettlementsDesk
  readonly #over = new AbortController()
  #waiting: Kept[] = []
  #count = 0
  #flushing: Promise<void> | null = null

  constructor(desk: SettlementsDesk) {
    this.#desk = desk
  }

  /** How many were not answered yet. */
  get size(): number {
    return this.#count
  }

  add(run: Run, request: SettleRequest): void {
    this.#waiting.push({ run, request })
    this.#count += 1
    this.#flushing ??= this.#flushAll()
  }

  /** Resolves when everything was answered, or given up after `ms`. */
  async drain(ms: number): Promise<void> {
    const callOff = this.#desk.timers.after(ms, () => this.#over.abort())
    while (this.#flushing) await this.#flushing
    callOff()
  }

  async #flushAll(): Promise<void> {
    await nextTick() // what ends in the same moment goes together
    while (this.#waiting.length > 0) await this.#flush(this.#take())
    this.#flushing = null
  }

  async #flush(group: readonly Kept[]): Promise<void> {
    const requests = group.map(({ request }) => request)
    const token = randomUUID()
    const startedAt = this.#desk.timers.now()
    try {
      const answers = await this.#desk.outage.survive(() => this.#desk.settle(requests, token), this.#over.signal)
      this.#count -= group.length
      const durationMs = this.#desk.timers.now() - startedAt
      this.#desk.events.emit('settle.ended', { worker: this.#desk.worker, settled: group.length, durationMs })
      for (let i = 0; i < group.length; i++) group[i]?.run.answered(answers[i] as SettleAnswer)
    } catch (error) {
      if (!isOutage(error) && group.length > 1) {
        for (const kept of group) await this.#flush([kept]) // whatever it is, its neighbours are not to suffer
        return
      }
      this.#count -= group.length
      for (const { run } of group) run.gaveUp(error as Error)
    }
  }

  #take(): readonly Kept[] {
    let weight = 0
    let count = 0
    for (const { request } of this.#waiting) {
      weight += settleWeight(request)
      if (count > 0 && weight > weightMax) break
      count += 1
    }
    return this.#waiting.splice(0, count)
  }
}

function nextTick(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}
