// After a restore into another cluster the transaction numbers in the rows are in that cluster's future. Opening the store
// repairs them, and so does a claim that notices it.
import assert from 'node:assert/strict'
import test from 'node:test'
import { claimOne, claimOrder, readJob, rejects } from '../conformance/expect.ts'
import { inWorld, type Rule, useDatabase, type World } from './world.ts'

useDatabase()

const ahead = 1_000_000_000

/** A claim notices a cursor that is ahead of the cluster. */
const cursorsAheadAreNoticed: Rule = {
  from: 'if v_cursor.xid > pg_snapshot_xmax(pg_current_snapshot()) then',
  to: 'if false then',
}

/** As if the rows came from a cluster that had used a billion more transaction numbers. */
async function shift(world: World): Promise<void> {
  const later = (column: string) => `(${column}::text::bigint + ${ahead})::text::xid8`
  const laterAll = (column: string) =>
    `array(select ${later('x')} from unnest(${column}) with ordinality u(x, n) order by n)`
  await world.rows(`update holdfast.job set ready_xid = ${later('ready_xid')} where ready_xid is not null`)
  await world.rows(
    `update holdfast.lane_cursor set xid = ${later('xid')}, gap_xids = ${laterAll('gap_xids')} where xid <> '0'`,
  )
  await world.rows(`update holdfast.lease set xids = ${laterAll('xids')}`)
  await world.rows(`update holdfast.tally set xid = ${later('xid')}, low = ${later('low')}`)
}

async function pretendRestored(world: World): Promise<void> {
  await shift(world)
  await world.rows(`update holdfast.meta set system_identifier = 'another cluster'`)
}

/** Jobs 1 and 2 run, 3 is done, 4 was released, 5 to 7 are ready, 8 is scheduled. */
async function work(world: World) {
  for (const n of [1, 2, 3, 4, 5, 6, 7]) await world.enqueue('mail', n)
  await world.enqueue('mail', 8, { delay: '1h' })
  const leases = await world.holdfast.claim(['mail'], { max: 4, lease: '1h' })
  const [one, two, three, four] = leases
  assert.ok(one && two && three && four)
  await three.done()
  await four.release()
  return { one, two }
}

test(
  'opening a store that was restored elsewhere makes every ready job claimable, in order, and running ones first',
  inWorld(async (world) => {
    const { one, two } = await work(world)
    await pretendRestored(world)
    const reopened = await world.another()
    await rejects(one.done(), 'LEASE_LOST')
    await rejects(two.renew(), 'LEASE_LOST')
    const { running, ready, scheduled, done } = await reopened.stats()
    assert.deepEqual({ running, ready, scheduled, done }, { running: 0, ready: 6, scheduled: 1, done: 1 })
    await world.enqueue('mail', 'new')
    assert.deepEqual(await claimOrder(reopened, ['mail']), [1, 2, 4, 5, 6, 7, 'new'])
    assert.equal((await readJob(reopened, one.job.id)).attempts, 1)
  }),
)

test(
  'a store that was repaired is not repaired again',
  inWorld(async (world) => {
    await work(world)
    await pretendRestored(world)
    const reopened = await world.another()
    const lease = await claimOne(reopened, 'mail')
    await world.another()
    assert.equal((await lease.done()).state, 'done')
  }),
)

test(
  'rows restored into a copy of their own cluster, with the same identifier, are repaired when the store is opened',
  inWorld(async (world) => {
    await work(world)
    await shift(world)
    const reopened = await world.another()
    assert.deepEqual(await claimOrder(reopened, ['mail']), [1, 2, 4, 5, 6, 7])
  }),
)

test(
  'jobs of a lane without claims are repaired when the store is opened, also if only they are ahead',
  inWorld(async (world) => {
    for (const n of [1, 2, 3]) await world.enqueue('mail', n)
    await shift(world)
    const reopened = await world.another()
    await world.enqueue('mail', 'new')
    assert.deepEqual(await claimOrder(reopened, ['mail']), [1, 2, 3, 'new'])
  }),
)

test(
  'a cursor that is ahead is noticed by a claim that looks at many queues before it locks any',
  inWorld(async (world) => {
    const queues = Array.from({ length: 20 }, (_, n) => `queue-${n}`)
    for (const queue of queues) await world.enqueue(queue, 'old')
    assert.equal((await world.claim(queues)).length, 20)
    await shift(world)
    for (const queue of queues) await world.enqueue(queue, 'new')
    const payloads = await world.claim(queues)
    assert.equal(payloads.filter((payload) => payload === 'new').length, 20)
  }),
)

test(
  'a database that is restored under a process that does not claim is repaired by its upkeep',
  inWorld(async (world) => {
    await world.enqueue('mail', 1)
    await pretendRestored(world)
    await world.holdfast.sweep()
    const [row] = await world.rows(
      'select holdfast.is_from_elsewhere(null) as is_ahead, system_identifier from holdfast.meta',
    )
    assert.equal(row?.['is_ahead'], false)
    assert.notEqual(row?.['system_identifier'], 'another cluster')
  }),
)

test(
  'an unknown cluster identifier is stored, and running jobs go on',
  inWorld(async (world) => {
    const { one } = await work(world)
    await world.rows('update holdfast.meta set system_identifier = null')
    await world.another()
    assert.equal((await one.done()).state, 'done')
    const [row] = await world.rows('select system_identifier from holdfast.meta')
    assert.notEqual(row?.['system_identifier'], null)
  }),
)

test(
  'an enqueue to a lane that no longer exists creates it again, by every kind of enqueue',
  inWorld(async (world) => {
    const forget = async () => {
      await world.rows('delete from holdfast.job')
      await world.rows('delete from holdfast.tally')
      await world.rows('delete from holdfast.lane')
      await world.rows('delete from holdfast.lane_cursor')
    }
    const mail = world.holdfast.queue('mail')
    await mail.enqueue('known')
    await forget()
    await mail.enqueue('plain')
    assert.deepEqual(await world.claim(), ['plain'])
    await forget()
    await mail.enqueue('later', { delay: 1 })
    await forget()
    await mail.enqueue('keyed', { dedup: { key: 'k' } })
    assert.deepEqual(await world.claim(), ['keyed'])
    await forget()
    const tx = await world.begin()
    await tx.enqueue('mail', 'in a transaction')
    await tx.commit()
    assert.deepEqual(await world.claim(), ['in a transaction'])
  }),
)

async function claimsAfterShift(world: World): Promise<unknown[]> {
  await work(world)
  await shift(world)
  await world.enqueue('mail', 'new')
  return claimOrder(world.holdfast, ['mail'])
}

test(
  'a claim that finds the cursor ahead of the cluster repairs the store',
  inWorld(async (world) => {
    // The new job was enqueued before the repair, so its number is below theirs.
    assert.deepEqual(await claimsAfterShift(world), [1, 2, 4, 'new', 5, 6, 7])
  }),
)

test(
  'if a cursor ahead of the cluster is not noticed, jobs wait for a billion transactions',
  inWorld(async (world) => assert.deepEqual(await claimsAfterShift(world), []), { without: [cursorsAheadAreNoticed] }),
)
