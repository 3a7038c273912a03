// Wake-ups: jobs that became ready, and running jobs that are asked to cancel.
//
// SENDING. This process is notified at once, other processes by NOTIFY. Every commit with a NOTIFY takes a lock that all such
// commits wait for. So a NOTIFY is sent after the commit, in a transaction of its own, and gathered:
//   - The first is sent at once. Those that follow are sent as one, after a pause of twice as many milliseconds as the last one
//     had calls, up to `gatherMs`. So an occasional job is announced at once: with one job every 5 ms, jobs were picked up
//     after 1.9 ms. If notifications were always gathered for 10 ms, they were picked up after 4.9 ms. A producer under full
//     load announces its jobs every `gatherMs`.
//   - If nothing was sent for `silenceMs`, the notification of an enqueue is sent with its own commit, a millisecond sooner.
//     That happens too seldom for commits to wait for each other.
//   - A notification that could not be sent is sent again, a few times, with what was gathered since.
//
// LISTENING. A process that claims, or renews leases, keeps one connection for LISTEN. If it breaks, it is made again.
// Notifications may have been lost meanwhile, so the counts are read, and workers ask whether their jobs were cancelled.
//
// POLLING. Whether notifications arrive at all is tested at the start, because a pooler in transaction mode drops them. If they
// do not arrive, the counts are polled: often while there is work, less and less often while there is none. With every poll,
// but at most every `askEveryMs`, workers ask about their jobs. Polling keeps no connection, and listening is tried again from
// time to time.
//
// HELD JOBS. A job with a limit key is held until a later transaction admits it. An enqueue of this store makes that transaction
// itself. An enqueue in a caller's transaction cannot, so its notification asks the processes that listen to do it. Each looks
// for events that no admission has taken, as a sweep does. If the notification is lost, the next sweep admits the job.
//
// SIGNALS in a caller's transaction: the same. Each process that listens delivers messages that no process has delivered yet.
//
// Behind a pooler, the connection for LISTEN may have an address of its own, which bypasses the pooler.

import { randomUUID } from 'node:crypto'
import { setImmediate as immediate, setTimeout as sleep } from 'node:timers/promises'
import type { ClientBase } from 'pg'
import type { HoldfastError } from '../../errors.ts'
import type { DroppedNotice } from '../../job/death.ts'
import { orAborted } from '../../runtime/aborted.ts'
import type { FinishedBatch, Subscriber, UndeliverableJob } from '../store.ts'
import { connectMs, silentMs } from './connection/address.ts'
import type { Database } from './connection/database.ts'
import { loadDriver } from './connection/driver.ts'
import { isBroken } from './connection/failures.ts'
import { readReady } from './read.ts'
import { Notifications, probeOf, readMessage, textOf } from './wake-messages.ts'

const gatherMs = 10
/** If nothing was sent for so long, the next notification is sent with the commit itself. */
const silenceMs = 50
const pollMinMs = 25
const pollMaxMs = 800
const askEveryMs = 400
const lookGapMs = 25
const probeMs = 2_000
const pollOnlyMs = 60_000
/** How often the listening connection asks the server something: without that, it would never notice that the server is gone. */
const askMs = 10_000
const answerMs = 5_000
const reconnectMs = [50, 100, 250, 500, 1_000, 2_000]
/** Polling ends so long after the last claim, renewal or question about cancels. */
const idleMs = 5_000

/** Work that callers' own transactions leave to a process that listens. */
export interface LeftOver {
  /** Admits held jobs of which no process has taken notice. */
  admit(): Promise<unknown>
  /** Delivers messages of which no process has taken notice. */
  deliver(): Promise<unknown>
}

/** Work that messages ask for, at any rate: one at a time, and a gap between two. If it fails, a sweep does it. */
class Repeated {
  readonly #work: () => Promise<unknown>
  readonly #ended: AbortSignal
  #isWanted = false
  running: Promise<void> | null = null

  constructor(work: () => Promise<unknown>, ended: AbortSignal) {
    this.#work = work
    this.#ended = ended
  }

  soon(): void {
    this.#isWanted = true
    this.running ??= this.#whileWanted().finally(() => {
      this.running = null
    })
  }

  async #whileWanted(): Promise<void> {
    while (this.#isWanted && !this.#ended.aborted) {
      this.#isWanted = false
      await this.#work().catch(() => undefined)
      await sleep(lookGapMs, undefined, { signal: this.#ended, ref: false }).catch(() => undefined)
    }
  }
}

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
  #askedAt = 0
  #running: Promise<void> | null = null
  #pollOnlyUntil = 0
  #onProbe: (() => void) | null = null
  /** The connection that receives notifications at this time, and what ends it. */
  #listener: { readonly client: ClientBase; end(): void } | null = null
  #isLent = false
  #gathered = new Notifications()
  /** How many calls the gathered notifications come from. */
  #occasions = 0
  /** Before this time, notifications are not sent with a commit. */
  #silentUntil = 0
  #sending: Promise<void> | null = null
  #isLookWanted = false
  #lookingAtAll: Promise<void> | null = null
  readonly #admission: Repeated
  readonly #delivery: Repeated

  constructor(db: Database, where: boolean | string, { admit, deliver }: LeftOver) {
    this.#db = db
    this.channel = db.schema.channel
    this.#where = where
    this.#admission = new Repeated(admit, this.#ended.signal)
    this.#delivery = new Repeated(deliver, this.#ended.signal)
  }

  /** Whether notifications are received at this time. */
  get isListening(): boolean {
    return this.#listener !== null
  }

  /**
   * Runs `work` over the connection that listens. Its session has just received a notification, so it is awake, and claims
   * sooner than a session that has to be woken. Null: there is no such connection, it is in use, or it has an address of its
   * own (there it may have another role). Notifications that arrive meanwhile are handled afterwards. As in the pool, a
   * connection that broke is not used again.
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

  /**
   * Called by claims, renewals and questions about cancels. From now on this process listens or, if notifications do not
   * arrive, polls for another `idleMs`.
   */
  keepListening(): void {
    this.#expectedAt = performance.now()
    if (this.#ended.signal.aborted) return
    this.#running ??= this.#run().finally(() => {
      this.#running = null
    })
  }

  announce(ready: ReadonlyMap<string, number>, areOthersNotified = false): void {
    if (ready.size === 0) return
    this.#notifyReady(ready)
    if (areOthersNotified) return
    this.#gathered.addReady(ready)
    this.#sendSoon()
  }

  notificationOf(ready: ReadonlyMap<string, number>): string | null {
    if (ready.size === 0 || this.#sending || performance.now() < this.#silentUntil) return null
    this.#beSilent()
    return textOf({ from: this.#self, ready: [...ready] })
  }

  #beSilent(): void {
    this.#silentUntil = performance.now() + silenceMs
  }

  announceCancels(ids: readonly string[]): void {
    if (ids.length === 0) return
    this.#notifyCancels(ids)
    this.#gathered.addCancels(ids)
    this.#sendSoon()
  }

  /** When `over` aborts, it waits for no call any more. */
  async close(over: AbortSignal): Promise<void> {
    this.#closing.abort()
    await orAborted(this.#sending, over)
    this.#ended.abort()
    await orAborted(this.#running, over)
    await orAborted(this.#lookingAtAll, over)
    await orAborted(this.#admission.running, over)
    await orAborted(this.#delivery.running, over)
  }

  #notifyReady(ready: Iterable<readonly [string, number]>): void {
    for (const [queue, count] of ready) for (const subscriber of this.#subscribers) subscriber.onReady?.(queue, count)
  }

  /** This process has found a batch to be finished. */
  finished(batch: FinishedBatch): void {
    for (const subscriber of this.#subscribers) subscriber.onFinished?.(batch)
  }

  /** Commits of this process wait on the server; null: they have been answered. */
  stalled(stall: HoldfastError | null): void {
    for (const subscriber of this.#subscribers) subscriber.onStalled?.(stall)
  }

  /** This process has enqueued a job that cannot run. */
  undeliverable(job: UndeliverableJob): void {
    for (const subscriber of this.#subscribers) subscriber.onUndeliverable?.(job)
  }

  /** This process has ended a job as dead, and has enqueued no death notice. */
  noticeDropped(death: DroppedNotice): void {
    for (const subscriber of this.#subscribers) subscriber.onNoticeDropped?.(death)
  }

  #notifyCancels(ids: readonly string[] | null): void {
    for (const subscriber of this.#subscribers) subscriber.onCancel?.(ids)
  }

  /** Which jobs are to be cancelled is not known, so workers ask about theirs. */
  #askAboutCancels(): void {
    this.#askedAt = performance.now()
    this.#notifyCancels(null)
  }

  #sendSoon(): void {
    this.#occasions += 1
    this.#sending ??= this.#send().finally(() => {
      this.#sending = null
    })
  }

  async #send(): Promise<void> {
    await immediate() // claims that were woken in this process go first
    for (let failures = 0; !this.#gathered.isEmpty; ) {
      const [notices, occasions] = [this.#gathered, this.#occasions]
      this.#gathered = new Notifications()
      this.#occasions = 0
      this.#beSilent()
      try {
        await this.#notify(notices.toText(this.#self))
        failures = 0
        await sleep(Math.min(gatherMs, 2 * occasions), undefined, { signal: this.#ended.signal }).catch(() => undefined)
      } catch {
        const pauseMs = reconnectMs[failures++]
        if (pauseMs === undefined || this.#closing.signal.aborted) return // only hints: waiting claims poll too
        notices.add(this.#gathered)
        this.#gathered = notices
        await this.#pause(pauseMs, this.#closing.signal)
      }
    }
  }

  /** A NOTIFY has a transaction number, so its commit would wait for the disk; it need not. */
  async #notify(text: string): Promise<void> {
    await this.#db.hot(
      `select pg_notify($1, $2) from (select set_config('synchronous_commit', 'off', true)) as quick`,
      [this.channel, text],
    )
  }

  async #run(): Promise<void> {
    for (let failures = 0; this.#where !== false && !this.#isPollOnly && !this.#ended.signal.aborted; failures++) {
      const began = performance.now()
      try {
        await this.#listen()
      } catch {
        // tried again below; a claim fails with the same error and reports it
      }
      this.#listener = null
      if (performance.now() - began > idleMs) failures = 0
      if (!this.#isPollOnly) await this.#pause(reconnectMs[Math.min(failures, reconnectMs.length - 1)] as number)
    }
    await this.#poll(() => this.#where === false || this.#isPollOnly)
  }

  get #isPollOnly(): boolean {
    return performance.now() < this.#pollOnlyUntil
  }

  async #listen(): Promise<void> {
    if (typeof this.#where !== 'string') return this.#db.lend((client) => this.#listenOn(client), { ends: true })
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
      await this.#listenOn(client)
    } finally {
      client.end().catch(() => undefined) // not awaited: the server may be gone
    }
  }

  /** Returns when the connection has ended, or turns out to receive no notifications. */
  async #listenOn(client: ClientBase): Promise<void> {
    if (this.#ended.signal.aborted) return
    let isOver = false
    streamOf(client)?.unref?.() // only a call that waits keeps the process alive, not the connection
    const { promise: ended, resolve: end } = Promise.withResolvers<void>()
    client.on('notification', ({ payload }) => this.#receive(payload ?? ''))
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
    const listening = async () => {
      const subscribed = client.query(`listen "${this.channel.replaceAll('"', '""')}"`)
      if (!(await Promise.race([subscribed, this.#pause(answerMs)]))) return
      const isReceived = await this.#receivesProbe()
      if (isOver) return // broken meanwhile, which says nothing about notifications
      if (isReceived) this.#listener = listener
      this.#notifyReady(await readReady(this.#db))
      this.#askAboutCancels()
      if (isReceived) await Promise.race([ended, this.#untilSilent(client)])
      else this.#pollOnlyUntil = performance.now() + pollOnlyMs
    }
    await Promise.race([ended, listening()])
    isOver = true
  }

  /** Returns when the server does not answer any more. */
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

  async #receivesProbe(): Promise<boolean> {
    const received = new Promise<true>((resolve) => {
      this.#onProbe = () => resolve(true)
    })
    await this.#notify(probeOf(this.#self))
    return Promise.race([received, this.#pause(probeMs).then(() => false)])
  }

  #receive(text: string): void {
    const message = readMessage(text)
    if (message === null) return
    if (message.from === this.#self) {
      if (message.probe) this.#onProbe?.()
      return
    }
    if (message.ready) this.#notifyReady(message.ready)
    if (message.cancel) this.#notifyCancels(message.cancel)
    if (message.held) this.#admission.soon()
    if (message.signalled) this.#delivery.soon()
    const { ready, cancel, probe, held, signalled } = message
    if (!ready && !cancel && !probe && !held && !signalled) this.#lookAtAll()
  }

  /**
   * A message that names nothing asks every process to read all counts. Every login may send such messages, at any rate. So
   * reads are bounded: one at a time, and `lookGapMs` between two.
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
      this.#askAboutCancels()
      await this.#look().catch(() => undefined)
      await this.#pause(lookGapMs)
    }
  }

  async #look(): Promise<boolean> {
    const ready = await readReady(this.#db)
    this.#notifyReady(ready)
    return ready.size > 0
  }

  async #poll(goesOn: () => boolean): Promise<void> {
    let pauseMs = pollMinMs
    while (goesOn() && !this.#ended.signal.aborted && performance.now() - this.#expectedAt < idleMs) {
      await this.#pause(pauseMs)
      if (this.#ended.signal.aborted) return
      if (performance.now() - this.#askedAt > askEveryMs) this.#askAboutCancels()
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
