// A claim's commit does not wait for the disk. When the server goes down before it got there, the claim has not been: the
// job is ready as before, and whoever held it holds nothing. On a server of its own, which writes its log out late.
import assert from 'node:assert/strict'
import test, { after, before } from 'node:test'
import type { Lease } from '../../src/lease/lease.ts'
import { claimOne, readJob, rejects, stateOf } from '../conformance/expect.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { Hand, type Rule } from './hand.ts'

const triesMax = 5

let server: Server
let worlds = 0

before(async () => {
  // Nobody flushes the log unasked: not by the clock (every 10 s), nor in the background.
  const settings = { wal_writer_delay: '10s', bgwriter_delay: '10s', autovacuum: 'off' }
  server = await startServer({ settings })
})

after(() => server[Symbol.asyncDispose]())

/** A settlement counts only while its token is in a lease. */
const tokenCounts: Rule = { from: 'continue when v_workers[p_claims[v_stretch]] is null;', to: '' }

interface LostClaim extends AsyncDisposable {
  readonly hand: Hand
  /** What the worker holds in its hand, and the server has forgotten. */
  readonly lease: Lease
}

async function lostClaim(without: readonly Rule[] = []): Promise<LostClaim> {
  for (let tries = 1; ; tries++) {
    const hand = await Hand.open(server.url(), `crash ${worlds++}`)
    for (const rule of without) await hand.withoutRule(rule)
    await hand.enqueue('mail', 'precious')
    await hand.holdfast.sweep()
    await hand.holdfast.kv.put('flushed', 'up to here')
    const lease = await claimOne(hand.holdfast, 'mail', { lease: '1h' })
    await server.stop('immediate')
    await server.start()
    const [row] = await hand.rows('select count(*)::int as leases from holdfast.lease')
    if (row?.['leases'] === 0) return { hand, lease, [Symbol.asyncDispose]: () => hand[Symbol.asyncDispose]() }
    await hand[Symbol.asyncDispose]()
    assert.ok(tries < triesMax, 'the log was always flushed behind the claim')
  }
}

const effects = { enqueue: [{ queue: 'next', payload: 'b' }], put: [{ key: 'effect', value: 'landed' }] }

async function noEffects({ holdfast }: Hand): Promise<void> {
  assert.equal(await holdfast.kv.get('effect'), null)
  assert.deepEqual((await holdfast.jobs({ queue: 'next' })).jobs, [])
}

test('a claim lost in a crash leaves the job claimable at once, with all its attempts', async () => {
  await using lost = await lostClaim()
  const { hand } = lost
  assert.equal(await stateOf(hand.holdfast, lost.lease.job.id), 'ready')
  const again = await claimOne(hand.holdfast, 'mail')
  assert.deepEqual([again.job.id, again.job.attempt], [lost.lease.job.id, 1])
  assert.notEqual(again.fence, lost.lease.fence)
  await again.done('second')
  assert.deepEqual((await readJob(hand.holdfast, again.job.id)).attempts, 1)
  await hand.recount()
})

test('who held a claim that a crash has undone cannot settle, and leaves no effects', async () => {
  await using lost = await lostClaim()
  const { hand, lease } = lost
  await rejects(lease.done('stale', effects), 'LEASE_LOST')
  await rejects(lease.done('stale'), 'LEASE_LOST')
  await rejects(lease.renew(), 'LEASE_LOST')
  await rejects(lease.release(), 'LEASE_LOST')
  await noEffects(hand)
  assert.equal(await stateOf(hand.holdfast, lease.job.id), 'ready')
  await hand.recount()
})

test('who held a claim that a crash has undone does not disturb who holds the job now', async () => {
  await using lost = await lostClaim()
  const { hand, lease } = lost
  const again = await claimOne(hand.holdfast, 'mail')
  await rejects(lease.done('stale', effects), 'LEASE_LOST')
  await rejects(lease.done('stale'), 'LEASE_LOST')
  await noEffects(hand)
  assert.equal((await again.done('fresh')).state, 'done')
  assert.equal((await readJob(hand.holdfast, again.job.id)).result, 'fresh')
  await hand.recount()
})

test('where the token does not count, a settlement of a claim that has never been lands', async () => {
  await using lost = await lostClaim([tokenCounts])
  const { hand, lease } = lost
  const again = await claimOne(hand.holdfast, 'mail')
  assert.equal((await lease.done('stale')).state, 'done')
  await rejects(again.done('fresh'), 'LEASE_LOST')
  assert.equal((await readJob(hand.holdfast, lease.job.id)).result, 'stale')
})

test('what was settled before the crash stays settled, and takes the claim to the disk with it', async () => {
  await using hand = await Hand.open(server.url(), `crash ${worlds++}`)
  await hand.holdfast.queue('mail').enqueueMany([{ payload: 'a' }, { payload: 'b' }])
  const [a, b] = await hand.holdfast.claim(['mail'], { max: 2 })
  assert.ok(a && b)
  await a.done('kept')
  await server.stop('immediate')
  await server.start()
  assert.equal((await readJob(hand.holdfast, a.job.id)).result, 'kept')
  assert.equal(await stateOf(hand.holdfast, b.job.id), 'running')
  assert.equal((await b.done('also kept')).state, 'done')
  await hand.recount()
})
