// A settlement whose SQL effect waits keeps a job's row locked for long. Calls that need this row wait for it. All others of
// the lane go on: claims, enqueues and settlements.
import assert from 'node:assert/strict'
import test from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import type { Holdfast } from '../../src/holdfast.ts'
import { claimOne, heard, readJob, rejects } from '../conformance/expect.ts'
import { inWorld, until, useDatabase, type World } from './world.ts'

useDatabase()

/** A statement that waits until `letGo` is called. */
interface SlowEffect {
  readonly effects: { readonly sql: readonly { readonly text: string }[] }
  /** Resolves when it waits. */
  runs(): Promise<void>
  letGo(): Promise<void>
}

let locks = 0

async function slowEffect(world: World): Promise<SlowEffect> {
  const tx = await world.begin()
  locks += 1
  const lock = `pg_advisory_xact_lock(${process.pid}, ${locks})`
  await tx.run(`select ${lock}`)
  return {
    effects: { sql: [{ text: `select ${lock}` }] },
    runs: () => world.waiters(1, 0, lock),
    letGo: () => tx.commit(),
  }
}

/** The same for a statement that waits without a lock: sweeps and settlements leave one that waits for a lock for later. */
async function effectWithoutLock(world: World): Promise<SlowEffect> {
  locks += 1
  const name = `public.slow_${locks}`
  await world.rows(`create table ${name}_over (n int)`)
  await world.rows(`create function ${name}() returns void language plpgsql as $$ begin
    while not exists (select from ${name}_over) loop perform pg_sleep(0.01); end loop; end $$`)
  const text = `select ${name}()`
  const runs = `select from pg_stat_activity where state = 'active' and strpos(query, $1) = 1`
  return {
    effects: { sql: [{ text }] },
    runs: () => until(async () => (await world.rows(runs, [text])).length === 1, 'the statement runs'),
    letGo: async () => {
      await world.rows(`insert into ${name}_over values (1)`)
    },
  }
}

/** Job "slow" is being settled, and its row is locked. */
async function settling(world: World, id: string) {
  const slow = await effectWithoutLock(world)
  const lease = await claimOne(world.holdfast, 'mail')
  assert.equal(lease.job.id, id)
  const settled = lease.done('ok', slow.effects)
  await slow.runs()
  return { ...slow, settled }
}

/** Jobs of the lane are enqueued, claimed, settled and cancelled while the slow statement still waits. */
async function laneGoesOn(world: World, slow: SlowEffect): Promise<void> {
  const worker = await world.another()
  await worker.queue('mail').enqueue('next')
  const lease = await claimOne(worker, 'mail')
  assert.equal((await lease.done()).state, 'done')
  await worker.queue('mail').enqueue('later')
  const [later] = await worker.claim(['mail'])
  assert.equal(later?.job.payload, 'later')
  await later?.dead(new Error('no'))
  assert.equal(await worker.cancel((await worker.queue('mail').enqueue('last')).id), 'cancelled')
  await slow.runs()
}

/** Calls about the job while it is being settled, and their answers once the settlement has committed. */
const acts: Readonly<Record<string, { act(other: Holdfast, id: string): Promise<unknown>; answer: unknown }>> = {
  'a cancel': { act: (other, id) => other.cancel(id), answer: 'INVALID_STATE' },
  'a wake': { act: (other, id) => other.wake(id), answer: 'INVALID_STATE' },
  'a reschedule': { act: (other, id) => other.reschedule(id, new Date(Date.now() + 60_000)), answer: 'INVALID_STATE' },
  'a new priority': { act: (other, id) => other.reprioritise(id, 0), answer: 'INVALID_STATE' },
  'a change': { act: (other, id) => other.change(id, { payload: 'new' }), answer: 'INVALID_STATE' },
  'a requeue': { act: (other, id) => other.requeue(id), answer: 'INVALID_STATE' },
  'a deletion': {
    act: async (other, id) => {
      await other.delete(id)
      return (await other.job(id)) === null
    },
    answer: true,
  },
  'an enqueue that would replace it': {
    act: async (other, id) => {
      const { status, id: made } = await other.queue('mail').enqueue('new', { dedup: { key: 'k', replace: true } })
      return [status, made === id]
    },
    answer: ['created', false],
  },
  'a cancel of all jobs': {
    act: async (other) => {
      await other.queue('mail').enqueueMany([1, 2].map((payload) => ({ payload })))
      const { changed, skipped } = await other.cancelAll({ queue: 'mail' })
      return [changed, skipped]
    },
    answer: [2, []],
  },
  'a dry run of a cancel of all jobs': {
    act: async (other) => (await other.cancelAll({ queue: 'mail' }, { dryRun: true })).changed,
    answer: 1,
  },
  'a deletion of all jobs': {
    act: async (other, id) => {
      await other.queue('mail').enqueueMany([1, 2].map((payload) => ({ payload })))
      const { changed, skipped } = await other.deleteAll({ queue: 'mail' })
      return [changed, skipped.map(({ reason, ids }) => [reason, ids[0] === id])]
    },
    answer: [2, [['running', true]]],
  },
  'many cancels at once': {
    act: async (other, id) => {
      const ids = [(await other.queue('mail').enqueue('beside', { delay: '1h' })).id, id]
      const outcomes = await Promise.allSettled(ids.map((each) => other.cancel(each)))
      return outcomes.map((outcome) => (outcome.status === 'rejected' ? outcome.reason.code : outcome.value))
    },
    answer: ['cancelled', 'INVALID_STATE'],
  },
}

for (const [what, { act, answer }] of Object.entries(acts)) {
  test(
    `${what} of a job that is being settled does not block its lane, and is answered correctly afterwards`,
    inWorld(async (world) => {
      const id = await world.enqueue('mail', 'slow', { dedup: { key: 'k' } })
      const slow = await settling(world, id)
      let isAnswered = false
      const acted = act(await world.another(), id).then(
        (value) => value,
        (error) => error.code,
      )
      acted.then(() => {
        isAnswered = true
      })
      const waits = async () => (await waitingForRows(world)) > 0 || (await world.hasGivenUp())
      await until(async () => isAnswered || (await waits()), 'the call waits, or was answered')
      await laneGoesOn(world, slow)
      await slow.letGo()
      assert.equal((await slow.settled).state, 'done')
      assert.deepEqual(await acted, answer)
    }),
  )
}

async function waitingForRows(world: World): Promise<number> {
  const [row] = await world.rows(
    `select count(*)::int as n from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
  )
  return row?.['n'] as number
}

test(
  'a cancel that waited for a settlement that snoozes or retries the job cancels it',
  inWorld(async (world) => {
    const id = await world.enqueue('mail', 'slow')
    const slow = await effectWithoutLock(world)
    const lease = await claimOne(world.holdfast, 'mail')
    const broken = { sql: [...slow.effects.sql, { text: 'select 1 / 0' }] }
    const settled = rejects(lease.done(null, broken), 'INVALID_OPTION')
    await slow.runs()
    const cancelled = (await world.another()).cancel(id)
    await until(() => world.hasGivenUp(), 'the cancel has met the locked row')
    await slow.letGo()
    await settled
    assert.equal(await cancelled, 'cancelled')
    assert.equal((await readJob(world.holdfast, id)).state, 'cancelled')
  }),
)

test(
  'a cancel of all jobs that waited for a settlement that retries its job cancels it',
  inWorld(async (world) => {
    const id = await world.enqueue('mail', 'slow')
    const slow = await effectWithoutLock(world)
    const lease = await claimOne(world.holdfast, 'mail')
    const broken = { sql: [...slow.effects.sql, { text: 'select 1 / 0' }] }
    const settled = rejects(lease.done(null, broken), 'INVALID_OPTION')
    await slow.runs()
    await world.enqueue('mail', 'other')
    const cancelled = (await world.another()).cancelAll({ queue: 'mail' })
    await until(() => world.hasGivenUp(), 'the cancel has met the locked row')
    await slow.letGo()
    await settled
    const { changed, requested } = await cancelled
    assert.deepEqual([changed, requested], [2, 0])
    assert.equal((await readJob(world.holdfast, id)).state, 'cancelled')
  }),
)

test(
  'while a cancel of a batch waits for an item that is being settled, its other items settle',
  inWorld(async (world) => {
    const items = [{ queue: 'mail', payload: 'slow' }, ...[1, 2].map((payload) => ({ queue: 'mail', payload }))]
    const batch = await world.holdfast.batch({ name: 'letters', concurrency: 2 }, items)
    const slow = await slowEffect(world)
    const other = await world.another()
    const first = await claimOne(world.holdfast, 'mail')
    const second = await claimOne(other, 'mail')
    const settled = first.done('ok', slow.effects)
    await slow.runs()
    await (await other.getBatch(batch.id))?.cancel()
    assert.equal((await second.retry(new Error('no'))).state, 'cancelled')
    await slow.letGo()
    assert.equal((await settled).state, 'done')
    await world.holdfast.sweep()
    const { state, done, cancelled } = await batch.progress()
    assert.deepEqual([state, done, cancelled], ['cancelled', 1, 2])
  }),
)

test(
  'a cancel of a scheduled job does not block a lane while its effects run',
  inWorld(async (world) => {
    const id = await world.enqueue('mail', 'later', { delay: '1h' })
    const slow = await slowEffect(world)
    const cancelled = (await world.another()).cancel(id, { effects: slow.effects })
    await slow.runs()
    await laneGoesOn(world, slow)
    await slow.letGo()
    assert.equal(await cancelled, 'cancelled')
  }),
)

test(
  'an accept does not block a lane while its effects run',
  inWorld(async (world) => {
    await world.enqueue('mail', 'letter')
    const snoozed = heard(world.holdfast, 'job.snoozed')
    const worker = world.holdfast.work('mail', (job) => job.offer('letter', { inbox: 'read' }))
    await snoozed
    await worker.stop()
    const [pickup] = await Array.fromAsync(world.holdfast.inbox('read'))
    const slow = await slowEffect(world)
    const accepted = pickup?.accept('ok', { effects: slow.effects })
    await slow.runs()
    await laneGoesOn(world, slow)
    await slow.letGo()
    await accepted
    assert.equal((await readJob(world.holdfast, pickup?.id ?? '')).state, 'done')
  }),
)

test(
  'a sweep that runs the effects of a requested cancel does not block a lane, also if jobs have missed their start',
  inWorld(async (world) => {
    const id = await world.enqueue('mail', 'slow')
    await claimOne(world.holdfast, 'mail', { lease: 1 })
    const slow = await effectWithoutLock(world)
    await world.holdfast.cancel(id, { effects: slow.effects })
    await world.holdfast.pause('mail')
    const late = await world.enqueue('mail', 'late', { startBefore: new Date(Date.now() + 50) })
    await until(() => isOver(world, late), 'it has missed its start')
    await world.holdfast.resume('mail')
    const swept = (await world.another()).sweep()
    await slow.runs()
    await laneGoesOn(world, slow)
    await slow.letGo()
    assert.equal((await swept).rescued, 1)
    assert.equal((await readJob(world.holdfast, id)).error?.name, 'LeaseExpired')
    assert.equal((await readJob(world.holdfast, late)).state, 'cancelled')
  }),
)

async function isOver(world: World, id: string): Promise<boolean> {
  const [row] = await world.rows(
    'select start_before <= holdfast.now_ms(null) as over from holdfast.job where id = $1',
    [id],
  )
  return row?.['over'] === true
}

/** Calls that need the row of a job which an open transaction has locked. */
const callers: Readonly<Record<string, (holdfast: Holdfast, id: string) => Promise<unknown>>> = {
  cancel: (holdfast, id) => holdfast.cancel(id),
  wake: (holdfast, id) => holdfast.wake(id),
  change: (holdfast, id) => holdfast.change(id, { payload: 2 }),
  reschedule: (holdfast, id) => holdfast.reschedule(id, new Date(Date.now() + 60_000)),
  reprioritise: (holdfast, id) => holdfast.reprioritise(id, 1),
  delete: (holdfast, id) => holdfast.delete(id),
  cancelAll: (holdfast) => holdfast.cancelAll({ queue: 'mail' }),
  deleteAll: (holdfast) => holdfast.deleteAll({ queue: 'mail' }),
  rescheduleAll: (holdfast) => holdfast.rescheduleAll({ queue: 'mail' }, { delay: '1h' }),
  reprioritiseAll: (holdfast) => holdfast.reprioritiseAll({ queue: 'mail' }, 1),
}

for (const [name, call] of Object.entries(callers)) {
  test(
    `calls that wait for a locked job have no connection meanwhile: ${name}`,
    inWorld(async (world) => {
      const id = await world.enqueue('mail', 1, { delay: '1h' })
      const tx = await world.begin()
      await tx.run('select from holdfast.job where id = $1 for update', [id])
      const other = await world.another({ max: 3 })
      const calls = Array.from({ length: 6 }, () => call(other, id))
      const settled = Promise.allSettled(calls)
      for (let n = 0; n < 20; n++) {
        const late = delay(5_000, undefined, { ref: false }).then(() =>
          assert.fail('an enqueue beside is not answered'),
        )
        await Promise.race([other.queue('other').enqueue(n), late])
      }
      const waiting = `select query from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`
      assert.deepEqual(await world.rows(waiting), [])
      await tx.commit()
      const [first] = (await settled).filter(({ status }) => status === 'fulfilled')
      assert.ok(first, 'one of them was carried out')
    }),
  )
}
