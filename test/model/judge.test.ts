// Tests of the model as a judge: it catches every store with a known fault, a seed finds the same counterexample again, and the
// runs meet every kind of answer.
import assert from 'node:assert/strict'
import test from 'node:test'
import fc from 'fast-check'
import { sqlite } from '../../src/store/sqlite/index.ts'
import type { VirtualClock } from '../../src/testing/index.ts'
import { FoundRuns } from '../support/found-runs.ts'
import { runs } from './draw.ts'
import { type Break, faults, withFault } from './faults.ts'
import { findDisagreement, kindsMet, runSteps } from './run.ts'

const seed = 20_300_101
const runsMax = 600
/** The rarest kinds of answers come once in a hundred runs. */
const coverageRuns = 1_000

const kinds = [
  ...[
    'created',
    'duplicate',
    'replaced',
    'notReplaced',
    'DUPLICATE_JOB_ID',
    'IDEMPOTENCY_MISMATCH',
    'INVALID_OPTION',
  ].map((kind) => `enqueue: ${kind}`),
  ...['not cancelRequested', 'cancelRequested', 'lost'].map((kind) => `renew: ${kind}`),
  ...['ok', 'lost'].map((kind) => `progress: ${kind}`),
  ...['done', 'dead', 'cancelled', 'ready', 'held', 'scheduled', 'lost', 'failed'].map((kind) => `settle: ${kind}`),
  ...['DUPLICATE_JOB_ID', 'IDEMPOTENCY_MISMATCH', 'INVALID_OPTION'].map((why) => `settle: ${why}`),
  ...['created', 'duplicate', 'replaced', 'notReplaced'].map((kind) => `settle: follow-up ${kind}`),
  ...['SIGNAL_GONE', 'INVALID_STATE'].map((why) => `settle: ${why}`),
  ...['lost', 'failed', 'cancelRequested', 'not cancelRequested', 'follow-up created'].map(
    (kind) => `checkpoint: ${kind}`,
  ),
  ...['SIGNAL_GONE', 'INVALID_STATE', 'INVALID_OPTION', 'DUPLICATE_JOB_ID'].map((why) => `checkpoint: ${why}`),
  ...['sent', 'JOB_NOT_FOUND', 'INVALID_STATE'].map((kind) => `signal: ${kind}`),
  'clearSignals: cleared',
  ...['rescued', 'promoted', 'overdue', 'admitted', 'pruned', 'more', 'not more'].map((kind) => `sweep: ${kind}`),
  ...['cancelled', 'requested', 'INVALID_STATE', 'JOB_NOT_FOUND', 'DUPLICATE_JOB_ID'].map((kind) => `cancel: ${kind}`),
  ...['created', 'duplicate', 'replaced', 'notReplaced'].map((kind) => `cancel: follow-up ${kind}`),
  ...['requeued', 'INVALID_STATE', 'INVALID_STATE heldBy', 'JOB_NOT_FOUND'].map((kind) => `requeue: ${kind}`),
  ...['changed', 'skipped idTaken', 'skipped dedupKeyHeld', 'skipped batchCancelled'].map(
    (kind) => `requeueAll: ${kind}`,
  ),
  ...['changed', 'requested'].map((kind) => `cancelAll: ${kind}`),
  ...['changed', 'skipped running'].map((kind) => `deleteAll: ${kind}`),
  ...['changed', 'skipped startBefore'].map((kind) => `rescheduleAll: ${kind}`),
  'reprioritiseAll: changed',
  ...['ready', 'held', 'scheduled', 'running', 'INVALID_STATE', 'JOB_NOT_FOUND'].map((kind) => `alter: ${kind}`),
  'define: INVALID_OPTION',
  ...['applied', 'not applied'].map((kind) => `kvWrite: ${kind}`),
  ...['stale', 'DUPLICATE_JOB_ID', 'IDEMPOTENCY_MISMATCH', 'INVALID_OPTION'].map((kind) => `advance: ${kind}`),
  ...['created', 'duplicate', 'replaced', 'notReplaced'].map((kind) => `advance: follow-up ${kind}`),
  ...['created', 'not created'].map((kind) => `openBatch: ${kind}`),
  ...['BATCH_NOT_FOUND', 'INVALID_STATE', 'DUPLICATE_JOB_ID'].map((kind) => `addItems: ${kind}`),
  ...['created', 'duplicate', 'replaced', 'notReplaced'].map((kind) => `addItems: follow-up ${kind}`),
  ...['queued', 'running', 'paused', 'done', 'cancelled', 'BATCH_NOT_FOUND'].map((kind) => `close: ${kind}`),
  ...['paused', 'INVALID_STATE'].map((kind) => `pause: ${kind}`),
  ...['open', 'queued', 'running', 'INVALID_STATE'].map((kind) => `resume: ${kind}`),
  ...['cancelled', 'INVALID_STATE'].map((kind) => `cancel: ${kind}`),
  ...['open', 'running', 'paused', 'done', 'INVALID_STATE'].map((kind) => `retryFailed: ${kind}`),
  ...['cancelled', 'BATCH_NOT_FOUND'].map((kind) => `delete: ${kind}`),
  ...['stale', 'follow-up created', 'DUPLICATE_JOB_ID'].map((kind) => `accept: ${kind}`),
]

const found = new FoundRuns(new URL('found-runs.json', import.meta.url))

for (const [name, fault] of Object.entries(faults)) {
  test(`the model catches ${name}`, async (t) => {
    const [run] = found.of(name)
    const known = run === undefined ? null : await findingIn({ runs: 1, path: String(run) })
    const finding = known ?? (await findingIn({ runs: runsMax }))
    assert.ok(finding, `${runsMax} runs found no difference`)
    if (!known) found.record(t, name, [Number(finding.path)])
    assert.equal(await runSteps(inMemory, finding.steps), null, 'the store without the fault passes the same steps')

    function findingIn(which: { readonly runs: number; readonly path?: string }) {
      return findDisagreement(opener(fault), { seed, shrinks: false, ...which })
    }
  })
}

test('the same seed finds and shrinks to the same counterexample, and seed and path replay it', async () => {
  const open = opener(faults['a release that costs an attempt'] as Break)
  const first = await findDisagreement(open, { runs: runsMax, seed })
  const again = await findDisagreement(open, { runs: runsMax, seed })
  const replayed = await findDisagreement(open, { runs: 1, seed, path: first?.path ?? '' })
  assert.ok(first && again && replayed)
  assert.ok(first.steps.length <= 8, `shrunk to ${first.steps.length} steps`)
  assert.deepEqual(again.steps, first.steps)
  assert.equal(again.difference, first.difference)
  assert.deepEqual(replayed.steps, first.steps)
})

test('the runs meet every kind of answer of the contract', async (t) => {
  const drawn = fc.sample(runs, { numRuns: coverageRuns, seed })
  const known = found.of(t.name)
  const met = new Set<string>()
  const missed = () => kinds.filter((kind) => !met.has(kind))
  const newIn: number[] = []
  for (const run of [...known, ...drawn.keys()]) {
    if (missed().length === 0) break
    const before = missed().length
    for (const kind of await kindsMet(inMemory, drawn[run] as (typeof drawn)[number])) met.add(kind)
    if (missed().length < before) newIn.push(run)
  }
  assert.deepEqual(missed(), [])
  if (newIn.some((run) => !known.includes(run))) found.record(t, t.name, newIn)
})

function inMemory(clock: VirtualClock) {
  return sqlite({ path: ':memory:' })({ clock })
}

function opener(fault: Break) {
  return async (clock: VirtualClock) => withFault(await inMemory(clock), fault)
}
