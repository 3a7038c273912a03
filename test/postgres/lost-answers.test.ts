// A call whose answer was lost on the wire is sent again by the store itself. It commits once, and gets the answer of the
// first time.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import type { EnqueueOptions } from '../../src/queue/prepare.ts'
import { allJobs, claimOne, deadJob, readJob } from '../conformance/expect.ts'
import { cuttingProxy, type Moment } from '../support/cutting-proxy.ts'
import { replay, tokenLock } from './rules.ts'
import { inWorld, type Rule, useDatabase, type World } from './world.ts'

useDatabase()

/** A call that has committed before raises this error when it is sent again. */
const commitsOnce: readonly Rule[] = ['this call was', 'this job was', 'these jobs were', 'these items were'].map(
  (subject) => ({
    from: `raise exception '${subject} stored before' using errcode = 'HF004';`,
    to: 'null;',
  }),
)

interface Verb {
  /** A text in its deciding statement. */
  readonly says: string
  /** Prepares the call. The returned function makes it and returns its answer and what is stored. */
  run(holdfast: Holdfast): Promise<() => Promise<unknown>>
  readonly expected: unknown
}

const id = randomUUID()
const commit = 'commit\0' // the whole statement; "read committed" is another

const verbs: Readonly<Record<string, Verb>> = {
  'an enqueue': {
    says: 'enqueue_plain',
    async run(holdfast) {
      return async () => {
        const { status } = await holdfast.queue('mail').enqueue('a')
        return [status, (await allJobs(holdfast)).map(({ state, payload }) => [state, payload])]
      }
    },
    expected: ['created', [['ready', 'a']]],
  },
  'an enqueue of one job to a known lane': {
    says: 'enqueue_one',
    async run(holdfast) {
      await holdfast.queue('mail').enqueue('a')
      return async () => {
        const { status } = await holdfast.queue('mail').enqueue('b')
        return [status, (await allJobs(holdfast)).map(({ state, payload }) => [state, payload])]
      }
    },
    expected: [
      'created',
      [
        ['ready', 'a'],
        ['ready', 'b'],
      ],
    ],
  },
  'an enqueue with an id of the caller': {
    says: '.enqueue(',
    async run(holdfast) {
      return async () => {
        const { status } = await holdfast.queue('mail').enqueue('a', { id })
        return [status, (await allJobs(holdfast)).map((job) => [job.id, job.state])]
      }
    },
    expected: ['created', [[id, 'ready']]],
  },
  'an enqueue with a dedup key': {
    says: '.enqueue(',
    async run(holdfast) {
      return async () => {
        const { status } = await holdfast.queue('mail').enqueue('a', { dedup: { key: 'k' } })
        return [status, (await allJobs(holdfast)).length]
      }
    },
    expected: ['created', 1],
  },
  'an enqueue with a dedup key that has expired when it is sent again': {
    says: '.enqueue(',
    async run(holdfast) {
      return async () => {
        const { status } = await holdfast.queue('mail').enqueue('a', { dedup: { key: 'k', scope: { window: 1 } } })
        return [status, (await allJobs(holdfast)).length]
      }
    },
    expected: ['created', 1],
  },
  'an enqueue with key-value writes': {
    says: '.enqueue(',
    async run(holdfast) {
      const version = await holdfast.kv.put('k', 1)
      return async () => {
        const kv = {
          compareAndSet: [{ key: 'k', version, value: 2 }],
          put: [{ key: 'n', value: 3 }],
        }
        const { status } = await holdfast.queue('mail').enqueue('a', { kv })
        const values = await Promise.all(['k', 'n'].map(async (key) => (await holdfast.kv.get(key))?.value))
        return [status, values, (await allJobs(holdfast)).length]
      }
    },
    expected: ['created', [2, 3], 1],
  },
  'a compare-and-delete': {
    says: 'kv_write',
    async run(holdfast) {
      const version = await holdfast.kv.put('k', 1)
      return () => holdfast.kv.compareAndDelete('k', version)
    },
    expected: { applied: true, version: null },
  },
  'an enqueue of a job that must start before a time': {
    says: '.enqueue(',
    async run(holdfast) {
      return async () => {
        const { status } = await holdfast.queue('mail').enqueue('a', { startBefore: Date.now() + 60_000 })
        return [status, (await allJobs(holdfast)).length]
      }
    },
    expected: ['created', 1],
  },
  'a submission of items': {
    says: 'add_items',
    async run(holdfast) {
      const added: number[] = []
      holdfast.on('batch.submitted', (event) => added.push(event.added))
      return async () => {
        const batch = await holdfast.batch({ name: 'mail' }, [{ queue: 'mail', payload: 'a' }])
        const { state, waiting } = await batch.progress()
        return [added, state, waiting, (await allJobs(holdfast)).length]
      }
    },
    expected: [[1], 'queued', 1, 1],
  },
  'an addition of items': {
    says: 'add_items',
    async run(holdfast) {
      const batch = await holdfast.batch({ name: 'mail', open: true }, [])
      return async () => {
        const { added } = await batch.add([{ queue: 'mail', payload: 'a' }])
        return [added, (await batch.progress()).waiting, (await allJobs(holdfast)).length]
      }
    },
    expected: [1, 1, 1],
  },
  'a settlement': {
    says: 'settle_done',
    async run(holdfast) {
      await holdfast.queue('mail').enqueue('a')
      const lease = await claimOne(holdfast, 'mail')
      return async () => {
        const { state } = await lease.done('result')
        const job = await readJob(holdfast, lease.job.id)
        return [state, job.state, job.attempts, (await holdfast.stats()).done]
      }
    },
    expected: ['done', 'done', 1, 1],
  },
  'a settlement with effects': {
    says: commit,
    async run(holdfast) {
      await holdfast.queue('mail').enqueue('a')
      const lease = await claimOne(holdfast, 'mail')
      return async () => {
        const effects = { enqueue: [{ queue: 'next', payload: 'b' }], put: [{ key: 'k', value: 1 }] }
        const { state, enqueued } = await lease.done(undefined, effects)
        const next = await allJobs(holdfast, { queue: 'next' })
        return [state, enqueued.map(({ status }) => status), next.length, (await holdfast.kv.get('k'))?.value]
      }
    },
    expected: ['done', ['created'], 1, 1],
  },
  'a retry': {
    says: commit,
    async run(holdfast) {
      await holdfast.queue('mail').enqueue('a')
      const lease = await claimOne(holdfast, 'mail')
      return async () => {
        const { state } = await lease.retry(new Error('later'), { delay: '1h' })
        const { attempts, history } = await readJob(holdfast, lease.job.id)
        return [state, attempts, history.length]
      }
    },
    expected: ['scheduled', 1, 1],
  },
  'a compareAndSet': {
    says: 'kv_write',
    async run(holdfast) {
      const version = await holdfast.kv.put('k', 1)
      return async () => {
        const answer = await holdfast.kv.compareAndSet('k', version, 2)
        const now = await holdfast.kv.get('k')
        return [answer.applied, answer.version === now?.version, now?.value]
      }
    },
    expected: [true, true, 2],
  },
  'a delete of a key': {
    says: 'kv_write',
    async run(holdfast) {
      await holdfast.kv.put('k', 1)
      return () => holdfast.kv.delete('k')
    },
    expected: true,
  },
  'a cancel': {
    says: commit,
    async run(holdfast) {
      const { id } = await holdfast.queue('mail').enqueue('a')
      return async () => {
        const answer = await holdfast.cancel(id, { effects: { enqueue: [{ queue: 'next', payload: 'b' }] } })
        return [answer, (await readJob(holdfast, id)).state, (await allJobs(holdfast, { queue: 'next' })).length]
      }
    },
    expected: ['cancelled', 'cancelled', 1],
  },
  'a requeue': {
    says: commit,
    async run(holdfast) {
      const id = await deadJob(holdfast, 'mail')
      return async () => {
        await holdfast.requeue(id)
        const { state, history } = await readJob(holdfast, id)
        return [state, history.length, (await allJobs(holdfast)).length]
      }
    },
    expected: ['ready', 1, 1],
  },
  'a requeue of many': {
    says: commit,
    async run(holdfast) {
      await deadJob(holdfast, 'mail')
      await deadJob(holdfast, 'mail')
      return async () => {
        const { changed, skipped } = await holdfast.requeueAll({ queue: 'mail' })
        return [changed, skipped, (await allJobs(holdfast)).map(({ history }) => history.length)]
      }
    },
    expected: [2, [], [1, 1]],
  },
  'a cancel of many': {
    says: commit,
    async run(holdfast) {
      const jobs = [1, 2, 3].map((payload) => ({ queue: 'mail', payload }))
      const batch = await holdfast.batch({ name: 'letters', concurrency: 1 }, jobs)
      await holdfast.claim(['mail'])
      return async () => {
        const { changed, requested } = await holdfast.cancelAll({ batch: batch.id })
        const { cancelled, running } = await batch.progress()
        return [changed, requested, cancelled, running]
      }
    },
    expected: [3, 1, 2, 1],
  },
  'a delete of many': {
    says: commit,
    async run(holdfast) {
      await deadJob(holdfast, 'mail')
      await holdfast.queue('mail').enqueue('a')
      return async () => [(await holdfast.deleteAll({ queue: 'mail' })).changed, (await allJobs(holdfast)).length]
    },
    expected: [2, 0],
  },
  'a release of a worker': {
    says: commit,
    async run(holdfast) {
      await holdfast.queue('mail').enqueueMany([1, 2].map((payload) => ({ payload, labels: { customer: 'ada' } })))
      await holdfast.claim(['mail'], { max: 2, worker: 'w', lease: '1h' })
      const events: unknown[] = []
      holdfast.on('lease.expired', ({ worker, labels }) => events.push([worker, labels?.['customer']]))
      return async () => {
        const { released, left } = await holdfast.releaseWorker('w')
        return [released, left, (await holdfast.stats('mail')).ready, events]
      }
    },
    expected: [2, 0, 2, [1, 2].map(() => ['w', 'ada'])],
  },
  'a new priority of many': {
    says: commit,
    async run(holdfast) {
      await holdfast.queue('mail').enqueueMany([1, 2].map((payload) => ({ payload })))
      return async () => {
        const { changed } = await holdfast.reprioritiseAll({ queue: 'mail' }, 1)
        return [changed, (await allJobs(holdfast)).map(({ priority }) => priority)]
      }
    },
    expected: [2, [1, 1]],
  },
}

async function throughBrokenWire(world: World, { says, run }: Verb, moment: Moment): Promise<unknown> {
  await using proxy = await cuttingProxy(world.url)
  const holdfast = await world.another({ url: proxy.url })
  const act = await run(holdfast)
  const cut = proxy.cut(says, moment)
  const answer = await act()
  await cut
  await holdfast.close()
  return answer
}

for (const [name, verb] of Object.entries(verbs)) {
  for (const [moment, when] of [
    ['during', 'was interrupted'],
    ['after', 'committed without an answer'],
  ] as const) {
    test(
      `${name} that ${when} commits once, and is answered as the first time`,
      inWorld(async (world) => assert.deepEqual(await throughBrokenWire(world, verb, moment), verb.expected)),
    )
  }

  test(
    `if commits are not recorded, ${name} that committed without an answer gets another answer`,
    inWorld(
      async (world) => {
        const answer = await throughBrokenWire(world, verb, 'after').catch((error: Error) => error.message)
        assert.notDeepEqual(answer, verb.expected)
      },
      { without: commitsOnce },
    ),
  )
}

test(
  'a call that did not arrive commits once, and is answered',
  inWorld(async (world) => {
    const verb = verbs['a settlement with effects'] as Verb
    assert.deepEqual(await throughBrokenWire(world, verb, 'before'), verb.expected)
  }),
)

test(
  'a sweep whose read of the cluster identifier is interrupted reads it again',
  inWorld(async (world) => {
    await using proxy = await cuttingProxy(world.url)
    const far = await world.another({ url: proxy.url })
    const cut = proxy.cut('pg_control_system', 'after')
    assert.equal((await far.sweep()).rescued, 0)
    await cut
    await far.close()
  }),
)

test(
  'a sweep that is interrupted while it admits jobs goes on',
  inWorld(async (world) => {
    await using proxy = await cuttingProxy(world.url)
    const far = await world.another({ url: proxy.url })
    const mail = defineQueue<string>('mail', { limit: { key: () => 'all', concurrency: 1 } })
    await far.queue(mail).enqueueMany([{ payload: 'a' }, { payload: 'b' }])
    const lease = await claimOne(far, mail)
    const notAdmitted = proxy.cut('.admit(', 'before')
    await lease.dead('no such address')
    await notAdmitted
    const cut = proxy.cut('.admit(', 'before')
    await far.sweep()
    await cut
    assert.equal((await claimOne(far, mail)).job.payload, 'b')
    await far.close()
  }),
)

test(
  'a settlement is answered although the admission of the next job was cancelled',
  inWorld(async (world) => {
    const mail = defineQueue<string>('mail', { limit: { key: () => 'all', concurrency: 1 } })
    await world.holdfast.queue(mail).enqueueMany([{ payload: 'a' }, { payload: 'b' }])
    const lease = await claimOne(world.holdfast, mail)
    const other = await world.begin()
    await other.run('select * from holdfast.admit(array(select distinct limit_key from holdfast.job), null, null)')
    const settled = lease.dead('no such address')
    await world.waiters(1)
    await world.rows(`select pg_cancel_backend(pid) from pg_locks where locktype = 'advisory' and not granted`)
    assert.equal((await settled).state, 'dead')
    await other.commit()
    await world.holdfast.sweep()
    assert.equal((await claimOne(world.holdfast, mail)).job.payload, 'b')
  }),
)

test(
  'a call that is sent again while the first is still running waits for it, and is applied once',
  inWorld(async (world) => {
    await using proxy = await cuttingProxy(world.url)
    const far = await world.another({ url: proxy.url })
    const id = await world.enqueue('mail', 'a')
    const other = await world.begin()
    await other.run('select holdfast.lock_lanes(array[$1::int])', [await world.lane('mail')])
    const cut = proxy.cut('lock_jobs', 'during')
    const answered = far.cancel(id)
    await cut
    await world.waiters(2)
    await other.commit()
    assert.equal(await answered, 'cancelled')
    await far.close()
  }),
)

async function claimWithoutAnswer(world: World): Promise<unknown> {
  await using proxy = await cuttingProxy(world.url)
  const far = await world.another({ url: proxy.url })
  for (const payload of ['a', 'b', 'c']) await world.enqueue('mail', payload)
  const cut = proxy.cut('.claim(', 'after')
  const leases = await far.claim(['mail'], { max: 2 })
  await cut
  const { running, ready } = await world.holdfast.stats()
  await far.close()
  return [leases.map(({ job }) => [job.payload, job.attempt]), running, ready]
}

test(
  'a claim that committed without an answer is answered with the same jobs',
  inWorld(async (world) => {
    assert.deepEqual(await claimWithoutAnswer(world), [
      [
        ['a', 1],
        ['b', 1],
      ],
      2,
      1,
    ])
  }),
)

test(
  'if a claim does not find its own lease, the jobs of a claim without an answer have no worker',
  inWorld(async (world) => assert.deepEqual(await claimWithoutAnswer(world), [[['c', 1]], 3, 0]), {
    without: [replay],
  }),
)

const claimAs = `select unnest(ids) as id, attempts[1] as attempts, expires_at::float8
  from holdfast.claim($1, 'worker', $2, 2, '{mail}', '{}', null)`

async function claimedAgain(world: World): Promise<[unknown[], unknown[]]> {
  for (const payload of ['a', 'b', 'c']) await world.enqueue('mail', payload)
  const token = randomUUID()
  const [one, two] = [await world.begin(), await world.connect()]
  const first = await one.run(claimAs, [token, 60_000])
  const again = two.query(world.schema.sql(claimAs), [token, 60_000])
  const settled = Promise.race([again.then(() => true), world.waiters(1).then(() => false)])
  const hasWaited = !(await settled)
  await one.commit()
  const second = (await again).rows
  const ids = (rows: readonly unknown[]) => rows.map((row) => (row as { id: string }).id)
  return [
    [hasWaited, ids(first).length],
    [ids(second).join() === ids(first).join(), (await world.holdfast.stats()).running],
  ]
}

test(
  'a claim sent again by its token while the first is in progress waits for it and returns the same jobs',
  inWorld(async (world) => {
    assert.deepEqual(await claimedAgain(world), [
      [true, 2],
      [true, 2],
    ])
  }),
)

test(
  'if the token is not locked, a claim sent again takes other jobs',
  inWorld(
    async (world) => {
      // It still waits for the lane's lock, but it has looked for its lease before that.
      assert.deepEqual(await claimedAgain(world), [
        [true, 2],
        [false, 3],
      ])
    },
    { without: [tokenLock] },
  ),
)

test(
  'a claim sent again after the first has ended returns the same jobs once, in order, with a full lease',
  inWorld(async (world) => {
    for (const payload of ['a', 'b', 'c']) await world.enqueue('mail', payload)
    const token = randomUUID()
    const first = await world.rows(claimAs, [token, 1])
    const second = await world.rows(claimAs, [token, 60_000])
    const facts = (rows: typeof first) => rows.map(({ id, attempts }) => ({ id, attempts }))
    assert.deepEqual(facts(second), facts(first))
    assert.ok((second[0]?.['expires_at'] as number) > (first[0]?.['expires_at'] as number) + 50_000)
    assert.equal((await world.holdfast.sweep()).rescued, 0)
    assert.equal((await world.holdfast.stats()).running, 2)
    const [job] = first
    assert.equal((await readJob(world.holdfast, job?.['id'] as string)).attempts, 1)
  }),
)

test(
  'a claim that was rolled back and is sent again starts over',
  inWorld(async (world) => {
    await world.enqueue('mail', 'a')
    const token = randomUUID()
    const one = await world.begin()
    assert.equal((await one.run(claimAs, [token, 60_000])).length, 1)
    const again = world.rows(claimAs, [token, 60_000])
    await world.waiters(1)
    await one.rollback()
    assert.equal((await again).length, 1)
    assert.equal((await world.holdfast.stats()).running, 1)
  }),
)

interface Redefined {
  /** A text in its deciding statement. */
  readonly says: string
  /** Enqueues one job with this payload. */
  run(holdfast: Holdfast): Promise<() => Promise<unknown>>
}

const redefinedMeanwhile: Readonly<Record<string, Redefined>> = {
  'a plain job': enqueueing({}),
  'a job that is due later': enqueueing({ delay: 1 }),
  'a job with a dedup key': enqueueing({ dedup: { key: 'k' } }),
  'a job with an idempotency key': enqueueing({ idempotencyKey: 'k' }),
  'a job with an id of the caller': enqueueing({ id: randomUUID() }),
  'an item of an open batch': adding({}),
  'an item with a dedup key': adding({ dedup: { key: 'k' } }),
  'an effect of a settlement': {
    says: commit,
    async run(holdfast) {
      await holdfast.queue('start').enqueue('first')
      const lease = await claimOne(holdfast, 'start')
      return () => lease.done(undefined, { enqueue: [{ queue: 'mail', payload: 'once', dedup: { key: 'k' } }] })
    },
  },
}

function enqueueing(options: EnqueueOptions): Redefined {
  const isPlain = Object.keys(options).length === 0
  return {
    says: isPlain ? 'enqueue_one' : options.delay === undefined ? '.enqueue(' : 'enqueue_plain',
    run: async (holdfast) => () => holdfast.queue('mail').enqueue('once', options),
  }
}

function adding(options: Omit<EnqueueOptions, 'tx'>): Redefined {
  return {
    says: Object.keys(options).length === 0 ? 'add_items' : commit,
    async run(holdfast) {
      const batch = await holdfast.batch({ name: 'mail', open: true }, [])
      await batch.add([{ queue: 'mail', payload: 'warm item' }])
      return () => batch.add([{ queue: 'mail', payload: 'once', ...options }])
    },
  }
}

for (const [name, { says, run }] of Object.entries(redefinedMeanwhile)) {
  test(
    `${name} whose answer was lost runs once, although its queue was redefined before the call was sent again`,
    inWorld(async (world) => {
      await using proxy = await cuttingProxy(world.url)
      const far = await world.another({ url: proxy.url })
      await far.queue('mail').enqueue('warm')
      const act = await run(far)
      const cut = proxy.cut(says, 'after', { stays: true })
      const answered = act()
      answered.catch(() => {})
      await cut
      const runs: unknown[] = []
      const work = async () => {
        await world.holdfast.sweep()
        for (const lease of await world.holdfast.claim(['mail'], { max: 10 })) {
          runs.push(lease.job.payload)
          await lease.done()
        }
      }
      await work()
      await world.holdfast.queue(defineQueue('mail', { attempts: 7 })).enqueue('other')
      proxy.mend()
      await answered
      await work()
      assert.equal(runs.filter((payload) => payload === 'once').length, 1)
      await far.close()
    }),
  )
}

test(
  'a call that was withdrawn never commits, and a withdrawal waits for a send in progress',
  inWorld(async (world) => {
    const withdraw = async (flush: string) => {
      const [row] = await world.rows('select holdfast.withdraw($1, null) as committed', [flush])
      return row?.['committed']
    }
    const record = 'select holdfast.record_flush($1, 1, null)'
    const [late, rolledBack, committed] = [randomUUID(), randomUUID(), randomUUID()]
    assert.equal(await withdraw(late), false)
    assert.equal(await withdraw(late), false, 'also when it is sent again')
    await assert.rejects(world.rows(record, [late]), { code: 'HF004' })
    for (const [flush, end, hasCommitted] of [
      [rolledBack, 'rollback', false],
      [committed, 'commit', true],
    ] as const) {
      const first = await world.begin()
      await first.run(record, [flush])
      const withdrawn = withdraw(flush)
      const [{ pid } = {}] = await first.run('select pg_backend_pid() as pid')
      for (let waits = false; !waits; await sleep(5)) {
        const [row] = await world.rows(
          'select count(*)::int as n from pg_stat_activity where $1 = any (pg_blocking_pids(pid))',
          [pid],
        )
        waits = row?.['n'] === 1
      }
      await first[end]()
      assert.equal(await withdrawn, hasCommitted)
    }
  }),
)
