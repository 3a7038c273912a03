// A series as a test: the seed is told, and every promise is a test of its own.

import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import { type Findings, judge } from './judge.ts'
import { summary } from './series.ts'

/** Given by HOLDFAST_CRASH_SEED, or another one every time. */
export function seedFor(t: TestContext): number {
  const seed = Number(process.env['HOLDFAST_CRASH_SEED'] || Date.now() % 0x7fffffff)
  t.diagnostic(`HOLDFAST_CRASH_SEED=${seed}`)
  return seed
}

export async function assertPromises(t: TestContext, findings: Findings): Promise<void> {
  t.diagnostic(summary(findings))
  for (const [promised, faults] of judge(findings))
    await t.test(promised, () => assert.deepEqual(faults.slice(0, faultsShown), []))
  await t.test('there was work to lose', () => assertWork(findings))
}

/** A call that a crash of the server has met is sent again, and mostly answered; one of a killed process is not. */
function assertWork({ notes, losesClaims: isServers }: Findings): void {
  for (const verb of ['enqueue', 'settle'] as const) {
    const calls = notes.filter((note) => note.verb === verb)
    const answered = calls.filter(({ answer }) => answer !== null).length
    const unknown = calls.filter(({ answer, refused }) => answer === null && refused === null).length
    assert.ok(answered > 50, `${answered} calls of ${verb} were answered`)
    assert.ok(isServers || unknown > 0, `no crash met a call of ${verb}`)
  }
}

const faultsShown = 10
