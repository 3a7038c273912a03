// releaseWorker: the leases of a worker that is known to be dead end at once, exactly as expired leases would.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { claimOne, claimOrder, heard, queueInfo, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function releaseWorkerTests(inWorld: InWorld): void {
  describe('releaseWorker', () => {
    test(
      'the jobs of the worker are ready at once, at the front, and those of other workers are not touched',
      inWorld(async ({ holdfast, another }) => {
        await holdfast.queue('mail').enqueueMany([1, 2, 3, 4].map((payload) => ({ payload })))
        await holdfast.claim(['mail'], { max: 2, worker: 'dead', lease: '1h' })
        const kept = await claimOne(holdfast, 'mail', { worker: 'alive', lease: '1h' })
        const other = await another()
        assert.deepEqual(await other.releaseWorker('dead', { dryRun: true }), { released: 2, left: 0 })
        assert.equal((await queueInfo(other, 'mail')).running, 3, 'a dry run changes nothing')
        assert.deepEqual(await other.releaseWorker('dead', { by: 'ada' }), { released: 2, left: 0 })
        assert.deepEqual(await other.releaseWorker('dead'), { released: 0, left: 0 })
        assert.equal((await kept.done()).state, 'done')
        assert.deepEqual(await claimOrder(other, ['mail']), [1, 2, 4])
      }),
    )

    test(
      'the attempt counts, the history says by which operator the lease was ended, and the cap of attempts holds',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 2 })
        await claimOne(holdfast, 'mail', { worker: 'dead', lease: '1h' })
        const expired = heard(holdfast, 'lease.expired', 2)
        await holdfast.releaseWorker('dead', { by: 'ada' })
        const job = await readJob(holdfast, id)
        assert.deepEqual([job.state, job.attempts], ['ready', 1])
        assert.deepEqual(
          job.history.map(({ ending, worker, error }) => [ending, worker, error?.message]),
          [['expired', 'dead', 'The lease of worker dead was ended by ada before the job was settled.']],
        )
        await claimOne(holdfast, 'mail', { worker: 'dead', lease: '1h' })
        const dead = heard(holdfast, 'job.dead')
        await holdfast.releaseWorker('dead')
        const ended = await readJob(holdfast, id)
        assert.deepEqual([ended.state, ended.attempts], ['dead', 2])
        assert.equal(
          ended.error?.message,
          'The lease of worker dead was ended by an operator before the job was settled.',
        )
        assert.deepEqual(
          (await expired).map(({ id: of, releasedBy, state }) => [of, releasedBy, state]),
          [
            [id, 'ada', 'ready'],
            [id, null, 'dead'],
          ],
        )
        assert.deepEqual(
          (await dead).map(({ id: of, ending }) => [of, ending]),
          [[id, 'expired']],
        )
      }),
    )

    test(
      'a worker that lives after all loses its leases: it can neither settle nor renew, and none of its effects is applied',
      inWorld(async ({ holdfast, another }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const stale = await claimOne(holdfast, 'mail', { worker: 'w', lease: '1h' })
        await stale.renew('1h')
        await (await another()).releaseWorker('w')
        await rejects(stale.renew('1h'), 'LEASE_LOST')
        await rejects(stale.done(1, { put: [{ key: 'late', value: 1 }] }), 'LEASE_LOST')
        assert.equal(await holdfast.kv.get('late'), null)
        assert.equal(await stateOf(holdfast, id), 'ready')
        const next = await claimOne(holdfast, 'mail', { worker: 'w', lease: '1h' })
        assert.equal((await next.done()).state, 'done', 'the same worker may claim it again')
      }),
    )

    test(
      'a job of a limit key gives its slot to the next, and limits hold',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue('mail', { limit: { concurrency: 1, key: 'k' } })
        await queue.enqueueMany([1, 2].map((n) => ({ payload: { k: 'a', n } })))
        await claimOne(holdfast, 'mail', { worker: 'dead', lease: '1h' })
        await holdfast.releaseWorker('dead')
        const { ready, held, running } = await queueInfo(holdfast, 'mail')
        assert.deepEqual([ready, held, running], [1, 1, 0])
        const first = await claimOne(holdfast, 'mail')
        assert.deepEqual(first.job.payload, { k: 'a', n: 1 }, 'the released job comes first')
        assert.deepEqual(await holdfast.claim(['mail']), [])
        await first.done()
        assert.deepEqual((await claimOne(holdfast, 'mail')).job.payload, { k: 'a', n: 2 })
      }),
    )

    test(
      'a batch whose last item dies by it is finished',
      inWorld(async ({ holdfast }) => {
        const batch = await holdfast.batch({ name: 'b' }, [{ queue: 'mail', payload: 1, attempts: 1 }])
        await claimOne(holdfast, 'mail', { worker: 'dead', lease: '1h' })
        assert.deepEqual(await holdfast.releaseWorker('dead'), { released: 1, left: 0 })
        const { state, dead } = await batch.progress()
        assert.deepEqual([state, dead], ['done', 1])
      }),
    )

    test(
      'a job that was asked to cancel is cancelled, with the effects of the cancel',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        await claimOne(holdfast, 'mail', { worker: 'dead', lease: '1h' })
        await holdfast.cancel(id, { effects: { put: [{ key: 'cancelled', value: id }] } })
        assert.deepEqual(await holdfast.releaseWorker('dead'), { released: 1, left: 0 })
        assert.equal(await stateOf(holdfast, id), 'cancelled')
        assert.equal((await holdfast.kv.get('cancelled'))?.value, id)
      }),
    )

    test(
      'many jobs are released in bounded steps, and what the worker claims meanwhile stays with it',
      inWorld(async ({ holdfast, store: openStore, clock }) => {
        const store = await openStore()
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 30 }, (_, payload) => ({ payload })))
        await holdfast.claim(['mail'], { max: 30, worker: 'w', lease: '1h' })
        const request = { worker: 'w', by: null, dryRun: false, max: 10 }
        const first = await store.releaseWorker({ ...request, claimedUntil: null })
        assert.deepEqual([first.expired.length, first.left, first.more], [10, 20, true])
        await clock.advance(1)
        assert.equal((await holdfast.claim(['mail'], { max: 3, worker: 'w', lease: '1h' })).length, 3)
        let step = first
        let released = first.expired.length
        while (step.more) {
          step = await store.releaseWorker({ ...request, claimedUntil: step.claimedUntil })
          assert.ok(step.expired.length <= 10)
          released += step.expired.length
        }
        assert.deepEqual([released, step.left], [30, 0])
        assert.equal((await queueInfo(holdfast, 'mail')).running, 3)
      }),
    )

    test(
      'an unknown worker has no jobs, and wrong options are refused',
      inWorld(async ({ holdfast }) => {
        assert.deepEqual(await holdfast.releaseWorker('unknown'), { released: 0, left: 0 })
        await rejects(holdfast.releaseWorker(''), 'INVALID_NAME')
        await rejects(holdfast.releaseWorker('w', { by: '' }), 'INVALID_OPTION')
        await rejects(holdfast.releaseWorker('w', { dryrun: true } as never), 'INVALID_OPTION')
      }),
    )
  })
}
