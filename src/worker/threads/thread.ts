// One thread of a pool, on the side of the worker. It runs one job at a time.
//
//   open ──▶ ending ──▶ over
//                └──still there after killMs──▶ stuck ──▶ over
//
// STUCK. A terminated thread ends when its JavaScript runs again. A thread that is blocked in native code (`execSync`, a query
// of a synchronous database driver, a file system that does not answer) lives until that call returns. Until then it is stuck:
// the worker abandons its job, and ignores every message from the thread.
//
// START. A start has three moments. The worker sends it; the handler begins; the worker receives the message that it began. Until
// the handler begins, the start can be withdrawn (see `permit` in messages.ts), and then the handler never begins. That happens
// when the job is aborted, and when the thread does not read the start because code of an earlier job keeps it busy.
//
// LOADING. A thread loads its module once, when it starts, whether a job was sent or not. If the module does not load (it throws,
// has no handler, ends the thread, or takes longer than loadMs), the thread is ended and its listener is called. A job that was
// sent meanwhile has never begun: it is released at no cost.

import { existsSync } from 'node:fs'
import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads'
import { HoldfastError, isHoldfastError } from '../../errors.ts'
import { causeChain } from '../../job/error.ts'
import type { JobError } from '../../job/record.ts'
import { permanentWith } from '../../lease/permanent.ts'
import { RetryLater } from '../../lease/retry-later.ts'
import { textOfBundled, textOfFile } from '../../runtime/thread-program.ts'
import { adopt, release } from '../fate.ts'
import { Job } from '../job.ts'
import { effectsOf } from '../staged-effects.ts'
import { bundled } from './bundled.ts'
import {
  type FormerJob,
  type FromThread,
  jobNamedIn,
  type Leftover,
  type Loading,
  type PreparedInThread,
  type Returned,
  readFromThread,
  type SentError,
  type ThreadData,
  type Threw,
  type ToThread,
} from './messages.ts'
import { ThreadCrashed } from './thread-crashed.ts'

export interface ThreadSettings {
  readonly module: URL
  /** How much memory one thread may use; Node's own limit unless given. */
  readonly maxMemoryMb: number | null
  /** How long a thread that is ended may live on before it is stuck. */
  readonly killMs: number
  /** How long a thread that has run a job may take to begin another. */
  readonly beginMs: number
  /** How long a new thread may take to load its module. */
  readonly loadMs: number
}

export interface ThreadListener {
  over(thread: Thread): void
  stuck(thread: Thread): void
  leftover(thread: Thread, leftover: ThreadLeftover): void
  loaded(thread: Thread): void
  /** Its module does not load; the thread is ended. */
  unloadable(thread: Thread, error: HoldfastError): void
}

/** Code that an earlier job left running in a thread threw an error, or ended the thread. */
export interface ThreadLeftover {
  readonly kind: 'uncaught' | 'exit'
  /** The job that it came from; null if that is not known. */
  readonly of: FormerJob | null
  /** The job that ran meanwhile. */
  readonly current: string | null
  readonly error: JobError
}

/** Why a thread is ended. */
export type EndReason = 'timeout' | 'cancelled' | 'lost' | 'shutdown' | 'leftover' | 'load'

/** What a thread runs, or ran last. */
export interface ThreadWork {
  readonly id: string
  readonly queue: string
  readonly attempt: number
  readonly maxAttempts: number
  /** When its handler began, or the start was sent if it has not begun. */
  readonly since: number
}

/** The job never began here, and may be run elsewhere. */
export const unstarted = Symbol('unstarted')

interface Current {
  readonly no: number
  readonly job: Job
  readonly resolve: (value: unknown) => void
  readonly reject: (error: unknown) => void
}

/** The numbers of jobs start again after this one, so that they fit into 32 bits. */
const noMax = 2 ** 30

export class Thread {
  /** Node's number of the thread. */
  readonly id: number
  /** Resolves when it has ended, or is stuck. */
  readonly gone: Promise<void>
  readonly #settings: ThreadSettings
  readonly #listener: ThreadListener
  readonly #worker: Worker
  readonly #port: MessagePort
  readonly #permit = new Int32Array(new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT))
  readonly #isGone: () => void
  #lastNo = 0
  #current: Current | null = null
  #work: ThreadWork | null = null
  #isLoaded = false
  #loadTimer: NodeJS.Timeout
  /** Set while the thread has loaded its module and was sent a job whose handler has not begun. */
  #startTimer: NodeJS.Timeout | undefined
  /** Code of an earlier job has thrown: the thread runs its current job to the end, and no other. */
  #isSpent = false
  #state: 'open' | 'ending' | 'stuck' | 'over' = 'open'
  #endReason: EndReason = 'shutdown'
  #endedAt = 0
  #killTimer: NodeJS.Timeout | undefined
  #why: Error | null = null
  #exitedBy: FormerJob | null = null

  constructor(settings: ThreadSettings, listener: ThreadListener) {
    const { module, maxMemoryMb, loadMs } = settings
    this.#settings = settings
    this.#listener = listener
    const { port1, port2 } = new MessageChannel()
    const workerData: ThreadData = { module: module.href, port: port2, permit: this.#permit }
    this.#worker = new Worker(programText(), {
      eval: true,
      workerData,
      transferList: [port2],
      name: 'holdfast-handler',
      ...(maxMemoryMb !== null && { resourceLimits: { maxOldGenerationSizeMb: maxMemoryMb } }),
    })
    this.id = this.#worker.threadId
    this.#port = port1
    const { promise, resolve } = Promise.withResolvers<void>()
    this.gone = promise
    this.#isGone = resolve
    port1.on('message', (message: unknown) => this.#receive(message))
    port1.on('messageerror', (error) => this.#unreadable(error))
    port1.unref()
    const tooLong = () => this.#doesNotLoad(new Error(`it took longer than ${loadMs} ms.`))
    this.#loadTimer = setTimeout(tooLong, Math.min(loadMs, timerMaxMs)).unref()
    this.#worker.unref() // a running job keeps the process alive, an idle thread does not
    this.#worker.on('error', (error: unknown) => {
      this.#why ??= error instanceof Error ? error : new Error(String(error))
    })
    this.#worker.on('exit', (code) => this.#exited(code))
  }

  /** It may be given another job. */
  get isOpen(): boolean {
    return this.#state === 'open' && !this.#isSpent
  }

  /** It was terminated, whether it has ended yet or not. */
  get isEnding(): boolean {
    return this.#state !== 'open'
  }

  get work(): ThreadWork | null {
    return this.#work
  }

  get endReason(): EndReason {
    return this.#endReason
  }

  /** When it was terminated. */
  get endedAt(): number {
    return this.#endedAt
  }

  /** What the handler returned or threw; or `unstarted`. */
  run(job: Job): Promise<unknown> {
    const { promise, resolve, reject } = Promise.withResolvers<unknown>()
    const no = (this.#lastNo % noMax) + 1
    this.#lastNo = no
    this.#current = { no, job, resolve, reject }
    if (this.#isLoaded) this.#startBy(no)
    this.#work = workOf(job)
    Atomics.store(this.#permit, 0, no)
    this.#worker.ref()
    const { signal } = job
    const abort = () => this.#abort(no, signal.reason)
    signal.addEventListener('abort', abort, { once: true })
    try {
      const claimed = Job.claimedOf(job)
      this.#send({ type: 'start', job: no, claimed, timeoutMs: job.timeoutMs, payload: job.payload })
    } catch (error) {
      const message = `The payload of a job for a thread must be plain data: ${(error as Error).message}`
      this.#finish()?.reject(new HoldfastError('INVALID_PAYLOAD', message, { queue: job.queue }, { cause: error }))
    }
    return promise.finally(() => signal.removeEventListener('abort', abort))
  }

  /** Ends the thread by force. */
  end(reason: EndReason): void {
    if (this.#state !== 'open') return
    this.#state = 'ending'
    this.#endReason = reason
    this.#endedAt = Date.now()
    // If the event loop was busy meanwhile, `setImmediate` lets it handle the exit first.
    this.#killTimer = setTimeout(() => setImmediate(() => this.#doesNotEnd()), this.#settings.killMs)
    this.#worker.terminate() // never rejects; the `exit` event follows
  }

  // Messages from the thread.

  #receive(received: unknown): void {
    const message = readFromThread(received)
    if (!message) {
      if (this.#current && jobNamedIn(received) === this.#current.no)
        this.#unreadable(new Error('it has another shape'))
      return
    }
    if (message.type === 'leftover') this.#leftover(message)
    else if (message.type === 'loaded') this.#loaded()
    else if (message.type === 'unloadable') this.#doesNotLoad(toThrown(message.error))
    else if (this.#current?.no === message.job) this.#handle(this.#current, message)
  }

  #handle({ no, job }: Current, message: Exclude<FromThread, Leftover | Loading>): void {
    switch (message.type) {
      case 'began':
        clearTimeout(this.#startTimer)
        this.#work = workOf(job)
        Job.startClock(job)
        break
      case 'progress':
        job.progress(message.progress, message.message ?? undefined).catch(() => undefined) // checked in the thread
        break
      case 'log':
        job.log(message.message, message.facts)
        break
      case 'delivered':
        Job.delivered(job, message.facts)
        break
      case 'extend':
        this.#answer(no, message.call, job.extend(message.ms))
        break
      case 'checkpoint':
        this.#answer(no, message.call, Job.checkpoint(job, message.effects))
        break
      case 'crashed':
        this.#why = toThrown(message.error)
        break
      case 'returned':
      case 'threw':
        this.#handlerEnded(message)
        break
    }
  }

  #answer(no: number, call: number, answer: Promise<void>): void {
    answer.then(
      () => this.#send({ type: 'answered', job: no, call, error: null }),
      (error) => this.#send({ type: 'answered', job: no, call, error: toSent(error) }),
    )
  }

  /** An error here fails this job alone. */
  #handlerEnded(message: Returned | Threw): void {
    const current = this.#finish()
    if (!current) return
    try {
      for (const [name, amount] of Object.entries(message.costs ?? {})) current.job.cost(name, amount)
      adoptIfDead(current.job, message.ifDead)
      if (message.type === 'threw') current.reject(toThrown(message.error))
      else {
        if (message.effects) effectsOf.adopt(current.job.effects, message.effects)
        current.resolve(message.isFate ? adopt(message.returned as never) : message.returned)
      }
    } catch (error) {
      current.reject(error)
    }
  }

  /** A message could not be read. It may have been the end of the job, so no other end may come: the job has failed. */
  #unreadable(error: unknown): void {
    const message = `A handler in a thread returns and logs plain data: ${String((error as Error)?.message ?? error)}`
    this.#finish()?.reject(new HoldfastError('INVALID_PAYLOAD', message, {}, { cause: error }))
    this.#isSpent = true
  }

  #leftover({ job, kind, of, error }: Leftover): void {
    this.#isSpent = true
    const current = this.#current?.no === job ? this.#current : null
    if (kind === 'exit') this.#exitedBy = of
    this.#listener.leftover(this, { kind, of, current: current?.job.id ?? null, error: toJobError(error) })
  }

  // How a job ends.

  /** The job was aborted. If its handler has begun, its signal aborts; otherwise it never begins. */
  #abort(no: number, reason: unknown): void {
    if (this.#current?.no !== no) return
    if (!this.#withdraw(no)) {
      this.#send({ type: 'abort', job: no, error: toSent(reason) })
      return
    }
    const current = this.#finish()
    this.end(endReasonOf(reason))
    current?.reject(reason)
  }

  #startBy(no: number): void {
    this.#startTimer = setTimeout(() => this.#doesNotBegin(no), this.#settings.beginMs)
  }

  #doesNotBegin(no: number): void {
    if (this.#current?.no !== no || !this.#withdraw(no)) return
    const current = this.#finish()
    this.end('leftover')
    current?.resolve(unstarted)
  }

  #loaded(): void {
    if (this.#state !== 'open') return
    clearTimeout(this.#loadTimer)
    this.#isLoaded = true
    if (this.#current) this.#startBy(this.#current.no)
    this.#listener.loaded(this)
  }

  /** Does nothing if the thread was ended for another reason while it loaded: that says nothing about its module. */
  #doesNotLoad(cause: Error): void {
    if (this.#state !== 'open' || this.#isLoaded) return
    if (this.#current && !this.#withdraw(this.#current.no)) return // the handler began just now, so the module has loaded
    const { module } = this.#settings
    clearTimeout(this.#loadTimer)
    const current = this.#finish()
    this.end('load')
    this.#listener.unloadable(this, unloadable(module, cause))
    current?.resolve(release(`the handler module ${module.href} does not load`))
  }

  #doesNotEnd(): void {
    if (this.#state !== 'ending') return
    this.#state = 'stuck'
    const current = this.#finish()
    this.#worker.unref() // `terminate` has referenced it again
    this.#isGone()
    this.#listener.stuck(this)
    const { signal } = current?.job ?? {}
    current?.reject(
      signal?.aborted ? signal.reason : new ThreadCrashed('The thread that ran this job cannot be ended.'),
    )
  }

  #exited(code: number): void {
    for (let read = receiveMessageOnPort(this.#port); read; read = receiveMessageOnPort(this.#port))
      this.#receive(read.message)
    this.#doesNotLoad(crashed(this.#why, code)) // does nothing if the module has loaded or the thread was ended
    clearTimeout(this.#killTimer)
    clearTimeout(this.#loadTimer)
    const no = this.#current?.no
    const hasBegun = no === undefined || !this.#withdraw(no)
    const current = this.#finish()
    this.#port.close()
    this.#state = 'over'
    this.#isGone()
    this.#listener.over(this)
    if (!hasBegun) current?.resolve(unstarted)
    else if (this.#exitedBy) current?.resolve(release('an earlier job of its thread called process.exit'))
    else current?.reject(crashed(this.#why, code))
  }

  /** Withdraws the start. False: the handler has begun. */
  #withdraw(no: number): boolean {
    return Atomics.compareExchange(this.#permit, 0, no, 0) === no
  }

  #finish(): Current | null {
    const current = this.#current
    this.#current = null
    if (!current) return null
    clearTimeout(this.#startTimer)
    this.#worker.unref()
    return current
  }

  #send(message: ToThread): void {
    this.#port.postMessage(message)
  }
}

function programText(): string {
  const file = { from: import.meta.url, module: 'worker/threads/thread', program: 'thread-main' }
  return textOfFile(file) ?? textOfBundled(bundled)
}

/** The longest that a timer of Node waits. */
const timerMaxMs = 2 ** 31 - 1

function workOf(job: Job): ThreadWork {
  const { id, queue, attempt, maxAttempts } = job
  return { id, queue, attempt, maxAttempts, since: Date.now() }
}

/** Why a job was aborted. */
export function endReasonOf(error: unknown): EndReason {
  const reasons = {
    JOB_TIMEOUT: 'timeout',
    JOB_CANCELLED: 'cancelled',
    LEASE_LOST: 'lost',
    CLOSED: 'shutdown',
  } as const
  return isHoldfastError(error) && Object.hasOwn(reasons, error.code)
    ? reasons[error.code as keyof typeof reasons]
    : 'cancelled'
}

function crashed(why: Error | null, code: number): ThreadCrashed {
  const how = why ? `: ${why.message}` : ` with code ${code}`
  return new ThreadCrashed(`The thread that ran this job ended${how}.`, { cause: why })
}

/** Why the module cannot load now, if its file is not there. */
export function missing(module: URL): HoldfastError | null {
  return isMissing(module) ? unloadable(module, new Error('there is no such file.')) : null
}

function isMissing({ href, protocol }: URL): boolean {
  return protocol === 'file:' && !existsSync(new URL(href))
}

function unloadable(module: URL, cause: Error): HoldfastError {
  const { href } = module
  const advice = isMissing(module)
    ? ' Check its URL. A bundler does not follow it: build the module as an entry point of its own, and give the URL of what was built.'
    : ''
  const message = `The handler module ${href} does not load: ${cause.message}${advice}`
  return new HoldfastError('INVALID_OPTION', message, { option: 'handler', module: href }, { cause })
}

function toSent(error: unknown): SentError {
  const { name, message, stack, code } = error as Error & { readonly code?: string }
  return { name: String(name), message: String(message), stack, code }
}

function toJobError({ name, message, stack, code, causes }: SentError): JobError {
  const optional = { ...(code !== undefined && { code }), ...(causes !== undefined && { causes }) }
  return { name, message, ...(stack !== undefined && { stack }), ...optional }
}

/** The error as it was in its thread, as a `Permanent` or `RetryLater` if it was one. */
function adoptIfDead(job: Job, ifDead: PreparedInThread): void {
  if (ifDead === null) return
  if ('effects' in ifDead) effectsOf.adopt(job.ifDead, ifDead.effects)
  else effectsOf.adoptFailure(job.ifDead, toThrown(ifDead.error))
}

function toThrown(sent: SentError): Error {
  const { name, message, stack, code, causes = [], effects, reason, isPermanent, delayMs } = sent
  const plain = delayMs === undefined ? new Error(message) : new RetryLater(message, { delay: delayMs })
  const error = isPermanent ? permanentWith(message, effects ?? null) : plain
  Object.assign(error, { name, stack, ...(code !== undefined && { code }), ...(reason !== undefined && { reason }) })
  if (causes.length > 0) error.cause = causeChain(causes)
  return error
}
