import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { claimOne, claimOrder, heard, hour, minute, readJob, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function rescueTests(inWorld: InWorld): void {
  describe('rescue', () => {
    test(
      'the job of a crashed worker is ready at once when its lease expires, with the attempt counted',
      inWorld(async ({ holdfast, another, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        await claimOne(holdfast, 'mail', { lease: '30s', worker: 'crashed' })
        const startedAt = new Date(clock.now())
        await clock.advance(29_999)
        assert.equal((await holdfast.sweep()).rescued, 0)
        await clock.advance(2)
        const other = await another()
        assert.equal((await other.sweep()).rescued, 1)
        const { state, attempts, worker, history } = await readJob(holdfast, id)
        assert.deepEqual([state, attempts, worker, history.length], ['ready', 1, null, 1])
        const { error, ...attempt } = history[0] ?? {}
        const endedAt = new Date(clock.now())
        assert.deepEqual(attempt, { attempt: 1, worker: 'crashed', startedAt, endedAt, ending: 'expired' })
        assert.deepEqual([error?.name, error?.message.includes('crashed')], ['LeaseExpired', true])
        assert.equal((await claimOne(other, 'mail')).job.attempt, 2)
      }),
    )

    test(
      'the client that sweeps emits events of expired leases, and of a job that dies of it',
      inWorld(async ({ holdfast, another, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 2 })
        const other = await another()
        const [expired, dead] = [heard(other, 'lease.expired', 2), heard(other, 'job.dead')]
        const counts: number[][] = []
        other.on('sweep.ended', ({ rescued, dead }) => counts.push([rescued, dead]))
        const startedAt = new Date(clock.now())
        for (const worker of ['first', 'second']) {
          await claimOne(holdfast, 'mail', { lease: '1s', worker })
          await clock.advance(minute)
          await other.sweep()
        }
        const job = { id, queue: 'mail', maxAttempts: 2 }
        const second = { ...job, attempt: 2, worker: 'second' }
        assert.deepEqual(await expired, [
          { ...job, attempt: 1, worker: 'first', startedAt, state: 'ready' },
          { ...second, startedAt: new Date(startedAt.getTime() + minute), state: 'dead' },
        ])
        const [{ error, ...death } = assert.fail()] = await dead
        assert.deepEqual(death, { ...second, durationMs: minute, ending: 'expired' })
        assert.match(error.message, /worker second/)
        assert.deepEqual(counts, [
          [1, 0],
          [1, 1],
        ])
      }),
    )

    test(
      'a job that kills every process it runs in ends dead, not in a loop',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 3 })
        for (let attempt = 1; attempt <= 3; attempt++) {
          assert.equal((await claimOne(holdfast, 'mail', { lease: '1s' })).job.attempt, attempt)
          await clock.advance(minute)
          assert.equal((await holdfast.sweep()).rescued, 1)
        }
        const { state, attempts, error, history } = await readJob(holdfast, id)
        assert.deepEqual([state, attempts, error?.name], ['dead', 3, 'LeaseExpired'])
        assert.deepEqual(
          history.map(({ ending }) => ending),
          ['expired', 'expired', 'expired'],
        )
        assert.deepEqual(await holdfast.claim(['mail']), [])
      }),
    )

    test(
      'sweeps in many processes at once rescue each job once',
      inWorld(async ({ holdfast, another, clock }) => {
        const clients = [holdfast, await another(), await another()]
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 1_500 }, (_, payload) => ({ payload })))
        await holdfast.claim(['mail'], { max: 1_500, lease: '1s' })
        await clock.advance(minute)
        const reports = await Promise.all(clients.map((client) => client.sweep()))
        assert.equal(
          reports.reduce((sum, { rescued }) => sum + rescued, 0),
          1_500,
        )
        const again = await holdfast.claim(['mail'], { max: 1_500 })
        assert.ok(again.every(({ job }) => job.attempt === 2))
        assert.equal(again.length, 1_500)
      }),
    )

    test(
      'a sweep with nothing to do does nothing, however often',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2, delay: '1m' }])
        await claimOne(holdfast, 'mail')
        const nothingSwept = { rescued: 0, promoted: 0, overdue: 0, admitted: 0, pruned: 0, fired: 0, skipped: 0 }
        for (let n = 0; n < 3; n++) {
          assert.deepEqual(await holdfast.sweep(), nothingSwept)
        }
      }),
    )

    test(
      'only jobs with an expired lease are rescued',
      inWorld(async ({ holdfast, clock }) => {
        const ids = (await holdfast.queue('mail').enqueueMany([1, 2, 3].map((payload) => ({ payload })))).map(
          ({ id }) => id,
        )
        await holdfast.claim(['mail'], { lease: '10s' })
        await holdfast.claim(['mail'], { lease: '1h' })
        const third = await claimOne(holdfast, 'mail', { lease: '10s' })
        await third.done()
        await clock.advance(minute)
        assert.equal((await holdfast.sweep()).rescued, 1)
        const states = await Promise.all(ids.map((id) => stateOf(holdfast, id)))
        assert.deepEqual(states, ['ready', 'running', 'done'])
      }),
    )

    test(
      'a claim that finds nothing rescues jobs with an expired lease itself',
      inWorld(async ({ holdfast, another, clock }) => {
        await holdfast.queue('mail').enqueue('lost')
        await claimOne(holdfast, 'mail')
        await clock.advance(hour)
        const [lease] = await (await another()).claim(['mail'], { wait: '20s' })
        assert.deepEqual([lease?.job.payload, lease?.job.attempt], ['lost', 2])
      }),
    )

    test(
      'a rescued job keeps its dedup key all the time',
      inWorld(async ({ holdfast, clock }) => {
        const dedup = { key: 'k' }
        const { id } = await holdfast.queue('mail').enqueue(1, { dedup })
        await claimOne(holdfast, 'mail')
        assert.equal((await holdfast.queue('mail').enqueue(2, { dedup })).status, 'duplicate')
        const waiting = { key: 'w', scope: 'waiting' } as const
        await holdfast.queue('mail').enqueue('first', { dedup: waiting })
        await claimOne(holdfast, 'mail')
        await holdfast.queue('mail').enqueue('second', { dedup: waiting })
        await clock.advance(hour)
        assert.equal((await holdfast.sweep()).rescued, 2)
        assert.deepEqual(await holdfast.queue('mail').enqueue(3, { dedup }), { id, status: 'duplicate' })
        assert.deepEqual((await claimOrder(holdfast, ['mail'])).sort(), [1, 'first', 'second'])
      }),
    )
  })
}
