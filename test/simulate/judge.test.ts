// A test of the judge: each flaw breaks its promise within a number of runs, and the run that shows it is shortened.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { FoundRuns } from '../support/found-runs.ts'
import { flaws } from './flaws.ts'
import { planOf } from './plan.ts'
import { search } from './search.ts'
import { simulate } from './simulate.ts'

const runsMax = 200

const found = new FoundRuns(new URL('found-runs.json', import.meta.url))

for (const [name, [promise, flaw]] of Object.entries(flaws)) {
  test(`the judge catches ${name}`, async (t) => {
    const known = found.of(name)
    for (const seed of [...known, ...Array.from({ length: runsMax }, (_, i) => i + 1)]) {
      const { violations } = await simulate(planOf(seed), flaw)
      if (!violations.some((violation) => violation.promise === promise)) continue
      if (!known.includes(seed)) found.record(t, name, [seed])
      return
    }
    assert.fail(`${runsMax} runs did not break the promise: ${promise}`)
  })
}

test('a run that breaks a promise is shortened, and still breaks it', async () => {
  const [promise, flaw] = flaws['a settlement that is not sent again'] as (typeof flaws)[string]
  const finding = await search({ seed: 1, goesOn: (runs) => runs < runsMax, flaw })
  assert.ok(finding)
  const { outcome, shortest } = finding
  const sizeOf = ({ plan }: typeof outcome) => plan.faults.length + plan.deeds.length
  assert.ok(shortest.violations.some((violation) => violation.promise === promise))
  assert.ok(sizeOf(shortest) < sizeOf(outcome) / 2, `${sizeOf(outcome)} parts were shortened to ${sizeOf(shortest)}`)
})
