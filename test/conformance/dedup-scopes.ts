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
        assert.deepEqual(answer, { id, status: 'replaced' })
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
        assert.deepEqual(answer, { id, status: 'notReplaced' })
        assert.deepEqual(await allJobs(holdfast), [before])
      }),
    )

    test(
      'an ended holder of a window is not replaced, and the answer says so',
      inWorld(async ({ holdfast }) => {
        const dedup = { ...window, replace: true }
        const { id } = await holdfast.queue('mail').enqueue('first', { dedup })
        await (await claimOne(holdfast, 'mail')).done()
        assert.deepEqual(await holdfast.queue('mail').enqueue('second', { dedup }), { id, status: 'notReplaced' })
        assert.equal((await readJob(holdfast, id)).payload, 'first')
      }),
    )

    test(
      'a replacement decides the latest start, so an earlier one cancels nothing, and a new one counts',
      inWorld(async ({ holdfast, clock }) => {
        const queue = holdfast.queue('mail')
        const first = { dedup: replace, delay: '5s', startBefore: clock.now() + 10_000 } as const
        const { id } = await queue.enqueue('first', first)
        await clock.advance(4_000)
        await queue.enqueue('second', { dedup: replace, delay: '5s', startBefore: clock.now() + 10_000 })
        await clock.advance(7_000)
        await holdfast.sweep()
        assert.equal(await stateOf(holdfast, id), 'ready')
        await queue.enqueue('third', { dedup: replace })
        assert.equal((await readJob(holdfast, id)).startBefore, null)
        await clock.advance(hour)
        await holdfast.sweep()
        assert.equal(await stateOf(holdfast, id), 'ready')
        await queue.enqueue('fourth', { dedup: replace, startBefore: clock.now() + minute })
        await clock.advance(minute)
        assert.deepEqual(await holdfast.claim(['mail']), [])
        assert.equal((await holdfast.sweep()).overdue, 1)
        assert.deepEqual(await stateOf(holdfast, id), 'cancelled')
      }),
    )

    test(
      'a replacement of a job past its latest start can start',
      inWorld(async ({ holdfast, clock }) => {
        const queue = holdfast.queue('mail')
        await queue.enqueue('first', { dedup: replace, startBefore: clock.now() + 1_000 })
        await queue.enqueue('other')
        await clock.advance(1_000)
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['other'])
        await queue.enqueue('second', { dedup: replace })
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['second'])
      }),
    )

    test(
      'a replacement decides priority, attempts and timeout; what it does not state is filled in as for a new job',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue('mail', { attempts: 7, priority: 6 })
        const stated = { priority: 2, attempts: 3, timeout: '2m' } as const
        const { id } = await queue.enqueue('first', { dedup: replace })
        await queue.enqueue('second', { dedup: replace, ...stated })
        const read = async () => {
          const { priority, maxAttempts, timeoutMs } = await readJob(holdfast, id)
          return [priority, maxAttempts, timeoutMs]
        }
        assert.deepEqual(await read(), [2, 3, 2 * minute])
        await queue.enqueue('usual', { priority: 3 })
        await queue.enqueue('third', { dedup: replace })
        assert.deepEqual(await read(), [6, 7, null])
        await queue.enqueue('fourth', { dedup: replace, ...stated })
        await queue.enqueue('urgent', { priority: 1 })
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['urgent', 'fourth', 'usual'])
      }),
    )

    test(
      'a replacement starts its attempts again, keeps the history, and its latest start counts again',
      inWorld(async ({ holdfast, clock }) => {
        const queue = holdfast.queue('mail')
        const { id } = await queue.enqueue('first', { dedup: replace, attempts: 2 })
        await (await claimOne(holdfast, 'mail')).retry(new Error('no'), { delay: '1m' })
        await queue.enqueue('second', { dedup: replace, attempts: 2, startBefore: clock.now() + minute })
        const { attempts, maxAttempts, history } = await readJob(holdfast, id)
        assert.deepEqual([attempts, maxAttempts, history.length], [0, 2, 1])
        const lease = await claimOne(holdfast, 'mail')
        assert.deepEqual([lease.job.attempt, lease.job.payload], [1, 'second'])
        await lease.retry(new Error('no'), { delay: 0 })
        assert.equal(await stateOf(holdfast, id), 'ready')
        await queue.enqueue('third', { dedup: replace, startBefore: clock.now() + minute })
        await clock.advance(minute)
        assert.equal((await holdfast.sweep()).overdue, 1)
      }),
    )

    test(
      'a plain enqueue replaces an item of a batch, with another priority, and the item stays in its batch',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue('mail')
        const batch = await holdfast.batch({ name: 'b' }, [{ queue: 'mail', payload: 'item', dedup: { key: 'ada' } }])
        const answer = await queue.enqueue('new', { dedup: replace, priority: 1 })
        assert.equal(answer.status, 'replaced')
        const { payload, priority, batch: of } = await readJob(holdfast, answer.id)
        assert.deepEqual([payload, priority, of], ['new', 1, batch.id])
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['new'])
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
