// Processes and servers that die in the middle of their work, and processes whose clock is wrong.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, type TestContext, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { allJobs, hour } from '../conformance/expect.ts'
import { startServer } from '../support/postgres.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { setup } from './exactness-ground.ts'
import { assertRecount } from './exactness-recount.ts'
import { done, table, work } from './processes/work.ts'
import { startProgram } from './processes.ts'

test('whatever a killed process was answered holds, and its jobs come back', async (t) => {
  await using ground = await setup()
  await using directory = await scratchDirectory()
  await (await open(ground.url)).close()
  await ground.rows(table)
  const log = join(directory.path, 'log')
  await using survivor = startProgram('reckless', ground.url, log, 'survivor')
  await survivor.hear()
  for (let life = 0; life < 5; life++) {
    await using program = startProgram('reckless', ground.url, log, `${life}`)
    await program.hear()
    await sleep(100 + 60 * life)
    program.kill()
    assert.equal(await program.ended, 'SIGKILL')
  }
  assert.equal(await survivor.ask('stop'), 'stopped')
  await judge(t, ground.url, log)
})

test('whatever a server answered before it crashed holds, and nothing is done twice', async (t) => {
  await using server = await startServer()
  await using directory = await scratchDirectory()
  const url = server.url()
  await (await open(url)).close()
  await run(url, table)
  const log = join(directory.path, 'log')
  await using one = startProgram('reckless', url, log, 'one')
  await using two = startProgram('reckless', url, log, 'two')
  await Promise.all([one.hear(), two.hear()])
  for (let crash = 0; crash < 3; crash++) {
    await sleep(500)
    await server.stop('immediate')
    await sleep(100)
    await server.start()
  }
  await sleep(500)
  assert.deepEqual(await Promise.all([one.ask('stop'), two.ask('stop')]), ['stopped', 'stopped'])
  await judge(t, url, log)
})

describe('a process whose clock is wrong neither steals leases nor keeps its own too long:', {
  concurrency: true,
}, () => {
  for (const shiftMs of [hour, -hour])
    test(`an hour ${shiftMs > 0 ? 'fast' : 'slow'}`, async () => {
      await using ground = await setup()
      await using holdfast = await open(ground.url)
      await using program = startProgram('off-clock', ground.url, String(shiftMs))
      const { now } = await program.hear<{ now: number }>()
      assert.ok(Math.abs(now - shiftMs - Date.now()) < 60_000, 'its clock is wrong')

      await holdfast.queue('mail').enqueue('ours')
      const [ours] = await holdfast.claim(['mail'], { lease: '1500ms' })
      assert.equal((await program.ask<{ rescued: number }>({ verb: 'sweep' })).rescued, 0)
      assert.equal(await program.ask({ verb: 'claim', wait: 500 }), null, 'it takes nothing that is held')
      const beganAt = performance.now()
      const stolen = await program.ask({ verb: 'claim', wait: 10_000, ms: 1_500 })
      assert.deepEqual(stolen, { payload: 'ours', attempt: 2 }, 'what has expired it takes')
      assert.ok(performance.now() - beganAt < 4_000)
      await assert.rejects(ours?.done() ?? Promise.resolve(), { code: 'LEASE_LOST' })

      assert.equal((await holdfast.sweep()).rescued, 0, 'its own lease holds')
      assert.equal(await program.ask({ verb: 'renew' }), 'renewed')
      const [again] = await holdfast.claim(['mail'], { wait: '10s' })
      assert.equal(again?.job.attempt, 3, 'and ends when it is over')
      assert.equal(await program.ask({ verb: 'done' }), 'LEASE_LOST')
      await again?.done()

      assert.equal(await program.ask({ verb: 'enqueue', payload: 'later', ms: 700 }), 'created')
      assert.deepEqual(await holdfast.claim(['mail']), [], 'a delay is counted by the store')
      const [later] = await holdfast.claim(['mail'], { wait: '10s' })
      assert.equal(later?.job.payload, 'later')
      await later?.done()
      await assertRecount(ground.pool)
    })
})

test('a claim of more than fits into one answer takes what fits, and does not end the process', async () => {
  await using ground = await setup()
  await using holdfast = await open(ground.url)
  await holdfast.queue('mail').enqueueMany(Array.from({ length: 20 }, (_, payload) => ({ payload })))
  // 560 MB behind a few small ones: more than a string of this runtime can hold.
  await ground.rows(
    `insert into holdfast.job (seq, ord, ready_xid, run_at, created_at, id, lane, max_attempts, payload)
     select n, n, pg_current_xact_id(), 0, 0, gen_random_uuid(), (select min(no) from holdfast.lane), 5, p.payload
       from (select nextval('holdfast.number') as n from generate_series(1, 560)) s,
            (select '"' || repeat('x', 1000000) || '"' as payload) p`,
  )
  await using program = startProgram('claims', ground.url)
  const { claimed } = await program.hear<{ claimed: number }>()
  assert.ok(claimed >= 20, `${claimed} claimed`)
  assert.equal(await program.ended, 0)
})

/** What was answered must hold; the rest is worked off, and then every job was done with effect once. */
async function judge(t: TestContext, url: string, log: string): Promise<void> {
  const answered = readFileSync(log, 'utf8').trimEnd().split('\n')
  const of = (verb: string) =>
    answered.filter((line) => line.startsWith(verb)).map((line) => line.slice(verb.length + 1))
  t.diagnostic(`answered: ${of('enqueued').length} enqueues, ${of('settled').length} settlements`)
  assert.ok(of('enqueued').length > 50 && of('settled').length > 50, 'there was work to lose')
  await using holdfast = await open(url)
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
  t.diagnostic(`left: ${JSON.stringify(await holdfast.stats('work'))}`)
  await workOff(holdfast)
  const jobs = await allJobs(holdfast, { queue: 'work' })
  assert.deepEqual(
    jobs.filter(({ state }) => state !== 'done').map(({ id, state }) => [id, state]),
    [],
    'all is done',
  )
  const ids = jobs.map(({ id }) => id).sort()
  const effects = await run<{ job: string }>(url, 'select job from effect order by job')
  assert.deepEqual(
    effects.map(({ job }) => job),
    ids,
    'and every job had its effect once',
  )
  const keys = (await Array.fromAsync(holdfast.kv.scan('done '))).map(({ key }) => key.slice(5))
  assert.deepEqual(keys.sort(), ids)
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  pool.on('error', () => {}) // a connection on its way out may still hear that the server stops
  pool.on('connect', (client) => client.on('error', () => {}))
  await assertRecount(pool)
  await pool.end()
}

/** Leases of the dead run out within a second. */
async function workOff(holdfast: Holdfast): Promise<void> {
  const deadline = performance.now() + 30_000
  for (;;) {
    const { ready, running, scheduled } = await holdfast.stats('work')
    if (ready + running + scheduled === 0) return
    assert.ok(performance.now() < deadline, `still ${ready} ready, ${running} running, ${scheduled} scheduled`)
    const leases = await holdfast.queue(work).claim({ max: 500, wait: 200, lease: '30s' })
    await Promise.all(leases.map(done))
  }
}

async function run<T extends pg.QueryResultRow>(url: string, text: string): Promise<T[]> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    return (await client.query<T>(text)).rows
  } finally {
    await client.end()
  }
}
