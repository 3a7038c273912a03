// Each call to the store stays within its size limit, whatever calls are made at the same moment.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Holdfast } from '../../src/holdfast.ts'
import { systemClock } from '../../src/runtime/clock.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import type { Store } from '../../src/store/store.ts'
import { rejects } from '../conformance/expect.ts'

const mebibyte = 1024 * 1024

/** Characters of JSON in each call to the store. */
async function setup() {
  const store = await sqlite({ path: ':memory:' })({ clock: systemClock })
  const calls: number[] = []
  const weighed = new Set(['enqueue', 'settle', 'kvWrite'])
  const counting = new Proxy(store, {
    get(target, name) {
      const method = Reflect.get(target, name)
      if (typeof method !== 'function') return method
      return (...args: unknown[]) => {
        if (weighed.has(String(name))) calls.push(JSON.stringify(args).length)
        return method.apply(target, args)
      }
    },
  })
  const holdfast = new Holdfast(counting as Store)
  return { holdfast, calls, [Symbol.asyncDispose]: () => holdfast.close() }
}

test('large payloads, results and values of the same moment are sent in several calls', async () => {
  await using world = await setup()
  const { holdfast, calls } = world
  const large = 'x'.repeat(mebibyte - 2)
  const count = 40
  await Promise.all(Array.from({ length: count }, () => holdfast.queue('mail').enqueue(large)))
  const leases = [
    ...(await holdfast.claim(['mail'], { max: count })),
    ...(await holdfast.claim(['mail'], { max: count })),
  ]
  leases.push(...(await holdfast.claim(['mail'], { max: count })))
  assert.equal(leases.length, count)
  await Promise.all(leases.map((lease) => lease.done(large)))
  const value = 'x'.repeat(256 * 1024 - 2)
  await Promise.all(Array.from({ length: 4 * count }, (_, n) => holdfast.kv.put(`k${n}`, value)))
  assert.ok(calls.length >= 6, `${calls.length} calls`)
  assert.ok(Math.max(...calls) < 40 * mebibyte, `${Math.max(...calls)} characters in one call`)
})

test('an enqueue above the size limit is refused, and none of its jobs is stored', async () => {
  await using world = await setup()
  const { holdfast } = world
  const payload = 'x'.repeat(mebibyte - 2)
  const many = (count: number) => Array.from({ length: count }, () => ({ payload }))
  await rejects(holdfast.queue('mail').enqueueMany(many(65)), 'PAYLOAD_TOO_LARGE')
  assert.equal((await holdfast.stats()).ready, 0)
  await holdfast.queue('mail').enqueueMany(many(1))
  const [lease] = await holdfast.claim(['mail'])
  assert.ok(lease)
  const enqueue = many(65).map((job) => ({ queue: 'post', ...job }))
  await rejects(lease.done(1, { enqueue }), 'PAYLOAD_TOO_LARGE')
  assert.deepEqual([(await holdfast.stats('post')).ready, (await holdfast.stats('mail')).running], [0, 1])
})
