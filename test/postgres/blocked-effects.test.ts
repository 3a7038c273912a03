// A sweep or a flush of settlements that meets rows which another transaction has locked. It leaves the jobs that need them, and
// sweeps or settles all others.
import assert from 'node:assert/strict'
import test from 'node:test'
import { Pool, type PoolConfig } from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import type { Effects } from '../../src/queue/effects.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import type { Worker } from '../../src/worker/worker.ts'
import { claimOne, stateOf } from '../conformance/expect.ts'
import { type CallerTx, inWorld, until, useDatabase, type World } from './world.ts'

useDatabase()

/** What the effects of a cancel request need, and how another transaction keeps it. */
const blockades: Readonly<
  Record<string, { effects: Effects; block: (world: World, tx: CallerTx) => Promise<unknown> }>
> = {
  'a row of the application': {
    effects: { sql: [{ text: 'update public.account set n = n + 1' }] },
    block: (_, tx) => tx.run('update public.account set n = n'),
  },
  'a key-value entry': {
    effects: { put: [{ key: 'entry', value: 2 }] },
    block: async (world, tx) => {
      await world.holdfast.kv.put('entry', 1)
      await tx.run('select from holdfast.kv for update')
    },
  },
  'a dedup key': {
    effects: { enqueue: [{ queue: 'next', payload: 1, dedup: { key: 'key' } }] },
    block: async (world, tx) => {
      await world.holdfast.queue('next').enqueue(0) // so that its lane is open
      await tx.enqueue('next', 1, { dedup: { key: 'key' } })
    },
  },
}

for (const [what, { effects, block }] of Object.entries(blockades)) {
  test(
    `while the effects of a cancel wait for ${what}, a sweep rescues, promotes and admits everything else`,
    inWorld(async (world) => {
      const { holdfast } = world
      await world.rows('drop table if exists public.account')
      await world.rows('create table public.account as select 0 as n')
      const stranger = await world.begin()
      await block(world, stranger)
      const [first, second, third] = await holdfast.queue('mail').enqueueMany(Array(3).fill({ payload: 1 }))
      const other = await holdfast.queue('other').enqueue(1, { delay: 1 })
      assert.equal((await holdfast.claim(['mail'], { max: 3, lease: 1 })).length, 3)
      assert.equal(await holdfast.cancel(first?.id ?? '', { effects }), 'requested')
      const states = () => Promise.all([first, second, third, other].map((job) => stateOf(holdfast, job?.id ?? '')))
      const sweeper = await world.another()
      await sweptOnce(world, sweeper, 2)
      assert.deepEqual(await states(), ['running', 'ready', 'ready', 'ready'])

      assert.equal((await sweeper.sweep()).rescued, 0, 'it is put off')
      await stranger.commit()
      await expireLeases(world)
      assert.equal((await sweeper.sweep()).rescued, 1)
      assert.deepEqual(await states(), ['cancelled', 'ready', 'ready', 'ready'])
    }),
  )
}

test(
  'effects that are applied after they were blocked are applied once',
  inWorld(async (world) => {
    const { holdfast } = world
    await world.rows('drop table if exists public.account')
    await world.rows('create table public.account as select 0 as n')
    const id = await world.enqueue('mail', 1)
    await claimOne(holdfast, 'mail', { lease: 1 })
    const sql = [{ text: 'update public.account set n = n + 1' }]
    await holdfast.cancel(id, { effects: { put: [{ key: 'seen', value: true }], sql } })
    const stranger = await world.begin()
    await stranger.run('select from public.account for update')
    const sweeper = await world.another()
    await sweptOnce(world, sweeper, 0)
    assert.equal(await lastingLeases(world), 1, 'it was put off')
    assert.equal(await holdfast.kv.get('seen'), null)
    await stranger.commit()
    await expireLeases(world)
    assert.equal((await sweeper.sweep()).rescued, 1)
    assert.deepEqual(await world.rows('select n from public.account'), [{ n: 1 }])
    assert.equal((await holdfast.kv.get('seen'))?.value, true)
  }),
)

test(
  'effects that all are blocked take a bounded part of a sweep, and effects that are not blocked are applied meanwhile',
  inWorld(async (world) => {
    const { holdfast } = world
    await world.rows('drop table if exists public.account')
    await world.rows('create table public.account as select n from generate_series(0, 11) n')
    const stranger = await world.begin()
    await stranger.run('select from public.account where n < 11 for update')
    for (let n = 0; n < 12; n++) await world.enqueue('mail', n)
    const leases = await holdfast.claim(['mail'], { max: 12, lease: 1 })
    for (const { job } of leases) {
      const sql = [{ text: 'delete from public.account where n = $1', values: [job.payload] }]
      await holdfast.cancel(job.id, { effects: { sql } })
    }
    const sweeper = await world.another()
    await until(async () => (await sweeper.sweep()).rescued === 1, 'the one that is not blocked is rescued')
    assert.deepEqual(await world.rows('select count(*)::int as n from public.account'), [{ n: 11 }])
    await stranger.commit()
    await expireLeases(world)
    let rescued = 0
    for (let sweeps = 0; sweeps < 3; sweeps++) rescued += (await sweeper.sweep()).rescued
    assert.equal(rescued, 11)
  }),
)

test(
  'a sweep does not wait for a job that is being settled, also if its lease has expired',
  inWorld(async (world) => {
    const { holdfast } = world
    await world.rows('drop table if exists public.account')
    await world.rows('create table public.account as select 0 as n')
    const id = await world.enqueue('mail', 1)
    const other = await world.enqueue('mail', 2)
    const [lease] = await holdfast.claim(['mail'], { max: 2, lease: 1 })
    assert.equal(lease?.job.id, id)
    const stranger = await world.begin()
    await stranger.run('select from public.account for update')
    const sweeper = await world.another()
    await until(async () => (await lastingLeases(world)) === 0, 'all leases have expired')
    const settled = lease?.done('ok', { sql: [{ text: 'update public.account set n = n + 1' }] })
    await world.waiters(1)
    assert.equal((await sweeper.sweep()).rescued, 1)
    for (let sweeps = 0; sweeps < 50; sweeps++) assert.equal((await sweeper.sweep()).rescued, 0)
    assert.deepEqual([await stateOf(holdfast, id), await stateOf(holdfast, other)], ['running', 'ready'])
    await stranger.commit()
    assert.equal((await settled)?.state, 'done')
    await expireLeases(world)
    assert.equal((await sweeper.sweep()).rescued, 0)
    assert.deepEqual([await stateOf(holdfast, id), await stateOf(holdfast, other)], ['done', 'ready'])
  }),
)

for (const [sessions, timeouts] of [
  ['without timeouts', {}],
  ['with timeouts of their own', { statement_timeout: 15_000 }],
] as const)
  test(
    `while the effects of some settlements wait for a row, all others of the worker are settled, and no lease is lost (sessions ${sessions})`,
    inWorld(async (world) => {
      await using own = await ownClient(world, timeouts)
      const { holdfast } = own
      await world.rows('drop table if exists public.account')
      await world.rows('create table public.account as select 0 as n')
      const stranger = await world.begin()
      await stranger.run('select from public.account for update')
      const lost: string[] = []
      holdfast.on('lease.lost', ({ id }) => lost.push(id))
      const mail = holdfast.queue<string>('mail')
      const blocked = await mail.enqueueMany(Array(20).fill({ payload: 'blocked' }))
      const first = await mail.enqueueMany(Array(5).fill({ payload: 'free' }))
      const settled = (ids: readonly { readonly id: string }[]) =>
        Promise.all(ids.map(({ id }) => holdfast.result(id, { timeout: '20s' })))
      const worker = holdfast.work<string>(
        'mail',
        async ({ payload, effects }) => {
          if (payload === 'blocked') effects.sql('update public.account set n = n + 1')
          else effects.put('free', payload)
        },
        { concurrency: 50, lease: '1s' },
      )
      await settled(first)
      await settled(await mail.enqueueMany(Array(5).fill({ payload: 'free' })))
      await beats(worker, 4)
      assert.deepEqual(
        await Promise.all(blocked.map(({ id }) => stateOf(holdfast, id))),
        blocked.map(() => 'running'),
      )
      await stranger.commit()
      await settled(blocked)
      assert.deepEqual(await world.rows('select n from public.account'), [{ n: 20 }])
      assert.deepEqual(lost, [])
      await worker.stop()
    }),
  )

test(
  'a statement that refuses to wait for a row (nowait) fails its settlement at once',
  inWorld(async (world) => {
    await using own = await ownClient(world, {})
    await world.rows('drop table if exists public.account')
    await world.rows('create table public.account as select 0 as n')
    const stranger = await world.begin()
    await stranger.run('select from public.account for update')
    await own.holdfast.queue('mail').enqueue(1)
    const lease = await claimOne(own.holdfast, 'mail')
    const sql = [{ text: 'select from public.account for update nowait' }]
    await assert.rejects(lease.done(null, { sql }), { code: 'INVALID_OPTION' })
    assert.equal(await stateOf(own.holdfast, lease.job.id), 'scheduled')
    await stranger.commit()
  }),
)

for (const [transaction, first] of [
  ['the transaction of a flush', []],
  ['a transaction of its own', [{ text: `select set_config('app.tenant', 'a', true)` }]],
] as const)
  test(
    `an effect that is the victim of a deadlock, in ${transaction}, costs no attempt and is applied once`,
    inWorld(async (world) => {
      await using own = await ownClient(world, { options: '-c deadlock_timeout=10ms' })
      const { holdfast } = own
      await world.rows('drop table if exists public.account')
      await world.rows('create table public.account as select id, 0 as n from generate_series(1, 2) id')
      const stranger = await world.begin()
      await stranger.run(`set local deadlock_timeout = '1min'`)
      const [me] = await stranger.run('select pg_backend_pid() as pid, pg_advisory_xact_lock(7)')
      await stranger.run('update public.account set n = n + 10 where id = 2')
      await holdfast.queue('mail', { attempts: 1 }).enqueueMany(Array(3).fill({ payload: 1 }))
      const leases = await holdfast.claim(['mail'], { max: 3 })
      const add = (id: number) => ({ text: 'update public.account set n = n + 1 where id = $1', values: [id] })
      // Until the other transaction waits for this one, or has ended.
      const meet = {
        text: `select pg_sleep(0.005) from generate_series(1, 4000)
          where cardinality(pg_blocking_pids($1)) = 0 and not pg_try_advisory_xact_lock_shared(7)`,
        values: [me?.['pid']],
      }
      const effects = first.length > 0 ? [[], [...first, add(1), meet, add(2)], []] : [[add(1)], [meet, add(2)], []]
      const settled = Promise.all(
        leases.map((lease, i) => lease.done(i, { sql: effects[i] ?? [], put: [{ key: `${i}`, value: i }] })),
      )
      const sleeping = `select from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()`
      await until(async () => (await world.rows(sleeping)).length > 0, 'the first row is locked')
      await stranger.run('update public.account set n = n + 10 where id = 1') // waits until its opponent is undone
      await stranger.commit()
      assert.deepEqual(
        (await settled).map(({ state }) => state),
        ['done', 'done', 'done'],
      )
      assert.deepEqual(await world.rows('select n from public.account order by id'), [{ n: 11 }, { n: 11 }])
    }),
  )

async function ownClient({ url, schema }: World, timeouts: PoolConfig) {
  const pool = new Pool({ connectionString: url, max: 10, ...timeouts })
  pool.on('error', () => {})
  const holdfast = await open(postgres({ pool, schema: schema.name, listen: false }))
  const dispose = async () => {
    await holdfast.close()
    await pool.end()
  }
  return { holdfast, [Symbol.asyncDispose]: dispose }
}

/** Waits until the worker has renewed its leases so often. */
async function beats(worker: Worker, times: number): Promise<void> {
  for (let n = 0; n < times; n++) {
    const last = worker.health().lastHeartbeatAt?.getTime()
    await until(async () => worker.health().lastHeartbeatAt?.getTime() !== last, 'the leases are renewed')
  }
}

/** Sweeps once all leases have expired, and expects so many rescues. */
async function sweptOnce(world: World, sweeper: Holdfast, rescued: number): Promise<void> {
  await until(async () => (await lastingLeases(world)) === 0, 'all leases have expired')
  assert.equal((await sweeper.sweep()).rescued, rescued)
}

async function lastingLeases(world: World): Promise<number> {
  const [row] = await world.rows(
    'select count(*)::int as n from holdfast.lease where expires_at >= holdfast.now_ms(null)',
  )
  return Number(row?.['n'])
}

/** The time for which rescues were put off is over. */
async function expireLeases(world: World): Promise<void> {
  await world.rows('update holdfast.lease set expires_at = holdfast.now_ms(null) - 1')
}
