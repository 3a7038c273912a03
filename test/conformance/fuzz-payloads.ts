// Random payloads: plain data with strings and keys that databases handle badly, and everything that is not plain data.
import fc from 'fast-check'

/** Any code units, including lone surrogates and NUL. */
const anyText = fc.oneof(
  fc.constantFrom(
    '',
    '\0',
    'a\0b',
    '\ud800',
    'x\udc00',
    '\udc00\ud800',
    '\\u0000',
    '\x1e',
    '\u2028',
    '__proto__',
    '"',
    '\\',
  ),
  fc.array(fc.integer({ min: 0, max: 0xffff }), { maxLength: 8 }).map((units) => String.fromCharCode(...units)),
  fc.string({ unit: 'grapheme' }),
)

const anyNumber = fc.oneof(
  fc.double({ noNaN: true, noDefaultInfinity: true }),
  fc.integer(),
  fc.constantFrom(-0, 5e-324, 1.7976931348623157e308, 2 ** 53 + 2, -1e-7, 1e21),
)

const anyKey = fc.oneof(
  anyText,
  fc.constantFrom('__proto__', 'constructor', 'toString', 'hasOwnProperty', '0', '-1', 'k'.repeat(2_000)),
)

function withOwnKeys(entries: readonly (readonly [string, unknown])[]): object {
  return Object.fromEntries(entries)
}

export const plainPayload: fc.Arbitrary<unknown> = fc.letrec((tie) => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    fc.oneof(anyText, anyNumber, fc.boolean(), fc.constant(null)),
    tie('array'),
    tie('object'),
  ),
  array: fc.array(tie('value'), { maxLength: 4 }),
  object: fc.array(fc.tuple(anyKey, tie('value')), { maxLength: 4 }).map(withOwnKeys),
})).value

const anything = fc.anything({
  key: anyKey,
  withBigInt: true,
  withBoxedValues: true,
  withDate: true,
  withMap: true,
  withNullPrototype: true,
  withSet: true,
  withSparseArray: true,
  withTypedArray: true,
  withUnicodeString: true,
  maxDepth: 3,
} as fc.ObjectConstraints)

/** Mostly plain data with one arbitrary value somewhere in it. */
export const oddPayload: fc.Arbitrary<unknown> = fc.oneof(
  anything,
  plainPayload,
  fc.tuple(plainPayload, anything).map(([a, b]) => ({ a, b })),
  fc.tuple(plainPayload, anything).map(([a, b]) => [a, [b]]),
)

/** What a read returns: the same data. Absent and undefined read the same, and so do 0 and -0. */
export function asRead(value: unknown): unknown {
  if (value === undefined) return null
  if (Object.is(value, -0)) return 0
  if (Array.isArray(value)) return value.map(asRead)
  if (typeof value !== 'object' || value === null) return value
  return withOwnKeys(
    Object.entries(value)
      .filter(([, part]) => part !== undefined)
      .map(([key, part]) => [key, asRead(part)]),
  )
}
