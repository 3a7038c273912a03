// JSON lines, in chunks of any size.
import assert from 'node:assert/strict'
import test from 'node:test'
import { jsonLines, toJsonLines } from '../../src/index.ts'

const text = '\uFEFF{"a":"é"}\r\n\n  \n[1,2]\n"last, without an end of line"'
const values = [{ a: 'é' }, [1, 2], 'last, without an end of line']

test('each line is a value, wherever the chunks end, also inside a character', async () => {
  assert.deepEqual(await Array.fromAsync(jsonLines(text)), values)
  const bytes = Buffer.from(text)
  for (let size = 1; size < bytes.length; size++) {
    const pieces = Array.from({ length: Math.ceil(bytes.length / size) }, (_, i) =>
      bytes.subarray(i * size, (i + 1) * size),
    )
    assert.deepEqual(await Array.fromAsync(jsonLines(pieces)), values, `in pieces of ${size} bytes`)
  }
})

test('the error about a wrong line gives its number', async () => {
  const wrong: readonly [Parameters<typeof jsonLines>[0], number][] = [
    ['{}\n\n{oops}\n', 3],
    [[Buffer.from('1\n2\n'), Buffer.from([0xff, 0x0a])], 3],
    ['{}\nundefined', 2],
  ]
  for (const [source, line] of wrong) {
    await assert.rejects(Array.fromAsync(jsonLines(source)), { code: 'INVALID_PAYLOAD', facts: { line } })
  }
  await assert.rejects(Array.fromAsync(jsonLines(7 as never)), { code: 'INVALID_OPTION' })
})

test('written values are read back unchanged', async () => {
  const lines = await Array.fromAsync(toJsonLines(values))
  assert.deepEqual(await Array.fromAsync(jsonLines(lines)), values)
})
