// Wake-ups: jobs that became ready, and running jobs that are asked to be cancelled.
//
// SENDING. This process is notified at once, other processes by NOTIFY. Every commit with a NOTIFY takes a lock that all such commits wait for. So
// a NOTIFY is sent after the commit, in a transaction of its own, and gathered:
//   - the first goes out at once; those that follow go out as one, after twice as many milliseconds as the last one gathered calls, up to
//     `gatherMs`. So a job now and then is announced at once (one every 5 ms was picked up after 1.9 ms; always gathered for 10 ms, after
//     4.9), and a producer under full load announces its jobs every `gatherMs`;
//   - where nothing was sent for `silenceMs`, the notification of an enqueue goes out with its own commit, a millisecond sooner. That is too
//     seldom for commits to wait for each other;
//   - what could not be sent is sent again, a few times, with what has come since.
//
// LISTENING. A process that claims, or renews leases, keeps one connection for LISTEN. When it breaks, it is made again. Notifications may have been
// lost meanwhile, so the counts are read, and workers are told to ask whether their jobs were cancelled. Whether notifications arrive at
// all is tried out at the start: a pooler in transaction mode swallows them. Where they do not arrive, the counts are polled: often while there is
// work, less and less often while there is none. With every look, but not more often than `askEveryMs`, workers are told to ask about their
// jobs. That keeps no connection, and listening is tried again from time to time.
//
// Behind a pooler the connection for LISTEN may go past it, to an address of its own.

import { randomUUID } from 'node:crypto'
import { setImmediate as immediate, setTimeout as sleep } from 'node:timers/promises'
import type { ClientBase } from 'pg'
import type { DroppedNotice } from '../../job/death.ts'
import type { FinishedBatch, Subscriber, UndeliverableJob } from '../store.ts'
import { connectMs, silentMs } from './connection/address.ts'
import type { Database } from './connection/database.ts'
import { loadDriver } from './connection/driver.ts'
import { isBroken } from './connection/failures.ts'
import { Notifications, probeOf, readMessage, textOf } from './notifications.ts'
import { readReady } from './read.ts'

const gatherMs = 10
/** Where nothing was sent for so long, the next goes out with the commit itself. */
const silenceMs = 50
const pollMinMs = 25
const pollMaxMs = 800
const askEveryMs = 400
const lookGapMs = 25
const probeMs = 2_000
const deafMs = 60_000
/** A connection that only listens would never notice that its server is gone. */
const askMs = 10_000
const answerMs = 5_000
const reconnectMs = [50, 100, 250, 500, 1_000, 2_000]
/** After so long without a claim or a renewal, this process needs no notifications. */
const idleMs = 5_000

export class Wakes {
  readonly channel: string
  readonly #db: Database
  readonly #self = randomUUID()
  readonly #subscribers = new Set<Subscriber>()
  /** Where to listen: in the database's own pool (true), at another address, or nowhere. */
  readonly #where: boolean | string
  readonly #ended = new AbortController()
  readonly #closing = new AbortController()
  #expectedAt = 0
  #toldToAskAt = 0
  #running: Promise<void> | null = null
  #deafUntil = 0
  #heardProbe: (() => void) | null = null
  /** The connection that hears notifications at this time, and what ends it. */
  #listener: { readonly client: ClientBase; end(): void } | null = null
  #isLent = false
  #gathered = new Notifications()
  /** How often there was something to gather. */
  #occasions = 0
  /** Notifications do not go out with a commit before this. */
  #silentUntil = 0
  #sending: Promise<void> | null = null
  #isLookWanted = false
  #lookingAtAll: Promise<void> | null = null

  constructor(db: Database, where: boolean | string) {
    this.#db = db
    this.channel = db.schema.channel
    this.#where = where
  }

  /** Whether notifications are heard at this time. */
  get isListening(): boolean {
    return this.#listener !== null
  }

  /**
   * Runs `work` over the connection that listens. The session that has just received a notification is awake, and claims sooner than one
   * that has to be woken. Null where there is no such connection, where it is in use, or where it has an address of its own (there it may have
   * another role). Notifications that arrive meanwhile are handled afterwards. As in the pool, a connection that broke is not used again.
   */
  lend<T>(work: (client: ClientBase) => Promise<T>): Promise<T> | null {
    const listener = this.#listener
    if (listener === null || this.#isLent || this.#where !== true) return null
    this.#isLent = true
    const stream = streamOf(listener.client)
    stream?.ref?.()
    const working = work(listener.client)
    const back = (error?: unknown) => {
      this.#isLent = false
      stream?.unref?.()
      if (error !== undefined && isBroken(error)) listener.end()
    }
    working.then(() => back(), back)
    return working
  }

  subscribe(subscriber: Subscriber): () => void {
    this.#subscribers.add(subscriber)
    return () => this.#subscribers.delete(subscriber)
  }

  /** Somebody looks for work here, or does some: from now on it is worth hearing of it. */
  expectNews(): void {
    this.#expectedAt = performance.now()
    if (this.#ended.signal.aborted) return
    this.#running ??= this.#run().finally(() => {
      this.#running = null
    })
  }

  announce(ready: ReadonlyMap<string, number>, areOthersTold = false): void {
    if (ready.size === 0) return
    this.#tell(ready)
    if (areOthersTold) return
    this.#gathered.addReady(ready)
    this.#sendSoon()
  }

  noticesOf(ready: ReadonlyMap<string, number>): string | null {
    if (ready.size === 0 || this.#sending || performance.now() < this.#silentUntil) return null
    this.#beSilent()
    return textOf({ from: this.#self, ready: [...ready] })
  }

  #beSilent(): void {
    this.#silentUntil = performance.now() + silenceMs
  }

  announceCancels(ids: readonly string[]): void {
    if (ids.length === 0) return
    this.#tellCancels(ids)
    this.#gathered.addCancels(ids)
    this.#sendSoon()
  }

  async close(): Promise<void> {
    this.#closing.abort()
    await this.#sending
    this.#ended.abort()
    await this.#running
    await this.#lookingAtAll
  }

  #tell(ready: Iterable<readonly [string, number]>): void {
    for (const [queue, count] of ready) for (const subscriber of this.#subscribers) subscriber.onReady?.(queue, count)
  }

  /** A batch was found to be finished in this process. */
  finished(batch: FinishedBatch): void {
    for (const subscriber of this.#subscribers) subscriber.onFinished?.(batch)
  }

  /** A job was enqueued in this process that cannot run. */
  undeliverable(job: UndeliverableJob): void {
    for (const subscriber of this.#subscribers) subscriber.onUndeliverable?.(job)
  }

  /** A job died in this process, and no notice was made for its `onDead` queue. */
  noticeDropped(death: DroppedNotice): void {
    for (const subscriber of this.#subscribers) subscriber.onNoticeDropped?.(death)
  }

  #tellCancels(ids: readonly string[] | null): void {
    for (const subscriber of this.#subscribers) subscriber.onCancel?.(ids)
  }

  /** It is not known which jobs are to be cancelled: workers ask about theirs. */
  #tellToAsk(): void {
    this.#toldToAskAt = performance.now()
    this.#tellCancels(null)
  }

  #sendSoon(): void {
    this.#occasions += 1
    this.#sending ??= this.#send().finally(() => {
      this.#sending = null
    })
  }

  async #send(): Promise<void> {
    await immediate() // claims that were woken here go first
    for (let failures = 0; !this.#gathered.isEmpty; ) {
      const [news, occasions] = [this.#gathered, this.#occasions]
      this.#gathered = new Notifications()
      this.#occasions = 0
      this.#beSilent()
      try {
        await this.#notify(news.toText(this.#self))
        failures = 0
        await sleep(Math.min(gatherMs, 2 * occasions), undefined, { signal: this.#ended.signal }).catch(() => undefined)
      } catch {
        const pauseMs = reconnectMs[failures++]
        if (pauseMs === undefined || this.#closing.signal.aborted) return // only hints: waiting claims look by themselves
        news.add(this.#gathered)
        this.#gathered = news
        await this.#pause(pauseMs, this.#closing.signal)
      }
    }
  }

  /** Assigns a transaction number, whose commit need not wait for the disk. */
  async #notify(text: string): Promise<void> {
    await this.#db.hot(
      `select pg_notify($1, $2) from (select set_config('synchronous_commit', 'off', true)) as quick`,
      [this.channel, text],
    )
  }

  async #run(): Promise<void> {
    for (let failures = 0; this.#where !== false && !this.#isDeaf && !this.#ended.signal.aborted; failures++) {
      const began = performance.now()
      try {
        await this.#listen()
      } catch {
        // tried again below; the claims themselves say what is wrong
      }
      this.#listener = null
      if (performance.now() - began > idleMs) failures = 0
      if (!this.#isDeaf) await this.#pause(reconnectMs[Math.min(failures, reconnectMs.length - 1)] as number)
    }
    await this.#poll(() => this.#where === false || this.#isDeaf)
  }

  get #isDeaf(): boolean {
    return performance.now() < this.#deafUntil
  }

  async #listen(): Promise<void> {
    if (typeof this.#where !== 'string') return this.#db.lend((client) => this.#hearAt(client), { ends: true })
    const { Client } = await loadDriver()
    const client = new Client({
      connectionString: this.#where,
      connectionTimeoutMillis: connectMs,
      keepAlive: true,
      keepAliveInitialDelayMillis: silentMs,
    })
    client.on('error', () => undefined)
    await client.connect()
    try {
      await this.#hearAt(client)
    } finally {
      client.end().catch(() => undefined) // the server may be gone: nothing waits for this
    }
  }

  /** Until the connection ends, or turns out to be deaf. */
  async #hearAt(client: ClientBase): Promise<void> {
    if (this.#ended.signal.aborted) return
    let isOver = false
    streamOf(client)?.unref?.() // a call that waits keeps the process alive; the connection alone does not
    const { promise: ended, resolve: end } = Promise.withResolvers<void>()
    client.on('notification', ({ payload }) => this.#hear(payload ?? ''))
    const listener = {
      client,
      end: () => {
        if (this.#listener === listener) this.#listener = null
        end()
      },
    }
    client.on('error', listener.end)
    client.on('end', listener.end)
    this.#ended.signal.addEventListener('abort', () => end(), { once: true })
    const hearing = async () => {
      const listening = client.query(`listen "${this.channel.replaceAll('"', '""')}"`)
      if (!(await Promise.race([listening, this.#pause(answerMs)]))) return
      const heard = await this.#hearsProbe()
      if (isOver) return // broken meanwhile, which says nothing about what it hears
      if (heard) this.#listener = listener
      this.#tell(await readReady(this.#db))
      this.#tellToAsk()
      if (heard) await Promise.race([ended, this.#untilSilent(client)])
      else this.#deafUntil = performance.now() + deafMs
    }
    await Promise.race([ended, hearing()])
    isOver = true
  }

  /** Until the server does not answer any more. */
  async #untilSilent(client: ClientBase): Promise<void> {
    for (let isThere = true; isThere; ) {
      await this.#pause(askMs)
      if (this.#ended.signal.aborted) return
      if (this.#isLent) continue // another call waits for an answer already
      const answers = client.query('select 1').then(
        () => true,
        () => false,
      )
      isThere = await Promise.race([answers, this.#pause(answerMs).then(() => false)])
    }
  }

  async #hearsProbe(): Promise<boolean> {
    const heard = new Promise<true>((resolve) => {
      this.#heardProbe = () => resolve(true)
    })
    await this.#notify(probeOf(this.#self))
    return Promise.race([heard, this.#pause(probeMs).then(() => false)])
  }

  #hear(text: string): void {
    const message = readMessage(text)
    if (message === null) return
    if (message.from === this.#self) {
      if (message.probe) this.#heardProbe?.()
      return
    }
    if (message.ready) this.#tell(message.ready)
    if (message.cancel) this.#tellCancels(message.cancel)
    if (!message.ready && !message.cancel && !message.probe) this.#lookAtAll()
  }

  /**
   * A message that names nothing asks for a look at everything. Every login may send such messages, as fast as it likes, so
   * they are gathered: one look at a time, and `lookGapMs` between two.
   */
  #lookAtAll(): void {
    this.#isLookWanted = true
    this.#lookingAtAll ??= this.#lookWhileWanted().finally(() => {
      this.#lookingAtAll = null
    })
  }

  async #lookWhileWanted(): Promise<void> {
    while (this.#isLookWanted && !this.#ended.signal.aborted) {
      this.#isLookWanted = false
      this.#tellToAsk()
      await this.#look().catch(() => undefined)
      await this.#pause(lookGapMs)
    }
  }

  async #look(): Promise<boolean> {
    const ready = await readReady(this.#db)
    this.#tell(ready)
    return ready.size > 0
  }

  async #poll(goesOn: () => boolean): Promise<void> {
    let pauseMs = pollMinMs
    while (goesOn() && !this.#ended.signal.aborted && performance.now() - this.#expectedAt < idleMs) {
      await this.#pause(pauseMs)
      if (this.#ended.signal.aborted) return
      if (performance.now() - this.#toldToAskAt > askEveryMs) this.#tellToAsk()
      const found = await this.#look().catch(() => false)
      pauseMs = found ? pollMinMs : Math.min(pollMaxMs, pauseMs * 1.5)
    }
  }

  async #pause(ms: number, signal = this.#ended.signal): Promise<void> {
    await sleep(ms, undefined, { signal, ref: false }).catch(() => undefined)
  }
}

function streamOf(client: ClientBase): { ref?(): void; unref?(): void } | undefined {
  return (client as unknown as { connection?: { stream?: { ref?(): void; unref?(): void } } }).connection?.stream
}
