import { HoldfastError } from '../../errors.ts'
import type { Backoff } from '../../job/backoff.ts'
import { checkInteger, checkOptions } from '../../job/names.ts'
import { type Duration, show, toMs } from '../../runtime/duration.ts'

export interface ResourceOptions<T> {
  /** Starts the resource, at the first `acquire` and after every stop. The signal aborts when that takes too long. */
  readonly start: (signal: AbortSignal) => T | Promise<T>
  /** Stops the resource. If it throws, the error is kept for `health`, and the restart goes on. */
  readonly stop?: (it: T) => unknown
  /** Called after a start, and before each `acquire` resolves; any answer but true restarts the resource. */
  readonly isHealthy?: (it: T) => boolean | Promise<boolean>
  /** How long users may go on before a restart; then their signals abort. `'30s'` unless given. */
  readonly drain?: Duration
  /** `'30s'` unless given. */
  readonly startTimeout?: Duration
  /** `'10s'` unless given. */
  readonly stopTimeout?: Duration
  /** After this many failures of users in a row it is restarted; 3 unless given, 0 for never. */
  readonly restartAfterFailures?: number
  /** The pause after a start that failed: twice as long each time, up to the cap. */
  readonly backoff?: { readonly base?: Duration; readonly max?: Duration }
}

/** The options, checked, with defaults. */
export interface ResourcePlan<T> {
  readonly start: (signal: AbortSignal) => T | Promise<T>
  readonly stop: (it: T) => unknown
  readonly isHealthy: ((it: T) => boolean | Promise<boolean>) | null
  readonly drainMs: number
  readonly startTimeoutMs: number
  readonly stopTimeoutMs: number
  readonly failuresMax: number
  readonly backoff: Backoff
}

const names = [
  ...['start', 'stop', 'isHealthy', 'drain', 'startTimeout', 'stopTimeout', 'restartAfterFailures', 'backoff'],
] as const
const dayMs = 86_400_000

export function toPlan<T>(options: ResourceOptions<T>): ResourcePlan<T> {
  checkOptions(options, 'resource options', names)
  const { drain = '30s', startTimeout = '30s', stopTimeout = '10s', backoff = {} } = options
  checkOptions(backoff, 'backoff', ['base', 'max'])
  return {
    start: checkFunction(options.start, 'start'),
    stop: checkFunction(options.stop ?? (() => undefined), 'stop'),
    isHealthy: options.isHealthy === undefined ? null : checkFunction(options.isHealthy, 'isHealthy'),
    drainMs: toMs(drain, 'drain', { max: dayMs }),
    startTimeoutMs: toMs(startTimeout, 'startTimeout', { min: 1, max: dayMs }),
    stopTimeoutMs: toMs(stopTimeout, 'stopTimeout', { min: 1, max: dayMs }),
    failuresMax: checkInteger(options.restartAfterFailures ?? 3, 'restartAfterFailures', 0, 1_000_000),
    backoff: {
      baseMs: toMs(backoff.base ?? '250ms', 'backoff.base', { min: 1, max: dayMs }),
      factor: 2,
      maxMs: toMs(backoff.max ?? '30s', 'backoff.max', { min: 1, max: dayMs }),
      jitter: 0.2,
    },
  }
}

// biome-ignore lint/suspicious/noExplicitAny: any function, whatever it takes
function checkFunction<F extends (...args: any[]) => unknown>(value: F, option: string): F {
  if (typeof value === 'function') return value
  throw new HoldfastError('INVALID_OPTION', `${option} must be a function; got ${show(value)}.`, { option })
}
