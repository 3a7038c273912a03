import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Alarm } from '../../src/runtime/alarm.ts'
import { systemTimers } from '../../src/runtime/clock.ts'
import { VirtualTimers } from '../../src/testing/virtual-timers.ts'

function setup() {
  const timers = new VirtualTimers()
  const calls: number[] = []
  const alarm = new Alarm(timers, () => calls.push(timers.now()))
  return { timers, calls, alarm, advance: (ms: number) => timers.advance(ms, () => {}) }
}

test('an alarm calls once, at the earliest time that was asked for', () => {
  const { calls, alarm, advance } = setup()
  alarm.by(30)
  alarm.by(10)
  alarm.by(20)
  advance(100)
  assert.deepEqual(calls, [10])
})

test('asking for a later time, or for never, changes nothing and sets no timer', () => {
  const { timers, alarm } = setup()
  alarm.by(Number.POSITIVE_INFINITY)
  assert.equal(timers.nextAt, null)
  alarm.by(10)
  alarm.by(10)
  alarm.by(11)
  assert.equal(timers.nextAt, 10)
})

test('after its call an alarm can be set again, also from inside the call', () => {
  const timers = new VirtualTimers()
  const calls: number[] = []
  const alarm = new Alarm(timers, () => {
    calls.push(timers.now())
    if (calls.length < 3) alarm.by(timers.now() + 5)
  })
  alarm.by(5)
  timers.advance(100, () => {})
  assert.deepEqual(calls, [5, 10, 15])
})

test('a time in the past calls in the next turn of the event loop, not during `by`', async () => {
  const { calls, alarm, advance } = setup()
  advance(100)
  alarm.by(50)
  assert.deepEqual(calls, [])
  await new Promise((resolve) => setImmediate(resolve))
  assert.deepEqual(calls, [100])
})

test('a stopped alarm does not call, and can be set again', () => {
  const { calls, alarm, advance } = setup()
  alarm.by(10)
  alarm.stop()
  advance(20)
  alarm.by(30)
  advance(20)
  assert.deepEqual(calls, [30])
})

test('a time that is further away than a timer can wait does not call at once', async () => {
  let calls = 0
  const alarm = new Alarm(systemTimers, () => calls++)
  alarm.by(systemTimers.now() + 2 ** 40)
  await new Promise((resolve) => setTimeout(resolve, 5))
  alarm.stop()
  assert.equal(calls, 0)
})
