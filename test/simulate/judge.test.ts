// The judge judged: each flaw breaks its promise within some runs, and what shows it is made short.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { flaws } from './flaws.ts'
import { planOf } from './plan.ts'
import { search } from './search.ts'
import { simulate } from './simulate.ts'

const runsMax = 200

for (const [name, [promise, flaw]] of Object.entries(flaws)) {
  test(`the judge catches ${name}`, async () => {
    for (let seed = 1; seed <= runsMax; seed++) {
      const { violations } = await simulate(planOf(seed), flaw)
      if (violations.some((violation) => violation.promise === promise)) return
    }
    assert.fail(`${runsMax} runs spoke for it: ${promise}`)
  })
}

test('what breaks a promise is made shorter, and still breaks it', async () => {
  const [promise, flaw] = flaws['a settlement that is not sent again'] as (typeof flaws)[string]
  const finding = await search({ seed: 1, goesOn: (runs) => runs < runsMax, flaw })
  assert.ok(finding)
  const { outcome, shortest } = finding
  const sizeOf = ({ plan }: typeof outcome) => plan.faults.length + plan.deeds.length
  assert.ok(shortest.violations.some((violation) => violation.promise === promise))
  assert.ok(sizeOf(shortest) < sizeOf(outcome) / 2, `${sizeOf(outcome)} parts were made ${sizeOf(shortest)}`)
})
