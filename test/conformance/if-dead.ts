// Effects that are written only if the job dies of this failure: `job.ifDead`, and `lease.retry(error, { ifDead })`.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { Permanent } from '../../src/lease/permanent.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import type { Effects } from '../../src/queue/effects.ts'
import type { Job } from '../../src/worker/job.ts'
import { claimOne, day, heard, minute, readJob, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

const ifDead: Effects = {
  put: [{ key: 'died', value: true }],
  delete: ['hope'],
  enqueue: [{ queue: 'refund', payload: 1 }],
}

export function ifDeadTests(inWorld: InWorld): void {
  describe('effects of the last failure', () => {
    leaseTests(inWorld)
    handlerTests(inWorld)
    refusedTests(inWorld)
  })
}

function leaseTests(inWorld: InWorld): void {
  test(
    'are discarded while the job is tried again, and commit with its death',
    inWorld(async ({ holdfast, clock }) => {
      await holdfast.kv.put('hope', 1)
      const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 2 })
      const first = await (await claimOne(holdfast, 'mail')).retry(new Error('once'), { ifDead })
      assert.deepEqual([first.state, first.enqueued], ['scheduled', []])
      assert.deepEqual(await written(holdfast), [false, true, 0])
      await clock.advance(minute)
      await holdfast.sweep()
      const last = await (await claimOne(holdfast, 'mail')).retry(new Error('twice'), { ifDead })
      assert.deepEqual([last.state, last.enqueued.map(({ status }) => status)], ['dead', ['created']])
      assert.deepEqual(await written(holdfast), [true, false, 1])
      assert.equal((await readJob(holdfast, id)).error?.message, 'twice')
    }),
  )

  const deaths: Readonly<Record<string, unknown>> = {
    'an error that is permanent': new Permanent('never', { effects: { put: [{ key: 'own', value: 1 }] } }),
    'an error that the definition does not retry': new RangeError('no'),
  }
  for (const [what, error] of Object.entries(deaths)) {
    test(
      `commit with a death by ${what}, whatever attempts are left`,
      inWorld(async ({ holdfast }) => {
        const mail = defineQueue('mail', { retryable: (thrown) => !(thrown instanceof RangeError) })
        await holdfast.kv.put('hope', 1)
        await holdfast.queue(mail).enqueue(1)
        assert.equal((await (await claimOne(holdfast, mail)).retry(error, { ifDead })).state, 'dead')
        assert.deepEqual(await written(holdfast), [true, false, 1])
        assert.equal((await holdfast.kv.get('own'))?.value, error instanceof Permanent ? 1 : undefined)
      }),
    )
  }

  test(
    'are discarded if the job becomes cancelled instead, and if the lease is lost',
    inWorld(async ({ holdfast, clock }) => {
      await holdfast.kv.put('hope', 1)
      const mail = holdfast.queue('mail')
      const { id } = await mail.enqueue(1, { attempts: 1 })
      const lease = await claimOne(holdfast, 'mail')
      await holdfast.cancel(id)
      assert.equal((await lease.retry(new Error('no'), { ifDead })).state, 'cancelled')
      await mail.enqueue(2, { attempts: 1 })
      const lost = await claimOne(holdfast, 'mail', { lease: minute })
      await clock.advance(day)
      await holdfast.sweep()
      assert.equal((await readJob(holdfast, lost.job.id)).state, 'dead', 'its lease has expired')
      await rejects(lost.retry(new Error('late'), { ifDead }), 'LEASE_LOST')
      assert.deepEqual(await written(holdfast), [false, true, 0])
    }),
  )

  test(
    'that are none are refused by the call, and the lease can be settled without them',
    inWorld(async ({ holdfast }) => {
      const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 1 })
      const lease = await claimOne(holdfast, 'mail')
      const bad = { put: [{ key: '', value: 1 }] }
      await rejects(lease.retry(new Error('no'), { ifDead: bad }), 'INVALID_OPTION', { option: 'effects.put.key' })
      const misspelt = { ifdead: {} } as object
      await rejects(lease.retry(new Error('no'), misspelt), 'INVALID_OPTION')
      assert.equal((await readJob(holdfast, id)).state, 'running')
      await lease.retry(new Error('the true reason'))
      const { state, error } = await readJob(holdfast, id)
      assert.deepEqual([state, error?.message], ['dead', 'the true reason'])
    }),
  )
}

function handlerTests(inWorld: InWorld): void {
  const fails: Readonly<Record<string, (job: Job) => unknown>> = {
    throws: () => {
      throw new Error('no')
    },
    'returns what cannot be stored': () => Number.NaN,
    'throws a permanent error': () => {
      throw new Permanent('never')
    },
  }
  for (const [how, fail] of Object.entries(fails)) {
    test(
      `are staged by a handler with job.ifDead, and written when its last attempt ${how}`,
      inWorld(async ({ holdfast }) => {
        await holdfast.kv.put('hope', 1)
        const enqueued: string[] = []
        const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 1 })
        holdfast.on('job.enqueued', ({ queue }) => enqueued.push(queue))
        const dead = heard(holdfast, 'job.dead')
        const worker = holdfast.work('mail', (job) => {
          stage(job)
          job.effects.put('done', 1)
          return fail(job)
        })
        await dead
        await worker.stop()
        assert.deepEqual(await written(holdfast), [true, false, 1])
        assert.equal(await holdfast.kv.get('done'), null)
        assert.deepEqual(enqueued, ['refund'])
        assert.equal((await readJob(holdfast, id)).state, 'dead')
      }),
    )
  }

  test(
    'are discarded if the handler succeeds, is tried again, or gives the job back',
    inWorld(async ({ holdfast, clock }) => {
      await holdfast.kv.put('hope', 1)
      await holdfast.queue('mail').enqueue(1, { attempts: 2 })
      const ends: ((job: Job) => unknown)[] = [
        (job) => job.snooze('1s'),
        () => {
          throw new Error('no')
        },
        () => 'done',
      ]
      for (const [i, end] of ends.entries()) {
        const settled = heard(holdfast, (['job.snoozed', 'job.retrying', 'job.done'] as const)[i] as 'job.done')
        const worker = holdfast.work('mail', (job) => {
          stage(job)
          return end(job)
        })
        await settled
        await worker.stop()
        await clock.advance(minute)
        await holdfast.sweep()
      }
      assert.deepEqual(await written(holdfast), [false, true, 0])
    }),
  )

  test(
    'that were staged before the timeout of the last attempt are written with it',
    inWorld(async ({ holdfast }) => {
      await holdfast.kv.put('hope', 1)
      const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 1, timeout: 20 })
      const { promise: never, resolve } = Promise.withResolvers<void>()
      const dead = heard(holdfast, 'job.dead')
      const worker = holdfast.work('mail', (job) => {
        stage(job)
        return never
      })
      await dead
      assert.deepEqual(await written(holdfast), [true, false, 1])
      const { error, history } = await readJob(holdfast, id)
      assert.deepEqual([error?.code, history[0]?.ending], ['JOB_TIMEOUT', 'timeout'])
      resolve()
      await worker.stop()
    }),
  )

  test(
    'of a timeout are left out if the schema of a follow-up does not answer, and the error says so',
    inWorld(async ({ holdfast }) => {
      const silent = defineQueue('silent', {
        payload: {
          '~standard': { version: 1, vendor: 'test', validate: () => new Promise<{ value: unknown }>(() => {}) },
        },
      })
      const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 1, timeout: 20 })
      const dead = heard(holdfast, 'job.dead')
      const { promise: never, resolve } = Promise.withResolvers<void>()
      const work = (job: Job) => {
        job.ifDead.enqueue(silent, 1)
        job.ifDead.put('died', true)
        return never
      }
      const worker = holdfast.work('mail', work, { unwind: 1 })
      await dead
      const { error, history } = await readJob(holdfast, id)
      assert.deepEqual([error?.code, history[0]?.ending], ['JOB_TIMEOUT', 'timeout'])
      assert.match(error?.message ?? '', /effects of job\.ifDead were not written/)
      assert.match(error?.causes?.[0]?.message ?? '', /longer than its timeout/)
      assert.deepEqual(await written(holdfast), [false, false, 0])
      resolve()
      await worker.stop()
    }),
  )

  test(
    'cannot be staged after the handler has ended',
    inWorld(async ({ holdfast }) => {
      const { promise: late, resolve } = Promise.withResolvers<unknown>()
      const dead = heard(holdfast, 'job.dead')
      await holdfast.queue('mail').enqueue(1, { attempts: 1 })
      const worker = holdfast.work('mail', (job) => {
        const { ifDead: staged } = job
        dead.then(() => {
          try {
            resolve(staged.put('late', 1))
          } catch (error) {
            resolve(error)
          }
        })
        throw new Error('no')
      })
      await rejects(Promise.reject(await late), 'INVALID_STATE')
      await worker.stop()
    }),
  )
}

function refusedTests(inWorld: InWorld): void {
  test(
    'that are refused are not written, and the job is dead with the refusal, whose cause is the error of the attempt',
    inWorld(async ({ holdfast }) => {
      await holdfast.kv.put('hope', 1)
      const failing = { ...ifDead, compareAndSet: [{ key: 'hope', version: null, value: 2 }] }
      const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 1 })
      const lease = await claimOne(holdfast, 'mail')
      await rejects(lease.retry(new TypeError('the true reason'), { ifDead: failing }), 'KV_VERSION_MISMATCH')
      const byHand = await readJob(holdfast, id)
      assert.deepEqual(
        [byHand.state, byHand.error?.name, byHand.error?.code],
        ['dead', 'EffectFailed', 'KV_VERSION_MISMATCH'],
      )
      assert.deepEqual(byHand.error?.causes, [{ name: 'TypeError', message: 'the true reason' }])

      const next = await holdfast.queue('mail').enqueue(2, { attempts: 1 })
      const failed = heard(holdfast, 'settle.failed')
      const worker = holdfast.work('mail', (job) => {
        stage(job)
        job.ifDead.compareAndSet('hope', null, 2)
        throw new TypeError('the true reason')
      })
      const [event] = await failed
      assert.match(String(event?.error.cause), /the true reason/)
      await worker.stop()
      const handled = await readJob(holdfast, next.id)
      assert.deepEqual([handled.state, handled.error?.code], ['dead', 'KV_VERSION_MISMATCH'])
      assert.equal(handled.error?.causes?.[0]?.message, 'the true reason')
      assert.deepEqual(await written(holdfast), [false, true, 0])
    }),
  )

  test(
    'that cannot be prepared fail the last attempt only, and the error of the attempt is the cause',
    inWorld(async ({ holdfast, clock }) => {
      const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 2 })
      const dead = heard(holdfast, 'job.dead')
      const retried = heard(holdfast, 'job.retrying')
      const worker = holdfast.work('mail', (job) => {
        job.ifDead.put('not JSON', Number.NaN)
        throw new Error('the true reason')
      })
      await retried
      const before = await readJob(holdfast, id)
      assert.equal(before.history[0]?.error?.message, 'the true reason')
      await clock.advance(minute)
      await holdfast.sweep()
      await dead
      await worker.stop()
      const { error } = await readJob(holdfast, id)
      assert.equal(error?.code, 'INVALID_PAYLOAD')
      assert.equal(error?.causes?.[0]?.message, 'the true reason')
    }),
  )
}

function stage(job: Job): void {
  job.ifDead.put('died', true)
  job.ifDead.delete('hope')
  job.ifDead.enqueue('refund', 1)
}

/** Whether it is recorded that the job died, whether hope is left, and how many refunds there are. */
async function written(holdfast: Holdfast): Promise<[boolean, boolean, number]> {
  const [died, hope] = await Promise.all([holdfast.kv.get('died'), holdfast.kv.get('hope')])
  return [died !== null, hope !== null, (await holdfast.stats('refund')).ready]
}
