// A process that works at full speed is killed at a random moment, ten times over on one file. What it was answered
// must hold; what it was not may or may not have landed, but never by half.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout as after } from 'node:timers/promises'
import { VirtualClock } from '../../src/testing/index.ts'
import { allJobs } from '../conformance/expect.ts'
import { type JobsFile, jobsFile } from './jobs-file.ts'
import { Program } from './process.ts'
import { assertCountsEqualRecount } from './recount.ts'

const lives = 10
const liveMaxMs = 400

test('whatever a killed process was answered holds, and nothing of it is there by half', async (t) => {
  const seed = Number(process.env['HOLDFAST_CRASH_SEED'] ?? Date.now() % 0x7fffffff)
  t.diagnostic(`HOLDFAST_CRASH_SEED=${seed}`)
  await using file = await jobsFile()
  const log = join(file.directory, 'log')
  for (const [life, liveMs] of moments(seed, lives).entries()) {
    await using program = Program.start('reckless', file.path, log, `${life}`)
    await program.hear()
    await after(liveMs)
    program.kill()
    assert.equal(await program.ended, 'SIGKILL')
    if (life % 4 === 3) recount(file) // not always: the last to close tidies up, and the next life shall find a mess
  }
  const answered = readFileSync(log, 'utf8').trimEnd().split('\n')
  const of = (verb: string) =>
    answered.filter((line) => line.startsWith(`${verb} `)).map((line) => line.slice(verb.length + 1))
  t.diagnostic(
    `answered: ${of('enqueued').length} enqueues, ${of('settled').length} settlements, ${of('put').length} puts`,
  )
  assert.ok(of('settled').length > lives, 'there was work to lose')

  // Long after the last of them died, as whoever comes next finds it.
  const holdfast = await file.open({ clock: new VirtualClock(Date.now() + 120_000) })
  const before = await allJobs(holdfast, { queue: 'work' })
  const states = new Map(before.map(({ id, state }) => [id, state]))
  assert.equal(states.size, before.length, 'every id is there once')
  assert.deepEqual(
    of('enqueued').filter((id) => !states.has(id)),
    [],
    'enqueues that were lost',
  )
  assert.deepEqual(
    of('settled').filter((id) => states.get(id) !== 'done'),
    [],
    'settlements that were lost',
  )

  const kv = (await Array.fromAsync(holdfast.kv.scan(''))).map(({ key }) => key)
  assert.deepEqual(
    of('put').filter((label) => !kv.includes(`put ${label}`)),
    [],
    'kv writes that were lost',
  )
  const done = before
    .filter(({ state }) => state === 'done')
    .map(({ id }) => id)
    .sort()
  const followUps = (await allJobs(holdfast, { queue: 'after' })).map(({ payload }) => payload)
  assert.deepEqual(
    kv
      .filter((key) => key.startsWith('done '))
      .map((key) => key.slice(5))
      .sort(),
    done,
  )
  assert.deepEqual(followUps.sort(), done, 'a done job and its effects are there together, once')

  const held = before.filter(({ state }) => state === 'running')
  const attempts = new Map(held.map((job) => [job.id, job.attempts]))
  for (const [id = '', attempt] of of('held').map((line) => line.split(' ')))
    assert.equal(attempts.get(id), Number(attempt))
  assert.ok(held.length > 0, 'the dead held something')
  assert.equal((await holdfast.sweep()).rescued, held.length)
  for (const { id, attempts } of held) {
    const job = await holdfast.job(id)
    assert.deepEqual([job?.state, job?.attempts, job?.history.at(-1)?.ending], ['ready', attempts, 'expired'])
  }
  assert.equal((await holdfast.stats('work')).running, 0)
  assertCountsEqualRecount(file.raw())
})

function recount(file: JobsFile): void {
  const db = file.raw()
  assertCountsEqualRecount(db)
  db.close()
}

/** How long each life lasts. */
function moments(seed: number, count: number): number[] {
  let state = seed
  return Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0
    return (state / 2 ** 32) * liveMaxMs
  })
}
