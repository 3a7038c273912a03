// Tests of the judge: a correct store passes, and each store that breaks a promise is caught by that promise.
import assert from 'node:assert/strict'
import { readFileSync, writeFileSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { test } from 'node:test'
import { scratchDirectory } from '../support/scratch.ts'
import { faults } from './faults.ts'
import { parseJournal, type Verb } from './journal.ts'
import { judgeControls } from './judge/batches.ts'
import { Evidence, undisturbed } from './judge/evidence.ts'
import { missingFromHistory, otherState } from './judge/fences.ts'
import { rangeOf } from './judge/limits.ts'
import { judge, type Promised } from './judge.ts'
import { limitFaults } from './limit-faults.ts'
import type { Observation } from './observe.ts'
import { type RehearsalOptions, rehearse } from './rehearsal.ts'
import { sqliteSite } from './site.ts'

const seed = 20_300_101
const rounds = { 'all else': 20, limits: 10 }
/** The seed does not decide how the loops of a workload interleave, so a rare action may be missing from one run. */
const runsMax = 10

test('a store that keeps its promises passes', async () => {
  for (const about of ['all else', 'limits'] as const) {
    const verdict = judge(await rehearse({ seed, rounds: rounds[about], about }))
    assert.deepEqual(
      [...verdict.values()].flatMap(({ faults }) => faults),
      [],
    )
  }
})

for (const [name, [promised, fault]] of Object.entries(faults)) {
  test(`the judge catches ${name}`, () => assertCaught(promised, { fault }))
}

for (const [name, [promised, fault]] of Object.entries(limitFaults)) {
  test(`the judge catches ${name}`, () => assertCaught(promised, { fault, about: 'limits' }))
}

async function assertCaught(
  promised: Promised,
  { about = 'all else', fault }: Pick<RehearsalOptions, 'about' | 'fault'>,
): Promise<void> {
  for (let run = 0; run < runsMax; run++) {
    const verdict = judge(await rehearse({ seed: seed + run, rounds: rounds[about], about, ...(fault && { fault }) }))
    if (verdict.get(promised)?.faults.length) return
  }
  assert.fail(`${runsMax} runs found no violation of: ${promised}`)
}

test('a call without an answer has an unknown result, and a line that was cut short does not count', () => {
  const asked = { key: 'counter 0', value: 1 }
  const notes = parseJournal(
    [
      { n: 0, at: 1, verb: 'increment', asked },
      { n: 1, at: 2, verb: 'increment', asked },
      { n: 2, at: 3, verb: 'increment', asked },
      { n: 1, at: 4, answer: { applied: true } },
      { n: 2, at: 5, refused: 'STORE_UNAVAILABLE' },
    ]
      .map((line) => `${JSON.stringify(line)}\n`)
      .join('')
      .concat('{"n":0,"at":6,"ans'),
  )
  assert.deepEqual(
    notes.map(({ answer, refused }) => ({ answer, refused })),
    [
      { answer: null, refused: null },
      { answer: { applied: true }, refused: null },
      { answer: null, refused: null },
    ],
  )
})

test('starts of several claims are in one time window only if the last answer is in it', () => {
  const askedTogether = [
    { from: 100, to: 900 },
    { from: 100, to: 300 },
  ]
  assert.deepEqual(rangeOf(askedTogether), { from: 100, to: 900 })
})

test('a settlement ends the attempt that its claim answered, and no other attempt of the same claim', () => {
  const settledAfter = (handedOut: number, ...endings: [attempt: number, ending: string][]) => {
    const history = endings.map(([attempt, ending]) => ({ worker: 'hand', attempt, ending }))
    const left = { batches: [], jobs: [{ id: 'job', queue: 'mail', history }] } as unknown as Observation
    const lines = [
      { n: 0, at: 0, verb: 'claim', asked: { worker: 'hand', queues: '*', leaseMs: 500 } },
      { n: 0, at: 10, answer: [{ id: 'job', fence: 'f', attempt: handedOut }] },
      {
        n: 1,
        at: 20,
        verb: 'settle',
        asked: { id: 'job', fence: 'f', worker: 'hand', as: 'done', hasBadEffect: false },
      },
      { n: 1, at: 30, answer: { state: 'done' } },
    ]
    const notes = parseJournal(lines.map((line) => `${JSON.stringify(line)}\n`).join(''))
    return missingFromHistory(
      new Evidence({ notes, left, found: left, conditions: undisturbed, watchLog: null, received: null }),
    ).faults.length
  }
  assert.equal(settledAfter(1, [1, 'done']), 0)
  assert.equal(settledAfter(2, [1, 'expired'], [2, 'done']), 0, 'the claim was sent again')
  assert.equal(settledAfter(1, [1, 'expired'], [2, 'done']), 1, 'its lease had expired')
  assert.equal(settledAfter(2, [1, 'done'], [2, 'done']), 1)
  assert.equal(settledAfter(1, [1, 'expired']), 1)
  assert.equal(settledAfter(1), 1)
})

test('a done job has the result of its settlement, unless a call requeued this very job', () => {
  const faultsAfter = (verb: Verb, asked: unknown, state: string) => {
    const history = [{ worker: 'hand', attempt: 1, ending: 'done' }]
    const job = { id: 'job', queue: 'mail', batch: null, state: 'done', result: 'of another', history }
    const left = { batches: [], jobs: [job] } as unknown as Observation
    const lines = [
      { n: 0, at: 0, verb: 'settle', asked: { id: 'job', fence: 'f', worker: 'hand', as: state, result: null } },
      { n: 0, at: 10, answer: { state } },
      { n: 1, at: 20, verb, asked },
      { n: 1, at: 30, answer: true },
    ]
    const notes = parseJournal(lines.map((line) => `${JSON.stringify(line)}\n`).join(''))
    const evidence = { notes, left, found: left, conditions: undisturbed, watchLog: null, received: null }
    return otherState(new Evidence(evidence)).faults.length
  }
  assert.equal(faultsAfter('requeue', { id: 'job' }, 'done'), 0)
  assert.equal(faultsAfter('requeue', { id: 'another' }, 'done'), 1)
  assert.equal(faultsAfter('requeueAll', { queue: 'mail' }, 'done'), 1, 'it takes dead jobs alone')
  assert.equal(faultsAfter('requeueAll', { queue: 'mail' }, 'dead'), 0)
})

test('a pause of a batch holds until it is resumed, or until the batch has finished and begins another round', () => {
  const batch = 'weekly'
  const behaviours: Record<string, [Verb, unknown, unknown]> = {
    pause: ['control', { batch, as: 'pause' }, { state: 'paused' }],
    resume: ['control', { batch, as: 'resume' }, { state: 'running' }],
    requeue: ['requeue', { id: 'item' }, true],
    'requeue of another': ['requeue', { id: 'another' }, true],
    claim: ['claim', { worker: 'hand', queues: '*', leaseMs: 1_000 }, [{ id: 'item' }]],
  }
  const claimsAfterAPause = (round: number, ...done: string[]) => {
    const lines = done.flatMap((behaviour, n) => {
      const [verb, asked, answer] = behaviours[behaviour] as [Verb, unknown, unknown]
      return [
        { n, at: 10 * n, verb, asked },
        { n, at: 10 * n + 5, answer },
      ]
    })
    const left = { batches: [{ id: batch, round }], jobs: [{ id: 'item', batch }] } as unknown as Observation
    const notes = parseJournal(lines.map((line) => `${JSON.stringify(line)}\n`).join(''))
    return judgeControls(
      new Evidence({ notes, left, found: left, conditions: undisturbed, watchLog: null, received: null }),
    ).faults
  }
  const wrong = ['hand got item of batch weekly after its pause']
  assert.deepEqual(claimsAfterAPause(1, 'claim', 'pause'), [])
  assert.deepEqual(claimsAfterAPause(1, 'pause', 'claim'), wrong)
  assert.deepEqual(claimsAfterAPause(1, 'pause', 'resume', 'claim'), [])
  assert.deepEqual(claimsAfterAPause(2, 'pause', 'requeue', 'claim'), [])
  assert.deepEqual(claimsAfterAPause(1, 'pause', 'requeue', 'claim'), wrong, 'the batch had not finished')
  assert.deepEqual(claimsAfterAPause(2, 'pause', 'requeue of another', 'claim'), wrong)
  assert.deepEqual(claimsAfterAPause(2, 'pause', 'claim', 'requeue'), wrong)
})

test('an inspection of the tables finds a wrong count and a damaged file', async () => {
  await using scratch = await scratchDirectory()
  await using site = await sqliteSite()
  await using prepared = await site.prepare(scratch.path)
  await prepared.inspect()
  const path = prepared.url.slice('sqlite:'.length)
  const db = new DatabaseSync(path)
  db.exec('update holdfast_queue set done = done + 1')
  await assert.rejects(prepared.inspect(), /counts equal a recount/)
  db.exec('update holdfast_queue set done = done - 1')
  db.close()
  await prepared.inspect()
  const bytes = readFileSync(path)
  writeFileSync(path, bytes.fill(0xff, bytes.length - 4_096))
  await assert.rejects(prepared.inspect())
})
