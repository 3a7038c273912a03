// The torture test itself is tested: on a tree that breaks a promise it fails, and names that promise.
import assert from 'node:assert/strict'
import { chmodSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { root } from '../support/checkout.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { cleanEnvironment, run } from '../support/shell.ts'
import { onlyLong } from '../support/system.ts'
import { patched, plant, variants } from '../torture/variants.ts'

const seed = '20300101'
const minutesMax = '2'
/** Runs always; the other variants take minutes. */
const always = ['sqlite: effects applied outside the settlement']

test('every patch of a broken tree still finds its text', () => {
  for (const { patches } of Object.values(variants)) for (const patch of patches) patched(root, patch)
})

for (const [name, variant] of Object.entries(variants)) {
  const skip = always.includes(name) ? false : onlyLong('runs the torture test on a broken tree')
  test(`the torture test finds ${name}`, { skip }, async () => {
    await using tree = await scratchDirectory()
    plant(tree.path, variant)
    chmodSync(tree.path, 0o755) // the server runs under another account
    const { store, breaks, breaksAlso = breaks } = variant
    const args = ['--store', store, '--minutes', minutesMax, '--seconds', '15', '--seed', seed]
    const { code, stdout, stderr } = await run(process.execPath, [join(tree.path, 'test/torture/run.ts'), ...args], {
      timeoutMs: 280_000,
      env: { ...cleanEnvironment(), TMPDIR: tree.path }, // what a failed run keeps is removed with the tree
    })
    assert.equal(code, 1, stdout + stderr)
    assert.ok(
      [breaks, breaksAlso].some((promise) => stdout.includes(`broken: ${promise}`)),
      stdout,
    )
  })
}
