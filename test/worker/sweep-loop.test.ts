import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HoldfastError } from '../../src/errors.ts'
import { Events } from '../../src/events.ts'
import type { Store, SweepReport } from '../../src/store/store.ts'
import { SweepLoop } from '../../src/sweep/sweep-loop.ts'
import { Sweeper } from '../../src/sweep/sweeper.ts'
import { VirtualTimers } from '../../src/testing/virtual-timers.ts'

/** A loop over a store that only sweeps: every sweep is recorded and answered as the test says. */
function setup() {
  const timers = new VirtualTimers()
  const sweptAt: number[] = []
  const answers: Partial<SweepReport>[] = []
  const nothing = {
    rescued: 0,
    promoted: 0,
    overdue: 0,
    admitted: 0,
    pruned: 0,
    more: false,
    nextDueAt: null,
    now: 0,
    expired: [],
  }
  const broken: { error: Error | null } = { error: null }
  const store = {
    sweep: async () => {
      sweptAt.push(timers.now())
      if (broken.error) throw broken.error
      return { ...nothing, ...answers.shift() }
    },
  } as unknown as Store
  const sweeper = new Sweeper(store, new Events(), { timers, random: Math.random })
  const loop = new SweepLoop(sweeper, timers)
  /** In steps, so that sweeps are answered in between. */
  const advance = async (ms: number, step = 5) => {
    await settle()
    for (let passed = 0; passed < ms; passed += step) {
      timers.advance(Math.min(step, ms - passed), () => {})
      await settle()
    }
  }
  return { timers, sweptAt, answers, broken, sweeper, loop, advance }
}

function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}

function unexpected(error: unknown): void {
  throw error
}

test('the loop sweeps at once, about once a second after that, and not without a worker', async () => {
  const { sweptAt, loop, advance } = setup()
  await advance(3_000, 100)
  assert.deepEqual(sweptAt, [])
  const leave = loop.join({ fail: unexpected })
  assert.equal(loop.isRunning, true)
  await advance(5_000, 100)
  assert.ok(sweptAt.length >= 5 && sweptAt.length <= 7, String(sweptAt))
  leave()
  assert.equal(loop.isRunning, false)
  const before = sweptAt.length
  await advance(5_000, 100)
  assert.equal(sweptAt.length, before)
})

test('several workers share one loop, which ends with the last of them; leaving twice is leaving once', async () => {
  const { sweptAt, loop, advance } = setup()
  const leaveFirst = loop.join({ fail: unexpected })
  const leaveSecond = loop.join({ fail: unexpected })
  await advance(0)
  await settle()
  assert.equal(sweptAt.length, 1)
  leaveFirst()
  leaveFirst()
  assert.equal(loop.isRunning, true)
  await advance(1_200, 100)
  assert.equal(sweptAt.length, 2)
  leaveSecond()
  assert.equal(loop.isRunning, false)
})

test('the loop sweeps when the store says that a job is due, and earlier if a job was enqueued that is due sooner', async () => {
  const { sweptAt, answers, sweeper, loop, advance, timers } = setup()
  answers.push({ nextDueAt: 300, now: 0 })
  const leave = loop.join({ fail: unexpected })
  await advance(290)
  assert.equal(sweptAt.length, 1)
  await advance(20)
  assert.equal(sweptAt.length, 2)
  const at = timers.now()
  sweeper.expect(50)
  await advance(60)
  assert.equal(sweptAt.length, 3)
  assert.ok((sweptAt[2] as number) - at <= 55)
  leave()
})

test('while the store has more to sweep the loop goes on, with a pause in between', async () => {
  const { sweptAt, answers, loop, advance } = setup()
  answers.push({ more: true }, { more: true }, { more: false })
  const leave = loop.join({ fail: unexpected })
  await advance(50)
  assert.deepEqual(sweptAt, [0, 10, 20])
  leave()
})

test('in an outage the loop keeps the error until a sweep succeeds, and tries every second', async () => {
  const { sweptAt, broken, loop, advance } = setup()
  broken.error = new HoldfastError('STORE_UNAVAILABLE', 'The store is away.')
  const leave = loop.join({ fail: unexpected })
  await advance(3_500, 100)
  assert.ok(sweptAt.length >= 3, String(sweptAt))
  assert.equal(loop.error?.message, 'The store is away.')
  broken.error = null
  await advance(1_500, 100)
  assert.equal(loop.error, null)
  leave()
})

test('an error that is no outage fails every worker, once, and nothing is swept until one joins again', async () => {
  const { sweptAt, broken, loop, advance } = setup()
  broken.error = new Error('permission denied')
  const failures: unknown[] = []
  const leaves = [1, 2].map(() => loop.join({ fail: (error) => failures.push(error) }))
  await advance(5_000, 100)
  assert.deepEqual(failures, [broken.error, broken.error])
  assert.equal(sweptAt.length, 1)
  assert.equal(loop.error, broken.error)
  for (const leave of leaves) leave()
  broken.error = null
  const leave = loop.join({ fail: unexpected })
  await advance(1_500, 100)
  assert.equal(loop.error, null)
  leave()
  await loop.idle()
})
