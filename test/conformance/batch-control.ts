// Controlling a batch: pause, resume, cancel, retry failed items, add, close, delete. Each at any moment, each twice.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Batch } from '../../src/batch/batch.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { counts, none, numbered } from './batches.ts'
import { allJobs, claimOne, minute, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

const onComplete = { queue: 'completions' }

export function batchControlTests(inWorld: InWorld): void {
  describe('controlling a batch', () => {
    describe('pause', () => {
      test(
        'running items may finish, no item starts, and states stay; after a resume items start again',
        inWorld(async ({ holdfast, another, clock }) => {
          const batch = await holdfast.batch({ name: 'p' }, numbered(5))
          const running = await claimOne(holdfast, 'mail')
          await clock.advance(1_000)
          const paused = await batch.pause({ by: 'ada' })
          const { state, pausedBy, pausedAt } = paused
          assert.deepEqual(
            { state, pausedBy, pausedAt: Number(pausedAt) },
            {
              ...{ state: 'paused', pausedBy: 'ada', pausedAt: clock.now() },
            },
          )
          assert.deepEqual(await (await another()).claim('*', { max: 10 }), [])
          await running.done()
          assert.deepEqual(counts(await batch.progress()), { ...none, waiting: 4, done: 1 })
          assert.deepEqual(await holdfast.claim(['mail'], { max: 10 }), [])
          const resumed = await batch.resume()
          assert.deepEqual([resumed.state, resumed.pausedBy, resumed.pausedAt], ['running', null, null])
          assert.equal((await holdfast.claim(['mail'], { max: 10 })).length, 3)
        }),
      )

      test(
        'does not affect plain jobs and other batches of the queue',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'p' }, numbered(5))
          await batch.pause()
          await holdfast.queue('mail').enqueue('plain')
          const other = await holdfast.batch({ name: 'other' }, numbered(1))
          const claimed = await holdfast.claim(['mail'], { max: 10 })
          assert.deepEqual(new Set(claimed.map(({ job }) => job.batch)), new Set([null, other.id]))
        }),
      )

      test(
        'is possible before the start and while the batch is open; items that are added do not start',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'p', open: true })
          assert.equal((await batch.pause()).state, 'paused')
          await batch.add(numbered(2))
          await batch.close()
          assert.deepEqual(await holdfast.claim(['mail'], { max: 10 }), [])
          assert.equal((await batch.resume()).state, 'queued')
          assert.equal((await holdfast.claim(['mail'], { max: 10 })).length, 2)
        }),
      )

      test(
        'does not keep the batch from being done when its last item ends',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'p', onComplete }, numbered(1))
          const lease = await claimOne(holdfast, 'mail')
          await batch.pause()
          await lease.done()
          assert.equal((await batch.progress()).state, 'done')
          assert.equal((await holdfast.claim(['completions'])).length, 1)
        }),
      )

      test(
        'ends with the batch: items that are retried later start, and the time of the pause is not counted as work',
        inWorld(async ({ holdfast, clock }) => {
          const batch = await holdfast.batch({ name: 'p' }, numbered(1))
          const lease = await claimOne(holdfast, 'mail')
          await clock.advance(1_000)
          await batch.pause({ by: 'ada' })
          await clock.advance(minute)
          await lease.dead(new Error('no'))
          const { state, pausedAt, pausedBy, rate } = await batch.progress()
          assert.deepEqual(
            { state, pausedAt, pausedBy, rate },
            { state: 'done', pausedAt: null, pausedBy: null, rate: 1 },
          )
          assert.equal((await batch.retryFailed()).state, 'running')
          await claimOne(holdfast, 'mail')
          await batch.pause({ by: 'ada' })
          const cancelled = await batch.cancel()
          assert.deepEqual([cancelled.pausedAt, cancelled.pausedBy, cancelled.isOpen], [null, null, false])
        }),
      )

      test(
        'a second time changes nothing; of a finished or unknown batch it is refused',
        inWorld(async ({ holdfast, clock }) => {
          const batch = await holdfast.batch({ name: 'p' }, numbered(1))
          await batch.pause({ by: 'first' })
          await clock.advance(minute)
          const again = await batch.pause({ by: 'second' })
          assert.deepEqual([again.pausedBy, Number(again.pausedAt)], ['first', clock.now() - minute])
          await batch.resume()
          assert.equal((await batch.resume()).state, 'queued')
          await (await claimOne(holdfast, 'mail')).done()
          await rejects(batch.pause(), 'INVALID_STATE')
          await rejects(batch.resume(), 'INVALID_STATE')
          await batch.delete()
          for (const action of ['pause', 'resume', 'cancel', 'retryFailed', 'close'] as const) {
            await rejects(batch[action](), 'BATCH_NOT_FOUND')
          }
        }),
      )
    })

    describe('cancel', () => {
      test(
        'cancels waiting items, requests a cancel of running ones, and enqueues one completion',
        inWorld(async ({ holdfast }) => {
          const items = [...numbered(3), { queue: 'mail', payload: 'later', delay: '1h' as const }]
          const batch = await holdfast.batch({ name: 'c', concurrency: 1, onComplete }, items)
          const lease = await claimOne(holdfast, 'mail')
          const { state, reason } = await batch.cancel({ by: 'ada', reason: 'wrong list' })
          assert.equal(state, 'cancelled')
          assert.match(reason ?? '', /wrong list/)
          await holdfast.sweep()
          assert.deepEqual(counts(await batch.progress()), { ...none, running: 1, cancelled: 3 })
          assert.equal((await batch.progress()).finishedAt, null)
          assert.deepEqual(await holdfast.claim('*'), [])
          assert.equal((await lease.renew()).cancelRequested, true)
          await lease.cancelled()
          const { finishedAt, cancelled, state: still } = await batch.progress()
          assert.deepEqual({ cancelled, still }, { cancelled: 4, still: 'cancelled' })
          assert.ok(finishedAt)
          const completion = (await claimOne(holdfast, 'completions')).job.payload
          assert.deepEqual(completion, { batchId: batch.id, state: 'cancelled', round: 1 })
          await holdfast.sweep()
          assert.deepEqual(await holdfast.claim(['completions']), [])
        }),
      )

      test(
        'records the name it was given, also while its items end; a second cancel changes neither name nor reason',
        inWorld(async ({ holdfast, another }) => {
          const batch = await holdfast.batch({ name: 'c' }, numbered(2))
          await batch.pause({ by: 'eve' })
          const { pausedBy, cancelledBy } = await batch.cancel({ by: 'ada', reason: 'wrong list' })
          assert.deepEqual({ pausedBy, cancelledBy }, { pausedBy: null, cancelledBy: 'ada' })
          await batch.cancel({ by: 'bob', reason: 'another' })
          await holdfast.sweep()
          const seen = await (await another()).getBatch(batch.id)
          const last = await seen?.progress()
          assert.ok(last?.finishedAt)
          assert.deepEqual([last?.cancelledBy, last?.reason, last?.pausedBy], ['ada', 'wrong list', null])
          const [listed] = (await holdfast.batches({ state: 'cancelled' })).batches
          assert.equal(listed?.cancelledBy, 'ada')
          const unnamed = await holdfast.batch({ name: 'd' }, numbered(1))
          await unnamed.pause({ by: 'eve' })
          const { cancelledBy: none } = await unnamed.cancel()
          assert.equal(none, null)
        }),
      )

      test(
        'an item that finishes in spite of the cancel is done, and the batch stays cancelled',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'c' }, numbered(2))
          const lease = await claimOne(holdfast, 'mail')
          await batch.cancel()
          await lease.done()
          await holdfast.sweep()
          const { state, done, cancelled, finishedAt } = await batch.progress()
          assert.deepEqual({ state, done, cancelled }, { state: 'cancelled', done: 1, cancelled: 1 })
          assert.ok(finishedAt)
        }),
      )

      test(
        'of thousands of items happens in chunks: nothing starts meanwhile, and sweeps finish it',
        inWorld(async ({ holdfast, another }) => {
          const batch = await holdfast.batch({ name: 'c', concurrency: 5, onComplete }, numbered(3_500))
          const running = await holdfast.claim(['mail'], { max: 5 })
          assert.equal((await batch.cancel()).state, 'cancelled')
          assert.deepEqual(await (await another()).claim('*', { max: 10 }), [])
          for (const lease of running) await lease.release()
          for (let sweeps = 0; sweeps < 10; sweeps++) await holdfast.sweep()
          assert.deepEqual(counts(await batch.progress()), { ...none, cancelled: 3_500 })
          assert.equal((await holdfast.claim(['completions'])).length, 1)
        }),
      )

      test(
        'is possible of a paused and of an open batch, which then accepts no more items',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'c', open: true }, numbered(2))
          await batch.pause()
          const { state, isOpen } = await batch.cancel()
          assert.deepEqual({ state, isOpen }, { state: 'cancelled', isOpen: false })
          await rejects(batch.add(numbered(1)), 'INVALID_STATE')
          await holdfast.sweep()
          assert.deepEqual(counts(await batch.progress()), { ...none, cancelled: 2 })
          assert.equal((await batch.cancel()).state, 'cancelled', 'a second cancel changes nothing')
          await rejects(batch.retryFailed(), 'INVALID_STATE')
        }),
      )

      test(
        'of a finished batch is refused',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'c' }, [])
          await rejects(batch.cancel(), 'INVALID_STATE')
        }),
      )
    })

    describe('retry failed', () => {
      test(
        'dead items start again with all their attempts, and a finished batch begins another round',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'r', onComplete }, numbered(3))
          const [first, second, third] = await holdfast.claim(['mail'], { max: 3 })
          await first?.done()
          await second?.dead(new Error('no'))
          await third?.dead(new Error('no'))
          await (await claimOne(holdfast, 'completions')).done()
          const { state, round, waiting, dead, finishedAt } = await batch.retryFailed()
          assert.deepEqual(
            { state, round, waiting, dead, finishedAt },
            {
              ...{ state: 'running', round: 2, waiting: 2, dead: 0, finishedAt: null },
            },
          )
          const again = await holdfast.claim(['mail'], { max: 10 })
          assert.deepEqual(
            again.map(({ job }) => job.attempt),
            [1, 1],
          )
          const { history } = await readJob(holdfast, second?.job.id as string)
          assert.deepEqual(
            history.map(({ ending }) => ending),
            ['failed'],
            'the history stays',
          )
          for (const lease of again) await lease.done()
          assert.deepEqual(counts(await batch.progress()), { ...none, done: 3 })
          const completion = (await claimOne(holdfast, 'completions')).job.payload
          assert.deepEqual(completion, { batchId: batch.id, state: 'done', round: 2 })
        }),
      )

      test(
        'begins no new round while other items still run',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'r', onComplete }, numbered(2))
          const [first, second] = await holdfast.claim(['mail'], { max: 2 })
          await first?.dead(new Error('no'))
          const { round, waiting, dead } = await batch.retryFailed()
          assert.deepEqual({ round, waiting, dead }, { round: 1, waiting: 1, dead: 0 })
          await second?.done()
          await (await claimOne(holdfast, 'mail')).done()
          assert.equal((await holdfast.claim(['completions'], { max: 10 })).length, 1)
          assert.equal((await batch.progress()).round, 1)
        }),
      )

      test(
        'retries all dead items, also after the clock was set back',
        inWorld(async ({ holdfast, clock }) => {
          const batch = await holdfast.batch({ name: 'r' }, numbered(2))
          await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
          await clock.advance(-1)
          const { waiting, dead } = await batch.retryFailed()
          assert.deepEqual({ waiting, dead }, { waiting: 2, dead: 0 })
        }),
      )

      test(
        'does nothing if no item is dead',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'r', onComplete }, numbered(1))
          await (await claimOne(holdfast, 'mail')).done()
          const { state, round } = await batch.retryFailed()
          assert.deepEqual({ state, round }, { state: 'done', round: 1 })
          await holdfast.sweep()
          assert.equal((await holdfast.claim(['completions'], { max: 10 })).length, 1)
        }),
      )

      test(
        'leaves an item dead if another job holds its dedup key now',
        inWorld(async ({ holdfast }) => {
          const items = [{ queue: 'mail', payload: 1, dedup: { key: 'a' } }, ...numbered(1)]
          const batch = await holdfast.batch({ name: 'r' }, items)
          const leases = await holdfast.claim(['mail'], { max: 2 })
          for (const lease of leases) await lease.dead(new Error('no'))
          await holdfast.queue('post').enqueue(0)
          await holdfast.queue('mail').enqueue(0, { dedup: { key: 'a' } })
          const { waiting, dead } = await batch.retryFailed()
          assert.deepEqual({ waiting, dead }, { waiting: 1, dead: 1 })
        }),
      )

      test(
        'begins no round if no item is requeued, by `requeue` or by `retryFailed`',
        inWorld(async ({ holdfast }) => {
          const items = [{ queue: 'mail', payload: 1, dedup: { key: 'a' } }]
          const batch = await holdfast.batch({ name: 'r', onComplete }, items)
          const lease = await claimOne(holdfast, 'mail')
          await lease.dead(new Error('no'))
          await holdfast.queue('mail').enqueue(0, { dedup: { key: 'a' } })
          await rejects(holdfast.requeue(lease.job.id), 'INVALID_STATE')
          const { state, round, dead } = await batch.retryFailed()
          await holdfast.sweep()
          assert.deepEqual({ state, round, dead }, { state: 'done', round: 1, dead: 1 })
          assert.equal((await holdfast.claim(['completions'], { max: 10 })).length, 1)
        }),
      )

      test(
        'retries thousands of items in chunks; the batch is not finished before the last',
        inWorld(async ({ holdfast }) => {
          const all = { concurrency: Number.POSITIVE_INFINITY }
          const batch = await holdfast.batch({ name: 'r', ...all, onComplete }, numbered(2_500))
          const leases = await holdfast.claim(['mail'], { max: 2_500 })
          await Promise.all(leases.map((lease) => lease.dead(new Error('no'))))
          assert.equal((await batch.progress()).state, 'done')
          await batch.retryFailed()
          for (let sweeps = 0; sweeps < 5; sweeps++) await holdfast.sweep()
          assert.deepEqual(counts(await batch.progress()), { ...none, waiting: 2_500 })
          const again = await holdfast.claim(['mail'], { max: 2_500 })
          await Promise.all(again.map((lease) => lease.done()))
          const rounds = (await holdfast.claim(['completions'], { max: 10 })).map(({ job }) => job.payload)
          assert.deepEqual(
            rounds.map((payload) => (payload as { round: number }).round),
            [1, 2],
          )
        }),
      )

      test(
        'requeue of a single item also begins another round; of a cancelled batch it is refused',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'r', onComplete }, numbered(1))
          const lease = await claimOne(holdfast, 'mail')
          await lease.dead(new Error('no'))
          await holdfast.requeue(lease.job.id)
          assert.deepEqual([(await batch.progress()).round, (await batch.progress()).finishedAt], [2, null])
          await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
          assert.equal((await holdfast.claim(['completions'], { max: 10 })).length, 2)
          const other = await holdfast.batch({ name: 'r' }, numbered(2))
          const first = await claimOne(holdfast, 'mail')
          await first.dead(new Error('no'))
          await other.cancel()
          await rejects(holdfast.requeue(first.job.id), 'INVALID_STATE')
        }),
      )
    })

    describe('delete', () => {
      test(
        'removes the batch and its ended items; a running item is removed when it ends',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'd', onComplete }, numbered(3))
          const [first, second] = await holdfast.claim(['mail'], { max: 2 })
          await first?.done(undefined, { put: [{ key: 'saved', value: 1 }] })
          await batch.delete()
          assert.equal(await holdfast.getBatch(batch.id), null)
          assert.deepEqual((await holdfast.batches()).batches, [])
          await second?.done(undefined, { put: [{ key: 'saved too', value: 2 }] })
          for (let sweeps = 0; sweeps < 3; sweeps++) await holdfast.sweep()
          assert.deepEqual(await allJobs(holdfast, { queue: 'mail' }), [])
          assert.equal((await holdfast.kv.get('saved'))?.value, 1, 'its effects stay')
          assert.equal((await holdfast.kv.get('saved too'))?.value, 2)
          assert.deepEqual(await holdfast.claim('*'), [])
        }),
      )

      test(
        'releases the key of the batch',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'd', key: 'k' }, numbered(1))
          await batch.delete()
          const again = await holdfast.batch({ name: 'd', key: 'k' }, numbered(2))
          assert.notEqual(again.id, batch.id)
          assert.equal((await again.progress()).total, 2)
        }),
      )

      test(
        'releases the dedup keys of its items, also those with a window',
        inWorld(async ({ holdfast }) => {
          const items = ['a', 'b'].map((key) => ({
            queue: 'mail',
            payload: key,
            dedup: { key, scope: { window: '1h' as const } },
          }))
          const batch = await holdfast.batch({ name: 'd' }, items)
          const lease = await claimOne(holdfast, 'mail')
          await batch.delete()
          await lease.done()
          for (let sweeps = 0; sweeps < 3; sweeps++) await holdfast.sweep()
          for (const key of ['a', 'b']) {
            const { status } = await holdfast.queue('mail').enqueue(0, { dedup: { key } })
            assert.equal(status, 'created')
          }
        }),
      )

      test(
        'does not affect other jobs, and is possible of a finished batch',
        inWorld(async ({ holdfast }) => {
          const { id } = await holdfast.queue('mail').enqueue('plain')
          const batch = await holdfast.batch({ name: 'd' }, [])
          await batch.delete()
          assert.equal(await stateOf(holdfast, id), 'ready')
        }),
      )
    })

    describe('add and close', () => {
      test(
        'added items come after the earlier ones; a second close changes nothing',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'a', open: true, concurrency: 1 }, numbered(2))
          assert.deepEqual(await batch.add([{ queue: 'mail', payload: 'third' }]), { added: 1, duplicates: 0 })
          await batch.close()
          assert.equal((await batch.close()).state, 'queued')
          assert.deepEqual(await oneByOne(holdfast, batch), [0, 1, 'third'])
        }),
      )

      test(
        'a handler may add items to the batch that it runs for',
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'tree', open: true }, [{ queue: 'mail', payload: 2 }])
          const worker = holdfast.work<number>('mail', async ({ payload, batch: id }) => {
            const own = await holdfast.getBatch(id as string)
            const below = Array.from({ length: payload }, () => ({ queue: 'mail', payload: payload - 1 }))
            if (payload > 0) await own?.add(below)
          })
          while ((await batch.progress()).done < 5) await new Promise((resolve) => setTimeout(resolve, 10))
          assert.equal((await batch.progress()).state, 'open')
          await batch.close()
          assert.equal((await batch.finished({ timeout: '10s' })).done, 5)
          await worker.stop()
        }),
      )
    })
  })
}

async function oneByOne(holdfast: Holdfast, batch: Batch): Promise<unknown[]> {
  const payloads: unknown[] = []
  while ((await batch.progress()).finishedAt === null) {
    const lease = await claimOne(holdfast, 'mail')
    payloads.push(lease.job.payload)
    await lease.done()
  }
  return payloads
}
