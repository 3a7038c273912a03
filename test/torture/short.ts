// One round as a test: the seed is printed, and every promise is a test of its own.

import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import { scratchDirectory } from '../support/scratch.ts'
import { judge } from './judge.ts'
import { runRound } from './round.ts'
import type { Site } from './site.ts'

const seconds = 6
const jobsMin = 150
const faultsShown = 10

/** The seed is HOLDFAST_TORTURE_SEED. Without it, every run has another seed. */
export async function assertRound(t: TestContext, site: Site): Promise<void> {
  const seed = Number(process.env['HOLDFAST_TORTURE_SEED'] || Date.now() % 0x7fffffff)
  t.diagnostic(`HOLDFAST_TORTURE_SEED=${seed}`)
  await using scratch = await scratchDirectory()
  const { findings, faults, jobs } = await runRound(site, { seed, seconds, jobsMin, directory: scratch.path })
  t.diagnostic(`${jobs} jobs, ${findings.notes.length} calls, ${Object.entries(faults).flat().join(' ')}`)
  for (const [promised, { faults }] of judge(findings)) {
    await t.test(promised, () => assert.deepEqual(faults.slice(0, faultsShown), []))
  }
  await t.test('the fleet enqueued, ran and settled jobs', () => {
    for (const verb of ['enqueue', 'settle', 'run'] as const) {
      const answered = findings.notes.filter((note) => note.verb === verb && note.answer !== null).length
      assert.ok(answered > 10, `${answered} calls of ${verb} were answered`)
    }
  })
}
