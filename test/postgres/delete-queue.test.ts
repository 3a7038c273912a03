// deleteQueue while other transactions use the queue (`schema/functions/delete-queue.ts`).
import assert from 'node:assert/strict'
import test from 'node:test'
import { claimOne, rejects } from '../conformance/expect.ts'
import { inWorld, type Rule, until, useDatabase, type World } from './world.ts'

useDatabase()

/** Part 2 waits for transactions that may have read a lane. */
const wait: Rule = {
  from: `and l.mode in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')`,
  to: 'and false',
}

/** An empty queue, whose lanes the client knows. */
async function emptyQueue({ holdfast }: World): Promise<void> {
  await holdfast.queue('mail').enqueue('first')
  await (await claimOne(holdfast, 'mail')).done()
  await holdfast.deleteAll({ queue: 'mail' })
}

async function isDeleting(world: World): Promise<boolean> {
  return (await world.rows('select from holdfast.queue where deleting is not null')).length > 0
}

test(
  'a transaction that has enqueued and stays open is waited for, and its job keeps the queue',
  inWorld(async (world) => {
    await emptyQueue(world)
    const tx = await world.begin()
    await tx.enqueue('mail', 'late')
    const deleted = world.holdfast.deleteQueue('mail')
    deleted.catch(() => undefined)
    await until(() => isDeleting(world), 'the deletion has begun')
    await tx.commit()
    await rejects(deleted, 'QUEUE_IN_USE')
    assert.deepEqual(await world.claim(), ['late'])
  }),
)

test(
  'if the deletion does not wait, that job is left in a queue that does not exist',
  inWorld(
    async (world) => {
      await emptyQueue(world)
      const tx = await world.begin()
      await tx.enqueue('mail', 'late')
      assert.equal((await world.holdfast.deleteQueue('mail')).deleted, true)
      await tx.commit()
      const orphans =
        'select from holdfast.job j where not exists (select from holdfast.lane l where l.no = j.lane & ~1)'
      assert.equal((await world.rows(orphans)).length, 1)
      await world.rows('delete from holdfast.job')
    },
    { without: [wait] },
  ),
)

test(
  'a transaction that is rolled back keeps no queue',
  inWorld(async (world) => {
    await emptyQueue(world)
    const tx = await world.begin()
    await tx.enqueue('mail', 'late')
    const deleted = world.holdfast.deleteQueue('mail')
    await until(() => isDeleting(world), 'the deletion has begun')
    await tx.rollback()
    assert.equal((await deleted).deleted, true)
    const left = ['queue', 'lane', 'lane_cursor', 'tally', 'dedup', 'limit_usage', 'pause_end', 'error_tally']
    for (const table of left) assert.equal((await world.rows(`select from holdfast.${table}`)).length, 0, table)
  }),
)

for (const [producer, enqueue] of Object.entries({
  'a client that knows its lanes': (world: World) => world.enqueue('mail', 'new'),
  'a client that does not': async (world: World) => (await world.another()).queue('mail').enqueue('new'),
  'a definition': async (world: World) => (await world.another()).queue('mail', { attempts: 2 }).enqueue('new'),
}))
  test(
    `an enqueue of ${producer} while a deletion is under way wins`,
    inWorld(async (world) => {
      await emptyQueue(world)
      const [begun] = await world.rows(`select holdfast.begin_delete('mail') as deleting`)
      await enqueue(world)
      const finish = `select holdfast.finish_delete('mail', $1) as finished`
      const [finished] = await world.rows(finish, [begun?.['deleting']])
      assert.equal(finished?.['finished'], false)
      assert.deepEqual(await world.claim(), ['new'])
    }),
  )

test(
  'a transaction whose snapshot is older than the deletion fails as a serialization failure, and stores no job',
  inWorld(async (world) => {
    await emptyQueue(world)
    const tx = await world.begin('begin isolation level repeatable read')
    await tx.run('select 1', [])
    assert.equal((await world.holdfast.deleteQueue('mail')).deleted, true)
    await assert.rejects(tx.enqueue('mail', 'old'))
    await tx.rollback()
    assert.equal((await world.rows('select from holdfast.job')).length, 0)
    await world.enqueue('mail', 'new')
    assert.deepEqual(await world.claim(), ['new'])
  }),
)
