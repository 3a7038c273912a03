import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Waiters } from '../../src/client/waiters.ts'

test('a wake-up for one job wakes one waiter, the oldest for that queue', () => {
  const waiters = new Waiters()
  const [other, first, second] = [waiters.join(['post']), waiters.join(['mail']), waiters.join(null)]
  waiters.wake('mail', 1)
  assert.deepEqual([other.woken, first.woken, second.woken], [false, true, false])
})

test('a waiter that was woken early is not woken again for the same job', () => {
  const waiters = new Waiters()
  const [first, second] = [waiters.join(['mail']), waiters.join(['mail'])]
  assert.equal(waiters.wakeEarly('mail', 1), 1)
  waiters.wake('mail', 1)
  assert.deepEqual([first.woken, second.woken], [true, false])
})

test('after an enqueue that created no job, the next wake-up counts in full', () => {
  const waiters = new Waiters()
  const [, second] = [waiters.join(['mail']), waiters.join(['mail'])]
  waiters.forgetEarly('mail', waiters.wakeEarly('mail', 1))
  waiters.wake('mail', 1)
  assert.equal(second.woken, true)
})

test('a wake-up that is passed on reaches the next waiter, although another was woken early', () => {
  const waiters = new Waiters()
  const [first, second] = [waiters.join(['mail']), waiters.join(['mail'])]
  waiters.wakeEarly('mail', 1)
  waiters.passOn(first.takeWakeUp())
  assert.equal(second.woken, true)
  assert.equal(first.takeWakeUp(), null)
})
