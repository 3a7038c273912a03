import assert from 'node:assert/strict'
import test from 'node:test'
import { pause } from '../../src/runtime/clock.ts'
import { openInMemory, VirtualClock } from '../../src/testing/index.ts'

test('time does not pass until it is moved: by a duration, by milliseconds, to a moment, and back', () => {
  const clock = new VirtualClock(new Date(1_000))
  assert.equal(clock.now(), 1_000)
  clock.advance('5m')
  clock.advance(500)
  assert.equal(clock.now(), 301_500)
  clock.advanceTo(new Date(400_000))
  clock.advanceTo(2)
  assert.equal(clock.now(), 400_000)
  clock.advance(-100_000)
  assert.equal(clock.now(), 300_000)
  assert.equal(new Float64Array(clock.shared)[0], 300_000)
})

test('invalid times are refused', () => {
  const clock = new VirtualClock()
  assert.throws(() => clock.advance('soon' as never), { code: 'INVALID_OPTION' })
  assert.throws(() => clock.advance(Number.NaN), { code: 'INVALID_OPTION' })
  assert.throws(() => clock.advanceTo(new Date(Number.NaN)), { code: 'INVALID_OPTION' })
  assert.throws(() => new VirtualClock(0, { timer: 'virtual' } as never), { code: 'INVALID_OPTION' })
  assert.throws(() => new VirtualClock(0, { timers: 'some' as never }), { code: 'INVALID_OPTION' })
})

test('timers are real by default', async () => {
  const { holdfast, clock } = await openInMemory({ startAt: 5 })
  assert.deepEqual([clock.now(), clock.timers], [5, undefined])
  await holdfast.close()
})

test('virtual timers fire in the order in which they are due, each at its time', () => {
  const clock = new VirtualClock(0, { timers: 'virtual' })
  const { timers } = clock
  assert.ok(timers)
  const called: [string, number, number][] = []
  const note = (name: string) => () => called.push([name, clock.now(), timers.now()])
  timers.after(30, note('third'))
  timers.after(10, () => {
    note('first')()
    timers.after(10, note('second'))
  })
  timers.after(30, note('fourth'))
  timers.after(20, note('called off'))()
  timers.after(31, note('not yet'))
  assert.equal(timers.nextAt, 10)
  clock.advance(30)
  assert.deepEqual(called, [
    ['first', 10, 10],
    ['second', 20, 20],
    ['third', 30, 30],
    ['fourth', 30, 30],
  ])
  assert.deepEqual([clock.now(), timers.nextAt], [30, 31])
})

test('a timer that is due at once fires without a move of the clock, and timers never go back', async () => {
  const clock = new VirtualClock(1_000, { timers: 'virtual' })
  const { timers } = clock
  assert.ok(timers)
  await pause(timers, 0)
  clock.advance(-500)
  assert.deepEqual([clock.now(), timers.now(), timers.nextAt], [500, 0, null])
})

test('a claim that waits for an hour ends when the clock has moved by an hour', async () => {
  const { holdfast, clock } = await openInMemory({ timers: 'virtual' })
  let isOver = false
  const claim = holdfast.claim(['jobs'], { wait: '1h' }).finally(() => {
    isOver = true
  })
  while (!isOver) {
    await new Promise((resolve) => setImmediate(resolve))
    clock.advance('10m')
  }
  assert.deepEqual(await claim, [])
  await holdfast.close()
})
