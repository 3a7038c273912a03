// An application's own transaction has enqueued with the dedup key of a job, and stays open. What operators and sweeps do to
// other jobs goes on meanwhile, without waiting sessions.
import assert from 'node:assert/strict'
import test from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Batch } from '../../src/batch/batch.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { claimOne } from '../conformance/expect.ts'
import { type CallerTx, inWorld, until, useDatabase, type World } from './world.ts'

useDatabase()

/** Makes a call fail that takes longer. What it would wait for is held until the test ends. */
async function soon<T>(what: string, call: Promise<T>): Promise<T> {
  const late = sleep(5_000, undefined, { ref: false }).then(() => assert.fail(`${what} is not answered`))
  return Promise.race([call, late])
}

async function noSessionWaits(world: World): Promise<void> {
  const waiting = `select query from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
    and clock_timestamp() - query_start > interval '2 seconds'`
  assert.deepEqual(await world.rows(waiting), [])
}

/** A batch of items that are all dead. Those of \`keys\` have dedup keys. */
async function deadBatch(world: World, keys: readonly (string | null)[]): Promise<Batch> {
  const items = keys.map((key, payload) => ({ queue: 'mail', payload, ...(key && { dedup: { key } }) }))
  const batch = await world.holdfast.batch({ name: 'b' }, items)
  for (let dead = 0; dead < keys.length; dead++) await (await claimOne(world.holdfast, 'mail')).dead(new Error('no'))
  return batch as Batch
}

async function stranger(world: World, keys: readonly string[]): Promise<CallerTx> {
  const tx = await world.begin()
  for (const key of keys) await tx.enqueue('mail', `of the stranger: ${key}`, { dedup: { key } })
  return tx
}

const readyOf = async (holdfast: Holdfast) => (await holdfast.stats('mail')).ready

for (const end of ['commit', 'rollback'] as const) {
  test(
    `a retry of failed items waits for the one whose key is busy, and the others start at once (${end})`,
    inWorld(async (world) => {
      const { holdfast } = world
      const batch = await deadBatch(world, [null, 'a', 'b', 'c', null, 'd', null])
      const tx = await stranger(world, ['b', 'd'])
      let isAnswered = false
      const retried = batch.retryFailed().finally(() => {
        isAnswered = true
      })
      retried.catch(() => {}) // if the test fails before it is answered
      await until(async () => (await readyOf(holdfast)) === 5, 'the other items are ready')
      const other = await world.another()
      await soon('a sweep', other.sweep())
      await soon('an enqueue', other.queue('mail').enqueue('later', { delay: 1 }))
      await until(async () => {
        await soon('a sweep', other.sweep())
        return (await readyOf(holdfast)) === 6
      }, 'the sweep has promoted a job')
      await soon('a pause of the batch', (await other.getBatch(batch.id))?.pause() as Promise<unknown>)
      await (await other.getBatch(batch.id))?.resume()
      await noSessionWaits(world)
      assert.equal(isAnswered, false)
      await tx[end]()
      await soon('the retry', retried)
      assert.equal((await batch.progress()).dead, end === 'commit' ? 2 : 0)
      assert.equal(await readyOf(holdfast), 8)
    }),
  )
}

test(
  'sweeps finish a retry whose process is gone, also past more busy items than one sweep tries',
  inWorld(async (world) => {
    const { holdfast } = world
    const keys = Array.from({ length: 12 }, (_, n) => `k${n}`)
    const batch = await deadBatch(world, [...keys, null])
    const tx = await stranger(world, keys)
    await world.rows(`update holdfast.batch set retry_until = 4e12`)
    await until(async () => {
      await soon('a sweep', holdfast.sweep())
      return (await readyOf(holdfast)) === 1
    }, 'the last item is ready')
    assert.equal((await batch.progress()).dead, 12)
    await tx.rollback()
    await until(async () => {
      await soon('a sweep', holdfast.sweep())
      return (await readyOf(holdfast)) === 13
    }, 'all items are ready')
    await until(async () => {
      await holdfast.sweep()
      return (await world.rows('select from holdfast.batch where retry_until is not null')).length === 0
    }, 'the retry is over')
  }),
)

test(
  'sweeps go on while another session has the lock of a batch that has something to do',
  inWorld(async (world) => {
    const { holdfast } = world
    await deadBatch(world, [null])
    const retried = await deadBatch(world, [null])
    const [row] = await world.rows('select min(no) as no from holdfast.batch')
    await world.rows('update holdfast.batch set retry_until = 4e12')
    const tx = await world.begin()
    await tx.run('select holdfast.lock_batches($1)', [[row?.['no']]])
    await world.enqueue('other', 1, { delay: 1 })
    await until(async () => {
      await soon('a sweep', holdfast.sweep())
      return (await readyOf(holdfast)) === 1 && (await holdfast.stats('other')).ready === 1
    }, 'the other batch is retried, and a job is promoted')
    assert.equal((await retried.progress()).dead, 0)
    await tx.commit()
    await until(async () => {
      await holdfast.sweep()
      return (await readyOf(holdfast)) === 2
    }, 'the first batch is retried')
  }),
)

const windowed = (key: string) => ({ dedup: { key, scope: { window: '1h' } } }) as const

/** The window of `key` is over, and an application has taken it over and stays open. */
async function takenOver(world: World, key: string): Promise<CallerTx> {
  await world.rows('update holdfast.dedup set until = 1 where key = $1', [key])
  const tx = await world.begin()
  await tx.enqueue('mail', 'of the stranger', windowed(key))
  assert.equal((await tx.run('select from holdfast.dedup where key = $1 and until > 1', [key])).length, 1)
  return tx
}

test(
  'a delete, of one job or of all, waits for no key that another transaction has taken over',
  inWorld(async (world) => {
    const { holdfast } = world
    const one = await world.enqueue('mail', 1, windowed('a'))
    await world.enqueue('mail', 2, windowed('b'))
    await world.enqueue('mail', 3)
    const txs = [await takenOver(world, 'a'), await takenOver(world, 'b')]
    await soon('a delete', holdfast.delete(one))
    assert.equal((await soon('deleteAll', holdfast.deleteAll({ queue: 'mail' }))).changed, 2)
    for (const tx of txs) await tx.commit()
    assert.deepEqual((await world.claim()).length, 2)
    const { status } = await holdfast.queue('mail').enqueue(4, { dedup: { key: 'c' } })
    assert.equal(status, 'created')
  }),
)

test(
  'a batch is deleted, by the call and by sweeps, while another transaction has taken over the key of an item',
  inWorld(async (world) => {
    const { holdfast } = world
    const batch = await holdfast.batch({ name: 'b' }, [{ queue: 'mail', payload: 1, ...windowed('a') }])
    await (await claimOne(holdfast, 'mail')).done()
    const tx = await takenOver(world, 'a')
    await soon('the delete', batch.delete())
    assert.equal(await holdfast.getBatch(batch.id), null)
    await soon('a sweep', holdfast.sweep())
    await tx.rollback()
    assert.deepEqual(await world.rows('select from holdfast.batch'), [])
    assert.equal((await world.rows('select from holdfast.dedup')).length, 1, 'the key, whose time is over')
    await until(async () => {
      await holdfast.sweep()
      return (await world.rows('select from holdfast.dedup')).length === 0
    }, 'the key is pruned')
  }),
)

test(
  'a requeue of one job waits for its busy key without a connection and without locks',
  inWorld(async (world) => {
    const batch = await deadBatch(world, ['a', null])
    const [keyed, plain] = (await world.rows('select id from holdfast.ended order by seq')).map(
      ({ id }) => id as string,
    )
    const tx = await stranger(world, ['a'])
    const other = await world.another({ max: 2 })
    const codeOf = (error: { code?: string }) => error.code
    const requeued = Array.from({ length: 4 }, () => other.requeue(keyed as string).then(() => 'requeued', codeOf))
    for (let n = 0; n < 20; n++) await soon('an enqueue', other.queue('mail').enqueue('beside'))
    await soon('a requeue of another item', world.holdfast.requeue(plain as string))
    await noSessionWaits(world)
    await tx.rollback()
    const refused = 'INVALID_STATE'
    assert.deepEqual((await Promise.all(requeued)).sort(), [refused, refused, refused, 'requeued'])
    assert.equal((await batch.progress()).dead, 0)
  }),
)

/** Dead jobs with these dedup keys, the oldest first. */
async function deadJobs(world: World, keys: readonly (string | null)[]): Promise<void> {
  for (const key of keys) await world.enqueue('mail', 'dead', key === null ? {} : { dedup: { key } })
  for (let n = 0; n < keys.length; n++) await (await claimOne(world.holdfast, 'mail')).dead(new Error('no'))
}

test(
  'requeueAll skips the jobs whose keys or ids are busy, says so, and requeues all others',
  inWorld(async (world) => {
    const { holdfast } = world
    await deadJobs(world, [null, 'a', null, 'b', 'c', null, 'd', null])
    const id = '0190c4f2-0000-7000-8000-000000000001'
    await holdfast.queue('mail').enqueue('given', { id })
    await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
    const tx = await stranger(world, ['b', 'd'])
    await tx.enqueue('mail', 'under its id', { id })
    const { changed, skipped, next } = await soon('requeueAll', holdfast.requeueAll({ queue: 'mail' }))
    assert.deepEqual([changed, next, skipped.map(({ reason, count }) => [reason, count])], [6, null, [['busy', 3]]])
    assert.ok(skipped[0]?.ids.includes(id))
    assert.equal(await readyOf(holdfast), 6)
    await noSessionWaits(world)
    await tx.rollback()
    assert.equal((await holdfast.requeueAll({ queue: 'mail' })).changed, 3)
  }),
)

test(
  'requeueAll goes on behind more busy jobs than one step tries',
  inWorld(async (world) => {
    const { holdfast } = world
    const keys = Array.from({ length: 50 }, (_, n) => `k${n}`)
    await deadJobs(world, [null, ...keys, null])
    const tx = await stranger(world, keys)
    const requeued = holdfast.requeueAll({ queue: 'mail' })
    const { changed, skipped } = await requeued
    assert.deepEqual([changed, skipped.map(({ reason, count }) => [reason, count])], [2, [['busy', 50]]])
    await tx.rollback()
  }),
)

test(
  'an application that enqueues one key after the other is not ended by a deadlock with requeueAll',
  inWorld(async (world) => {
    await deadJobs(world, ['b', 'a'])
    const tx = await stranger(world, ['b']) // keys are taken in their order: first a, then b
    let isAnswered = false
    const requeued = world.holdfast.requeueAll({ queue: 'mail' }).finally(() => {
      isAnswered = true
    })
    const waits = `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
      and clock_timestamp() - query_start > interval '1500 milliseconds'` // it has looked for a deadlock by then
    await until(async () => isAnswered || (await world.rows(waits)).length > 0, 'it is answered, or waits')
    await tx.enqueue('mail', 'of the stranger: a', { dedup: { key: 'a' } })
    await tx.commit()
    const { changed, skipped } = await requeued
    assert.deepEqual([changed, skipped[0]?.reason], [1, 'busy'])
  }),
)
