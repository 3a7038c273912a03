import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Alarm } from '../../src/runtime/alarm.ts'
import { systemTimers } from '../../src/runtime/clock.ts'
import { VirtualTimers } from '../../src/testing/virtual-timers.ts'

function setup() {
  const timers = new VirtualTimers()
  const rings: number[] = []
  const alarm = new Alarm(timers, () => rings.push(timers.now()))
  return { timers, rings, alarm, advance: (ms: number) => timers.advance(ms, () => {}) }
}

test('it rings once, at the earliest time anybody asked for', () => {
  const { rings, alarm, advance } = setup()
  alarm.by(30)
  alarm.by(10)
  alarm.by(20)
  advance(100)
  assert.deepEqual(rings, [10])
})

test('who asks for a later time, or for never, changes nothing and sets no timer', () => {
  const { timers, alarm } = setup()
  alarm.by(Number.POSITIVE_INFINITY)
  assert.equal(timers.nextAt, null)
  alarm.by(10)
  alarm.by(10)
  alarm.by(11)
  assert.equal(timers.nextAt, 10)
})

test('once it has rung it can be asked again, also by whom it rings for', () => {
  const timers = new VirtualTimers()
  const rings: number[] = []
  const alarm = new Alarm(timers, () => {
    rings.push(timers.now())
    if (rings.length < 3) alarm.by(timers.now() + 5)
  })
  alarm.by(5)
  timers.advance(100, () => {})
  assert.deepEqual(rings, [5, 10, 15])
})

test('a time that is over rings in the next turn of the event loop, not in the middle of the call', async () => {
  const { rings, alarm, advance } = setup()
  advance(100)
  alarm.by(50)
  assert.deepEqual(rings, [])
  await new Promise((resolve) => setImmediate(resolve))
  assert.deepEqual(rings, [100])
})

test('stopped, it forgets what it was asked for, and may be asked anew', () => {
  const { rings, alarm, advance } = setup()
  alarm.by(10)
  alarm.stop()
  advance(20)
  alarm.by(30)
  advance(20)
  assert.deepEqual(rings, [30])
})

test('a time further off than a timer can wait does not ring at once', async () => {
  let rings = 0
  const alarm = new Alarm(systemTimers, () => rings++)
  alarm.by(systemTimers.now() + 2 ** 40)
  await new Promise((resolve) => setTimeout(resolve, 5))
  alarm.stop()
  assert.equal(rings, 0)
})
