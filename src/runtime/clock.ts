/** Where a store takes its time from. Milliseconds since 1970; a virtual one stands in under test. */
export interface Clock {
  now(): number
  /** Where the time lies as one float64, for a store that works in a thread of its own. */
  readonly shared?: SharedArrayBuffer
  /** What waits in this process waits by these; the system's unless given. */
  readonly timers?: Timers
}

/** Time that passes in this process, for whoever waits. */
export interface Timers {
  /** Milliseconds that only ever grow. */
  now(): number
  /** Calls back once, after so many milliseconds; answers how to call it off. */
  after(ms: number, call: () => void, options?: { readonly keepsProcess?: boolean }): () => void
}

/** What somebody who looks again and again waits by. */
export interface Pace {
  readonly timers: Timers
  /** From 0 up to but not 1: keeps processes out of step. */
  random(): number
}

export const systemClock: Clock = { now: () => Date.now() }

/** The longest a timer of Node's can wait. */
const timerMaxMs = 2 ** 31 - 1

export const systemTimers: Timers = {
  now: () => performance.now(),
  after: (ms, call, { keepsProcess = true } = {}) => {
    const timer = setTimeout(call, Math.min(ms, timerMaxMs))
    if (!keepsProcess) timer.unref()
    return () => clearTimeout(timer)
  },
}

/** Resolves after so many milliseconds, or as soon as the signal aborts. */
export function pause(timers: Timers, ms: number, signal?: AbortSignal): Promise<void> {
  if (signal?.aborted) return Promise.resolve()
  return new Promise((resolve) => {
    const finish = () => {
      callOff()
      signal?.removeEventListener('abort', finish)
      resolve()
    }
    const callOff = timers.after(ms, finish)
    signal?.addEventListener('abort', finish)
  })
}

/** A clock that reads what another thread writes. */
export function sharedClock(shared: SharedArrayBuffer): Clock {
  const ms = new Float64Array(shared)
  return { now: () => ms[0] as number, shared }
}
