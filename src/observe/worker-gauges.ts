// How many jobs each worker of this process runs, and how many it may run. Runs are kept by name. So a second end of the same
// run, or an end without a start, does not make the count wrong for good.

import type { JobFacts } from '../events.ts'
import type { Bounded } from './bounded.ts'
import type { Instruments } from './instruments.ts'

export class WorkerGauges {
  readonly #instruments: Instruments
  readonly #names: Bounded
  readonly #runs = new Map<string, Set<string>>()

  constructor(instruments: Instruments, names: Bounded) {
    this.#instruments = instruments
    this.#names = names
  }

  started(worker: string, concurrency: number): void {
    if (!this.#names.has(worker)) return
    this.#runs.set(worker, new Set())
    this.#instruments.running.set({ worker }, 0)
    this.#instruments.capacity.set({ worker }, concurrency)
  }

  /** A stopped worker has no gauges, and its name no longer counts towards the bound. */
  stopped(worker: string): void {
    if (!this.#runs.delete(worker)) return
    this.#names.forget(worker)
    this.#instruments.running.remove({ worker })
    this.#instruments.capacity.remove({ worker })
  }

  runStarted({ worker, id, attempt }: JobFacts): void {
    this.#change(worker, (runs) => runs.add(`${id} ${attempt}`))
  }

  runEnded({ worker, id, attempt }: JobFacts): void {
    this.#change(worker, (runs) => runs.delete(`${id} ${attempt}`))
  }

  #change(worker: string, change: (runs: Set<string>) => void): void {
    const runs = this.#runs.get(worker)
    if (!runs) return
    change(runs)
    this.#instruments.running.set({ worker }, runs.size)
  }
}
