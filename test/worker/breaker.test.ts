import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isHoldfastError } from '../../src/errors.ts'
import { Breaker, BreakerTripped } from '../../src/worker/breaker.ts'

test('the given number of failures in a row trips the breaker, and its signal has that number and the last error', () => {
  const breaker = new Breaker({ failures: 3 })
  const { signal } = breaker
  const last = new Error('no answer')
  assert.deepEqual([breaker.failure('one'), breaker.failure('two'), breaker.isTripped], [false, false, false])
  assert.equal(breaker.failure(last), true)
  assert.deepEqual([breaker.isTripped, signal.aborted], [true, true])
  assert.ok(signal.reason instanceof BreakerTripped)
  assert.deepEqual([signal.reason.failures, signal.reason.cause], [3, last])
  assert.match(signal.reason.message, /^Gave up after 3 failures in a row; the last one: no answer$/)
  assert.throws(() => breaker.throwIfTripped(), BreakerTripped)
})

test('ten failures trip it unless another number is given, and 0 means never', () => {
  const failuresUntilTripped = (breaker: Breaker) => {
    for (let count = 1; count <= 1_000; count++) if (breaker.failure('again')) return count
    return 'never'
  }
  assert.equal(failuresUntilTripped(new Breaker()), 10)
  assert.equal(failuresUntilTripped(new Breaker({ failures: 1 })), 1)
  assert.equal(failuresUntilTripped(new Breaker({ failures: 0 })), 'never')
})

test('one success starts the count again, but does not reset a tripped breaker', () => {
  const breaker = new Breaker({ failures: 2 })
  for (let round = 0; round < 5; round++) {
    assert.equal(breaker.failure('now and then'), false)
    breaker.success()
  }
  assert.equal(breaker.failuresInARow, 0)
  breaker.failure('one')
  breaker.failure('two')
  breaker.success()
  assert.deepEqual([breaker.isTripped, breaker.failuresInARow], [true, 2])
})

test('run returns or throws what the call did, until a failure trips the breaker; then it calls nothing any more', async () => {
  const breaker = new Breaker({ failures: 2 })
  assert.equal(await breaker.run(() => 7), 7)
  const error = new Error('gone')
  const fail = () => breaker.run(() => Promise.reject(error))
  await assert.rejects(fail, (thrown) => thrown === error)
  await assert.rejects(fail, (thrown) => thrown instanceof BreakerTripped && thrown.cause === error)
  let wasCalled = false
  await assert.rejects(
    breaker.run(() => {
      wasCalled = true
    }),
    BreakerTripped,
  )
  assert.equal(wasCalled, false)
})

test('calls that run when the breaker trips are aborted, and reject with BreakerTripped too', async () => {
  const breaker = new Breaker({ failures: 1 })
  const running = breaker.run(
    (signal) => new Promise((_, reject) => signal.addEventListener('abort', () => reject(new Error('aborted')))),
  )
  breaker.failure('from elsewhere')
  await assert.rejects(running, (thrown) => thrown instanceof BreakerTripped && thrown.cause === 'from elsewhere')
})

test('after a reset the count starts at 0, and calls that began before do not count', async () => {
  const breaker = new Breaker({ failures: 1 })
  const { promise, reject } = Promise.withResolvers<never>()
  const old = breaker.run(() => promise)
  const { signal } = breaker
  breaker.failure('trips')
  breaker.reset()
  assert.deepEqual([breaker.isTripped, breaker.failuresInARow, signal.aborted], [false, 0, true])
  reject(new Error('late'))
  await assert.rejects(old, BreakerTripped)
  assert.equal(breaker.isTripped, false)
})

test('any thrown value can be the last error', () => {
  for (const thrown of [undefined, null, Object.create(null), Symbol('s'), { toString: null }]) {
    const breaker = new Breaker({ failures: 1 })
    assert.equal(breaker.failure(thrown), true)
    assert.equal(breaker.signal.reason.cause, thrown)
  }
})

test('an invalid number of failures is refused', () => {
  for (const failures of [-1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, '3']) {
    const make = () => new Breaker({ failures: failures as number })
    assert.throws(make, (error) => isHoldfastError(error, 'INVALID_OPTION'))
  }
  const misspelt = { failure: 3 } as { failures?: number }
  assert.throws(
    () => new Breaker(misspelt),
    (error) => isHoldfastError(error, 'INVALID_OPTION'),
  )
})
