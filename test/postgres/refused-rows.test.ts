// Rows that a constraint or a trigger of an operator refuses: each keeps only its own job waiting, and an event names it.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import type { HoldfastError } from '../../src/errors.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { claimOne } from '../conformance/expect.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { setup, type TestDatabase } from './exactness-database.ts'

let server: Server

before(async () => {
  server = await startServer()
})

after(() => server[Symbol.asyncDispose]())

test('a rescue that a check constraint refuses keeps no other lease from being rescued, and an event names its job', async () => {
  await using database = await setup(server)
  await using holdfast = await openWithoutPartitions(database)
  await database.rows(`alter table holdfast.ended add constraint no_bad check (payload <> '"bad"')`)
  const queue = holdfast.queue('mail', { attempts: 1 })
  const { id } = await queue.enqueue('bad')
  await queue.enqueueMany([{ payload: 'a' }, { payload: 'b' }])
  const refused = failuresOf(holdfast)
  await holdfast.claim(['mail'], { max: 3, lease: 1 })
  await database.rows('select pg_sleep(0.005)') // the leases have expired by the server's clock
  assert.equal((await holdfast.sweep()).rescued, 2)
  assert.deepEqual(refused, [id])
})

test('a check constraint on finished jobs is part of every partition that is made later', async () => {
  await using database = await setup(server)
  await using holdfast = await open(database.url)
  await database.rows(`alter table holdfast.ended add constraint small check (length(result) < 100)`)
  await holdfast.queue('mail', { retain: { done: '70d' } }).enqueue(1)
  await using other = await open(database.url) // the first sweep of a process includes the upkeep
  const failed = failuresOf(other)
  await other.sweep()
  assert.deepEqual(failed, [])
  await (await claimOne(other, 'mail')).done('ok')
  const [table] = await database.rows<{ name: string }>('select tableoid::regclass::text as name from holdfast.ended')
  assert.match(table?.name ?? '', /ended_\d/)
})

test('one settlement that a check constraint refuses takes one statement for each division of its flush', async () => {
  await using database = await setup(server)
  await using holdfast = await openWithoutPartitions(database)
  await database.rows(`alter table holdfast.ended add constraint small check (length(result) < 100)`)
  await database.rows('create sequence public.tries')
  await database.rows(`create function public.count_tries() returns trigger language plpgsql as
    $$ begin perform nextval('public.tries'); return null; end $$`)
  await database.rows(`create trigger count_tries before delete on holdfast.job execute function public.count_tries()`)
  await holdfast.queue('mail').enqueueMany(Array.from({ length: 16 }, (_, payload) => ({ payload })))
  const leases = await holdfast.claim(['mail'], { max: 16 })
  const settled = await Promise.allSettled(leases.map((lease, i) => lease.done(i === 5 ? 'x'.repeat(200) : 'ok')))
  assert.deepEqual(
    settled.flatMap(({ status }, i) => (status === 'rejected' ? [i] : [])),
    [5],
  )
  const [tries] = await database.rows<{ n: number }>('select last_value::int as n from public.tries')
  assert.ok((tries?.n ?? 0) <= 9 + 1, `${tries?.n} statements`) // 16, then two for each of four divisions
})

test('a schedule whose job a trigger refuses fails alone, and the others fire', async () => {
  await using database = await setup(server)
  await using holdfast = await open(database.url)
  await holdfast.queue('mail').enqueue('opens the queue')
  await refuseBad(database, 'insert on holdfast.job')
  const cron = '* * * * * *'
  await holdfast.schedule('a', { cron, queue: 'mail', payload: 'bad' })
  await holdfast.schedule('b', { cron, queue: 'mail', payload: 'good' })
  const failed: string[] = []
  holdfast.on('schedule.failed', ({ schedule, error }) => failed.push(`${schedule}: ${error.message}`))
  const fired = new Promise<string>((resolve) => holdfast.on('schedule.fired', ({ schedule }) => resolve(schedule)))
  await using worker = holdfast.work('other', () => {})
  assert.equal(await fired, 'b')
  assert.equal(failed.length, 1)
  assert.match(failed[0] ?? '', /^a: PostgreSQL refuses .*not_allowed/)
  await worker.stop()
})

test('a due job whose promotion a trigger refuses keeps nothing else from being swept, and an event names it once in 5 s', async () => {
  await using database = await setup(server)
  await using holdfast = await open(database.url)
  await holdfast.queue('leased').enqueue(1)
  await claimOne(holdfast, 'leased', { lease: 1 })
  const { id } = await holdfast.queue('mail').enqueue('bad', { delay: 1 })
  await holdfast.queue('mail').enqueueMany(['a', 'b', 'c'].map((payload) => ({ payload, delay: 1 })))
  await holdfast.kv.put('k', 1, { ttl: 1 })
  await refuseBad(database, 'update on holdfast.job')
  await database.rows('select pg_sleep(0.005)')
  const refused = failuresOf(holdfast)
  const { rescued, promoted } = await holdfast.sweep()
  assert.deepEqual({ rescued, promoted }, { rescued: 1, promoted: 3 })
  assert.deepEqual(await database.rows(`select key from holdfast.kv where key = 'k'`), [])
  assert.deepEqual(refused, [id])
  await holdfast.sweep()
  assert.deepEqual(refused, [id], 'it is left out for a while')
  await database.rows('drop function public.refuse cascade')
  await using other = await open(database.url)
  assert.equal((await other.sweep()).promoted, 1)
})

test('an overdue job whose cancellation a trigger refuses keeps nothing else from being swept, and an event names it', async () => {
  await using database = await setup(server)
  await using holdfast = await open(database.url)
  await holdfast.pause('mail')
  const startBefore = new Date(Date.now() + 200)
  const { id } = await holdfast.queue('mail').enqueue('bad', { startBefore })
  await holdfast.queue('mail').enqueueMany(['a', 'b', 'c'].map((payload) => ({ payload, startBefore })))
  await holdfast.queue('other').enqueue(1, { delay: 1 })
  await refuseBad(database, 'insert on holdfast.ended')
  await database.rows('select pg_sleep(0.25)')
  const refused = failuresOf(holdfast)
  const { overdue, promoted } = await holdfast.sweep()
  assert.deepEqual({ overdue, promoted }, { overdue: 3, promoted: 1 })
  assert.deepEqual(refused, [id])
})

test('a batch whose completion a trigger refuses is named by an event, the others finish, and the sweep reports what it did', async () => {
  await using database = await setup(server)
  await using holdfast = await open(database.url)
  const batchOf = (name: string) =>
    holdfast.batch({ name, onComplete: { queue: 'done', payload: { name } } }, [
      { queue: 'mail', payload: 1, attempts: 1 },
    ])
  const [bad, good] = [await batchOf('bad'), await batchOf('good')]
  await holdfast.queue('done').enqueue('opens the queue')
  await refuseBad(database, 'insert on holdfast.job')
  await holdfast.claim(['mail'], { max: 2, lease: 1 })
  await database.rows('select pg_sleep(0.005)')
  await using other = await open(database.url) // its first sweep looks at all batches
  const failures: unknown[] = []
  other.on('upkeep.failed', ({ error }) => failures.push((error as HoldfastError).facts['batch']))
  const expired: string[] = []
  other.on('lease.expired', ({ id }) => expired.push(id))
  assert.equal((await other.sweep()).rescued, 2)
  assert.equal(expired.length, 2)
  assert.deepEqual(failures, [bad.id])
  assert.equal((await good.progress()).state, 'done')
  await database.rows('drop function public.refuse cascade')
  await using third = await open(database.url)
  await third.sweep()
  assert.equal((await bad.progress()).state, 'done')
})

test('a held job whose admission a trigger refuses keeps no other limit key waiting, and an event names it', async () => {
  await using database = await setup(server)
  await using holdfast = await open(postgres({ url: database.url, listen: false }))
  const queue = holdfast.queue('mail', { limit: { key: 'k', concurrency: 1 } })
  await queue.enqueue({ k: 'opens the queue' })
  await holdfast.sweep()
  await refuseBad(database, 'update on holdfast.job')
  const client = await database.pool.connect()
  await client.query('begin')
  const { id } = await queue.enqueue({ k: 'bad' }, { tx: client }) // its admission is left to the sweep
  for (const k of ['a', 'b', 'c']) await queue.enqueue({ k }, { tx: client })
  await client.query('commit')
  client.release()
  const refused = failuresOf(holdfast)
  assert.equal((await holdfast.sweep()).admitted, 3)
  assert.deepEqual(refused, [id])
  await holdfast.sweep()
  assert.deepEqual(refused, [id], 'its key is left out for a while')
  await database.rows('drop function public.refuse cascade')
  await using other = await open(database.url)
  assert.equal((await other.sweep()).admitted, 1)
})

/** From now on a trigger refuses jobs whose payload contains `bad`. */
async function refuseBad(database: TestDatabase, when: string): Promise<void> {
  await database.rows(`create function public.refuse() returns trigger language plpgsql as
    $$ begin if new.payload like '%bad%' then raise exception 'not_allowed'; end if; return new; end $$`)
  await database.rows(`create trigger refuse before ${when} for each row execute function public.refuse()`)
}

/** The ids of jobs that `upkeep.failed` names, or the message of a failure without one. */
function failuresOf(holdfast: Holdfast): unknown[] {
  const failures: unknown[] = []
  holdfast.on('upkeep.failed', ({ error }) =>
    failures.push((error as { facts?: Record<string, unknown> }).facts?.['id'] ?? error.message),
  )
  return failures
}

/** Finished jobs are stored in `ended_rest`: the first sweep makes partitions, and the next does so a minute later. */
async function openWithoutPartitions(database: TestDatabase): Promise<Holdfast> {
  const holdfast = await open(database.url)
  await holdfast.queue('mail').enqueue('opens the queue')
  await (await claimOne(holdfast, 'mail')).done()
  await holdfast.sweep()
  const partitions = await database.rows<{ name: string }>(`select inhrelid::regclass::text as name from pg_inherits
    where inhparent = 'holdfast.ended'::regclass and inhrelid <> 'holdfast.ended_rest'::regclass`)
  for (const { name } of partitions) await database.rows(`drop table ${name}`)
  return holdfast
}
