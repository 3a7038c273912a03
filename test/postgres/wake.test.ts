// Wake-ups: LISTEN and NOTIFY between processes, and polling without them.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { systemClock } from '../../src/runtime/clock.ts'
import { type PostgresOptions, postgres } from '../../src/store/postgres/index.ts'
import type { ClaimedJob, Store } from '../../src/store/store.ts'
import { machineMs } from '../sqlite/process.ts'
import { fromListeningSessions } from '../support/listeners.ts'
import { setup, type TestDatabase } from './exactness-database.ts'
import { type Program, startProgram } from './processes.ts'

const pollMs = 1_000
const channel = '"holdfast holdfast"'

describe('a waiting claim', () => {
  test('is woken by an enqueue in another process, well before it would poll', async (t) => {
    await using database = await setup()
    await using program = startProgram('enqueues', database.url)
    await program.hear()
    await using listening = await open(database.url)
    await using polling = await open(postgres({ url: database.url, listen: false }))
    const listened = await delays(listening, program, 'listened', 5)
    const polled = await delays(polling, program, 'polled', 5)
    t.diagnostic(`median from enqueue to claim: ${median(listened)} ms listening, ${median(polled)} ms polling`)
    assert.ok(median(listened) < 250, `listening: ${listened}`)
    assert.ok(median(polled) <= pollMs + 250, `polling: ${polled}`)
    assert.ok(Math.max(...listened, ...polled) < 3 * pollMs, 'and none waits without bound')
  })

  test('is woken again after its connection was ended, and a notification lost meanwhile costs at most one poll interval', async (t) => {
    await using database = await setup()
    await using program = startProgram('enqueues', database.url)
    await program.hear()
    await using holdfast = await open(database.url)
    const before = await delays(holdfast, program, 'mail', 3)
    const lost: number[] = []
    for (let round = 0; round < 3; round++) {
      const claiming = holdfast.claim(['mail'], { wait: '20s' })
      await sleep(50)
      assert.equal(await endListeners(database), 1, 'one connection listens')
      program.tell('mail') // its notification has no listener
      lost.push(await took(claiming, program))
      await untilListening(database)
    }
    const after = await delays(holdfast, program, 'mail', 5)
    t.diagnostic(`before ${before}, lost ${lost}, after ${after} ms`)
    for (const ms of lost) assert.ok(ms < pollMs + 700, `a lost notification cost ${ms} ms`)
    assert.ok(median(after) < 250, `woken again: ${after}`)
  })

  test('is woken by the commit of a transaction of the caller, not before, and not by a rollback', async () => {
    await using database = await setup()
    await using waits = await open(database.url)
    await using enqueues = await open(database.url)
    await using raw = await listen(database)
    await enqueues.queue('mail').enqueue('first')
    for (const lease of await waits.claim(['mail'], { wait: '5s' })) await lease.done()
    await untilListening(database)
    await raw.quiet()
    const client = await database.pool.connect()
    for (const commits of [false, true]) {
      const claiming = waits.claim(['mail'], { wait: commits ? '20s' : 700 })
      await client.query('begin')
      await enqueues.queue('mail').enqueue('mine', { tx: client })
      await sleep(300)
      assert.deepEqual(raw.received, [], 'nothing is sent before the transaction has ended')
      await client.query(commits ? 'commit' : 'rollback')
      const endedAt = machineMs()
      const leases = await claiming
      assert.deepEqual(
        leases.map(({ job }) => job.payload),
        commits ? ['mine'] : [],
      )
      if (commits) assert.ok(machineMs() - endedAt < 500, `woken ${machineMs() - endedAt} ms after the commit`)
      for (const lease of leases) await lease.done()
      await raw.quiet(commits ? 1 : 0)
    }
    client.release()
  })

  test('is woken by the commit of a caller’s transaction, or of SQL, that brings a job to a limit key, without a sweep', async () => {
    await using database = await setup()
    const limited = defineQueue<{ tenant: string }>('mail', { limit: { key: 'tenant', concurrency: 1 } })
    await using enqueues = await open(database.url)
    await enqueues.queue(limited).enqueue({ tenant: 'first' })
    process.env['HOLDFAST_DISABLE'] = 'sweep'
    await using waits = await open(database.url)
    delete process.env['HOLDFAST_DISABLE']
    for (const lease of await waits.claim(['mail'], { wait: '5s' })) await lease.done()
    await untilListening(database)
    const client = await database.pool.connect()
    const ways = {
      a: () => enqueues.queue(limited).enqueue({ tenant: 'a' }, { tx: client }),
      b: () => client.query(`select holdfast.enqueue('mail', '{"tenant": "b"}')`),
    }
    for (const [tenant, enqueue] of Object.entries(ways)) {
      const claiming = waits.claim(['mail'], { wait: '5s' })
      await client.query('begin')
      await enqueue()
      await client.query('commit')
      const leases = await claiming
      assert.deepEqual(
        leases.map(({ job }) => job.payload),
        [{ tenant }],
      )
      for (const lease of leases) await lease.done()
    }
    client.release()
  })
})

describe('notifications', () => {
  test('are not sent per job: many at once share one', async (t) => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    await using raw = await listen(database)
    const mail = holdfast.queue('mail')
    await mail.enqueueMany(Array.from({ length: 1_000 }, (_, payload) => ({ payload })))
    const many = await raw.settled()
    await Promise.all(Array.from({ length: 50 }, (_, n) => mail.enqueue(n)))
    const concurrent = await raw.settled()
    for (let n = 0; n < 50; n++) await mail.enqueue(n)
    const inTurn = await raw.settled()
    t.diagnostic(`1,000 at once ${many}, 50 concurrent ${concurrent}, 50 in turn ${inTurn} notifications`)
    assert.ok(many >= 1 && many <= 2, `${many} for 1,000 jobs at once`)
    assert.ok(concurrent >= 1 && concurrent <= 10, `${concurrent} for 50 concurrent enqueues`)
    assert.ok(inTurn >= 1 && inTurn <= 50)
  })

  test('of occasional jobs are not gathered: each is sent at once', async () => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    await using raw = await listen(database)
    for (let n = 0; n < 20; n++) {
      await holdfast.queue('mail').enqueue(n)
      await sleep(4)
    }
    const sent = await raw.settled()
    assert.ok(sent >= 18, `${sent} for 20 jobs`)
  })

  test('of a transaction of the caller are one per queue, however many it enqueues', async () => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    await using raw = await listen(database)
    const tx = await database.pool.connect()
    await tx.query('begin')
    for (let n = 0; n < 20; n++) await holdfast.queue(n % 2 ? 'mail' : 'post').enqueue(n, { tx })
    await holdfast.queue('mail').enqueueMany(Array.from({ length: 100 }, (_, payload) => ({ payload, tx })))
    await tx.query('commit')
    tx.release()
    assert.equal(await raw.settled(), 2)
  })
})

describe('a request to cancel a running job', () => {
  for (const [how, options] of [
    ['listens', {}],
    ['polls', { listen: false }],
  ] as const) {
    test(`reaches a process that ${how} within a second while its jobs run`, async (t) => {
      await using database = await setup()
      await using holds = await holder(database, options)
      await using asks = await open(database.url)
      const jobs = await holds.claim(6)
      const tookMs: number[] = []
      for (const { id } of jobs) {
        await holds.asked(300)
        await asks.cancel(id)
        tookMs.push(await holds.knows(id))
      }
      t.diagnostic(`known after ${tookMs} ms`)
      assert.ok(Math.max(...tookMs) < 1_000, `known after ${tookMs}`)
      if (how === 'listens') assert.ok(median(tookMs) < 100, `known after ${tookMs}`)
    })
  }

  test('that was made while the listening connection was broken arrives soon', async () => {
    await using database = await setup()
    await using holds = await holder(database)
    await using asks = await open(database.url)
    const [job] = (await holds.claim(1)) as [ClaimedJob]
    await untilListening(database)
    assert.equal(await endListeners(database), 1)
    await asks.cancel(job.id)
    assert.ok((await holds.knows(job.id)) < 2_500)
  })

  test('is sent without ids if there are too many for one notification', async () => {
    await using database = await setup()
    await using holds = await holder(database)
    await using raw = await listen(database)
    const jobs = await holds.claim(500)
    await untilListening(database)
    await using asks = await postgres({ url: database.url })({ clock: systemClock }).then(closing)
    await asks.store.cancel(jobs.map(({ id }) => ({ id, effects: null })))
    await Promise.all(jobs.map(({ id }) => holds.knows(id)))
    assert.ok(raw.received.every((text) => Buffer.byteLength(text) < 8_000))
  })
})

test('a notification that failed is sent as soon as possible, together with those that followed', async () => {
  await using database = await setup()
  const pool = new pg.Pool({ connectionString: database.url, max: 5 })
  pool.on('error', () => {})
  let failures = 2
  pool.on('connect', (client) => {
    const query = client.query
    client.query = (async (...args: unknown[]) => {
      if (JSON.stringify(args[0]).includes('pg_notify($1, $2)') && failures-- > 0) {
        await holdfast.queue('post').enqueue(2) // while the first is being sent
        throw Object.assign(new Error('Connection terminated'), { code: '08006' })
      }
      return Reflect.apply(query, client, args)
    }) as typeof client.query
  })
  const holdfast = await open(postgres({ pool }))
  await using raw = await listen(database)
  while (failures > 0) await holdfast.queue('mail').enqueue(1) // the first is notified by its own commit
  await until(async () => raw.received.some((text) => text.includes('mail')), 'the first is notified')
  await until(async () => raw.received.some((text) => text.includes('post')), 'and so is the one that followed')
  await holdfast.close()
  await pool.end()
})

test('after a watchdog an enqueue is notified by its own commit, and those soon after it share one notification', async () => {
  await using database = await setup()
  const pool = new pg.Pool({ connectionString: database.url, max: 5 })
  pool.on('error', () => {})
  let notifications = 0
  pool.on('connect', (client) => {
    const query = client.query
    client.query = ((...args: unknown[]) => {
      if (JSON.stringify(args[0]).includes('pg_notify($1, $2)')) notifications++
      return Reflect.apply(query, client, args)
    }) as typeof client.query
  })
  await using raw = await listen(database)
  const holdfast = await open(postgres({ pool }))
  await holdfast.queue('mail').enqueue(1)
  await until(async () => raw.received.some((text) => text.includes('mail')), 'the first is notified')
  assert.equal(notifications, 0)
  while (notifications === 0) await holdfast.queue('post').enqueue(2)
  await until(async () => raw.received.some((text) => text.includes('post')), 'and so are those that followed')
  await holdfast.close()
  await pool.end()
})

describe('connections', () => {
  test('of a pool of two are enough: none is kept for LISTEN', async () => {
    await using database = await setup()
    const pool = new pg.Pool({ connectionString: database.url, max: 2 })
    pool.on('error', () => {}) // a connection that is closing may still report that the server stops
    pool.on('connect', (client) => client.on('error', () => {}))
    await using waits = await open(postgres({ pool }))
    await using program = startProgram('enqueues', database.url)
    await program.hear()
    const claims = Array.from({ length: 5 }, (_, n) => waits.claim([`queue-${n}`], { wait: '20s' }))
    await sleep(100)
    for (let n = 0; n < 5; n++) await program.ask(`queue-${n}`)
    for (const leases of await Promise.all(claims)) for (const lease of leases) await lease.done()
    assert.equal((await waits.stats()).done, 5)
    assert.equal(await listeners(database), 0)
    await waits.close()
    await pool.end()
  })

  test('are all gone after close, also where a claim was waiting', async () => {
    await using database = await setup()
    assert.equal(await database.connections(), 0)
    for (const options of [{}, { listen: false }]) {
      const holdfast = await open(postgres({ url: database.url, ...options }))
      const waiting = holdfast.claim(['mail'], { wait: '20s' }).catch(({ code }) => code)
      await Promise.all([holdfast.queue('post').enqueue(1), holdfast.stats(), holdfast.sweep()])
      if (!('listen' in options)) await untilListening(database)
      await holdfast.close()
      assert.equal(await waiting, 'CLOSED')
      await until(async () => (await database.connections()) === 0, 'no connection is left')
    }
    await using mine = await open(postgres({ pool: database.pool }))
    await mine.claim(['mail'], { wait: 200 })
    await untilListening(database)
    await mine.close()
    await until(async () => (await listeners(database)) === 0, 'no session listens')
    assert.equal((await database.pool.query('select 1 as n')).rows[0].n, 1, 'a pool that was given stays open')
  })
})

test('an idle worker on 1,000 queues sends no more statements than one on a single queue', async (t) => {
  await using database = await setup()
  await using first = await open(database.url)
  await first.sweep()
  const thousand = Array.from({ length: 1_000 }, (_, n) => `queue-${n}`)
  const kinds = [true, false].flatMap((listen) => [
    idle(database, ['queue-0'], listen),
    idle(database, thousand, listen),
  ])
  const sent = await Promise.all(kinds)
  for (const [kind, one = 0, many = 0] of [
    ['listening', ...sent.slice(0, 2)],
    ['polling', ...sent.slice(2)],
  ] as const) {
    t.diagnostic(`${kind}: ${one} statements for one queue, ${many} for 1,000, in 3 s`)
    assert.ok(many <= one * 1.5 + 5, `${kind}: ${many} against ${one}`)
    assert.ok(one < 3 * 40, `${kind}: ${one} statements in 3 s`)
  }
})

/** Statements sent while a claim waits for 3 s, without the first second, in which it opens and defines. */
async function idle(database: TestDatabase, queues: readonly string[], listen: boolean): Promise<number> {
  const pool = new pg.Pool({ connectionString: database.url, max: 5 })
  pool.on('error', () => {}) // a connection that is closing may still report that the server stops
  let statements = 0
  pool.on('connect', (client) => {
    client.on('error', () => {})
    const query = client.query
    client.query = ((...args: unknown[]) => {
      statements += 1
      return Reflect.apply(query, client, args)
    }) as typeof client.query
  })
  await using holdfast = await open(postgres({ pool, listen } satisfies PostgresOptions))
  const claiming = holdfast.claim(queues, { wait: 4_000 })
  await sleep(1_000)
  const before = statements
  await sleep(3_000)
  const sent = statements - before
  assert.deepEqual(await claiming, [])
  await holdfast.close()
  await pool.end()
  return sent
}

/** A store with leased jobs. It asks about all of them when a notification says so, and otherwise now and then. */
async function holder(database: TestDatabase, options: Partial<PostgresOptions> = {}) {
  const store = await postgres({ url: database.url, ...options })({ clock: systemClock })
  const known = new Map<string, PromiseWithResolvers<void>>()
  let jobs: readonly ClaimedJob[] = []
  const ask = async () => {
    const requested = await store.cancelRequested(jobs)
    for (const [i, { id }] of jobs.entries()) if (requested[i]) known.get(id)?.resolve()
  }
  store.subscribe({
    onCancel(ids) {
      for (const id of ids ?? []) known.get(id)?.resolve()
      if (ids === null) ask().catch(() => {})
    },
  })
  return {
    async claim(count: number): Promise<readonly ClaimedJob[]> {
      await using filler = await open(database.url)
      await filler.queue('mail').enqueueMany(Array.from({ length: count }, (_, payload) => ({ payload })))
      jobs = await store.claim({ queues: ['mail'], max: count, leaseMs: 60_000, worker: 'w' })
      for (const { id } of jobs) known.set(id, Promise.withResolvers())
      return jobs
    },
    /** Asks, so that the store knows that it still has leases, and then waits. */
    async asked(ms: number): Promise<void> {
      await store.cancelRequested(jobs)
      await sleep(ms)
    },
    /** How long it takes until the cancel request of this job is known, in ms. */
    async knows(id: string): Promise<number> {
      const asked = machineMs()
      await known.get(id)?.promise
      return Math.round(machineMs() - asked)
    },
    [Symbol.asyncDispose]: () => store.close(),
  }
}

function closing(store: Store) {
  return { store, [Symbol.asyncDispose]: () => store.close() }
}

/** How long a job that another process enqueues waits for a waiting claim, in ms. */
async function delays(holdfast: Holdfast, program: Program, queue: string, samples: number): Promise<number[]> {
  await holdfast.claim([queue], { wait: 300 }) // it then listens or polls
  const measured: number[] = []
  for (let n = 0; n < samples; n++) {
    const claiming = holdfast.claim([queue], { wait: '20s' })
    await sleep(150 + 37 * n) // at different moments of any polling interval
    program.tell(queue)
    measured.push(await took(claiming, program))
  }
  return measured
}

/** Measured from the answer to the enqueue. */
async function took(claiming: ReturnType<Holdfast['claim']>, program: Program): Promise<number> {
  const [lease] = await claiming
  const claimedAt = machineMs()
  const { answeredAt } = await program.hear<{ answeredAt: number }>()
  await lease?.done()
  return Math.max(0, Math.round(claimedAt - answeredAt))
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1] as number
}

async function listeners(database: TestDatabase): Promise<number> {
  return (await database.rows<{ n: number }>(`select count(*)::int as n ${fromListeningSessions()}`))[0]?.n ?? 0
}

async function endListeners(database: TestDatabase): Promise<number> {
  return (await database.rows(`select pg_terminate_backend(pid) ${fromListeningSessions()}`)).length
}

async function untilListening(database: TestDatabase): Promise<void> {
  await until(async () => (await listeners(database)) > 0, 'a session listens')
  await sleep(100) // and has received its own probe
}

async function until(condition: () => Promise<boolean>, what: string): Promise<void> {
  for (const deadline = performance.now() + 10_000; !(await condition()); await sleep(20))
    assert.ok(performance.now() < deadline, what)
}

/** Records the notifications on the store's channel. */
async function listen(database: TestDatabase) {
  const client = new pg.Client({ connectionString: database.url, application_name: 'raw' })
  client.on('error', () => {})
  await client.connect()
  await client.query(`listen ${channel}`)
  const received: string[] = []
  client.on('notification', ({ payload = '' }) => {
    if (!payload.includes('"probe"')) received.push(payload)
  })
  const settled = async () => {
    await sleep(150)
    await client.query('select 1')
    return received.splice(0).length
  }
  return {
    received,
    /** How many were received since the last call. */
    settled,
    async quiet(atLeast = 0) {
      assert.ok((await settled()) >= atLeast)
    },
    [Symbol.asyncDispose]: () => client.end(),
  }
}
