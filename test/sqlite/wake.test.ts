// Wake-ups across processes: what another process makes ready is picked up at once, by as many as there is work for.
// The backstop poll comes after a second, so a median far below that shows that the wake-up did it.
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
import type { Answered, Told } from './programs/other.ts'
import { assertCountsEqualRecount } from './recount.ts'

const wait = '20s'
const promisedMs = 50
/** How long a waiter goes without looking, whatever wake-ups say. */
const backstopMs = 1_000

describe('a claim that waits is woken from another process within 50 ms', () => {
  test('by an enqueue', async (t) => {
    await using file = await jobsFile()
    await using world = await setup(file)
    const tookMs: number[] = []
    for (let n = 0; n < 20; n++) tookMs.push(await world.pickUpMs({ enqueue: 1 }))
    t.diagnostic(`picked up after ${told(tookMs)}`)
    assert.ok(median(tookMs) < promisedMs, `picked up after ${told(tookMs)}`)
  })

  test('by a release', async () => {
    await using file = await jobsFile()
    await using world = await setup(file)
    const tookMs: number[] = []
    for (let n = 0; n < 7; n++) {
      await world.tell({ enqueue: 1 })
      await world.tell('claim')
      tookMs.push(await world.pickUpMs('release'))
    }
    assert.ok(median(tookMs) < promisedMs, `picked up after ${told(tookMs)}`)
  })

  test('by a resume', async () => {
    await using file = await jobsFile()
    await using world = await setup(file)
    const tookMs: number[] = []
    for (let n = 0; n < 7; n++) {
      await world.holdfast.pause('mail')
      await world.tell({ enqueue: 1 })
      tookMs.push(await world.pickUpMs('resume'))
    }
    assert.ok(median(tookMs) < promisedMs, `picked up after ${told(tookMs)}`)
  })

  test('by a promotion', async () => {
    await using file = await jobsFile()
    await using world = await setup(file)
    const tookMs: number[] = []
    for (let n = 0; n < 7; n++) {
      await world.tell({ enqueue: 1, delay: 100 })
      tookMs.push(await world.pickUpMs('promote'))
    }
    assert.ok(median(tookMs) < promisedMs, `picked up after ${told(tookMs)}`)
  })
})

describe('a write is followed by looks', () => {
  /** When it was looked, in ms, where writes came at these times. */
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

  test('further and further apart, and then no more', (t) => {
    assert.deepEqual(looksAt(t, { writesAt: [0], untilMs: 500 }), [1, 3, 7, 15, 31, 63, 127])
  })

  test('that begin anew with the next write, whatever was due', (t) => {
    assert.deepEqual(looksAt(t, { writesAt: [0, 40], untilMs: 60 }), [1, 3, 7, 15, 31, 41, 43, 47, 55])
  })

  test('that writes without end do not put off', (t) => {
    const taken = looksAt(t, { writesAt: Array.from({ length: 100 }, (_, i) => i), untilMs: 100 })
    assert.ok(taken.length >= 50, `looked ${taken.length} times in 100 ms`)
  })
})

test('who holds a job is told within 50 ms that another process asked to cancel it', async (t) => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const store = await sqlite({ path: file.path })({ clock: systemClock })
  await using other = await startOther(file)
  const news = new EventTarget()
  store.subscribe({ onCancel: () => news.dispatchEvent(new Event('cancel')) })
  const tookMs: number[] = []
  for (let n = 0; n < 7; n++) {
    await holdfast.queue('mail').enqueue(n)
    const [job] = await store.claim({ queues: ['mail'], max: 1, leaseMs: 60_000, worker: 'w' })
    const heard = once(news, 'cancel').then(machineMs)
    const { at } = await other.ask<Answered>({ cancel: job?.id ?? '' })
    tookMs.push(Math.max(0, (await heard) - at))
    assert.deepEqual(await store.cancelRequested(job ? [job] : []), [true])
  }
  await store.close()
  t.diagnostic(`told after ${told(tookMs)}`)
  assert.ok(median(tookMs) < promisedMs, `told after ${told(tookMs)}`)
})

describe('as many are woken as there is work for', () => {
  for (const who of ['this process', 'another process']) {
    test(`one job from ${who} makes one of ten waiters look, not a herd`, async () => {
      await using file = await jobsFile()
      await using world = await setup(file)
      for (let tries = 0; ; tries++) {
        const startedAt = performance.now()
        const { waits, claims, stop } = await world.waiters(10)
        const looks = claims.length
        if (who === 'this process') await world.holdfast.queue('mail').enqueue(1)
        else await world.tell({ enqueue: 1 })
        const [lease] = await Promise.race(waits)
        await world.holdfast.queues() // whoever else was woken has asked by now
        await world.holdfast.queues()
        const got = await Promise.all(claims.slice(looks))
        const isInTime = performance.now() - startedAt < backstopMs
        await stop()
        await lease?.done()
        if (!isInTime && tries < 5) continue // the machine was slow, and everyone looked because of the backstop
        assert.deepEqual(got, [1], 'jobs got by each look after the first ones')
        break
      }
    })
  }

  test('a backlog of ten from another process finds ten waiters', async () => {
    await using file = await jobsFile()
    await using world = await setup(file)
    const startedAt = performance.now()
    const { waits } = await world.waiters(10)
    await world.tell({ enqueue: 10 })
    const got = (await Promise.all(waits)).flat().map(({ job }) => job.payload)
    assert.deepEqual(got.sort(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert.ok(performance.now() - startedAt < 5 * backstopMs)
  })

  test('a waiter served by another queue leaves no job of the queue it was woken for waiting', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    await holdfast.queue('first').enqueue(1)
    const [first] = await holdfast.claim(['first'])
    const abort = new AbortController()
    const waits: ReturnType<typeof holdfast.claim>[] = []
    for (const queues of [['mail', 'post'], ['post'], ['mail']]) {
      waits.push(holdfast.claim(queues, { wait, signal: abort.signal }))
      await holdfast.queues() // it waits by now, behind the one before
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
    assert.ok(tookMs < backstopMs / 2, `both were taken after ${tookMs} ms`)
  })

  test('a waiter that loses the race waits out its full time, and ends with nothing', async () => {
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

test('a wait ends with nothing after its time, and at once when its signal aborts', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const startedAt = performance.now()
  assert.deepEqual(await holdfast.claim(['mail'], { wait: 300 }), [])
  const tookMs = performance.now() - startedAt
  assert.ok(tookMs >= 295, `ended after ${tookMs} ms`)
  const abort = new AbortController()
  const claim = holdfast.claim(['mail'], { wait, signal: abort.signal })
  await holdfast.queues() // it has looked by now
  const abortedAt = performance.now()
  abort.abort()
  assert.deepEqual(await claim, [])
  assert.ok(performance.now() - abortedAt < backstopMs / 2)
  assert.deepEqual(await holdfast.claim(['mail'], { wait, signal: AbortSignal.abort() }), [])
})

interface World extends AsyncDisposable {
  readonly holdfast: Holdfast
  /** The other process does this, and has been answered. */
  tell(what: Told): Promise<Answered>
  /** How long after the other process was answered a claim that waited here has the job. */
  pickUpMs(what: Told): Promise<number>
  /** So many claims that have looked and now wait; and what the store was asked, from the first look on. */
  waiters(count: number): Promise<Waiters>
}

interface Waiters {
  readonly waits: readonly ReturnType<Holdfast['claim']>[]
  /** How many jobs each claim that the store was asked for got. */
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
  const tell = (what: Told) => other.ask<Answered>(what)
  const waiters = async (count: number): Promise<Waiters> => {
    claims = []
    const mine = claims
    const abort = new AbortController()
    const waits = Array.from({ length: count }, () => holdfast.claim(['mail'], { wait, signal: abort.signal }))
    while (mine.length < count) await once(counting, 'claimed')
    await Promise.all(mine)
    await holdfast.queues() // the sweep that an empty look makes is over, too
    await holdfast.queues()
    const stop = async () => {
      abort.abort()
      await Promise.allSettled(waits)
    }
    return { waits, claims: mine, stop }
  }
  return {
    holdfast,
    tell,
    waiters,
    async pickUpMs(what) {
      const { waits } = await waiters(1)
      const picked = waits[0]?.then(async ([lease]) => {
        const at = machineMs()
        await lease?.done()
        return at
      })
      const answered = await tell(what)
      return Math.max(0, ((await picked) ?? Number.NaN) - answered.at)
    },
    [Symbol.asyncDispose]: () => other[Symbol.asyncDispose](),
  }
}

/** The store, but with a claim of one's own. */
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

function told(values: readonly number[]): string {
  return `${values.map((ms) => ms.toFixed(1)).join(', ')} ms`
}
