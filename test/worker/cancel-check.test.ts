import assert from 'node:assert/strict'
import { test } from 'node:test'
import { systemTimers } from '../../src/clock.ts'
import { Events } from '../../src/events.ts'
import { Heartbeat } from '../../src/worker/heartbeat.ts'
import { Outage } from '../../src/worker/outage.ts'
import type { Run } from '../../src/worker/run.ts'

test('who is told of a cancel while a check is under way checks again: the first may have looked too early', async () => {
  const { heartbeat, checks, aborted } = setup()
  heartbeat.check(null)
  heartbeat.check(null)
  heartbeat.check(null)
  assert.equal(checks.length, 1, 'one at a time')
  checks[0]?.resolve([false])
  await new Promise(setImmediate)
  assert.equal(checks.length, 2, 'one more for all who told')
  checks[1]?.resolve([true])
  assert.equal(await aborted, 'cancelled')
  await new Promise(setImmediate)
  assert.equal(checks.length, 2)
})

function setup() {
  const events = new Events()
  const aborted = Promise.withResolvers<string>()
  const claimed = { id: 'id', fence: 'fence', queue: 'tasks', attempt: 1 }
  const run = { state: 'running', abortKind: null, claimed, abort: aborted.resolve } as unknown as Run
  const checks: PromiseWithResolvers<boolean[]>[] = []
  const desk = {
    worker: 'worker',
    events,
    timers: systemTimers,
    outage: new Outage('worker', events, systemTimers),
    renew: () => Promise.reject(new Error('nothing is renewed here')),
    cancelRequested() {
      const check = Promise.withResolvers<boolean[]>()
      checks.push(check)
      return check.promise
    },
    lookBy() {},
    fail: aborted.reject,
  }
  return { heartbeat: new Heartbeat(desk, new Set([run]), 30_000), checks, aborted: aborted.promise }
}
