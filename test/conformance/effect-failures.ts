import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { z } from 'zod'
import type { ErrorCode } from '../../src/errors.ts'
import type { Lease, Settled } from '../../src/lease/lease.ts'
import { Permanent } from '../../src/lease/permanent.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import type { Effects } from '../../src/queue/effects.ts'
import { allJobs, claimOne, everything, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

const taken = '0190a5b0-0000-7000-8000-000000000001'
const twice = '0190a5b0-0000-7000-8000-000000000002'
const strict = defineQueue('strict', { payload: z.object({ n: z.number() }) })

// Each fails in its own way, after a put, a delete and a follow-up that would have succeeded.
const failures: Readonly<Record<string, { code: ErrorCode; effects: Effects }>> = {
  'the id of a live job': {
    code: 'DUPLICATE_JOB_ID',
    effects: { enqueue: [{ queue: 'receipt', payload: 2, id: taken }] },
  },
  'the same id twice': {
    code: 'DUPLICATE_JOB_ID',
    effects: {
      enqueue: [
        { queue: 'receipt', payload: 2, id: twice },
        { queue: 'receipt', payload: 3, id: twice },
      ],
    },
  },
  'an idempotency key of another payload': {
    code: 'IDEMPOTENCY_MISMATCH',
    effects: { enqueue: [{ queue: 'receipt', payload: 'another', idempotencyKey: 'i' }] },
  },
  'a compare-and-set of another version': {
    code: 'KV_VERSION_MISMATCH',
    effects: { compareAndSet: [{ key: 'kept', version: null, value: 2 }] },
  },
  'a compare-and-delete of another version': {
    code: 'KV_VERSION_MISMATCH',
    effects: { compareAndDelete: [{ key: 'kept', version: 0 }] },
  },
}

// Each is seen before anything is sent to the store.
const invalid: Readonly<Record<string, { code: ErrorCode; effects: Effects }>> = {
  'a payload that JSON cannot carry': {
    code: 'INVALID_PAYLOAD',
    effects: { enqueue: [{ queue: 'receipt', payload: Number.NaN }] },
  },
  'a payload that does not fit its schema': {
    code: 'INVALID_PAYLOAD',
    effects: { enqueue: [{ queue: strict, payload: { n: 'one' } }] },
  },
  'a queue name that is none': { code: 'INVALID_NAME', effects: { enqueue: [{ queue: 'a b', payload: 1 }] } },
  'a value that is too large': {
    code: 'KV_VALUE_TOO_LARGE',
    effects: { put: [{ key: 'huge', value: 'x'.repeat(256 * 1024) }] },
  },
  'a key that belongs to Holdfast': {
    code: 'INVALID_OPTION',
    effects: { put: [{ key: 'holdfast.gate.a', value: 1 }] },
  },
  'a key that is none': { code: 'INVALID_OPTION', effects: { delete: [''] } },
  'a misspelt name': { code: 'INVALID_OPTION', effects: { puts: [] } as Effects },
  'another type': { code: 'INVALID_OPTION', effects: 7 as Effects },
}

/** Every settlement that takes effects, with those. */
const settlements: Readonly<Record<string, (lease: Lease, effects: Effects) => Promise<Settled>>> = {
  done: (lease, effects) => lease.done('result', effects),
  'retry with ifDead': (lease, effects) => lease.retry(new TypeError('the true reason'), { ifDead: effects }),
  'retry with a Permanent': (lease, effects) => lease.retry(new Permanent('the true reason', { effects })),
  dead: (lease, effects) => lease.dead(new TypeError('the true reason'), effects),
  cancelled: (lease, effects) => lease.cancelled(effects),
}

export function effectFailureTests(inWorld: InWorld): void {
  describe('effects that fail', () => {
    for (const [what, { code, effects }] of Object.entries(failures)) {
      test(
        `${what} fails its job and applies none of its effects`,
        inWorld(async ({ holdfast, clock }) => {
          await holdfast.queue('receipt').enqueue('first', { id: taken, idempotencyKey: 'i' })
          await holdfast.kv.put('kept', true)
          const all: Effects = {
            enqueue: [{ queue: 'receipt', payload: 'fine' }, ...(effects.enqueue ?? [])],
            put: [{ key: 'put', value: 1 }, ...(effects.put ?? [])],
            delete: ['kept'],
            ...(effects.compareAndSet && { compareAndSet: effects.compareAndSet }),
            ...(effects.compareAndDelete && { compareAndDelete: effects.compareAndDelete }),
          }
          const before = await allJobs(holdfast, { queue: 'receipt' })
          const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 2 })
          await rejects((await claimOne(holdfast, 'mail')).done('result', all), code)

          const failed = await readJob(holdfast, id)
          assert.deepEqual([failed.state, failed.attempts, failed.result], ['scheduled', 1, null])
          const delay = failed.runAt.getTime() - clock.now()
          assert.ok(delay >= 8_000 && delay <= 12_000, `retried after ${delay} ms`)
          assert.deepEqual([failed.history[0]?.ending, failed.history[0]?.error?.code], ['failed', code])

          await clock.advance(delay)
          await holdfast.sweep()
          await rejects((await claimOne(holdfast, 'mail')).done('result', all), code)
          const dead = await readJob(holdfast, id)
          assert.deepEqual([dead.state, dead.attempts, dead.error?.code], ['dead', 2, code])

          assert.deepEqual(await allJobs(holdfast, { queue: 'receipt' }), before)
          assert.equal(await holdfast.kv.get('put'), null)
          assert.equal((await holdfast.kv.get('kept'))?.value, true)
        }),
      )
    }

    for (const [what, { code, effects }] of Object.entries(invalid)) {
      test(
        `${what} is refused before anything is sent, and the lease can be settled in another way`,
        inWorld(async ({ holdfast }) => {
          const all = typeof effects === 'object' ? { put: [{ key: 'fine', value: 1 }], ...effects } : effects
          for (const [settlement, settle] of Object.entries(settlements)) {
            for (const attempts of [1, 3]) {
              const { id } = await holdfast.queue('mail').enqueue(1, { attempts })
              const lease = await claimOne(holdfast, 'mail')
              const before = await everything(holdfast)
              await rejects(settle(lease, all), code)
              assert.deepEqual(await everything(holdfast), before, settlement)
              assert.equal((await lease.dead(new TypeError('the true reason'))).state, 'dead')
              assert.equal((await readJob(holdfast, id)).error?.message, 'the true reason')
            }
          }
          assert.equal(await holdfast.kv.get('fine'), null)
        }),
      )
    }

    test(
      'effects that the store refuses fail the attempt, and the error of the attempt is the first cause',
      inWorld(async ({ holdfast }) => {
        await holdfast.kv.put('kept', true)
        const effects = { compareAndSet: [{ key: 'kept', version: null, value: 2 }] }
        for (const settlement of ['retry with ifDead', 'retry with a Permanent', 'dead'] as const) {
          const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 1 })
          const settle = settlements[settlement] as (typeof settlements)[string]
          await rejects(settle(await claimOne(holdfast, 'mail'), effects), 'KV_VERSION_MISMATCH')
          const { state, error } = await readJob(holdfast, id)
          assert.deepEqual([state, error?.code], ['dead', 'KV_VERSION_MISMATCH'], settlement)
          assert.equal(error?.causes?.[0]?.message, 'the true reason', settlement)
        }
      }),
    )

    test(
      'a settlement whose effects fail does not affect the settlements in the same flush',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('receipt').enqueue('first', { id: taken })
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 20 }, (_, payload) => ({ payload })))
        const leases = await holdfast.claim(['mail'], { max: 20 })
        const outcomes = await Promise.allSettled(
          leases.map((lease, n) =>
            lease.done(n, {
              enqueue: [{ queue: 'receipt', payload: n, ...(n === 9 && { id: taken }) }],
              put: [{ key: `k${n}`, value: n }],
            }),
          ),
        )
        assert.deepEqual(
          outcomes.flatMap(({ status }, n) => (status === 'rejected' ? [n] : [])),
          [9],
        )
        const { done, scheduled } = await holdfast.stats('mail')
        assert.deepEqual([done, scheduled, (await holdfast.stats('receipt')).ready], [19, 1, 20])
        assert.equal((await Array.fromAsync(holdfast.kv.scan('k'))).length, 19)
      }),
    )

    test(
      'a failing effect of a settlement as dead or cancelled fails the job in the same way',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('receipt').enqueue('first', { id: taken })
        const enqueue = [{ queue: 'receipt', payload: 2, id: taken }]
        const [one, two] = await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }])
        const [dead, cancelled] = await holdfast.claim(['mail'], { max: 2 })
        assert.ok(dead && cancelled)
        await rejects(dead.dead(new Error('no'), { enqueue }), 'DUPLICATE_JOB_ID')
        await rejects(cancelled.cancelled({ enqueue }), 'DUPLICATE_JOB_ID')
        for (const answer of [one, two]) assert.equal(await stateOf(holdfast, answer?.id ?? ''), 'scheduled')
      }),
    )

    test(
      'a cancel whose effects fail is refused, and the job still waits',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        await holdfast.queue('receipt').enqueue('first', { id: taken })
        const before = await everything(holdfast)
        const enqueue = [
          { queue: 'receipt', payload: 'fine', id: randomUUID() },
          { queue: 'receipt', payload: 2, id: taken },
        ]
        const effects = { enqueue, put: [{ key: 'k', value: 1 }] }
        await rejects(holdfast.cancel(id, { effects }), 'DUPLICATE_JOB_ID')
        assert.deepEqual(await everything(holdfast), before)
        assert.equal((await claimOne(holdfast, 'mail')).job.id, id)
      }),
    )
  })
}
