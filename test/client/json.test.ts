import assert from 'node:assert/strict'
import test, { mock } from 'node:test'
import fc from 'fast-check'
import { parseJson } from '../../src/job/json.ts'

const nasty = fc.constantFrom('"', '\\', '\n', 'a', '""', '\\\\', '"\\', '\\"', 'x\ty', 'é', '__proto__', '0', '')
const keys = fc.oneof(nasty, fc.string())
const { value } = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 4 },
    fc.oneof(fc.string(), nasty, fc.integer(), fc.boolean(), fc.constant(null)),
    fc.array(tie('value'), { maxLength: 4 }),
    fc.dictionary(keys, tie('value'), { maxKeys: 5, noNullPrototype: true }),
  ),
}))

test('values are read back unchanged, with any keys', (t) => {
  const seed = Number(process.env['HOLDFAST_FUZZ_SEED'] ?? Date.now() % 0x7fffffff)
  t.diagnostic(`HOLDFAST_FUZZ_SEED=${seed}`)
  const survives = (data: unknown) => assert.deepEqual(parseJson(JSON.stringify(data)), data)
  fc.assert(fc.property(value, survives), { seed, numRuns: 20_000 })
})

test('keys with escapes are read correctly, repeatedly and among other keys', () => {
  const names = ['"', '\\', '\n', 'a', '""', '\\\\', '"\\', '\\"']
  for (let i = 0; i < 20_000; i++) {
    const [one, two] = [names[i % names.length] as string, names[(i * 7 + 3) % names.length] as string]
    const data = { a: i, [one]: 1, [two]: [{ [one]: 2 }] }
    const read = parseJson(JSON.stringify(data)) as Record<string, unknown>
    assert.deepEqual(Object.keys(read), Object.keys(data))
  }
})

test('an own __proto__ stays a key, the last of equal keys counts, and order is kept', () => {
  assert.deepEqual(Object.entries(parseJson('{"b":1,"__proto__":{"x":1},"\\n":2,"a":3}') as object), [
    ['b', 1],
    ['__proto__', { x: 1 }],
    ['\n', 2],
    ['a', 3],
  ])
  assert.deepEqual(parseJson('{"\\n":1,"\\u000a":2}'), { '\n': 2 })
})

test('invalid JSON is refused like by JSON.parse', () => {
  for (const text of ['', '{', '{"\\x":1}', '{"\\":1}', '{"a\\n":1,}', '"\\', '{"\\n":}', 'nul\\l']) {
    assert.throws(() => parseJson(text), SyntaxError, text)
  }
})

test('a long text with escapes is read unchanged', () => {
  const data = { [`key\n${'k'.repeat(1_000)}`]: '"\\'.repeat(400_000) }
  assert.deepEqual(parseJson(JSON.stringify(data)), data)
})

test('a text that is made to be slow to read is searched once, or refused before it is searched', () => {
  const includes = mock.method(String.prototype, 'includes')
  const replace = mock.method(String.prototype, 'replace')
  try {
    const standIns = Array.from({ length: 5_000 }, (_, i) => `stand-in ${i} `).join('')
    assert.deepEqual(parseJson(`{"a\\n":"${standIns}"}`), { 'a\n': standIns })
    assert.ok(includes.mock.callCount() <= 2, `${includes.mock.callCount()} searches`)
    const before = replace.mock.callCount()
    assert.throws(() => parseJson(`"${'\\"'.repeat(50_000)}`), SyntaxError)
    assert.equal(replace.mock.callCount(), before)
  } finally {
    mock.restoreAll()
  }
})
