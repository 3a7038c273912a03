// Callers of this process that wait for jobs to end. One call to the store asks about all of these jobs; if their results are
// large, the store answers for the first ones, and the next call asks for the rest. The call is made at once when
// this process settles one of them. Otherwise it is repeated, less often the longer the callers have waited. So the end of a job
// that took a second elsewhere is seen at most a quarter of a second late, and a job that takes an hour costs a call a second.

import { HoldfastError } from '../errors.ts'
import type { JobOutcome } from '../job/record.ts'

const pauseMinMs = 10
const pauseMaxMs = 1_000
/** How late a poll may be, as a share of the time waited so far. */
const lateness = 0.25

/** Answers for the first of these ids, at least for one. */
export type Ask = (ids: readonly string[]) => Promise<(JobOutcome | 'live' | null)[]>

interface Waiting {
  readonly id: string
  readonly since: number
  /** Null: the job does not exist, or not any more. */
  readonly resolve: (outcome: JobOutcome | null) => void
  readonly fail: (error: unknown) => void
}

export class Results {
  readonly #ask: Ask
  readonly #waiting = new Set<Waiting>()
  /** How many callers wait for each job. */
  readonly #callers = new Map<string, number>()
  #timer: NodeJS.Timeout | undefined
  #asking = false
  #again = false

  constructor(ask: Ask) {
    this.#ask = ask
  }

  async wait(id: string, timeoutMs: number, signal?: AbortSignal): Promise<JobOutcome | null> {
    const { promise, resolve, reject: fail } = Promise.withResolvers<JobOutcome | null>()
    const waiting = { id, since: performance.now(), resolve, fail }
    const timer = setTimeout(() => fail(timedOut(id, timeoutMs)), Math.min(timeoutMs, timerMaxMs))
    const abort = () => fail(signal?.reason)
    signal?.addEventListener('abort', abort, { once: true })
    if (signal?.aborted) abort()
    this.#waiting.add(waiting)
    this.#callers.set(id, (this.#callers.get(id) ?? 0) + 1)
    this.#poll()
    try {
      return await promise
    } finally {
      this.#waiting.delete(waiting)
      const left = (this.#callers.get(id) ?? 1) - 1
      if (left > 0) this.#callers.set(id, left)
      else this.#callers.delete(id)
      clearTimeout(timer)
      signal?.removeEventListener('abort', abort)
    }
  }

  get size(): number {
    return this.#waiting.size
  }

  /** This process has learned that the job has ended. */
  hint(id: string): void {
    if (this.#callers.has(id)) this.#poll()
  }

  close(): void {
    clearTimeout(this.#timer)
    for (const { fail } of this.#waiting)
      fail(new HoldfastError('CLOSED', 'This Holdfast was closed during the wait. The job is not affected.'))
  }

  #poll(): void {
    if (this.#asking) this.#again = true
    else void this.#askAll()
  }

  async #askAll(): Promise<void> {
    this.#asking = true
    this.#again = false
    clearTimeout(this.#timer)
    const asked = [...this.#waiting]
    const callers = Map.groupBy(asked, ({ id }) => id)
    try {
      let ids = [...callers.keys()]
      while (ids.length > 0) {
        const outcomes = await this.#ask(ids)
        if (outcomes.length === 0) throw new Error('The store has answered for no job.')
        for (const [i, outcome] of outcomes.entries()) {
          if (outcome !== 'live') for (const { resolve } of callers.get(ids[i] as string) ?? []) resolve(outcome)
        }
        ids = ids.slice(outcomes.length)
      }
    } catch (error) {
      for (const { fail } of asked) fail(error)
    }
    this.#asking = false
    if (this.#again) return this.#askAll()
    this.#pause(asked)
  }

  /** The timeout of each caller keeps the process alive; this timer does not. */
  #pause(asked: readonly Waiting[]): void {
    const now = performance.now()
    const least = asked.reduce((ms, { since }) => Math.min(ms, (now - since) * lateness), pauseMaxMs)
    const ms = Math.max(pauseMinMs, least)
    this.#timer = setTimeout(() => {
      if (this.#waiting.size > 0) this.#poll()
    }, ms).unref()
  }
}

const timerMaxMs = 2 ** 31 - 1

function timedOut(id: string, timeoutMs: number): HoldfastError {
  return new HoldfastError(
    'WAIT_TIMEOUT',
    `Job ${id} did not end within ${timeoutMs} ms. The job is not affected; wait again, or longer.`,
    { id, timeoutMs },
  )
}
