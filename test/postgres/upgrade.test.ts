// Two versions on one database, and a migration from one to the other while both run. The guarantees are in
// docs/guides/upgrading.md.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import type { Client } from 'pg'
import { open } from '../../src/open.ts'
import { migrate } from '../../src/store/postgres/schema/migrate.ts'
import {
  functionsHash,
  migrationScript,
  minClientOf,
  type Release,
  release,
  steps,
} from '../../src/store/postgres/schema/migrations.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { claimOne, rejects } from '../conformance/expect.ts'
import { root } from '../support/checkout.ts'
import { nextRelease, nextVersion } from '../support/next-version.ts'
import { setup, type TestDatabase } from './exactness-database.ts'
import { assertRecount } from './exactness-recount.ts'
import { withClient } from './filled-database.ts'
import { type Program, startProgram } from './processes.ts'

const schema = new Schema('holdfast')
const thisVersion = join(root, 'src/open.ts')
const bringTo = (to: Release) => (client: Client) => migrate(client, schema, to)

interface Worked {
  readonly enqueued: number
  readonly longestMs: Readonly<Record<string, number>>
}

async function end(programs: readonly Program[]): Promise<Worked[]> {
  for (const program of programs) program.tell('end')
  return Promise.all(programs.map((program) => program.hear<Worked>()))
}

async function assertAllDone({ pool }: TestDatabase, worked: readonly Worked[]): Promise<void> {
  const counts = [...(await assertRecount(pool)).values()]
  assert.equal(
    counts.reduce((sum, { done }) => sum + done, 0),
    worked.reduce((sum, { enqueued }) => sum + enqueued, 0),
    'every job that was acknowledged is done',
  )
  for (const { ready, scheduled, running, dead } of counts) assert.equal(ready + scheduled + running + dead, 0)
}

describe('two versions on one database', () => {
  test('work side by side during and after the migration: no job is lost, and no call fails', async () => {
    await using database = await setup()
    await using next = await nextVersion()
    await using old = startProgram('works', database.url, thisVersion, 'shared')
    await old.hear()
    await using newer = startProgram('works', database.url, next.path('open.ts'), 'shared')
    await newer.hear()
    await using oldAgain = startProgram('works', database.url, thisVersion, 'shared')
    await oldAgain.hear()
    await delay(500)
    const worked = await end([old, newer, oldAgain])
    for (const { enqueued } of worked) assert.ok(enqueued > 0)
    const [meta] = await database.rows('select schema, min_client from holdfast.meta')
    assert.deepEqual(meta, { schema: steps.length + 1, min_client: minClientOf(steps) })
    await assertAllDone(database, worked)
  })

  test('an older client is refused if the schema excludes it, and works otherwise', async () => {
    await using database = await setup()
    await withClient(database.url, bringTo(nextRelease))
    await using holdfast = await open(database.url)
    await using looking = await open(database.url, { readOnly: true })
    await holdfast.queue('mail').enqueue(1)
    assert.equal((await looking.stats('mail')).ready, 1)
    await (await claimOne(holdfast, 'mail')).done()
    const breaking = { sql: 'select 1', minClient: steps.length + 2 }
    assert.deepEqual(
      await withClient(database.url, bringTo({ ...nextRelease, steps: [...nextRelease.steps, breaking] })),
      {
        from: steps.length + 1,
        to: steps.length + 2,
      },
    )
    const facts = { found: steps.length + 2, known: steps.length, minClient: steps.length + 2 }
    await rejects(open(database.url), 'SCHEMA_AHEAD', facts)
    await rejects(open(database.url, { readOnly: true }), 'SCHEMA_AHEAD', facts)
  })
})

describe('a migration of a schema in use', () => {
  test('waits for a long reader in short tries, and workers never wait long behind it', async (t) => {
    await using database = await setup()
    await using worker = startProgram('works', database.url, thisVersion, 'mail')
    await worker.hear()
    const reader = await database.pool.connect()
    await reader.query('begin; select count(*) from holdfast.job')
    worker.tell('measure')
    const migrated = withClient(database.url, bringTo(nextRelease))
    await delay(3_500)
    const [meta] = await database.rows('select schema from holdfast.meta')
    assert.deepEqual(meta, { schema: steps.length }, 'the reader still locks the table')
    await reader.query('commit')
    reader.release()
    assert.deepEqual(await migrated, { from: steps.length, to: steps.length + 1 })
    const [worked] = await end([worker])
    assert.ok(worked)
    t.diagnostic(`longest calls (ms): ${JSON.stringify(worked.longestMs)}`)
    for (const [verb, ms] of Object.entries(worked.longestMs)) assert.ok(ms < 2_000, `${verb} took ${ms} ms`)
    await assertAllDone(database, [worked])
  })

  test('replaces functions in short tries while an open transaction has one of them locked', async () => {
    await using database = await setup()
    await (await open(database.url)).close()
    await database.rows(`update holdfast.meta set functions_hash = 'of another release'`)
    const stranger = await database.pool.connect()
    await stranger.query('begin; alter function holdfast.now_ms(bigint) cost 2')
    const migrated = withClient(database.url, (client) => migrate(client, schema))
    const paused = `select from pg_stat_activity where datname = current_database() and state = 'idle in transaction'
                       and query like 'rollback to savepoint%'`
    const deadline = Date.now() + 10_000
    while ((await database.rows(paused)).length === 0) {
      assert.ok(Date.now() < deadline, 'it waits for the lock without a pause')
      await delay(20)
    }
    await stranger.query('commit')
    stranger.release()
    assert.deepEqual(await migrated, { from: steps.length, to: steps.length })
    const [meta] = await database.rows<{ hash: string }>('select functions_hash as hash from holdfast.meta')
    assert.equal(meta?.hash, functionsHash(schema, release))
  })

  test('is done once if ten processes start it at the same moment; the others wait for it', async () => {
    await using database = await setup()
    await (await open(database.url)).close()
    const answers = await Promise.all(Array.from({ length: 10 }, () => withClient(database.url, bringTo(nextRelease))))
    const from = answers.map((answer) => answer.from).sort((a, b) => a - b)
    assert.deepEqual(from, [steps.length, ...Array.from({ length: 9 }, () => steps.length + 1)])
  })

  test('that fails leaves the schema at the last complete step, and clients go on', async () => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    const fails = { sql: 'alter table holdfast.job add column more text; select 1 / 0' }
    await assert.rejects(
      withClient(database.url, bringTo({ ...nextRelease, steps: [...nextRelease.steps, fails] })),
      /division by zero/,
    )
    const [meta] = await database.rows('select schema from holdfast.meta')
    assert.deepEqual(meta, { schema: steps.length + 1 })
    await holdfast.queue('mail').enqueue(1)
    await using another = await open(database.url)
    await (await claimOne(another, 'mail')).done()
    await assertRecount(database.pool)
  })
})

describe('the script from an installed version', () => {
  test('gives the same schema as a migration, from every version', async () => {
    const { steps: nextSteps, functions } = nextRelease
    const to = { steps: [...nextSteps, { sql: 'create table holdfast.novelty (n int)' }], functions }
    for (const from of [steps.length, steps.length + 1]) {
      await using database = await setup()
      await withClient(database.url, bringTo({ ...to, steps: to.steps.slice(0, from) }))
      await database.pool.query(migrationScript(schema, { from, to }))
      const [meta] = await database.rows('select schema, min_client, functions_hash from holdfast.meta')
      assert.deepEqual(meta, {
        schema: to.steps.length,
        min_client: minClientOf(steps),
        functions_hash: functionsHash(schema, to),
      })
      await using holdfast = await open(database.url)
      await holdfast.queue('mail').enqueue(1)
      await (await claimOne(holdfast, 'mail')).done()
    }
  })

  test('changes nothing if the schema is at another version, and is empty for the latest', async () => {
    await using database = await setup()
    await (await open(database.url)).close()
    await assert.rejects(database.pool.query(migrationScript(schema, { from: 2 })), /this is for a schema at version 2/)
    assert.equal(migrationScript(schema, { from: steps.length }), '')
  })
})
