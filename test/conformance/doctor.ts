import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { DoctorOptions, Finding, Holdfast } from '../../src/index.ts'
import { putReserved } from '../support/reserved-entries.ts'
import { claimOne, heard, hour, minute, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function doctorTests(inWorld: InWorld): void {
  describe('the doctor', () => {
    test(
      'finds nothing wrong with healthy jobs in any state',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueueMany([1, 2, 3, 4].map((payload) => ({ payload })))
        await holdfast.queue('mail').enqueue(5, { delay: '1h', startBefore: new Date(clock.now() + 100 * hour) })
        await (await claimOne(holdfast, 'mail')).done()
        await (await claimOne(holdfast, 'mail')).release()
        await claimOne(holdfast, 'mail')
        await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
        const bad = (await holdfast.doctor({ full: true })).filter(({ severity }) => severity !== 'fine')
        assert.deepEqual(
          bad.filter(({ id }) => ofJobs.includes(id)),
          [],
        )
      }),
    )

    test(
      'reports expired leases of a dead worker until a sweep rescues the jobs',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        await claimOne(holdfast, 'mail', { lease: '30s' })
        await clock.advance(4 * minute)
        assert.equal(await finding(holdfast, 'leases-expired'), undefined, 'it may take a while')
        await clock.advance(2 * minute)
        const found = await finding(holdfast, 'leases-expired')
        assert.match(found?.sentence ?? '', /^1 job has a lease that ran out, the first 5 min ago/)
        assert.deepEqual([found?.severity, found?.facts['jobs']], ['wrong', 1])
        assert.match(found?.fix ?? '', /holdfast sweep/)
        await holdfast.sweep()
        assert.equal(await finding(holdfast, 'leases-expired'), undefined)
        assert.equal(await stateOf(holdfast, id), 'ready')
      }),
    )

    test(
      'reports due jobs that are not promoted, and sweeps if asked to fix',
      inWorld(async ({ holdfast, another, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { delay: '1m' })
        await clock.advance(10 * minute)
        const fresh = await another()
        const found = await finding(fresh, 'jobs-not-promoted')
        assert.match(found?.sentence ?? '', /^1 job has been due for up to 9 min and is still scheduled/)
        const mended = (await fresh.doctor({ fix: true })).filter(({ repaired }) => repaired)
        assert.deepEqual(
          mended.map((each) => [each.id, each.severity]),
          [['leases-expired', 'fine']],
        )
        assert.equal(await finding(fresh, 'jobs-not-promoted'), undefined)
        assert.equal(await stateOf(fresh, id), 'ready')
      }),
    )

    test(
      'reports a queue without a worker, a paused queue, and one that falls behind',
      inWorld(async ({ holdfast, clock }) => {
        for (const queue of ['idle', 'paused', 'busy'])
          await holdfast.queue(queue).enqueueMany([{ payload: 1 }, { payload: 2 }])
        await holdfast.pause('paused')
        await clock.advance(10 * minute)
        await claimOne(holdfast, 'busy')
        const found = (await holdfast.doctor()).filter(({ id }) => id.startsWith('queue-'))
        assert.deepEqual(
          found.map(({ id, severity, facts }) => [id, severity, facts['queue']]),
          [
            ['queue-unattended', 'wrong', 'idle'],
            ['queue-behind', 'warning', 'busy'],
            ['queue-paused', 'warning', 'paused'],
          ],
        )
        for (const queue of ['idle', 'paused', 'busy']) {
          await holdfast.resume(queue)
          for (const lease of await holdfast.claim([queue], { max: 5 })) await lease.done()
        }
        assert.deepEqual(
          (await holdfast.doctor()).filter(({ id }) => id.startsWith('queue-')),
          [],
        )
      }),
    )

    test(
      'tells of dead jobs without a warning: how many in which queue, when the last one died and of what, and what to do',
      inWorld(async ({ holdfast, clock }) => {
        const told = async () => (await holdfast.doctor()).filter(({ id }) => id === 'dead-jobs')
        assert.deepEqual(await told(), [])
        await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }])
        await holdfast.queue('post').enqueue(3)
        await (await claimOne(holdfast, 'mail')).dead(new Error('no such address'))
        await (await claimOne(holdfast, 'post')).dead(new Error('no stamp.\nat all'))
        await clock.advance(hour)
        await (await claimOne(holdfast, 'mail')).dead(new Error('no answer'))
        const diedAt = clock.now()
        await clock.advance(10 * minute)
        const [mail, post, ...rest] = await told()
        assert.deepEqual(rest, [])
        assert.deepEqual([mail?.severity, post?.severity], ['fine', 'fine'])
        assert.equal(mail?.sentence, '2 dead jobs in queue mail, the last one 10 min ago: no answer.')
        assert.equal(post?.sentence, '1 dead job in queue post, the last one 1.2 h ago: no stamp.')
        assert.match(mail?.fix ?? '', /holdfast jobs --queue mail --state dead .* holdfast requeue --queue mail/)
        assert.deepEqual(mail?.facts, { queue: 'mail', dead: 2, diedAt, error: 'no answer' })
        await holdfast.requeueAll({ queue: 'mail' })
        await holdfast.deleteAll({ queue: 'post' })
        assert.deepEqual(await told(), [])
      }),
    )

    test(
      'reports schedules that are not fired, schedules that no code declares any more, and entries that are no schedule',
      inWorld(async ({ holdfast, another, clock }) => {
        const named = async (client: Holdfast) =>
          (await client.doctor())
            .filter(({ id }) => id.startsWith('schedule'))
            .map(({ id, severity, facts }) => [id, severity, facts['schedule']])
        assert.deepEqual(await named(holdfast), [], 'there are none')
        await holdfast.schedule('hourly', { cron: '0 * * * *', queue: 'reports' })
        await holdfast.schedule('yearly', { cron: '@yearly', queue: 'reports' })
        assert.deepEqual(await named(holdfast), [['schedules', 'fine', undefined]])
        await clock.advance(hour + 10 * minute)
        assert.deepEqual(await named(holdfast), [['schedule-overdue', 'wrong', 'hourly']])
        await holdfast.sweep()
        assert.deepEqual(await named(holdfast), [['schedules', 'fine', undefined]])
        const other = await another() // without the code that declared them
        await clock.advance(4 * hour)
        await other.sweep()
        await putReserved(holdfast, 'holdfast.schedule.odd', { cron: 7 })
        assert.deepEqual(await named(holdfast), [
          ['schedule-unreadable', 'wrong', 'odd'],
          ['schedule-undeclared', 'warning', 'hourly'],
          ['schedule-undeclared', 'warning', 'yearly'],
        ])
        const found = await finding(holdfast, 'schedule-undeclared')
        assert.match(found?.sentence ?? '', /^No program has declared schedule hourly for 4 h/)
        await holdfast.unschedule('odd')
        await holdfast.sweep() // fires in the process that declares them, so that this is recorded too
        assert.deepEqual(await named(holdfast), [['schedules', 'fine', undefined]])
      }),
    )

    test(
      'reports a reaper while it fails, and one that no process runs',
      inWorld(async ({ holdfast, clock }) => {
        let error: Error | null = new Error('no such table: orders')
        const find = () => (error ? Promise.reject(error) : [{ id: 1 }])
        const toJob = ({ id }: { id: number }) => ({ queue: 'orders', payload: id, dedup: { key: `order ${id}` } })
        assert.equal(await finding(holdfast, 'reaper-failing'), undefined)
        const failed = heard(holdfast, 'reaper.failed')
        const reaper = holdfast.reaper('orders', { every: '1h', find, enqueue: toJob })
        await failed
        await assert.rejects(reaper.run())
        const at = await finding(holdfast, 'reaper-failing')
        assert.deepEqual([at?.severity, at?.facts['reaper']], ['warning', 'orders'])
        assert.match(at?.sentence ?? '', /no such table: orders$/)
        await clock.advance(10 * minute)
        await assert.rejects(reaper.run())
        assert.equal((await finding(holdfast, 'reaper-failing'))?.severity, 'wrong', 'since the first time')
        error = null
        await reaper.run()
        assert.equal(await finding(holdfast, 'reaper-failing'), undefined)
        assert.ok((await holdfast.doctor()).some(({ id, severity }) => id === 'reapers' && severity === 'fine'))
        await reaper.stop()
        await clock.advance(2 * hour)
        const silent = await finding(holdfast, 'reaper-silent')
        assert.match(silent?.sentence ?? '', /^Reaper orders should run every 1 h, but has not run for 2\.2 h\.$/)
        await holdfast.kv.delete('holdfast.reaper.orders')
        assert.equal(await finding(holdfast, 'reaper-silent'), undefined)
      }),
    )

    test(
      'checks a store that was opened read-only, and repairs nothing there',
      inWorld(async ({ holdfast, another }) => {
        await holdfast.queue('mail').enqueue(1)
        const reader = await another({ readOnly: true })
        assert.ok((await reader.doctor()).some(({ id }) => id === 'counts'))
        const refused = (await reader.doctor({ fix: true })).find(({ id }) => id === 'store')
        assert.match(refused?.sentence ?? '', /opened read-only/)
      }),
    )

    test(
      'refuses unknown options',
      inWorld(async ({ holdfast }) => {
        await rejects(holdfast.doctor({ cure: true } as DoctorOptions), 'INVALID_OPTION', { option: 'cure' })
        await rejects(holdfast.doctor({ patience: 'long' as never }), 'INVALID_OPTION', { option: 'patience' })
        await rejects(holdfast.doctor({ fix: 1 as never }), 'INVALID_OPTION', { option: 'fix' })
      }),
    )
  })
}

const ofJobs = ['leases-expired', 'jobs-not-promoted', 'jobs-astray', 'counts', 'integrity', 'queue-unattended']

/** The finding with this id, unless its severity is `fine`. */
async function finding(holdfast: Holdfast, id: string): Promise<Finding | undefined> {
  return (await holdfast.doctor()).find((each) => each.id === id && each.severity !== 'fine')
}
