import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import type { HoldfastEvents } from '../../src/events.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { putReserved } from '../support/reserved-entries.ts'
import { allJobs, claimOne, day, hour, minute, rejects } from './expect.ts'
import type { InWorld, TestClock } from './world.ts'

export function scheduleTests(inWorld: InWorld): void {
  describe('schedules', () => {
    test(
      'a slot enqueues a job when it is due, with the payload, the options, and headers that name the slot',
      inWorld(async ({ holdfast, clock }) => {
        const declared = await holdfast.schedule('report', {
          ...{ cron: '0 * * * *', queue: 'reports', payload: { kind: 'hourly' } },
          ...{ priority: 2, attempts: 3, headers: { team: 'sales' } },
        })
        assert.equal(declared.nextAt?.toISOString(), '2030-01-01T01:00:00.000Z')
        await clock.advance(hour - 1)
        assert.deepEqual(await fire(holdfast), { fired: 0, skipped: 0 })
        await clock.advance(1)
        assert.deepEqual(await fire(holdfast), { fired: 1, skipped: 0 })
        const [job] = await allJobs(holdfast)
        assert.deepEqual(
          [job?.queue, job?.payload, job?.priority, job?.maxAttempts, job?.state],
          ['reports', { kind: 'hourly' }, 2, 3, 'ready'],
        )
        assert.deepEqual(job?.headers, {
          team: 'sales',
          'holdfast-schedule': 'report',
          'holdfast-slot': '2030-01-01T01:00:00.000Z',
        })
      }),
    )

    test(
      'a slot fires once, however many processes check it and how often, also after its job is done and removed',
      inWorld(async ({ holdfast, clock, another }) => {
        const queue = defineQueue('reports', { retain: { done: 0 } })
        await holdfast.schedule('report', { cron: '0 * * * *', queue, missed: 'all' })
        const other = await another()
        await clock.advance(hour)
        const both = await Promise.all([holdfast, other, holdfast, other].map(fire))
        assert.equal(
          both.reduce((sum, { fired }) => sum + fired, 0),
          1,
        )
        const [lease] = await holdfast.claim(['reports'])
        await lease?.done()
        assert.deepEqual(await allJobs(holdfast), [])
        assert.deepEqual(await fire(other), { fired: 0, skipped: 0 })
        await clock.advance(hour)
        assert.deepEqual(await fire(other), { fired: 1, skipped: 0 })
      }),
    )

    test(
      'an advance with an old version fires nothing, however late it comes',
      inWorld(async ({ holdfast, clock, store }) => {
        await holdfast.schedule('report', { cron: '0 * * * *', queue: 'reports' })
        const stale = await store()
        const seen = await stale.kvGet('holdfast.schedule.report')
        await clock.advance(hour)
        assert.deepEqual(await fire(holdfast), { fired: 1, skipped: 0 })
        await clock.advance(1_000 * day)
        const { version = null, value = '' } = seen ?? {}
        const step = { key: 'holdfast.schedule.report', version, value, jobs: [newJob] }
        assert.equal(await stale.advance(step), 'stale')
        assert.equal((await holdfast.stats('reports')).ready, 1)
      }),
    )

    test(
      'an advance commits as a whole or not at all',
      inWorld(async ({ holdfast, store }) => {
        const seam = await store()
        const id = '01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80'
        await holdfast.queue('reports').enqueue({}, { id })
        const step = { key: 'cursor', version: null, value: '1' }
        const answer = await seam.advance({ ...step, jobs: [newJob, { ...newJob, id, idGiven: true }] })
        assert.ok(typeof answer === 'object' && 'refused' in answer && answer.refused === 'DUPLICATE_JOB_ID')
        assert.equal(await holdfast.kv.get('cursor'), null)
        assert.equal((await holdfast.stats()).ready, 1)
        const advanced = await seam.advance({ ...step, jobs: [newJob] })
        assert.ok(typeof advanced === 'object' && 'enqueued' in advanced)
        assert.deepEqual(advanced.enqueued, [{ id: newJob.id, status: 'created' }])
        assert.equal((await holdfast.kv.get('cursor'))?.version, advanced.version)
        assert.equal((await holdfast.stats()).ready, 2)
      }),
    )

    test(
      'of missed slots `skip` fires none, `once` one job for all, `all` every one',
      inWorld(async ({ holdfast, clock }) => {
        for (const missed of ['skip', 'once', 'all'] as const) {
          await holdfast.schedule(missed, { cron: '0 * * * *', queue: missed, missed })
        }
        await clock.advance(5 * hour + 10 * minute)
        assert.deepEqual(await fire(holdfast), { fired: 0 + 1 + 5, skipped: 5 + 4 + 0 })
        assert.deepEqual(await slotsOf(holdfast, 'once'), ['05:00'])
        assert.deepEqual(await slotsOf(holdfast, 'all'), ['01:00', '02:00', '03:00', '04:00', '05:00'])
        await clock.advance(50 * minute)
        assert.deepEqual(await fire(holdfast), { fired: 3, skipped: 0 })
        assert.deepEqual(await slotsOf(holdfast, 'skip'), ['06:00'])
      }),
    )

    test(
      'a slot that is up to a minute late is not missed',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.schedule('report', { cron: '0 * * * *', queue: 'reports' })
        await clock.advance(hour + minute)
        assert.deepEqual(await fire(holdfast), { fired: 1, skipped: 0 })
        await clock.advance(hour + 1)
        assert.deepEqual(await fire(holdfast), { fired: 0, skipped: 1 })
      }),
    )

    test(
      '`all` fires the latest thousand missed slots in their order, and skips older ones',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.schedule('tick', { cron: '* * * * *', queue: 'ticks', missed: 'all' })
        await clock.advance(1_200 * minute)
        const { fired, skipped } = await fire(holdfast)
        assert.equal(fired, 1_000)
        assert.ok(skipped > 0)
        const slots = await slotsOf(holdfast, 'ticks')
        assert.deepEqual([slots.length, slots[0], slots.at(-1)], [1_000, '03:21', '20:00'])
        assert.deepEqual(await fire(holdfast), { fired: 0, skipped: 0 })
      }),
    )

    test(
      'after the clock is set back no slot fires again, and the schedule continues where it was',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.schedule('report', { cron: '0 * * * *', queue: 'reports', missed: 'all' })
        await clock.advance(3 * hour)
        assert.deepEqual(await fire(holdfast), { fired: 3, skipped: 0 })
        await clock.advance(-2 * hour)
        assert.deepEqual(await fire(holdfast), { fired: 0, skipped: 0 })
        await clock.advance(2 * hour)
        assert.deepEqual(await fire(holdfast), { fired: 0, skipped: 0 })
        await clock.advance(hour)
        assert.deepEqual(await fire(holdfast), { fired: 1, skipped: 0 })
      }),
    )

    test(
      'a slot in the hour that daylight saving skips fires right after it; one in the repeated hour fires once',
      inWorld(async ({ holdfast, clock }) => {
        await goTo(clock, '2030-03-30T12:00Z')
        const berlin = { cron: '30 2 * * *', timeZone: 'Europe/Berlin', queue: 'reports', missed: 'all' } as const
        await holdfast.schedule('report', berlin)
        await goTo(clock, '2030-04-01T12:00Z')
        assert.deepEqual(await fire(holdfast), { fired: 2, skipped: 0 })
        assert.deepEqual(await slotsOf(holdfast, 'reports', 16), ['2030-03-31T01:00', '2030-04-01T00:30'])
        await holdfast.deleteAll({ queue: 'reports' })
        await goTo(clock, '2030-10-26T12:00Z')
        await fire(holdfast)
        await holdfast.deleteAll({ queue: 'reports' })
        await goTo(clock, '2030-10-28T12:00Z')
        assert.deepEqual(await fire(holdfast), { fired: 2, skipped: 0 })
        assert.deepEqual(await slotsOf(holdfast, 'reports', 16), ['2030-10-27T00:30', '2030-10-28T01:30'])
      }),
    )

    test(
      'a paused schedule fires nothing, and the slots of that time never fire',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.schedule('report', { cron: '0 * * * *', queue: 'reports', missed: 'all' })
        assert.equal(await holdfast.pauseSchedule('report'), true)
        assert.equal(await holdfast.pauseSchedule('report'), false)
        await clock.advance(3 * hour)
        assert.deepEqual(await fire(holdfast), { fired: 0, skipped: 0 })
        const [paused] = await holdfast.schedules()
        assert.deepEqual([paused?.paused, paused?.nextAt, paused?.overdueSince], [true, null, null])
        assert.equal(await holdfast.resumeSchedule('report'), true)
        assert.equal(await holdfast.resumeSchedule('report'), false)
        assert.deepEqual(await fire(holdfast), { fired: 0, skipped: 0 })
        await clock.advance(hour)
        assert.deepEqual(await fire(holdfast), { fired: 1, skipped: 0 })
      }),
    )

    test(
      'run now enqueues a job besides those of slots, also while the schedule is paused',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.schedule('report', { cron: '0 * * * *', queue: 'reports', payload: 7 })
        await holdfast.pauseSchedule('report')
        const { id, status } = await holdfast.runScheduleNow('report')
        assert.equal(status, 'created')
        const job = await holdfast.job(id)
        assert.deepEqual([job?.payload, job?.headers], [7, { 'holdfast-schedule': 'report' }])
        await holdfast.resumeSchedule('report')
        await clock.advance(hour)
        assert.deepEqual(await fire(holdfast), { fired: 1, skipped: 0 })
      }),
    )

    test(
      'an unscheduled schedule fires no more; declared again it starts with the next slot',
      inWorld(async ({ holdfast, clock, another }) => {
        const options = { cron: '0 * * * *', queue: 'reports', missed: 'all' } as const
        await holdfast.schedule('report', options)
        const other = await another()
        await fire(other)
        assert.equal(await holdfast.unschedule('report'), true)
        assert.equal(await holdfast.unschedule('report'), false)
        await clock.advance(2 * hour)
        assert.deepEqual(await fire(other), { fired: 0, skipped: 0 })
        assert.deepEqual(await holdfast.schedules(), [])
        await holdfast.schedule('report', options)
        assert.deepEqual(await fire(other), { fired: 0, skipped: 0 })
        await clock.advance(hour)
        assert.deepEqual(await fire(other), { fired: 1, skipped: 0 })
      }),
    )

    test(
      'a slot whose job is a duplicate by its dedup key enqueues none, and emits an event',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.schedule('report', { cron: '0 * * * *', queue: 'reports', dedup: { key: 'report' } })
        const skipped = events(holdfast, 'schedule.skipped')
        await clock.advance(hour)
        assert.deepEqual(await fire(holdfast), { fired: 1, skipped: 0 })
        await clock.advance(hour)
        assert.deepEqual(await fire(holdfast), { fired: 0, skipped: 1 })
        assert.deepEqual(skipped, [{ schedule: 'report', slots: 1, reason: 'duplicate' }])
      }),
    )

    test(
      'schedules are listed by name with their state',
      inWorld(async ({ holdfast, clock, another }) => {
        await holdfast.schedule('b', { cron: '*/10 * * * *', queue: 'q' })
        await holdfast.schedule('a', { cron: '@daily', timeZone: 'America/New_York', queue: 'q', payload: [1] })
        await clock.advance(25 * minute)
        await fire(holdfast)
        const reader = await another({ readOnly: true })
        const [a, b] = await reader.schedules()
        assert.deepEqual(
          [a?.name, a?.timeZone, a?.payload, a?.missed, a?.lastSlot],
          ['a', 'America/New_York', [1], 'skip', null],
        )
        assert.equal(a?.nextAt?.toISOString(), '2030-01-01T05:00:00.000Z')
        assert.deepEqual([b?.name, b?.fired, b?.skipped, b?.drift], ['b', 0, 2, null])
        assert.equal(b?.nextAt?.toISOString(), '2030-01-01T00:30:00.000Z')
        await clock.advance(6 * minute)
        const [, late] = await reader.schedules()
        assert.equal(late?.overdueSince?.toISOString(), '2030-01-01T00:30:00.000Z')
        assert.equal(late?.nextAt?.toISOString(), '2030-01-01T00:40:00.000Z')
        await rejects(reader.schedule('c', { cron: '@daily', queue: 'q' }), 'UNSUPPORTED')
      }),
    )

    test(
      'another declaration applies from now on, emits an event, and is reported as drift to the process that declared it before',
      inWorld(async ({ holdfast, clock, another }) => {
        const options = { cron: '0 * * * *', queue: 'reports', payload: { a: 1, b: 2 } }
        await holdfast.schedule('report', options)
        const newer = await another()
        const changed = events(newer, 'schedule.changed')
        await clock.advance(30 * minute)
        const same = await newer.schedule('report', { ...options, payload: { b: 2, a: 1 } })
        assert.deepEqual([same.drift, same.changedAt, changed], [[], same.createdAt, []])
        const after = await newer.schedule('report', { ...options, cron: '45 * * * *', payload: 3 })
        assert.deepEqual([after.drift, changed], [[], [{ schedule: 'report', changes: ['cron', 'payload'] }]])
        assert.equal(after.changedAt.toISOString(), '2030-01-01T00:30:00.000Z')
        assert.equal(after.nextAt?.toISOString(), '2030-01-01T00:45:00.000Z')
        const [seen] = await holdfast.schedules()
        assert.deepEqual(seen?.drift, ['cron', 'payload'])
        await clock.advance(30 * minute)
        assert.deepEqual(await fire(holdfast), { fired: 0, skipped: 1 })
        await clock.advance(45 * minute)
        assert.deepEqual(await fire(holdfast), { fired: 1, skipped: 0 })
        assert.deepEqual(
          (await allJobs(holdfast)).map(({ payload }) => payload),
          [3],
        )
      }),
    )

    test(
      'a changed payload moves no slot: missed slots fire with the new payload',
      inWorld(async ({ holdfast, clock }) => {
        const options = { cron: '0 * * * *', queue: 'reports', missed: 'once' } as const
        await holdfast.schedule('report', { ...options, payload: 1 })
        await clock.advance(90 * minute)
        await holdfast.schedule('report', { ...options, payload: 2 })
        assert.deepEqual(await fire(holdfast), { fired: 1, skipped: 0 })
        assert.deepEqual(
          (await allJobs(holdfast)).map(({ payload }) => payload),
          [2],
        )
      }),
    )

    test(
      'a schedule that no code declares any more keeps firing, and the listing shows since when',
      inWorld(async ({ holdfast, clock, another }) => {
        const code = await another()
        await code.schedule('report', { cron: '@daily', queue: 'reports', missed: 'all' })
        await clock.advance(90 * minute)
        await fire(code)
        const declaredAt = async () => (await holdfast.schedules())[0]?.declaredAt.toISOString()
        assert.equal(await declaredAt(), '2030-01-01T01:30:00.000Z')
        await code.close()
        await clock.advance(3 * day)
        assert.deepEqual(await fire(holdfast), { fired: 3, skipped: 0 })
        assert.equal(await declaredAt(), '2030-01-01T01:30:00.000Z')
      }),
    )

    test(
      'a slot whose job is a duplicate counts as skipped, and the last one that fired stays the last',
      inWorld(async ({ holdfast, clock }) => {
        const dedup = { key: 'report' } as const
        await holdfast.schedule('report', { cron: '0 * * * *', queue: 'reports', missed: 'all', dedup })
        const counts = async () => {
          const [info] = await holdfast.schedules()
          return [info?.fired, info?.skipped, info?.lastSlot?.toISOString()]
        }
        await clock.advance(hour)
        assert.deepEqual(await fire(holdfast), { fired: 1, skipped: 0 })
        const [, , first] = await counts()
        await clock.advance(3 * hour)
        assert.deepEqual(await fire(holdfast), { fired: 0, skipped: 3 })
        assert.deepEqual(await counts(), [1, 3, first])
        await (await claimOne(holdfast, 'reports')).done()
        await clock.advance(2 * hour)
        assert.deepEqual(await fire(holdfast), { fired: 1, skipped: 1 })
        const [fired, skipped, last] = await counts()
        assert.deepEqual([fired, skipped], [2, 4])
        assert.equal(Date.parse(last as string) - Date.parse(first as string), 4 * hour)
      }),
    )

    test(
      'an entry that is no schedule emits an event and affects no other schedule',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.schedule('report', { cron: '0 * * * *', queue: 'reports' })
        await putReserved(holdfast, 'holdfast.schedule.broken', { cron: 7 })
        await putReserved(holdfast, 'holdfast.schedule.worse', {
          cron: 'x',
          timeZone: 'UTC',
          cursor: 0,
          job: { queue: 'q', payload: '1' },
        })
        const failed = events(holdfast, 'schedule.failed')
        await clock.advance(hour)
        assert.deepEqual(await fire(holdfast), { fired: 1, skipped: 0 })
        assert.deepEqual(
          failed.map(({ schedule }) => schedule),
          ['broken', 'worse'],
        )
        await fire(holdfast)
        assert.equal(failed.length, 2, 'and not at every check')
        await holdfast.schedule('broken', { cron: '0 * * * *', queue: 'reports' })
        assert.deepEqual(
          (await holdfast.schedules()).map(({ name }) => name),
          ['broken', 'report'],
        )
      }),
    )

    test(
      'bad options are refused with the reason, and nothing is stored',
      inWorld(async ({ holdfast }) => {
        const good = { cron: '0 * * * *', queue: 'reports' }
        const cases: [object, RegExp][] = [
          [{ ...good, cron: '61 * * * *' }, /cron "61 \* \* \* \*" cannot be parsed: its minute is "61"; /],
          [{ ...good, cron: 'every day' }, /cron "every day" cannot be parsed: /],
          [{ ...good, cron: '' }, /cron must be five or six fields/],
          [{ ...good, cron: '2030-01-01T00:00:00' }, /cron must be five or six fields/],
          [{ ...good, cron: '0 0 31 2 *' }, /names a time that never occurs/],
          [{ ...good, timeZone: 'Mars/Olympus' }, /timeZone must be an IANA name .* got "Mars\/Olympus"/],
          [{ ...good, missed: 'some' }, /missed must be one of 'skip', 'once', 'all'; got "some"/],
          [{ ...good, priority: 10 }, /priority must be/],
          [{ ...good, runAt: 7 }, /There is no option "runAt" in schedule options/],
          [{ ...good, every: '1m' }, /There is no option "every" in schedule options/],
        ]
        for (const [options, says] of cases) {
          await assert.rejects(holdfast.schedule('report', options as never), (error: Error & { code?: string }) => {
            assert.equal(error.code, 'INVALID_OPTION')
            assert.match(error.message, says)
            return true
          })
        }
        await rejects(holdfast.schedule('no spaces', good), 'INVALID_NAME')
        await rejects(holdfast.schedule('report', { ...good, queue: 'no spaces' }), 'INVALID_NAME')
        const typed = defineQueue('typed', { payload: z.object({ n: z.number() }) })
        await rejects(
          holdfast.schedule('report', { ...good, queue: typed, payload: { n: 'x' } as never }),
          'INVALID_PAYLOAD',
        )
        await rejects(holdfast.schedule('report', { ...good, payload: 'x'.repeat(256 * 1024) }), 'PAYLOAD_TOO_LARGE')
        for (const change of ['pauseSchedule', 'resumeSchedule', 'runScheduleNow'] as const) {
          await rejects(holdfast[change]('unknown'), 'SCHEDULE_NOT_FOUND')
        }
        assert.deepEqual(await holdfast.schedules(), [])
      }),
    )
  })
}

const newJob = {
  ...{ id: '01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f81', idGiven: false, queue: 'reports', payload: '1', headers: null },
  ...{ priority: 5, maxAttempts: 5, timeoutMs: null, delayMs: 0, runAt: null, startBefore: null },
  ...{ dedup: null, idempotency: null, limitKey: null },
} as const

async function fire(holdfast: Holdfast): Promise<{ fired: number; skipped: number }> {
  const { fired, skipped } = await holdfast.sweep()
  return { fired, skipped }
}

async function goTo(clock: TestClock, time: string): Promise<void> {
  await clock.advance(Date.parse(time) - clock.now())
}

/** The slots of a queue's jobs, in the order in which they will run: `05:00`, or with the date. */
async function slotsOf(holdfast: Holdfast, queue: string, length = 5): Promise<string[]> {
  const jobs = (await allJobs(holdfast)).filter((job) => job.queue === queue)
  return jobs.map(({ headers }) => (headers['holdfast-slot'] ?? '').slice(length === 5 ? 11 : 0, 16))
}

function events<Name extends keyof HoldfastEvents>(holdfast: Holdfast, name: Name): HoldfastEvents[Name][] {
  const events: HoldfastEvents[Name][] = []
  holdfast.on(name, (event) => events.push(event))
  return events
}
