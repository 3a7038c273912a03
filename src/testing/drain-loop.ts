// How a worker looks for work in a test: it claims in the order of claiming across all its queues, as many as may run at a
// time, and looks again only when a run was settled or jobs became ready. When nothing is ready and nothing runs it asks
// whether more can be made ready, and ends when not.

import type { ClaimedJob } from '../store/store.ts'
import type { ClaimLoopContext, WorkerLoop } from '../worker/claim-loop.ts'

export interface DrainLoopOptions {
  readonly concurrency: number
  /** The most runs there may be. */
  readonly runsMax: number
  onClaimed(jobs: readonly ClaimedJob[]): void
  /** Nothing is ready: is there something now? */
  moreReady(): Promise<boolean>
}

export class DrainLoop implements WorkerLoop {
  readonly lastClaimAt = null
  readonly #context: ClaimLoopContext
  readonly #halt: AbortSignal
  readonly #options: DrainLoopOptions
  #running = 0
  #runs = 0
  /** Something happened since the last look. */
  #hasNews = false
  #wake: (() => void) | null = null

  constructor(context: ClaimLoopContext, halt: AbortSignal, options: DrainLoopOptions) {
    this.#context = context
    this.#halt = halt
    this.#options = options
  }

  async run(): Promise<void> {
    const tell = () => this.#tell()
    const unsubscribe = this.#context.waiters.onWake(tell)
    this.#halt.addEventListener('abort', tell)
    try {
      while (!this.#halt.aborted && (await this.#step()));
    } finally {
      this.#halt.removeEventListener('abort', tell)
      unsubscribe()
    }
  }

  left(): void {}

  ended(): void {
    this.#running -= 1
    this.#tell()
  }

  returned(): void {}

  limited(): void {} // a job for which there is no thread waits in the pool

  /** False when nothing is left to do. */
  async #step(): Promise<boolean> {
    this.#hasNews = false
    const jobs = await this.#claim()
    if (jobs.length > 0) this.#start(jobs)
    else if (this.#hasNews) return true
    else if (this.#running > 0) await this.#news()
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

  #news(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve
    })
  }

  #tell(): void {
    this.#hasNews = true
    this.#wake?.()
    this.#wake = null
  }
}
