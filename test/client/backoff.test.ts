import assert from 'node:assert/strict'
import { test } from 'node:test'
import { backoffMs } from '../../src/job/backoff.ts'

test('no delay is longer than the maximum, and those at the maximum are still spread', () => {
  const backoff = { baseMs: 10_000, factor: 2, maxMs: 3_600_000, jitter: 0.2 }
  const draws = Array.from({ length: 101 }, (_, i) => i / 100)
  for (let attempt = 1; attempt <= 30; attempt++) {
    for (const random of draws) assert.ok(backoffMs(backoff, attempt, random) <= backoff.maxMs)
  }
  const late = draws.map((random) => backoffMs(backoff, 20, random))
  assert.equal(late.at(-1), backoff.maxMs)
  assert.equal(new Set(late).size, draws.length)
})

test('a delay stays a number for any number of attempts, also if the first delay is 0', () => {
  for (const attempt of [1, 2, 1_024, 1_025, 10_000]) {
    assert.equal(backoffMs({ baseMs: 0, factor: 2, maxMs: 1_000, jitter: 0 }, attempt, 0.5), 0)
  }
  assert.equal(backoffMs({ baseMs: 1, factor: 100, maxMs: 1_000, jitter: 0 }, 10_000, 0.5), 1_000)
})
