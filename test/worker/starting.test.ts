// A worker that is stopped before it has begun.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HoldfastError } from '../../src/errors.ts'
import { Holdfast } from '../../src/holdfast.ts'
import { systemClock } from '../../src/runtime/clock.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'

test('a worker that is stopped while the store is away, before it has begun, stops and has not failed', async () => {
  const store = await sqlite({ path: ':memory:' })({ clock: systemClock })
  const asked = Promise.withResolvers<void>()
  store.define = async () => {
    asked.resolve()
    throw new HoldfastError('STORE_UNAVAILABLE', 'away')
  }
  await using holdfast = new Holdfast(store, { logger: false })
  const worker = holdfast.work(holdfast.queue('jobs', { retain: { done: '1h' } }), () => undefined)
  await asked.promise
  await worker.stop()
  assert.equal(worker.health().state, 'stopped')
})
