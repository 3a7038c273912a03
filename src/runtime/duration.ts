import { HoldfastError } from '../errors.ts'

/** `'30s'`, `'5m'`, `'1.5h'`, `'1d'`, `'250ms'`, or a number of milliseconds. */
export type Duration = number | `${number}${'ms' | 's' | 'm' | 'h' | 'd'}`

const unitMs = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const

/** A hundred years: longer than any intended wait, and short enough to add to a date. */
export const durationMaxMs = 36_525 * unitMs.d

export interface DurationRule {
  readonly min?: number
  readonly max?: number
  /** Whether `Infinity` is allowed, as for a retention without end. */
  readonly infinite?: boolean
}

export function toMs(duration: Duration, option: string, rule: DurationRule = {}): number {
  const { min = 0, max = durationMaxMs, infinite = false } = rule
  const ms = parse(duration)
  if (ms === Number.POSITIVE_INFINITY && infinite) return ms
  if (ms === undefined || !Number.isFinite(ms) || ms < min || ms > max) {
    throw new HoldfastError(
      'INVALID_OPTION',
      `${option} must be a duration such as '30s', '5m' or '1d', or milliseconds, ${range(min, max)}; got ${show(duration)}.`,
      { option, value: duration },
    )
  }
  return Math.round(ms)
}

/** The bounds in words. The general maximum is a hundred years. */
function range(min: number, max: number): string {
  const most = max === durationMaxMs ? '100 years' : span(max)
  return min === 0 ? `at most ${most}` : `from ${span(min)} to ${most}`
}

function parse(duration: unknown): number | undefined {
  if (typeof duration === 'number') return duration
  if (typeof duration !== 'string') return undefined
  const match = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(duration)
  if (!match) return undefined
  return Number(match[1]) * unitMs[match[2] as keyof typeof unitMs]
}

export function show(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.length > 80 ? `${value.slice(0, 80)}…` : value)
  if (typeof value === 'bigint') return `the big integer ${value < 1_000_000n && value > -1_000_000n ? value : '…'}`
  if (typeof value === 'function') return 'a function'
  if (typeof value === 'symbol') return 'a symbol'
  if (typeof value !== 'object' || value === null) return String(value)
  if (Array.isArray(value)) return 'an array'
  return value instanceof Date ? 'a date out of range' : 'an object'
}

/** `340 ms`, `12 s`, `3 min`, `5 h`, `2 d` */
export function span(ms: number): string {
  const units: readonly [string, number][] = [
    ['d', 86_400_000],
    ['h', 3_600_000],
    ['min', 60_000],
    ['s', 1_000],
  ]
  for (const [unit, size] of units) {
    if (ms < size) continue
    const amount = ms / size
    return `${amount < 10 && unit !== 'min' ? Number(amount.toFixed(1)) : Math.floor(amount)} ${unit}`
  }
  return `${Math.max(0, Math.round(ms))} ms`
}
