// A watcher gets every change of every job, whichever client makes it.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { JobChange, Watch, WatchFilter } from '../../src/client/watch.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { claimOne, deadJob, hour, minute, rejects } from './expect.ts'
import { type InSqlWorld, type InWorld, type StoreUnderTest, withSql } from './world.ts'

export function watchTests(inWorld: InWorld, { dialect }: StoreUnderTest): void {
  describe('watch', () => {
    changeTests(inWorld)
    filterTests(inWorld)
    cursorTests(inWorld)
    endTests(inWorld)
    if (dialect) tableTests(withSql(inWorld), dialect.from.changes)
    if (dialect) callerTests(withSql(inWorld))
  })
}

function changeTests(inWorld: InWorld): void {
  test(
    'a watch reports enqueue, claim and done in order, with the time of the store',
    inWorld(async ({ holdfast, clock }) => {
      await using watch = await begun(holdfast)
      const { id } = await holdfast.queue('mail').enqueue(1)
      const lease = await claimOne(holdfast, 'mail')
      await clock.advance(minute)
      await lease.done()
      const changes = await next(watch, 3)
      assert.deepEqual(changes.map(shown), [`mail ready`, `mail running`, `mail done`])
      for (const change of changes) assert.equal(change.id, id)
      assert.equal((changes[2]?.at.getTime() ?? 0) - (changes[0]?.at.getTime() ?? 0), minute)
    }),
  )

  test(
    'a watch reports every transition of a job',
    inWorld(async ({ holdfast, clock }) => {
      await using watch = await begun(holdfast)
      const mail = holdfast.queue('mail')
      const saw = async (...states: string[]) => {
        const seen = await next(watch, states.length)
        assert.deepEqual(seen.map(shown).sort(), states.map((state) => `mail ${state}`).sort())
      }
      const { id } = await mail.enqueue(1, { delay: '1s' })
      await saw('scheduled')
      await clock.advance(1_000)
      await holdfast.sweep()
      await saw('ready')
      await (await claimOne(holdfast, 'mail')).retry(new Error('later'), { delay: '1m' })
      await saw('running', 'scheduled')
      await holdfast.wake(id)
      await saw('ready')
      await (await claimOne(holdfast, 'mail')).release()
      await saw('running', 'ready')
      await claimOne(holdfast, 'mail', { lease: '1s' })
      await clock.advance(1_000)
      await holdfast.sweep()
      await saw('running', 'ready')
      await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
      await saw('running', 'dead')
      await holdfast.requeue(id)
      await saw('ready')
      await holdfast.reschedule(id, clock.now() + hour)
      await saw('scheduled')
      await holdfast.cancel(id)
      await saw('cancelled')
      await holdfast.delete(id)
      await saw('deleted')
      await mail.enqueue(2, { startBefore: new Date(clock.now() + 10) })
      await clock.advance(20)
      await holdfast.sweep()
      await saw('ready', 'cancelled')
      await deadJob(holdfast, 'mail')
      await saw('ready', 'running', 'dead')
      await holdfast.requeueAll({ queue: 'mail' })
      await saw('ready')
      await mail.enqueue(3)
      await holdfast.deleteAll({ queue: 'mail' })
      await saw('ready', 'deleted', 'deleted', 'deleted')
    }),
  )

  test(
    'a watch reports the end of jobs that are not retained, and the change of a replaced holder',
    inWorld(async ({ holdfast }) => {
      await using watch = await begun(holdfast)
      const mail = holdfast.queue('mail', { retain: { done: 0 } })
      await mail.enqueue(1, { dedup: { key: 'k' } })
      await mail.enqueue(2, { dedup: { key: 'k', replace: true }, delay: '1h' })
      await mail.enqueue(3)
      await (await claimOne(holdfast, 'mail')).done()
      assert.deepEqual((await next(watch, 5)).map(shown), [
        ...['mail ready', 'mail scheduled', 'mail ready', 'mail running', 'mail done'],
      ])
    }),
  )

  test(
    'two watchers get all changes of other clients, each of them',
    inWorld(async ({ holdfast, another }) => {
      const other = await another()
      await using first = await begun(holdfast)
      await using second = await begun(other)
      const ids = await other.queue('mail').enqueueMany(Array.from({ length: 1_000 }, (_, payload) => ({ payload })))
      const leases = await holdfast.claim(['mail'], { max: 1_000 })
      await Promise.all(leases.map((lease) => lease.done()))
      for (const watch of [first, second]) {
        const seen = await next(watch, 3_000)
        for (const state of ['ready', 'running', 'done']) {
          const changed = seen.filter((change) => change.state === state).map(({ id }) => id)
          assert.deepEqual(changed.sort(), ids.map(({ id }) => id).sort(), state)
        }
      }
    }),
  )

  test(
    'of a settlement whose effects fail only the failure is reported',
    inWorld(async ({ holdfast }) => {
      const mail = holdfast.queue('mail')
      const { id: taken } = await mail.enqueue(1, { delay: '1h' })
      await mail.enqueue(2)
      const lease = await claimOne(holdfast, 'mail')
      await using watch = await begun(holdfast)
      const follow = { queue: 'post', payload: 1 }
      await rejects(lease.done(null, { enqueue: [follow, { ...follow, id: taken }] }), 'DUPLICATE_JOB_ID')
      await mail.enqueue(3)
      const seen = await next(watch, 2)
      assert.deepEqual(seen.map(shown), ['mail scheduled', 'mail ready'])
      assert.equal(seen[0]?.id, lease.job.id)
    }),
  )
}

function filterTests(inWorld: InWorld): void {
  test(
    'a watch can be filtered by queue, by states and by jobs',
    inWorld(async ({ holdfast }) => {
      const { id } = await holdfast.queue('mail').enqueue('watched')
      await using queue = await begun(holdfast, { queue: 'post' })
      await using states = await begun(holdfast, { states: ['done', 'deleted'] })
      await using ids = await begun(holdfast, { ids: [id.toUpperCase()] })
      await (await claimOne(holdfast, 'mail')).done()
      await holdfast.queue('post').enqueue(1)
      await holdfast.queue('mail').enqueue(2)
      await holdfast.deleteAll({ queue: 'post' })
      await holdfast.delete(id)
      assert.deepEqual((await next(queue, 2)).map(shown), ['post ready', 'post deleted'])
      assert.deepEqual((await next(states, 3)).map(shown), ['mail done', 'post deleted', 'mail deleted'])
      assert.deepEqual((await next(ids, 3)).map(shown), ['mail running', 'mail done', 'mail deleted'])
    }),
  )

  test(
    'an invalid filter is refused at once',
    inWorld(async ({ holdfast }) => {
      const bad: [unknown, string][] = [
        [{ queue: 'no good' }, 'INVALID_NAME'],
        [{ states: [] }, 'INVALID_OPTION'],
        [{ states: ['asleep'] }, 'INVALID_OPTION'],
        [{ states: 'done' }, 'INVALID_OPTION'],
        [{ ids: [] }, 'INVALID_OPTION'],
        [{ ids: ['x'] }, 'INVALID_ID'],
        [{ ids: Array.from({ length: 1_001 }, () => crypto.randomUUID()) }, 'INVALID_OPTION'],
        [{ after: 7 }, 'INVALID_OPTION'],
        [{ after: '1'.repeat(70_000) }, 'INVALID_OPTION'],
        [{ signal: 1 }, 'INVALID_OPTION'],
        [{ queues: ['mail'] }, 'INVALID_OPTION'],
        [null, 'INVALID_OPTION'],
      ]
      for (const [filter, code] of bad) assert.throws(() => holdfast.watch(filter as never), { code })
    }),
  )
}

function cursorTests(inWorld: InWorld): void {
  test(
    'a watch continues after any cursor, with no change twice or missing, also on another client',
    inWorld(async ({ holdfast, another }) => {
      const other = await another()
      await using watch = await begun(holdfast)
      const enqueue = (count: number) =>
        holdfast.queue('mail').enqueueMany(Array.from({ length: count }, (_, payload) => ({ payload })))
      await enqueue(5)
      await (await claimOne(holdfast, 'mail')).done()
      await holdfast.queue('post').enqueue(1, { delay: '1h' })
      await enqueue(2)
      const all = await next(watch, 10)
      await enqueue(1)
      for (const [i, { cursor }] of all.entries()) {
        await using resumed = other.watch({ after: cursor })
        const rest = await next(resumed, all.length - i)
        assert.deepEqual(
          rest.slice(0, -1).map(({ cursor: _, ...change }) => change),
          all.slice(i + 1).map(({ cursor: _, ...change }) => change),
        )
      }
      await using filtered = other.watch({ after: all[2]?.cursor as string, queue: 'post' })
      assert.deepEqual((await next(filtered, 1)).map(shown), ['post scheduled'])
    }),
  )

  test(
    'the cursor of a watch moves on also past changes that its filter leaves out',
    inWorld(async ({ holdfast, clock }) => {
      await using watch = await begun(holdfast, { queue: 'post' })
      const waits = watch.next()
      for (let n = 0; n < 8; n++) {
        const before = watch.cursor
        await holdfast.queue('mail').enqueue(n)
        while (watch.cursor === before) await new Promise((resolve) => setTimeout(resolve, 5))
        await clock.advance(minute / 2)
        await (await begun(holdfast)).return() // so that there is still a watcher
        await holdfast.sweep()
      }
      await holdfast.queue('post').enqueue('at last')
      assert.equal(shown((await waits).value as JobChange), 'post ready')
      await using resumed = holdfast.watch({ after: watch.cursor as string })
      await holdfast.queue('post').enqueue('once more')
      assert.deepEqual((await next(resumed, 1)).map(shown), ['post ready'])
    }),
  )

  test(
    'a cursor is refused after its changes were pruned, and after some time without a watcher',
    inWorld(async ({ holdfast, clock }) => {
      await using watch = await begun(holdfast)
      await holdfast.queue('mail').enqueue(1)
      const [change] = await next(watch, 1)
      const after = change?.cursor as string
      // An open transaction of another test on the same server keeps them for longer.
      const deadline = Date.now() + 30_000
      for (let n = 0; n < 10 || ((await isKept(holdfast, after)) && Date.now() < deadline); n++) {
        await clock.advance(minute / 2)
        await (await begun(holdfast)).return()
        await holdfast.queue('mail').enqueue(1)
        await holdfast.sweep()
      }
      const error = await rejects(holdfast.watch({ after }).next(), 'INVALID_OPTION', { option: 'after' })
      assert.match(error.message, /no longer kept.*Start a new watch/)

      await using fresh = await begun(holdfast)
      await holdfast.queue('mail').enqueue(1)
      const [last] = await next(fresh, 1)
      await clock.advance(2 * minute)
      await holdfast.queue('mail').enqueue('not watched')
      await rejects(fresh.next(), 'INVALID_OPTION', { option: 'after' })
      await rejects(holdfast.watch({ after: last?.cursor as string }).next(), 'INVALID_OPTION', { option: 'after' })
    }),
  )

  test(
    'an invalid cursor is refused',
    inWorld(async ({ holdfast }) => {
      await using watch = await begun(holdfast)
      const { cursor } = watch
      for (const after of ['', '1', 'x', `${cursor}9999999999`, '99999999.0', `${cursor?.replace(/\d/g, '9')}9999`]) {
        await rejects(holdfast.watch({ after }).next(), 'INVALID_OPTION', { option: 'after' })
      }
    }),
  )
}

function endTests(inWorld: InWorld): void {
  test(
    'a watch ends when its signal aborts, at return, and with close, also while it waits',
    inWorld(async ({ holdfast, another }) => {
      const end = { done: true, value: undefined }
      const controller = new AbortController()
      const aborted = await begun(holdfast, { signal: controller.signal })
      const returned = await begun(holdfast)
      const closed = await begun(holdfast)
      const waiting = [aborted, returned, closed].map((watch) => watch.next())
      controller.abort()
      assert.deepEqual(await waiting[0], end)
      assert.deepEqual(await returned.return(), end)
      assert.deepEqual(await waiting[1], end)
      await holdfast.close()
      assert.deepEqual(await waiting[2], end)
      for (const watch of [aborted, returned, closed]) assert.deepEqual(await watch.next(), end)
      await rejects(holdfast.watch().next(), 'CLOSED')
      await using again = await begun(await another(), { signal: AbortSignal.abort() })
      assert.deepEqual(await again.next(), end)
    }),
  )

  test(
    'a watch ends with close also while a worker is still stopping',
    inWorld(async ({ holdfast }) => {
      const started = Promise.withResolvers<void>()
      const finish = Promise.withResolvers<void>()
      holdfast.work('mail', async () => {
        started.resolve()
        await finish.promise
      })
      const watch = await begun(holdfast, { queue: 'post' })
      const waits = watch.next()
      await holdfast.queue('mail').enqueue(1)
      await started.promise
      const closed = holdfast.close()
      assert.deepEqual(await waits, { done: true, value: undefined })
      finish.resolve()
      await closed
    }),
  )

  test(
    'a client that opened the store read-only cannot watch, and the error says why',
    inWorld(async ({ holdfast, another }) => {
      await using watch = await begun(holdfast)
      const reader = await another({ readOnly: true })
      for (const filter of [{}, { after: watch.cursor as string }]) {
        const error = await rejects(reader.watch(filter).next(), 'UNSUPPORTED', { capability: 'write' })
        assert.match(error.message, /watch.*read-only/)
      }
    }),
  )
}

const goneMaxMs = 20_000

function tableTests(inSql: InSqlWorld, changes: (schema: string) => string): void {
  test(
    'without a watcher no change is written, and after a watcher was killed changes are written for two minutes',
    inSql(async ({ holdfast, clock, sql }) => {
      const kept = async () => (await sql.query(`select 1 from ${changes(sql.schema)}`)).length
      const work = async () => {
        await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2, delay: '1m' }])
        await (await claimOne(holdfast, 'mail')).done()
        await holdfast.deleteAll({ queue: 'mail' })
      }
      await work()
      assert.equal(await kept(), 0)
      await begun(holdfast) // its changes are never read
      await work()
      const rows = await kept()
      assert.ok(rows >= 5, `${rows} rows`)
      await clock.advance(2 * minute)
      await work()
      assert.equal(await kept(), rows)
      const pass = async (times: number) => {
        for (let n = 0; n < times; n++) {
          await clock.advance(minute / 2)
          await holdfast.sweep()
        }
      }
      await pass(20)
      // If others share the server, changes newer than their oldest transaction stay until that has ended.
      for (const deadline = Date.now() + goneMaxMs; (await kept()) > 0 && Date.now() < deadline; await sleep(20))
        await pass(20)
      assert.equal(await kept(), 0)
    }),
  )
}

function callerTests(inSql: InSqlWorld): void {
  test(
    'jobs of an application’s transaction are reported when it commits, however late, and not if it is rolled back',
    inSql(async ({ holdfast, sql }) => {
      const undone = await sql.begin()
      await holdfast.queue('mail').enqueue(1, { tx: undone.tx })
      await undone.rollback()
      await using watch = await begun(holdfast)
      const own = await sql.begin()
      const late = await holdfast.queue('late').enqueue(2, { tx: own.tx })
      await own.commit()
      assert.deepEqual(
        (await next(watch, 1)).map(({ id }) => id),
        [late.id],
      )
    }),
  )
}

export async function begun(holdfast: Holdfast, filter: WatchFilter = {}): Promise<Watch> {
  const watch = holdfast.watch(filter)
  await watch.begun
  return watch
}

async function next(watch: Watch, count: number): Promise<JobChange[]> {
  const changes: JobChange[] = []
  while (changes.length < count) {
    const { value, done } = await watch.next()
    if (done) assert.fail(`the watch ended after ${changes.length} changes`)
    changes.push(value)
  }
  return changes
}

function shown({ queue, state }: JobChange): string {
  return `${queue} ${state}`
}

async function isKept(holdfast: Holdfast, after: string): Promise<boolean> {
  const watch = holdfast.watch({ after })
  try {
    await watch.next()
    return true
  } catch {
    return false
  } finally {
    await watch.return()
  }
}
