import assert from 'node:assert/strict'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import test from 'node:test'
import { root } from '../support/checkout.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { referencePage } from './reference.ts'

test('the API reference matches the types', async () => {
  await using scratch = await scratchDirectory()
  const file = join(root, 'docs/reference/api.md')
  const page = referencePage(scratch.path)
  if (process.env['UPDATE_GOLDEN']) writeFileSync(file, page)
  assert.equal(readFileSync(file, 'utf8'), page, 'UPDATE_GOLDEN=1 npm test -- test/house/reference.test.ts writes it')
})
