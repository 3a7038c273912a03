// JSON.parse that can be relied upon.
//
// Some versions of Node (24.21 among them, with V8 13.6; not 20) give a wrong key where a key is written with an escape: after
// some objects were read, '{"a":1,"\"\"":2}' may come back with the key `\"`. A payload that was changed on its way is worse
// than one that is refused, so such keys never get to see that parser: names without escapes stand in for them, and are
// exchanged for the real ones afterwards. Strings that are values are read rightly. Texts without an escaped key, which are
// nearly all, cost one search for a backslash.

const strings = /"([^"\\]*(?:\\.[^"\\]*)*)"(\s*:)?/gs

export function parseJson(text: string): unknown {
  if (!text.includes('\\')) return JSON.parse(text)
  const standIn = absentFrom(text)
  const keys: string[] = []
  const replaced = text.replace(strings, (whole, body: string, colon: string | undefined) => {
    if (colon === undefined || !body.includes('\\')) return whole
    keys.push(body)
    return `"${standIn}${keys.length - 1}"${colon}`
  })
  if (keys.length === 0) return JSON.parse(text)
  JSON.parse(text) // what is no JSON is refused as it stands
  const real = new Map(keys.map((body, i) => [`${standIn}${i}`, JSON.parse(`"${body}"`) as string]))
  return withRealKeys(JSON.parse(replaced), real)
}

/** The beginning of keys that nobody has used here. */
function absentFrom(text: string): string {
  let no = 0
  while (text.includes(`stand-in ${no} `)) no += 1
  return `stand-in ${no} `
}

function withRealKeys(value: unknown, real: ReadonlyMap<string, string>): unknown {
  if (Array.isArray(value)) return value.map((each) => withRealKeys(each, real))
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value).map(([key, each]) => [real.get(key) ?? key, withRealKeys(each, real)] as const),
  )
}
