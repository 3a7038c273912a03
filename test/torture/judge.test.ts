// The judge judged: it lets a sound store pass, and catches each store that breaks a promise, by that promise.
import assert from 'node:assert/strict'
import { readFileSync, writeFileSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { test } from 'node:test'
import { scratchDirectory } from '../support/scratch.ts'
import { faults } from './faults.ts'
import { parseJournal } from './journal.ts'
import { stretchOf } from './judge/limits.ts'
import { judge, type Promised } from './judge.ts'
import { limitFaults } from './limit-faults.ts'
import { type RehearsalOptions, rehearse } from './rehearsal.ts'
import { sqliteSite } from './site.ts'

const seed = 20_300_101
const rounds = { 'all else': 20, limits: 10 }
/** How lanes interleave is not the seed's alone, so a rare deed may be missing in one run. */
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
  assert.fail(`${runsMax} runs spoke for it: ${promised}`)
}

test('a call that was not answered is one of which nobody knows, and a line cut short was not written', () => {
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

test('starts are within a while only where the last answer is', () => {
  const askedTogether = [
    { from: 100, to: 900 },
    { from: 100, to: 300 },
  ]
  assert.deepEqual(stretchOf(askedTogether), { from: 100, to: 900 })
})

test('a look behind the queue finds a count that is wrong, and a file that is damaged', async () => {
  await using scratch = await scratchDirectory()
  await using site = await sqliteSite()
  await using ground = await site.ground(scratch.path)
  await ground.inspect()
  const path = ground.url.slice('sqlite:'.length)
  const db = new DatabaseSync(path)
  db.exec('update holdfast_queue set done = done + 1')
  await assert.rejects(ground.inspect(), /counts equal a recount/)
  db.exec('update holdfast_queue set done = done - 1')
  db.close()
  await ground.inspect()
  const bytes = readFileSync(path)
  writeFileSync(path, bytes.fill(0xff, bytes.length - 4_096))
  await assert.rejects(ground.inspect())
})
