import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { allJobs, claimOne, claimOrder, hour, minute, readJob, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

const waiting = { key: 'ada', scope: 'waiting' } as const
const window = { key: 'ada', scope: { window: '1h' } } as const
const replace = { key: 'ada', replace: true } as const

export function dedupScopeTests(inWorld: InWorld): void {
  describe('dedup until first claimed', () => {
    test(
      'the key is held until the first claim, and released from then on',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { dedup: waiting })
        assert.deepEqual(await holdfast.queue('mail').enqueue(2, { dedup: waiting }), { id, status: 'duplicate' })
        const lease = await claimOne(holdfast, 'mail')
        const second = await holdfast.queue('mail').enqueue(3, { dedup: waiting })
        assert.equal(second.status, 'created')
        await lease.release()
        assert.equal((await readJob(holdfast, id)).state, 'ready')
        const third = await holdfast.queue('mail').enqueue(4, { dedup: waiting })
        assert.deepEqual(third, { id: second.id, status: 'duplicate' }, 'the released job did not take the key back')
        assert.equal((await claimOne(holdfast, 'mail')).job.id, id)
        const fourth = await holdfast.queue('mail').enqueue(5, { dedup: waiting })
        assert.deepEqual(fourth, { id: second.id, status: 'duplicate' }, 'nor did its second claim free the key')
      }),
    )

    test(
      'a claimed job does not take its key back when it waits again',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { dedup: waiting })
        await (await claimOne(holdfast, 'mail')).retry(new Error('no'), { delay: '1m' })
        assert.equal(await stateOf(holdfast, id), 'scheduled')
        assert.equal((await holdfast.queue('mail').enqueue(2, { dedup: waiting })).status, 'created')
      }),
    )

    test(
      'a cancel of the waiting holder releases the key',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { dedup: waiting })
        await holdfast.cancel(id)
        assert.equal((await holdfast.queue('mail').enqueue(2, { dedup: waiting })).status, 'created')
      }),
    )
  })

  describe('dedup for a time window', () => {
    test(
      'the key is held for the window, however the job ends, and not longer',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { dedup: window })
        const duplicate = async (when: string) =>
          assert.deepEqual(
            await holdfast.queue('mail').enqueue(2, { dedup: window }),
            { id, status: 'duplicate' },
            when,
          )
        await duplicate('waiting')
        const lease = await claimOne(holdfast, 'mail')
        await duplicate('running')
        await lease.done()
        await duplicate('done')
        await clock.advance(hour - 1)
        await holdfast.sweep()
        await duplicate('at the end of the window')
        await clock.advance(2)
        assert.equal((await holdfast.queue('mail').enqueue(2, { dedup: window })).status, 'created')
      }),
    )

    test(
      'the end of the window releases the key, also of a job that still waits',
      inWorld(async ({ holdfast, clock }) => {
        const first = await holdfast.queue('mail').enqueue(1, { dedup: window })
        await clock.advance(hour + 1)
        await holdfast.sweep()
        const second = await holdfast.queue('mail').enqueue(2, { dedup: window })
        assert.equal(second.status, 'created')
        await (await claimOne(holdfast, 'mail')).done()
        assert.equal(await stateOf(holdfast, first.id), 'done')
        const third = await holdfast.queue('mail').enqueue(3, { dedup: window })
        assert.deepEqual(
          third,
          { id: second.id, status: 'duplicate' },
          'the first one’s end did not free the second’s key',
        )
      }),
    )

    test(
      'a window continues after its job is pruned',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue('mail', { retain: { done: 0 } })
        const { id } = await queue.enqueue(1, { dedup: window })
        await (await claimOne(holdfast, 'mail')).done()
        assert.equal(await holdfast.job(id), null)
        assert.deepEqual(await queue.enqueue(2, { dedup: window }), { id, status: 'duplicate' })
      }),
    )
  })

  describe('dedup with replace', () => {
    test(
      'a scheduled holder gets the new payload and time, so that only the last of a burst runs',
      inWorld(async ({ holdfast, clock }) => {
        const queue = holdfast.queue('mail')
        const { id } = await queue.enqueue('first', { dedup: replace, delay: '10s' })
        await clock.advance(5_000)
        const answer = await queue.enqueue('second', { dedup: replace, delay: '10s' })
        assert.deepEqual(answer, { id, status: 'duplicate', replaced: true })
        const { payload, runAt } = await readJob(holdfast, id)
        assert.deepEqual([payload, runAt.getTime()], ['second', clock.now() + 10_000])
        await clock.advance(5_000)
        await holdfast.sweep()
        assert.equal(await stateOf(holdfast, id), 'scheduled')
        await clock.advance(5_000)
        await holdfast.sweep()
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['second'])
      }),
    )

    test(
      'a replacement with a delay makes a ready holder scheduled, and one without makes a scheduled holder ready',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue('mail')
        const { id } = await queue.enqueue('first', { dedup: replace })
        await queue.enqueue('second', { dedup: replace, delay: '1m' })
        assert.equal(await stateOf(holdfast, id), 'scheduled')
        assert.deepEqual(await holdfast.claim(['mail']), [])
        await queue.enqueue('third', { dedup: replace })
        assert.equal(await stateOf(holdfast, id), 'ready')
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['third'])
      }),
    )

    test(
      'a running holder is not replaced, and the answer says so',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue('first', { dedup: replace })
        await claimOne(holdfast, 'mail')
        const before = await readJob(holdfast, id)
        const answer = await holdfast.queue('mail').enqueue('second', { dedup: replace, delay: minute })
        assert.deepEqual(answer, { id, status: 'duplicate' })
        assert.deepEqual(await allJobs(holdfast), [before])
      }),
    )

    test(
      'an enqueue without `replace` does not change the holder',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue('first', { dedup: replace })
        const answer = await holdfast.queue('mail').enqueue('second', { dedup: { key: 'ada' } })
        assert.deepEqual(answer, { id, status: 'duplicate' })
        assert.equal((await readJob(holdfast, id)).payload, 'first')
      }),
    )
  })
}
