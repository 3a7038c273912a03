// The limit of a claim may end anywhere: in a gap, before a gap, between the gaps and newer jobs. No job is lost there, and
// none is taken twice.
import assert from 'node:assert/strict'
import test from 'node:test'
import { boundMovesToTheEnd, cleanedListIsWritten, gapsStayWhenCut, howFar, unreachedGapsStay } from './rules.ts'
import { type CallerTx, inWorld, useDatabase, type World } from './world.ts'

useDatabase()

/** Open transactions with jobs a1 a2 a3, b1 b2 b3, …, which the bound has passed. */
async function passed(world: World, names: readonly string[]): Promise<CallerTx[]> {
  const open: CallerTx[] = []
  for (const name of names) {
    const tx = await world.begin()
    for (const n of [1, 2, 3]) await tx.enqueue('mail', `${name}${n}`)
    open.push(tx)
  }
  await world.enqueue('mail', 'bound')
  assert.deepEqual(await world.claim(), ['bound'])
  return open
}

async function claims(world: World, limits: readonly number[]): Promise<unknown[][]> {
  const taken: unknown[][] = []
  for (const max of limits) taken.push(await world.claim('mail', max))
  return taken
}

async function cutShort(world: World): Promise<unknown[][]> {
  const [a] = await passed(world, ['a'])
  await a?.commit()
  return claims(world, [2, 2, 2])
}

test(
  'a limit that cuts a gap short leaves the rest to the next claim',
  inWorld(async (world) => assert.deepEqual(await cutShort(world), [['a1', 'a2'], ['a3'], []])),
)

test(
  'if a gap that was cut short is dropped, its other jobs are skipped',
  inWorld(async (world) => assert.deepEqual(await cutShort(world), [['a1', 'a2'], [], []]), {
    without: [gapsStayWhenCut],
  }),
)

test(
  'if the position in a gap that was cut short is not stored, jobs are claimed twice',
  inWorld(
    async (world) =>
      assert.deepEqual(await cutShort(world), [
        ['a1', 'a2'],
        ['a1', 'a2'],
        ['a1', 'a2'],
      ]),
    { without: [howFar] },
  ),
)

test(
  'a gap is dropped if the limit ends with its last job',
  inWorld(async (world) => {
    const [a] = await passed(world, ['a'])
    await a?.commit()
    await world.enqueue('mail', 'new')
    assert.deepEqual(await claims(world, [3, 3, 3]), [['a1', 'a2', 'a3'], ['new'], []])
  }),
)

async function unreached(world: World): Promise<unknown[][]> {
  const [a, b, c] = await passed(world, ['a', 'b', 'c'])
  await c?.commit()
  await b?.commit()
  await a?.commit()
  await world.enqueue('mail', 'new')
  return claims(world, [1, 3, 4, 4])
}

test(
  'gaps that a limit did not reach stay, and are claimed in their order before newer jobs',
  inWorld(async (world) => {
    assert.deepEqual(await unreached(world), [['a1'], ['a2', 'a3', 'b1'], ['b2', 'b3', 'c1', 'c2'], ['c3', 'new']])
  }),
)

test(
  'if gaps that the limit did not reach are dropped, their jobs are skipped',
  inWorld(async (world) => assert.deepEqual(await unreached(world), [['a1'], ['a2', 'a3', 'new'], [], []]), {
    without: [unreachedGapsStay],
  }),
)

test(
  'a gap whose transaction is open stays while the limit cuts those around it',
  inWorld(async (world) => {
    const [a, b, c] = await passed(world, ['a', 'b', 'c'])
    await c?.commit()
    await a?.commit()
    assert.deepEqual(await claims(world, [2, 2, 2]), [
      ['a1', 'a2'],
      ['a3', 'c1'],
      ['c2', 'c3'],
    ])
    assert.ok((await world.cursor('mail')).gap_xids.includes((await b?.xid()) as string))
    await b?.commit()
    assert.deepEqual(await claims(world, [2, 2]), [['b1', 'b2'], ['b3']])
  }),
)

test(
  'a gap that ends between two claims of another gap is claimed in its turn',
  inWorld(async (world) => {
    const [a, b] = await passed(world, ['a', 'b'])
    await b?.commit()
    assert.deepEqual(await claims(world, [1]), [['b1']])
    await a?.commit()
    assert.deepEqual(await claims(world, [2, 4]), [
      ['a1', 'a2'],
      ['a3', 'b2', 'b3'],
    ])
  }),
)

test(
  'transactions that begin while the limit is spent on gaps become gaps when the bound moves',
  inWorld(async (world) => {
    const [a] = await passed(world, ['a'])
    const b = await world.begin()
    await b.enqueue('mail', 'b1')
    await a?.commit()
    await world.enqueue('mail', 'new')
    assert.deepEqual(await claims(world, [2, 2]), [
      ['a1', 'a2'],
      ['a3', 'new'],
    ])
    await b.commit()
    assert.deepEqual(await claims(world, [2]), [['b1']])
  }),
)

/** A thousand transactions that have ended, each with one job, all of them gaps. */
async function thousandGaps(world: World): Promise<void> {
  await world.enqueue('mail', 'first')
  await world.claim()
  const lane = await world.lane('mail')
  const insert = `insert into holdfast.job (seq, ord, ready_xid, run_at, created_at, id, lane, max_attempts, payload)
    values (nextval('holdfast.number'), currval('holdfast.number'), pg_current_xact_id(), 0, 0, gen_random_uuid(), ${lane}, 5, n)`
  await world.rows(`do $do$ begin for n in 1..1000 loop ${insert}; commit; end loop; end $do$`)
  await world.rows(
    `insert into holdfast.tally (xid, queue, ready) select pg_current_xact_id(), queue, 1000 from holdfast.lane where no = $1`,
    [lane],
  )
  const [gaps] = await world.rows(
    `select array_agg(ready_xid::text order by ready_xid) as xids, (max(ready_xid::text::bigint) + 1)::text as bound
       from holdfast.job where lane = $1 and payload <> '"first"'`,
    [lane],
  )
  await world.setCursor('mail', gaps?.['bound'] as string, gaps?.['xids'] as string[])
}

const thousand = Array.from({ length: 1_000 }, (_, i) => i + 1)

test(
  'a thousand gaps that ended at once are taken in order, whatever the limits',
  inWorld(async (world) => {
    await thousandGaps(world)
    const taken = await claims(world, [1, 7, 300, 691, 5, 5])
    assert.deepEqual(
      taken.map((part) => part.length),
      [1, 7, 300, 691, 1, 0],
    )
    assert.deepEqual(taken.flat(), thousand)
  }),
)

async function emptyGaps(world: World): Promise<{ left: number; ms: number }> {
  await thousandGaps(world)
  const { xid, gap_xids } = await world.cursor('mail')
  await world.rows(`delete from holdfast.job where payload <> '"first"'`)
  await world.rows(
    'insert into holdfast.tally (xid, queue, ready) select pg_current_xact_id(), queue, -1000 from holdfast.lane',
  )
  let ms = Number.POSITIVE_INFINITY
  for (let tries = 0; tries < 3; tries++) {
    await world.setCursor('mail', xid, gap_xids)
    const began = performance.now()
    assert.deepEqual(await world.claim(), [])
    ms = Math.min(ms, performance.now() - began)
  }
  return { left: (await world.cursor('mail')).gap_xids.length, ms }
}

test(
  'a claim with a thousand empty gaps is quick, and records that they have ended',
  inWorld(async (world) => {
    const { left, ms } = await emptyGaps(world)
    assert.ok(left < 100, `${left} gaps are left`)
    assert.ok(ms < 250, `it took ${ms} ms`)
  }),
)

// A slow claim moves the bound and writes the list with it. So this test keeps the bound in place.
test(
  'a claim records that gaps have ended even if the bound stays',
  inWorld(async (world) => assert.ok((await emptyGaps(world)).left < 100), { without: [boundMovesToTheEnd] }),
)

test(
  'if the list is written only when the bound moves, the next claim has a thousand gaps again',
  inWorld(async (world) => assert.equal((await emptyGaps(world)).left, 1_000), {
    without: [boundMovesToTheEnd, cleanedListIsWritten],
  }),
)
