// A call whose answer was lost on the wire is sent again by the store itself: it lands once, and is answered as it was
// the first time.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import type { EnqueueOptions } from '../../src/queue/prepare.ts'
import { allJobs, claimOne, deadJob, readJob } from '../conformance/expect.ts'
import { cuttingProxy, type Moment } from '../support/cutting-proxy.ts'
import { type Hand, inHand, type Rule, useDatabase } from './hand.ts'
import { replay, tokenLock } from './rules.ts'

useDatabase()

/** A call that was stored before ends with HF004. */
const landsOnce: readonly Rule[] = ['this call was', 'this job was', 'these jobs were', 'these items were'].map(
  (what) => ({
    from: `raise exception '${what} stored before' using errcode = 'HF004';`,
    to: 'null;',
  }),
)

interface Verb {
  /** What its deciding statement says. */
  readonly says: string
  /** Does it through a wire that breaks, and answers what the caller was told and what became of it. */
  run(holdfast: Holdfast): Promise<() => Promise<unknown>>
  readonly told: unknown
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
    told: ['created', [['ready', 'a']]],
  },
  'an enqueue of one job, of a lane that is known': {
    says: 'enqueue_one',
    async run(holdfast) {
      await holdfast.queue('mail').enqueue('a')
      return async () => {
        const { status } = await holdfast.queue('mail').enqueue('b')
        return [status, (await allJobs(holdfast)).map(({ state, payload }) => [state, payload])]
      }
    },
    told: [
      'created',
      [
        ['ready', 'a'],
        ['ready', 'b'],
      ],
    ],
  },
  'an enqueue under an id of the caller': {
    says: '.enqueue(',
    async run(holdfast) {
      return async () => {
        const { status } = await holdfast.queue('mail').enqueue('a', { id })
        return [status, (await allJobs(holdfast)).map((job) => [job.id, job.state])]
      }
    },
    told: ['created', [[id, 'ready']]],
  },
  'an enqueue with a dedup key': {
    says: '.enqueue(',
    async run(holdfast) {
      return async () => {
        const { status } = await holdfast.queue('mail').enqueue('a', { dedup: { key: 'k' } })
        return [status, (await allJobs(holdfast)).length]
      }
    },
    told: ['created', 1],
  },
  'an enqueue with a dedup key whose time is over when it is sent again': {
    says: '.enqueue(',
    async run(holdfast) {
      return async () => {
        const { status } = await holdfast.queue('mail').enqueue('a', { dedup: { key: 'k', scope: { window: 1 } } })
        return [status, (await allJobs(holdfast)).length]
      }
    },
    told: ['created', 1],
  },
  'an enqueue of a job that must start before a time': {
    says: '.enqueue(',
    async run(holdfast) {
      return async () => {
        const { status } = await holdfast.queue('mail').enqueue('a', { startBefore: Date.now() + 60_000 })
        return [status, (await allJobs(holdfast)).length]
      }
    },
    told: ['created', 1],
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
    told: [[1], 'queued', 1, 1],
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
    told: [1, 1, 1],
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
    told: ['done', 'done', 1, 1],
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
    told: ['done', ['created'], 1, 1],
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
    told: ['scheduled', 1, 1],
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
    told: [true, true, 2],
  },
  'a delete of a key': {
    says: 'kv_write',
    async run(holdfast) {
      await holdfast.kv.put('k', 1)
      return () => holdfast.kv.delete('k')
    },
    told: true,
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
    told: ['cancelled', 'cancelled', 1],
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
    told: ['ready', 1, 1],
  },
  'a requeue of many': {
    says: commit,
    async run(holdfast) {
      await deadJob(holdfast, 'mail')
      await deadJob(holdfast, 'mail')
      return () => holdfast.requeueAll({ queue: 'mail' })
    },
    told: { requeued: 2, skipped: [] },
  },
}

async function throughBrokenWire(hand: Hand, { says, run }: Verb, moment: Moment): Promise<unknown> {
  await using proxy = await cuttingProxy(hand.url)
  const holdfast = await hand.another({ url: proxy.url })
  const act = await run(holdfast)
  const cut = proxy.cut(says, moment)
  const told = await act()
  await cut
  await holdfast.close()
  return told
}

for (const [name, verb] of Object.entries(verbs)) {
  for (const [moment, when] of [
    ['during', 'was cut off'],
    ['after', 'landed without an answer'],
  ] as const) {
    test(
      `${name} that ${when} lands once, and the caller is told so`,
      inHand(async (hand) => assert.deepEqual(await throughBrokenWire(hand, verb, moment), verb.told)),
    )
  }

  test(
    `where what has landed is not remembered, ${name} that landed without an answer is told otherwise`,
    inHand(
      async (hand) => {
        const told = await throughBrokenWire(hand, verb, 'after').catch((error: Error) => error.message)
        assert.notDeepEqual(told, verb.told)
      },
      { without: landsOnce },
    ),
  )
}

test(
  'a call that did not arrive lands once, and the caller is told so',
  inHand(async (hand) => {
    const verb = verbs['a settlement with effects'] as Verb
    assert.deepEqual(await throughBrokenWire(hand, verb, 'before'), verb.told)
  }),
)

test(
  'a sweep whose look at the cluster is cut off looks again',
  inHand(async (hand) => {
    await using proxy = await cuttingProxy(hand.url)
    const far = await hand.another({ url: proxy.url })
    const cut = proxy.cut('pg_control_system', 'after')
    assert.equal((await far.sweep()).rescued, 0)
    await cut
    await far.close()
  }),
)

test(
  'a sweep that is cut off while it lets in who has room goes on',
  inHand(async (hand) => {
    await using proxy = await cuttingProxy(hand.url)
    const far = await hand.another({ url: proxy.url })
    const mail = defineQueue<string>('mail', { limit: { key: () => 'all', concurrency: 1 } })
    await far.queue(mail).enqueueMany([{ payload: 'a' }, { payload: 'b' }])
    const lease = await claimOne(far, mail)
    const unattended = proxy.cut('.admit(', 'before')
    await lease.dead('no such address')
    await unattended
    const cut = proxy.cut('.admit(', 'before')
    await far.sweep()
    await cut
    assert.equal((await claimOne(far, mail)).job.payload, 'b')
    await far.close()
  }),
)

test(
  'who has settled is told so, though letting in the next was cancelled',
  inHand(async (hand) => {
    const mail = defineQueue<string>('mail', { limit: { key: () => 'all', concurrency: 1 } })
    await hand.holdfast.queue(mail).enqueueMany([{ payload: 'a' }, { payload: 'b' }])
    const lease = await claimOne(hand.holdfast, mail)
    const other = await hand.begin()
    await other.run('select * from holdfast.admit(array(select distinct limit_key from holdfast.job), null, null)')
    const settled = lease.dead('no such address')
    await hand.waiters(1)
    await hand.rows(`select pg_cancel_backend(pid) from pg_locks where locktype = 'advisory' and not granted`)
    assert.equal((await settled).state, 'dead')
    await other.commit()
    await hand.holdfast.sweep()
    assert.equal((await claimOne(hand.holdfast, mail)).job.payload, 'b')
  }),
)

test(
  'a call that is sent again while the first is still at work waits for it, and both are one',
  inHand(async (hand) => {
    await using proxy = await cuttingProxy(hand.url)
    const far = await hand.another({ url: proxy.url })
    const id = await hand.enqueue('mail', 'a')
    const other = await hand.begin()
    await other.run('select holdfast.lock_lanes(array[$1::int])', [await hand.lane('mail')])
    const cut = proxy.cut('lock_jobs', 'during')
    const answered = far.cancel(id)
    await cut
    await hand.waiters(2)
    await other.commit()
    assert.equal(await answered, 'cancelled')
    await far.close()
  }),
)

async function claimWithoutAnswer(hand: Hand): Promise<unknown> {
  await using proxy = await cuttingProxy(hand.url)
  const far = await hand.another({ url: proxy.url })
  for (const payload of ['a', 'b', 'c']) await hand.enqueue('mail', payload)
  const cut = proxy.cut('.claim(', 'after')
  const leases = await far.claim(['mail'], { max: 2 })
  await cut
  const { running, ready } = await hand.holdfast.stats()
  await far.close()
  return [leases.map(({ job }) => [job.payload, job.attempt]), running, ready]
}

test(
  'a claim that landed without an answer is answered with the same jobs',
  inHand(async (hand) => {
    assert.deepEqual(await claimWithoutAnswer(hand), [
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
  'where a claim does not know its own lease, jobs of a claim without an answer are held by nobody',
  inHand(async (hand) => assert.deepEqual(await claimWithoutAnswer(hand), [[['c', 1]], 3, 0]), { without: [replay] }),
)

const claimAs = `select unnest(ids) as id, attempts[1] as attempts, expires_at::float8
  from holdfast.claim($1, 'worker', $2, 2, '{mail}', '{}', null)`

async function claimedAgain(hand: Hand): Promise<[unknown[], unknown[]]> {
  for (const payload of ['a', 'b', 'c']) await hand.enqueue('mail', payload)
  const token = randomUUID()
  const [one, two] = [await hand.begin(), await hand.connect()]
  const first = await one.run(claimAs, [token, 60_000])
  const again = two.query(hand.schema.sql(claimAs), [token, 60_000])
  const settled = Promise.race([again.then(() => true), hand.waiters(1).then(() => false)])
  const hasWaited = !(await settled)
  await one.commit()
  const second = (await again).rows
  const ids = (rows: readonly unknown[]) => rows.map((row) => (row as { id: string }).id)
  return [
    [hasWaited, ids(first).length],
    [ids(second).join() === ids(first).join(), (await hand.holdfast.stats()).running],
  ]
}

test(
  'a claim sent again by its token while the first is in progress waits for it and gives the same jobs',
  inHand(async (hand) => {
    assert.deepEqual(await claimedAgain(hand), [
      [true, 2],
      [true, 2],
    ])
  }),
)

test(
  'where the token is not locked, a claim sent again takes other jobs',
  inHand(
    async (hand) => {
      // By the lane it waits nevertheless; but it has looked for its lease before.
      assert.deepEqual(await claimedAgain(hand), [
        [true, 2],
        [false, 3],
      ])
    },
    { without: [tokenLock] },
  ),
)

test(
  'a claim sent again after the first has ended gives the same jobs once, in order, for the full time again',
  inHand(async (hand) => {
    for (const payload of ['a', 'b', 'c']) await hand.enqueue('mail', payload)
    const token = randomUUID()
    const first = await hand.rows(claimAs, [token, 1])
    const second = await hand.rows(claimAs, [token, 60_000])
    const facts = (rows: typeof first) => rows.map(({ id, attempts }) => ({ id, attempts }))
    assert.deepEqual(facts(second), facts(first))
    assert.ok((second[0]?.['expires_at'] as number) > (first[0]?.['expires_at'] as number) + 50_000)
    assert.equal((await hand.holdfast.sweep()).rescued, 0)
    assert.equal((await hand.holdfast.stats()).running, 2)
    const [job] = first
    assert.equal((await readJob(hand.holdfast, job?.['id'] as string)).attempts, 1)
  }),
)

test(
  'a claim that was rolled back and is sent again begins anew',
  inHand(async (hand) => {
    await hand.enqueue('mail', 'a')
    const token = randomUUID()
    const one = await hand.begin()
    assert.equal((await one.run(claimAs, [token, 60_000])).length, 1)
    const again = hand.rows(claimAs, [token, 60_000])
    await hand.waiters(1)
    await one.rollback()
    assert.equal((await again).length, 1)
    assert.equal((await hand.holdfast.stats()).running, 1)
  }),
)

interface Redefined {
  /** What its deciding statement says. */
  readonly says: string
  /** Enqueues one job with this payload. */
  run(holdfast: Holdfast): Promise<() => Promise<unknown>>
}

const redefinedMeanwhile: Readonly<Record<string, Redefined>> = {
  'a plain job': enqueueing({}),
  'a job that is due later': enqueueing({ delay: 1 }),
  'a job with a dedup key': enqueueing({ dedup: { key: 'k' } }),
  'a job with an idempotency key': enqueueing({ idempotencyKey: 'k' }),
  'a job under an id of the caller': enqueueing({ id: randomUUID() }),
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

function adding(options: EnqueueOptions): Redefined {
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
    `${name} whose answer was lost runs once, though its queue was defined anew before the call was sent again`,
    inHand(async (hand) => {
      await using proxy = await cuttingProxy(hand.url)
      const far = await hand.another({ url: proxy.url })
      await far.queue('mail').enqueue('warm')
      const act = await run(far)
      const cut = proxy.cut(says, 'after', { stays: true })
      const told = act()
      told.catch(() => {})
      await cut
      const runs: unknown[] = []
      const work = async () => {
        await hand.holdfast.sweep()
        for (const lease of await hand.holdfast.claim(['mail'], { max: 10 })) {
          runs.push(lease.job.payload)
          await lease.done()
        }
      }
      await work()
      await hand.holdfast.queue(defineQueue('mail', { attempts: 7 })).enqueue('other')
      proxy.mend()
      await told
      await work()
      assert.equal(runs.filter((payload) => payload === 'once').length, 1)
      await far.close()
    }),
  )
}

test(
  'a call that was withdrawn never lands, and a withdrawal waits for the send that is at work',
  inHand(async (hand) => {
    const withdraw = async (flush: string) => {
      const [row] = await hand.rows('select holdfast.withdraw($1, null) as landed', [flush])
      return row?.['landed']
    }
    const land = 'select holdfast.record_flush($1, 1, null)'
    const [late, rolledBack, landed] = [randomUUID(), randomUUID(), randomUUID()]
    assert.equal(await withdraw(late), false)
    assert.equal(await withdraw(late), false, 'its own answer was lost')
    await assert.rejects(hand.rows(land, [late]), { code: 'HF004' })
    for (const [flush, end, hasLanded] of [
      [rolledBack, 'rollback', false],
      [landed, 'commit', true],
    ] as const) {
      const first = await hand.begin()
      await first.run(land, [flush])
      const withdrawn = withdraw(flush)
      const [{ pid } = {}] = await first.run('select pg_backend_pid() as pid')
      for (let waits = false; !waits; await sleep(5)) {
        const [row] = await hand.rows(
          'select count(*)::int as n from pg_stat_activity where $1 = any (pg_blocking_pids(pid))',
          [pid],
        )
        waits = row?.['n'] === 1
      }
      await first[end]()
      assert.equal(await withdrawn, hasLanded)
    }
  }),
)
