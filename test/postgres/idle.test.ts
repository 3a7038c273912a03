// What waiting for work costs the server.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { open } from '../../src/open.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { claimOne } from '../conformance/expect.ts'
import { statementsOf } from './statements.ts'
import { inWorld, newPool, useDatabase, type World } from './world.ts'

useDatabase()

test(
  'a sweep that finds nothing due is one look, also beside running, held and finished jobs',
  inWorld(async (world) => {
    const { holdfast } = world
    const limited = holdfast.queue<number>('limited', { limit: { concurrency: 1, key: () => 'k' } })
    await limited.enqueueMany([{ payload: 1 }, { payload: 2 }])
    await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }, { payload: 3, delay: '1h' }])
    await (await claimOne(holdfast, 'mail')).done()
    await claimOne(holdfast, 'mail', { lease: '1h' })
    await settled(world)
    const sent = statementsOf(world.pool)
    for (let i = 0; i < 3; i++) await holdfast.sweep()
    const parts = ['sweep_due', 'begin', 'expired_leases', 'promote', 'end_windows', 'prune', 'pending_limit', 'fold']
    const counts = parts.map((part) => sent.filter((text) => text.includes(part)).length)
    assert.deepEqual(counts, [3, 0, 0, 0, 0, 0, 0, 0], `${parts}`)
  }),
)

test(
  'whatever becomes due after a sweep that found nothing is swept by the next',
  inWorld(async (world) => {
    const { holdfast } = world
    const mail = holdfast.queue<number>('mail')
    const due: Record<string, () => Promise<unknown>> = {
      promoted: () => mail.enqueue(1, { delay: 30 }),
      overdue: () => mail.enqueue(1, { startBefore: Date.now() + 30, priority: 9 }),
      rescued: async () => {
        await holdfast.queue('slow').enqueue(1)
        await claimOne(holdfast, 'slow', { lease: 30 })
      },
      pruned: () => holdfast.kv.put('k', 1, { ttl: 30 }),
    }
    for (const [part, make] of Object.entries(due)) {
      await settled(world)
      await make()
      await sleep(60)
      const totals = await holdfast.sweep()
      assert.equal(totals[part as 'promoted'], 1, part)
    }
    await settled(world)
    await holdfast.batch({ name: 'gone', retain: 30 })
    await sleep(60)
    await holdfast.sweep()
    assert.deepEqual((await holdfast.batches()).batches, [], 'a finished batch is pruned')
  }),
)

test(
  'an idle worker with a listening connection looks once a second, and claims and reads schedules in one look of ten',
  inWorld(async (world) => {
    await using idle = await idleWorker(world)
    const sent = statementsOf(idle.pool)
    await idle.looks(6)
    const count = (part: string) => sent.filter((text) => text.includes(part)).length
    assert.ok(count('sweep_due') >= 5, `${sent}`)
    assert.ok(count('.claim') <= 1, `${sent.filter((text) => text.includes('.claim'))}`)
    assert.ok(count('select key, value') <= 1, `${sent}`)
  }),
)

test(
  'a job whose wake-up was lost is run by an idle worker after the next look',
  inWorld(async (world) => {
    await using idle = await idleWorker(world)
    const ended = idle.nextDone()
    const enqueued = world.rows(
      `select holdfast.enqueue_plain(null, array[gen_random_uuid()], array[l.no], '{25}', '{"{}"}', null, null, null, null,
                                     null, array[l.no], array[l.epoch], null)
         from holdfast.lane l where l.no = $1`,
      [await world.lane('mail')],
    )
    await enqueued
    const looks = idle.looks(3).then(() => 'not run after three looks')
    assert.equal(await Promise.race([ended.then(() => 'done'), looks]), 'done')
    await looks
  }),
)

test(
  'a schedule that another process declares is fired by an idle worker after the next look, and again after it is changed',
  inWorld(async (world) => {
    await using idle = await idleWorker(world)
    const other = await world.another()
    for (const payload of [1, 2]) {
      const ended = idle.nextDone((job) => job === payload)
      await other.schedule('tick', { cron: '* * * * * *', queue: 'mail', payload })
      const looks = idle.looks(4).then(() => 'not fired after four looks')
      assert.equal(await Promise.race([ended.then(() => 'fired'), looks]), 'fired')
      await looks
    }
    await other.unschedule('tick')
    await idle.looks(2)
  }),
)

/** A worker of queue mail that has nothing to do, on a store that listens. */
async function idleWorker(world: World) {
  const pool = newPool(world.url)
  const holdfast = await open(postgres({ pool, schema: world.schema.name }))
  const waiting = new Set<(payload: unknown) => void>()
  const worker = holdfast.work('mail', (job) => {
    for (const each of waiting) each(job.payload)
  })
  const looks = async (count: number) => {
    const { promise, resolve } = Promise.withResolvers<void>()
    let left = count
    const stop = holdfast.on('sweep.ended', () => {
      left -= 1
      if (left === 0) resolve()
    })
    await promise
    stop()
  }
  const nextDone = (isWanted: (payload: unknown) => boolean = () => true) =>
    new Promise<void>((resolve) => {
      const hear = (payload: unknown) => {
        if (!isWanted(payload)) return
        waiting.delete(hear)
        resolve()
      }
      waiting.add(hear)
    })
  const first = nextDone()
  await world.enqueue('mail', 0)
  await first
  await looks(4) // listens by now, and has looked since
  const close = async () => {
    await worker.stop()
    await holdfast.close()
    await pool.end()
  }
  return { pool, looks, nextDone, [Symbol.asyncDispose]: close }
}

/** Sweeps until a sweep has nothing left to do. */
async function settled({ holdfast }: World): Promise<void> {
  for (let i = 0; i < 3; i++) await holdfast.sweep()
}
