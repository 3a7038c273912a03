// A JSON.parse without a bug of some V8 versions.
//
// Some versions of Node (24.21 among them, with V8 13.6; not 20) return a wrong key where a key is written with an escape. After
// some objects were parsed, '{"a":1,"\"\"":2}' may come back with the key `\"`. A payload that was silently changed is worse
// than one that is refused. So keys with escapes are replaced by names without escapes before parsing, and put back afterwards.
// String values are parsed correctly and stay. Texts without an escaped key, which are nearly all, cost one search for a
// backslash.

const strings = /"([^"\\]*(?:\\.[^"\\]*)*)"(\s*:)?/gs

export function parseJson(text: string): unknown {
  const plain: unknown = JSON.parse(text) // throws for text that is no JSON, which the pattern may read over and over
  if (!text.includes('\\')) return plain
  const standIn = absentFrom(text)
  const keys: string[] = []
  const replaced = text.replace(strings, (whole, body: string, colon: string | undefined) => {
    if (colon === undefined || !body.includes('\\')) return whole
    keys.push(body)
    return `"${standIn}${keys.length - 1}"${colon}`
  })
  if (keys.length === 0) return plain
  const real = new Map(keys.map((body, i) => [`${standIn}${i}`, JSON.parse(`"${body}"`) as string]))
  return withRealKeys(JSON.parse(replaced), real)
}

/** A prefix for keys that does not occur in the text, found in one pass: a stranger's text may have thousands of them. */
function absentFrom(text: string): string {
  const taken = new Set(Array.from(text.matchAll(/stand-in (\d{1,7}) /g), ([, no]) => Number(no)))
  let no = 0
  while (taken.has(no)) no += 1
  return `stand-in ${no} `
}

function withRealKeys(value: unknown, real: ReadonlyMap<string, string>): unknown {
  if (Array.isArray(value)) return value.map((each) => withRealKeys(each, real))
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value).map(([key, each]) => [real.get(key) ?? key, withRealKeys(each, real)] as const),
  )
}
