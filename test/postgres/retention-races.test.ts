// Retention races with changes that keep alive what a sweep is about to remove. Each race is paused at its worst moment: the
// sweep has picked what is past its retention, and waits for a lock that the other transaction holds.
import assert from 'node:assert/strict'
import test from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { claimOne } from '../conformance/expect.ts'
import { inWorld, requeueInProgress, useDatabase, type World } from './world.ts'

useDatabase()

test(
  'a batch whose dead item is requeued while a sweep removes it stays, and so does the job',
  inWorld(async (world) => {
    const { id, batch } = await overBatch(world)
    const tx = await requeueInProgress(world, id)
    const swept = world.holdfast.sweep()
    await world.waiters(1, 0, 'lock')
    await tx.commit()
    await swept
    assert.equal((await world.holdfast.job(id))?.state, 'ready')
    assert.equal((await world.holdfast.getBatch(batch))?.id, batch)
    assert.deepEqual(await world.claim(), [1])
  }),
)

test(
  'a batch whose failed items are retried while a sweep removes it stays, and they are retried',
  inWorld(async (world) => {
    const { id, batch } = await overBatch(world)
    const tx = await world.begin()
    // As `retryFailed` writes it, before it touches an item.
    const [row] = await tx.run('select no from holdfast.batch where id = $1', [batch])
    await tx.run('select pg_advisory_xact_lock(BATCH_LOCKS, $1)', [row?.['no']])
    await tx.run('update holdfast.batch set retry_until = holdfast.now_ms(null) where no = $1', [row?.['no']])
    const swept = world.holdfast.sweep()
    await world.waiters(1, 0, 'lock')
    await tx.commit()
    await swept
    assert.equal((await world.holdfast.getBatch(batch))?.id, batch)
    await world.holdfast.sweep()
    assert.equal((await world.holdfast.job(id))?.state, 'ready')
    assert.equal((await world.holdfast.job(id))?.batch, batch)
  }),
)

test(
  'a dead item that is requeued while its batch is being removed returns to its queue without a batch',
  inWorld(async (world) => {
    const { id, batch } = await overBatch(world)
    const tx = await world.begin()
    const [row] = await tx.run('select no from holdfast.batch where id = $1', [batch])
    await tx.run('select pg_advisory_xact_lock(BATCH_LOCKS, $1)', [row?.['no']])
    const [removed] = await tx.run('select * from holdfast.remove_batch($1, 0, 10, holdfast.now_ms(null))', [
      row?.['no'],
    ])
    assert.equal(removed?.['is_gone'], true)
    const requeued = world.holdfast.requeue(id)
    await world.waiters(1, 0, 'lock')
    await tx.commit()
    await requeued
    assert.equal(await world.holdfast.getBatch(batch), null)
    assert.equal((await world.holdfast.job(id))?.batch, null)
    assert.deepEqual(await world.claim(), [1])
  }),
)

test(
  'a lane that is created while its batch is removed is not left behind',
  inWorld(async (world) => {
    const { batch } = await overBatch(world)
    const tx = await world.begin()
    const [row] = await world.rows('select no from holdfast.batch where id = $1', [batch])
    await tx.run(`select holdfast.open_lanes('{mail}', '{1}', 0, 0, $1)`, [batch])
    const swept = world.holdfast.sweep()
    await world.waiters(1, 0, 'remove_batch')
    await tx.commit()
    await swept
    assert.equal(await world.holdfast.getBatch(batch), null)
    assert.deepEqual(await world.rows('select no from holdfast.lane where batch = $1', [row?.['no']]), [])
  }),
)

test(
  'an expired entry that is written again while a sweep removes it stays',
  inWorld(async (world) => {
    await world.holdfast.kv.put('k', 1, { ttl: 1 })
    await sleep(5)
    const tx = await world.begin()
    await tx.run(`update holdfast.kv set value = '2', expires_at = holdfast.now_ms(null) + 60000 where key = 'k'`)
    await world.holdfast.sweep() // and does not wait for it
    await tx.commit()
    await world.holdfast.sweep()
    assert.equal((await world.holdfast.kv.get('k'))?.value, 2)
  }),
)

test(
  'a dead job that is requeued while a sweep prunes it stays',
  inWorld(async (world) => {
    const queue = world.holdfast.queue('mail', { retain: { dead: 1 } })
    const { id } = await queue.enqueue(1)
    await (await claimOne(world.holdfast, 'mail')).dead(new Error('x'))
    await sleep(5)
    const tx = await requeueInProgress(world, id)
    const swept = world.holdfast.sweep()
    await world.waiters(1, 0, 'prune')
    await tx.commit()
    await swept
    assert.equal((await world.holdfast.job(id))?.state, 'ready')
    assert.deepEqual(await world.claim(), [1])
  }),
)

test(
  'requeues, retries and sweeps of expired batches lose no job',
  inWorld(async (world) => {
    const others = [await world.another(), await world.another()] as const
    const rounds = 12
    const items = 3 // as many as a batch has at once
    const requeued: string[] = []
    for (let round = 0; round < rounds; round++) {
      const payloads = Array.from({ length: items }, (_, n) => ({ queue: 'mail', payload: n, attempts: 1 }))
      const batches = await Promise.all(
        [1, 2, 3, 4].map(() => world.holdfast.batch({ name: 'short', retain: 1 }, payloads)),
      )
      const leases = await world.holdfast.claim(['mail'], { max: 100 })
      for (const lease of leases) await lease.dead(new Error('x'))
      const ids = leases.map(({ job }) => job.id)
      const [first] = batches
      const acts = [
        ...ids.map((id, i) => async () => {
          await sleep(Math.random() * 10)
          await others[i % 2]?.requeue(id).catch((error: { code?: string }) => {
            if (error.code !== 'INVALID_STATE') throw error
          })
        }),
        async () => {
          await first?.retryFailed().catch((error: { code?: string }) => {
            if (error.code !== 'BATCH_NOT_FOUND') throw error
          })
        },
        ...others.map((other) => async () => {
          for (let i = 0; i < 5; i++) await other.sweep()
        }),
      ]
      await Promise.all(acts.map((act) => act()))
      requeued.push(...ids)
      for (const id of ids) assert.equal((await world.holdfast.job(id))?.state, 'ready', `job ${id} in round ${round}`)
      const claimed = await world.holdfast.claim(['mail'], { max: 100 })
      assert.equal(claimed.length, ids.length)
      for (const lease of claimed) await lease.done()
    }
    assert.equal(requeued.length, rounds * 4 * items)
    const orphans = await world.rows(
      'select id from holdfast.job j where not exists (select from holdfast.lane l where l.no = j.lane & ~1)',
    )
    assert.deepEqual(orphans, [])
  }),
)

/** A batch whose only item is dead, and whose retention is over. */
async function overBatch(world: World): Promise<{ readonly id: string; readonly batch: string }> {
  const batch = await world.holdfast.batch({ name: 'short', retain: 1 }, [{ queue: 'mail', payload: 1, attempts: 1 }])
  const lease = await claimOne(world.holdfast, 'mail')
  await lease.dead(new Error('x'))
  assert.equal((await batch.progress()).state, 'done')
  await sleep(5)
  return { id: lease.job.id, batch: batch.id }
}
