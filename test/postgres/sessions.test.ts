// Settings, transactions and processes beside the store.
import assert from 'node:assert/strict'
import test from 'node:test'
import { open } from '../../src/open.ts'
import { systemClock } from '../../src/runtime/clock.ts'
import { Database } from '../../src/store/postgres/connection/database.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { claimOne, rejects, stateOf } from '../conformance/expect.ts'
import { inWorld, useDatabase } from './world.ts'

useDatabase()

test(
  'a transaction that enqueued without notifications can be prepared for a two-phase commit',
  inWorld(async (world) => {
    const name = `prepared ${world.schema.name}`
    await using quiet = await open(postgres({ pool: world.pool, schema: world.schema.name, listen: false }))
    const tx = await world.pool.connect()
    try {
      await tx.query('begin')
      await quiet.queue('mail').enqueue('a', { tx })
      await tx.query(`prepare transaction '${name}'`)
      assert.deepEqual(await world.claim(), [])
      await tx.query(`commit prepared '${name}'`)
    } finally {
      tx.release()
    }
    assert.deepEqual(await world.claim(), ['a'])
  }),
)

test(
  'an open store goes on when the default isolation becomes repeatable read',
  inWorld(async (world) => {
    const id = await world.enqueue('mail', 'a')
    const database = new URL(world.url).pathname.slice(1)
    await world.rows(`alter database ${database} set default_transaction_isolation = 'repeatable read'`)
    try {
      const idle = await world.rows(
        `select pg_terminate_backend(pid, 5000) from pg_stat_activity
          where datname = current_database() and pid <> pg_backend_pid()`,
      )
      assert.ok(idle)
      const client = await world.pool.connect()
      client.release(true)
      const [lease] = await world.holdfast.claim(['mail'])
      assert.equal(lease?.job.id, id)
      assert.equal(await stateOf(world.holdfast, id), 'running')
    } finally {
      await world.rows(`alter database ${database} reset default_transaction_isolation`)
    }
  }),
)

test(
  'a setting that a SQL effect makes does not outlive its settlement',
  inWorld(async (world) => {
    await world.enqueue('mail', 1)
    const lease = await claimOne(world.holdfast, 'mail')
    const text = `set application_name = 'left behind'`
    await rejects(lease.done(null, { sql: [{ text }] }), 'INVALID_OPTION')
    const shown = await Promise.all(Array.from({ length: 20 }, () => world.pool.query('show application_name')))
    assert.ok(!shown.some(({ rows }) => rows[0]?.application_name === 'left behind'))
  }),
)

test(
  'a process that freezes inside a transaction holds its locks for two seconds, and repeats its call',
  inWorld(async (world) => {
    const id = await world.enqueue('mail', 'a')
    const database = new Database(world.pool, {
      schema: world.schema,
      clock: systemClock,
      connections: 3,
      answerMs: 5_000,
    })
    const stopped = Promise.withResolvers<void>()
    const goesOn = Promise.withResolvers<void>()
    let tries = 0
    const call = database.transactLightly(async (tx) => {
      tries += 1
      await tx.query('lock table holdfast.ended, holdfast.lease in access exclusive mode', [])
      stopped.resolve()
      await goesOn.promise
      return tx.query('select 1', [])
    })
    await stopped.promise
    const lease = await claimOne(world.holdfast, 'mail')
    await lease.done()
    assert.equal(await stateOf(world.holdfast, id), 'done')
    goesOn.resolve()
    assert.deepEqual(await call, [['1']])
    assert.equal(tries, 2)
  }),
)
