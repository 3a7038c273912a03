// JSON.parse that can be relied upon.
//
// Some versions of Node (24.21 among them, with V8 13.6; not 20) give a wrong key where a key is written with an escape: after
// some objects were read, '{"a":1,"\"\"":2}' may come back with the key `\"`. A payload that was changed on its way is worse
// than one that is refused, so such keys never get to see that parser: names without escapes stand in for them, and are
// exchanged for the real ones afterwards. Strings that are values are read rightly. Texts without an escaped key, which are
// nearly all, cost one search for a backslash.

import { randomUUID } from 'node:crypto'

const strings = /"([^"\\]*(?:\\.[^"\\]*)*)"(\s*:)?/gs
/** No text that was written before this process began has it. */
const standIn = `stand-in ${randomUUID()} `

export function parseJson(text: string): unknown {
  if (!text.includes('\\')) return JSON.parse(text)
  const keys: string[] = []
  const replaced = text.replace(strings, (whole, body: string, colon: string | undefined) => {
    if (colon === undefined || !body.includes('\\')) return whole
    keys.push(body)
    return `"${standIn}${keys.length - 1}"${colon}`
  })
  if (keys.length === 0) return JSON.parse(text)
  JSON.parse(text) // what is no JSON is refused as it stands
  return withRealKeys(
    JSON.parse(replaced),
    keys.map((body) => JSON.parse(`"${body}"`)),
  )
}

function withRealKeys(value: unknown, keys: readonly string[]): unknown {
  if (Array.isArray(value)) return value.map((each) => withRealKeys(each, keys))
  if (typeof value !== 'object' || value === null) return value
  const entries = Object.entries(value).map(([key, each]) => [realKey(key, keys), withRealKeys(each, keys)] as const)
  return Object.fromEntries(entries)
}

function realKey(key: string, keys: readonly string[]): string {
  return key.startsWith(standIn) ? (keys[Number(key.slice(standIn.length))] as string) : key
}
