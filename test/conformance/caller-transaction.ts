// `enqueue(payload, { tx })`: a job that is stored if and only if the caller's transaction commits.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { defineQueue } from '../../src/queue/definition.ts'
import { allJobs, claimOne, claimOrder, everything, minute, readJob, rejects } from './expect.ts'
import { type CallerTx, type InSqlWorld, type InWorld, type StoreUnderTest, withSql } from './world.ts'

/** Longer than any call takes here that does not wait for another transaction. */
const patienceMs = 60_000

export function callerTransactionTests(inWorld: InWorld, { dialect }: StoreUnderTest): void {
  describe('the caller’s own transaction', () => {
    if (!dialect) return refusedTests(inWorld)
    carriedTests(withSql(inWorld))
    if (dialect.oneWriter) aloneTests(withSql(inWorld))
    else besideTests(withSql(inWorld))
  })
}

function refusedTests(inWorld: InWorld): void {
  test(
    'a store that cannot enqueue in it refuses, and enqueues nothing',
    inWorld(async ({ holdfast }) => {
      assert.equal(holdfast.capabilities.callerTransaction, false)
      const facts = { capability: 'callerTransaction' }
      const mail = holdfast.queue('mail')
      await rejects(mail.enqueue(1, { tx: {} }), 'UNSUPPORTED', facts)
      await rejects(mail.enqueueMany([{ payload: 1 }, { payload: 2, tx: {} }]), 'UNSUPPORTED', facts)
      assert.deepEqual(await allJobs(holdfast), [])
    }),
  )
}

function carriedTests(inSql: InSqlWorld): void {
  test(
    'a job exists when the transaction commits, with its other writes, and not before',
    inSql(async ({ holdfast, another, sql }) => {
      assert.equal(holdfast.capabilities.callerTransaction, true)
      const clients = [holdfast, await another()]
      await sql.query(`create table ${sql.schema}.account (name text)`)
      const own = await sql.begin()
      await own.query(`insert into ${sql.schema}.account values ('ada')`)
      const { id, status } = await holdfast.queue('mail').enqueue('welcome', { tx: own.tx })
      assert.equal(status, 'created')
      for (const client of clients) {
        assert.equal(await client.job(id), null)
        assert.equal((await client.stats('mail')).ready, 0)
      }
      await own.commit()
      assert.equal((await readJob(holdfast, id)).state, 'ready')
      assert.equal((await claimOne(holdfast, 'mail')).job.id, id)
      assert.equal((await sql.query(`select * from ${sql.schema}.account`)).length, 1)
    }),
  )

  test(
    'a rolled back transaction leaves no job, no count and no key',
    inSql(async ({ holdfast, sql }) => {
      await holdfast.queue('mail').enqueue('before')
      const before = await everything(holdfast)
      const id = randomUUID()
      const own = await sql.begin()
      const keys = { dedup: { key: 'k' }, idempotencyKey: 'i', id }
      await holdfast.queue('mail').enqueue(1, { tx: own.tx, ...keys })
      await holdfast.queue('mail').enqueueMany([
        { payload: 2, tx: own.tx },
        { payload: 3, delay: '1h' },
      ])
      await own.rollback()
      assert.deepEqual(await everything(holdfast), before)
      assert.deepEqual(await holdfast.queue('mail').enqueue(4, keys), { id, status: 'created' })
      assert.deepEqual(await claimOrder(holdfast, ['mail']), ['before', 4])
    }),
  )

  test(
    'many jobs are claimed in the order given',
    inSql(async ({ holdfast, sql }) => {
      const mail = holdfast.queue('mail')
      await mail.enqueue('before')
      const own = await sql.begin()
      await mail.enqueueMany([1, 2, 3].map((n) => ({ payload: n, tx: own.tx })))
      await mail.enqueue(4, { tx: own.tx })
      await own.commit()
      await mail.enqueue('after')
      assert.deepEqual(await claimOrder(holdfast, ['mail']), ['before', 1, 2, 3, 4, 'after'])
    }),
  )

  test(
    'the definition of its queue holds for the job, also after an earlier transaction was rolled back',
    inSql(async ({ holdfast, sql }) => {
      const brief = holdfast.queue('brief', { retain: { done: 0 }, onDead: { queue: 'notices' } })
      for (const ending of ['rollback', 'commit'] as const) {
        const own = await sql.begin()
        await brief.enqueueMany([1, 2].map((payload) => ({ payload, tx: own.tx })))
        await own[ending]()
      }
      const [done, dead] = await holdfast.claim(['brief'], { max: 2 })
      assert.ok(done && dead)
      await done.done()
      assert.equal(await holdfast.job(done.job.id), null)
      await dead.dead(new Error('no'))
      assert.equal((await holdfast.stats('notices')).ready, 1)
    }),
  )

  test(
    'every option of an enqueue is accepted',
    inSql(async ({ holdfast, clock, sql }) => {
      const id = randomUUID()
      const startBefore = new Date(clock.now() + 10 * minute)
      const own = await sql.begin()
      await holdfast.queue('mail').enqueue(
        { to: 'ada' },
        {
          ...{ tx: own.tx, id, startBefore, delay: '1m', priority: 1, attempts: 9, timeout: '3s' },
          ...{ dedup: { key: 'd' }, idempotencyKey: 'i', headers: { h: 'v' } },
        },
      )
      const urgent = await holdfast.queue('mail').enqueue('urgent', { tx: own.tx, priority: 0 })
      await own.commit()
      const job = await readJob(holdfast, id)
      assert.deepEqual([job.state, job.runAt.getTime()], ['scheduled', clock.now() + minute])
      assert.deepEqual([job.startBefore, job.priority, job.maxAttempts], [startBefore, 1, 9])
      assert.deepEqual([job.timeoutMs, job.dedupKey, job.idempotencyKey], [3_000, 'd', 'i'])
      assert.deepEqual([job.headers, job.payload], [{ h: 'v' }, { to: 'ada' }])
      const lease = await claimOne(holdfast, 'mail')
      assert.equal(lease.job.id, urgent.id)
      await lease.done()
      await clock.advance(minute)
      await holdfast.sweep()
      assert.equal((await claimOne(holdfast, 'mail')).job.id, id)
    }),
  )

  test(
    'keys are compared within the transaction and with stored jobs',
    inSql(async ({ holdfast, sql }) => {
      const mail = holdfast.queue('mail')
      const outside = await mail.enqueue('outside', { dedup: { key: 'taken' }, idempotencyKey: 'known' })
      const own = await sql.begin()
      const first = await mail.enqueue('inside', { tx: own.tx, dedup: { key: 'k' }, idempotencyKey: 'i' })
      const inside = { id: first.id, status: 'duplicate' }
      assert.deepEqual(await mail.enqueue('again', { tx: own.tx, dedup: { key: 'k' } }), inside)
      assert.deepEqual(await mail.enqueue('inside', { tx: own.tx, idempotencyKey: 'i' }), inside)
      assert.deepEqual(await mail.enqueue('x', { tx: own.tx, dedup: { key: 'taken' } }), { ...inside, id: outside.id })
      assert.deepEqual(await mail.enqueue('outside', { tx: own.tx, idempotencyKey: 'known' }), {
        ...inside,
        id: outside.id,
      })
      await own.commit()
      assert.deepEqual(await mail.enqueue('later', { dedup: { key: 'k' } }), inside)
      assert.deepEqual(await claimOrder(holdfast, ['mail']), ['outside', 'inside'])
    }),
  )

  test(
    'a refused request leaves the transaction usable, and nothing of the request in it',
    inSql(async ({ holdfast, sql }) => {
      const mail = holdfast.queue('mail')
      const id = randomUUID()
      await mail.enqueue('first', { id, idempotencyKey: 'i' })
      const own = await sql.begin()
      await mail.enqueue('fine', { tx: own.tx })
      await rejects(mail.enqueue('second', { tx: own.tx, id }), 'DUPLICATE_JOB_ID', { id })
      await rejects(mail.enqueue('other payload', { tx: own.tx, idempotencyKey: 'i' }), 'IDEMPOTENCY_MISMATCH', {
        key: 'i',
      })
      await rejects(mail.enqueue(Number.NaN, { tx: own.tx }), 'INVALID_PAYLOAD')
      const some = [{ payload: 'with it' }, { payload: 'third', id, tx: own.tx }, { payload: 'after it' }]
      await rejects(mail.enqueueMany(some), 'DUPLICATE_JOB_ID', { id })
      const replace = { tx: own.tx, dedup: { key: 'k', replace: true } }
      await rejects(mail.enqueue('debounced', replace), 'UNSUPPORTED', { option: 'dedup.replace' })
      await mail.enqueue('fine too', { tx: own.tx })
      assert.equal((await own.query('select 1 as one')).rows[0]?.['one'], 1)
      await own.commit()
      assert.deepEqual(await claimOrder(holdfast, ['mail']), ['first', 'fine', 'fine too'])
    }),
  )

  test(
    'a rollback to a savepoint removes the jobs that were enqueued after it, and their keys',
    inSql(async ({ holdfast, sql }) => {
      const mail = holdfast.queue('mail')
      const own = await sql.begin()
      await mail.enqueue('kept', { tx: own.tx })
      await own.query('savepoint here')
      await mail.enqueue('undone', { tx: own.tx, dedup: { key: 'k' } })
      await own.query('rollback to savepoint here')
      assert.equal((await mail.enqueue('instead', { tx: own.tx, dedup: { key: 'k' } })).status, 'created')
      await own.query('savepoint there')
      await mail.enqueue('released', { tx: own.tx })
      await own.query('release savepoint there')
      await own.commit()
      assert.deepEqual(await claimOrder(holdfast, ['mail']), ['kept', 'instead', 'released'])
    }),
  )

  test(
    'a value that is no transaction is refused',
    inSql(async ({ holdfast }) => {
      for (const tx of [null, false, 0, 'tx', {}, [], { query: 'select 1' }] as unknown as object[]) {
        await rejects(holdfast.queue('mail').enqueue(1, { tx }), 'INVALID_OPTION', { option: 'tx' })
        await rejects(holdfast.queue('mail').enqueueMany([{ payload: 1, tx }]), 'INVALID_OPTION', { option: 'tx' })
      }
      assert.deepEqual(await allJobs(holdfast), [])
    }),
  )

  test(
    'enqueueMany refuses jobs of different transactions',
    inSql(async ({ holdfast, sql }) => {
      const [one, two] = [await sql.begin(), await sql.begin()]
      const entries = [
        { payload: 1, tx: one.tx },
        { payload: 2, tx: two.tx },
      ]
      await rejects(holdfast.queue('mail').enqueueMany(entries), 'INVALID_OPTION', { option: 'tx' })
      await one.commit()
      await two.commit()
      assert.deepEqual(await allJobs(holdfast), [])
    }),
  )

  test(
    'the commit wakes a waiting claim, in any client',
    inSql(async ({ holdfast, another, sql }) => {
      const other = await another()
      const tookMs: number[] = []
      for (let n = 0; n < 6; n++) {
        const client = n % 2 === 0 ? other : holdfast
        const claim = client.claim(['mail'], { wait: '30s' })
        await client.queues()
        const own = await sql.begin()
        await holdfast.queue('mail').enqueue(n, { tx: own.tx })
        const startedAt = performance.now()
        await own.commit()
        await (await claim)[0]?.done()
        tookMs.push(performance.now() - startedAt)
      }
      const late = tookMs.filter((ms) => ms > 500)
      assert.ok(late.length <= 1, `took ${tookMs.map((ms) => ms.toFixed(0)).join(', ')} ms`)
    }),
  )
}

/** For a database with one writer at a time. There the transaction is synchronous too. */
function aloneTests(inSql: InSqlWorld): void {
  test(
    'the enqueue is complete before the call first waits, so the commit may come before its answer',
    inSql(async ({ holdfast, sql }) => {
      const mail = holdfast.queue('mail', { retain: { done: '1h' } })
      const own = await sql.begin()
      const one = mail.enqueue('one', { tx: own.tx, dedup: { key: 'k' } })
      const many = mail.enqueueMany([2, 3].map((payload) => ({ payload, tx: own.tx })))
      const [committed] = await Promise.all([own.commit(), one, many])
      assert.equal(committed, undefined)
      assert.deepEqual(await claimOrder(holdfast, ['mail']), ['one', 2, 3])
    }),
  )

  test(
    'an asynchronous schema is refused, and nothing is enqueued',
    inSql(async ({ holdfast, sql }) => {
      const late = z.number().refine(async (n) => n > 0)
      const slow = holdfast.queue(defineQueue('slow', { payload: late }))
      const own = await sql.begin()
      await rejects(slow.enqueue(1, { tx: own.tx }), 'UNSUPPORTED', { option: 'tx', queue: 'slow' })
      await rejects(slow.enqueueMany([{ payload: -1 }, { payload: 1, tx: own.tx }]), 'UNSUPPORTED', { option: 'tx' })
      await own.commit()
      assert.deepEqual(await allJobs(holdfast), [])
      await slow.enqueue(1)
      assert.deepEqual(await claimOrder(holdfast, ['slow']), [1])
    }),
  )

  test(
    'other writers wait for its end, and readers do not',
    inSql(async ({ holdfast, another, sql }) => {
      const other = await another()
      const mail = holdfast.queue('mail')
      const own = await sql.begin()
      const inside = await mail.enqueue('inside', { tx: own.tx, dedup: { key: 'k' } })
      assert.deepEqual(await within(other.jobs(), 'a read'), { jobs: [], looked: 0, next: null })
      let isAnswered = false
      const waiting = other
        .queue('mail')
        .enqueue('outside', { dedup: { key: 'k' } })
        .finally(() => {
          isAnswered = true
        })
      await sleep(50)
      assert.equal(isAnswered, false)
      await own.commit()
      assert.deepEqual(await within(waiting, 'the enqueue that waited'), { id: inside.id, status: 'duplicate' })
      assert.deepEqual(await claimOrder(other, ['mail']), ['inside'])
    }),
  )
}

/** For a database with several writers at a time. */
function besideTests(inSql: InSqlWorld): void {
  test(
    'many jobs are claimed in the order given, and jobs of a late commit when they become visible',
    inSql(async ({ holdfast, sql }) => {
      const mail = holdfast.queue('mail')
      const own = await sql.begin()
      await mail.enqueueMany([1, 2, 3].map((n) => ({ payload: `early ${n}`, tx: own.tx })))
      await mail.enqueueMany([1, 2, 3].map((n) => ({ payload: `outside ${n}` })))
      const [first] = await mail.claim()
      assert.equal(first?.job.payload, 'outside 1')
      await mail.enqueue('early 4', { tx: own.tx })
      await own.commit()
      const rest = await claimOrder(holdfast, ['mail'])
      assert.deepEqual(rest.slice(0, 4), ['early 1', 'early 2', 'early 3', 'early 4'])
      assert.deepEqual(rest.slice(4), ['outside 2', 'outside 3'])
    }),
  )

  test(
    'a transaction is anything with query(text, values) that answers { rows } or the rows themselves',
    inSql(async ({ holdfast, sql }) => {
      const client = await sql.begin()
      const { id } = await holdfast.queue('mail').enqueue(1, { tx: queryOf(client), idempotencyKey: 'i' })
      const rowsAlone = { query: async (text: string, values: unknown[]) => (await client.query(text, values)).rows }
      const again = await holdfast.queue('mail').enqueue(1, { tx: rowsAlone, idempotencyKey: 'i' })
      assert.deepEqual(again, { id, status: 'duplicate' })
      await client.commit()
      assert.equal((await claimOne(holdfast, 'mail')).job.id, id)
    }),
  )

  for (const level of ['repeatable read', 'serializable']) {
    test(
      `a caller may be ${level}, also for a queue that did not exist when it began`,
      inSql(async ({ holdfast, sql }) => {
        const own = await sql.begin(`isolation level ${level}`)
        await own.query('select 1') // its snapshot
        const unknown = holdfast.queue('unknown', { retain: { done: '1h' }, onDead: { queue: 'notices' } })
        await unknown.enqueueMany([
          { payload: 1, tx: own.tx },
          { payload: 2, priority: 0 },
        ])
        const first = await unknown.enqueue('once', { tx: own.tx, dedup: { key: 'k' }, idempotencyKey: 'i' })
        const again = await unknown.enqueue('once', { tx: own.tx, dedup: { key: 'k' } })
        assert.deepEqual(again, { id: first.id, status: 'duplicate' })
        await own.commit()
        assert.deepEqual(await claimOrder(holdfast, ['unknown']), [2, 1, 'once'])
      }),
    )

    test(
      `a ${level} caller that cannot see the holder of its key gets a serialization failure`,
      inSql(async ({ holdfast, sql }) => {
        const own = await sql.begin(`isolation level ${level}`)
        await own.query('select 1')
        await holdfast.queue('mail').enqueue('holder', { dedup: { key: 'k' } })
        const late = holdfast.queue('mail').enqueue('late', { tx: own.tx, dedup: { key: 'k' } })
        await assert.rejects(late, { code: '40001' })
        await own.rollback()
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['holder'])
      }),
    )
  }

  test(
    'an enqueue in a failed transaction is refused, and affects no other call',
    inSql(async ({ holdfast, sql }) => {
      const own = await sql.begin()
      await own.query('select 1 / 0').catch(() => undefined)
      await assert.rejects(holdfast.queue('mail').enqueue('lost', { tx: own.tx }), { code: '25P02' })
      await own.rollback()
      await holdfast.queue('mail').enqueue('fine')
      assert.deepEqual(await claimOrder(holdfast, ['mail']), ['fine'])
    }),
  )

  test(
    'an open transaction with jobs in it blocks no enqueue, claim or settlement of that queue',
    inSql(async ({ holdfast, another, sql }) => {
      const own = await sql.begin()
      await holdfast.queue('mail').enqueue('held back', { tx: own.tx })
      const other = await another()
      assert.deepEqual(await within(other.claim(['mail']), 'a claim'), [])
      for (const payload of [1, 2, 3]) {
        await other.queue('mail').enqueue(payload)
        const lease = await within(claimOne(other, 'mail'), 'a claim')
        assert.equal(lease.job.payload, payload)
        await within(lease.done(), 'a settlement')
      }
      await within(other.pause('mail'), 'a pause')
      await within(other.resume('mail'), 'a resume')
      await within(other.sweep(), 'a sweep')
      await own.commit()
      assert.equal((await claimOne(other, 'mail')).job.payload, 'held back')
    }),
  )

  const endings: readonly ['commit' | 'rollback', 'duplicate' | 'created'][] = [
    ['commit', 'duplicate'],
    ['rollback', 'created'],
  ]
  for (const [ending, status] of endings) {
    test(
      `an enqueue that must wait for a key of another transaction delays only itself, and is ${status} after the ${ending}`,
      inSql(async ({ holdfast, sql }) => {
        const mail = holdfast.queue('mail')
        const own = await sql.begin()
        const inside = await mail.enqueue('inside', { tx: own.tx, dedup: { key: 'k' } })
        let isAnswered = false
        // All at the same moment, so that they would share a flush.
        const beside = [mail.enqueue('before'), mail.enqueue('before too', { dedup: { key: 'other' } })]
        const waiting = mail.enqueue('waits', { dedup: { key: 'k' } }).finally(() => {
          isAnswered = true
        })
        beside.push(mail.enqueue('after'), holdfast.queue('post').enqueue('elsewhere', { idempotencyKey: 'i' }))
        await within(Promise.all(beside), 'enqueues of the same moment')
        await within(mail.enqueue('later'), 'a later enqueue')
        await within(mail.enqueue('later too', { dedup: { key: 'another' } }), 'a later enqueue with a key')
        assert.equal(isAnswered, false)
        await own[ending]()
        const answer = await within(waiting, 'the enqueue that waited')
        assert.equal(answer.status, status)
        assert.equal(answer.id === inside.id, ending === 'commit')
        assert.equal((await holdfast.stats()).ready, 7)
      }),
    )
  }

  test(
    'several enqueues that wait for one key are answered with the same holder',
    inSql(async ({ holdfast, another, sql }) => {
      const clients = [holdfast, await another(), await another()]
      const own = await sql.begin()
      await holdfast.queue('mail').enqueue('inside', { tx: own.tx, dedup: { key: 'k' } })
      const waiting = clients.map((client, n) => client.queue('mail').enqueue(n, { dedup: { key: 'k' } }))
      await sleep(50) // long enough to be waiting
      await own.rollback()
      const answers = await within(Promise.all(waiting), 'those that waited')
      assert.equal(new Set(answers.map(({ id }) => id)).size, 1)
      assert.equal(answers.filter(({ status }) => status === 'created').length, 1)
      assert.equal((await holdfast.stats('mail')).ready, 1)
    }),
  )
}

function queryOf(client: CallerTx) {
  return { query: (text: string, values: unknown[]) => client.query(text, values) }
}

async function within<T>(promise: Promise<T>, what: string): Promise<T> {
  const timer = new AbortController()
  const late = sleep(patienceMs, undefined, { signal: timer.signal }).then(
    () => assert.fail(`${what} had to wait`),
    () => new Promise<never>(() => undefined),
  )
  try {
    return await Promise.race([promise, late])
  } finally {
    timer.abort()
  }
}
