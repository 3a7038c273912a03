// Connections of a pool, so many at a time. One of a pool that is the store's own is not given back to it after each use, but
// kept for the next, who has it without a turn in the pool and its timers: what was used last goes first. One that nobody
// used for a while goes back, and ends with the pool's idle ones. Of an application's pool nothing is kept.

import type { Pool, PoolClient } from 'pg'
import { Alarm } from '../../../runtime/alarm.ts'
import { systemTimers } from '../../../runtime/clock.ts'
import { beforeSending } from './failures.ts'
import { ignoreErrorsOf } from './pool-errors.ts'
import { Semaphore } from './semaphore.ts'

export interface ConnectionsOptions {
  readonly pool: Pool
  /** Nobody else uses the pool. */
  readonly isOwn: boolean
  /** How many may be in use at once. */
  readonly most: number
}

export interface Use {
  /** Whether it is of no use afterwards. */
  readonly ends: boolean | (() => boolean)
  /** Whether it still is after this error. */
  isFit(client: PoolClient, error: unknown): Promise<boolean>
}

const keepMs = 5_000
/** Connections that are gone. */
const ended = new WeakSet<PoolClient>()

export class Connections {
  readonly #pool: Pool
  readonly #isOwn: boolean
  readonly #places: Semaphore
  /** Whoever was used last is at the end. */
  readonly #kept: { readonly client: PoolClient; readonly since: number }[] = []
  readonly #alarm = new Alarm(systemTimers, () => this.#giveBackOld(), { keepsProcess: false })
  #isClosed = false

  constructor({ pool, isOwn, most }: ConnectionsOptions) {
    this.#pool = pool
    this.#isOwn = isOwn
    this.#places = new Semaphore(most)
  }

  /** A connection for as long as `work` takes, once there is a place. */
  use<T>(work: (client: PoolClient) => Promise<T>, { ends, isFit }: Use): Promise<T> {
    return this.#places.pass(async () => {
      const client = this.#takeKept() ?? (await this.#checkOut())
      try {
        const answer = await work(client)
        this.#putBack(client, !isEnding(ends))
        return answer
      } catch (error) {
        this.#putBack(client, !isEnding(ends) && (await isFit(client, error)))
        throw error
      }
    })
  }

  close(): void {
    this.#isClosed = true
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
   * A connection that breaks while no statement is under way says so at the next one, or is not kept; it must not end the
   * process. It may do so with its very first words, which a promise of it would come too late to hear.
   */
  #checkOut(): Promise<PoolClient> {
    const connecting = new Promise<PoolClient>((resolve, reject) => {
      this.#pool.connect((error, client) => {
        if (!client) return reject(error)
        if (client.listenerCount('error', ignore) === 0) this.#hear(client)
        resolve(client)
      })
    })
    return beforeSending(connecting)
  }

  #hear(client: PoolClient): void {
    client.on('error', ignore)
    client.on('end', () => ended.add(client))
    if (this.#isOwn) client.on('end', () => this.#drop(client))
  }

  /** Until it is gone, the server's last message makes an `error` event of the pool (`pool-errors.ts`). */
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

/** Whether it keeps the process alive: only while somebody waits for an answer. */
function letKeep(client: PoolClient, keeps: boolean): void {
  const socket = client as unknown as { ref?(): void; unref?(): void }
  if (keeps) socket.ref?.()
  else socket.unref?.()
}
