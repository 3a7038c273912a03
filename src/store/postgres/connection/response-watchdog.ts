// Cuts connections whose server is gone. A host that vanishes sends nothing: no answer, and no end of the connection. TCP would
// wait a quarter of an hour.
//
//   no answer for `answerMs` ──▶ does the server answer on a new connection? ──no──▶ cut the connection
//                                       │ yes
//                                       ▼
//                     is it at work on this very call? ──yes──▶ look again after another `answerMs`
//                                       │ no: it has answered, and the answer is lost
//                                       ▼ (and still no a moment later)
//                                cut the connection
//
// A timeout of the call would also end calls that are only slow: a statement of the application, a row that another transaction
// has locked. So the store asks the server, over a new connection that waits neither for the pool nor for the semaphore. Behind
// a pooler the driver does not know which session works on its call; there any answer counts as work. A call whose connection
// was cut fails as broken, and is made again like any call whose connection broke (`failures.ts`).

import type { ClientBase, ClientConfig, Pool } from 'pg'
import { Alarm } from '../../../runtime/alarm.ts'
import { systemTimers } from '../../../runtime/clock.ts'
import { connectMs } from './address.ts'

/** The state of each session of the server; `there`: the server answers, and more is not known. */
type Seen = ReadonlyMap<number, string | null> | 'there' | 'gone'

interface Call {
  readonly client: ClientBase
  /** When to look at this call next. */
  lookAt: number
  /** At the last look the server was not at work on it. */
  wasIdle: boolean
}

/** An answer may be on its way while the server already counts as idle. */
const onItsWayMs = 500
const sessions = 'select pid, state, pg_backend_pid() as own from pg_stat_activity where usename = current_user'

export class ResponseWatchdog {
  readonly #pool: Pool
  readonly #answerMs: number
  /** Calls without an answer yet; most are answered long before their first look. */
  readonly #calls = new Set<Call>()
  readonly #alarm = new Alarm(systemTimers, () => this.#lookAtDue(), { keepsProcess: false })
  #looking: Promise<Seen> | null = null

  constructor(pool: Pool, answerMs: number) {
    this.#pool = pool
    this.#answerMs = answerMs
  }

  /** Waits for the answer, and cuts the connection if none will come. */
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

  #lookAtDue(): void {
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

  /** A server that answers with an error is there, unless the error is that it shuts down or starts (57P). */
  async #look(): Promise<Seen> {
    const { Client, options } = this.#pool as unknown as {
      readonly Client: new (options: ClientConfig) => ClientBase & { connect(): Promise<void>; end(): Promise<void> }
      readonly options: ClientConfig
    }
    // Not `answerMs`, which may be shorter: the server may be busy.
    const timeouts = { connectionTimeoutMillis: connectMs, query_timeout: connectMs }
    const { password, ssl } = options as { password: never; ssl: never } // which a pool hides from a copy of its options
    const probe = new Client({ ...options, password, ssl, ...timeouts })
    probe.on('error', () => undefined)
    try {
      await probe.connect()
      const { rows } = await probe.query<{ pid: number; state: string | null; own: number }>(sessions)
      const knowsPids = rows.some(({ own }) => Number(own) === pidOf(probe))
      return knowsPids ? new Map(rows.map(({ pid, state }) => [Number(pid), state])) : 'there'
    } catch (error) {
      const code = String((error as { code?: unknown }).code ?? '')
      return /^[0-9A-Z]{5}$/.test(code) && !code.startsWith('57P') ? 'there' : 'gone'
    } finally {
      probe.end().catch(() => undefined) // not awaited: the server may be gone
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
