// A pool of threads for handlers that keep a core busy. A handler in a module runs here as it would in the main thread: the
// same job, signal, progress, effects. Each thread runs one job at a time and is used again. A thread that ends under its
// job, by `process.exit`, an error that no code caught or too little memory, fails that job alone and is replaced; one whose
// job ignores its signal is ended by force. thread.ts says when that does not work; such a thread is stuck.
//
// Bounds. At most `count` threads serve jobs. A stuck thread is replaced, but with those that are ending or stuck there are
// never more than twice `count` threads. So with s stuck threads min(count, 2 · count − s) jobs can run, and the worker claims
// no more than that (`most`). A job that comes while threads are ending waits for one of them. A job that comes when all are
// stuck is released at no cost.
//
// The clock of a job stands still from the call until its handler begins, so waiting for a thread, its start and the loading of
// its module cost nothing of the job's timeout. Loading has a bound of its own.

import { release } from '../fate.ts'
import { Job } from '../job.ts'
import { type EndReason, endReasonOf, Thread, type ThreadLeftover, type ThreadWork, unstarted } from './thread.ts'

export interface ThreadOptions {
  readonly count: number
  /** How much memory one thread may use; Node's own limit unless given. */
  readonly maxMemoryMb: number | null
}

/** How long a thread that is ended may live on before it is stuck. */
export const killMs = 1_000

const times = { killMs, beginMs: 2_000, loadMs: 60_000 }

export interface StuckThread {
  readonly thread: number
  readonly work: ThreadWork
  readonly reason: EndReason
  /** When it was told to end. */
  readonly since: number
}

export interface ThreadPoolListener {
  stuck(thread: StuckThread): void
  /** It has ended after all. */
  freed(thread: StuckThread): void
  leftover(thread: number, leftover: ThreadLeftover): void
  /** So many jobs can run from now on. */
  most(most: number): void
}

export class ThreadPool {
  readonly #module: URL
  readonly #options: ThreadOptions
  readonly #listener: ThreadPoolListener
  readonly #times: typeof times
  readonly #threads = new Set<Thread>()
  readonly #free: Thread[] = []
  readonly #waiting = new Set<(thread: Thread | null) => void>()
  readonly #running = new Map<Thread, Job>()
  readonly #stuck = new Map<Thread, StuckThread>()

  constructor(module: URL, options: ThreadOptions, listener: ThreadPoolListener, bounds: Partial<typeof times> = {}) {
    this.#module = module
    this.#options = options
    this.#listener = listener
    this.#times = { ...times, ...bounds }
  }

  get stuck(): readonly StuckThread[] {
    return [...this.#stuck.values()]
  }

  /** How many jobs can run at a time. */
  get most(): number {
    const { count } = this.#options
    return Math.max(0, Math.min(count, 2 * count - this.#stuck.size))
  }

  async run(job: Job): Promise<unknown> {
    Job.pauseClock(job)
    try {
      for (;;) {
        const thread = await this.#take(job.signal)
        if (!thread) return release('all threads of its queue are stuck')
        const end = await this.#runIn(thread, job)
        if (end !== unstarted) return end
      }
    } finally {
      Job.startClock(job)
    }
  }

  /** Ends the thread that runs this job, which was aborted. Middleware may have called the handler more than once. */
  kill(job: Job): void {
    for (const [thread, running] of this.#running) if (running === job) thread.end(endReasonOf(job.signal.reason))
  }

  /** Resolves when every thread has ended, or is stuck. */
  async close(): Promise<void> {
    const threads = [...this.#threads]
    for (const thread of threads) thread.end('shutdown')
    await Promise.all(threads.map(({ gone }) => gone))
  }

  async #runIn(thread: Thread, job: Job): Promise<unknown> {
    this.#running.set(thread, job)
    try {
      job.signal.throwIfAborted() // it may have been while it waited
      return await thread.run(job)
    } finally {
      this.#running.delete(thread)
      this.#giveBack(thread)
    }
  }

  /** Null: there is none, and none is to come. */
  async #take(signal: AbortSignal): Promise<Thread | null> {
    signal.throwIfAborted()
    const ready = this.#ready()
    if (ready || this.most === 0) return ready
    const { promise, resolve, reject } = Promise.withResolvers<Thread | null>()
    const abort = () => {
      if (this.#waiting.delete(resolve)) reject(signal.reason)
    }
    this.#waiting.add(resolve)
    signal.addEventListener('abort', abort)
    try {
      return await promise
    } finally {
      signal.removeEventListener('abort', abort)
    }
  }

  #ready(): Thread | null {
    const free = this.#free.pop()
    if (free) return free
    const { count } = this.#options
    const serving = [...this.#threads].filter(({ isEnding }) => !isEnding).length
    return serving < count && this.#threads.size < 2 * count ? this.#start() : null
  }

  #giveBack(thread: Thread): void {
    if (thread.isOpen) this.#free.push(thread)
    else thread.end('leftover')
    this.#serveWaiting()
  }

  #serveWaiting(): void {
    for (const resolve of this.#waiting) {
      const thread = this.#ready()
      if (!thread && this.most > 0) return
      this.#waiting.delete(resolve)
      resolve(thread)
    }
  }

  #start(): Thread {
    const { maxMemoryMb } = this.#options
    const settings = { module: this.#module, maxMemoryMb, ...this.#times }
    const thread = new Thread(settings, {
      over: (it) => this.#over(it),
      stuck: (it) => this.#isStuck(it),
      leftover: (it, leftover) => this.#leftover(it, leftover),
    })
    this.#threads.add(thread)
    return thread
  }

  #over(thread: Thread): void {
    const stuck = this.#stuck.get(thread)
    this.#threads.delete(thread)
    this.#stuck.delete(thread)
    this.#forget(thread)
    this.#serveWaiting()
    if (!stuck) return
    this.#listener.most(this.most)
    this.#listener.freed(stuck)
  }

  #isStuck(thread: Thread): void {
    const { id, work, endReason, endedAt } = thread
    this.#forget(thread)
    if (!work) return // it was never given a job, so it has no module that could block it
    const stuck = { thread: id, work, reason: endReason, since: endedAt }
    this.#stuck.set(thread, stuck)
    this.#listener.most(this.most)
    this.#listener.stuck(stuck)
    this.#serveWaiting()
  }

  #leftover(thread: Thread, leftover: ThreadLeftover): void {
    this.#listener.leftover(thread.id, leftover)
    if (!this.#free.includes(thread)) return // it ends with its job
    this.#forget(thread)
    thread.end('leftover')
  }

  #forget(thread: Thread): void {
    const at = this.#free.indexOf(thread)
    if (at >= 0) this.#free.splice(at, 1)
  }
}
