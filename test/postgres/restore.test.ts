// After a restore into another cluster the transaction numbers in the rows are in that cluster's future. Opening the store
// repairs them, and so does a claim that notices it.
import assert from 'node:assert/strict'
import test from 'node:test'
import { claimOne, claimOrder, readJob, rejects } from '../conformance/expect.ts'
import { type Hand, inHand, type Rule, useDatabase } from './hand.ts'

useDatabase()

const ahead = 1_000_000_000

/** A claim notices a cursor that is ahead of the cluster. */
const cursorsAheadAreNoticed: Rule = {
  from: 'if v_cursor.xid > pg_snapshot_xmax(pg_current_snapshot()) then',
  to: 'if false then',
}

/** As if the rows came from a cluster that had used a billion more transaction numbers. */
async function shift(hand: Hand): Promise<void> {
  const later = (column: string) => `(${column}::text::bigint + ${ahead})::text::xid8`
  const laterAll = (column: string) =>
    `array(select ${later('x')} from unnest(${column}) with ordinality u(x, n) order by n)`
  await hand.rows(`update holdfast.job set ready_xid = ${later('ready_xid')} where ready_xid is not null`)
  await hand.rows(
    `update holdfast.lane_cursor set xid = ${later('xid')}, gap_xids = ${laterAll('gap_xids')} where xid <> '0'`,
  )
  await hand.rows(`update holdfast.lease set xids = ${laterAll('xids')}`)
  await hand.rows(`update holdfast.tally set xid = ${later('xid')}, low = ${later('low')}`)
}

async function pretendRestored(hand: Hand): Promise<void> {
  await shift(hand)
  await hand.rows(`update holdfast.meta set system_identifier = 'another cluster'`)
}

/** Jobs 1 and 2 run, 3 is done, 4 was released, 5 to 7 are ready, 8 is scheduled. */
async function work(hand: Hand) {
  for (const n of [1, 2, 3, 4, 5, 6, 7]) await hand.enqueue('mail', n)
  await hand.enqueue('mail', 8, { delay: '1h' })
  const leases = await hand.holdfast.claim(['mail'], { max: 4, lease: '1h' })
  const [one, two, three, four] = leases
  assert.ok(one && two && three && four)
  await three.done()
  await four.release()
  return { one, two }
}

test(
  'opening a store that was restored elsewhere makes every ready job claimable, in order, and running ones first',
  inHand(async (hand) => {
    const { one, two } = await work(hand)
    await pretendRestored(hand)
    const reopened = await hand.another()
    await rejects(one.done(), 'LEASE_LOST')
    await rejects(two.renew(), 'LEASE_LOST')
    const { running, ready, scheduled, done } = await reopened.stats()
    assert.deepEqual({ running, ready, scheduled, done }, { running: 0, ready: 6, scheduled: 1, done: 1 })
    await hand.enqueue('mail', 'new')
    assert.deepEqual(await claimOrder(reopened, ['mail']), [1, 2, 4, 5, 6, 7, 'new'])
    assert.equal((await readJob(reopened, one.job.id)).attempts, 1)
  }),
)

test(
  'a store that was repaired is not repaired again',
  inHand(async (hand) => {
    await work(hand)
    await pretendRestored(hand)
    const reopened = await hand.another()
    const lease = await claimOne(reopened, 'mail')
    await hand.another()
    assert.equal((await lease.done()).state, 'done')
  }),
)

test(
  'rows restored into a copy of their own cluster, with the same identifier, are repaired when the store is opened',
  inHand(async (hand) => {
    await work(hand)
    await shift(hand)
    const reopened = await hand.another()
    assert.deepEqual(await claimOrder(reopened, ['mail']), [1, 2, 4, 5, 6, 7])
  }),
)

test(
  'jobs of a lane without claims are repaired when the store is opened, also if only they are ahead',
  inHand(async (hand) => {
    for (const n of [1, 2, 3]) await hand.enqueue('mail', n)
    await shift(hand)
    const reopened = await hand.another()
    await hand.enqueue('mail', 'new')
    assert.deepEqual(await claimOrder(reopened, ['mail']), [1, 2, 3, 'new'])
  }),
)

test(
  'a cursor that is ahead is noticed by a claim that looks at many queues before it locks any',
  inHand(async (hand) => {
    const queues = Array.from({ length: 20 }, (_, n) => `queue-${n}`)
    for (const queue of queues) await hand.enqueue(queue, 'old')
    assert.equal((await hand.claim(queues)).length, 20)
    await shift(hand)
    for (const queue of queues) await hand.enqueue(queue, 'new')
    const payloads = await hand.claim(queues)
    assert.equal(payloads.filter((payload) => payload === 'new').length, 20)
  }),
)

test(
  'a database that is restored under a process that does not claim is repaired by its upkeep',
  inHand(async (hand) => {
    await hand.enqueue('mail', 1)
    await pretendRestored(hand)
    await hand.holdfast.sweep()
    const [row] = await hand.rows(
      'select holdfast.is_from_elsewhere(null) as is_ahead, system_identifier from holdfast.meta',
    )
    assert.equal(row?.['is_ahead'], false)
    assert.notEqual(row?.['system_identifier'], 'another cluster')
  }),
)

test(
  'an unknown cluster identifier is stored, and running jobs go on',
  inHand(async (hand) => {
    const { one } = await work(hand)
    await hand.rows('update holdfast.meta set system_identifier = null')
    await hand.another()
    assert.equal((await one.done()).state, 'done')
    const [row] = await hand.rows('select system_identifier from holdfast.meta')
    assert.notEqual(row?.['system_identifier'], null)
  }),
)

test(
  'an enqueue to a lane that no longer exists creates it again, by every kind of enqueue',
  inHand(async (hand) => {
    const forget = async () => {
      await hand.rows('delete from holdfast.job')
      await hand.rows('delete from holdfast.tally')
      await hand.rows('delete from holdfast.lane')
      await hand.rows('delete from holdfast.lane_cursor')
    }
    const mail = hand.holdfast.queue('mail')
    await mail.enqueue('known')
    await forget()
    await mail.enqueue('plain')
    assert.deepEqual(await hand.claim(), ['plain'])
    await forget()
    await mail.enqueue('later', { delay: 1 })
    await forget()
    await mail.enqueue('keyed', { dedup: { key: 'k' } })
    assert.deepEqual(await hand.claim(), ['keyed'])
    await forget()
    const tx = await hand.begin()
    await tx.enqueue('mail', 'in a transaction')
    await tx.commit()
    assert.deepEqual(await hand.claim(), ['in a transaction'])
  }),
)

async function claimsAfterShift(hand: Hand): Promise<unknown[]> {
  await work(hand)
  await shift(hand)
  await hand.enqueue('mail', 'new')
  return claimOrder(hand.holdfast, ['mail'])
}

test(
  'a claim that finds the cursor ahead of the cluster repairs the store',
  inHand(async (hand) => {
    // The new job was enqueued before the repair, so its number is below theirs.
    assert.deepEqual(await claimsAfterShift(hand), [1, 2, 4, 'new', 5, 6, 7])
  }),
)

test(
  'if a cursor ahead of the cluster is not noticed, jobs wait for a billion transactions',
  inHand(async (hand) => assert.deepEqual(await claimsAfterShift(hand), []), { without: [cursorsAheadAreNoticed] }),
)
