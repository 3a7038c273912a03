// What waiting for work costs the server.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { claimOne } from '../conformance/expect.ts'
import { statementsOf } from './statements.ts'
import { inWorld, useDatabase, type World } from './world.ts'

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

/** Sweeps until a sweep has nothing left to do. */
async function settled({ holdfast }: World): Promise<void> {
  for (let i = 0; i < 3; i++) await holdfast.sweep()
}
