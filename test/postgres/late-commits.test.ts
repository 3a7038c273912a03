// Claims skip no job, in whatever order transactions begin, write and commit.
import assert from 'node:assert/strict'
import test from 'node:test'
import { type Hand, inBothHands, useDatabase } from './hand.ts'
import { gaps, onlyEndedGaps } from './rules.ts'

useDatabase()

async function lateCommit(hand: Hand): Promise<unknown[][]> {
  const [a, b] = [await hand.begin(), await hand.begin()]
  await a.enqueue('mail', 'a')
  await b.enqueue('mail', 'b')
  await b.commit()
  const first = await hand.claim()
  const between = await hand.claim()
  await a.commit()
  return [first, between, await hand.claim(), await hand.claim()]
}

test(
  'jobs of a transaction that commits late are claimed when they become visible',
  inBothHands(async (hand) => assert.deepEqual(await lateCommit(hand), [['b'], [], ['a'], []])),
)

test(
  'without gaps, jobs of a late commit are skipped',
  inBothHands(async (hand) => assert.deepEqual(await lateCommit(hand), [['b'], [], [], []]), { without: [gaps] }),
)

test(
  'if gaps are dropped before they have ended, jobs of a late commit are skipped',
  inBothHands(async (hand) => assert.deepEqual(await lateCommit(hand), [['b'], [], [], []]), {
    without: [onlyEndedGaps],
  }),
)

test(
  'jobs of late commits are claimed in the order of their transactions, before newer jobs',
  inBothHands(async (hand) => {
    const [a, b, c] = [await hand.begin(), await hand.begin(), await hand.begin()]
    for (const [tx, name] of [
      [a, 'a'],
      [b, 'b'],
      [c, 'c'],
    ] as const) {
      await tx.enqueue('mail', `${name}1`)
      await tx.enqueue('mail', `${name}2`)
    }
    await c.commit()
    assert.deepEqual(await hand.claim(), ['c1', 'c2'])
    await hand.enqueue('mail', 'new')
    await b.commit()
    await a.commit()
    assert.deepEqual(await hand.claim(), ['a1', 'a2', 'b1', 'b2', 'new'])
  }),
)

async function earlyNumberLateJob(hand: Hand): Promise<unknown[][]> {
  await hand.rows('create table holdfast.theirs (n int)')
  const long = await hand.begin()
  await long.run('insert into holdfast.theirs values (1)')
  const claims: unknown[][] = []
  for (const round of [1, 2, 3]) {
    await hand.enqueue('mail', `meanwhile ${round}`)
    claims.push(await hand.claim())
  }
  await long.enqueue('mail', 'at last')
  claims.push(await hand.claim())
  await long.commit()
  return [...claims, await hand.claim()]
}

const meanwhile = [['meanwhile 1'], ['meanwhile 2'], ['meanwhile 3'], []]

test(
  'the job of a long transaction that wrote early and enqueues late, far behind the bound, is claimed',
  inBothHands(async (hand) => assert.deepEqual(await earlyNumberLateJob(hand), [...meanwhile, ['at last']])),
)

test(
  'without gaps, the job of a long transaction is skipped',
  inBothHands(async (hand) => assert.deepEqual(await earlyNumberLateJob(hand), [...meanwhile, []]), {
    without: [gaps],
  }),
)

async function savepoints(hand: Hand): Promise<unknown[][]> {
  const tx = await hand.begin()
  await tx.enqueue('mail', 'before')
  await tx.run('savepoint one')
  await tx.enqueue('mail', 'released')
  await tx.run('savepoint two')
  await tx.enqueue('mail', 'undone with two')
  await tx.run('rollback to savepoint two')
  await tx.enqueue('mail', 'after two')
  await tx.run('release savepoint one')
  await hand.enqueue('mail', 'other')
  const first = await hand.claim()
  await tx.run('savepoint late')
  await tx.enqueue('mail', 'undone late')
  await tx.run('rollback to savepoint late')
  await tx.run('savepoint deep')
  await tx.run('savepoint deeper')
  await tx.enqueue('mail', 'deep')
  await tx.run('release savepoint deeper')
  await tx.run('release savepoint deep')
  const second = await hand.claim()
  await tx.commit()
  return [first, second, await hand.claim(), await hand.claim()]
}

test(
  'jobs from savepoints are claimed with their whole transaction, in order; rolled-back ones never are',
  inBothHands(async (hand) => {
    assert.deepEqual(await savepoints(hand), [['other'], [], ['before', 'released', 'after two', 'deep'], []])
  }),
)

test(
  'without gaps, jobs from savepoints are skipped',
  inBothHands(async (hand) => assert.deepEqual(await savepoints(hand), [['other'], [], [], []]), { without: [gaps] }),
)

test(
  'jobs of a rolled-back transaction never run, and its gap is dropped',
  inBothHands(async (hand) => {
    const tx = await hand.begin()
    await tx.enqueue('mail', 'never')
    const xid = await tx.xid()
    await hand.enqueue('mail', 'other')
    assert.deepEqual(await hand.claim(), ['other'])
    assert.ok((await hand.cursor('mail')).gap_xids.includes(xid))
    await tx.rollback()
    assert.deepEqual(await hand.claim(), [])
    assert.ok(!(await hand.cursor('mail')).gap_xids.includes(xid))
  }),
)

test(
  'the gap of a transaction whose connection is gone is dropped',
  inBothHands(async (hand) => {
    const tx = await hand.begin()
    await tx.enqueue('mail', 'never')
    const xid = await tx.xid()
    await hand.enqueue('mail', 'other')
    assert.deepEqual(await hand.claim(), ['other'])
    const [me] = await tx.run('select pg_backend_pid() as pid')
    await hand.rows('select pg_terminate_backend($1, 10000)', [me?.['pid']])
    assert.deepEqual(await hand.claim(), [])
    assert.ok(!(await hand.cursor('mail')).gap_xids.includes(xid))
  }),
)

for (const level of ['repeatable read', 'serializable']) {
  const lateAt = async (hand: Hand) => {
    await hand.enqueue('mail', 'first')
    const tx = await hand.begin(`begin isolation level ${level}`)
    await tx.run('select count(*) from holdfast.job')
    const before = await hand.claim()
    await tx.enqueue('mail', 'late')
    await hand.enqueue('mail', 'other')
    const between = await hand.claim()
    await tx.commit()
    return [before, between, await hand.claim()]
  }

  test(
    `the job of a caller in ${level} is claimed after the commit`,
    inBothHands(async (hand) => assert.deepEqual(await lateAt(hand), [['first'], ['other'], ['late']])),
  )

  test(
    `without gaps, the job of a caller in ${level} is skipped`,
    inBothHands(async (hand) => assert.deepEqual(await lateAt(hand), [['first'], ['other'], []]), { without: [gaps] }),
  )
}

test(
  'the job of a caller whose snapshot is older than the queue is claimed',
  inBothHands(async (hand) => {
    const tx = await hand.begin('begin isolation level repeatable read')
    await tx.run('select count(*) from holdfast.queue')
    await hand.enqueue('mail', 'first')
    await tx.enqueue('mail', 'late')
    await tx.enqueue('paper', 'late too')
    assert.deepEqual(await hand.claim(['mail', 'paper']), ['first'])
    await tx.commit()
    assert.deepEqual(await hand.claim(['mail', 'paper']), ['late', 'late too'])
  }),
)

async function prepared(hand: Hand): Promise<unknown[][]> {
  const name = `two phases ${hand.schema.name}`
  const tx = await hand.begin()
  // A transaction that has sent a notification cannot be prepared.
  const quiet = {
    query: (text: string, values: unknown[]) =>
      text.includes('pg_notify') ? Promise.resolve({ rows: [] }) : tx.client.query(text, values),
  }
  await hand.holdfast.queue('mail').enqueue('prepared', { tx: quiet })
  await tx.run(`prepare transaction '${name}'`)
  try {
    await hand.enqueue('mail', 'other')
    const first = await hand.claim()
    await hand.enqueue('mail', 'another')
    const second = await hand.claim()
    await tx.run(`commit prepared '${name}'`)
    return [first, second, await hand.claim(), await hand.claim()]
  } finally {
    await tx.run(`rollback prepared '${name}'`).catch(() => undefined)
  }
}

test(
  'the job of a prepared transaction is claimed after commit prepared',
  inBothHands(async (hand) => assert.deepEqual(await prepared(hand), [['other'], ['another'], ['prepared'], []])),
)

test(
  'without gaps, the job of a prepared transaction is skipped',
  inBothHands(async (hand) => assert.deepEqual(await prepared(hand), [['other'], ['another'], [], []]), {
    without: [gaps],
  }),
)

test(
  'a prepared transaction that is rolled back leaves nothing',
  inBothHands(async (hand) => {
    const name = `two phases ${hand.schema.name}`
    const tx = await hand.begin()
    const xid = await tx.xid()
    await tx.run(`prepare transaction '${name}'`)
    await hand.enqueue('mail', 'other')
    assert.deepEqual(await hand.claim(), ['other'])
    assert.ok((await hand.cursor('mail')).gap_xids.includes(xid))
    await tx.run(`rollback prepared '${name}'`)
    assert.deepEqual(await hand.claim(), [])
    assert.ok(!(await hand.cursor('mail')).gap_xids.includes(xid))
  }),
)
