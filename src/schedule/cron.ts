// When the slots of a cron expression are. A slot is a moment in UTC; which moments they are is told by the expression read
// on a wall clock of the time zone. Where that clock is moved, an expression that names an hour is met once: in the hour
// that is skipped as soon as it is over, in the hour that comes twice the first time. One that goes on through all hours
// (`*/30 * * * *`) goes on through these, too. The answer does not depend on from when on it is asked.

import { Cron } from 'croner'
import { HoldfastError } from '../errors.ts'
import { show } from '../runtime/duration.ts'

export interface SlotTimes {
  /** The first slot behind this time; null: there is none any more. */
  next(after: number): number | null
  /** The last `count` slots up to this time, it included, in their order. */
  latest(count: number, until: number): number[]
}

const cronLength = 255
/**
 * Expressions that are parsed, the one that was used longest ago first. Parsing takes some 0.4 ms, as long as a search for a
 * slot. Where there are more, the oldest goes: one that is in use stays, however many others come by.
 */
const known = new Map<string, SlotTimes>()
const knownMax = 1_000

/** Throws INVALID_OPTION where one of them is none. */
export function slotTimes(cron: string, timeZone: string): SlotTimes {
  const key = keyOf(cron, timeZone)
  const times = known.get(key) ?? toTimes(cron, timeZone)
  known.delete(key)
  known.set(key, times)
  const [oldest] = known.size > knownMax ? known.keys() : []
  if (oldest !== undefined) known.delete(oldest)
  return times
}

function keyOf(cron: string, timeZone: string): string {
  return `${timeZone} ${cron}`
}

/** Throws INVALID_OPTION, too, where no slot would ever come. */
export function checkCron(cron: unknown, timeZone: unknown): { readonly cron: string; readonly timeZone: string } {
  const checked = requireCron(cron, timeZone)
  if (slotTimes(checked.cron, checked.timeZone).next(Date.now()) !== null) return checked
  throw invalid('cron', cron, `cron ${show(cron)} names a time that never comes.`)
}

/** Throws INVALID_OPTION where one of them is none. */
export function requireCron(cron: unknown, timeZone: unknown): { readonly cron: string; readonly timeZone: string } {
  if (typeof cron === 'string' && typeof timeZone === 'string' && known.has(keyOf(cron, timeZone)))
    return { cron, timeZone }
  if (!isTimeZone(timeZone)) {
    throw invalid('timeZone', timeZone, `timeZone is an IANA name such as 'Europe/Berlin'; got ${show(timeZone)}.`)
  }
  const isText = typeof cron === 'string' && cron.trim() !== '' && cron.length <= cronLength && !cron.includes(':')
  if (!isText) {
    throw invalid('cron', cron, `cron is five or six fields such as '30 2 * * *', or '@daily'; got ${show(cron)}.`)
  }
  slotTimes(cron, timeZone)
  return { cron, timeZone }
}

function toTimes(cron: string, timeZone: string): SlotTimes {
  const expression = parsed(cron, timeZone)
  return {
    next: (after) => expression.nextRun(new Date(after))?.getTime() ?? null,
    latest(count, until) {
      // Croner looks for what lies before a whole second.
      const before = new Date(Math.floor(until / 1_000) * 1_000 + 1_000)
      return expression
        .previousRuns(count, before)
        .map((slot) => slot.getTime())
        .reverse()
    },
  }
}

/** Without a function to call it only reckons, and sets no timer. */
function parsed(cron: string, timeZone: string): Cron {
  try {
    return new Cron(cron, { timezone: timeZone, paused: true })
  } catch (cause) {
    const why = (cause as Error).message.replace(/^\w+: /, '').replace(/\.$/, '')
    throw invalid('cron', cron, `cron ${show(cron)} cannot be read: ${why}.`, cause)
  }
}

function isTimeZone(timeZone: unknown): timeZone is string {
  if (typeof timeZone !== 'string') return false
  try {
    return new Intl.DateTimeFormat('en', { timeZone }) !== null
  } catch {
    return false
  }
}

function invalid(option: string, value: unknown, message: string, cause?: unknown): HoldfastError {
  return new HoldfastError('INVALID_OPTION', message, { option, value }, { cause })
}
