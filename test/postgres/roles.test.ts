// Every kind of role can do what it is for, with real roles on a real server. Anything beyond is refused, and the message names
// the missing grant.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import pg from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import { grants, type Roles } from '../../src/index.ts'
import { open } from '../../src/open.ts'
import { grantRoles } from '../../src/store/postgres/schema/grant.ts'
import { migrate } from '../../src/store/postgres/schema/migrate.ts'
import { migrationScript, release, steps, stepsHash } from '../../src/store/postgres/schema/migrations.ts'
import { usesByRole } from '../../src/store/postgres/schema/roles.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { claimOne, rejects } from '../conformance/expect.ts'
import { assertRecount } from './exactness-recount.ts'
import { type RoleDatabase, setup } from './role-database.ts'

describe('a producer', () => {
  test('enqueues in every way, also in its own transaction, and reads the state of its jobs', async () => {
    await using database = await setup()
    const producer = await made(database, 'producer')
    await using holdfast = await open(database.urlOf(producer))
    const mail = holdfast.queue('mail', { retain: { done: '1h' }, attempts: 2 })
    const { id } = await mail.enqueue(1)
    await mail.enqueueMany([{ payload: 2 }, { payload: 3, delay: '1h', priority: 1 }])
    const options = { dedup: { key: 'k' }, idempotencyKey: 'i', startBefore: new Date(Date.now() + 60_000) } as const
    assert.equal((await mail.enqueue(4, options)).status, 'created')
    assert.equal((await mail.enqueue(4, options)).status, 'duplicate')
    const replaced = await mail.enqueue(5, { dedup: { key: 'k', replace: true } })
    assert.equal(replaced.status, 'replaced')
    await rejects(mail.enqueue(5, { idempotencyKey: 'i' }), 'IDEMPOTENCY_MISMATCH')

    const client = new pg.Client({ connectionString: database.urlOf(producer) })
    await client.connect()
    await client.query('begin')
    await mail.enqueue(6, { tx: client, dedup: { key: 'own' } })
    await client.query(`select * from holdfast.enqueue('mail', '7')`)
    await client.query('commit')
    await client.end()

    await using owner = await open(database.url)
    assert.equal((await owner.stats('mail')).ready, 5)
    const lease = await claimOne(owner, 'mail')
    assert.equal(lease.job.id, id)
    await lease.done({ sent: true })
    assert.deepEqual(await holdfast.result(id), { sent: true })
    await assertRecount(database.pool)
  })

  test('cannot write key-value entries with an enqueue, and holds none of them', async () => {
    await using database = await setup()
    const producer = await made(database, 'producer')
    await using owner = await open(database.url)
    const version = await owner.kv.put('k', 1)
    await using holdfast = await open(database.urlOf(producer))
    const mail = holdfast.queue('mail')
    const kv = { put: [{ key: 'k', value: 2 }] }
    const [refused, stored] = await Promise.allSettled([
      mail.enqueue(1, { kv }),
      mail.enqueue(2, { dedup: { key: 'd' } }),
    ])
    assert.equal(stored.status, 'fulfilled', 'the enqueue beside it')
    assert.equal(refused.status, 'rejected')
    await rejects(Promise.reject((refused as PromiseRejectedResult).reason), 'UNSUPPORTED', { option: 'kv' })

    const client = new pg.Client({ connectionString: database.urlOf(producer) })
    await client.connect()
    await client.query('begin')
    await rejects(mail.enqueue(3, { tx: client, kv }), 'UNSUPPORTED', { option: 'kv' })
    assert.equal(
      (await owner.kv.compareAndSet('k', version, 3)).applied,
      true,
      'its open transaction has no lock on it',
    )
    const hostile = {
      id: randomUUID(),
      name: 'mail',
      payload: '1',
      kv: [{ as: 'put', key: 'holdfast.gate.x', value: '1' }],
    }
    const { rows } = await client.query('select holdfast.enqueue_in($1, true, null) as answer', [
      JSON.stringify([hostile]),
    ])
    assert.equal(rows[0]?.answer[0].refused, 'HF112')
    await client.query('commit')
    await client.end()
    assert.equal((await owner.stats('mail')).ready, 1)
    assert.equal(await owner.kv.get('holdfast.gate.x'), null)
  })

  test('cannot claim, settle, read payloads or change anything else', async () => {
    await using database = await setup()
    const producer = await made(database, 'producer')
    await using holdfast = await open(database.urlOf(producer))
    const { id } = await holdfast.queue('mail').enqueue('secret')
    const refused: Record<string, () => Promise<unknown>> = {
      claim: () => holdfast.claim(['mail']),
      job: () => holdfast.job(id),
      jobs: () => holdfast.jobs(),
      stats: () => holdfast.stats(),
      cancel: () => holdfast.cancel(id),
      cancelAll: () => holdfast.cancelAll({ queue: 'mail' }),
      requeueAll: () => holdfast.requeueAll({ queue: 'mail' }),
      deleteAll: () => holdfast.deleteAll({ queue: 'mail' }),
      rescheduleAll: () => holdfast.rescheduleAll({ queue: 'mail' }, { delay: 0 }),
      'a dry run': () => holdfast.reprioritiseAll({ queue: 'mail' }, 1, { dryRun: true }),
      pause: () => holdfast.pause('mail'),
      sweep: () => holdfast.sweep(),
      'kv.put': () => holdfast.kv.put('k', 1),
    }
    for (const [verb, call] of Object.entries(refused)) {
      const error = await rejects(call(), 'STORE_UNAVAILABLE', { code: '42501' })
      assert.match(error.message, /not granted .*permission denied .*holdfast migrate --grant .*worker=/, verb)
      assert.doesNotMatch(error.message, /secret/)
    }
    const client = new pg.Client({ connectionString: database.urlOf(producer) })
    await client.connect()
    for (const upkeep of ['make_partitions', 'drop_partition'])
      await assert.rejects(client.query(`select holdfast.${upkeep}(9000000000000)`), { code: '42501' }, upkeep)
    await client.end()
    await using owner = await open(database.url)
    assert.equal((await owner.stats('mail')).ready, 1)
  })

  test('cannot make a function of the owner use objects of the producer’s schema', async () => {
    await using database = await setup()
    const producer = await made(database, 'producer')
    await database.rows(`create schema trap authorization "${producer}"`)
    const client = new pg.Client({ connectionString: database.urlOf(producer) })
    await client.connect()
    await client.query(`create table trap.stolen (caller text)`)
    await client.query(`create function trap.now_ms(bigint) returns bigint language sql as 'select 1::bigint'`)
    await client.query(`create function trap.cardinality(anyarray) returns int language plpgsql as
      'begin insert into trap.stolen values (current_user); return 1; end'`)
    await client.query('set search_path = trap, pg_catalog')
    const opened = await client.query(`select lane, epoch from holdfast.open_lanes('{mail}', '{5}', 1, 1)`)
    const [{ lane, epoch }] = opened.rows
    const values = [[crypto.randomUUID()], [lane], [5], ['1'], [epoch]]
    await client.query(
      'select holdfast.enqueue_plain(null, $1, $2, $3, $4, null, null, null, null, null, $2, $5, null)',
      values,
    )
    const one = "select holdfast.enqueue_one($1, $2, $3, $4, 5::smallint, '1', null, null, null, null)"
    await client.query(one, [crypto.randomUUID(), crypto.randomUUID(), lane, epoch])
    assert.deepEqual((await client.query('select caller from trap.stolen')).rows, [])
    await client.end()
  })
})

describe('a worker', () => {
  test('can do everything to jobs, and create and drop partitions of the owner', async () => {
    await using database = await setup()
    const worker = await made(database, 'worker')
    await database.rows('create table article (n int)')
    await using holdfast = await open(database.urlOf(worker))
    const mail = holdfast.queue('mail', { retain: { done: '1m', dead: '1h' } })
    const ids = (await mail.enqueueMany([1, 2, 3, 4].map((payload) => ({ payload })))).map(({ id }) => id)
    await holdfast.sweep()
    const owners = await database.rows<{ owner: string; parts: number } & pg.QueryResultRow>(
      `select tableowner as owner, count(*)::int as parts from pg_tables where tablename like 'ended\\_%\\_%' group by 1`,
    )
    assert.deepEqual(
      owners.map(({ owner, parts }) => [owner, parts > 0]),
      [['postgres', true]],
    )
    const [one, two, three, four] = await mail.claim({ max: 4 })
    await one?.renew()
    await one?.progress(0.5)
    await one?.done(null, { put: [{ key: 'k', value: 1 }], enqueue: [{ queue: 'mail', payload: 5 }] })
    await two?.dead(new Error('no'))
    await three?.release()
    assert.equal(await holdfast.cancel(ids[3] as string), 'requested')
    await four?.cancelled()
    await holdfast.requeue(ids[1] as string)
    await holdfast.reprioritise(ids[1] as string, 1)
    await holdfast.change(ids[1] as string, { payload: 2, labels: { a: 'b' }, limitKey: 'k' }, { by: 'ada' })
    await holdfast.change(ids[1] as string, { labels: {}, limitKey: null })
    await holdfast.pause('mail')
    await holdfast.resume('mail')
    await holdfast.delete(ids[3] as string)
    await holdfast.kv.delete('k')
    await assertRecount(database.pool)
    const lease = await claimOne(holdfast, 'mail')
    const sql = [{ text: 'insert into article values (1)', values: [] }]
    const error = await rejects(lease.done(null, { sql }), 'INVALID_OPTION')
    assert.match(error.message, /permission denied for table article/, 'SQL effects run with the worker’s own rights')

    await database.rows('select holdfast.make_partitions(1000)')
    const old = 'select 1 from pg_tables where tablename ~ $1'
    assert.notEqual((await database.rows(old, ['ended_1_1$'])).length, 0)
    const client = new pg.Client({ connectionString: database.urlOf(worker) })
    await client.connect()
    for (let dropped = true; dropped; )
      dropped = (await client.query('select holdfast.drop_partition(holdfast.now_ms(null)) as n')).rows[0].n !== null
    await assert.rejects(client.query('drop table holdfast.ended_rest'), { code: '42501' })
    await client.end()
    assert.equal((await database.rows(old, ['ended_1_1$'])).length, 0)
    await assertRecount(database.pool)
  })

  test('runs a worker loop, a watch and a result', async () => {
    await using database = await setup()
    const worker = await made(database, 'worker')
    await using holdfast = await open(database.urlOf(worker))
    const watch = holdfast.watch()
    const seen = watch.next()
    await watch.begun
    const { id } = await holdfast.queue('mail').enqueue(1)
    holdfast.work('mail', async () => 'ran')
    assert.equal(await holdfast.result(id), 'ran')
    assert.equal((await seen).value?.id, id)
    await watch.return?.()
  })
})

describe('a reader', () => {
  test('can read everything and change nothing', async () => {
    await using database = await setup()
    const reader = await made(database, 'reader')
    await using owner = await open(database.url)
    const { id } = await owner.queue('mail').enqueue('text')
    await owner.queue('mail').enqueue(2, { delay: '1h' })
    await owner.kv.put('k', 1)
    await claimOne(owner, 'mail')
    const batch = await owner.batch({ name: 'b' }, [{ queue: 'items', payload: 1 }])
    await using holdfast = await open(database.urlOf(reader), { readOnly: true })
    assert.equal((await holdfast.stats('mail')).running, 1)
    assert.equal((await holdfast.jobs({ queue: 'mail' })).jobs.length, 2)
    assert.equal((await holdfast.batches()).batches.length, 1)
    const seen = await holdfast.getBatch(batch.id)
    assert.equal((await seen?.progress())?.waiting, 1)
    for await (const item of seen?.items() ?? []) assert.equal(item.payload, 1)
    assert.match((await holdfast.explain(id)).sentence, /running|runs/)
    assert.deepEqual(
      (await holdfast.doctor()).filter(({ severity }) => severity === 'wrong'),
      [],
    )
    assert.equal((await holdfast.job(id))?.payload, 'text')
    assert.equal((await holdfast.kv.get('k'))?.value, 1)
    await rejects(holdfast.queue('mail').enqueue(1), 'UNSUPPORTED')
    await dies(owner)
    const dry = { dryRun: true } as const
    assert.equal((await holdfast.requeueAll({ state: 'dead' }, dry)).changed, 1)
    assert.equal((await holdfast.cancelAll({ queue: 'mail' }, dry)).changed, 2)
    assert.equal((await holdfast.deleteAll({ queue: 'mail' }, dry)).changed, 1)
    assert.equal((await holdfast.rescheduleAll({ queue: 'mail' }, { delay: 0 }, dry)).changed, 1)
    assert.equal((await holdfast.reprioritiseAll({ queue: 'mail' }, 1, dry)).changed, 1)
    assert.equal((await holdfast.deleteQueue('mail', dry)).jobs, 2)
    await using bold = await open(database.urlOf(reader))
    const error = await rejects(bold.queue('mail').enqueue(1), 'STORE_UNAVAILABLE', { code: '42501' })
    assert.match(error.message, /permission denied for function .* --grant producer=<role>/)
    await rejects(bold.claim(['mail']), 'STORE_UNAVAILABLE', { code: '42501' })
    await rejects(bold.cancel(id), 'STORE_UNAVAILABLE', { code: '42501' })
  })
})

/** A dead job that has a key and a limit key. */
async function dies(owner: Holdfast): Promise<void> {
  const limit = { concurrency: 1, key: 'to' } as const
  const queue = owner.queue<{ to: string }>('dying', { attempts: 1, limit })
  await queue.enqueue({ to: 'a' }, { dedup: { key: 'd', scope: 'live' } })
  await (await claimOne(owner, 'dying')).dead(new Error('no'))
}

describe('grants', () => {
  test('of several kinds add up, and naming a role again replaces its grants', async () => {
    await using database = await setup()
    const role = await database.role('many')
    await grant(database, { producer: role, reader: [role] })
    await using holdfast = await open(database.urlOf(role))
    const { id } = await holdfast.queue('mail').enqueue(1)
    assert.equal((await holdfast.job(id))?.payload, 1)
    await grant(database, { producer: role })
    await grant(database, { producer: role })
    await rejects(holdfast.job(id), 'STORE_UNAVAILABLE', { code: '42501' })
    await holdfast.queue('mail').enqueue(2)
    await grant(database, { none: role })
    await rejects(holdfast.queue('mail').enqueue(1), 'STORE_UNAVAILABLE', { code: '42501' })
    assert.deepEqual(await database.rows('select role from holdfast.grantee'), [])
  })

  test('cover what a later migration adds, for roles that still exist', async () => {
    await using database = await setup()
    const reader = await made(database, 'reader')
    await database.rows(`insert into holdfast.grantee values ('gone_${database.name}', '{worker}')`)
    const owner = new pg.Client({ connectionString: database.url })
    await owner.connect()
    await migrate(owner, new Schema('holdfast'), {
      ...release,
      steps: [...steps, { sql: 'create table holdfast.novelty as select 1 as n' }],
    })
    await owner.end()
    const client = new pg.Client({ connectionString: database.urlOf(reader) })
    await client.connect()
    assert.deepEqual((await client.query('select n from holdfast.novelty')).rows, [{ n: 1 }])
    await client.end()
  })

  test('are printed for an administrator, with a new schema or for an existing one', async () => {
    await using database = await setup()
    const [web, bi] = [await database.role('web "x"'), await database.role('bi')]
    const schema = new Schema('my jobs')
    await database.pool.query(migrationScript(schema, { uses: usesByRole({ producer: web }) }))
    await database.pool.query(grants({ schema: 'my jobs', roles: { reader: bi } }))
    await database.pool.query(grants({ schema: 'my jobs', roles: { reader: bi } }))
    await using producer = await open(`${database.urlOf(web)}?schema=my%20jobs`)
    await producer.queue('mail').enqueue(1)
    await using reader = await open(`${database.urlOf(bi)}?schema=my%20jobs`, { readOnly: true })
    assert.equal((await reader.stats('mail')).ready, 1)
  })

  test('are refused for an unknown role and for the owner, and change nothing', async () => {
    await using database = await setup()
    const role = await made(database, 'producer')
    const missing = await rejects(grant(database, { none: role, reader: 'nobody_has_this_name' }), 'INVALID_OPTION')
    assert.match(missing.message, /no such role/)
    assert.match((await rejects(grant(database, { worker: 'postgres' }), 'INVALID_OPTION')).message, /owns the schema/)
    await using holdfast = await open(database.urlOf(role))
    await holdfast.queue('mail').enqueue(1)
    assert.throws(() => grants({ roles: { boss: 'x' } as Roles }), { code: 'INVALID_OPTION' })
    assert.throws(() => grants({ roles: { reader: "it's" } }), { code: 'INVALID_OPTION' })
  })
})

test('a role that does not own the schema does not try to migrate it', async () => {
  await using database = await setup()
  const worker = await made(database, 'worker')
  await database.rows(`grant create on schema holdfast to "${worker}"`)
  await database.rows(`update holdfast.meta set schema = schema - 1, steps_hash = '${stepsHash(steps.slice(0, -1))}'`)
  const error = await rejects(open(database.urlOf(worker)), 'STORE_UNAVAILABLE', { found: steps.length - 1 })
  assert.match(
    error.message,
    /may not create it\. Have the output of "holdfast migrate --print --from \d+" run by a role that may/,
  )
  assert.equal(error.cause, undefined, 'no statement was tried')
})

test('a member of the owner migrates like the owner', async () => {
  await using database = await setup()
  const [owner, member] = [await database.role('owner'), await database.role('member')]
  await database.rows(`grant create on database ${database.name} to "${owner}"`)
  await database.rows(`grant "${owner}" to "${member}"`)
  await (await open(database.urlOf(owner))).close()
  const producer = await database.role('producer')
  await grant(database, { producer }, database.urlOf(member))
  await using holdfast = await open(database.urlOf(producer))
  await holdfast.queue('mail').enqueue(1)
})

/** A schema, and a role with one kind of grant. */
async function made(database: RoleDatabase, use: 'producer' | 'worker' | 'reader'): Promise<string> {
  const role = await database.role(use)
  await grant(database, { [use]: role })
  return role
}

async function grant({ url }: RoleDatabase, roles: Roles, as = url): Promise<void> {
  const client = new pg.Client({ connectionString: as })
  await client.connect()
  try {
    await migrate(client, new Schema('holdfast'))
    await grantRoles(client, new Schema('holdfast'), usesByRole(roles))
  } finally {
    await client.end()
  }
}
