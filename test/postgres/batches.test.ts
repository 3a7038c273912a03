// Batches by the clock of the server: most tests have one of their own.
import assert from 'node:assert/strict'
import test from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { claimOne, rejects } from '../conformance/expect.ts'
import { inHand, useDatabase } from './hand.ts'

useDatabase()

test(
  'items for a batch that is closed, or not there, are refused',
  inHand(async ({ holdfast }) => {
    const items = [{ queue: 'mail', payload: 1 }]
    const batch = await holdfast.batch({ name: 'mail' }, items)
    await rejects(batch.add(items), 'INVALID_STATE')
    await batch.delete()
    await rejects(batch.add(items), 'BATCH_NOT_FOUND')
  }),
)

test(
  'a batch is deleted with its items',
  inHand(async ({ holdfast }) => {
    const batch = await holdfast.batch({ name: 'mail' }, [{ queue: 'mail', payload: 1 }])
    await batch.delete()
    assert.equal(await holdfast.getBatch(batch.id), null)
    assert.deepEqual((await holdfast.jobs({ queue: 'mail' })).jobs, [])
  }),
)

test(
  'a batch goes once its retention is over',
  inHand(async ({ holdfast }) => {
    const batch = await holdfast.batch({ name: 'mail', retain: 1 }, [{ queue: 'mail', payload: 1 }])
    await (await claimOne(holdfast, 'mail')).done()
    assert.equal((await batch.progress()).state, 'done')
    await sleep(2)
    await holdfast.sweep()
    assert.equal(await holdfast.getBatch(batch.id), null)
  }),
)
