// Times as people and programs write them. The engine's own `new Date(text)` guesses: it takes "yesterday 5" for May 2001, and
// a range that begins there has every job.

const form = /^(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(Z|[+-]\d\d:\d\d)?)?$/

/**
 * Milliseconds since 1970 of an ISO 8601 date, or date and time. Both are UTC unless a zone is given. Undefined: it is no such
 * text, or the calendar has no such time.
 */
export function parseTime(text: string): number | undefined {
  const match = form.exec(text)
  if (match === null) return undefined
  const [, year, month, day, hour = '0', minute = '0', second = '0', fraction = '', zone = 'Z'] = match
  const ms = Number(fraction.padEnd(3, '0').slice(0, 3))
  const time = new Date(0)
  time.setUTCFullYear(Number(year), Number(month) - 1, Number(day))
  const isDate = time.getUTCMonth() === Number(month) - 1 && time.getUTCDate() === Number(day)
  if (!isDate || Number(hour) > 23 || Number(minute) > 59 || Number(second) > 59) return undefined
  const offset = offsetMs(zone)
  return offset === undefined ? undefined : time.setUTCHours(Number(hour), Number(minute), Number(second), ms) - offset
}

function offsetMs(zone: string): number | undefined {
  if (zone === 'Z') return 0
  const [hours, minutes] = [Number(zone.slice(1, 3)), Number(zone.slice(4))]
  if (hours > 23 || minutes > 59) return undefined
  return (zone[0] === '-' ? -1 : 1) * (hours * 60 + minutes) * 60_000
}
