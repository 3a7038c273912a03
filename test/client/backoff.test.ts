import assert from 'node:assert/strict'
import { test } from 'node:test'
import { backoffMs } from '../../src/job/backoff.ts'

test('a delay stays a number for any number of attempts, also if the first delay is 0', () => {
  for (const attempt of [1, 2, 1_024, 1_025, 10_000]) {
    assert.equal(backoffMs({ baseMs: 0, factor: 2, maxMs: 1_000, jitter: 0 }, attempt, 0.5), 0)
  }
  assert.equal(backoffMs({ baseMs: 1, factor: 100, maxMs: 1_000, jitter: 0 }, 10_000, 0.5), 1_000)
})
