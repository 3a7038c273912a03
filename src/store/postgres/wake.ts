// Wake-ups. Jobs that became ready here are told to this process at once, and to others by NOTIFY: after the commit that
// made them ready, in a transaction of its own, and gathered, because every commit with a NOTIFY takes a lock that all
// others wait for. The first goes out at once, those that follow within `gatherMs` as one.
//
// A process that claims keeps one connection for LISTEN. When it breaks it is made again, and because notifications may
// have been lost meanwhile, so is a look at the counts. Whether notifications arrive at all is tried out at the start: a
// pooler in transaction mode swallows them. Where they do not, counts are looked at: often while there is work, less and
// less often while there is none.

import { randomUUID } from 'node:crypto'
import { setImmediate as immediate, setTimeout as sleep } from 'node:timers/promises'
import type { PoolClient } from 'pg'
import type { Database } from './database.ts'
import { readReady } from './read.ts'

const gatherMs = 10
const pollMinMs = 25
const pollMaxMs = 1_000
const probeMs = 2_000
const reconnectMs = [50, 100, 250, 500, 1_000, 2_000]
/** Claims stop coming when nobody waits; then nobody has to be woken. */
const idleMs = 5_000
const messageMaxBytes = 7_000

export type OnReady = (queue: string, count: number) => void

interface Message {
  readonly from?: string
  readonly probe?: true
  readonly ready?: readonly (readonly [string, number])[]
}

export class Wakes {
  readonly channel: string
  readonly #db: Database
  readonly #self = randomUUID()
  readonly #listeners = new Set<OnReady>()
  readonly #mayListen: boolean
  readonly #ended = new AbortController()
  #claimedAt = 0
  #running: Promise<void> | null = null
  #client: PoolClient | null = null
  #heardProbe: (() => void) | null = null
  #isListening = false
  #gathered = new Map<string, number>()
  #sending: Promise<void> | null = null

  constructor(db: Database, { mayListen }: { readonly mayListen: boolean }) {
    this.#db = db
    this.channel = Buffer.from(`holdfast ${db.schema.name}`).subarray(0, 63).toString()
    this.#mayListen = mayListen
  }

  /** Whether notifications are heard at this time. */
  get isListening(): boolean {
    return this.#isListening
  }

  subscribe(onReady: OnReady): () => void {
    this.#listeners.add(onReady)
    return () => this.#listeners.delete(onReady)
  }

  /** Somebody looks for work here: from now on it is worth hearing of it. */
  expectWork(): void {
    this.#claimedAt = performance.now()
    if (this.#ended.signal.aborted) return
    this.#running ??= this.#run().finally(() => {
      this.#running = null
    })
  }

  announce(ready: ReadonlyMap<string, number>): void {
    if (ready.size === 0) return
    this.#tell(ready)
    for (const [queue, count] of ready) this.#gathered.set(queue, (this.#gathered.get(queue) ?? 0) + count)
    this.#sending ??= this.#send().finally(() => {
      this.#sending = null
    })
  }

  async close(): Promise<void> {
    await this.#sending
    this.#ended.abort()
    this.#client?.release(true)
    this.#client = null
    await this.#running
  }

  #tell(ready: Iterable<readonly [string, number]>): void {
    for (const [queue, count] of ready) for (const listener of this.#listeners) listener(queue, count)
  }

  async #send(): Promise<void> {
    await immediate() // whoever was woken here is on its way first
    while (this.#gathered.size > 0) {
      const ready = [...this.#gathered]
      this.#gathered = new Map()
      const message = JSON.stringify({ from: this.#self, ready } satisfies Message)
      const text = Buffer.byteLength(message) > messageMaxBytes ? JSON.stringify({ from: this.#self }) : message
      try {
        await this.#notify(text)
      } catch {
        return // a hint: whoever waits looks by itself
      }
      await sleep(gatherMs, undefined, { signal: this.#ended.signal }).catch(() => undefined)
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
    if (!this.#mayListen) return this.#poll(() => true)
    for (let failures = 0; !this.#ended.signal.aborted; failures++) {
      const began = performance.now()
      try {
        await this.#listen()
      } catch {
        // tried again below; the claims themselves say what is wrong
      }
      this.#isListening = false
      if (performance.now() - began > idleMs) failures = 0
      await this.#pause(reconnectMs[Math.min(failures, reconnectMs.length - 1)] as number)
    }
  }

  /** Until the connection ends. */
  async #listen(): Promise<void> {
    const client = await this.#db.pool.connect()
    if (this.#ended.signal.aborted) return client.release()
    const { promise: ended, resolve: end } = Promise.withResolvers<void>()
    this.#client = client
    letGo(client)
    client.on('notification', ({ payload }) => this.#hear(payload ?? ''))
    client.on('error', () => end())
    client.on('end', () => end())
    this.#ended.signal.addEventListener('abort', () => end(), { once: true })
    try {
      await client.query(`listen "${this.channel.replaceAll('"', '""')}"`)
      this.#isListening = await this.#hearsProbe()
      this.#tell(await readReady(this.#db))
      if (this.#isListening) await ended
      else await this.#poll(() => this.#client === client)
    } finally {
      if (this.#client === client) {
        this.#client = null
        client.release(true)
      }
    }
  }

  async #hearsProbe(): Promise<boolean> {
    const heard = new Promise<true>((resolve) => {
      this.#heardProbe = () => resolve(true)
    })
    await this.#notify(JSON.stringify({ from: this.#self, probe: true } satisfies Message))
    return Promise.race([heard, this.#pause(probeMs).then(() => false)])
  }

  #hear(text: string): void {
    let message: Message
    try {
      message = JSON.parse(text)
    } catch {
      return // somebody else's
    }
    if (message.from === this.#self) {
      if (message.probe) this.#heardProbe?.()
    } else if (message.ready) this.#tell(message.ready)
    else if (!message.probe) this.#look().catch(() => undefined)
  }

  async #look(): Promise<boolean> {
    const ready = await readReady(this.#db)
    this.#tell(ready)
    return ready.size > 0
  }

  async #poll(goesOn: () => boolean): Promise<void> {
    let pauseMs = pollMinMs
    while (goesOn() && !this.#ended.signal.aborted && performance.now() - this.#claimedAt < idleMs) {
      await this.#pause(pauseMs)
      if (this.#ended.signal.aborted) return
      const found = await this.#look().catch(() => false)
      pauseMs = found ? pollMinMs : Math.min(pollMaxMs, pauseMs * 1.5)
    }
  }

  async #pause(ms: number): Promise<void> {
    await sleep(ms, undefined, { signal: this.#ended.signal, ref: false }).catch(() => undefined)
  }
}

/** Whoever waits keeps the process alive; the connection alone does not. */
function letGo(client: PoolClient): void {
  ;(client as unknown as { connection?: { stream?: { unref?(): void } } }).connection?.stream?.unref?.()
}
