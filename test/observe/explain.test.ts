// `explain` in states that are too short to be reached on a store.
import assert from 'node:assert/strict'
import test from 'node:test'
import { explain } from '../../src/observe/explain.ts'
import type { JobBlockers } from '../../src/store/store.ts'

test('an item of a batch whose cancel is in progress, and which was not reached yet, will be cancelled', () => {
  const blockers = {
    job: { id: 'j1', queue: 'mail', state: 'ready' },
    now: 1_000,
    queue: { pausedAt: null, pausedBy: null, running: 0, limit: null, nextStartAt: null },
    ahead: 0,
    key: null,
    batch: { id: 'b1', name: 'weekly', state: 'cancelled', pausedAt: null },
  } as unknown as JobBlockers
  const { id, state, why, sentence, facts } = explain(blockers, [])
  assert.deepEqual(
    { id, state, why, facts },
    { id: 'j1', state: 'ready', why: 'batch-cancelled', facts: { batch: 'b1' } },
  )
  assert.match(sentence, /^Its batch weekly \(.*\) was cancelled, and the job will be cancelled soon\.$/)
})
