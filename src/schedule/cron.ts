// The slots of a cron expression. A slot is a moment in UTC. The expression is evaluated on a wall clock of the time zone.
//
// WHEN THAT CLOCK IS MOVED. An expression for all hours (`*/30 * * * *`) keeps firing through both changes. An expression that
// names hours, be it one, a list, a range or steps, follows the wall:
// - Times that are skipped fire once, together, at the moment at which the clock is moved past them.
// - Times that come twice fire the first time only.
//
// Croner does this for a single hour and not for `30 2,14 * * *`. So expressions that name hours are evaluated as if the wall
// were UTC, and each result is mapped to its moment (`wall-clock.ts`). That mapping never decreases, so the slots do not depend
// on the time from which the search starts.

import { Cron } from 'croner'
import { HoldfastError } from '../errors.ts'
import { show } from '../runtime/duration.ts'
import { WallClock } from './wall-clock.ts'

export interface SlotTimes {
  /** The first slot after this time; null: there are no more slots. */
  next(after: number): number | null
  /** The last `count` slots up to and including this time, in their order. */
  latest(count: number, until: number): number[]
}

const cronLength = 255
/**
 * A cache of parsed expressions, the least recently used first. Parsing takes some 0.4 ms, as long as a search for a slot.
 * When the cache is full, the first is removed. So an expression that is in use stays, however many others there are.
 */
const known = new Map<string, SlotTimes>()
const knownMax = 1_000

/** Throws INVALID_OPTION if the expression or the time zone is invalid. */
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

/** Also throws INVALID_OPTION if the expression has no future slot. */
export function checkCron(cron: unknown, timeZone: unknown): { readonly cron: string; readonly timeZone: string } {
  const checked = requireCron(cron, timeZone)
  // Croner also takes a seventh field, of years. It is refused here only, so that a stored schedule that has one still fires.
  if (fieldsOf(checked.cron).length > 6) throw unparsable(checked.cron)
  if (slotTimes(checked.cron, checked.timeZone).next(Date.now()) !== null) return checked
  throw invalid('cron', cron, `cron ${show(cron)} names a time that never occurs.`)
}

/** Throws INVALID_OPTION if the expression or the time zone is invalid. */
export function requireCron(cron: unknown, timeZone: unknown): { readonly cron: string; readonly timeZone: string } {
  if (typeof cron === 'string' && typeof timeZone === 'string' && known.has(keyOf(cron, timeZone)))
    return { cron, timeZone }
  if (!isTimeZone(timeZone)) {
    throw invalid('timeZone', timeZone, `timeZone must be an IANA name such as 'Europe/Berlin'; got ${show(timeZone)}.`)
  }
  const isText = typeof cron === 'string' && cron.trim() !== '' && cron.length <= cronLength && !cron.includes(':')
  if (!isText) {
    throw invalid('cron', cron, `cron must be five or six fields such as '30 2 * * *', or '@daily'; got ${show(cron)}.`)
  }
  slotTimes(cron, timeZone)
  return { cron, timeZone }
}

function toTimes(cron: string, timeZone: string): SlotTimes {
  return isForAllHours(cron) ? timesOfAllHours(parsed(cron, timeZone)) : timesOnWall(cron, timeZone)
}

function timesOfAllHours(expression: Cron): SlotTimes {
  return {
    next: (after) => nextOf(expression, after),
    latest: (count, until) => latestOf(expression, count, until),
  }
}

function timesOnWall(cron: string, timeZone: string): SlotTimes {
  const onWall = parsed(cron, 'UTC')
  const clock = wallClockOf(timeZone)
  return {
    next(after) {
      const wall = nextOf(onWall, clock.latestShown(after))
      return wall === null ? null : clock.firstMoment(wall)
    },
    latest(count, until) {
      let wall = clock.latestShown(until)
      const slots: number[] = []
      while (slots.length < count) {
        const [last] = latestOf(onWall, 1, wall)
        if (last === undefined) break
        const slot = clock.firstMoment(last)
        if (slot !== slots.at(-1)) slots.push(slot)
        wall = last - 1
      }
      return slots.reverse()
    },
  }
}

function nextOf(expression: Cron, after: number): number | null {
  return expression.nextRun(new Date(after))?.getTime() ?? null
}

/** Croner searches strictly before a whole second. */
function latestOf(expression: Cron, count: number, until: number): number[] {
  const before = new Date(Math.floor(until / 1_000) * 1_000 + 1_000)
  return expression
    .previousRuns(count, before)
    .map((slot) => slot.getTime())
    .reverse()
}

/** Whether the field of hours has all of them, however it is written: `*`, `0-23`, `*\/1`, `0-11,12-23`. */
function isForAllHours(cron: string): boolean {
  const fields = fieldsOf(cron)
  if (fields.length === 1) return /^@hourly$/i.test(cron.trim())
  const hours = new Set<number>()
  for (const part of (fields[fields.length === 5 ? 1 : 2] ?? '').split(',')) {
    const [range = '', step = '1'] = part.split('/')
    const [first = 0, last = first] = /^[*?]$/.test(range) ? [0, 23] : range.split('-').map(Number)
    for (let hour = first; hour <= last && hour < 24 && Number(step) > 0; hour += Number(step)) hours.add(hour)
  }
  return hours.size === 24
}

function wallClockOf(timeZone: string): WallClock {
  try {
    return new WallClock(timeZone)
  } catch (cause) {
    throw invalid('timeZone', timeZone, `There is no time zone ${show(timeZone)}.`, cause)
  }
}

/** Without a function to call, Croner only computes times and sets no timer. */
function parsed(cron: string, timeZone: string): Cron {
  try {
    return new Cron(cron, { timezone: timeZone, paused: true })
  } catch (cause) {
    throw unparsable(cron, cause)
  }
}

function fieldsOf(cron: string): string[] {
  return cron.trim().split(/\s+/)
}

const nicknames = '@hourly, @daily, @weekly, @monthly or @yearly'
const ofNumbers = 'lists, ranges and steps of them (1,5 or 1-5 or */2), or *'
/** From the second on; an expression of five fields begins with the minute. */
const fieldRules: readonly { readonly name: string; readonly allowed: string }[] = [
  { name: 'second', allowed: `0 to 59, ${ofNumbers}` },
  { name: 'minute', allowed: `0 to 59, ${ofNumbers}` },
  { name: 'hour', allowed: `0 to 23, ${ofNumbers}` },
  { name: 'day of the month', allowed: `1 to 31, L (the last day), ${ofNumbers}` },
  { name: 'month', allowed: `1 to 12, JAN to DEC, ${ofNumbers}` },
  {
    name: 'day of the week',
    allowed: `0 to 7 (0 and 7 are Sunday), SUN to SAT, 5#2 (the second Friday), 5L (the last Friday), ${ofNumbers}`,
  },
]

/** Croner's own sentences count days and months from 0. */
function unparsable(cron: string, cause?: unknown): HoldfastError {
  const sentence = (why: string) => `cron ${show(cron)} cannot be parsed: ${why}.`
  const fields = fieldsOf(cron)
  const rules = fieldRules.slice(fieldRules.length - fields.length)
  const at = rules.length === fields.length && fields.length > 4 ? fields.findIndex(isWrongAlone) : -1
  const rule = rules[at]
  if (rule) {
    return invalid(
      'cron',
      cron,
      sentence(`its ${rule.name} is ${show(fields[at])}; allowed are ${rule.allowed}`),
      cause,
    )
  }
  const has = fields.length === 1 ? 'it has 1 field' : `it has ${fields.length} fields`
  const allowed = `allowed are five fields (minute first), six (second first), or ${nicknames}`
  return invalid('cron', cron, sentence(`${has}; ${allowed}`), cause)
}

/** Whether the field is wrong among fields that are right. */
function isWrongAlone(field: string, at: number, fields: readonly string[]): boolean {
  try {
    new Cron(fields.map((_, i) => (i === at ? field : '*')).join(' '), { paused: true })
    return false
  } catch {
    return true
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
