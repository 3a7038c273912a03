/** Where a store takes its time from, in milliseconds since 1970. Tests pass a virtual clock. */
export interface Clock {
  now(): number
  /** Memory that contains the time as one float64, for a store that works in a thread of its own. */
  readonly shared?: SharedArrayBuffer
  /** The timers for every wait in this process; the system's unless given. */
  readonly timers?: Timers
}

/** Time that passes in this process, for every wait in it. */
export interface Timers {
  /** Monotonic milliseconds. */
  now(): number
  /** Calls back once after this many milliseconds. The function that it returns cancels the call. */
  after(ms: number, call: () => void, options?: { readonly keepsProcess?: boolean }): () => void
}

/** What a polling loop uses to wait. */
export interface Pace {
  readonly timers: Timers
  /** From 0 up to, but not including, 1. It keeps the loops of several processes out of step. */
  random(): number
}

export const systemClock: Clock = { now: () => Date.now() }

/** The longest delay of a Node timer. */
const timerMaxMs = 2 ** 31 - 1

export const systemTimers: Timers = {
  now: () => performance.now(),
  after: (ms, call, { keepsProcess = true } = {}) => {
    const timer = setTimeout(call, Math.min(ms, timerMaxMs))
    if (!keepsProcess) timer.unref()
    return () => clearTimeout(timer)
  },
}

/** Resolves after this many milliseconds, or as soon as the signal aborts. */
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

/** A clock that reads the time that another thread writes. */
export function sharedClock(shared: SharedArrayBuffer): Clock {
  const ms = new Float64Array(shared)
  return { now: () => ms[0] as number, shared }
}
