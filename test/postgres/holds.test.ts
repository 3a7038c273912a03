// A lease holds places in a lane, not jobs. A job that was rescued and claimed again has another hold. The first claim cannot
// touch it, and keeps its other jobs.
import assert from 'node:assert/strict'
import test from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import type { Lease } from '../../src/lease/lease.ts'
import { claimOne, readJob, rejects, stateOf } from '../conformance/expect.ts'
import { touched } from './plans.ts'
import { inWorld, type Rule, until, useDatabase, type World } from './world.ts'

useDatabase()

/** A settlement names the place that its claim has taken. Without this rule it names the job by its number. */
const placesCount: readonly Rule[] = [
  {
    from: `j.lane = p_lanes[v_stretch] and j.ready_xid = p_xids[v_stretch] and j.ord >= p_firsts[v_stretch]
         and j.ord <= p_lasts[v_stretch]`,
    to: 'j.seq = p_firsts[v_stretch]',
  },
  { from: '(j.ord - p_firsts[v_stretch])::int as turn', to: '(j.seq - p_firsts[v_stretch])::int as turn' },
]

const effects = { put: [{ key: 'effect', value: 'stored' }] }

interface Holds {
  /** The first claim's hold on a job that it has renewed. */
  readonly kept: Lease
  /** Its hold on a job that was rescued. */
  readonly stale: Lease
  /** The second claim's hold on that job. */
  readonly fresh: Lease
}

/** Two jobs of one claim: the first is renewed; the lease of the second expires, and the job is rescued and claimed again. */
async function rescuedMate(world: World): Promise<Holds> {
  await world.holdfast.queue('mail').enqueueMany([{ payload: 'kept' }, { payload: 'rescued' }])
  const other = await world.another()
  const [kept, stale] = await world.holdfast.claim(['mail'], { max: 2, lease: 1 })
  assert.ok(kept && stale)
  await kept.renew('1h')
  await delay(3)
  assert.equal((await other.sweep()).rescued, 1)
  const fresh = await claimOne(other, 'mail', { lease: '1h' })
  assert.deepEqual([fresh.job.id, fresh.job.attempt], [stale.job.id, 2])
  return { kept, stale, fresh }
}

test(
  'a claim that lost one of its jobs cannot settle or renew it, and still holds the others',
  inWorld(async (world) => {
    const { kept, stale, fresh } = await rescuedMate(world)
    await rejects(stale.done('stale'), 'LEASE_LOST')
    await rejects(stale.done('stale', effects), 'LEASE_LOST')
    await rejects(stale.retry(new Error('stale')), 'LEASE_LOST')
    await rejects(stale.release(), 'LEASE_LOST')
    await rejects(stale.renew('1h'), 'LEASE_LOST')
    assert.equal(await world.holdfast.kv.get('effect'), null)
    assert.equal(await stateOf(world.holdfast, fresh.job.id), 'running')
    await fresh.renew()
    assert.equal((await kept.done('kept')).state, 'done')
    assert.equal((await fresh.done('fresh')).state, 'done')
    assert.equal((await readJob(world.holdfast, fresh.job.id)).result, 'fresh')
  }),
)

test(
  'if a settlement names only the job, an old lease settles a job that a new lease holds',
  inWorld(
    async (world) => {
      const { stale, fresh } = await rescuedMate(world)
      assert.equal((await stale.done('stale')).state, 'done')
      await rejects(fresh.done('fresh'), 'LEASE_LOST')
    },
    { without: placesCount },
  ),
)

test(
  'a claim that is sent again by its token returns only what it still holds, and renews nothing else',
  inWorld(async (world) => {
    const { kept, stale, fresh } = await rescuedMate(world)
    const token = kept.fence.slice(0, 32)
    assert.equal(stale.fence.slice(0, 32), token)
    const before = await world.rows('select no, expires_at from holdfast.lease where token <> $1', [token])
    const again = await world.rows(
      `select distinct unnest(ids) as id from holdfast.claim($1, 'worker', 60000, 10, '{mail}', '{}', null)`,
      [token],
    )
    assert.deepEqual(again, [{ id: kept.job.id }])
    assert.deepEqual(await world.rows('select no, expires_at from holdfast.lease where token <> $1', [token]), before)
    assert.equal((await fresh.done('fresh')).state, 'done')
  }),
)

test(
  'a claim that is sent again after all its jobs were rescued starts over, and takes no job with a lease',
  inWorld(async (world) => {
    const other = await world.another()
    await world.enqueue('mail', 'a')
    const stale = await claimOne(world.holdfast, 'mail', { lease: 1 })
    await delay(3)
    assert.equal((await other.sweep()).rescued, 1)
    const fresh = await claimOne(other, 'mail', { lease: '1h' })
    const again = `select unnest(ids) as id from holdfast.claim($1, 'worker', 60000, 10, '{mail}', '{}', null)`
    assert.deepEqual(await world.rows(again, [stale.fence.slice(0, 32)]), [])
    const id = await world.enqueue('mail', 'b')
    assert.deepEqual(await world.rows(again, [stale.fence.slice(0, 32)]), [{ id }])
    await rejects(stale.done(), 'LEASE_LOST')
    assert.equal((await fresh.done()).state, 'done')
  }),
)

test(
  'if a settlement and a rescue run at once, one of them is applied',
  inWorld(async (world) => {
    const other = await world.another()
    for (const first of ['settlement', 'rescue']) {
      await world.enqueue('mail', first)
      const lease = await claimOne(world.holdfast, 'mail', { lease: 1 })
      await delay(3)
      // Both write counts. A reader of the counts keeps the first of them waiting, when it has the row of the job. The second
      // then waits too: a settlement for the row, a rescue, which passes over a locked row, for the counts.
      const reader = await world.begin()
      await reader.run('lock table holdfast.tally in exclusive mode')
      const settle = () =>
        lease.done('ok', { put: [{ key: 'k', value: 1 }] }).then(
          () => 'settled',
          () => 'lost',
        )
      const rescue = () => other.sweep().then(({ rescued }) => rescued)
      const acts: (() => Promise<unknown>)[] = first === 'settlement' ? [settle, rescue] : [rescue, settle]
      const answers: Promise<unknown>[] = []
      for (const [i, act] of acts.entries()) {
        answers.push(act())
        await world.waiters(i + 1)
      }
      await reader.commit()
      assert.deepEqual(await Promise.all(answers), first === 'settlement' ? ['settled', 0] : [1, 'lost'])
    }
    assert.deepEqual(await world.claim(), ['rescue'])
  }),
)

test(
  'a renewal that was answered is respected by a sweep that waited for it',
  inWorld(async (world) => {
    const other = await world.another()
    await world.enqueue('mail', 'a')
    const lease = await claimOne(world.holdfast, 'mail', { lease: 1 })
    await delay(3)
    const reader = await world.begin()
    await reader.run('select from holdfast.lease for update')
    const renewed = lease.renew('1h')
    await world.waiters(1)
    assert.equal((await other.sweep()).rescued, 0) // a lease that is being renewed is skipped
    await reader.commit()
    await renewed
    assert.equal((await other.sweep()).rescued, 0)
    assert.equal((await lease.done()).state, 'done')
  }),
)

/** A sweep reads the clock. Then a lease is given, and only then does the sweep look at leases. */
async function leaseGivenDuringSweep(world: World): Promise<{ readonly given: number; readonly stored: number }> {
  const sweep = await world.begin()
  const [row] = await sweep.run('select holdfast.now_ms(null) as now')
  await delay(20)
  await world.enqueue('mail', 'a')
  const lease = await claimOne(world.holdfast, 'mail', { lease: '1h' })
  await delay(5)
  await sweep.run('select from holdfast.expired_leases(10, $1, 0, null, 0)', [row?.['now']])
  await sweep.commit()
  const [left] = await world.rows('select expires_at from holdfast.lease')
  return { given: lease.expiresAt.getTime(), stored: Number(left?.['expires_at']) }
}

test(
  'a lease that was given during a sweep is not mistaken for one from before the clock was set back',
  inWorld(async (world) => {
    const { given, stored } = await leaseGivenDuringSweep(world)
    assert.equal(stored, given)
  }),
)

test(
  'if a sweep judges leases by the time at which it began, it shortens those given since',
  inWorld(
    async (world) => {
      const { given, stored } = await leaseGivenDuringSweep(world)
      assert.ok(stored <= given - 20, `${given - stored} ms`)
    },
    {
      without: [
        { from: 'and l.given_at > holdfast.now_ms(p_clock)', to: '' },
        {
          from: 'given_at = holdfast.now_ms(p_clock), expires_at = holdfast.now_ms(p_clock) +',
          to: 'given_at = p_now, expires_at = p_now +',
        },
      ],
    },
  ),
)

test(
  'leases of settled jobs that no claim has removed are removed when they expire, and nothing is rescued',
  inWorld(async (world) => {
    for (let n = 0; n < 3; n++) {
      await world.holdfast.queue('mail').enqueue(n)
      const [lease] = await world.holdfast.claim(['mail'], { lease: 1_000 })
      await lease?.done()
    }
    const left = async () => (await world.rows('select from holdfast.lease')).length
    assert.ok((await left()) > 0, 'a claim does not remove so few')
    let rescued = 0
    await until(async () => {
      rescued += (await world.holdfast.sweep()).rescued
      return (await left()) === 0
    }, 'they are gone')
    assert.equal(rescued, 0)
  }),
)

/** How many rows of leases there are, and how many blocks one more renewal of the first job reads. */
async function renewalCost(world: World, id: string): Promise<{ readonly rows: number; readonly blocks: number }> {
  const session = await world.connect()
  const [hold] = await world.rows(
    `select l.token, j.lane, j.ready_xid::text as xid, j.ord::text
       from holdfast.job j join holdfast.lease l on j.ord = any (l.ords) where j.id = $1 limit 1`,
    [id],
  )
  const { token, lane, xid, ord } = hold as Record<string, string>
  const renew = `select * from holdfast.renew('{${token}}', '{1}', '{${lane}}', '{${xid}}', '{${ord}}', '{${ord}}', '{1}', '{600000}', null)`
  const blocks = await touched(session, world.schema.sql(renew))
  const [leases] = await world.rows('select count(*)::int as rows from holdfast.lease')
  return { rows: leases?.['rows'] as number, blocks }
}

test(
  'what a renewal reads, and the rows of leases, do not grow with earlier renewals of a job and of those claimed with it',
  inWorld(async (world) => {
    await world.holdfast.queue('mail').enqueueMany(Array.from({ length: 5 }, (_, payload) => ({ payload })))
    const leases = await world.holdfast.claim(['mail'], { max: 5, lease: '1h' })
    const id = leases[0]?.job.id as string
    for (const lease of leases) await lease.renew('1h')
    await world.rows('vacuum holdfast.lease')
    const few = await renewalCost(world, id)
    for (let n = 0; n < 400; n++) await leases[n % 5]?.renew('1h')
    await world.rows('vacuum holdfast.lease') // dead rows are not what this is about
    const many = await renewalCost(world, id)
    assert.ok(many.rows <= few.rows, `${few.rows} rows, then ${many.rows}`)
    assert.ok(many.blocks < few.blocks + 20, `${few.blocks} blocks, then ${many.blocks}`)
    await Promise.all(leases.map((lease) => lease.renew('1h')))
    assert.equal((await renewalCost(world, id)).rows, 2, 'one row lists all, one the job that was renewed last')
  }),
)

const locksAgain: Rule = {
  from: 'exit when not exists (select from holdfast.lease l where l.token = any (p_tokens) and l.no <> all (v_locked));',
  to: 'perform pg_advisory_xact_lock(77, 77); exit;',
}
/** The same rule, behind a lock with which a test stops a renewal that has locked what it saw. */
const stopsThere: Rule = { from: locksAgain.from, to: `perform pg_advisory_xact_lock(77, 77); ${locksAgain.from}` }

/**
 * Two renewals at the same moment, and the lease of the first expires at once. While the second one stands between its locks and
 * its look at the job, a sweep takes the job back. Answers for how many jobs the second one was answered, and how many it lists.
 */
async function renewsTwice(world: World): Promise<{ readonly answered: number; readonly listed: unknown }> {
  const { id } = await world.holdfast.queue('mail').enqueue(1)
  await claimOne(world.holdfast, 'mail', { lease: '1h' })
  const [hold] = await world.rows('select token, lane, xids[1]::text as xid, ords[1]::text as ord from holdfast.lease')
  const { token, lane, xid, ord } = hold as Record<string, string>
  const place = `'{${lane}}', '{${xid}}', '{${ord}}', '{${ord}}', '{1}'`
  const renew = (ms: number) => `select * from holdfast.renew('{${token}}', '{1}', ${place}, '{${ms}}', null)`
  const first = await world.begin()
  await first.run(renew(1))
  const [blocker, second, sweep] = [await world.begin(), await world.begin(), await world.begin()]
  let isAnswered = false
  const answer = second.run(renew(3_600_000)).finally(() => {
    isAnswered = true
  })
  const blocked = blocker.run('select pg_advisory_xact_lock(77, 77)') // the first has it
  await world.waiters(2) // the second waits for the lease that the first has removed
  await first.commit()
  await blocked
  await world.waiters(1, 0, '3600000')
  await sweep.run('delete from holdfast.lease')
  await sweep.run(`update holdfast.job set ord = nextval('holdfast.number') where id = $1`, [id]) // as a rescue
  await blocker.commit()
  const waits = `select from pg_stat_activity
    where wait_event_type = 'Lock' and wait_event <> 'advisory' and datname = current_database()`
  await until(
    async () => isAnswered || (await world.rows(waits)).length > 0,
    'the second is answered, or waits for the sweep',
  )
  await sweep.commit()
  const answered = (await answer).length
  await second.commit()
  return { answered, listed: (await world.rows('select count(*)::int as rows from holdfast.lease'))[0]?.['rows'] }
}

test(
  'a renewal that waited for another one of the same job is answered as lost if the job was rescued in between',
  inWorld(async (world) => assert.deepEqual(await renewsTwice(world), { answered: 0, listed: 0 }), {
    without: [stopsThere],
  }),
)

test(
  'if a renewal does not lock the lease that replaced the one it waited for, it is answered although the job is gone',
  inWorld(async (world) => assert.equal((await renewsTwice(world)).answered, 1), { without: [locksAgain] }),
)
