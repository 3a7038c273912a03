// Requests that a rule of an operator on the store's tables refuses, by any SQLSTATE. Each fails alone; an error that would meet
// every request is the store's.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import test from 'node:test'
import { HoldfastError } from '../../src/errors.ts'
import { open } from '../../src/open.ts'
import { isDataError } from '../../src/store/postgres/connection/data-error.ts'
import { grantRoles } from '../../src/store/postgres/schema/grant.ts'
import { usesByRole } from '../../src/store/postgres/schema/roles.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { heard, readJob, rejects } from '../conformance/expect.ts'
import { setup as roleDatabase } from './role-database.ts'
import { inWorld, useDatabase, type World } from './world.ts'

useDatabase()

/** Too large for a row of an index, also compressed. */
const large = randomBytes(6_000).toString('hex')

/** How an operator refuses one text, and what PostgreSQL says then. */
const refusals: Readonly<Record<string, { bad: string; code: string; make: (world: World) => Promise<unknown> }>> = {
  'an index that it does not fit': {
    bad: large,
    code: '54000',
    make: (world) => world.rows('create index on holdfast.job (payload)'),
  },
  'a trigger with an error code of its own': raising('APP01'),
  'a trigger with an error code that looks like one of the network': raising('EAPPL'),
  'a trigger with the error code of a missing right': raising('42501'),
  'a trigger with the error code of a missing table': raising('42P01'),
  'an assertion of a trigger': {
    bad: 'bad',
    code: 'P0004',
    make: (world) => refuse(world, 'job', `assert new.payload <> '"bad"', 'not_allowed'`),
  },
}

function raising(code: string) {
  const body = `if new.payload = '"bad"' then raise exception 'not_allowed' using errcode = '${code}'; end if`
  return { bad: 'bad', code, make: (world: World) => refuse(world, 'job', body) }
}

async function refuse(world: World, table: string, body: string, when = 'insert or update'): Promise<void> {
  await world.rows(`create or replace function holdfast.not_allowed() returns trigger language plpgsql as
    $$ begin ${body}; return new; end $$`)
  await world.rows(`create trigger not_allowed before ${when} on holdfast.${table}
    for each row execute function holdfast.not_allowed()`)
}

for (const [what, { bad, code, make }] of Object.entries(refusals))
  test(
    `of enqueues that are sent together, one that is refused by ${what} fails alone`,
    inWorld(async (world) => {
      const mail = world.holdfast.queue('mail')
      await mail.enqueue('opens the queue')
      await make(world)
      const enqueued = await Promise.allSettled(['a', 'b', bad, 'c', 'd'].map((payload) => mail.enqueue(payload)))
      assert.deepEqual(
        enqueued.map(({ status }) => status),
        ['fulfilled', 'fulfilled', 'rejected', 'fulfilled', 'fulfilled'],
      )
      await rejects(Promise.reject((enqueued[2] as PromiseRejectedResult).reason), 'INVALID_OPTION', { code })
    }),
  )

test('of key-value writes that are sent together, one that row security refuses fails alone; without the grant, all fail with the missing grant', async () => {
  await using database = await roleDatabase()
  const role = await database.role('worker')
  await using owner = await open(database.url)
  await owner.kv.put('opens', 1)
  const client = await database.pool.connect()
  await grantRoles(client, new Schema('holdfast'), usesByRole({ worker: role }))
  client.release()
  await database.rows('alter table holdfast.kv enable row level security')
  await database.rows(`create policy no_bad on holdfast.kv using (true) with check (value <> '"bad"')`)
  await using holdfast = await open(database.urlOf(role))
  const put = () => Promise.allSettled([1, 2, 'bad', 3].map((value, i) => holdfast.kv.put(`k${i}`, value)))
  assert.deepEqual((await put()).map(outcome), ['ok', 'ok', 'INVALID_OPTION 42501', 'ok'])
  await database.rows(`revoke insert, update on holdfast.kv from "${role}"`)
  assert.deepEqual((await put()).map(outcome), Array(4).fill('STORE_UNAVAILABLE 42501'))
})

test(
  'a result that does not fit an index of an operator fails the attempt of its own job; the jobs beside it are done',
  inWorld(async (world) => {
    const { holdfast } = world
    await world.rows('create index on holdfast.ended (result)')
    const enqueued = await holdfast.queue('mail').enqueueMany([1, 2, 7, 3, 4].map((payload) => ({ payload })))
    const [done, failed, retried] = [
      heard(holdfast, 'job.done', 4),
      heard(holdfast, 'settle.failed'),
      heard(holdfast, 'job.retrying'),
    ]
    const down: unknown[] = []
    holdfast.on('store.down', ({ error }) => down.push(error))
    const worker = holdfast.work('mail', async ({ payload }) => (payload === 7 ? large : payload), { concurrency: 5 })
    await done
    const [{ id } = assert.fail()] = await failed
    assert.equal(id, enqueued[2]?.id)
    await retried
    assert.equal((await readJob(holdfast, id)).state, 'scheduled')
    assert.deepEqual(down, [])
    await worker.stop()
  }),
)

for (const [how, options] of [
  ['without effects', {}],
  ['with statements', { effects: { sql: [{ text: 'select 1' }] } }],
] as const)
  test(
    `of cancels that are sent together (${how}), one that is refused fails alone and names its job`,
    inWorld(async (world) => {
      const { holdfast } = world
      const jobs = await holdfast.queue('mail').enqueueMany(['a', 'bad', 'b'].map((payload) => ({ payload })))
      await refuse(world, 'ended', `if new.payload = '"bad"' then raise exception 'not_allowed'; end if`)
      const cancelled = await Promise.allSettled(jobs.map(({ id }) => holdfast.cancel(id, options)))
      assert.deepEqual(cancelled.map(outcome), ['ok', 'INVALID_OPTION P0001', 'ok'])
      assert.equal((cancelled[1] as PromiseRejectedResult).reason.facts.id, jobs[1]?.id)
      assert.equal((await readJob(holdfast, jobs[1]?.id ?? '')).state, 'ready')
    }),
  )

test(
  'requeueAll skips and names each job that the database refuses, and requeues all others once',
  inWorld(async (world) => {
    const { holdfast } = world
    const mail = holdfast.queue('mail', { attempts: 1 })
    const payloads = Array.from({ length: 21 }, (_, i) => ({ payload: [0, 9, 20].includes(i) ? 'bad' : `${i}` }))
    const jobs = await mail.enqueueMany(payloads)
    for (const lease of await mail.claim({ max: 21 })) await lease.dead(new Error('no'))
    await refuse(world, 'job', `if new.payload = '"bad"' then raise exception 'not_allowed'; end if`)
    assert.equal((await holdfast.requeueAll({ queue: 'mail' }, { dryRun: true })).changed, 21)
    const { changed, skipped } = await holdfast.requeueAll({ queue: 'mail' })
    assert.equal(changed, 18)
    const [refused, ...others] = skipped
    assert.deepEqual([refused?.reason, refused?.count, others], ['refused', 3, []])
    assert.deepEqual(new Set(refused?.ids), new Set([0, 9, 20].map((i) => jobs[i]?.id)))
    assert.match(refused?.message ?? '', /not_allowed/)
    const { ready, dead } = await holdfast.stats('mail')
    assert.deepEqual([ready, dead], [18, 3])
  }),
)

for (const [when, deferred] of [
  ['at once', ''],
  ['only by the COMMIT', 'constraint'],
] as const)
  test(
    `a job that the database refuses ${when} is skipped by every bulk verb, and its neighbours are changed`,
    inWorld(async (world) => {
      const { holdfast } = world
      const payloads = ['a', 'bad', 'b', 'bad', 'c'].map((payload) => ({ payload }))
      const jobs = await holdfast.queue('mail').enqueueMany(payloads)
      const bad = [jobs[1]?.id, jobs[3]?.id].sort()
      await world.rows(`create function holdfast.refuse_bad() returns trigger language plpgsql as $$ begin
        if old.payload = '"bad"' then raise exception 'not_allowed'; end if; return old; end $$`)
      const timing = deferred ? 'deferrable initially deferred' : ''
      await world.rows(`create ${deferred} trigger refuse_bad after update or delete on holdfast.job ${timing}
        for each row execute function holdfast.refuse_bad()`)
      const verbs = {
        reprioritiseAll: () => holdfast.reprioritiseAll({ queue: 'mail' }, 1),
        rescheduleAll: () => holdfast.rescheduleAll({ queue: 'mail' }, { delay: '1h' }),
        cancelAll: () => holdfast.cancelAll({ queue: 'mail' }),
        deleteAll: () => holdfast.deleteAll({ queue: 'mail', state: ['scheduled', 'ready'] }),
      }
      for (const [verb, call] of Object.entries(verbs)) {
        const { changed, skipped } = await call()
        assert.equal(changed, verb === 'deleteAll' ? 0 : 3, verb)
        const [refused, ...others] = skipped
        assert.deepEqual([refused?.reason, refused?.count, others], ['refused', 2, []], verb)
        assert.deepEqual(refused?.ids.toSorted(), bad, verb)
        assert.match(refused?.message ?? '', /not_allowed/, verb)
        await world.recount()
      }
      await world.rows('drop trigger refuse_bad on holdfast.job')
      assert.equal((await holdfast.deleteAll({ queue: 'mail' })).changed, 5)
    }),
  )

test('an error that would meet every request is the store’s, and no request is refused for it', () => {
  const ofStore = [
    ...['08006', '25006', '25P02', '25P03', '40001', '40P01', '53100', '53200', '53300', '53400', '55P03', '57014'],
    ...['57P01', '57P03', '58030', '72000', 'F0000', 'XX000', 'XX001', 'XX002'],
  ]
  const ofStatement = [
    ...['0A000', '26000', '28000', '34000', '3B001', '3D000', '3F000', '42501', '42601', '42703', '42883', '42P01'],
    ...['42P07', '55000', '55006', 'HV00N'],
  ]
  const ofRequest = ['22001', '22P05', '23505', '23514', '44000', '54000', '54001', 'P0001', 'P0002', 'P0004', 'APP01']
  const refused = (code: string, routine = 'x', facts = {}) => {
    const cause = Object.assign(new Error('refused'), { code, severity: 'ERROR', routine })
    return isDataError(new HoldfastError('STORE_UNAVAILABLE', 'refused', { code, ...facts }, { cause }))
  }
  const those = (codes: readonly string[], routine?: string) => codes.filter((code) => refused(code, routine))
  assert.deepEqual(those([...ofStore, ...ofStatement]), [])
  assert.deepEqual(those(ofRequest), ofRequest)
  assert.deepEqual(those([...ofStore, ...ofStatement, ...ofRequest], 'exec_stmt_raise'), [...ofStatement, ...ofRequest])
  assert.equal(refused('23505', 'x', { mayHaveLanded: true }), false, 'the call may have been committed before')
})

test(
  'while a function of the schema is missing, no request is refused: the store cannot be used',
  inWorld(async (world) => {
    await world.holdfast.kv.put('k', 1)
    const [{ text } = assert.fail()] = await world.rows(
      `select string_agg(format('alter function %s rename to gone', p.oid::regprocedure), ';') as text
         from pg_proc p where p.proname = 'kv_write' and p.pronamespace = '${world.schema.quoted}'::regnamespace`,
    )
    await world.rows(String(text))
    const put = await Promise.allSettled([1, 2].map((value) => world.holdfast.kv.put(`k${value}`, value)))
    assert.deepEqual(put.map(outcome), Array(2).fill('STORE_UNAVAILABLE 42883'))
  }),
)

function outcome(result: PromiseSettledResult<unknown>): string {
  if (result.status === 'fulfilled') return 'ok'
  const { code, facts } = result.reason as HoldfastError
  return `${code} ${facts['code']}`
}
