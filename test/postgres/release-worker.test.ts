// releaseWorker while other transactions have the rows of jobs or leases.
import assert from 'node:assert/strict'
import test from 'node:test'
import { claimOne, rejects } from '../conformance/expect.ts'
import { inWorld, until, useDatabase } from './world.ts'

useDatabase()

test(
  'a job whose row a settlement has locked is left to the sweep, and the other jobs of the worker are released',
  inWorld(async (world) => {
    const { holdfast } = world
    await holdfast.queue('mail').enqueueMany([1, 2].map((payload) => ({ payload })))
    const [locked] = await holdfast.claim(['mail'], { max: 2, worker: 'w', lease: '1h' })
    const tx = await world.begin()
    await tx.run('select from holdfast.job where id = $1 for update', [locked?.job.id])
    assert.deepEqual(await holdfast.releaseWorker('w'), { released: 1, left: 1 })
    await tx.commit()
    await until(async () => {
      await holdfast.sweep()
      return (await holdfast.stats('mail')).running === 0
    }, 'the sweep has taken the other job')
  }),
)

test(
  'a renewal at the same moment keeps no lease: once releaseWorker has answered, the worker has lost the job',
  inWorld(async (world) => {
    const other = await world.another()
    for (let round = 0; round < 5; round++) {
      await world.enqueue('mail', round)
      const lease = await claimOne(world.holdfast, 'mail', { worker: 'w', lease: '1h' })
      const tx = await world.begin()
      await tx.run('select from holdfast.lease for update', [])
      const first = round % 2 === 0 ? () => lease.renew('1h') : () => other.releaseWorker('w')
      const second = round % 2 === 0 ? () => other.releaseWorker('w') : () => lease.renew('1h')
      const calls = [first()]
      await world.waiters(1)
      calls.push(second())
      await world.waiters(2)
      await tx.commit()
      await Promise.allSettled(calls)
      assert.equal((await other.stats('mail')).running, 0)
      await rejects(lease.done(), 'LEASE_LOST')
      await (await claimOne(other, 'mail')).done()
    }
  }),
)
