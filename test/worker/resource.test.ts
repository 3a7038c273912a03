import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { isHoldfastError } from '../../src/errors.ts'
import { type ResourceOptions, ResourceRestarted, resource } from '../../src/index.ts'

/** A resource that is a number, counted up by each start; `log` records starts and stops. */
function setup(options: Partial<ResourceOptions<number>> = {}) {
  const log: string[] = []
  let started = 0
  const browser = resource<number>({
    start: () => {
      started += 1
      log.push(`start ${started}`)
      return started
    },
    stop: (it) => void log.push(`stop ${it}`),
    drain: '10s',
    backoff: { base: 1, max: 5 },
    ...options,
  })
  return { browser, log, isClosed: (error: unknown) => isHoldfastError(error, 'CLOSED') }
}

const failing = () => Promise.reject(new Error('crashed'))
const nextTurn = () => new Promise<void>((resolve) => setImmediate(resolve))

/** A user that holds the resource until `leave` is called. */
function longUser(browser: ReturnType<typeof setup>['browser']) {
  const entered = Promise.withResolvers<AbortSignal>()
  const { promise: left, resolve: leave } = Promise.withResolvers<void>()
  const ended = browser.use(async (_, signal) => {
    entered.resolve(signal)
    await left
  })
  return { entered: entered.promise, leave, ended }
}

test('the first use starts the resource, once for all uses in the same moment, and they share it', async () => {
  const { browser, log } = setup()
  assert.equal(browser.state, 'idle')
  const results = await Promise.all([1, 2, 3].map(() => browser.use((it) => it)))
  assert.deepEqual([results, log, browser.state], [[1, 1, 1], ['start 1'], 'healthy'])
  await browser.close()
  assert.deepEqual(log, ['start 1', 'stop 1'])
})

test('a restart waits for current users and makes new ones wait, and repeated calls are one restart', async () => {
  const { browser, log } = setup()
  const user = longUser(browser)
  const signal = await user.entered
  const restarts = [browser.restart(), browser.restart()]
  assert.equal(restarts[0], restarts[1])
  assert.equal(browser.state, 'draining')
  const parked = browser.use((it) => it)
  await nextTurn()
  assert.deepEqual([browser.health().users, browser.health().parked, log], [1, 1, ['start 1']])
  user.leave()
  await Promise.all([...restarts, user.ended])
  assert.deepEqual([await parked, log, signal.aborted], [2, ['start 1', 'stop 1', 'start 2'], true])
  assert.deepEqual([browser.state, browser.health().starts], ['healthy', 2])
  await browser.close()
})

test('the signal of a user that does not finish in time aborts, and the restart goes on without it', async () => {
  const { browser, log } = setup({ drain: 20 })
  const user = longUser(browser)
  const signal = await user.entered
  await browser.restart()
  assert.ok(signal.reason instanceof ResourceRestarted)
  assert.deepEqual(log, ['start 1', 'stop 1', 'start 2'])
  assert.equal(await browser.use((it) => it), 2)
  user.leave()
  await user.ended
  await browser.close()
})

test('the given number of failures in a row restarts it; a success starts the count again', async () => {
  const { browser, log } = setup({ restartAfterFailures: 2 })
  await assert.rejects(browser.use(failing), /crashed/)
  await browser.use(() => undefined)
  await assert.rejects(browser.use(failing), /crashed/)
  assert.deepEqual([browser.state, browser.health().failuresInARow], ['healthy', 1])
  await assert.rejects(browser.use(failing), /crashed/)
  assert.equal(await browser.use((it) => it), 2)
  assert.deepEqual(log, ['start 1', 'stop 1', 'start 2'])
  assert.match(String(browser.health().lastError), /crashed/)
  await browser.close()
})

test('with 0, no number of failures restarts it', async () => {
  const { browser, log } = setup({ restartAfterFailures: 0 })
  for (let n = 0; n < 20; n++) await assert.rejects(browser.use(failing), /crashed/)
  assert.deepEqual(log, ['start 1'])
  await browser.close()
})

test('a failure that is reported from before a restart does not restart it again', async () => {
  const { browser, log } = setup({ restartAfterFailures: 1, drain: 10 })
  const holder = await browser.acquire()
  await browser.restart()
  holder.failed(new Error('late'))
  holder.release()
  assert.deepEqual([browser.state, browser.health().failuresInARow], ['healthy', 0])
  assert.deepEqual(log, ['start 1', 'stop 1', 'start 2'])
  await browser.close()
})

test('a user that was aborted by its own signal does not count as failed', async () => {
  const { browser } = setup({ restartAfterFailures: 1 })
  const abort = new AbortController()
  const work = async (_: number, signal: AbortSignal) => {
    abort.abort(new Error('cancelled'))
    signal.throwIfAborted()
  }
  await assert.rejects(browser.use(work, { signal: abort.signal }), /cancelled/)
  assert.deepEqual([browser.state, browser.health().failuresInARow], ['healthy', 0])
  await browser.close()
})

test('an explicit holder is released at the end of its scope, once', async () => {
  const { browser } = setup({ restartAfterFailures: 5 })
  {
    await using holder = await browser.acquire()
    assert.deepEqual([holder.it, browser.health().users], [1, 1])
    holder.failed(new Error('one'))
    holder.failed(new Error('the same user'))
  }
  assert.deepEqual([browser.health().users, browser.health().failuresInARow], [0, 1])
  const holder = await browser.acquire()
  holder.release()
  holder.release()
  holder.failed(new Error('after the release'))
  assert.deepEqual([browser.health().users, browser.health().failuresInARow], [0, 0])
  await browser.close()
})

test('a stop that throws or hangs does not prevent the next start', async () => {
  const stops = [() => Promise.reject(new Error('stuck')), () => new Promise(() => {})]
  const { browser } = setup({ stopTimeout: 20, stop: () => stops.shift()?.() })
  assert.equal(await browser.use((it) => it), 1)
  await browser.restart()
  assert.match(String(browser.health().lastError), /stuck/)
  await browser.restart()
  assert.match(String(browser.health().lastError), /stop took longer than 20 ms/)
  assert.equal(await browser.use((it) => it), 3)
  await browser.close()
})

test('a start that fails, hangs or is unhealthy is tried again, and users wait meanwhile', async () => {
  const log: string[] = []
  let aborted: unknown
  let bringLate: (it: number) => void = () => {}
  const starts = [
    () => {
      throw new Error('no display')
    },
    (signal: AbortSignal) => {
      signal.addEventListener('abort', () => {
        aborted = signal.reason
      })
      return new Promise<number>((resolve) => {
        bringLate = resolve
      })
    },
    () => 3,
    () => 4,
  ]
  const browser = resource<number>({
    start: (signal) => (starts.shift() as (signal: AbortSignal) => number)(signal),
    stop: (it) => void log.push(`stop ${it}`),
    isHealthy: (it) => it !== 3,
    startTimeout: 20,
    backoff: { base: 1, max: 2 },
  })
  const [first, second] = await Promise.all([browser.use((it) => it), browser.use((it) => it)])
  assert.deepEqual([first, second, log], [4, 4, ['stop 3']])
  assert.match(String(aborted), /start took longer than 20 ms/)
  bringLate(2)
  await nextTurn()
  assert.deepEqual(log, ['stop 3', 'stop 2'], 'a start that succeeds too late is stopped')
  assert.deepEqual([browser.health().starts, browser.health().startFailuresInARow], [1, 0])
  await browser.close()
})

test('a resource that is not healthy, or whose health check throws, is restarted before the next use', async () => {
  let sick: number[] = []
  const checks: number[] = []
  const { browser, log } = setup({
    isHealthy: (it) => {
      checks.push(it)
      if (sick.includes(it) && it === 2) throw new Error('no pulse')
      return !sick.includes(it)
    },
  })
  assert.equal(await browser.use((it) => it), 1)
  sick = [1, 2]
  const checksBefore = checks.length
  assert.deepEqual(await Promise.all([1, 2, 3].map(() => browser.use((it) => it))), [3, 3, 3])
  assert.equal(checks.slice(checksBefore).filter((it) => it === 1).length, 1, 'uses in the same moment share a check')
  assert.deepEqual(log, ['start 1', 'stop 1', 'start 2', 'stop 2', 'start 3'])
  await browser.close()
})

test('a user that waits can stop waiting by its signal', async () => {
  const { browser } = setup({ start: () => new Promise<number>(() => {}) })
  const abort = new AbortController()
  const parked = browser.acquire({ signal: abort.signal })
  await nextTurn()
  assert.deepEqual([browser.state, browser.health().parked], ['starting', 1])
  abort.abort(new Error('enough'))
  await assert.rejects(parked, /enough/)
  assert.equal(browser.health().parked, 0)
  await assert.rejects(browser.acquire({ signal: AbortSignal.abort(new Error('before')) }), /before/)
  await browser.close()
})

test('close rejects waiting and later users, lets current ones finish, and stops the resource for good', async () => {
  const { browser, log, isClosed } = setup()
  const user = longUser(browser)
  await user.entered
  const restarting = browser.restart()
  const parked = browser.acquire()
  await nextTurn()
  const closing = browser.close()
  assert.equal(browser.close(), closing)
  await assert.rejects(parked, isClosed)
  await assert.rejects(browser.acquire(), isClosed)
  user.leave()
  await Promise.all([closing, user.ended, assert.rejects(restarting, isClosed)])
  await assert.rejects(browser.restart(), isClosed)
  assert.deepEqual([log, browser.state], [['start 1', 'stop 1'], 'closed'])
})

test('close aborts a start under way, and stops the resource if the start succeeds after all', async () => {
  const { promise, resolve } = Promise.withResolvers<number>()
  let startSignal: AbortSignal | undefined
  const { browser, log, isClosed } = setup({
    start: (signal) => {
      startSignal = signal
      return promise
    },
  })
  const parked = assert.rejects(browser.acquire(), isClosed)
  await browser.close()
  await parked
  assert.equal(startSignal?.aborted, true)
  resolve(9)
  await nextTurn()
  assert.deepEqual(log, ['stop 9'])
})

test('closing a resource that was never started does nothing', async () => {
  const { browser, log } = setup()
  await browser.close()
  assert.deepEqual([log, browser.state], [[], 'closed'])
})

test('under any mix of uses, failures and restarts, all users are served and never two instances run at once', async () => {
  let alive = 0
  let mostAlive = 0
  let served = 0
  let tries = 0
  let stops = 0
  const browser = resource<object>({
    start: async () => {
      await sleep(1)
      if (++tries % 3 === 0) throw new Error('no display')
      alive += 1
      mostAlive = Math.max(mostAlive, alive)
      return {}
    },
    stop: async () => {
      alive -= 1
      if (++stops % 3 === 0) throw new Error('stuck')
    },
    restartAfterFailures: 2,
    drain: 5,
    backoff: { base: 1, max: 2 },
  })
  const user = async () => {
    for (let n = 0; n < 20; n++) {
      await browser
        .use(async () => {
          await sleep(n % 7)
          served += 1
          if (served % 5 < 2) throw new Error('crashed')
        })
        .catch(() => undefined)
      if (served % 10 === 0) void browser.restart()
    }
  }
  await Promise.all(Array.from({ length: 8 }, user))
  await browser.close()
  assert.deepEqual([served, mostAlive, alive], [160, 1, 0])
  assert.ok(browser.health().starts > 1)
})

test('invalid options are refused', () => {
  const start = () => 1
  const bad = [
    {},
    { start: 1 },
    { start, stop: 'x' },
    { start, isHealthy: true },
    { start, drain: -1 },
    { start, drainMs: 5 },
    { start, startTimeout: 0 },
    { start, restartAfterFailures: 1.5 },
    { start, backoff: { factor: 3 } },
  ]
  for (const options of bad) {
    assert.throws(
      () => resource(options as unknown as ResourceOptions<number>),
      (error) => isHoldfastError(error, 'INVALID_OPTION'),
      JSON.stringify(options),
    )
  }
})
