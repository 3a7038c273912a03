// The port between the store and its engine. The engine runs in its own thread, so that the application's event loop never waits
// for the disk. It runs in the calling thread if there is no disk (`:memory:`) or time must not pass by itself (simulation).
//
// Measured on two cores (`npm run bench -- sqlite` runs both; own thread against calling thread, medians):
//
// - a producer and a consumer in groups of 1,000: 48k against 45k full cycles a second, the application's timers late by 8
//   against 33 ms (p99), 26 against 22 µs of processor time a job;
// - single enqueues by 32 callers: 27k against 41k a second, because each one crosses between the threads alone.
//
// The own thread is kept because it does not block the event loop.

import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { HoldfastError, type Refused, toError } from '../../../errors.ts'
import { orAborted } from '../../../runtime/aborted.ts'
import type { Clock } from '../../../runtime/clock.ts'
import { StopFlag } from '../../../runtime/stop-flag.ts'
import { textOfBundled, textOfFile } from '../../../runtime/thread-program.ts'
import type { DatabaseFile } from '../connection/database.ts'
import type { SyncDatabase } from '../connection/driver.ts'
import { type Answer, type Call, type CommitNotices, Engine, type Item, type VerbName } from '../engine.ts'
import { packItems, unpackAnswers } from './wire.ts'

export type OnCommitted = (notices: CommitNotices) => void

export interface Port {
  call<V extends VerbName>(verb: V, items: readonly Item<V>[]): Promise<Answer<V>[]>
  /**
   * No call waits much longer for other connections. When `over` aborts, none waits at all, and `close` does not wait for calls.
   */
  stopWaiting(over: AbortSignal): void
  close(): Promise<void>
}

/**
 * How long calls of a store that closes still wait for other connections. Other processes write for some milliseconds at a time,
 * and a call that was made before `close` must not fail because of that.
 */
const lastWaitMs = 1_000
/** How long a thread that was asked to end at once may take. A thread inside SQLite can neither answer nor be interrupted. */
const lastAnswerMs = 500

function stopSoon(stop: StopFlag, over: AbortSignal): void {
  setTimeout(() => stop.set(), lastWaitMs).unref()
  if (over.aborted) stop.set()
  else over.addEventListener('abort', () => stop.set(), { once: true })
}

interface Pending {
  readonly resolve: (answers: never) => void
  readonly reject: (error: unknown) => void
}

export class InThread implements Port {
  readonly #engine: Engine
  readonly #onCommitted: OnCommitted
  readonly #pending = new Map<number, Pending>()
  readonly #stop = new StopFlag()
  #calls: Call[] = []
  #no = 0

  constructor(file: DatabaseFile, clock: Clock, onCommitted: OnCommitted) {
    this.#engine = new Engine(file, clock, this.#stop)
    this.#onCommitted = onCommitted
  }

  get connection(): SyncDatabase {
    return this.#engine.db.driverConnection
  }

  call<V extends VerbName>(verb: V, items: readonly Item<V>[]): Promise<Answer<V>[]> {
    return new Promise((resolve, reject) => {
      const no = this.#no++
      this.#pending.set(no, { resolve, reject })
      this.#calls.push({ no, verb, items })
      if (this.#calls.length === 1) setImmediate(() => this.#run()) // collects the calls of one turn of the event loop
    })
  }

  stopWaiting(over: AbortSignal): void {
    stopSoon(this.#stop, over)
  }

  async close(): Promise<void> {
    this.#engine.close()
  }

  #run(): void {
    const calls = this.#calls
    this.#calls = []
    this.#engine.run(calls, (replies, notices) => {
      for (const { no, answers } of replies) {
        this.#pending.get(no)?.resolve(answers as never)
        this.#pending.delete(no)
      }
      this.#onCommitted(notices)
    })
  }
}

/** Messages to the thread and from it. */
export type ToThread = { readonly no: number; readonly verb: VerbName; readonly wire: unknown } | 'close'
export type FromThread =
  | { readonly opened: true }
  | { readonly failed: Refused }
  | { readonly replies: readonly { readonly no: number; readonly wire: unknown }[]; readonly notices: CommitNotices }

interface Sent extends Pending {
  readonly verb: VerbName
  readonly items: readonly unknown[]
}

export interface ThreadData {
  readonly file: DatabaseFile
  readonly clock: SharedArrayBuffer | null
  /** The memory of the flag that ends waits for other connections. */
  readonly stop: SharedArrayBuffer
}

/** The part of a worker thread that the port uses. */
export interface Thread extends NodeJS.EventEmitter {
  postMessage(message: ToThread): void
  ref(): void
  unref(): void
  terminate?(): unknown
}

export type StartThread = (data: ThreadData) => Thread | Promise<Thread>

/** Only a bundle loads the text of the program, 160 kB. */
export const startThread: StartThread = async (workerData) => {
  const file = textOfFile({ from: import.meta.url, module: 'store/sqlite/thread/port', program: 'main' })
  const text = file ?? textOfBundled((await import('./bundled.ts')).bundled)
  return new Worker(text, { eval: true, workerData, name: 'holdfast-sqlite' })
}

export class InOwnThread implements Port {
  readonly #worker: Thread
  readonly #onCommitted: OnCommitted
  readonly #stop: StopFlag
  readonly #pending = new Map<number, Sent>()
  #no = 0
  #isClosing = false
  #isOver: HoldfastError | null = null
  /** When it aborts, `close` waits no longer. */
  #over: AbortSignal = new AbortController().signal

  static async open(
    start: StartThread,
    data: Omit<ThreadData, 'stop'>,
    onCommitted: OnCommitted,
  ): Promise<InOwnThread> {
    const stop = new StopFlag()
    const worker = await start({ ...data, stop: stop.memory })
    await opened(worker)
    return new InOwnThread(worker, stop, onCommitted)
  }

  private constructor(worker: Thread, stop: StopFlag, onCommitted: OnCommitted) {
    this.#worker = worker
    this.#stop = stop
    this.#onCommitted = onCommitted
    worker.on('message', (message: FromThread) => this.#receive(message))
    worker.on('error', (error) => this.#end(error))
    worker.on('exit', () => this.#end(undefined))
    worker.unref() // an open store does not keep the process alive; a call in flight does
  }

  call<V extends VerbName>(verb: V, items: readonly Item<V>[]): Promise<Answer<V>[]> {
    return new Promise((resolve, reject) => {
      if (this.#isOver) return reject(this.#isOver)
      const no = this.#no++
      this.#worker.postMessage({ no, verb, wire: packItems(verb, items) }) // throws if a value cannot be cloned
      if (this.#pending.size === 0) this.#worker.ref()
      this.#pending.set(no, { verb, items, resolve, reject })
    })
  }

  stopWaiting(over: AbortSignal): void {
    this.#over = over
    stopSoon(this.#stop, over)
  }

  /** A thread that does not end in time is terminated. SQLite undoes an open transaction when the file is opened again. */
  async close(): Promise<void> {
    if (this.#isOver) return
    const exited = once(this.#worker, 'exit')
    this.#isClosing = true
    this.#worker.ref()
    this.#worker.postMessage('close')
    await orAborted(exited, this.#over)
    if (this.#isOver) return
    await Promise.race([exited, sleep(lastAnswerMs)])
    if (this.#isOver) return
    this.#isOver = new HoldfastError('CLOSED', 'This Holdfast was closed before SQLite had answered the call.')
    this.#end(undefined)
    this.#worker.unref()
    this.#worker.terminate?.()
  }

  #receive(message: FromThread): void {
    if (!('replies' in message)) return
    for (const { no, wire } of message.replies) {
      const { verb, items, resolve } = this.#pending.get(no) as Sent
      this.#pending.delete(no)
      resolve(unpackAnswers(verb, wire, items) as never)
    }
    if (this.#pending.size === 0 && !this.#isClosing) this.#worker.unref()
    this.#onCommitted(message.notices)
  }

  #end(error: unknown): void {
    this.#isOver ??= new HoldfastError(
      'STORE_UNAVAILABLE',
      'The thread of the SQLite store has ended; open the store again.',
      {},
      { cause: error },
    )
    for (const { reject } of this.#pending.values()) reject(this.#isOver)
    this.#pending.clear()
  }
}

async function opened(worker: Thread): Promise<void> {
  const [message] = (await once(worker, 'message')) as [FromThread]
  if ('failed' in message) throw toError(message.failed)
}
