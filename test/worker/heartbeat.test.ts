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

test('who is told of a cancel while a check is under way checks again: the first may have looked too early', async () => {
  const { heartbeat, checks, aborted } = setup()
  heartbeat.check(null)
  heartbeat.check(null)
  heartbeat.check(null)
  assert.equal(checks.length, 1, 'one at a time')
  checks[0]?.resolve([false])
  await settle()
  assert.equal(checks.length, 2, 'one more for all who told')
  checks[1]?.resolve([true])
  assert.equal(await aborted, 'cancelled')
  await settle()
  assert.equal(checks.length, 2)
})

test('hints that name jobs are asked about one question at a time, however many come', async () => {
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

test('a store that says in the place of each renewal that it is away has not answered', async () => {
  const { heartbeat, timers, renewals, told } = setup()
  heartbeat.began(timers.now())
  for (let beat = 0; beat < 3; beat++) {
    timers.advance(leaseMs / 3, () => {})
    heartbeat.look(timers.now())
    renewals.at(-1)?.resolve([refuse('STORE_UNAVAILABLE', 'The file is locked.')])
    await settle()
  }
  assert.equal(renewals.length, 3)
  const failed = 'heartbeat.failed'
  assert.deepEqual(told, ['store.down', failed, failed, 'heartbeat.late', failed])
  timers.advance(leaseMs / 3, () => {})
  heartbeat.look(timers.now())
  renewals.at(-1)?.resolve([{ expiresAt: 0, cancelRequested: false }])
  await settle()
  assert.equal(told.at(-1), 'store.up')
})

test('more time for a run waits for the beat under way, and the next beat for it: neither lands behind the other', async () => {
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
  assert.equal(renewals.length, 2, 'no beat while it is given more')
  renewals[1]?.resolve(granted)
  await Promise.all([more, less])
  beat()
  await settle()
  assert.equal(renewals.length, 2, 'neither less nor a beat takes back what it was given')
})

test('renewals that are late by a third of the lease are told once, until they are in time again', async () => {
  const { heartbeat, timers, renewals, told } = setup()
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
  assert.deepEqual(told, ['heartbeat.late'])
  renewals.at(-1)?.resolve([{ expiresAt: 0, cancelRequested: false }])
  await settle()
  timers.advance(1_000, () => {})
  heartbeat.look(timers.now())
  assert.deepEqual([late()?.jobs ?? null, told], [1, ['heartbeat.late']], 'it was asked for too long ago')
  await settle()
  renewals.at(-1)?.resolve([{ expiresAt: 0, cancelRequested: false }])
  await settle()
})

/** Lets everything that waits for no timer happen. */
function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}

function setup() {
  const timers = new VirtualTimers()
  const events = new Events()
  const told: string[] = []
  events.onAll((name) => told.push(name))
  const aborted = Promise.withResolvers<string>()
  const claimed = { id: 'id', fence: 'fence', queue: 'tasks', attempt: 1 }
  const toRun = { state: 'running', abortKind: null, claimed, leaseMs, leaseUntil: leaseMs, abort: aborted.resolve }
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
  return { timers, told, heartbeat, run, checks, renewals, aborted: aborted.promise }
}

function askedFor<T>(questions: PromiseWithResolvers<T>[]): Promise<T> {
  const question = Promise.withResolvers<T>()
  questions.push(question)
  return question.promise
}
