import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { claimOne, minute, readJob, stateOf } from './expect.ts'
import {
  checkpoint,
  child,
  claimedRun,
  claimRun,
  claimRuns,
  leaseMs,
  mailbox,
  park,
  record,
  records,
  settle,
} from './journals.ts'
import type { InWorld, World } from './world.ts'

export function childTests(inWorld: InWorld): void {
  describe('children', () => {
    const ends: Record<string, [state: string, end: (world: World, id: string) => Promise<unknown>]> = {
      'is done': ['done', async ({ holdfast }) => (await claimOne(holdfast, 'children')).done({ n: 7 })],
      dies: ['dead', async ({ holdfast }) => (await claimOne(holdfast, 'children')).dead(new Error('no'))],
      'uses up its attempts': [
        'dead',
        async ({ holdfast }) => (await claimOne(holdfast, 'children')).retry(new Error('no')),
      ],
      'dies by lease expiry': [
        'dead',
        async ({ holdfast, clock }) => {
          await claimOne(holdfast, 'children', { lease: '30s' })
          await clock.advance(leaseMs)
          await holdfast.sweep()
        },
      ],
      'is cancelled by its worker': [
        'cancelled',
        async ({ holdfast }) => (await claimOne(holdfast, 'children')).cancelled(),
      ],
      'is cancelled while it waits': ['cancelled', ({ holdfast }, id) => holdfast.cancel(id)],
      'is cancelled with all others': ['cancelled', ({ holdfast }) => holdfast.cancelAll({ queue: 'children' })],
      'is deleted while it waits': ['deleted', ({ holdfast }, id) => holdfast.delete(id)],
      'is deleted with all others': ['deleted', ({ holdfast }) => holdfast.deleteAll({ queue: 'children' })],
      'misses its latest start': [
        'cancelled',
        async ({ holdfast, clock }) => {
          await clock.advance(minute)
          await holdfast.sweep()
        },
      ],
    }
    for (const [how, [state, end]] of Object.entries(ends)) {
      test(
        `a child that ${how} puts its end into the mailbox of its parent, and wakes it`,
        inWorld(async (world) => {
          const { holdfast, clock } = world
          const own = await world.store()
          const run = await claimedRun(holdfast, own)
          const startBefore = how === 'misses its latest start' ? clock.now() + minute : null
          const effects = child(run, 'score', { maxAttempts: 1, startBefore })
          await park(own, run, { effects, journal: records(record(1, 'score', -1)) })
          const id = effects.enqueue[0]?.id as string
          assert.deepEqual((await own.job(id))?.parent, { id: run.id, step: 'score' })
          await end(world, id)
          await holdfast.sweep()
          const [message, ...more] = await own.messages({ id: run.id, keys: [] })
          assert.equal(more.length, 0)
          assert.deepEqual([message?.name, message?.child, message?.key], ['score', id, null])
          const ended = JSON.parse(message?.value ?? 'null')
          assert.equal(ended.state, state)
          if (state === 'done') assert.deepEqual(ended.result, { n: 7 })
          if (state === 'dead') assert.equal(typeof ended.error.message, 'string')
          assert.equal((await claimRun(own)).id, run.id)
        }),
      )
    }

    test(
      'a child and its parked parent are deleted in one step',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        await park(own, run, { effects: child(run, 'score', { queue: 'children' }) })
        assert.equal((await holdfast.deleteAll({ state: ['ready', 'scheduled'] })).changed, 2)
        assert.deepEqual((await holdfast.jobs()).jobs, [])
        for (const { name, scheduled, ready } of await holdfast.queues())
          assert.deepEqual([name, scheduled, ready], [name, 0, 0])
        await holdfast.queue('flow').enqueue(2)
        assert.equal((await claimRuns(own)).length, 1)
      }),
    )

    test(
      'children that are done together tell their parents, also if nothing of them is kept',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        holdfast.queue('children', { retain: { done: 0 } })
        await holdfast.queue('children', { retain: { done: 0 } }).enqueue('plain')
        await (await claimOne(holdfast, 'children')).done()
        const run = await claimedRun(holdfast, own)
        for (let n = 0; n < 20; n++)
          await checkpoint(own, run, {
            effects: child(run, `child ${n}`),
            journal: records(record(n + 1, `child ${n}`, -1)),
          })
        await park(own, run)
        const claimed = await own.claim({ queues: ['children'], max: 100, leaseMs, worker: 'w' })
        assert.equal(claimed.length, 20)
        const settlements = claimed.map(({ id, fence }) => ({
          ...{ id, fence, retryDelayMs: 0 },
          settlement: { as: 'done', result: '1', effects: null } as const,
        }))
        await Promise.all(await own.settle(settlements))
        const names = (await mailbox(own, run.id)).map(([name]) => name)
        assert.deepEqual(names.sort(), Array.from({ length: 20 }, (_, n) => `child ${n}`).sort())
        await holdfast.sweep()
        assert.equal((await claimRun(own)).id, run.id)
      }),
    )

    test(
      'the end of a child that races the park of its parent is never missed',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const other = await store()
        for (let n = 0; n < 10; n++) {
          const run = await claimedRun(holdfast, own)
          await checkpoint(own, run, { effects: child(run, 'score'), journal: records(record(1, 'score', -1)) })
          const [claimed] = await other.claim({ queues: ['children'], max: 1, leaseMs, worker: 'w' })
          assert.ok(claimed)
          await Promise.all([park(own, run), settle(other, claimed)])
          await holdfast.sweep()
          const again = await claimRun(own)
          assert.equal(again.id, run.id)
          await settle(own, again)
        }
      }),
    )

    test(
      'a child is a child only as an effect of its parent',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        const other = await claimedRun(holdfast, own)
        const answer = await checkpoint(own, run, { effects: child(other, 'score') })
        assert.ok(typeof answer === 'object' && 'failed' in answer)
        assert.equal(answer.failed.refused, 'INVALID_OPTION')
      }),
    )

    test(
      'a child with the id of a live job is refused',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        const effects = child(run, 'score', { id: run.id, idGiven: true })
        const answer = await checkpoint(own, run, { effects, journal: records(record(1, 'score', -1)) })
        assert.ok(typeof answer === 'object' && 'failed' in answer)
        assert.equal(answer.failed.refused, 'DUPLICATE_JOB_ID')
      }),
    )

    test(
      'the end of a child whose parent has ended changes nothing',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        const effects = child(run, 'score')
        await settle(own, run, { as: 'done', result: null, effects })
        await (await claimOne(holdfast, 'children')).done()
        assert.deepEqual(await own.messages({ id: run.id, keys: [] }), [])
        assert.equal(await stateOf(holdfast, run.id), 'done')
        assert.deepEqual((await readJob(holdfast, effects.enqueue[0]?.id ?? '')).state, 'done')
      }),
    )

    test(
      'a requeued child tells its parent of its second end as well',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const run = await claimedRun(holdfast, own)
        const effects = child(run, 'score', { maxAttempts: 1 })
        await park(own, run, { effects })
        await (await claimOne(holdfast, 'children')).dead(new Error('no'))
        await holdfast.requeue(effects.enqueue[0]?.id ?? '')
        await (await claimOne(holdfast, 'children')).done(1)
        const states = (await mailbox(own, run.id)).map(([, end]) => (end as { state: string }).state)
        assert.deepEqual(states, ['dead', 'done'])
        await holdfast.sweep()
        assert.equal((await claimRuns(own)).length, 1)
      }),
    )
  })
}
