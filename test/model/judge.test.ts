// The judge judged: it catches every store with a known fault, and what it found once it finds again.
import assert from 'node:assert/strict'
import test from 'node:test'
import { sqlite } from '../../src/store/sqlite/index.ts'
import type { VirtualClock } from '../../src/testing/index.ts'
import { type Break, faults, withFault } from './faults.ts'
import { findDisagreement } from './run.ts'

const seed = 20_300_101
const runsMax = 200

for (const [name, fault] of Object.entries(faults)) {
  test(`the model catches ${name}`, async () => {
    const finding = await findDisagreement(opener(fault), { runs: runsMax, seed, shrinks: false })
    assert.ok(finding, `${runsMax} runs found nothing wrong with it`)
  })
}

test('the same seed finds the same counterexample, shrunk, and seed and path replay it', async () => {
  const open = opener(faults['a settle that ignores the fence'] as Break)
  const first = await findDisagreement(open, { runs: runsMax, seed })
  const again = await findDisagreement(open, { runs: runsMax, seed })
  const replayed = await findDisagreement(open, { runs: 1, seed, path: first?.path ?? '' })
  assert.ok(first && again && replayed)
  assert.ok(first.steps.length <= 8, `shrunk to ${first.steps.length} steps`)
  assert.deepEqual(again.steps, first.steps)
  assert.equal(again.difference, first.difference)
  assert.deepEqual(replayed.steps, first.steps)
})

function opener(fault: Break) {
  return async (clock: VirtualClock) => withFault(await sqlite({ path: ':memory:' })({ clock }), fault)
}
