// Connections of a pool, so many at a time.
//
// THE STORE'S OWN POOL. A connection is not given back to the pool after each use. It is kept for the next call, which then
// needs no request to the pool, and none of the pool's timers. The connection that was used last is taken first. A connection
// that was not used for a while goes back, and ends with the pool's idle ones. If every slot is taken by calls that wait on the
// server, for a lock or for a standby, a renewal uses the reserve after a moment.
//
// AN APPLICATION'S POOL. Nothing is kept. A call that must not wait for the application (see reserve.ts) waits for a moment. If
// every connection of the pool is in use by then, the call gives up its request to the pool and uses the reserve. A renewal
// does so also if other calls of this store have all slots. If the pool still gives a connection to a request that was given
// up, it goes back unused. So a call is never carried out twice.

import type { Pool, PoolClient } from 'pg'
import { Alarm } from '../../../runtime/alarm.ts'
import { systemTimers } from '../../../runtime/clock.ts'
import { beforeSending } from './failures.ts'
import { ignoreErrorsOf } from './pool-errors.ts'
import { type Purpose, Reserve } from './reserve.ts'
import { Semaphore } from './semaphore.ts'

export interface ConnectionsOptions {
  readonly pool: Pool
  /** Only the store uses the pool. */
  readonly isOwn: boolean
  /** How many may be in use at once. */
  readonly most: number
}

export interface Use {
  /** `any` unless given. */
  readonly purpose?: Purpose
  /** Whether the connection must be ended afterwards. */
  readonly ends: boolean | (() => boolean)
  /** Whether the connection can be used again after this error. */
  isFit(client: PoolClient, error: unknown): Promise<boolean>
}

const keepMs = 5_000
/** How long a call that has a reserve waits for the pool. */
const reserveAfterMs = 250
/** The answer of a request to the pool that was given up. */
const unused = Symbol('unused')
/** Connections that have ended. */
const ended = new WeakSet<PoolClient>()

export class Connections {
  readonly #pool: Pool
  readonly #isOwn: boolean
  readonly #slots: Semaphore
  /** The connection that was used last is at the end. */
  readonly #kept: { readonly client: PoolClient; readonly since: number }[] = []
  readonly #alarm = new Alarm(systemTimers, () => this.#giveBackOld(), { keepsProcess: false })
  /** None in a pool whose connections the store cannot make. In a pool of the store's own only renewals have one. */
  readonly #reserves: ReadonlyMap<Purpose, Reserve>
  #isClosed = false

  constructor({ pool, isOwn, most }: ConnectionsOptions) {
    this.#pool = pool
    const reserved: readonly Purpose[] = isOwn ? ['renewals'] : ['renewals', 'settlements']
    this.#reserves = new Map(Reserve.isPossible(pool) ? reserved.map((purpose) => [purpose, new Reserve(pool)]) : [])
    this.#isOwn = isOwn
    this.#slots = new Semaphore(most)
  }

  get hasFreeSlot(): boolean {
    return !this.#slots.isFull
  }

  /** Lends a connection for as long as `work` takes, once a slot is free. */
  use<T>(work: (client: PoolClient) => Promise<T>, use: Use): Promise<T> {
    const { purpose = 'any' } = use
    const reserve = purpose === 'any' ? undefined : this.#reserves.get(purpose)
    if (reserve && !(this.#isOwn && this.hasFreeSlot)) return this.#useSoon(work, use, reserve)
    return this.#slots.pass(async () => this.#run(this.#takeKept() ?? (await this.#checkOut()), work, use))
  }

  async #run<T>(client: PoolClient, work: (client: PoolClient) => Promise<T>, { ends, isFit }: Use): Promise<T> {
    try {
      const answer = await work(client)
      this.#putBack(client, !isEnding(ends))
      return answer
    } catch (error) {
      this.#putBack(client, !isEnding(ends) && (await isFit(client, error)))
      throw error
    }
  }

  /** Uses the pool or, if the pool does not serve the call soon, the reserve. */
  async #useSoon<T>(work: (client: PoolClient) => Promise<T>, use: Use, reserve: Reserve): Promise<T> {
    let turn: 'queued' | 'connecting' | 'running' | 'given up' = 'queued'
    const { promise: gaveUp, resolve } = Promise.withResolvers<typeof unused>()
    const look = () => {
      const isBehindOurs = use.purpose === 'renewals' && turn === 'queued'
      if (!isBehindOurs && !this.#isUsedUp()) return // the pool is making a connection: the reserve would be no faster
      clearInterval(timer)
      turn = 'given up'
      resolve(unused)
    }
    const timer = setInterval(look, reserveAfterMs)
    const inPool = this.#slots.pass(async () => {
      if (turn === 'given up') return unused
      turn = 'connecting'
      const client = this.#takeKept() ?? (await this.#checkOut().catch((error) => this.#orNone(error)))
      if (!client) return unused
      if ((turn as string) === 'given up') {
        this.#putBack(client, true)
        return unused
      }
      turn = 'running'
      clearInterval(timer)
      return this.#run(client, work, use)
    })
    inPool.catch(() => undefined) // a request that was given up may fail
    try {
      const answer = await Promise.race([inPool, gaveUp])
      return answer === unused ? await reserve.use(work, use.isFit, () => isEnding(use.ends)) : (answer as T)
    } finally {
      clearInterval(timer)
    }
  }

  /** An application's pool may give up a request before the store does (`connectionTimeoutMillis`). */
  #orNone(error: unknown): null {
    if (this.#isUsedUp()) return null
    throw error
  }

  /** Every connection that the pool may have is in use. */
  #isUsedUp(): boolean {
    const { totalCount, idleCount, options } = this.#pool
    return idleCount === 0 && totalCount >= (options.max ?? Number.POSITIVE_INFINITY)
  }

  close(): void {
    this.#isClosed = true
    for (const reserve of this.#reserves.values()) reserve.close()
    this.#alarm.stop()
    for (const { client } of this.#kept.splice(0)) client.release()
  }

  #takeKept(): PoolClient | undefined {
    const client = this.#kept.pop()?.client
    if (client) letKeep(client, true)
    return client
  }

  #putBack(client: PoolClient, isFit: boolean): void {
    if (!isFit) this.#end(client)
    else if (!this.#isOwn || this.#isClosed) client.release()
    else this.#keep(client)
  }

  #keep(client: PoolClient): void {
    letKeep(client, false)
    const since = systemTimers.now()
    this.#kept.push({ client, since })
    this.#alarm.by(since + keepMs)
  }

  #giveBackOld(): void {
    const usedSince = systemTimers.now() - keepMs
    while (this.#kept[0] && this.#kept[0].since <= usedSince) this.#kept.shift()?.client.release()
    if (this.#kept[0]) this.#alarm.by(this.#kept[0].since + keepMs)
  }

  /**
   * A connection that breaks while no statement is under way emits an `error` event, which must not end the process. The next
   * statement fails, or the connection is not kept. The event may come with the first bytes of the server. A promise would
   * resolve too late to add a listener, so this uses the callback.
   */
  #checkOut(): Promise<PoolClient> {
    const connecting = new Promise<PoolClient>((resolve, reject) => {
      this.#pool.connect((error, client) => {
        if (!client) return reject(error)
        if (client.listenerCount('error', ignore) === 0) this.#listenTo(client)
        resolve(client)
      })
    })
    return beforeSending(connecting)
  }

  #listenTo(client: PoolClient): void {
    client.on('error', ignore)
    client.on('end', () => ended.add(client))
    if (this.#isOwn) client.on('end', () => this.#drop(client))
  }

  /** Until the connection has ended, the server's last message may make an `error` event of the pool (`pool-errors.ts`). */
  #end(client: PoolClient): void {
    if (!ended.has(client)) client.once('end', ignoreErrorsOf(this.#pool))
    client.release(true)
  }

  #drop(client: PoolClient): void {
    const at = this.#kept.findIndex((kept) => kept.client === client)
    if (at >= 0) this.#kept.splice(at, 1)[0]?.client.release(true)
  }
}

function ignore(): void {}

function isEnding(ends: Use['ends']): boolean {
  return typeof ends === 'function' ? ends() : ends
}

/** Sets whether the connection keeps the process alive: it does only while a call waits for an answer. */
function letKeep(client: PoolClient, keeps: boolean): void {
  const socket = client as unknown as { ref?(): void; unref?(): void }
  if (keeps) socket.ref?.()
  else socket.unref?.()
}
