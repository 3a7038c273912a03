// `effects.sql`: statements of the application's own, in the transaction that settles the job.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Effects } from '../../src/effects.ts'
import type { Lease } from '../../src/lease.ts'
import { Permanent } from '../../src/permanent.ts'
import { allJobs, claimOne, everything, readJob, rejects } from './expect.ts'
import {
  type Dialect,
  type InSqlWorld,
  type InWorld,
  type KeptValue,
  type SqlHand,
  type StoreUnderTest,
  type World,
  withSql,
} from './world.ts'

export function sqlEffectTests(inWorld: InWorld, { runsSql, dialect }: StoreUnderTest): void {
  describe('SQL effects', () => {
    if (dialect) {
      landingTests(withSql(inWorld), dialect)
      failureTests(withSql(inWorld), dialect)
      keptTests(withSql(inWorld), dialect)
    } else if (runsSql) unseenTests(inWorld)
    else refusedTests(inWorld)
  })
}

/** The application cannot look into the database: only statements can. */
function unseenTests(inWorld: InWorld): void {
  test(
    'statements land with their job or not at all, where nobody else reaches the tables',
    inWorld(async ({ holdfast }) => {
      assert.equal(holdfast.capabilities.sqlEffects, true)
      await holdfast.queue('mail').enqueueMany([1, 2, 3].map((payload) => ({ payload })))
      const [first, second, third] = await holdfast.claim(['mail'], { max: 3 })
      assert.ok(first && second && third)
      const add = { text: 'insert into notes values ($1)', values: [1] }
      await first.done(null, { sql: [{ text: 'create table notes (n int unique)' }, add] })
      const again = rejects(second.done(null, { put: [{ key: 'k', value: 1 }], sql: [add] }), 'INVALID_OPTION')
      assert.match((await again).message, /UNIQUE constraint failed/)
      assert.equal(await holdfast.kv.get('k'), null)
      await third.done(null, { sql: [{ ...add, values: [2] }] })
      const { done, scheduled } = await holdfast.stats('mail')
      assert.deepEqual([done, scheduled], [2, 1])
    }),
  )
}

function refusedTests(inWorld: InWorld): void {
  test(
    'a store that cannot run them says so, fails the job, and applies none of its effects',
    inWorld(async ({ holdfast }) => {
      assert.equal(holdfast.capabilities.sqlEffects, false)
      const { id } = await holdfast.queue('mail').enqueue(1)
      const lease = await claimOne(holdfast, 'mail')
      const sql = [{ text: 'select 1', values: [] }]
      const effects = { sql, put: [{ key: 'k', value: 1 }], enqueue: [{ queue: 'receipt', payload: 1 }] }
      await rejects(lease.done(null, effects), 'UNSUPPORTED', { capability: 'sqlEffects' })
      const { state, history } = await readJob(holdfast, id)
      assert.deepEqual([state, history[0]?.ending, history[0]?.error?.code], ['scheduled', 'failed', 'UNSUPPORTED'])
      assert.equal(await holdfast.kv.get('k'), null)
      assert.deepEqual(await allJobs(holdfast, { queue: 'receipt' }), [])
      const before = await everything(holdfast)
      await rejects(holdfast.cancel(id, { effects: { sql } }), 'UNSUPPORTED')
      assert.deepEqual(await everything(holdfast), before)
    }),
  )
}

type SqlWorld = World & { readonly sql: SqlHand }

const ends: Readonly<Record<string, (lease: Lease, effects: Effects, world: SqlWorld) => Promise<unknown>>> = {
  done: (lease, effects) => lease.done('ok', effects),
  dead: (lease, effects) => lease.dead(new Error('no'), effects),
  'dead of a Permanent error': (lease, effects) => lease.retry(new Permanent('never', { effects })),
  'given up as cancelled': (lease, effects) => lease.cancelled(effects),
  'cancelled while it waits': async (lease, effects, { holdfast }) => {
    await lease.release()
    assert.equal(await holdfast.cancel(lease.job.id, { effects }), 'cancelled')
  },
  'cancelled on request': async (lease, effects, { holdfast }) => {
    assert.equal(await holdfast.cancel(lease.job.id, { effects }), 'requested')
    assert.equal((await lease.retry(new Error('no'))).state, 'cancelled')
  },
  'cancelled on request when its lease runs out': async (lease, effects, { holdfast, clock }) => {
    assert.equal(await holdfast.cancel(lease.job.id, { effects }), 'requested')
    await clock.advance(60_000)
    await holdfast.sweep()
  },
}

function landingTests(inSql: InSqlWorld, dialect: Dialect): void {
  for (const [how, end] of Object.entries(ends)) {
    test(
      `statements land with a job that is ${how}`,
      inSql(async (world) => {
        const { holdfast, sql } = world
        const notes = await table(sql)
        await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        await end(lease, { sql: [notes.add(1), notes.add(2)], put: [{ key: 'k', value: 1 }] }, world)
        assert.deepEqual(await notes.all(), [1, 2])
        assert.equal((await holdfast.kv.get('k'))?.value, 1)
        assert.match((await readJob(holdfast, lease.job.id)).state, /^(done|dead|cancelled)$/)
      }),
    )
  }

  test(
    'statements run in their order, after puts and deletes and before follow-ups',
    inSql(async ({ holdfast, sql }) => {
      assert.equal(holdfast.capabilities.sqlEffects, true)
      const seen = `${sql.schema}.seen`
      await sql.query(`create table ${seen} (name text, n int)`)
      await holdfast.kv.put('gone', 1)
      const { id } = await holdfast.queue('mail').enqueue(1)
      const see = (name: string, from: string) => ({
        text: `insert into ${seen} select $1, count(*) from ${from}`,
        values: [name],
      })
      await (await claimOne(holdfast, 'mail')).done(null, {
        enqueue: [{ queue: 'receipt', payload: 1 }],
        put: [{ key: 'k', value: 1 }],
        delete: ['gone'],
        sql: [
          see('put', dialect.from.key(sql.schema, 'k')),
          see('deleted', dialect.from.key(sql.schema, 'gone')),
          see('follow-ups', dialect.from.ready(sql.schema)),
          see('ended', dialect.from.ended(sql.schema, id)),
          { text: `update ${seen} set n = n + 10 where name = 'put'` },
          { text: `update ${seen} set n = n * 2 where name = 'put'` },
        ],
      })
      const rows = await sql.query(`select * from ${seen}`)
      assert.deepEqual(Object.fromEntries(rows.map(({ name, n }) => [name, n])), {
        put: 22,
        deleted: 0,
        'follow-ups': 0,
        ended: 1,
      })
      assert.equal((await holdfast.stats('receipt')).ready, 1)
    }),
  )

  test(
    'values arrive as they were given',
    inSql(async ({ holdfast, sql }) => {
      const columns = dialect.values.map(({ type }, i) => `v${i} ${type}`)
      await sql.query(`create table ${sql.schema}.kept (${columns.join(', ')})`)
      await holdfast.queue('mail').enqueue(1)
      const values = dialect.values.map(({ given }) => given)
      const text = `insert into ${sql.schema}.kept values (${values.map((_, i) => `$${i + 1}`).join(', ')})`
      await (await claimOne(holdfast, 'mail')).done(null, { sql: [{ text, values }] })
      const [row] = await sql.query(`select * from ${sql.schema}.kept`)
      assert.deepEqual(Object.values(row ?? {}), dialect.values.map(readAgain))
    }),
  )

  test(
    'a job may be settled by many statements, and many jobs at once',
    inSql(async ({ holdfast, sql }) => {
      const notes = await table(sql)
      await holdfast.queue('mail').enqueueMany(Array.from({ length: 20 }, (_, payload) => ({ payload })))
      const leases = await holdfast.claim(['mail'], { max: 20 })
      const settle = (lease: Lease, n: number) =>
        lease.done(n, { sql: Array.from({ length: 10 }, (_, i) => notes.add(n * 10 + i)) })
      await Promise.all(leases.map(settle))
      assert.deepEqual(
        await notes.all(),
        Array.from({ length: 200 }, (_, n) => n),
      )
      assert.equal((await holdfast.stats('mail')).done, 20)
    }),
  )

  test(
    'a lost lease runs nothing',
    inSql(async ({ holdfast, clock, sql }) => {
      const notes = await table(sql)
      await holdfast.queue('mail').enqueue(1)
      const late = await claimOne(holdfast, 'mail', { lease: '30s' })
      await clock.advance(31_000)
      await holdfast.sweep()
      const current = await claimOne(holdfast, 'mail')
      const effects = { sql: [notes.add(1)] }
      await rejects(late.done(null, effects), 'LEASE_LOST')
      await rejects(late.dead(new Error('no'), effects), 'LEASE_LOST')
      await rejects(late.cancelled(effects), 'LEASE_LOST')
      assert.deepEqual(await notes.all(), [])
      await current.done(null, { sql: [notes.add(2)] })
      await rejects(current.done(null, effects), 'LEASE_LOST')
      assert.deepEqual(await notes.all(), [2])
    }),
  )

  test(
    'a cancel that comes too late runs nothing',
    inSql(async ({ holdfast, sql }) => {
      const notes = await table(sql)
      const { id } = await holdfast.queue('mail').enqueue(1)
      assert.equal(await holdfast.cancel(id, { effects: { sql: [notes.add(1)] } }), 'cancelled')
      await rejects(holdfast.cancel(id, { effects: { sql: [notes.add(2)] } }), 'INVALID_STATE')
      assert.deepEqual(await notes.all(), [1])
    }),
  )

  test(
    'done wins over a requested cancel, whose statements are then not run',
    inSql(async ({ holdfast, sql }) => {
      const notes = await table(sql)
      const { id } = await holdfast.queue('mail').enqueue(1)
      const lease = await claimOne(holdfast, 'mail')
      assert.equal(await holdfast.cancel(id, { effects: { sql: [notes.add(1)] } }), 'requested')
      await lease.done(null, { sql: [notes.add(2)] })
      assert.deepEqual(await notes.all(), [2])
    }),
  )
}

function failureTests(inSql: InSqlWorld, dialect: Dialect): void {
  for (const [what, { text, values = [], says }] of Object.entries(dialect.failing)) {
    test(
      `${what} fails its own job, readably, and applies nothing`,
      inSql(async ({ holdfast, clock, sql }) => {
        const notes = await table(sql)
        await sql.query(`insert into ${notes.name} (n) values (7)`)
        await holdfast.kv.put('kept', true)
        const bad = { text: text.replaceAll('$notes', () => notes.name), values }
        const effects: Effects = {
          ...{ enqueue: [{ queue: 'receipt', payload: 1 }], put: [{ key: 'put', value: 1 }], delete: ['kept'] },
          sql: [notes.add(100), bad, notes.add(101)],
        }
        const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 2 })
        const error = await rejects((await claimOne(holdfast, 'mail')).done('result', effects), 'INVALID_OPTION')
        assert.ok(error.message.includes(`SQL effect "${bad.text}"`), error.message)
        assert.match(error.message, says)

        const failed = await readJob(holdfast, id)
        assert.deepEqual([failed.state, failed.attempts, failed.result], ['scheduled', 1, null])
        const delay = failed.runAt.getTime() - clock.now()
        assert.ok(delay >= 8_000 && delay <= 12_000, `retried after ${delay} ms`)
        const [attempt] = failed.history
        assert.deepEqual([attempt?.ending, attempt?.error?.name], ['failed', 'EffectFailed'])
        assert.ok(attempt?.error?.message.includes(bad.text), attempt?.error?.message)

        await clock.advance(delay)
        await holdfast.sweep()
        await rejects((await claimOne(holdfast, 'mail')).done('result', effects), 'INVALID_OPTION')
        const dead = await readJob(holdfast, id)
        assert.deepEqual([dead.state, dead.attempts, dead.error?.name], ['dead', 2, 'EffectFailed'])

        assert.deepEqual(await notes.all(), [7])
        assert.deepEqual(await allJobs(holdfast, { queue: 'receipt' }), [])
        assert.equal(await holdfast.kv.get('put'), null)
        assert.equal((await holdfast.kv.get('kept'))?.value, true)
      }),
    )

    test(
      `${what} never touches the settlements it meets`,
      inSql(async ({ holdfast, sql }) => {
        const notes = await table(sql)
        await sql.query(`insert into ${notes.name} (n) values (7)`)
        const bad = { text: text.replaceAll('$notes', () => notes.name), values }
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 20 }, (_, payload) => ({ payload })))
        const leases = await holdfast.claim(['mail'], { max: 20 })
        const settle = (lease: Lease, n: number) => {
          if (n % 3 === 2) return lease.done(n) // without effects
          return lease.done(n, {
            put: [{ key: `k${n}`, value: n }],
            sql: [notes.add(100 + n), ...(n === 9 ? [bad] : [])],
          })
        }
        const outcomes = await Promise.allSettled(leases.map(settle))
        assert.deepEqual(
          outcomes.flatMap((outcome, n) => (outcome.status === 'rejected' ? [[n, outcome.reason.code]] : [])),
          [[9, 'INVALID_OPTION']],
        )
        const { done, scheduled } = await holdfast.stats('mail')
        assert.deepEqual([done, scheduled], [19, 1])
        const landed = Array.from({ length: 20 }, (_, n) => n).filter((n) => n % 3 !== 2 && n !== 9)
        assert.deepEqual(await notes.all(), [7, ...landed.map((n) => 100 + n)])
        assert.equal((await Array.fromAsync(holdfast.kv.scan('k'))).length, landed.length)
      }),
    )
  }

  test(
    'what is no statement is refused in the same way, alone',
    inSql(async ({ holdfast, sql }) => {
      const notes = await table(sql)
      const wrong = [
        {},
        { text: null },
        { text: 5 },
        { text: ' ' },
        { text: 'select 1', values: 'one' },
        { text: 'x', values: 1 },
      ]
      await holdfast.queue('mail').enqueueMany([...wrong, {}].map((payload) => ({ payload })))
      const leases = await holdfast.claim(['mail'], { max: 10 })
      const outcomes = await Promise.allSettled(
        leases.map((lease, n) =>
          lease.done(n, { sql: [notes.add(n), ...wrong.slice(n, n + 1)] as Effects['sql'] & {} }),
        ),
      )
      const codes = outcomes.map((outcome) => (outcome.status === 'rejected' ? outcome.reason.code : 'done'))
      assert.deepEqual(codes, [...wrong.map(() => 'INVALID_OPTION'), 'done'])
      assert.deepEqual(await notes.all(), [wrong.length])
      assert.equal((await holdfast.stats('mail')).scheduled, wrong.length)
    }),
  )

  test(
    'a failing statement of dead, of a Permanent error and of cancelled fails the job the same way',
    inSql(async ({ holdfast, sql }) => {
      const notes = await table(sql)
      const effects = { sql: [notes.add(1), { text: dialect.broken }] }
      const ids = await holdfast.queue('mail').enqueueMany([1, 2, 3].map((payload) => ({ payload })))
      const [dead, permanent, cancelled] = await holdfast.claim(['mail'], { max: 3 })
      assert.ok(dead && permanent && cancelled)
      await rejects(dead.dead(new Error('no'), effects), 'INVALID_OPTION')
      await rejects(permanent.retry(new Permanent('never', { effects })), 'INVALID_OPTION')
      await rejects(cancelled.cancelled(effects), 'INVALID_OPTION')
      for (const { id } of ids) assert.equal((await readJob(holdfast, id)).state, 'scheduled')
      assert.deepEqual(await notes.all(), [])
    }),
  )

  test(
    'a cancel whose statement fails is refused and the job waits on',
    inSql(async ({ holdfast, sql }) => {
      const notes = await table(sql)
      const { id } = await holdfast.queue('mail').enqueue(1)
      const before = await everything(holdfast)
      for (const text of [dialect.broken, 'commit', '/* x */ commit']) {
        await rejects(holdfast.cancel(id, { effects: { sql: [notes.add(1), { text }] } }), 'INVALID_OPTION')
        assert.deepEqual(await everything(holdfast), before)
        assert.deepEqual(await notes.all(), [])
      }
      assert.equal((await claimOne(holdfast, 'mail')).job.id, id)
    }),
  )

  test(
    'a requested cancel whose statement fails ends the job all the same, and says why',
    inSql(async ({ holdfast, sql }) => {
      const notes = await table(sql)
      const { id } = await holdfast.queue('mail').enqueue(1)
      const lease = await claimOne(holdfast, 'mail')
      await holdfast.cancel(id, { effects: { sql: [notes.add(1), { text: dialect.broken }] } })
      await rejects(lease.retry(new Error('no')), 'INVALID_OPTION')
      const { state, error } = await readJob(holdfast, id)
      assert.deepEqual([state, error?.name], ['cancelled', 'EffectFailed'])
      assert.deepEqual(await notes.all(), [])
    }),
  )
}

function keptTests(inSql: InSqlWorld, dialect: Dialect): void {
  for (const value of dialect.values) {
    const { what, type, given } = value
    test(
      `${what} that comes with a requested cancel arrives as it was given, or is refused at once`,
      inSql(async ({ holdfast, sql }) => {
        await sql.query(`create table ${sql.schema}.kept (v ${type})`)
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        const effects = { sql: [{ text: `insert into ${sql.schema}.kept values ($1)`, values: [given] }] }
        const [asked] = await Promise.allSettled([holdfast.cancel(id, { effects })])
        if (asked.status === 'rejected') return assert.equal(asked.reason.code, 'INVALID_OPTION', asked.reason)
        await lease.cancelled()
        const [row] = await sql.query(`select v from ${sql.schema}.kept`)
        assert.deepEqual(row?.['v'], readAgain(value))
      }),
    )
  }
}

function readAgain(value: KeptValue): unknown {
  return 'read' in value ? value.read : value.given
}

async function table({ schema, query }: SqlHand) {
  const name = `${schema}.notes`
  await query(`create table ${name} (n int unique check (n >= 0), note text)`)
  return {
    name,
    add: (n: number) => ({ text: `insert into ${name} (n) values ($1)`, values: [n] }),
    all: async () => (await query(`select n from ${name} order by n`)).map(({ n }) => n),
  }
}
