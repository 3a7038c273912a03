// `close` beside a transaction of the application that stays open: it ends within its time, and nothing is lost.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { StandardSchemaV1 } from '@standard-schema/spec'
import { isHoldfastError } from '../../src/errors.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { claimOne, heard, minute, readJob } from './expect.ts'
import { type Dialect, type InSqlWorld, type InWorld, type StoreUnderTest, withSql } from './world.ts'

/** The timeout that is given, and what a busy machine may add. */
const timeoutMs = 300
const marginMs = 3_000
/** Until a call has certainly met the open transaction. */
const meetMs = 200

export function closeWaitingTests(inWorld: InWorld, { dialect }: StoreUnderTest): void {
  describe('close within a bounded time', () => {
    schemaTests(inWorld)
    if (dialect) openTransactionTests(withSql(inWorld), dialect)
  })
}

function schemaTests(inWorld: InWorld): void {
  test(
    'a schema that never answers, of a payload or of a result, does not keep it waiting',
    inWorld(async ({ holdfast, another }) => {
      const queue = defineQueue('mail', { payload: neverAnswers })
      const checked = defineQueue('post', { result: neverAnswers })
      await holdfast.queue(checked).enqueue(1)
      const [lease] = await holdfast.claim([checked])
      assert.ok(lease)
      holdfast.queue(queue).enqueue(1).catch(ignore)
      lease.done(2).catch(ignore)
      await closes(holdfast)
      const next = await another()
      assert.equal((await next.stats('mail')).ready, 0)
      assert.equal((await readJob(next, lease.job.id)).state, 'running')
    }),
  )
}

function openTransactionTests(inSql: InSqlWorld, dialect: Dialect): void {
  test(
    'a put of a key that another transaction has changed ends with CLOSED; the next client can write it',
    inSql(async ({ holdfast, another, sql }) => {
      await holdfast.kv.put('k', 1)
      const own = await sql.begin()
      await own.query(`delete from ${dialect.from.key(sql.schema, 'k')}`)
      const put = outcome(holdfast.kv.put('k', 2))
      await sleep(meetMs)
      await closes(holdfast)
      assert.equal(await put, 'CLOSED')
      await own.rollback()
      const next = await another()
      await next.kv.put('k', 3)
      assert.equal((await next.kv.get('k'))?.value, 3)
    }),
  )

  test(
    'a settlement and a cancel of jobs that another transaction has changed end with CLOSED; the jobs are not lost',
    inSql(async ({ holdfast, another, sql, clock }) => {
      const { id } = await holdfast.queue('mail').enqueue(1)
      const lease = await claimOne(holdfast, 'mail')
      const waiting = await holdfast.queue('mail').enqueue(2)
      const own = await sql.begin()
      await own.query(`delete from ${dialect.from.ready(sql.schema)}`)
      const calls = [outcome(lease.done()), outcome(holdfast.cancel(waiting.id))]
      await sleep(meetMs)
      await closes(holdfast)
      assert.deepEqual(await Promise.all(calls), ['CLOSED', 'CLOSED'])
      await own.rollback()
      const next = await another()
      await clock.advance(minute)
      await next.sweep()
      // A call whose connection was cut may have been carried out once the transaction ended.
      await becomes(async () => ['ready', 'done'].includes((await readJob(next, id)).state))
      await becomes(async () => ['ready', 'cancelled'].includes((await readJob(next, waiting.id)).state))
    }),
  )

  test(
    'a worker whose SQL effect waits for another transaction gives up; the job is rescued',
    inSql(async ({ holdfast, another, sql, clock }) => {
      await sql.query(`create table ${sql.schema}.notes (n int unique)`)
      const { id } = await holdfast.queue('mail').enqueue(1)
      const own = await sql.begin()
      const ran = heard(holdfast, 'job.started')
      await own.query(`select 1`)
      const worker = holdfast.work('mail', async (job) => {
        await own.query(`insert into ${sql.schema}.notes values (7)`)
        job.effects.sql(`insert into ${sql.schema}.notes values (7)`)
      })
      await ran
      await sleep(meetMs)
      await closes(holdfast)
      await worker.finished
      await own.rollback()
      const next = await another()
      await clock.advance(minute)
      await next.sweep()
      await becomes(async () => ['ready', 'done'].includes((await readJob(next, id)).state))
      const { state } = await readJob(next, id)
      const notes = await sql.query(`select n from ${sql.schema}.notes`)
      assert.equal(notes.length, state === 'done' ? 1 : 0)
    }),
  )

  test(
    'a reaper that waits for its turn in another transaction stops; the next one takes the turn',
    inSql(async ({ holdfast, another, sql, clock }) => {
      const options = { every: minute, find: () => [], enqueue: () => null }
      const ran = heard(holdfast, 'reaper.ran')
      const first = holdfast.reaper('orphans', options)
      await ran
      await first.stop()
      await clock.advance(2 * minute)
      const own = await sql.begin()
      await own.query(`delete from ${dialect.from.key(sql.schema, 'holdfast.reaper.orphans')}`)
      holdfast.reaper('orphans', options)
      await sleep(meetMs)
      await closes(holdfast)
      await own.rollback()
      const next = await another()
      const again = heard(next, 'reaper.ran')
      await clock.advance(2 * minute)
      next.reaper('orphans', options)
      await again
    }),
  )
}

async function closes(holdfast: Holdfast): Promise<void> {
  const began = performance.now()
  const closed = holdfast.close({ grace: 0, timeout: timeoutMs }).then(() => 'closed')
  const late = sleep(2 * timeoutMs + marginMs, 'still closing')
  assert.equal(await Promise.race([closed, late]), 'closed')
  assert.ok(performance.now() - began < 2 * timeoutMs + marginMs)
}

/** The code that the call fails with. */
function outcome(call: Promise<unknown>): Promise<string> {
  return call.then(
    () => 'carried out',
    (error) => (isHoldfastError(error) ? error.code : String(error)),
  )
}

async function becomes(isSo: () => Promise<boolean>): Promise<void> {
  for (let tries = 0; !(await isSo()); tries++) {
    assert.ok(tries < 200, 'the job is ready again, or was carried out')
    await sleep(10)
  }
}

const neverAnswers: StandardSchemaV1<unknown, unknown> = {
  '~standard': { version: 1, vendor: 'test', validate: () => new Promise<never>(() => {}) },
}

function ignore(): void {}
