// Claims skip no job, in whatever order transactions begin, write and commit.
import assert from 'node:assert/strict'
import test from 'node:test'
import { gaps, onlyEndedGaps } from './rules.ts'
import { forBothClaims, useDatabase, type World } from './world.ts'

useDatabase()

async function lateCommit(world: World): Promise<unknown[][]> {
  const [a, b] = [await world.begin(), await world.begin()]
  await a.enqueue('mail', 'a')
  await b.enqueue('mail', 'b')
  await b.commit()
  const first = await world.claim()
  const between = await world.claim()
  await a.commit()
  return [first, between, await world.claim(), await world.claim()]
}

test(
  'jobs of a transaction that commits late are claimed when they become visible',
  forBothClaims(async (world) => assert.deepEqual(await lateCommit(world), [['b'], [], ['a'], []])),
)

test(
  'without gaps, jobs of a late commit are skipped',
  forBothClaims(async (world) => assert.deepEqual(await lateCommit(world), [['b'], [], [], []]), { without: [gaps] }),
)

test(
  'if gaps are dropped before they have ended, jobs of a late commit are skipped',
  forBothClaims(async (world) => assert.deepEqual(await lateCommit(world), [['b'], [], [], []]), {
    without: [onlyEndedGaps],
  }),
)

test(
  'jobs of late commits are claimed in the order of their transactions, before newer jobs',
  forBothClaims(async (world) => {
    const [a, b, c] = [await world.begin(), await world.begin(), await world.begin()]
    for (const [tx, name] of [
      [a, 'a'],
      [b, 'b'],
      [c, 'c'],
    ] as const) {
      await tx.enqueue('mail', `${name}1`)
      await tx.enqueue('mail', `${name}2`)
    }
    await c.commit()
    assert.deepEqual(await world.claim(), ['c1', 'c2'])
    await world.enqueue('mail', 'new')
    await b.commit()
    await a.commit()
    assert.deepEqual(await world.claim(), ['a1', 'a2', 'b1', 'b2', 'new'])
  }),
)

async function earlyNumberLateJob(world: World): Promise<unknown[][]> {
  await world.rows('create table holdfast.theirs (n int)')
  const long = await world.begin()
  await long.run('insert into holdfast.theirs values (1)')
  const claims: unknown[][] = []
  for (const round of [1, 2, 3]) {
    await world.enqueue('mail', `meanwhile ${round}`)
    claims.push(await world.claim())
  }
  await long.enqueue('mail', 'at last')
  claims.push(await world.claim())
  await long.commit()
  return [...claims, await world.claim()]
}

const meanwhile = [['meanwhile 1'], ['meanwhile 2'], ['meanwhile 3'], []]

test(
  'the job of a long transaction that wrote early and enqueues late, far behind the bound, is claimed',
  forBothClaims(async (world) => assert.deepEqual(await earlyNumberLateJob(world), [...meanwhile, ['at last']])),
)

test(
  'without gaps, the job of a long transaction is skipped',
  forBothClaims(async (world) => assert.deepEqual(await earlyNumberLateJob(world), [...meanwhile, []]), {
    without: [gaps],
  }),
)

async function savepoints(world: World): Promise<unknown[][]> {
  const tx = await world.begin()
  await tx.enqueue('mail', 'before')
  await tx.run('savepoint one')
  await tx.enqueue('mail', 'released')
  await tx.run('savepoint two')
  await tx.enqueue('mail', 'undone with two')
  await tx.run('rollback to savepoint two')
  await tx.enqueue('mail', 'after two')
  await tx.run('release savepoint one')
  await world.enqueue('mail', 'other')
  const first = await world.claim()
  await tx.run('savepoint late')
  await tx.enqueue('mail', 'undone late')
  await tx.run('rollback to savepoint late')
  await tx.run('savepoint deep')
  await tx.run('savepoint deeper')
  await tx.enqueue('mail', 'deep')
  await tx.run('release savepoint deeper')
  await tx.run('release savepoint deep')
  const second = await world.claim()
  await tx.commit()
  return [first, second, await world.claim(), await world.claim()]
}

test(
  'jobs from savepoints are claimed with their whole transaction, in order; rolled-back ones never are',
  forBothClaims(async (world) => {
    assert.deepEqual(await savepoints(world), [['other'], [], ['before', 'released', 'after two', 'deep'], []])
  }),
)

test(
  'without gaps, jobs from savepoints are skipped',
  forBothClaims(async (world) => assert.deepEqual(await savepoints(world), [['other'], [], [], []]), {
    without: [gaps],
  }),
)

test(
  'jobs of a rolled-back transaction never run, and its gap is dropped',
  forBothClaims(async (world) => {
    const tx = await world.begin()
    await tx.enqueue('mail', 'never')
    const xid = await tx.xid()
    await world.enqueue('mail', 'other')
    assert.deepEqual(await world.claim(), ['other'])
    assert.ok((await world.cursor('mail')).gap_xids.includes(xid))
    await tx.rollback()
    assert.deepEqual(await world.claim(), [])
    assert.ok(!(await world.cursor('mail')).gap_xids.includes(xid))
  }),
)

test(
  'the gap of a transaction whose connection is gone is dropped',
  forBothClaims(async (world) => {
    const tx = await world.begin()
    await tx.enqueue('mail', 'never')
    const xid = await tx.xid()
    await world.enqueue('mail', 'other')
    assert.deepEqual(await world.claim(), ['other'])
    const [me] = await tx.run('select pg_backend_pid() as pid')
    await world.rows('select pg_terminate_backend($1, 10000)', [me?.['pid']])
    assert.deepEqual(await world.claim(), [])
    assert.ok(!(await world.cursor('mail')).gap_xids.includes(xid))
  }),
)

for (const level of ['repeatable read', 'serializable']) {
  const lateAt = async (world: World) => {
    await world.enqueue('mail', 'first')
    const tx = await world.begin(`begin isolation level ${level}`)
    await tx.run('select count(*) from holdfast.job')
    const before = await world.claim()
    await tx.enqueue('mail', 'late')
    await world.enqueue('mail', 'other')
    const between = await world.claim()
    await tx.commit()
    return [before, between, await world.claim()]
  }

  test(
    `the job of a caller in ${level} is claimed after the commit`,
    forBothClaims(async (world) => assert.deepEqual(await lateAt(world), [['first'], ['other'], ['late']])),
  )

  test(
    `without gaps, the job of a caller in ${level} is skipped`,
    forBothClaims(async (world) => assert.deepEqual(await lateAt(world), [['first'], ['other'], []]), {
      without: [gaps],
    }),
  )
}

test(
  'the job of a caller whose snapshot is older than the queue is claimed',
  forBothClaims(async (world) => {
    const tx = await world.begin('begin isolation level repeatable read')
    await tx.run('select count(*) from holdfast.queue')
    await world.enqueue('mail', 'first')
    await tx.enqueue('mail', 'late')
    await tx.enqueue('paper', 'late too')
    assert.deepEqual(await world.claim(['mail', 'paper']), ['first'])
    await tx.commit()
    assert.deepEqual(await world.claim(['mail', 'paper']), ['late', 'late too'])
  }),
)

async function prepared(world: World): Promise<unknown[][]> {
  const name = `two phases ${world.schema.name}`
  const tx = await world.begin()
  // A transaction that has sent a notification cannot be prepared.
  const quiet = {
    query: (text: string, values: unknown[]) =>
      text.includes('pg_notify') ? Promise.resolve({ rows: [] }) : tx.client.query(text, values),
  }
  await world.holdfast.queue('mail').enqueue('prepared', { tx: quiet })
  await tx.run(`prepare transaction '${name}'`)
  try {
    await world.enqueue('mail', 'other')
    const first = await world.claim()
    await world.enqueue('mail', 'another')
    const second = await world.claim()
    await tx.run(`commit prepared '${name}'`)
    return [first, second, await world.claim(), await world.claim()]
  } finally {
    await tx.run(`rollback prepared '${name}'`).catch(() => undefined)
  }
}

test(
  'the job of a prepared transaction is claimed after commit prepared',
  forBothClaims(async (world) => assert.deepEqual(await prepared(world), [['other'], ['another'], ['prepared'], []])),
)

test(
  'without gaps, the job of a prepared transaction is skipped',
  forBothClaims(async (world) => assert.deepEqual(await prepared(world), [['other'], ['another'], [], []]), {
    without: [gaps],
  }),
)

test(
  'a prepared transaction that is rolled back leaves nothing',
  forBothClaims(async (world) => {
    const name = `two phases ${world.schema.name}`
    const tx = await world.begin()
    const xid = await tx.xid()
    await tx.run(`prepare transaction '${name}'`)
    await world.enqueue('mail', 'other')
    assert.deepEqual(await world.claim(), ['other'])
    assert.ok((await world.cursor('mail')).gap_xids.includes(xid))
    await tx.run(`rollback prepared '${name}'`)
    assert.deepEqual(await world.claim(), [])
    assert.ok(!(await world.cursor('mail')).gap_xids.includes(xid))
  }),
)
