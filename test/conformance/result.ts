import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { claimOne, deadJob, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

export function resultTests(inWorld: InWorld): void {
  describe('waiting for a result', () => {
    test(
      'returns the result of the job, whether it has ended already or not yet',
      inWorld(async ({ holdfast, another }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const waiting = [holdfast, holdfast, await another()].map((client) => client.result(id))
        await (await claimOne(holdfast, 'mail')).done({ sent: true })
        assert.deepEqual(await Promise.all(waiting), [{ sent: true }, { sent: true }, { sent: true }])
        assert.deepEqual(await holdfast.result(id), { sent: true })
      }),
    )

    test(
      'that takes too long says the state of the job and its last error',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const early = await rejects(holdfast.result(id, { timeout: 5 }), 'WAIT_TIMEOUT', {
          state: 'ready',
          error: null,
        })
        assert.match(early.message, /It is ready\./)
        await (await claimOne(holdfast, 'mail')).retry(new Error('no answer'), { delay: '1h' })
        const error = await rejects(holdfast.result(id, { timeout: 5 }), 'WAIT_TIMEOUT', { state: 'scheduled' })
        assert.match(error.message, /It is scheduled; its last attempt failed: no answer\./)
        assert.equal((error.facts['error'] as Error).message, 'no answer')
      }),
    )

    test(
      'ends at once in the process that settles the job',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const waiting = holdfast.result(id)
        await new Promise((resolve) => setTimeout(resolve, 1_000))
        const lease = await claimOne(holdfast, 'mail')
        const began = performance.now()
        await lease.done()
        assert.equal(await waiting, null)
        assert.ok(performance.now() - began < 200, `${performance.now() - began} ms`)
      }),
    )

    test(
      'of a dead job is JOB_DEAD, of a cancelled one JOB_CANCELLED, of none JOB_NOT_FOUND',
      inWorld(async ({ holdfast }) => {
        const id = await deadJob(holdfast, 'mail')
        const error = await rejects(holdfast.result(id), 'JOB_DEAD', { id, attempts: 1 })
        assert.match(error.message, /after 1 attempts?: /)
        const { id: waiting } = await holdfast.queue('mail').enqueue(1)
        const refused = rejects(holdfast.result(waiting), 'JOB_CANCELLED', { id: waiting })
        await holdfast.cancel(waiting)
        await refused
        await rejects(holdfast.result(randomUUID()), 'JOB_NOT_FOUND')
      }),
    )

    test(
      'of a queue without retention is JOB_NOT_FOUND after the job is removed, and says why',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail', { retain: { done: 0 } }).enqueue(1)
        const refused = rejects(holdfast.result(id), 'JOB_NOT_FOUND', { id })
        await (await claimOne(holdfast, 'mail')).done('lost')
        assert.match((await refused).message, /retain/)
      }),
    )

    test(
      'ends with WAIT_TIMEOUT and does not change the job; a signal and a close end it too',
      inWorld(async ({ holdfast, another }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        await rejects(holdfast.result(id, { timeout: 30 }), 'WAIT_TIMEOUT', { id, timeoutMs: 30 })
        const reason = new Error('enough')
        await assert.rejects(holdfast.result(id, { signal: AbortSignal.abort(reason) }), reason)
        const other = await another()
        const waiting = rejects(other.result(id), 'CLOSED')
        await other.close()
        await waiting
        assert.equal((await claimOne(holdfast, 'mail')).job.id, id)
        await rejects(holdfast.result('nonsense'), 'INVALID_ID')
        await rejects(holdfast.result(id, { timeout: -1 }), 'INVALID_OPTION', { option: 'timeout' })
      }),
    )

    test(
      'continues over retries and a requeue, until the job has ended',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const waiting = holdfast.result(id)
        await (await claimOne(holdfast, 'mail')).retry(new Error('once'), { delay: 0 })
        await (await claimOne(holdfast, 'mail')).done('at last')
        assert.equal(await waiting, 'at last')
      }),
    )
  })
}
