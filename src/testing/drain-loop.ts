// The claim loop of a worker in a test. It claims in the order of claiming across all its queues, as many jobs as may run at a
// time. It claims again only when a run was settled or jobs became ready. When nothing is ready and nothing runs, it calls
// `moreReady`, and ends if that returns false.

import type { ClaimedJob } from '../store/store.ts'
import type { ClaimLoopContext, WorkerLoop } from '../worker/claim-loop.ts'

export interface DrainLoopOptions {
  readonly concurrency: number
  /** The most runs in total. */
  readonly runsMax: number
  onClaimed(jobs: readonly ClaimedJob[]): void
  /** Called when nothing is ready. Tries to make jobs ready, and returns whether there are some now. */
  moreReady(): Promise<boolean>
}

export class DrainLoop implements WorkerLoop {
  readonly lastClaimAt = null
  readonly #context: ClaimLoopContext
  readonly #halt: AbortSignal
  readonly #options: DrainLoopOptions
  #running = 0
  #runs = 0
  /** A run has ended or jobs became ready since the last claim. */
  #isNotified = false
  #wake: (() => void) | null = null

  constructor(context: ClaimLoopContext, halt: AbortSignal, options: DrainLoopOptions) {
    this.#context = context
    this.#halt = halt
    this.#options = options
  }

  async run(): Promise<void> {
    const notify = () => this.#notify()
    const unsubscribe = this.#context.waiters.onWake(notify)
    this.#halt.addEventListener('abort', notify)
    try {
      while (!this.#halt.aborted && (await this.#step()));
    } finally {
      this.#halt.removeEventListener('abort', notify)
      unsubscribe()
    }
  }

  left(): void {}

  ended(): void {
    this.#running -= 1
    this.#notify()
  }

  returned(): void {}

  limited(): void {} // a job for which there is no thread waits in the pool

  /** False when nothing is left to do. */
  async #step(): Promise<boolean> {
    this.#isNotified = false
    const jobs = await this.#claim()
    if (jobs.length > 0) this.#start(jobs)
    else if (this.#isNotified) return true
    else if (this.#running > 0) await this.#notified()
    else if (this.#runs >= this.#options.runsMax || this.#isShut()) return false
    else return this.#options.moreReady()
    return true
  }

  async #claim(): Promise<readonly ClaimedJob[]> {
    const { concurrency, runsMax } = this.#options
    const max = Math.min(concurrency - this.#running, runsMax - this.#runs)
    if (max <= 0 || this.#isShut()) return []
    const { queues, leaseMs, worker, outage } = this.#context
    return outage.survive(() => this.#context.claim({ queues, max, leaseMs, worker }), this.#halt)
  }

  #start(jobs: readonly ClaimedJob[]): void {
    this.#running += jobs.length
    this.#runs += jobs.length
    this.#options.onClaimed(jobs)
    this.#context.start(jobs)
  }

  #isShut(): boolean {
    return this.#context.gate?.isOpen === false
  }

  #notified(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve
    })
  }

  #notify(): void {
    this.#isNotified = true
    this.#wake?.()
    this.#wake = null
  }
}
