// Some seconds of simulation, from another seed every time. `npm run simulate` searches longer.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { report, search } from './search.ts'

const lookMs = 8_000

test('processes that die, freeze and lose their store break no promise', async (t) => {
  const seed = Number(process.env['HOLDFAST_SIMULATE_SEED'] || Date.now() % 0x7fffffff)
  t.diagnostic(`HOLDFAST_SIMULATE_SEED=${seed}`)
  const until = performance.now() + lookMs
  let made = 0
  const goesOn = (runs: number) => {
    made = runs
    return performance.now() < until
  }
  const finding = await search({ seed, goesOn })
  t.diagnostic(`${made} runs`)
  if (finding) assert.fail(report(finding))
})
