import assert from 'node:assert/strict'
import { test } from 'node:test'
import { refuse } from '../../src/errors.ts'
import { Events } from '../../src/events.ts'
import type { RenewAnswer } from '../../src/store/store.ts'
import { VirtualTimers } from '../../src/testing/virtual-timers.ts'
import { Heartbeat } from '../../src/worker/heartbeat.ts'
import { Outage } from '../../src/worker/outage.ts'
import type { Run } from '../../src/worker/run.ts'

const leaseMs = 30_000

test('a cancel hint during a check leads to one more check, because the first may have read too early', async () => {
  const { heartbeat, checks, aborted } = setup()
  heartbeat.check(null)
  heartbeat.check(null)
  heartbeat.check(null)
  assert.equal(checks.length, 1, 'one at a time')
  checks[0]?.resolve([false])
  await settle()
  assert.equal(checks.length, 2, 'one more for all hints')
  checks[1]?.resolve([true])
  assert.equal(await aborted, 'cancelled')
  await settle()
  assert.equal(checks.length, 2)
})

test('hints that name jobs are checked one call at a time, however many come', async () => {
  const { heartbeat, checks, aborted } = setup()
  for (let i = 0; i < 1_000; i++) heartbeat.check(['id'])
  assert.equal(checks.length, 1, 'one at a time')
  checks[0]?.resolve([false])
  await settle()
  assert.equal(checks.length, 2, 'one more for all that came meanwhile')
  heartbeat.check(['another'])
  checks[1]?.resolve([true])
  assert.equal(await aborted, 'cancelled')
  await settle()
  assert.equal(checks.length, 2)
})

test('a store that answers STORE_UNAVAILABLE for each renewal counts as away', async () => {
  const { heartbeat, timers, renewals, emitted } = setup()
  heartbeat.began(timers.now())
  for (let beat = 0; beat < 3; beat++) {
    timers.advance(leaseMs / 3, () => {})
    heartbeat.look(timers.now())
    renewals.at(-1)?.resolve([refuse('STORE_UNAVAILABLE', 'The file is locked.')])
    await settle()
  }
  assert.equal(renewals.length, 3)
  const failed = 'heartbeat.failed'
  assert.deepEqual(emitted, ['store.down', failed, failed, 'heartbeat.late', failed])
  timers.advance(leaseMs / 3, () => {})
  heartbeat.look(timers.now())
  renewals.at(-1)?.resolve([{ expiresAt: 0, cancelRequested: false }])
  await settle()
  assert.equal(emitted.at(-1), 'store.up')
})

test('an extension waits for the beat in flight, and the next beat waits for it, so neither undoes the other', async () => {
  const { heartbeat, timers, renewals, run } = setup()
  const granted = [{ expiresAt: 0, cancelRequested: false }]
  const beat = () => {
    timers.advance(leaseMs / 3, () => {})
    heartbeat.look(timers.now())
  }
  heartbeat.began(timers.now())
  beat()
  const more = heartbeat.renew(run, 10 * leaseMs)
  const less = heartbeat.renew(run, 2 * leaseMs)
  await settle()
  assert.equal(renewals.length, 1, 'the beat is under way')
  renewals[0]?.resolve(granted)
  await settle()
  beat()
  await settle()
  assert.equal(renewals.length, 2, 'no beat during the extension')
  renewals[1]?.resolve(granted)
  await Promise.all([more, less])
  beat()
  await settle()
  assert.equal(renewals.length, 2, 'neither a shorter extension nor a beat shortens the lease')
})

test('renewals that are late by a third of the lease emit one event, until they are in time again', async () => {
  const { heartbeat, timers, renewals, emitted } = setup()
  heartbeat.began(timers.now())
  const late = () => heartbeat.late(timers.now())
  for (let second = 1; second <= 20; second++) {
    timers.advance(1_000, () => {})
    heartbeat.look(timers.now())
    assert.equal(late(), null, `after ${second} s`)
  }
  for (let second = 21; second <= 31; second++) {
    timers.advance(1_000, () => {})
    heartbeat.look(timers.now())
    assert.deepEqual(late(), { jobs: 1, leftMs: Math.max(0, leaseMs - 1_000 * second) })
  }
  assert.deepEqual(emitted, ['heartbeat.late'])
  renewals.at(-1)?.resolve([{ expiresAt: 0, cancelRequested: false }])
  await settle()
  timers.advance(1_000, () => {})
  heartbeat.look(timers.now())
  assert.deepEqual([late()?.jobs ?? null, emitted], [1, ['heartbeat.late']], 'the call was made too long ago')
  await settle()
  renewals.at(-1)?.resolve([{ expiresAt: 0, cancelRequested: false }])
  await settle()
})

/** Runs everything that waits for no timer. */
function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}

function setup() {
  const timers = new VirtualTimers()
  const events = new Events()
  const emitted: string[] = []
  events.onAll((name) => emitted.push(name))
  const aborted = Promise.withResolvers<string>()
  const claimed = { id: 'id', fence: 'fence', queue: 'tasks', attempt: 1 }
  const toRun = {
    isUnderWay: true,
    state: 'running',
    abortKind: null,
    claimed,
    leaseMs,
    leaseUntil: leaseMs,
    abort: aborted.resolve,
  }
  const checks: PromiseWithResolvers<boolean[]>[] = []
  const renewals: PromiseWithResolvers<RenewAnswer[]>[] = []
  const context = {
    ...{ worker: 'worker', events, timers, outage: new Outage('worker', events, timers) },
    renew: () => askedFor(renewals),
    cancelRequested: () => askedFor(checks),
    lookBy() {},
    fail: aborted.reject,
  }
  const run = toRun as unknown as Run
  const heartbeat = new Heartbeat(context, new Set([run]), () => leaseMs)
  return { timers, emitted, heartbeat, run, checks, renewals, aborted: aborted.promise }
}

function askedFor<T>(questions: PromiseWithResolvers<T>[]): Promise<T> {
  const question = Promise.withResolvers<T>()
  questions.push(question)
  return question.promise
}
