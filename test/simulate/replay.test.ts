// The same seed gives the same run, to the last line of its trace, in every process.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { root } from '../support/checkout.ts'
import { runOk } from '../support/shell.ts'
import { planOf } from './plan.ts'
import { simulate } from './simulate.ts'

const seeds = [1, 228, 20_300_101]

test('a seed repeats its run, in this process and in another', async () => {
  for (const seed of seeds) {
    const first = await simulate(planOf(seed))
    const again = await simulate(planOf(seed))
    assert.deepEqual(again.trace, first.trace)
    const { stdout } = await runOk(process.execPath, [join(root, 'test/simulate/run.ts'), '--seed', String(seed)])
    assert.match(stdout, new RegExp(`trace ${first.hash}`))
  }
})

test('another seed gives another run', async () => {
  const hashes = await Promise.all([1, 2].map(async (seed) => (await simulate(planOf(seed))).hash))
  assert.notEqual(hashes[0], hashes[1])
})
