// A pool of threads for handlers that keep a core busy. A handler in a module runs here as it would in the main thread, with the
// same job, signal, progress and effects. Each thread runs one job at a time and is used again.
//
// - A thread may end before its job does: by `process.exit`, by an error that no code caught, or by too little memory. That
//   fails this job alone, and the thread is replaced.
// - A thread whose job ignores its signal is ended by force. If that does not work, the thread is stuck (see thread.ts).
//
// BOUNDS. At most `count` threads serve jobs. A stuck thread is replaced, but with those that are ending or stuck there are
// never more than twice `count` threads. So with s stuck threads min(count, 2 · count − s) jobs can run, and the worker claims
// no more than that (`most`). A job that comes while threads are ending waits for one of them. A job that comes when all are
// stuck is released at no cost.
//
// TIMEOUTS. The timeout of a job is paused from the call until its handler begins. So the wait for a thread, its start and the
// loading of its module do not count against the timeout. Loading has a bound of its own.
//
// LOADING. `load` starts one thread without a job, to find out whether the module loads. Until it has, `most` is 0:
//
//   loading ──▶ loaded ──a new thread fails to load──▶ failing
//      └──fails──▶ failing ──after a pause, tried in a new thread──▶ loaded
//
// A file that is not there needs no thread to fail, so `load` reports it at once. Every other try needs a new thread, because a
// thread remembers a module that failed. The pauses double. While the pool is failing,
// jobs that run go on in their threads, and every other job is released at no cost.

import type { HoldfastError } from '../../errors.ts'
import { release } from '../fate.ts'
import { Job } from '../job.ts'
import {
  type EndReason,
  endReasonOf,
  missing,
  Thread,
  type ThreadLeftover,
  type ThreadWork,
  unstarted,
} from './thread.ts'

export interface ThreadOptions {
  readonly count: number
  /** How much memory one thread may use; Node's own limit unless given. */
  readonly maxMemoryMb: number | null
}

/** How long a thread that is ended may live on before it is stuck. */
export const killMs = 1_000

/** How long a module may take to load; the timeout of its queue if that is longer. */
export const loadMs = 60_000

const times = { killMs, beginMs: 2_000, loadMs, loadPauseMs: 500, loadPauseMaxMs: 30_000 }

export interface StuckThread {
  readonly thread: number
  readonly work: ThreadWork
  readonly reason: EndReason
  /** When it was terminated. */
  readonly since: number
}

export interface ThreadPoolListener {
  stuck(thread: StuckThread): void
  /** A stuck thread has ended. */
  freed(thread: StuckThread): void
  leftover(thread: number, leftover: ThreadLeftover): void
  /** At most this many jobs can run from now on. */
  most(most: number): void
  /** The module does not load. Called once, until it has loaded. */
  unloadable(error: HoldfastError): void
  /** The module has loaded, after it failed to. */
  loadable(failedMs: number): void
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
  /** Threads that are stuck in their module before they had a job. */
  readonly #stuckLoading = new Set<Thread>()
  /** The first load of the module, before any job, is under way. */
  #isLoading = false
  #isClosed = false
  #failing: { readonly error: HoldfastError; readonly since: number; readonly tries: number } | null = null
  #retry: NodeJS.Timeout | undefined

  constructor(module: URL, options: ThreadOptions, listener: ThreadPoolListener, bounds: Partial<typeof times> = {}) {
    this.#module = module
    this.#options = options
    this.#listener = listener
    this.#times = { ...times, ...bounds }
  }

  get stuck(): readonly StuckThread[] {
    return [...this.#stuck.values()]
  }

  /** The most jobs that can run at a time now. */
  get most(): number {
    if (this.#isLoading || this.#failing || this.#isClosed) return 0
    const { count } = this.#options
    return Math.max(0, Math.min(count, 2 * count - this.#stuck.size - this.#stuckLoading.size))
  }

  /** Why the module does not load; null while it is being loaded, and when it has loaded. */
  get loadError(): HoldfastError | null {
    return this.#failing?.error ?? null
  }

  /** The module is being loaded for the first time. */
  get isLoading(): boolean {
    return this.#isLoading
  }

  /** No job can run until the module has loaded. Then the listener gets `most`; if it does not load, `unloadable`. */
  load(): void {
    this.#isLoading = true
    this.#listener.most(this.most)
    this.#tryToLoad()
  }

  async run(job: Job): Promise<unknown> {
    Job.pauseClock(job)
    try {
      for (;;) {
        const thread = await this.#take(job.signal)
        if (!thread) return release(this.#whyNone())
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
    this.#isClosed = true
    clearTimeout(this.#retry)
    const threads = [...this.#threads]
    for (const thread of threads) thread.end('shutdown')
    await Promise.all(threads.map(({ gone }) => gone))
  }

  async #runIn(thread: Thread, job: Job): Promise<unknown> {
    this.#running.set(thread, job)
    try {
      job.signal.throwIfAborted() // it may have aborted while the job waited for the thread
      return await thread.run(job)
    } finally {
      this.#running.delete(thread)
      this.#giveBack(thread)
    }
  }

  /** Null: no thread is free, and none will be. */
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
    if (this.most === 0) return null
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
      loaded: (it) => this.#loaded(it),
      unloadable: (_, error) => this.#unloadable(error),
    })
    this.#threads.add(thread)
    return thread
  }

  #tryToLoad(): void {
    const mayStart = this.#threads.size < 2 * this.#options.count
    const error = missing(this.#module)
    if (error) this.#unloadable(error)
    else if (mayStart) this.#start()
    else this.#retryLater() // the others are ending, or are stuck in native code
  }

  #retryLater(): void {
    const { loadPauseMs, loadPauseMaxMs } = this.#times
    const pauseMs = Math.min(loadPauseMaxMs, loadPauseMs * 2 ** Math.min(this.#failing?.tries ?? 0, 20))
    clearTimeout(this.#retry)
    this.#retry = setTimeout(() => this.#tryToLoad(), pauseMs).unref()
  }

  #loaded(thread: Thread): void {
    if (!this.#running.has(thread)) {
      if (thread.isOpen) this.#free.push(thread)
      else thread.end('leftover')
    }
    const failing = this.#failing
    if (!this.#isLoading && !failing) return
    clearTimeout(this.#retry)
    this.#isLoading = false
    this.#failing = null
    this.#listener.most(this.most)
    if (failing) this.#listener.loadable(Date.now() - failing.since)
    this.#serveWaiting()
  }

  #unloadable(error: HoldfastError): void {
    if (this.#isClosed) return
    const failing = this.#failing
    this.#isLoading = false
    this.#failing = { error, since: failing?.since ?? Date.now(), tries: (failing?.tries ?? -1) + 1 }
    this.#retryLater()
    if (failing) return
    this.#listener.most(this.most)
    this.#listener.unloadable(error)
    this.#serveWaiting()
  }

  #whyNone(): string {
    if (this.#isClosed) return 'its worker stops'
    if (this.#failing) return 'its handler module does not load'
    return this.#isLoading ? 'its handler module is being loaded' : 'all threads of its queue are stuck'
  }

  #over(thread: Thread): void {
    const stuck = this.#stuck.get(thread)
    this.#threads.delete(thread)
    this.#stuck.delete(thread)
    this.#forget(thread)
    this.#serveWaiting()
    if (this.#stuckLoading.delete(thread)) this.#listener.most(this.most)
    if (!stuck) return
    this.#listener.most(this.most)
    this.#listener.freed(stuck)
  }

  #isStuck(thread: Thread): void {
    const { id, work, endReason, endedAt } = thread
    this.#forget(thread)
    if (!work) {
      this.#stuckLoading.add(thread)
      this.#listener.most(this.most)
      this.#serveWaiting()
      return
    }
    const stuck = { thread: id, work, reason: endReason, since: endedAt }
    this.#stuck.set(thread, stuck)
    this.#listener.most(this.most)
    this.#listener.stuck(stuck)
    this.#serveWaiting()
  }

  #leftover(thread: Thread, leftover: ThreadLeftover): void {
    this.#listener.leftover(thread.id, leftover)
    if (!this.#free.includes(thread)) return // it runs a job, and is ended after it
    this.#forget(thread)
    thread.end('leftover')
  }

  #forget(thread: Thread): void {
    const at = this.#free.indexOf(thread)
    if (at >= 0) this.#free.splice(at, 1)
  }
}
