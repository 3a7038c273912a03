// The first use of a queue or a priority, while another session has an open transaction that also uses it for the first time.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client, Pool } from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { claimOne, rejects } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import { testDatabase } from '../support/postgres.ts'

const waiting = `select count(*)::int as n from pg_stat_activity where wait_event_type = 'Lock' and query like '%open_lanes%'`

async function setup() {
  const database = await testDatabase()
  const holdfast = await open(database.url, { logger: false })
  const stranger = new Client({ connectionString: database.url })
  await stranger.connect()
  const opened = [holdfast]
  return {
    holdfast,
    stranger,
    url: database.url,
    /** Another process. */
    async another(): Promise<Holdfast> {
      const other = await open(database.url, { logger: false })
      opened.push(other)
      return other
    },
    /** A transaction that stays open and is the first to use this queue. */
    async use(queue: string): Promise<void> {
      await stranger.query('begin')
      await stranger.query(`select holdfast.enqueue('${queue}', '"stranger"')`)
    },
    async [Symbol.asyncDispose]() {
      await stranger.end()
      await Promise.all(opened.map((each) => each.close({ grace: 0 })))
      await database[Symbol.asyncDispose]()
    },
  }
}

/** Fails if the call waits until the stranger commits. Such a call is never answered: the bound may be generous. */
async function soon<T>(what: string, promise: Promise<T>, ms = 60_000): Promise<T> {
  const stop = new AbortController()
  const late = sleep(ms, null, { signal: stop.signal }).then(() => assert.fail(`${what}: not answered in ${ms} ms`))
  late.catch(() => undefined)
  try {
    return await Promise.race([promise, late])
  } finally {
    stop.abort()
  }
}

async function until(what: string, isSo: () => boolean | Promise<boolean>, ms = 60_000): Promise<void> {
  for (const end = performance.now() + ms; !(await isSo()); await sleep(20)) {
    assert.ok(performance.now() < end, `${what}: not so after ${ms} ms`)
  }
}

/** Resolves after more time than a call needs that does not wait for the stranger. */
async function stillWaits(promise: Promise<unknown>): Promise<void> {
  const answered = await Promise.race([promise.then(() => true), sleep(300, false)])
  assert.equal(answered, false, 'it waits for the stranger')
}

const countOf = async (holdfast: Holdfast, queue: string, state: 'ready' | 'done' | 'dead') =>
  (await holdfast.stats(queue))[state]

test('an open transaction that creates a queue by SQL delays only enqueues to that queue', async () => {
  await using world = await setup()
  const { holdfast, stranger } = world
  await stranger.query('begin')
  await stranger.query(`select holdfast.enqueue('new', '1')`)
  let isAnswered = false
  const behind = holdfast.queue('new').enqueue('behind')
  const noted = behind.then(() => {
    isAnswered = true
  })
  await Promise.all(Array.from({ length: 20 }, (_, n) => holdfast.queue(`other-${n}`).enqueue(n)))
  const keyed = await holdfast.queue('other-0').enqueue(1, { dedup: { key: 'k' } })
  assert.equal(keyed.status, 'created')
  const lease = await claimOne(holdfast, 'other-1')
  await lease.done(null, { enqueue: [{ queue: 'other-2', payload: 'follows' }] })
  assert.equal(isAnswered, false, 'the enqueue to the new queue waits for the stranger')
  await stranger.query('commit')
  await noted
  assert.equal((await behind).status, 'created')
  assert.deepEqual([...(await holdfast.claim(['new'], { max: 5 }))].map(({ job }) => job.payload).sort(), [1, 'behind'])
  await recount(holdfast)
})

test('many enqueues that wait for a queue of an open transaction use at most one connection', async () => {
  await using world = await setup()
  const { holdfast, stranger } = world
  await stranger.query('begin')
  await stranger.query(`select holdfast.enqueue('new', '1')`)
  const behind = Array.from({ length: 100 }, (_, n) => holdfast.queue('new').enqueue(n, { dedup: { key: `${n}` } }))
  let most = 0
  for (let look = 0; look < 50; look++) {
    const { rows } = await stranger.query(waiting)
    most = Math.max(most, rows[0].n)
    await sleep(5)
  }
  assert.ok(most <= 1, `${most} connections waited at once`)
  assert.equal((await holdfast.queue('other').enqueue(1)).status, 'created')
  await stranger.query('rollback')
  assert.ok((await Promise.all(behind)).every(({ status }) => status === 'created'))
  await recount(holdfast)
})

test('a death notice to a queue of an open transaction does not stop the rest of the sweep', async () => {
  await using world = await setup()
  const { holdfast, stranger } = world
  const a = defineQueue('a', { lease: '50ms', attempts: 1, onDead: { queue: 'dead' } })
  const b = defineQueue('b', { lease: '50ms', attempts: 5 })
  await world.use('dead')
  await holdfast.queue(a).enqueue('dies')
  await holdfast.queue(b).enqueue('is rescued')
  await holdfast.queue(b).enqueue('later', { delay: '50ms' })
  await claimOne(holdfast, a)
  await claimOne(holdfast, b)
  await sleep(100)
  const fresh = await world.another()
  await soon('sweep', fresh.sweep())
  const back = await soon('claim', fresh.claim([b], { max: 5 }))
  assert.deepEqual(back.map(({ job }) => job.payload).sort(), ['is rescued', 'later'])
  for (const lease of back) await soon('settle', lease.done())
  assert.equal(await countOf(fresh, 'a', 'dead'), 0, 'the job that dies is left for a later sweep')
  await soon('sweep', fresh.sweep())
  await stranger.query('commit')
  await until('the death notice is enqueued', async () => {
    await fresh.sweep()
    return (await countOf(fresh, 'dead', 'ready')) === 2
  })
  assert.equal(await countOf(fresh, 'a', 'dead'), 1)
  await recount(fresh)
})

test('a completion to a queue of an open transaction delays no settlement and no sweep', async () => {
  await using world = await setup()
  const { holdfast, stranger } = world
  await holdfast.batch({ name: 'b', onComplete: { queue: 'completions' } }, [{ queue: 'items', payload: 1 }])
  await world.use('completions')
  const lease = await claimOne(holdfast, 'items')
  assert.equal((await soon('settle', lease.done())).state, 'done')
  await soon('sweep', holdfast.sweep())
  await stranger.query('commit')
  await until('the completion is enqueued', async () => {
    await holdfast.sweep()
    return (await countOf(holdfast, 'completions', 'ready')) === 2
  })
})

test('definitions that wait for an open transaction take no connection from other calls', async () => {
  await using world = await setup()
  const { holdfast, stranger } = world
  await holdfast.queue('old').enqueue(0)
  await stranger.query('begin')
  for (let n = 0; n < 12; n++) await stranger.query(`select holdfast.enqueue('new-${n}', '1')`)
  const behind = Array.from({ length: 12 }, (_, n) =>
    holdfast.queue(defineQueue(`new-${n}`, { attempts: 3 })).enqueue(n),
  )
  await stillWaits(Promise.race(behind))
  await soon('enqueue', holdfast.queue('old').enqueue(1))
  await soon('claim', claimOne(holdfast, 'old'))
  await stranger.query('commit')
  assert.ok((await Promise.all(behind)).every(({ status }) => status === 'created'))
})

test('a definition, an override and a pause that wait leave a connection of a pool of two for other calls', async () => {
  await using world = await setup()
  const { stranger } = world
  const pool = new Pool({ connectionString: world.url, max: 2 })
  const small = await open(postgres({ pool }), { logger: false })
  try {
    await small.queue('old').enqueue(0)
    await small.queue('held').enqueue(0)
    await world.use('new')
    await stranger.query(`select from holdfast.queue where name = 'held' for update`)
    const behind = [
      small.queue(defineQueue('new', { attempts: 3 })).enqueue(1),
      small.overrideLimit('held', { limit: { concurrency: 1 } }),
      small.pause('new'),
    ]
    await stillWaits(Promise.race(behind))
    await soon('enqueue', small.queue('old').enqueue(1))
    await soon('claim', claimOne(small, 'old'))
    await stranger.query('commit')
    await Promise.all(behind)
    const infoOf = async (queue: string) => (await small.queues()).find(({ name }) => name === queue)
    assert.equal((await infoOf('new'))?.paused, true)
    assert.equal((await infoOf('held'))?.limit?.concurrency, 1)
  } finally {
    await stranger.query('rollback')
    await small.close()
    await pool.end()
  }
})

test('a definition with onDead that waits delays no other definition with onDead', async () => {
  await using world = await setup()
  const { holdfast, stranger } = world
  const other = await world.another()
  await world.use('mails')
  const behind = holdfast.queue(defineQueue('mails', { onDead: { queue: 'dead' } })).enqueue(1)
  await stillWaits(behind)
  const invoices = defineQueue('invoices', { onDead: { queue: 'other-dead' } })
  await soon('the definition of another queue', other.queue(invoices).enqueue(2))
  await stranger.query('commit')
  assert.equal((await behind).status, 'created')
})

test('a follow-up to a queue of an open transaction delays its own job, and no other settlement of the worker', async () => {
  await using world = await setup()
  const { holdfast, stranger } = world
  await world.use('new')
  const runs: unknown[] = []
  const worker = holdfast.work(
    [
      [
        defineQueue('a', { lease: '1s', attempts: 5 }),
        async (job) => {
          runs.push(job.payload)
          job.effects.enqueue('new', 'follows')
          return 1
        },
      ],
      [defineQueue('b'), async () => 1],
    ],
    { concurrency: 20 },
  )
  await holdfast.queue('a').enqueue('first')
  await until('the handler has run', () => runs.length === 1)
  await sleep(200)
  for (let n = 0; n < 5; n++) await holdfast.queue('b').enqueue(n)
  await until('other jobs are settled', async () => (await countOf(holdfast, 'b', 'done')) === 5)
  await sleep(1_500)
  assert.equal(await countOf(holdfast, 'a', 'done'), 0)
  await stranger.query('commit')
  await until('the job is settled', async () => (await countOf(holdfast, 'a', 'done')) === 1)
  assert.deepEqual(runs, ['first'], 'its lease was kept meanwhile')
  assert.equal(await countOf(holdfast, 'new', 'ready'), 2)
  await worker.stop()
  await recount(holdfast)
})

test('a settlement by hand that waits for a queue of an open transaction delays no other settlement', async () => {
  await using world = await setup()
  const { holdfast, stranger } = world
  for (const queue of ['a', 'b', 'c']) await holdfast.queue(queue).enqueue(queue)
  await world.use('new')
  const [a, b, c] = [await claimOne(holdfast, 'a'), await claimOne(holdfast, 'b'), await claimOne(holdfast, 'c')]
  const behind = a.done(null, { enqueue: [{ queue: 'new', payload: 'follows' }] })
  const beside = [b.done(null, { enqueue: [{ queue: 'other', payload: 1 }] }), c.dead(new Error('no'))]
  const answers = await soon('settlements beside it', Promise.all(beside))
  assert.deepEqual(
    answers.map(({ state }) => state),
    ['done', 'dead'],
  )
  await stillWaits(behind)
  await stranger.query('commit')
  assert.equal((await behind).state, 'done')
  assert.equal(await countOf(holdfast, 'new', 'ready'), 2)
  await recount(holdfast)
})

test('a worker that stops gives up a settlement that waits for an open transaction, and the job is rescued', async () => {
  await using world = await setup()
  const { holdfast, stranger } = world
  await world.use('new')
  const a = defineQueue('a', { lease: '1s' })
  const worker = holdfast.work(a, async (job) => {
    job.effects.enqueue('new', 'follows')
  })
  await holdfast.queue(a).enqueue(1)
  await until('the settlement waits', () => worker.health().unsettled === 1)
  await sleep(100)
  const stopped = worker.stop({ grace: 0 })
  worker.stop({ grace: 0 }).catch(() => undefined) // a second call ends the wait
  await soon('stop', stopped)
  await until('the job is ready again', async () => {
    await holdfast.sweep()
    return (await countOf(holdfast, 'a', 'ready')) === 1
  })
  await stranger.query('commit')
  await until('the stranger’s job is there', async () => (await countOf(holdfast, 'new', 'ready')) >= 1)
  await sleep(500)
  assert.equal(await countOf(holdfast, 'new', 'ready'), 1, 'a settlement whose lease was lost is not applied')
  await recount(holdfast)
})

test('if one queue of a worker waits for an open transaction, the worker serves its other queues', async () => {
  await using world = await setup()
  const { holdfast, stranger } = world
  await world.use('new')
  const done: unknown[] = []
  const run = async ({ payload }: { readonly payload: unknown }) => {
    done.push(payload)
  }
  const worker = holdfast.work([
    [defineQueue('new', { attempts: 3 }), run],
    [defineQueue('old', { attempts: 3 }), run],
  ])
  await holdfast.queue('old').enqueue('old')
  await until('the other queue is served', () => done.length === 1)
  await stranger.query('commit')
  await until('its queue is served, too', () => done.includes('stranger'))
  await until('its definition is stored', async () => {
    const { rows } = await stranger.query(`select version from holdfast.queue where name = 'new'`)
    return rows[0].version === 1
  })
  await worker.stop()
})

test('a schedule to a queue of an open transaction delays no other schedule', async () => {
  await using world = await setup()
  const { holdfast, stranger } = world
  await world.use('new')
  const worker = holdfast.work('none', async () => undefined)
  await holdfast.schedule('a-new', { queue: 'new', cron: '* * * * * *', payload: 1 })
  await holdfast.schedule('b-other', { queue: 'other', cron: '* * * * * *', payload: 1 })
  await until('the other schedule fires', async () => (await countOf(holdfast, 'other', 'ready')) >= 3)
  assert.equal(await countOf(holdfast, 'new', 'ready'), 0)
  await stranger.query('rollback')
  await until('its slots fire', async () => (await countOf(holdfast, 'new', 'ready')) >= 2)
  await worker.stop()
})

for (const [what, enqueue] of [
  ['by name', (holdfast: Holdfast) => holdfast.queue('new').enqueue(1)],
  ['by definition', (holdfast: Holdfast) => holdfast.queue(defineQueue('new', { attempts: 3 })).enqueue(1)],
  ['with a key', (holdfast: Holdfast) => holdfast.queue('old').enqueue(1, { dedup: { key: 'k' } })],
  [
    'as a follow-up',
    async (holdfast: Holdfast) => {
      const lease = await claimOne(holdfast, 'old')
      return lease.done(null, { enqueue: [{ queue: 'new', payload: 1 }] })
    },
  ],
] as const) {
  test(`close() ends a call that waits for an open transaction with CLOSED: an enqueue ${what}`, async () => {
    await using world = await setup()
    await world.holdfast.queue('old').enqueue(0)
    await world.use('new')
    await world.stranger.query(`select holdfast.enqueue('old', '1', '{"dedup": {"key": "k"}}')`)
    const closing = await world.another()
    const ended = rejects(enqueue(closing), 'CLOSED')
    await sleep(300)
    await soon('close', closing.close())
    await soon('the call', ended)
    await world.stranger.query('rollback')
  })
}

test('close() stops a worker that waits for an open transaction to define its queue', async () => {
  await using world = await setup()
  await world.use('new')
  const closing = await world.another()
  closing.work(defineQueue('new', { attempts: 3 }), async () => undefined)
  await sleep(300)
  await soon('close', closing.close())
  await world.stranger.query('rollback')
})
