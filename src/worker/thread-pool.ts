// A pool of threads for handlers that keep a core busy. A handler in a module runs here as it would in the main thread: the
// same job, signal, progress, effects. Each thread runs one job at a time and is used again. A thread that ends under its
// job, by `process.exit`, an error nobody caught or too little memory, fails that job alone and is replaced; one whose job
// ignores its signal is terminated.

import { Worker } from 'node:worker_threads'
import { HoldfastError } from '../errors.ts'
import { Permanent } from '../permanent.ts'
import { RetryLater } from '../retry-later.ts'
import { ThreadCrashed } from './crash.ts'
import { adopt } from './fate.ts'
import { Job } from './job.ts'
import type { FromHandler, HandlerEnd, SentError, ThreadData, ToHandler } from './thread-wire.ts'

export interface ThreadOptions {
  readonly count: number
  /** How much memory one thread may use; Node's own limit unless given. */
  readonly maxMemoryMb: number | null
}

export class ThreadPool {
  readonly #module: URL
  readonly #options: ThreadOptions
  readonly #threads = new Set<Thread>()
  readonly #free: Thread[] = []
  readonly #parked: ((thread: Thread) => void)[] = []
  readonly #running = new Map<Job, Thread>()

  constructor(module: URL, options: ThreadOptions) {
    this.#module = module
    this.#options = options
  }

  async run(job: Job): Promise<unknown> {
    const thread = await this.#take()
    this.#running.set(job, thread)
    try {
      return await thread.run(job)
    } finally {
      this.#running.delete(job)
      this.#giveBack(thread)
    }
  }

  /** Ends the thread that runs this job. */
  kill(job: Job): void {
    this.#running.get(job)?.terminate()
  }

  async close(): Promise<void> {
    await Promise.all([...this.#threads].map((thread) => thread.terminate()))
  }

  #take(): Thread | Promise<Thread> {
    const free = this.#free.pop()
    if (free) return free
    if (this.#threads.size < this.#options.count) return this.#start()
    return new Promise((resolve) => this.#parked.push(resolve))
  }

  #giveBack(thread: Thread): void {
    const next = thread.isOver ? null : thread
    const parked = this.#parked.shift()
    if (parked) parked(next ?? this.#start())
    else if (next) this.#free.push(next)
  }

  #start(): Thread {
    const thread = new Thread(this.#module, this.#options, () => {
      this.#threads.delete(thread)
      const at = this.#free.indexOf(thread)
      if (at >= 0) this.#free.splice(at, 1)
    })
    this.#threads.add(thread)
    return thread
  }
}

interface Current {
  readonly job: Job
  readonly resolve: (value: unknown) => void
  readonly reject: (error: unknown) => void
}

class Thread {
  readonly #worker: Worker
  #current: Current | null = null
  #why: Error | null = null
  isOver = false

  constructor(module: URL, { maxMemoryMb }: ThreadOptions, onOver: () => void) {
    const program = import.meta.url.endsWith('.ts') ? './thread-main.ts' : './thread-main.js'
    const workerData: ThreadData = { module: module.href }
    this.#worker = new Worker(new URL(program, import.meta.url), {
      workerData,
      name: 'holdfast-handler',
      ...(maxMemoryMb !== null && { resourceLimits: { maxOldGenerationSizeMb: maxMemoryMb } }),
    })
    this.#worker.unref() // a job that runs keeps the process alive, a thread that waits for one does not
    this.#worker.on('message', (message: FromHandler) => this.#receive(message))
    this.#worker.on('error', (error) => {
      this.#why = error
    })
    this.#worker.on('exit', (code) => {
      this.isOver = true
      onOver()
      const why = this.#why ? `: ${this.#why.message}` : ` with code ${code}`
      const error = new ThreadCrashed(`The thread that ran this job ended${why}.`, { cause: this.#why })
      this.#finish()?.reject(error)
    })
  }

  run(job: Job): Promise<unknown> {
    const { promise, resolve, reject } = Promise.withResolvers<unknown>()
    this.#current = { job, resolve, reject }
    this.#worker.ref()
    const { signal } = job
    const abort = () => this.#send({ abort: toSent(signal.reason) })
    signal.addEventListener('abort', abort, { once: true })
    try {
      this.#send({ start: { claimed: Job.claimedOf(job), timeoutMs: job.timeoutMs, payload: job.payload } })
    } catch (error) {
      const message = `The payload of a job for a thread must be plain data: ${(error as Error).message}`
      this.#finish()?.reject(new HoldfastError('INVALID_PAYLOAD', message, { queue: job.queue }, { cause: error }))
    }
    if (signal.aborted) abort()
    return promise.finally(() => signal.removeEventListener('abort', abort))
  }

  async terminate(): Promise<void> {
    await this.#worker.terminate()
  }

  #send(message: ToHandler): void {
    this.#worker.postMessage(message)
  }

  #receive(message: FromHandler): void {
    const job = this.#current?.job
    if (!job) return
    if ('progress' in message) job.progress(message.progress, message.message ?? undefined).catch(() => undefined)
    else if ('log' in message) job.log(message.log, message.facts)
    else if ('delivered' in message) Job.delivered(job, message.delivered)
    else if ('extend' in message)
      job.extend(message.extend).then(
        () => this.#send({ extended: message.no, error: null }),
        (error) => this.#send({ extended: message.no, error: toSent(error) }),
      )
    else this.#end(message)
  }

  #end(message: HandlerEnd): void {
    const current = this.#finish()
    if (!current) return
    if ('threw' in message) current.reject(toThrown(message.threw))
    else {
      if (message.effects) current.job.effects.adopt(message.effects)
      current.resolve(message.isFate ? adopt(message.returned as never) : message.returned)
    }
  }

  #finish(): Current | null {
    const current = this.#current
    this.#current = null
    this.#worker.unref()
    return current
  }
}

function toSent(error: unknown): SentError {
  const { name, message, stack, code } = error as Error & { readonly code?: string }
  return { name: String(name), message: String(message), stack, code }
}

/** The error as it was in its thread, of the class that matters here. */
function toThrown({ name, message, stack, code, effects, reason, isPermanent, delayMs }: SentError): Error {
  const plain = delayMs === undefined ? new Error(message) : new RetryLater(message, { delay: delayMs })
  const error = isPermanent ? new Permanent(message, { prepared: effects ?? null }) : plain
  Object.assign(error, { name, stack, ...(code !== undefined && { code }), ...(reason !== undefined && { reason }) })
  return error
}
