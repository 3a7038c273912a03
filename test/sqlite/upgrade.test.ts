// Two versions on one file, and copies of a file that are used elsewhere.
import assert from 'node:assert/strict'
import { copyFile } from 'node:fs/promises'
import { join } from 'node:path'
import { backup, DatabaseSync } from 'node:sqlite'
import { describe, test } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { steps } from '../../src/store/sqlite/schema/migrations.ts'
import { allJobs, claimOne, claimOrder, rejects } from '../conformance/expect.ts'
import { root } from '../support/checkout.ts'
import { nextVersion } from '../support/next-version.ts'
import { type JobsFile, jobsFile } from './jobs-file.ts'
import { Program } from './process.ts'
import { assertCountsEqualRecount } from './recount.ts'

const works = (file: JobsFile, module: string) =>
  Program.start('../../postgres/processes/works', file.url, module, 'shared')

describe('two versions on one file', () => {
  test('work side by side during and after the migration: no job is lost, and no call fails', async () => {
    await using file = await jobsFile()
    await using next = await nextVersion()
    const thisVersion = join(root, 'src/open.ts')
    await using old = works(file, thisVersion)
    await old.hear()
    await using newer = works(file, next.path('open.ts'))
    await newer.hear()
    await using oldAgain = works(file, thisVersion)
    await oldAgain.hear()
    await delay(300)
    let enqueued = 0
    for (const program of [old, newer, oldAgain]) enqueued += (await program.ask<{ enqueued: number }>('end')).enqueued
    const db = file.raw()
    assert.deepEqual(
      { ...db.prepare('select schema, min_client from holdfast_meta').get() },
      {
        schema: steps.length + 1,
        min_client: steps.findLast(({ minClient }) => minClient !== undefined)?.minClient,
      },
    )
    const holdfast = await file.open()
    const { done, ready, scheduled, running, dead } = await holdfast.stats()
    assert.deepEqual(
      { done, ready, scheduled, running, dead },
      { done: enqueued, ready: 0, scheduled: 0, running: 0, dead: 0 },
    )
    assertCountsEqualRecount(db)
  })

  test('an older client is refused if the file excludes it', async () => {
    await using file = await jobsFile()
    await (await file.open()).close()
    file.raw().exec('update holdfast_meta set schema = schema + 2, min_client = schema + 1')
    const facts = { found: steps.length + 2, known: steps.length, minClient: steps.length + 1 }
    await rejects(open(file.url), 'SCHEMA_AHEAD', facts)
    await rejects(open(file.url, { readOnly: true }), 'SCHEMA_AHEAD', facts)
  })
})

describe('a copy of a file in use works elsewhere if it was made by', () => {
  const ways: Record<string, (file: JobsFile, copy: string, holdfast: Holdfast) => unknown> = {
    'vacuum into': (file, copy) => file.raw().exec(`vacuum into '${copy}'`),
    'the backup API': (file, copy) => backup(file.raw(), copy),
    'copying the file when all processes have closed it': async (file, copy, holdfast) => {
      await holdfast.close()
      await copyFile(file.path, copy)
    },
  }
  for (const [way, make] of Object.entries(ways))
    test(way, async () => {
      await using file = await jobsFile()
      const holdfast = await file.open()
      const { held } = await fillFile(holdfast)
      const before = await allJobs(holdfast)
      const copy = join(file.directory, 'copy.db')
      await make(file, copy, holdfast)
      await using elsewhere = await open(`sqlite:${copy}`)
      assert.deepEqual(await allJobs(elsewhere), before)
      assert.deepEqual((await elsewhere.kv.get('cursor'))?.value, { page: 7 })
      assert.deepEqual(await claimOrder(elsewhere, ['mail']), ['waits', 'keyed'])
      const again = await elsewhere.queue('mail').enqueue('again', { dedup: { key: 'k' } })
      assert.equal(again.status, 'duplicate')
      await delay(held.expiresAt.getTime() - Date.now() + 5)
      await elsewhere.sweep()
      assert.equal((await claimOne(elsewhere, 'mail')).job.payload, 'held')
      const db = new DatabaseSync(copy)
      assertCountsEqualRecount(db)
      db.close()
    })
})

async function fillFile(holdfast: Holdfast) {
  const mail = holdfast.queue('mail')
  await mail.enqueueMany(['done', 'dead', 'held', 'waits'].map((payload) => ({ payload })))
  const [done, dead] = await mail.claim({ max: 2 })
  await done?.done('result')
  await dead?.dead(new Error('no'))
  const held = await claimOne(holdfast, 'mail', { lease: '6s' })
  await mail.enqueue('keyed', { dedup: { key: 'k' } })
  await mail.enqueue('scheduled', { delay: '1h' })
  await holdfast.queue('stopped').enqueue('paused')
  await holdfast.pause('stopped')
  await holdfast.kv.put('cursor', { page: 7 })
  return { held }
}
