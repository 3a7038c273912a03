// Migrations beside a live worker on a million jobs: how long its longest call takes, and that a step gives up after a minute
// if another session keeps a table locked.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { open } from '../../src/open.ts'
import { migrate } from '../../src/store/postgres/schema/migrate.ts'
import { steps } from '../../src/store/postgres/schema/migrations.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { steps as sqliteSteps } from '../../src/store/sqlite/schema/migrations.ts'
import { rejects } from '../conformance/expect.ts'
import { setup } from '../postgres/exactness-database.ts'
import { assertRecount } from '../postgres/exactness-recount.ts'
import { withClient } from '../postgres/filled-database.ts'
import { startProgram } from '../postgres/processes.ts'
import { jobsFile } from '../sqlite/jobs-file.ts'
import { root } from '../support/checkout.ts'
import { nextRelease, nextVersion } from '../support/next-version.ts'
import { startServer } from '../support/postgres.ts'
import { onlyLong } from '../support/system.ts'

const million = 1_000_000
const callMaxMs = 1_500
const thisVersion = join(root, 'src/open.ts')
const schema = new Schema('holdfast')
const skip = onlyLong('takes minutes')

type LongestMs = Readonly<Record<string, number>>

function assertShort(longestMs: LongestMs): void {
  for (const [verb, ms] of Object.entries(longestMs)) assert.ok(ms < callMaxMs, `${verb} took ${ms} ms`)
}

describe('PostgreSQL with a million jobs', { skip }, () => {
  test('is migrated beside a worker and a reader, and no call of the worker takes long', async (t) => {
    await using server = await startServer()
    await using database = await setup(server)
    await fill(database.url)
    await using worker = startProgram('works', database.url, thisVersion, 'mail')
    await worker.hear()
    const reader = await database.pool.connect()
    await reader.query('begin; select count(*) from holdfast.job')
    worker.tell('measure')
    const startedAt = performance.now()
    const stuck = withClient(database.url, (client) => migrate(client, schema, nextRelease))
    const error = await rejects(stuck, 'STORE_UNAVAILABLE', { found: steps.length })
    assert.match(error.message, /stays at version \d+, which works on/)
    t.diagnostic(`gave up after ${Math.round(performance.now() - startedAt)} ms`)
    await reader.query('commit')
    reader.release()
    await withClient(database.url, (client) => migrate(client, schema, nextRelease))
    const { longestMs } = await worker.ask<{ longestMs: LongestMs }>('end')
    t.diagnostic(`longest calls (ms): ${JSON.stringify(longestMs)}`)
    assertShort(longestMs)
    await assertRecount(database.pool)
  })

  test('restored elsewhere is repaired in one transaction', async (t) => {
    await using server = await startServer()
    await using database = await setup(server)
    await fill(database.url)
    await database.rows(`update holdfast.meta set system_identifier = 'another cluster'`)
    const startedAt = performance.now()
    await using holdfast = await open(database.url)
    t.diagnostic(`repaired in ${Math.round(performance.now() - startedAt)} ms`)
    assert.equal((await holdfast.claim(['waiting'], { max: 500 })).length, 500)
    await assertRecount(database.pool)
  })
})

/** A million ready jobs, in a queue without claims. */
async function fill(url: string): Promise<void> {
  await using holdfast = await open(url)
  await holdfast.queue('waiting').enqueue(0)
  await withClient(url, async (client) => {
    await client.query(`
      insert into holdfast.job (seq, ord, ready_xid, run_at, created_at, id, lane, max_attempts, payload)
      select u.number, u.number, pg_current_xact_id(), 0, 0, gen_random_uuid(), l.no, 5, '"waits"'
        from holdfast.lane l, (select nextval('holdfast.number') as number from generate_series(2, ${million})) u;
      insert into holdfast.tally (xid, queue, ready) select pg_current_xact_id(), q.no, ${million - 1} from holdfast.queue q`)
  })
}

test('a SQLite file with a million jobs is migrated while another process works on it', { skip }, async (t) => {
  await using file = await jobsFile()
  await using next = await nextVersion()
  const holdfast = await file.open()
  const jobs = Array.from({ length: 10_000 }, (_, payload) => ({ payload }))
  for (let n = 0; n < million; n += jobs.length) await holdfast.queue('waiting').enqueueMany(jobs)
  await holdfast.close()
  await using worker = startProgram('works', file.url, thisVersion, 'mail')
  await worker.hear()
  worker.tell('measure')
  await using newer = startProgram('works', file.url, next.path('open.ts'), 'mail')
  await newer.hear()
  await newer.ask('end')
  const { longestMs } = await worker.ask<{ longestMs: LongestMs }>('end')
  t.diagnostic(`longest calls (ms): ${JSON.stringify(longestMs)}`)
  assertShort(longestMs)
  assert.equal(file.raw().prepare('select schema from holdfast_meta').get()?.['schema'], sqliteSteps.length + 1)
  assert.equal((await (await file.open()).stats('waiting')).ready, million)
})
