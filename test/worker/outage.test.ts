import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HoldfastError } from '../../src/errors.ts'
import { Events } from '../../src/events.ts'
import { VirtualTimers } from '../../src/testing/virtual-timers.ts'
import { isOutage, Outage } from '../../src/worker/outage.ts'

const away = new HoldfastError('STORE_UNAVAILABLE', 'The store is away.')

function setup() {
  const timers = new VirtualTimers()
  const events = new Events()
  const emitted: string[] = []
  events.on('store.down', ({ by, error }) => emitted.push(`${by} down: ${error.message}`))
  events.on('store.up', ({ by, awayMs }) => emitted.push(`${by} up after ${awayMs}`))
  return { timers, emitted, outage: new Outage('w1', events, timers) }
}

/** Runs everything that waits for no timer. */
function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}

test('a call is repeated until it is answered, less and less often, and the outage is emitted once', async () => {
  const { timers, emitted, outage } = setup()
  const askedAt: number[] = []
  const answer = outage.survive(async () => {
    askedAt.push(timers.now())
    if (askedAt.length < 12) throw away
    return 'here'
  })
  for (let looks = 0; looks < 12; looks++) {
    await settle()
    if (looks === 3) assert.equal(outage.error, away)
    const waitMs = (timers.nextAt ?? timers.now()) - timers.now()
    timers.advance(waitMs, () => {})
  }
  assert.equal(await answer, 'here')
  const waits = askedAt.slice(1).map((at, i) => at - (askedAt[i] as number))
  for (const [i, waitMs] of waits.entries()) {
    const plain = Math.min(5_000, 50 * 2 ** i)
    assert.ok(waitMs >= plain * 0.75 && waitMs <= plain * 1.25, `wait ${i} was ${waitMs} ms`)
  }
  assert.deepEqual(emitted, ['w1 down: The store is away.', `w1 up after ${timers.now()}`])
  assert.equal(outage.error, null)
})

test('an error that is no outage is thrown at once, and emits nothing', async () => {
  const { emitted, outage } = setup()
  const wrong = new Error('permission denied')
  await assert.rejects(
    outage.survive(() => Promise.reject(wrong)),
    wrong,
  )
  assert.deepEqual(emitted, [])
  assert.deepEqual([isOutage(wrong), isOutage(away)], [false, true])
})

test('a store that refuses one call and answers others is reported once, and is back when that call is answered', async () => {
  const { timers, emitted, outage } = setup()
  const refused = new HoldfastError('STORE_UNAVAILABLE', 'It refuses to write.', { refuses: 'writes' })
  let tries = 0
  const settled = outage.survive(async () => {
    tries += 1
    if (tries < 4) throw refused
    return 'written'
  })
  for (let looks = 0; looks < 3; looks++) {
    await settle()
    assert.equal(await outage.survive(async () => 'read'), 'read')
    assert.equal(outage.error, refused)
    timers.advance((timers.nextAt ?? timers.now()) - timers.now(), () => {})
  }
  assert.equal(await settled, 'written')
  assert.deepEqual(emitted, ['w1 down: It refuses to write.', `w1 up after ${timers.now()}`])
})

test('a signal ends the wait: the call is made once more, and then the outage is thrown', async () => {
  const { outage } = setup()
  const stop = new AbortController()
  let asked = 0
  const answer = outage.survive(async () => {
    asked += 1
    throw away
  }, stop.signal)
  await settle()
  stop.abort()
  await assert.rejects(answer, away)
  assert.equal(asked, 2)
})

test('several callers emit one outage together', async () => {
  const { timers, emitted, outage } = setup()
  let isAway = true
  const ask = async () => {
    if (isAway) throw away
  }
  const both = Promise.all([outage.survive(ask), outage.survive(ask)])
  await settle()
  isAway = false
  timers.advance(100, () => {})
  await both
  assert.deepEqual(emitted, ['w1 down: The store is away.', 'w1 up after 100'])
})

test('a call that keeps failing while the store answers others is reported once, and so is its answer', async () => {
  const { timers, emitted, outage } = setup()
  let isAway = true
  // Each try takes a second, and other calls are answered meanwhile.
  const slow = outage.survive(async () => {
    await new Promise<void>((resolve) => timers.after(1_000, resolve))
    if (isAway) throw away
    return 'here'
  })
  for (let passed = 0; passed < 30_000; passed += 500) {
    timers.advance(500, () => {})
    await settle()
    assert.equal(await outage.survive(async () => 'read'), 'read')
    if (passed === 20_000) isAway = false
  }
  assert.equal(await slow, 'here')
  assert.deepEqual(
    emitted.map((line) => line.replace(/\d{4,}/, '…')),
    ['w1 down: The store is away.', 'w1 up after …'],
  )
})

test('a sweep that fails while the store answers other calls is reported once, and so is its recovery', async () => {
  const { timers, emitted, outage } = setup()
  const sweep = outage.repeated()
  for (let tries = 0; tries < 5; tries++) {
    const askedAt = timers.now()
    timers.advance(10, () => {})
    await outage.ask(async () => 'read')
    outage.failed(sweep, away, askedAt)
    timers.advance(1_000, () => {})
  }
  assert.deepEqual(emitted, ['w1 down: The store is away.'])
  outage.succeeded(sweep)
  assert.equal(emitted.length, 2)
})

test('a sweep that fails in a full outage is not reported a second time', async () => {
  const { timers, emitted, outage } = setup()
  const sweep = outage.repeated()
  for (let tries = 0; tries < 5; tries++) {
    await assert.rejects(outage.ask(() => Promise.reject(away)))
    outage.failed(sweep, away, timers.now())
    timers.advance(1_000, () => {})
  }
  await outage.ask(async () => 'read')
  assert.deepEqual(emitted, ['w1 down: The store is away.', 'w1 up after 5000'])
})
