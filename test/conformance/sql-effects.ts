// `effects.sql`: statements of the application in the transaction that settles the job.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import type { Lease } from '../../src/lease/lease.ts'
import { Permanent } from '../../src/lease/permanent.ts'
import type { Effects } from '../../src/queue/effects.ts'
import { allJobs, claimOne, everything, heard, readJob, rejects } from './expect.ts'
import {
  type ApplicationSql,
  type Dialect,
  type InSqlWorld,
  type InWorld,
  type KeptValue,
  type SqlFailingAtCommit,
  type StoreUnderTest,
  type World,
  withSql,
} from './world.ts'

export function sqlEffectTests(inWorld: InWorld, { runsSql, dialect }: StoreUnderTest): void {
  describe('SQL effects', () => {
    if (dialect) {
      commitsWithJobTests(withSql(inWorld), dialect)
      failureTests(withSql(inWorld), dialect)
      commitTests(withSql(inWorld), dialect)
      keptTests(withSql(inWorld), dialect)
    } else if (runsSql) unseenTests(inWorld)
    else refusedTests(inWorld)
  })
}

/** For a database that only SQL effects can reach, not the application. */
function unseenTests(inWorld: InWorld): void {
  test(
    'statements commit with their job or not at all, in a database that only effects can reach',
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

  test(
    'a statement that fails at the commit fails its own job, in a database that only effects can reach',
    inWorld(async ({ holdfast }) => {
      await holdfast.queue('mail').enqueueMany([1, 2, 3].map((payload) => ({ payload })))
      const [first, second, third] = await holdfast.claim(['mail'], { max: 3 })
      assert.ok(first && second && third)
      const add = { text: 'insert into child values ($1)', values: [1] }
      const make = [
        { text: 'create table parent (n int primary key)' },
        { text: 'create table child (n int references parent deferrable initially deferred)' },
      ]
      const parent = { text: 'insert into parent values (1)' }
      const outcomes = await Promise.allSettled([
        first.done(null, { sql: [...make, add, parent] }),
        second.done(null, { put: [{ key: 'k', value: 1 }], sql: [{ ...add, values: [7] }] }),
        third.done(null, { sql: [add] }),
      ])
      assert.deepEqual(failuresOf(outcomes), [[1, 'INVALID_OPTION']])
      assert.equal(await holdfast.kv.get('k'), null)
      const { done, scheduled } = await holdfast.stats('mail')
      assert.deepEqual([done, scheduled], [2, 1])
    }),
  )
}

function refusedTests(inWorld: InWorld): void {
  test(
    'a store that cannot run SQL refuses the settlement with that reason, and applies none of its effects',
    inWorld(async ({ holdfast }) => {
      assert.equal(holdfast.capabilities.sqlEffects, false)
      const { id } = await holdfast.queue('mail').enqueue(1)
      const lease = await claimOne(holdfast, 'mail')
      const sql = [{ text: 'select 1', values: [] }]
      const effects = { sql, put: [{ key: 'k', value: 1 }], enqueue: [{ queue: 'receipt', payload: 1 }] }
      await rejects(lease.done(null, effects), 'UNSUPPORTED', { capability: 'sqlEffects' })
      assert.equal((await readJob(holdfast, id)).state, 'running')
      assert.equal((await lease.retry(new Error('no'))).state, 'scheduled')
      assert.equal(await holdfast.kv.get('k'), null)
      assert.deepEqual(await allJobs(holdfast, { queue: 'receipt' }), [])
      const before = await everything(holdfast)
      await rejects(holdfast.cancel(id, { effects: { sql } }), 'UNSUPPORTED')
      assert.deepEqual(await everything(holdfast), before)
    }),
  )
}

type SqlWorld = World & { readonly sql: ApplicationSql }

const ends: Readonly<Record<string, (lease: Lease, effects: Effects, world: SqlWorld) => Promise<unknown>>> = {
  done: (lease, effects) => lease.done('ok', effects),
  dead: (lease, effects) => lease.dead(new Error('no'), effects),
  'dead of a Permanent error': (lease, effects) => lease.retry(new Permanent('never', { effects })),
  'settled as cancelled': (lease, effects) => lease.cancelled(effects),
  'cancelled while it waits': async (lease, effects, { holdfast }) => {
    await lease.release()
    assert.equal(await holdfast.cancel(lease.job.id, { effects }), 'cancelled')
  },
  'cancelled on request': async (lease, effects, { holdfast }) => {
    assert.equal(await holdfast.cancel(lease.job.id, { effects }), 'requested')
    assert.equal((await lease.retry(new Error('no'))).state, 'cancelled')
  },
  'cancelled on request when its lease expires': async (lease, effects, { holdfast, clock }) => {
    assert.equal(await holdfast.cancel(lease.job.id, { effects }), 'requested')
    await clock.advance(60_000)
    await holdfast.sweep()
  },
}

function commitsWithJobTests(inSql: InSqlWorld, dialect: Dialect): void {
  for (const [how, end] of Object.entries(ends)) {
    test(
      `statements commit with a job that is ${how}`,
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
    'values are stored as they were given',
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
    'a value that is undefined is refused with its statement and index, and is never written as NULL',
    inSql(async ({ holdfast, sql }) => {
      const notes = await table(sql)
      const { text } = notes.add(1)
      const holes: unknown[] = []
      holes[1] = 1
      const cases: [readonly unknown[], number][] = [
        [[undefined], 0],
        [[1, undefined], 1],
        [holes, 0],
      ]
      for (const [values, index] of cases) {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        const says = `SQL effect "${text}": values[${index}] is undefined; pass null to write NULL.`
        for (const settle of [
          () => holdfast.cancel(id, { effects: { sql: [{ text, values }] } }),
          () => lease.done(null, { sql: [{ text, values }] }),
        ]) {
          assert.equal((await rejects(settle(), 'INVALID_OPTION')).message, says)
        }
      }
      assert.deepEqual(await notes.all(), [])
    }),
  )

  test(
    'a settlement may have many statements, also for many jobs at once',
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
  const failing = { ...dialect.failing, ...dialect.failingLikeTheStore }
  for (const [what, { make = [], text, values = [], says }] of Object.entries(failing)) {
    test(
      `${what} fails its own job with a readable error, and applies nothing`,
      inSql(async ({ holdfast, clock, sql }) => {
        const notes = await table(sql)
        for (const each of make) await sql.query(each.replaceAll('$schema', () => sql.schema))
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
      `${what} does not affect other settlements in the same flush`,
      inSql(async ({ holdfast, sql }) => {
        const notes = await table(sql)
        for (const each of make) await sql.query(each.replaceAll('$schema', () => sql.schema))
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
        const stored = Array.from({ length: 20 }, (_, n) => n).filter((n) => n % 3 !== 2 && n !== 9)
        assert.deepEqual(await notes.all(), [7, ...stored.map((n) => 100 + n)])
        assert.equal((await Array.fromAsync(holdfast.kv.scan('k'))).length, stored.length)
      }),
    )
  }

  for (const [what, { make = [], text, values = [], says }] of Object.entries(dialect.failingLikeTheStore)) {
    test(
      `${what} among the effects of a requested cancel stops no sweep: its job ends, and all others are rescued`,
      inSql(async ({ holdfast, clock, sql }) => {
        const notes = await table(sql)
        for (const each of make) await sql.query(each.replaceAll('$schema', () => sql.schema))
        const bad = await holdfast.queue('bad').enqueue(1)
        await holdfast.queue('mail').enqueueMany(numbers.map((payload) => ({ payload })))
        await claimOne(holdfast, 'bad', { lease: '10s' })
        const leases = await holdfast.claim(['mail'], { max: numbers.length, lease: '20s' })
        await holdfast.queue('later').enqueueMany(numbers.map((payload) => ({ payload, delay: '5s' })))
        const failures: string[] = []
        holdfast.on('settle.failed', ({ id }) => failures.push(id))
        await holdfast.cancel(bad.id, { effects: { sql: [notes.add(1), { text, values }] } })
        await holdfast.cancel((leases[0] as Lease).job.id, { effects: { sql: [notes.add(2)] } })
        await clock.advance(60_000)
        const swept = await holdfast.sweep()
        assert.deepEqual([swept.rescued, swept.promoted], [numbers.length + 1, numbers.length])
        const { state, error } = await readJob(holdfast, bad.id)
        assert.deepEqual([state, error?.name], ['cancelled', 'EffectFailed'])
        assert.match(error?.message ?? '', says)
        assert.deepEqual(failures, [bad.id])
        const { ready, cancelled } = await holdfast.stats('mail')
        assert.deepEqual([ready, cancelled], [numbers.length - 1, 1])
        assert.deepEqual(await notes.all(), [2])
      }),
    )

    test(
      `${what} refuses its own cancel, and the job still waits`,
      inSql(async ({ holdfast, sql }) => {
        const notes = await table(sql)
        for (const each of make) await sql.query(each.replaceAll('$schema', () => sql.schema))
        const [first, second] = await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }])
        assert.ok(first && second)
        const outcomes = await Promise.allSettled([
          holdfast.cancel(first.id, { effects: { sql: [notes.add(1), { text, values }] } }),
          holdfast.cancel(second.id, { effects: { sql: [notes.add(2)] } }),
        ])
        assert.deepEqual(failuresOf(outcomes), [[0, 'INVALID_OPTION']])
        assert.equal((await readJob(holdfast, first.id)).state, 'ready')
        assert.equal((await readJob(holdfast, second.id)).state, 'cancelled')
        assert.deepEqual(await notes.all(), [2])
      }),
    )
  }

  test(
    'a value that is no statement is refused alone, and its lease is as it was',
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
      assert.equal((await holdfast.stats('mail')).running, wrong.length)
    }),
  )

  test(
    'a failing statement of a settlement as dead, permanent or cancelled fails the job in the same way',
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
    'a cancel whose statement fails is refused, and the job still waits',
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
    'a requested cancel whose statement fails still ends the job, with the reason',
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

const numbers = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
const others = numbers.filter((n) => n !== 7)

/** Statements whose failure no savepoint catches: they fail only at the commit of the store. */
function commitTests(inSql: InSqlWorld, dialect: Dialect): void {
  for (const [what, way] of Object.entries(dialect.failingAtCommit)) {
    test(
      `${what} that fails at the commit fails its own job with a readable error, and no other settlement`,
      inSql(async ({ holdfast, clock, sql }) => {
        const guarded = await guardedTable(sql, way)
        const leases = await claimNumbers(holdfast)
        const settle = (lease: Lease) => {
          const n = numberOf(lease)
          if (n % 4 === 0) return lease.done(n) // without effects
          return lease.done(n, { put: [{ key: `k${n}`, value: n }], sql: guarded.add(n) })
        }
        const outcomes = await Promise.allSettled([holdfast.kv.put('beside', 1), ...leases.map(settle)])
        assert.deepEqual(failuresOf(outcomes), [[7, 'INVALID_OPTION']])
        const stored = others.filter((n) => n % 4 !== 0)
        assert.deepEqual(await guarded.stored(), stored)
        assert.equal((await Array.fromAsync(holdfast.kv.scan('k'))).length, stored.length)

        const { id } = (leases[6] as Lease).job
        const { state, attempts, history, runAt } = await readJob(holdfast, id)
        assert.deepEqual([state, attempts, history[0]?.ending], ['scheduled', 1, 'failed'])
        assert.equal(history[0]?.error?.name, 'EffectFailed')
        assert.match(history[0]?.error?.message ?? '', way.says)

        // Alone it fails in the same way, until its attempts are spent.
        await clock.advance(runAt.getTime() - clock.now())
        await holdfast.sweep()
        const again = await claimOne(holdfast, 'mail')
        await rejects(again.done(null, { sql: guarded.add(7) }), 'INVALID_OPTION')
        const dead = await readJob(holdfast, id)
        assert.deepEqual([dead.state, dead.attempts, dead.error?.name], ['dead', 2, 'EffectFailed'])
        assert.deepEqual(await guarded.stored(), stored)
      }),
    )

    if (way.isVariant) continue
    test(
      `${what} that fails at the commit fails a settlement as dead or cancelled`,
      inSql(async ({ holdfast, sql }) => {
        const guarded = await guardedTable(sql, way)
        const leases = await claimNumbers(holdfast, 3)
        const [dead, permanent, cancelled] = leases
        assert.ok(dead && permanent && cancelled)
        const effects = { sql: guarded.add(7) }
        const outcomes = await Promise.allSettled([
          dead.dead(new Error('no'), effects),
          permanent.retry(new Permanent('never', { effects })),
          cancelled.cancelled(effects),
        ])
        for (const outcome of outcomes)
          assert.equal(outcome.status === 'rejected' && outcome.reason.code, 'INVALID_OPTION')
        for (const { job } of leases) assert.equal((await readJob(holdfast, job.id)).state, 'scheduled')
        assert.deepEqual(await guarded.stored(), [])
      }),
    )

    test(
      `${what} that fails at the commit refuses its own cancel, and the job still waits`,
      inSql(async ({ holdfast, sql }) => {
        const guarded = await guardedTable(sql, way)
        const jobs = await holdfast.queue('mail').enqueueMany(numbers.map((payload) => ({ payload })))
        const cancel = ({ id }: { id: string }, i: number) =>
          holdfast.cancel(id, { effects: { sql: guarded.add(numbers[i] as number) } })
        const outcomes = await Promise.allSettled([holdfast.kv.put('beside', 1), ...jobs.map(cancel)])
        assert.deepEqual(failuresOf(outcomes), [[7, 'INVALID_OPTION']])
        assert.match(String((outcomes[7] as PromiseRejectedResult).reason.message), way.says)
        const [waiting] = await holdfast.claim(['mail'], { max: 10 })
        assert.equal(waiting?.job.payload, 7)
        assert.deepEqual(await guarded.stored(), others)
      }),
    )

    test(
      `${what} that fails at the commit does not keep a requested cancel from ending the job, by its worker or by the sweep`,
      inSql(async ({ holdfast, clock, sql }) => {
        const guarded = await guardedTable(sql, way)
        const leases = await claimNumbers(holdfast)
        const failures: unknown[] = []
        holdfast.on('settle.failed', ({ id, state, error }) => failures.push([id, state, error.message]))
        for (const lease of leases) {
          const asked = holdfast.cancel(lease.job.id, { effects: { sql: guarded.add(numberOf(lease)) } })
          assert.equal(await asked, 'requested')
        }
        const held = await claimNumbers(holdfast, 1)
        await holdfast.cancel((held[0] as Lease).job.id, { effects: { sql: guarded.add(7) } })
        await rejects((held[0] as Lease).retry(new Error('no')), 'INVALID_OPTION')
        const { state, error } = await readJob(holdfast, (held[0] as Lease).job.id)
        assert.deepEqual([state, error?.name], ['cancelled', 'EffectFailed'])

        const { id: due } = await holdfast.queue('mail').enqueue('due', { delay: 1_000 })
        await clock.advance(60_000)
        const { rescued, promoted } = await holdfast.sweep()
        assert.deepEqual([rescued, promoted], [numbers.length, 1])
        assert.equal((await readJob(holdfast, due)).state, 'ready')
        for (const lease of leases) {
          const { state, error } = await readJob(holdfast, lease.job.id)
          const isBad = numberOf(lease) === 7
          assert.deepEqual([state, error?.name], ['cancelled', isBad ? 'EffectFailed' : 'LeaseExpired'])
          if (isBad) assert.match(error?.message ?? '', way.says)
        }
        assert.deepEqual(await guarded.stored(), others)
        const events = failures.map((each) => (each as unknown[]).slice(0, 2))
        assert.deepEqual(events, [[(leases[6] as Lease).job.id, 'cancelled']])
      }),
    )

    test(
      `${what} that fails at the commit refuses its own accept, and the offer stays`,
      inSql(async ({ holdfast, sql }) => {
        const guarded = await guardedTable(sql, way)
        await holdfast.queue('mail').enqueue(1)
        const snoozed = heard(holdfast, 'job.snoozed')
        const worker = holdfast.work('mail', (job) => job.offer('letter', { inbox: 'read' }))
        await snoozed
        await worker.stop()
        const [pickup] = await Array.fromAsync(holdfast.inbox('read'))
        assert.ok(pickup)
        const refused = rejects(pickup.accept(1, { effects: { sql: guarded.add(7) } }), 'INVALID_OPTION')
        assert.match((await refused).message, way.says)
        assert.equal((await readJob(holdfast, pickup.id)).state, 'scheduled')
        await pickup.accept(1, { effects: { sql: guarded.add(8) } })
        assert.deepEqual(await guarded.stored(), [8])
        assert.equal((await readJob(holdfast, pickup.id)).state, 'done')
      }),
    )
  }

  test(
    'statements whose constraint holds only at the commit succeed, also beside a settlement that fails there',
    inSql(async ({ holdfast, sql }) => {
      const [way] = Object.values(dialect.failingAtCommit)
      assert.ok(way)
      const guarded = await guardedTable(sql, way)
      const parent = { text: `insert into ${sql.schema}.parent values ($1)`, values: [20] }
      const leases = await claimNumbers(holdfast, 3)
      const outcomes = await Promise.allSettled([
        leases[0]?.done(null, { sql: [...guarded.add(20), parent] }),
        leases[1]?.done(null, { sql: guarded.add(7) }),
        leases[2]?.done(null, { sql: [...guarded.add(21), { ...parent, values: [21] }] }),
      ])
      assert.deepEqual(failuresOf(outcomes), [[1, 'INVALID_OPTION']])
      assert.deepEqual(await guarded.stored(), [20, 21])
    }),
  )
}

async function guardedTable({ schema, query }: ApplicationSql, { make, add, table }: SqlFailingAtCommit) {
  const named = (text: string) => text.replaceAll('$schema', () => schema)
  for (const text of make) await query(named(text))
  const all = `select n from ${named(table)} where n <> 7 order by n`
  return {
    add: (n: number) => add(n).map(({ text, values = [] }) => ({ text: named(text), values })),
    stored: async () => (await query(all)).map(({ n }) => n),
  }
}

async function claimNumbers(holdfast: Holdfast, max = numbers.length): Promise<Lease[]> {
  const some = numbers.slice(0, max)
  await holdfast.queue('mail').enqueueMany(some.map((payload) => ({ payload, attempts: 2 })))
  return holdfast.claim(['mail'], { max })
}

function numberOf({ job }: Lease): number {
  return job.payload as number
}

function failuresOf(outcomes: readonly PromiseSettledResult<unknown>[]): [number, string][] {
  return outcomes.flatMap((outcome, i) => (outcome.status === 'rejected' ? [[i, outcome.reason.code]] : []))
}

function keptTests(inSql: InSqlWorld, dialect: Dialect): void {
  for (const value of dialect.values) {
    const { what, type, given } = value
    test(
      `${what} in the effects of a requested cancel is stored as it was given, or is refused at once`,
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

async function table({ schema, query }: ApplicationSql) {
  const name = `${schema}.notes`
  await query(`create table ${name} (n int unique check (n >= 0), note text)`)
  return {
    name,
    add: (n: number) => ({ text: `insert into ${name} (n) values ($1)`, values: [n] }),
    all: async () => (await query(`select n from ${name} order by n`)).map(({ n }) => n),
  }
}
