// A host that vanishes says nothing: no answer, and no end of the connection either. TCP would wait a quarter of an hour.
//
//   no answer for a while ──▶ does the server answer somebody new? ──no──▶ cut the connection
//                                       │ yes
//                                       ▼
//                     is it at work on this very call? ──yes──▶ look again after the same while
//                                       │ no: it has answered, and the answer is lost
//                                       ▼ (and still no a moment later)
//                                cut the connection
//
// A bound on the call alone would end what is only slow: a statement of the application, a row that somebody has locked. So
// the server is asked, over a connection that is made for it and past all turnstiles. Behind a pooler the driver does not
// know which session works on its call; there it is enough that somebody answers. What is cut fails as broken, and is made again
// like any call whose connection broke (`failures.ts`).

import type { ClientBase, ClientConfig, Pool } from 'pg'
import { Alarm } from '../../../runtime/alarm.ts'
import { systemTimers } from '../../../runtime/clock.ts'
import { connectMs } from './address.ts'

/** What the server says it is doing, by session; `there`: it answers, and more is not known. */
type Seen = ReadonlyMap<number, string | null> | 'there' | 'gone'

interface Call {
  readonly client: ClientBase
  /** When it is next looked what became of it. */
  lookAt: number
  /** At the last look the server was not at work on it. */
  wasIdle: boolean
}

/** An answer may be on its way while it is looked for. */
const onItsWayMs = 500
const sessions = 'select pid, state, pg_backend_pid() as own from pg_stat_activity where usename = current_user'

export class ResponseWatchdog {
  readonly #pool: Pool
  readonly #answerMs: number
  /** Those without an answer yet; most have one long before anybody looks. */
  readonly #calls = new Set<Call>()
  readonly #alarm = new Alarm(systemTimers, () => this.#ring(), { keepsProcess: false })
  #looking: Promise<Seen> | null = null

  constructor(pool: Pool, answerMs: number) {
    this.#pool = pool
    this.#answerMs = answerMs
  }

  /** Waits for the answer, and cuts the connection where none will come. */
  async over<T>(client: ClientBase, answer: Promise<T>): Promise<T> {
    const call = { client, lookAt: systemTimers.now() + this.#answerMs, wasIdle: false }
    this.#calls.add(call)
    this.#alarm.by(call.lookAt)
    try {
      return await answer
    } finally {
      this.#calls.delete(call)
    }
  }

  #ring(): void {
    const now = systemTimers.now()
    for (const call of this.#calls) {
      if (call.lookAt <= now) {
        call.lookAt = Number.POSITIVE_INFINITY
        this.#lookAfter(call)
      } else this.#alarm.by(call.lookAt)
    }
  }

  async #lookAfter(call: Call): Promise<void> {
    const doing = await this.#doing(call.client)
    if (!this.#calls.has(call)) return // answered meanwhile
    if (doing === 'gone' || (doing === 'nothing' && call.wasIdle)) return cut(call.client, this.#answerMs)
    call.wasIdle = doing === 'nothing'
    call.lookAt = systemTimers.now() + (call.wasIdle ? onItsWayMs : this.#answerMs)
    this.#alarm.by(call.lookAt)
  }

  async #doing(client: ClientBase): Promise<'work' | 'nothing' | 'gone'> {
    this.#looking ??= this.#look().finally(() => {
      this.#looking = null
    })
    const seen = await this.#looking
    if (seen === 'gone') return 'gone'
    if (seen === 'there') return 'work'
    const state = seen.get(pidOf(client) ?? 0)
    return state === undefined || state?.startsWith('idle') ? 'nothing' : 'work'
  }

  /** Whatever the server says, it is there; unless it says that it has just come back. */
  async #look(): Promise<Seen> {
    const { Client, options } = this.#pool as unknown as {
      readonly Client: new (options: ClientConfig) => ClientBase & { connect(): Promise<void>; end(): Promise<void> }
      readonly options: ClientConfig
    }
    const timeouts = { connectionTimeoutMillis: connectMs, query_timeout: connectMs } // however soon it is asked: it may be busy
    const { password, ssl } = options as { password: never; ssl: never } // which a pool hides from who copies its options
    const stranger = new Client({ ...options, password, ssl, ...timeouts })
    stranger.on('error', () => undefined)
    try {
      await stranger.connect()
      const { rows } = await stranger.query<{ pid: number; state: string | null; own: number }>(sessions)
      const knowsPids = rows.some(({ own }) => Number(own) === pidOf(stranger))
      return knowsPids ? new Map(rows.map(({ pid, state }) => [Number(pid), state])) : 'there'
    } catch (error) {
      const code = String((error as { code?: unknown }).code ?? '')
      return /^[0-9A-Z]{5}$/.test(code) && !code.startsWith('57P') ? 'there' : 'gone'
    } finally {
      stranger.end().catch(() => undefined) // nobody waits for a server that may be gone
    }
  }
}

function pidOf(client: ClientBase): number | undefined {
  return (client as unknown as { processID?: number }).processID
}

function cut(client: ClientBase, answerMs: number): void {
  const error = Object.assign(new Error(`The server has not answered for ${answerMs} ms`), { code: 'ETIMEDOUT' })
  const { connection } = client as unknown as { connection?: { stream?: { destroy?(error: Error): void } } }
  connection?.stream?.destroy?.(error)
}
