import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { isRefused } from '../../src/errors.ts'
import { bounds } from '../../src/job/bounds.ts'
import { hour, readJob, stateOf } from './expect.ts'
import {
  checkpoint,
  checkpointOf,
  claimedRun,
  claimRun,
  claimRuns,
  leaseMs,
  namesOf,
  noEffects,
  park,
  record,
  records,
  settle,
} from './journals.ts'
import { type InWorld, type StoreUnderTest, withSql } from './world.ts'

export function checkpointTests(inWorld: InWorld, { dialect }: StoreUnderTest): void {
  describe('checkpoints', () => {
    if (dialect) {
      test(
        'the doctor finds parts of journals whose job is gone, and removes them',
        withSql(inWorld)(async ({ holdfast, sql, store }) => {
          const own = await store()
          const run = await claimedRun(holdfast, own)
          await checkpoint(own, run, { journal: records(record(1, 'a')) })
          const found = async (options = {}) => {
            const all = await holdfast.doctor(options)
            return all
              .filter(({ id }) => id === 'journals')
              .map(({ severity, repaired, facts }) => [severity, repaired, facts])
          }
          assert.deepEqual(await found(), [['fine', undefined, {}]])
          await sql.query(dialect.orphanedRecord.replaceAll('$schema', sql.schema))
          assert.deepEqual(await found(), [['wrong', undefined, { jobs: 1 }]])
          assert.deepEqual((await found({ fix: true }))[0], ['fine', true, { jobs: 1 }])
          assert.deepEqual(await found(), [['fine', undefined, {}]])
          assert.deepEqual(await namesOf(own, run.id), ['a'])
        }),
      )
    }

    test(
      'a checkpoint writes records and effects, and the job stays leased',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        const put = { key: 'seen', value: '"yes"', ttlMs: null }
        const effects = { ...noEffects, put: [put] }
        const answer = await checkpoint(own, run, { journal: records(record(1, 'a'), record(2, 'b')), effects })
        assert.deepEqual(answer, { expiresAt: run.expiresAt, cancelRequested: false, enqueued: [] })
        assert.deepEqual(await namesOf(own, run.id), ['a', 'b'])
        assert.equal((await holdfast.kv.get('seen'))?.value, 'yes')
        assert.equal((await readJob(holdfast, run.id)).state, 'running')
        assert.equal((await own.job(run.id))?.hasJournal, true)
        assert.equal(((await settle(own, run)) as { state: string }).state, 'done')
        assert.deepEqual(await namesOf(own, run.id), ['a', 'b'], 'the journal stays readable with the job')
      }),
    )

    test(
      'a claim that asks for journals answers them, and any other claim does not',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        assert.equal(run.journal, undefined)
        await checkpoint(own, run, { journal: { ...records(record(1, 'a')), partial: '{"n":1}' } })
        await settle(own, run, { as: 'release' })
        const again = await claimRun(own)
        assert.deepEqual(again.journal, {
          ...{ records: [record(1, 'a')], next: null, partial: '{"n":1}', parent: null },
          ...{ cancelRequested: false, awaits: [] },
        })
        await settle(own, again, { as: 'release' })
        const [plain] = await own.claim({ queues: ['flow'], max: 1, leaseMs, worker: 'w' })
        assert.equal(plain?.journal, undefined)
      }),
    )

    test(
      'a settlement writes its journal with whatever becomes of the job',
      inWorld(async ({ holdfast, store, clock }) => {
        const own = await store()
        const error = { message: 'no' }
        const settlements = {
          done: { as: 'done', result: '1', effects: null },
          retry: { as: 'retry', error, delayMs: 0, ending: 'failed' },
          dead: { as: 'dead', error, effects: null },
          release: { as: 'release' },
          snooze: { as: 'snooze', delayMs: 1_000 },
          cancelled: { as: 'cancelled', effects: null },
        } as const
        for (const [queue, settlement] of Object.entries(settlements)) {
          const run = await claimedRun(holdfast, own, queue)
          await settle(own, run, { ...settlement, journal: records(record(1, 'last')) })
          assert.deepEqual(await namesOf(own, run.id), ['last'], queue)
        }
        await clock.advance(1_000)
      }),
    )

    test(
      'the reason of a verdict stays with a done or cancelled job, and is no failure',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const error = { name: 'FlowFailed', message: 'not today' }
        for (const as of ['done', 'cancelled'] as const) {
          const run = await claimedRun(holdfast, own)
          const settlement = as === 'done' ? { as, result: null, effects: null, error } : { as, effects: null, error }
          await settle(own, run, settlement)
          const { state, attempts } = await readJob(holdfast, run.id)
          assert.deepEqual([state, attempts], [as, 1])
          assert.deepEqual((await own.job(run.id))?.error, error)
          assert.deepEqual((await own.outcomes([run.id]))[0], { state: as, attempts: 1, result: null, error })
        }
      }),
    )

    test(
      'a record is written once: the same step twice refuses the whole checkpoint, and the job goes on',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await checkpoint(own, run, { journal: records(record(1, 'a')) })
        const put = { key: 'seen', value: '"yes"', ttlMs: null }
        const effects = { ...noEffects, put: [put] }
        const twice = await checkpoint(own, run, { journal: records(record(2, 'b'), record(3, 'a')), effects })
        assert.ok(typeof twice === 'object' && 'failed' in twice)
        assert.equal(twice.failed.refused, 'INVALID_STATE')
        assert.deepEqual(await namesOf(own, run.id), ['a'])
        assert.equal(await holdfast.kv.get('seen'), null)
        assert.equal(await stateOf(holdfast, run.id), 'running')
        await checkpoint(own, run, { journal: records(record(2, 'a', -1), record(3, 'a', 1), record(4, 'b')) })
        assert.deepEqual(await namesOf(own, run.id), ['a', 'a/-1', 'a/1', 'b'])
      }),
    )

    test(
      'a settlement whose record exists fails the attempt, as a refused effect does',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await checkpoint(own, run, { journal: records(record(1, 'a')) })
        const journal = records(record(2, 'a'))
        const answer = await settle(own, run, { as: 'done', result: '"x"', effects: null, journal })
        assert.ok(typeof answer === 'object' && 'failed' in answer)
        assert.deepEqual([answer.failed.refused, answer.state], ['INVALID_STATE', 'ready'])
        assert.deepEqual(await namesOf(own, run.id), ['a'])
      }),
    )

    test(
      'a refused effect fails its own checkpoint alone, and nothing of it is written',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        await holdfast.kv.put('taken', 1)
        await holdfast.queue('flow').enqueueMany([{ payload: 1 }, { payload: 2 }, { payload: 3 }])
        const runs = await claimRuns(own)
        const compare = [{ as: 'compareAndSet', key: 'taken', value: '2', version: null, ttlMs: null }] as const
        const answers = await Promise.all(
          await own.checkpoint(
            runs.map((run, n) =>
              checkpointOf(run, {
                journal: records(record(1, `step ${n}`)),
                effects: n === 1 ? { ...noEffects, compare } : null,
              }),
            ),
          ),
        )
        const failed = answers[1]
        assert.ok(typeof failed === 'object' && 'failed' in failed)
        assert.equal(failed.failed.refused, 'KV_VERSION_MISMATCH')
        const written = await Promise.all(runs.map(({ id }) => namesOf(own, id)))
        assert.deepEqual(written, [['step 0'], [], ['step 2']])
        assert.equal(await stateOf(holdfast, runs[1]?.id ?? ''), 'running')
      }),
    )

    test(
      'a checkpoint under a lease that was lost changes nothing',
      inWorld(async ({ holdfast, store, clock }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await clock.advance(leaseMs)
        await holdfast.sweep()
        const again = await claimRun(own)
        const put = { key: 'seen', value: '"yes"', ttlMs: null }
        const journal = records(record(1, 'late'))
        assert.equal(await checkpoint(own, run, { journal, effects: { ...noEffects, put: [put] } }), 'lost')
        assert.deepEqual(await namesOf(own, run.id), [])
        assert.equal(await holdfast.kv.get('seen'), null)
        assert.equal(typeof (await checkpoint(own, again, { journal })), 'object')
        await settle(own, again)
        assert.equal(await checkpoint(own, again, { journal: records(record(2, 'later')) }), 'lost')
      }),
    )

    test(
      'a checkpoint renews the lease once a third of it is over, and not before',
      inWorld(async ({ holdfast, store, clock }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        const begun = clock.now()
        await clock.advance(leaseMs / 3)
        const early = await checkpoint(own, run, { journal: records(record(1, 'early')) })
        assert.equal(typeof early === 'object' && 'expiresAt' in early && early.expiresAt, begun + leaseMs)
        await clock.advance(1)
        const late = await checkpoint(own, run, { journal: records(record(2, 'late')) })
        assert.equal(typeof late === 'object' && 'expiresAt' in late && late.expiresAt, clock.now() + leaseMs)
        await clock.advance(leaseMs - 1)
        assert.equal((await holdfast.sweep()).rescued, 0)
        await clock.advance(1)
        assert.equal((await holdfast.sweep()).rescued, 1)
      }),
    )

    test(
      'attempts and free releases count from a checkpoint that starts over, and from no other',
      inWorld(async ({ holdfast, store, clock }) => {
        const own = await store()
        await claimedRun(holdfast, own, 'flow', { attempts: 3 })
        const attempts: number[] = []
        let run = null
        for (const startsOver of [false, true, false, true]) {
          await clock.advance(leaseMs)
          await holdfast.sweep()
          run = await claimRun(own)
          attempts.push(run.attempt)
          const no = attempts.length
          await checkpoint(own, run, { journal: records(record(no, `step ${no}`)), startsOver })
        }
        assert.deepEqual(attempts, [2, 3, 2, 3])
        assert.equal((await readJob(holdfast, run?.id ?? '')).attempts, 1)
      }),
    )

    test(
      'a job that kills its process after its last step ends dead at its attempts, also if it writes checkpoints',
      inWorld(async ({ holdfast, store, clock }) => {
        const own = await store()
        const first = await claimedRun(holdfast, own, 'flow', { attempts: 2 })
        await checkpoint(own, first, { journal: records(record(1, 'a')), startsOver: true })
        await clock.advance(leaseMs)
        await holdfast.sweep()
        const second = await claimRun(own)
        await checkpoint(own, second, { journal: { records: [record(2, 'b', -1)], partial: '{}' } })
        await clock.advance(leaseMs)
        await holdfast.sweep()
        assert.equal(await stateOf(holdfast, first.id), 'dead')
        assert.deepEqual(await namesOf(own, first.id), ['a', 'b/-1'])
      }),
    )

    test(
      'a requeue keeps the journal, and deleting the job removes it',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        const journal = { ...records(record(1, 'a')), partial: '{"half":true}' }
        await settle(own, run, { as: 'dead', error: { message: 'no' }, effects: null, journal })
        await holdfast.requeue(run.id)
        const again = await claimRun(own)
        assert.deepEqual([again.journal?.records, again.journal?.partial], [[record(1, 'a')], '{"half":true}'])
        await settle(own, again)
        await holdfast.delete(run.id)
        assert.equal(await own.journal({ id: run.id, after: null }), null)
      }),
    )

    test(
      'the journal goes with the job when its retention is over',
      inWorld(async ({ holdfast, store, clock }) => {
        const own = await store()
        const kept = holdfast.queue('flow', { retain: { done: '1h' } })
        const dropped = holdfast.queue('unkept', { retain: { done: 0 } })
        await kept.enqueue(1)
        await dropped.enqueue(1)
        for (const queue of ['flow', 'unkept']) {
          const run = await claimRun(own, queue)
          await checkpoint(own, run, { journal: records(record(1, 'a')) })
          await settle(own, run, { as: 'done', result: null, effects: null, journal: records(record(2, 'b')) })
          assert.deepEqual(await namesOf(own, run.id), queue === 'flow' ? ['a', 'b'] : [])
        }
        await clock.advance(2 * hour)
        while ((await holdfast.sweep()).pruned > 0);
        assert.deepEqual(await holdfast.jobs({ queue: 'flow' }), { jobs: [], looked: 0, next: null })
      }),
    )

    test(
      'a journal is read in pages that are bounded in bytes',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        const large = 'x'.repeat(bounds.stepOutputBytes)
        const count = Math.ceil((bounds.pageBytes * 2.5) / bounds.stepOutputBytes)
        for (let no = 1; no <= count; no++)
          await checkpoint(own, run, { journal: records(record(no, `step ${no}`, 0, large)) })
        await settle(own, run, { as: 'release' })
        const again = await claimRun(own)
        const pages = [again.journal?.records ?? []]
        for (let after = again.journal?.next ?? null; after !== null; ) {
          const page = await own.journal({ id: run.id, after })
          pages.push(page?.records ?? [])
          after = page?.next ?? null
        }
        assert.ok(pages.length >= 3, `${pages.length} pages`)
        const bytes = pages.map((page) => page.reduce((sum, { body }) => sum + body.length, 0))
        assert.ok(bytes.every((sum) => sum <= bounds.pageBytes))
        assert.deepEqual(
          pages.flat().map(({ no }) => no),
          Array.from({ length: count }, (_, n) => n + 1),
        )
      }),
    )

    test(
      'a journal has at most as many records as the bound says',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        const answer = await checkpoint(own, run, { journal: records(record(bounds.recordsMax + 1, 'too many')) })
        assert.ok(typeof answer === 'object' && 'failed' in answer)
        assert.equal(answer.failed.refused, 'JOURNAL_FULL')
      }),
    )

    test(
      'the cancel of a job that waits and has a journal wakes it to end itself',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await holdfast.queue('flow').enqueue({ n: 2 })
        await park(own, run, { journal: records(record(1, 'wait', -1)) })
        assert.equal(await stateOf(holdfast, run.id), 'scheduled')
        const effects = { put: [{ key: 'cancelled', value: 'yes' }] }
        assert.equal(await holdfast.cancel(run.id, { effects, by: 'ada' }), 'requested')
        const again = await claimRun(own)
        assert.deepEqual([again.id, again.journal?.cancelRequested], [run.id, true], 'it comes first')
        const answer = await checkpoint(own, again, { journal: records(record(2, 'a')) })
        assert.equal(typeof answer === 'object' && 'cancelRequested' in answer && answer.cancelRequested, true)
        await settle(own, again, { as: 'cancelled', effects: null })
        assert.equal(await stateOf(holdfast, run.id), 'cancelled')
        assert.equal((await holdfast.kv.get('cancelled'))?.value, 'yes')
      }),
    )

    test(
      'cancelAll asks jobs that wait and have a journal to end themselves, and ends all others',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await park(own, run, { journal: records(record(1, 'wait', -1)) })
        const { id } = await holdfast.queue('flow').enqueue({ n: 2 })
        const dry = await holdfast.cancelAll({ queue: 'flow' }, { dryRun: true })
        assert.deepEqual([dry.changed, dry.requested], [2, 1])
        const { changed, requested } = await holdfast.cancelAll({ queue: 'flow' })
        assert.deepEqual([changed, requested], [2, 1])
        assert.deepEqual([await stateOf(holdfast, run.id), await stateOf(holdfast, id)], ['ready', 'cancelled'])
        const again = await claimRun(own)
        assert.equal(again.journal?.cancelRequested, true)
        await settle(own, again, { as: 'cancelled', effects: null })
        const over = await holdfast.cancelAll({ queue: 'flow' })
        assert.equal(over.changed, 0)
      }),
    )

    test(
      'an item of a cancelled batch ends at once, also if it has a journal',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const batch = await holdfast.batch({ name: 'runs' }, [{ queue: 'flow', payload: 1 }])
        const run = await claimRun(own)
        await park(own, run, { journal: records(record(1, 'wait', -1)) })
        await batch.cancel()
        assert.equal(await stateOf(holdfast, run.id), 'cancelled')
      }),
    )

    test(
      'a flow run that has begun is not replaced by its dedup key: its journal is about its own payload',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const dedup = { key: 'one', replace: true }
        const run = await claimedRun(holdfast, own, 'flow', { dedup })
        await park(own, run, { journal: records(record(1, 'a')) })
        const again = await holdfast.queue('flow').enqueue({ n: 2 }, { dedup })
        assert.deepEqual(again, { id: run.id, status: 'notReplaced' })
        const { state, payload } = await readJob(holdfast, run.id)
        assert.deepEqual([state, payload], ['scheduled', { n: 1 }])
        assert.deepEqual(await namesOf(own, run.id), ['a'])
      }),
    )

    test(
      'a checkpoint is repeatable under its token',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        const request = checkpointOf(run, { journal: records(record(1, 'a')) })
        const [first] = await Promise.all(await own.checkpoint([request], 'token'))
        assert.ok(!isRefused(first) && typeof first === 'object' && 'expiresAt' in first)
        assert.deepEqual(await namesOf(own, run.id), ['a'])
      }),
    )
  })
}
