// Cuts connections whose server is gone. A host that vanishes sends nothing: no answer, and no end of the connection. TCP would
// wait a quarter of an hour.
//
//   no answer for `answerMs` ──▶ does the server answer on a new connection? ──no──▶ cut the connection
//                                       │ yes
//                                       ▼
//                     is it at work on this very call? ──yes──▶ look again after another `answerMs`
//                                       │                        (if its commit waits for a standby: it is stalled)
//                                       │ no: it has answered, and the answer is lost
//                                       ▼ (and still no a moment later)
//                                cut the connection
//
// A timeout of the call would also end calls that are only slow: a statement of the application, a row that another transaction
// has locked. So the store asks the server, over a new connection that waits neither for the pool nor for the semaphore. Behind
// a pooler the driver does not know which session works on its call; there any answer counts as work. A call whose connection
// was cut fails as broken, and is made again like any call whose connection broke (`failures.ts`).
//
// STALLED CALLS. A commit waits for a synchronous standby for as long as the standby is away. The server answers everything else,
// so nothing else shows it. Such a call is not made again: it keeps its locks, so a second one would only wait behind it, with
// another connection. An interrupted wait would leave the call committed on this server alone. So the call waits on, and the
// listener is told why. When the standby is back, or is no longer required, the server answers the call by itself.

import type { ClientBase, ClientConfig, Pool } from 'pg'
import type { HoldfastError } from '../../../errors.ts'
import { Alarm } from '../../../runtime/alarm.ts'
import { systemTimers } from '../../../runtime/clock.ts'
import { connectMs } from './address.ts'
import { isBroken, standbyAway } from './failures.ts'

/** What a session does: `standby` means that its commit waits for a synchronous standby. */
type Doing = 'work' | 'nothing' | 'standby'

/** What the server answered; `there`: it answers, and more is not known. */
type Seen = Sessions | 'there' | 'gone'

interface Sessions {
  /** Null behind a pooler: no session is known to be that of a call. */
  readonly byPid: ReadonlyMap<number, Doing> | null
  readonly isAnyStalled: boolean
  /** The setting `synchronous_standby_names`. */
  readonly standbys: string
}

interface Call {
  readonly client: ClientBase
  /** When to look at this call next. */
  lookAt: number
  readonly madeAt: number
  /** What was seen at the last look, which is believed when it is seen again a moment later. */
  seen: Doing
}

/** An answer may be on its way while the server already counts as idle. */
const onItsWayMs = 500
/**
 * Sessions belong to the role of the login, and the server shows what they do only to that role. The login may start with another
 * one (`alter role … set role`), so that one is put aside.
 */
const sessions = `
  begin; set local role none;
  select pid, state, wait_event is not distinct from 'SyncRep' as stalled, pg_backend_pid() as own,
         current_setting('synchronous_standby_names') as standbys
    from pg_stat_activity where usename = session_user;
  commit`

interface SessionRow {
  readonly pid: number
  readonly state: string | null
  readonly stalled: boolean
  readonly own: number
  readonly standbys: string
}

export class ResponseWatchdog {
  readonly #pool: Pool
  readonly #answerMs: number
  /** Calls without an answer yet; most are answered long before their first look. */
  readonly #calls = new Set<Call>()
  readonly #alarm = new Alarm(systemTimers, () => this.#lookAtDue(), { keepsProcess: false })
  #looking: Promise<Seen> | null = null
  /** Calls whose commits wait for a standby. */
  readonly #stalled = new Set<Call>()
  #stall: HoldfastError | null = null
  #onStall: ((stall: HoldfastError | null) => void) | null = null

  constructor(pool: Pool, answerMs: number) {
    this.#pool = pool
    this.#answerMs = answerMs
  }

  /** Why commits wait; null: none is known to. */
  get stall(): HoldfastError | null {
    return this.#stall
  }

  /** Called when commits are found to wait, and with null when they have been answered. */
  onStall(listener: (stall: HoldfastError | null) => void): void {
    this.#onStall = listener
  }

  /** Waits for the answer, and cuts the connection if none will come. */
  async over<T>(client: ClientBase, answer: Promise<T>): Promise<T> {
    const now = systemTimers.now()
    const call: Call = { client, madeAt: now, lookAt: now + this.#answerMs, seen: 'work' }
    this.#calls.add(call)
    this.#alarm.by(call.lookAt)
    try {
      const answered = await answer
      if (this.#stall) this.#answered(call)
      return answered
    } catch (error) {
      if (this.#stall && !isBroken(error)) this.#answered(call)
      throw error
    } finally {
      this.#calls.delete(call)
      this.#stalled.delete(call)
    }
  }

  /** If a connection broke, the answer to another call ends the stall: the call whose connection broke is made again. */
  #answered(call: Call): void {
    this.#stalled.delete(call)
    if (this.#stalled.size > 0) return
    this.#stall = null
    this.#onStall?.(null)
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
    this.#looking ??= this.#look().finally(() => {
      this.#looking = null
    })
    const seen = await this.#looking
    if (!this.#calls.has(call)) return // answered meanwhile
    const doing = seen === 'gone' ? 'gone' : doingOf(call.client, seen)
    if (doing === 'gone' || (doing === 'nothing' && call.seen === 'nothing')) return cut(call.client, this.#answerMs)
    const isSeenAgain = doing === call.seen
    if (doing !== 'standby') this.#stalled.delete(call)
    else if (isSeenAgain) this.#stalls(call, (seen as Sessions).standbys)
    call.seen = doing
    call.lookAt = systemTimers.now() + (doing === 'work' || isSeenAgain ? this.#answerMs : onItsWayMs)
    this.#alarm.by(call.lookAt)
  }

  #stalls(call: Call, standbys: string): void {
    this.#stalled.add(call)
    if (this.#stall) return
    this.#stall = standbyAway({ standbys, waitedMs: Math.round(systemTimers.now() - call.madeAt) })
    this.#onStall?.(this.#stall)
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
      const answers = (await probe.query(sessions)) as unknown as readonly { readonly rows: readonly SessionRow[] }[]
      const rows = answers[2]?.rows ?? []
      const knowsPids = rows.some(({ own }) => Number(own) === pidOf(probe))
      return {
        byPid: knowsPids ? new Map(rows.map((row) => [Number(row.pid), doingIn(row)])) : null,
        isAnyStalled: rows.some(({ stalled }) => stalled),
        standbys: rows[0]?.standbys ?? '',
      }
    } catch (error) {
      const code = String((error as { code?: unknown }).code ?? '')
      return /^[0-9A-Z]{5}$/.test(code) && !code.startsWith('57P') ? 'there' : 'gone'
    } finally {
      probe.end().catch(() => undefined) // not awaited: the server may be gone
    }
  }
}

function doingIn({ state, stalled }: SessionRow): Doing {
  if (stalled) return 'standby'
  return state?.startsWith('idle') ? 'nothing' : 'work'
}

function doingOf(client: ClientBase, seen: Sessions | 'there'): Doing {
  if (seen === 'there') return 'work'
  if (seen.byPid === null) return seen.isAnyStalled ? 'standby' : 'work'
  return seen.byPid.get(pidOf(client) ?? 0) ?? 'nothing'
}

function pidOf(client: ClientBase): number | undefined {
  return (client as unknown as { processID?: number }).processID
}

function cut(client: ClientBase, answerMs: number): void {
  const error = Object.assign(new Error(`The server has not answered for ${answerMs} ms`), { code: 'ETIMEDOUT' })
  const { connection } = client as unknown as { connection?: { stream?: { destroy?(error: Error): void } } }
  connection?.stream?.destroy?.(error)
}
