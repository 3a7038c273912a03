// Wake-ups across processes: a job that another process makes ready is claimed at once, and only as many claims wake as needed.
// Polling would find it after a second, so a median far below that shows that the wake-up worked.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { describe, type TestContext, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { systemClock } from '../../src/runtime/clock.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import { Looks } from '../../src/store/sqlite/wake.ts'
import type { ClaimRequest, Store } from '../../src/store/store.ts'
import { type JobsFile, jobsFile } from './jobs-file.ts'
import { machineMs, Program } from './process.ts'
import type { Answered, Command } from './programs/other.ts'
import { assertCountsEqualRecount } from './recount.ts'

const wait = '20s'
const promisedMs = 50
/** How often a waiting claim polls, without any wake-up. */
const pollMs = 1_000

describe('a waiting claim is woken from another process within 50 ms', () => {
  test('by an enqueue', async (t) => {
    await using file = await jobsFile()
    await using world = await setup(file)
    const tookMs: number[] = []
    for (let n = 0; n < 20; n++) tookMs.push(await world.pickUpMs({ enqueue: 1 }))
    t.diagnostic(`claimed after ${summary(tookMs)}`)
    assert.ok(median(tookMs) < promisedMs, `claimed after ${summary(tookMs)}`)
  })

  test('by a release', async () => {
    await using file = await jobsFile()
    await using world = await setup(file)
    const tookMs: number[] = []
    for (let n = 0; n < 7; n++) {
      await world.run({ enqueue: 1 })
      await world.run('claim')
      tookMs.push(await world.pickUpMs('release'))
    }
    assert.ok(median(tookMs) < promisedMs, `claimed after ${summary(tookMs)}`)
  })

  test('by a resume', async () => {
    await using file = await jobsFile()
    await using world = await setup(file)
    const tookMs: number[] = []
    for (let n = 0; n < 7; n++) {
      await world.holdfast.pause('mail')
      await world.run({ enqueue: 1 })
      tookMs.push(await world.pickUpMs('resume'))
    }
    assert.ok(median(tookMs) < promisedMs, `claimed after ${summary(tookMs)}`)
  })

  test('by a promotion', async () => {
    await using file = await jobsFile()
    await using world = await setup(file)
    const tookMs: number[] = []
    for (let n = 0; n < 7; n++) {
      await world.run({ enqueue: 1, delay: 100 })
      tookMs.push(await world.pickUpMs('promote'))
    }
    assert.ok(median(tookMs) < promisedMs, `claimed after ${summary(tookMs)}`)
  })
})

describe('a write is followed by looks', () => {
  /** When looks happened, in ms, for writes at these times. */
  const looksAt = (t: TestContext, { writesAt, untilMs }: { writesAt: readonly number[]; untilMs: number }) => {
    t.mock.timers.enable({ apis: ['setTimeout'] })
    const taken: number[] = []
    let now = 0
    const looks = new Looks(() => taken.push(now))
    for (; now <= untilMs; now++) {
      if (now > 0) t.mock.timers.tick(1)
      if (writesAt.includes(now)) looks.begin()
    }
    looks.end()
    return taken
  }

  test('further and further apart, and then by none', (t) => {
    assert.deepEqual(looksAt(t, { writesAt: [0], untilMs: 500 }), [1, 3, 7, 15, 31, 63, 127])
  })

  test('that start over with the next write', (t) => {
    assert.deepEqual(looksAt(t, { writesAt: [0, 40], untilMs: 60 }), [1, 3, 7, 15, 31, 41, 43, 47, 55])
  })

  test('that a constant stream of writes does not delay', (t) => {
    const taken = looksAt(t, { writesAt: Array.from({ length: 100 }, (_, i) => i), untilMs: 100 })
    assert.ok(taken.length >= 50, `looked ${taken.length} times in 100 ms`)
  })
})

test('a cancel request of another process reaches the store that holds the lease within 50 ms', async (t) => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const store = await sqlite({ path: file.path })({ clock: systemClock })
  await using other = await startOther(file)
  const notices = new EventTarget()
  store.subscribe({ onCancel: () => notices.dispatchEvent(new Event('cancel')) })
  const tookMs: number[] = []
  for (let n = 0; n < 7; n++) {
    await holdfast.queue('mail').enqueue(n)
    const [job] = await store.claim({ queues: ['mail'], max: 1, leaseMs: 60_000, worker: 'w' })
    const noticed = once(notices, 'cancel').then(machineMs)
    const { at } = await other.ask<Answered>({ cancel: job?.id ?? '' })
    tookMs.push(Math.max(0, (await noticed) - at))
    assert.deepEqual(await store.cancelRequested(job ? [job] : []), [true])
  }
  await store.close()
  t.diagnostic(`noticed after ${summary(tookMs)}`)
  assert.ok(median(tookMs) < promisedMs, `noticed after ${summary(tookMs)}`)
})

describe('as many claims are woken as there are jobs', () => {
  for (const producer of ['this process', 'another process']) {
    test(`one job from ${producer} makes one of ten waiting claims look, not all`, async () => {
      await using file = await jobsFile()
      await using world = await setup(file)
      for (let tries = 0; ; tries++) {
        const startedAt = performance.now()
        const { waits, claims, stop } = await world.waiters(10)
        const looks = claims.length
        if (producer === 'this process') await world.holdfast.queue('mail').enqueue(1)
        else await world.run({ enqueue: 1 })
        const [lease] = await Promise.race(waits)
        await world.holdfast.queues() // any other claim that was woken has looked by now
        await world.holdfast.queues()
        const got = await Promise.all(claims.slice(looks))
        const isInTime = performance.now() - startedAt < pollMs
        await stop()
        await lease?.done()
        if (!isInTime && tries < 5) continue // the machine was slow, and all claims looked because of the poll
        assert.deepEqual(got, [1], 'jobs got by each look after the first ones')
        break
      }
    })
  }

  test('ten jobs from another process reach ten waiting claims', async () => {
    await using file = await jobsFile()
    await using world = await setup(file)
    const startedAt = performance.now()
    const { waits } = await world.waiters(10)
    await world.run({ enqueue: 10 })
    const got = (await Promise.all(waits)).flat().map(({ job }) => job.payload)
    assert.deepEqual(got.sort(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert.ok(performance.now() - startedAt < 5 * pollMs)
  })

  test('if a woken claim takes a job of another queue, the job that it was woken for is still claimed', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    await holdfast.queue('first').enqueue(1)
    const [first] = await holdfast.claim(['first'])
    const abort = new AbortController()
    const waits: ReturnType<typeof holdfast.claim>[] = []
    for (const queues of [['mail', 'post'], ['post'], ['mail']]) {
      waits.push(holdfast.claim(queues, { wait, signal: abort.signal }))
      await holdfast.queues() // it waits by now, after the one before
    }
    const startedAt = performance.now()
    await first?.done(null, { enqueue: [{ queue: 'mail' }, { queue: 'post', priority: 0 }] })
    const [either, mail] = await Promise.all([waits[0], waits[2]])
    const tookMs = performance.now() - startedAt
    abort.abort()
    assert.deepEqual(await waits[1], [])
    assert.deepEqual(
      [either, mail].map((leases) => leases?.map(({ job }) => job.queue)),
      [['post'], ['mail']],
    )
    assert.ok(tookMs < pollMs / 2, `both were taken after ${tookMs} ms`)
  })

  test('a claim that loses the race waits for its full time, and returns nothing', async () => {
    await using file = await jobsFile()
    const clients = [await file.open(), await file.open()]
    await using other = await startOther(file)
    const startedAt = performance.now()
    const waits = clients.map(async (client) => {
      const leases = await client.claim(['mail'], { wait: 700 })
      return { got: leases.length, afterMs: performance.now() - startedAt }
    })
    await other.ask<Answered>({ enqueue: 1 })
    const [loser, winner] = (await Promise.all(waits)).sort((a, b) => a.got - b.got)
    assert.deepEqual([loser?.got, winner?.got], [0, 1])
    assert.ok((loser?.afterMs ?? 0) >= 690, `gave up after ${loser?.afterMs} ms`)
    assertCountsEqualRecount(file.raw())
  })
})

test('a claim returns nothing after its wait, and at once when its signal aborts', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const startedAt = performance.now()
  assert.deepEqual(await holdfast.claim(['mail'], { wait: 300 }), [])
  const tookMs = performance.now() - startedAt
  assert.ok(tookMs >= 295, `ended after ${tookMs} ms`)
  const abort = new AbortController()
  const claim = holdfast.claim(['mail'], { wait, signal: abort.signal })
  await holdfast.queues() // the claim has looked by now
  const abortedAt = performance.now()
  abort.abort()
  assert.deepEqual(await claim, [])
  assert.ok(performance.now() - abortedAt < pollMs / 2)
  assert.deepEqual(await holdfast.claim(['mail'], { wait, signal: AbortSignal.abort() }), [])
})

interface World extends AsyncDisposable {
  readonly holdfast: Holdfast
  /** The other process runs the command; resolves when it was answered. */
  run(what: Command): Promise<Answered>
  /** How long after the other process was answered a claim that waits here has the job. */
  pickUpMs(what: Command): Promise<number>
  /** This many claims that have looked and now wait, and the claims that the store received from the first look on. */
  waiters(count: number): Promise<Waiters>
}

interface Waiters {
  readonly waits: readonly ReturnType<Holdfast['claim']>[]
  /** How many jobs each claim of the store returned. */
  readonly claims: readonly Promise<number>[]
  stop(): Promise<void>
}

async function setup(file: JobsFile): Promise<World> {
  const counting = new EventTarget()
  let claims: Promise<number>[] = []
  const holdfast = await file.openThrough((store) =>
    overridden(store, (request) => {
      const answer = store.claim(request)
      claims.push(answer.then((jobs) => jobs.length))
      answer.finally(() => counting.dispatchEvent(new Event('claimed')))
      return answer
    }),
  )
  const other = await startOther(file)
  const run = (what: Command) => other.ask<Answered>(what)
  const waiters = async (count: number): Promise<Waiters> => {
    claims = []
    const mine = claims
    const abort = new AbortController()
    const waits = Array.from({ length: count }, () => holdfast.claim(['mail'], { wait, signal: abort.signal }))
    while (mine.length < count) await once(counting, 'claimed')
    await Promise.all(mine)
    await holdfast.queues() // the sweep after an empty look is over, too
    await holdfast.queues()
    const stop = async () => {
      abort.abort()
      await Promise.allSettled(waits)
    }
    return { waits, claims: mine, stop }
  }
  return {
    holdfast,
    run,
    waiters,
    async pickUpMs(what) {
      const { waits } = await waiters(1)
      const picked = waits[0]?.then(async ([lease]) => {
        const at = machineMs()
        await lease?.done()
        return at
      })
      const answered = await run(what)
      return Math.max(0, ((await picked) ?? Number.NaN) - answered.at)
    },
    [Symbol.asyncDispose]: () => other[Symbol.asyncDispose](),
  }
}

/** The store with another claim function. */
function overridden(store: Store, claim: (request: ClaimRequest) => ReturnType<Store['claim']>): Store {
  return new Proxy(store, {
    get(target, name) {
      if (name === 'claim') return claim
      const member: unknown = Reflect.get(target, name, target)
      return typeof member === 'function' ? member.bind(target) : member
    },
  })
}

async function startOther(file: JobsFile): Promise<Program> {
  const other = Program.start('other', file.path)
  await other.hear()
  return other
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? Number.NaN
}

function summary(values: readonly number[]): string {
  return `${values.map((ms) => ms.toFixed(1)).join(', ')} ms`
}
