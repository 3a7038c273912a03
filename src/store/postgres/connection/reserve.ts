// Connections that keep leases alive while an application has used up the pool that it shares with its store.
//
// If a renewal waits in the pool's queue behind the application's own requests, its lease may expire, and the job runs twice.
// So renewals, settlements and sweeps wait for the pool only for a moment. Then they use a connection of this reserve. It is
// made from the pool's own options and does not count for its `max`.
//
// There are two, so that a settlement whose SQL effects wait for a lock never delays a renewal:
//
//   renewals      renewals, and the question whether a job is to be cancelled
//   settlements   settlements, what follows from them, and sweeps
//
// - Each carries one call at a time, in the order of the calls.
// - It is made when it is first needed, and ended when it was not used for a while.
// - Its session is set up as the pool sets up its own, by its option `onConnect` and by its listeners to `connect`, because SQL
//   effects may rely on what they set.
// - If it broke, it is made again for the next call.

import type { Client, ClientConfig, Pool, PoolClient } from 'pg'
import { Alarm } from '../../../runtime/alarm.ts'
import { systemTimers } from '../../../runtime/clock.ts'
import { connectMs } from './address.ts'
import { beforeSending } from './failures.ts'
import { Semaphore } from './semaphore.ts'

/** What a connection is used for. `renewals` and `settlements` must not wait for an application; `any` may. */
export type Purpose = 'any' | 'renewals' | 'settlements'

type PoolParts = {
  readonly Client?: new (options: ClientConfig) => Client
  readonly options: ClientConfig & { onConnect?(client: Client): unknown; readonly max?: number }
}

const keepMs = 10_000

export class Reserve {
  readonly #pool: Pool
  readonly #turns = new Semaphore(1)
  readonly #alarm = new Alarm(systemTimers, () => this.#endIfUnused(), { keepsProcess: false })
  #client: Client | null = null
  #usedAt = 0
  #isInUse = false
  #isClosed = false

  constructor(pool: Pool) {
    this.#pool = pool
  }

  /** Whether connections can be made as this pool makes them. */
  static isPossible(pool: Pool): boolean {
    const { Client, options } = pool as unknown as Partial<PoolParts>
    return typeof Client === 'function' && typeof options === 'object' && options !== null
  }

  use<T>(
    work: (client: PoolClient) => Promise<T>,
    isFit: (client: PoolClient, error: unknown) => Promise<boolean>,
    isEnding: () => boolean,
  ): Promise<T> {
    return this.#turns.pass(async () => {
      this.#isInUse = true
      try {
        this.#client ??= await beforeSending(this.#connect())
        const client = this.#client as Client as unknown as PoolClient // `work` never releases what it is lent
        try {
          const answer = await work(client)
          if (isEnding()) this.#end()
          return answer
        } catch (error) {
          if (isEnding() || !(await isFit(client, error))) this.#end()
          throw error
        }
      } finally {
        this.#isInUse = false
        this.#usedAt = systemTimers.now()
        if (this.#isClosed) this.#end()
        else this.#alarm.by(this.#usedAt + keepMs)
      }
    })
  }

  close(): void {
    this.#isClosed = true
    this.#alarm.stop()
    if (!this.#isInUse) this.#end()
  }

  async #connect(): Promise<Client> {
    const { Client, options } = this.#pool as unknown as Required<PoolParts>
    const { password, ssl } = options as { password: never; ssl: never } // which a pool hides from a copy of its options
    const client = new Client({ ...options, password, ssl, connectionTimeoutMillis: connectMs })
    client.on('error', () => undefined) // the next call fails and reports it
    client.on('end', () => {
      if (this.#client === client) this.#client = null
    })
    try {
      await client.connect()
      await options.onConnect?.(client)
      this.#pool.emit('connect', client as unknown as PoolClient)
      return client
    } catch (error) {
      client.end().catch(() => undefined)
      throw error
    }
  }

  #endIfUnused(): void {
    if (this.#isInUse) return
    const until = this.#usedAt + keepMs
    if (systemTimers.now() < until) this.#alarm.by(until)
    else this.#end()
  }

  #end(): void {
    this.#client?.end().catch(() => undefined)
    this.#client = null
  }
}
