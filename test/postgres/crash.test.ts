// A claim's commit does not wait for the disk. If the server crashes before the commit is written, the claim never happened: the
// job is ready as before, and the lease is void. These tests have their own server, which writes its log late.
import assert from 'node:assert/strict'
import test, { after, before } from 'node:test'
import type { Lease } from '../../src/lease/lease.ts'
import { claimOne, readJob, rejects, stateOf } from '../conformance/expect.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { type Rule, World } from './world.ts'

const triesMax = 5

let server: Server
let worlds = 0

before(async () => {
  // The log is not flushed without a request: not by the timer (every 10 s), nor in the background.
  const settings = { wal_writer_delay: '10s', bgwriter_delay: '10s', autovacuum: 'off' }
  server = await startServer({ settings })
})

after(() => server[Symbol.asyncDispose]())

/** A settlement is applied only while its token is in a lease. */
const tokenCounts: Rule = { from: 'continue when v_workers[p_claims[v_stretch]] is null;', to: '' }

interface LostClaim extends AsyncDisposable {
  readonly world: World
  /** The lease that the worker has and the server has lost. */
  readonly lease: Lease
}

async function lostClaim(without: readonly Rule[] = []): Promise<LostClaim> {
  for (let tries = 1; ; tries++) {
    const world = await World.open(server.url(), `crash ${worlds++}`)
    for (const rule of without) await world.withoutRule(rule)
    await world.enqueue('mail', 'precious')
    await world.holdfast.sweep()
    await world.holdfast.kv.put('flushed', 'up to here')
    const lease = await claimOne(world.holdfast, 'mail', { lease: '1h' })
    await server.stop('immediate')
    await server.start()
    const [row] = await world.rows('select count(*)::int as leases from holdfast.lease')
    if (row?.['leases'] === 0) return { world, lease, [Symbol.asyncDispose]: () => world[Symbol.asyncDispose]() }
    await world[Symbol.asyncDispose]()
    assert.ok(tries < triesMax, 'the log was always flushed after the claim')
  }
}

const effects = { enqueue: [{ queue: 'next', payload: 'b' }], put: [{ key: 'effect', value: 'stored' }] }

async function noEffects({ holdfast }: World): Promise<void> {
  assert.equal(await holdfast.kv.get('effect'), null)
  assert.deepEqual((await holdfast.jobs({ queue: 'next' })).jobs, [])
}

test('a claim lost in a crash leaves the job claimable at once, with all its attempts', async () => {
  await using lost = await lostClaim()
  const { world } = lost
  assert.equal(await stateOf(world.holdfast, lost.lease.job.id), 'ready')
  const again = await claimOne(world.holdfast, 'mail')
  assert.deepEqual([again.job.id, again.job.attempt], [lost.lease.job.id, 1])
  assert.notEqual(again.fence, lost.lease.fence)
  await again.done('second')
  assert.deepEqual((await readJob(world.holdfast, again.job.id)).attempts, 1)
  await world.recount()
})

test('a worker whose claim was undone by a crash cannot settle, and its effects are not stored', async () => {
  await using lost = await lostClaim()
  const { world, lease } = lost
  await rejects(lease.done('stale', effects), 'LEASE_LOST')
  await rejects(lease.done('stale'), 'LEASE_LOST')
  await rejects(lease.renew(), 'LEASE_LOST')
  await rejects(lease.release(), 'LEASE_LOST')
  await noEffects(world)
  assert.equal(await stateOf(world.holdfast, lease.job.id), 'ready')
  await world.recount()
})

test('a worker whose claim was undone by a crash does not disturb the lease that another worker has now', async () => {
  await using lost = await lostClaim()
  const { world, lease } = lost
  const again = await claimOne(world.holdfast, 'mail')
  await rejects(lease.done('stale', effects), 'LEASE_LOST')
  await rejects(lease.done('stale'), 'LEASE_LOST')
  await noEffects(world)
  assert.equal((await again.done('fresh')).state, 'done')
  assert.equal((await readJob(world.holdfast, again.job.id)).result, 'fresh')
  await world.recount()
})

test('if the token is not checked, a settlement of an undone claim is applied', async () => {
  await using lost = await lostClaim([tokenCounts])
  const { world, lease } = lost
  const again = await claimOne(world.holdfast, 'mail')
  assert.equal((await lease.done('stale')).state, 'done')
  await rejects(again.done('fresh'), 'LEASE_LOST')
  assert.equal((await readJob(world.holdfast, lease.job.id)).result, 'stale')
})

test('a job that was settled before the crash stays settled: its commit also wrote the claim to disk', async () => {
  await using world = await World.open(server.url(), `crash ${worlds++}`)
  await world.holdfast.queue('mail').enqueueMany([{ payload: 'a' }, { payload: 'b' }])
  const [a, b] = await world.holdfast.claim(['mail'], { max: 2 })
  assert.ok(a && b)
  await a.done('kept')
  await server.stop('immediate')
  await server.start()
  assert.equal((await readJob(world.holdfast, a.job.id)).result, 'kept')
  assert.equal(await stateOf(world.holdfast, b.job.id), 'running')
  assert.equal((await b.done('also kept')).state, 'done')
  await world.recount()
})
