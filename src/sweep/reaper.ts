// A reaper finds rows of the application's own tables that were left behind, and enqueues a job for each: work that was recorded,
// but whose job was never enqueued, or has ended without finishing it. The dedup key of the job makes this safe: a row whose job
// is live gets no second one, however many reapers find it, and however often.
//
// TURNS. Every process may run a reaper. They take turns, so that they do not all search at once. The time of the last turn is in
// the key-value store (`holdfast.reaper.<name>`). When the interval is over by the store's clock, the first process that updates
// this entry has the turn. If that process dies, the next turn is taken by another one.
//
// FAILURES do not stop it. A search that fails or hangs, a row that cannot be enqueued and a store that is unavailable are
// emitted as events, and the next turn searches again. The failure is stored beside the time of the last turn until a search
// succeeds, so that the doctor can report it.

import { HoldfastError, isHoldfastError } from '../errors.ts'
import type { Events } from '../events.ts'
import { checkReaperName } from '../job/names.ts'
import type { Kv } from '../kv/kv.ts'
import { orAborted } from '../runtime/aborted.ts'
import { Alarm } from '../runtime/alarm.ts'
import type { Timers } from '../runtime/clock.ts'
import type { Enqueued } from '../store/store.ts'
import type { ReaperPlan, Revival } from './reaper-options.ts'
import { errorLength, type ReaperTurn, reaperKeyPrefix, toTurn } from './reaper-turn.ts'

/** The part of the client that a reaper uses. */
export interface ReaperContext {
  readonly kv: Kv
  readonly events: Events
  readonly timers: Timers
  time(): Promise<number>
  enqueue(revival: Revival): Promise<Enqueued>
  stopped(reaper: Reaper): void
}

export interface ReaperReport {
  /** Rows that the search returned. */
  readonly found: number
  /** Rows that got a job. */
  readonly revived: number
  /** Rows that already had one. */
  readonly duplicates: number
  /** Rows for which no job could be enqueued. */
  readonly failed: number
}

/** How many rows are enqueued at a time. */
const togetherMax = 100
/** How often writing the failure is tried, while other processes take turns. */
const triesMax = 5

export class Reaper {
  readonly name: string
  readonly #context: ReaperContext
  readonly #plan: ReaperPlan
  readonly #alarm: Alarm
  readonly #halt = new AbortController()
  #searching: Promise<void> | null = null

  constructor(context: ReaperContext, name: string, plan: ReaperPlan) {
    this.name = checkReaperName(name)
    this.#context = context
    this.#plan = plan
    this.#alarm = new Alarm(context.timers, () => this.#search())
  }

  start(): this {
    this.#alarm.by(this.#context.timers.now())
    return this
  }

  /** Searches now, also out of turn. Rejects if the search fails. */
  async run(): Promise<ReaperReport> {
    const startedAt = this.#context.timers.now()
    try {
      const { report, error } = await this.#revive(await this.#find())
      await this.#remember(error)
      const durationMs = this.#context.timers.now() - startedAt
      this.#context.events.emit('reaper.ran', { reaper: this.name, ...report, durationMs })
      return report
    } catch (error) {
      if (!this.#halt.signal.aborted) await this.#remember(toError(error))
      throw error
    }
  }

  /**
   * Stops the reaper. A search under way is called off. A call to the store that was sent may still be carried out: another
   * process then has its job, or the next turn finds the row again.
   */
  async stop(): Promise<void> {
    this.#halt.abort(new HoldfastError('CLOSED', `Reaper ${this.name} was stopped.`))
    this.#alarm.stop()
    await this.#searching
    this.#context.stopped(this)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop()
  }

  #search(): void {
    this.#searching ??= this.#searchOnce().finally(() => {
      this.#searching = null
    })
  }

  async #searchOnce(): Promise<void> {
    let waitMs = this.#plan.everyMs
    const { signal } = this.#halt
    try {
      const turn = await orAborted(this.#takeTurn(), signal)
      if (turn === 0) await orAborted(this.run(), signal)
      else waitMs = turn ?? waitMs
    } catch (error) {
      if (!this.#halt.signal.aborted && !isHoldfastError(error, 'CLOSED')) this.#emitFailed(error)
    }
    if (!this.#halt.signal.aborted) this.#alarm.by(this.#context.timers.now() + waitMs)
  }

  /**
   * Milliseconds until the next turn; 0: this process has it now. A time ahead of the clock was written before it was set back.
   */
  async #takeTurn(): Promise<number> {
    const { kv } = this.#context
    const { everyMs } = this.#plan
    const entry = await kv.get(this.#key)
    const now = await this.#context.time()
    const turn = toTurn(entry?.value)
    const leftMs = turn === null ? 0 : turn.turnAt + everyMs - now
    if (turn !== null && leftMs > 0 && turn.turnAt <= now) return leftMs
    const next: ReaperTurn = { turnAt: now, everyMs, failure: turn?.failure ?? null }
    const { applied } = await kv.compareAndSet(this.#key, entry?.version ?? null, next)
    return applied ? 0 : everyMs
  }

  /** Stores that the search failed, or that it succeeds again. If that cannot be written, the next turn writes it. */
  async #remember(error: Error | null): Promise<void> {
    const { kv } = this.#context
    try {
      for (let tries = 0; tries < triesMax; tries++) {
        const entry = await kv.get(this.#key)
        const turn = toTurn(entry?.value)
        if (turn === null || (turn.failure === null && error === null)) return
        const since = turn.failure?.since ?? (await this.#context.time())
        const failure = error && { since, error: String(error.message).slice(0, errorLength) }
        const { applied } = await kv.compareAndSet(this.#key, entry?.version ?? null, { ...turn, failure })
        if (applied) return
      }
    } catch {
      // The store is unavailable; other calls report that.
    }
  }

  get #key(): string {
    return reaperKeyPrefix + this.name
  }

  async #find(): Promise<unknown[]> {
    const { batch, timeoutMs, find } = this.#plan
    const tooLong = new Error(`The search took longer than ${timeoutMs} ms.`)
    const late = new AbortController()
    const callOff = this.#context.timers.after(timeoutMs, () => late.abort(tooLong))
    const signal = AbortSignal.any([this.#halt.signal, late.signal])
    const search = async () => {
      const rows: unknown[] = []
      for await (const row of await find({ limit: batch, signal })) if (rows.push(row) >= batch) break
      return rows
    }
    return Promise.race([search(), whenAborted(signal)]).finally(callOff)
  }

  /** With the last error of a row that could not be enqueued. */
  async #revive(rows: readonly unknown[]): Promise<{ readonly report: ReaperReport; readonly error: Error | null }> {
    const report = { found: rows.length, revived: 0, duplicates: 0, failed: 0 }
    let error: Error | null = null
    for (let at = 0; at < rows.length && !this.#halt.signal.aborted; at += togetherMax) {
      const answers = await Promise.allSettled(rows.slice(at, at + togetherMax).map((row) => this.#enqueue(row)))
      for (const answer of answers) {
        if (answer.status === 'rejected') {
          report.failed += 1
          error = this.#emitFailed(answer.reason)
        } else if (answer.value?.status === 'created') report.revived += 1
        else if (answer.value) report.duplicates += 1
      }
    }
    return { report, error }
  }

  async #enqueue(row: unknown): Promise<Enqueued | null> {
    const revival = this.#plan.toRevival(row)
    if (revival === null) return null
    if (Object(revival).dedup !== undefined) return this.#context.enqueue(revival)
    const wanted = `Reaper ${this.name} must enqueue { queue, payload, dedup: { key } }: the key keeps a row from getting two jobs.`
    throw new HoldfastError('INVALID_OPTION', wanted, { option: 'dedup' })
  }

  #emitFailed(thrown: unknown): Error {
    const error = toError(thrown)
    this.#context.events.emit('reaper.failed', { reaper: this.name, error })
    return error
  }
}

function toError(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error(String(thrown))
}

function whenAborted(signal: AbortSignal): Promise<never> {
  const { promise, reject } = Promise.withResolvers<never>()
  const refuse = () => reject(signal.reason)
  if (signal.aborted) refuse()
  else signal.addEventListener('abort', refuse, { once: true })
  return promise
}
