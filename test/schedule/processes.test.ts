// Ten processes on one store fire every second's slot exactly once, while some of them are killed at random moments: for a few
// seconds, and for a whole minute with HOLDFAST_TEST_LONG=1.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import test, { type TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { allJobs } from '../conformance/expect.ts'
import { Program } from '../sqlite/process.ts'
import { testDatabase } from '../support/postgres.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { isLong } from '../support/system.ts'

const processes = 10
const runMs = isLong ? 60_000 : 4_000

test('ten processes on one file fire each slot once, although some of them are killed', async (t) => {
  await using scratch = await scratchDirectory()
  await fireTogether(`sqlite:${join(scratch.path, 'jobs.db')}`, t)
})

test('ten processes on one server fire each slot once, although some of them are killed', async (t) => {
  await using database = await testDatabase()
  await fireTogether(database.url, t)
})

async function fireTogether(store: string, t: TestContext): Promise<void> {
  await using holdfast = await open(store, { logger: false })
  const programs = new Set<Program>()
  const start = () => {
    const program = Program.start('../../schedule/programs/fires', store)
    programs.add(program)
    return program.hear()
  }
  try {
    await Promise.all(Array.from({ length: processes }, start))
    const endsAt = performance.now() + runMs
    while (performance.now() < endsAt) {
      await sleep(500 + Math.random() * 1_500)
      const [victim] = [...programs].sort(() => Math.random() - 0.5)
      victim?.kill('SIGKILL')
      programs.delete(victim as Program)
      await start()
    }
    await sleep(1_500)
    for (const program of programs) program.tell('end')
    await Promise.all([...programs].map((program) => program.ended))
  } finally {
    for (const program of programs) program.kill()
  }
  await judge(holdfast, t)
}

async function judge(holdfast: Holdfast, t: TestContext): Promise<void> {
  const [tick] = await holdfast.schedules()
  const jobs = await allJobs(holdfast)
  const slots = jobs.map(({ headers }) => headers['holdfast-slot'] as string).sort()
  const [first, last] = [Date.parse(slots[0] as string), tick?.lastSlot?.getTime() as number]
  const expected = Array.from({ length: (last - first) / 1_000 + 1 }, (_, n) =>
    new Date(first + n * 1_000).toISOString(),
  )
  assert.ok(expected.length >= runMs / 1_000, `${expected.length} slots`)
  assert.deepEqual(slots, expected)
  assert.equal(tick?.fired, expected.length)
  const late = jobs.map(
    ({ headers, createdAt }) => createdAt.getTime() - Date.parse(headers['holdfast-slot'] as string),
  )
  const [median, worst] = [0.5, 1].map((share) => late.sort((a, b) => a - b)[Math.ceil(late.length * share) - 1])
  t.diagnostic(`${jobs.length} slots; late by ${median} ms, at most ${worst} ms`)
  assert.ok(first - (tick?.createdAt.getTime() ?? 0) <= 1_000, 'from the first slot on')
}
