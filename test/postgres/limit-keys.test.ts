// Gates of limit keys: what a process leaves behind that dies at the worst moment, and what they cost.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import { setTimeout } from 'node:timers/promises'
import type { Client } from 'pg'
import type { JobState } from '../../src/job/record.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { claimOne, rejects } from '../conformance/expect.ts'
import { type Hand, inHand, type Rule, useDatabase } from './hand.ts'
import { touched } from './plans.ts'

useDatabase()

const perTenant = defineQueue<{ tenant: string }>('mail', { limit: { key: ({ tenant }) => tenant, concurrency: 1 } })

/** Whoever would let in, or would look whether a batch is finished, finds nothing to do: as if he had died before. */
const letsNobodyIn: Rule = {
  from: `if not holdfast.is_trusted() then
    perform holdfast.check_limit_keys(`,
  to: `return;
  if not holdfast.is_trusted() then
    perform holdfast.check_limit_keys(`,
}
const looksAtNone: Rule = {
  from: 'join holdfast.batch b on b.no = u.no and not b.is_deleted',
  to: 'join holdfast.batch b on b.no = u.no and not b.is_deleted and false',
}

async function without(hand: Hand, rule: Rule, act: () => Promise<void>): Promise<void> {
  await hand.withoutRule(rule)
  await act()
  await hand.withoutRule({ from: rule.to, to: rule.from })
}

test(
  'who dies between a settlement and the admission leaves no key stuck: a sweep lets in',
  inHand(async (hand) => {
    const { holdfast } = hand
    const queue = holdfast.queue(perTenant)
    for (let n = 0; n < 3; n++) await queue.enqueue({ tenant: 'a' })
    const lease = await claimOne(holdfast, 'mail')
    await without(hand, letsNobodyIn, () => lease.dead('no such address').then(() => undefined))
    const { ready, held } = await holdfast.stats('mail')
    assert.deepEqual({ ready, held }, { ready: 0, held: 2 }, 'nobody was let in')
    const other = await hand.another()
    await other.sweep()
    await (await claimOne(other, 'mail')).done()
    await (await claimOne(other, 'mail')).done()
    assert.equal((await holdfast.stats('mail')).done, 2)
  }),
)

const hears = 'with read as (\n    delete from holdfast.limit_event_list l'
const hearsNobody: Rule = { from: hears, to: `raise exception 'no room' using errcode = '53100';\n  ${hears}` }

test(
  'whom a sweep could not let in is let in by the next one, not by the one that looks at all of them',
  inHand(async (hand) => {
    const { holdfast } = hand
    await holdfast.sweep() // which looks at all
    for (let n = 0; n < 2; n++) await holdfast.queue(perTenant).enqueue({ tenant: 'a' })
    const lease = await claimOne(holdfast, 'mail')
    await without(hand, hearsNobody, async () => {
      await lease.dead('no such address')
      await rejects(holdfast.sweep(), 'STORE_UNAVAILABLE')
    })
    assert.equal((await holdfast.stats('mail')).held, 1)
    assert.equal((await holdfast.sweep()).admitted, 1)
  }),
)

test(
  'who knocks behind thousands of knocks at another gate is heard by the next sweep',
  inHand(async (hand) => {
    const { holdfast } = hand
    await holdfast.sweep() // which looks at all
    for (let n = 0; n < 2; n++) await holdfast.queue(perTenant).enqueue({ tenant: 'a' })
    const lease = await claimOne(holdfast, 'mail')
    await holdfast.sweep() // which hears that the second came
    await hand.rows(
      `insert into holdfast.limit_event (limit_key, xid) select '1:b', pg_current_xact_id() from generate_series(1, 5000)`,
    )
    await without(hand, letsNobodyIn, () => lease.dead('no such address').then(() => undefined))
    assert.equal((await holdfast.sweep()).admitted, 1)
  }),
)

test(
  'who is done hands over to the next in line, and nobody can die in between',
  inHand(async (hand) => {
    const { holdfast } = hand
    for (const tenant of ['a', 'b', 'a', 'b', 'a']) await holdfast.queue(perTenant).enqueue({ tenant })
    const leases = await holdfast.claim(['mail'], { max: 2 })
    await hand.withoutRule(letsNobodyIn)
    await Promise.all(leases.map((lease) => lease.done()))
    const { ready, held } = await holdfast.stats('mail')
    assert.deepEqual({ ready, held }, { ready: 2, held: 1 })
    assert.equal((await holdfast.claim(['mail'], { max: 9 })).length, 2)
  }),
)

const notWhereMoreHaveRoom: Rule = { from: 'where r.admitted <= w.most', to: 'where true' }

/** How many run of a key whose limit was lowered from three to one, after one of them is done. */
async function runningAfterLowering(hand: Hand): Promise<number> {
  const { holdfast } = hand
  const ofThree = defineQueue<{ tenant: string }>('mail', { limit: { key: ({ tenant }) => tenant, concurrency: 3 } })
  for (let n = 0; n < 9; n++) await holdfast.queue(ofThree).enqueue({ tenant: 'a' })
  const [first] = await holdfast.claim([ofThree], { max: 9 })
  const other = await hand.another()
  await other.queue(perTenant).enqueue({ tenant: 'a' })
  await first?.done()
  await other.claim([perTenant], { max: 9 })
  return (await other.stats('mail')).running
}

test(
  'where a limit was lowered, who is done hands over nothing until as few have room',
  inHand(async (hand) => assert.equal(await runningAfterLowering(hand), 2)),
)

test(
  'where it is not asked how many have room, a lowered limit is kept by nobody',
  inHand(async (hand) => assert.equal(await runningAfterLowering(hand), 3), { without: [notWhereMoreHaveRoom] }),
)

test(
  'who is done takes the next in line that nobody holds; where somebody holds them all, they are let in later',
  inHand(async (hand) => {
    const { holdfast } = hand
    const queue = holdfast.queue(perTenant)
    const [running, second, third] = await queue.enqueueMany(Array(3).fill({ payload: { tenant: 'a' } }))
    const one = await hand.begin()
    await one.run('select from holdfast.job where id = $1 for update', [second?.id])
    await (await claimOne(holdfast, 'mail')).done()
    assert.equal((await holdfast.job(running?.id ?? ''))?.state, 'done')
    const lease = await claimOne(holdfast, 'mail')
    assert.equal(lease.job.id, third?.id)
    const done = lease.done() // waits for him while it lets in, its settlement does not
    await hand.waiters(1)
    assert.equal((await holdfast.job(third?.id ?? ''))?.state, 'done')
    await one.commit()
    await done
    assert.equal((await claimOne(holdfast, 'mail')).job.id, second?.id)
  }),
)

test(
  'two of a key that are done at once hand over to two, none of them twice',
  inHand(async (hand) => {
    const { holdfast } = hand
    const ofTwo = defineQueue<{ tenant: string }>('mail', { limit: { key: ({ tenant }) => tenant, concurrency: 2 } })
    await holdfast.queue(ofTwo).enqueueMany(Array(60).fill({ payload: { tenant: 'a' } }))
    const other = await hand.another()
    const seen = new Set<string>()
    for (let round = 0; round < 30; round++) {
      const leases = [await claimOne(holdfast, ofTwo), await claimOne(other, ofTwo)]
      assert.equal((await holdfast.stats('mail')).running, 2)
      for (const { job } of leases) seen.add(job.id)
      await Promise.all(leases.map((lease) => lease.done()))
      assert.equal((await holdfast.stats('mail')).ready, Math.min(2, 58 - 2 * round))
    }
    assert.equal(seen.size, 60)
  }),
)

test(
  'who dies between an enqueue and the admission leaves nobody in the line: a sweep lets in',
  inHand(async (hand) => {
    const { holdfast } = hand
    await without(hand, letsNobodyIn, async () => {
      for (const tenant of ['a', 'b']) await holdfast.queue(perTenant).enqueue({ tenant })
    })
    assert.equal((await holdfast.stats('mail')).held, 2)
    await (await hand.another()).sweep()
    assert.equal((await holdfast.stats('mail')).ready, 2)
  }),
)

const knocksAtFullGates: Rule = {
  from: 'l.limit_keys, l.ords from lists l',
  to: 'l.limit_keys, l.ords from lists l where not l.is_full',
}

/** The gate is full when they come, and nobody is left when they commit. */
async function comesTooLate(hand: Hand): Promise<JobState | undefined> {
  const { holdfast } = hand
  const queue = holdfast.queue(perTenant)
  await queue.enqueue({ tenant: 'a' })
  const lease = await claimOne(holdfast, 'mail')
  const tx = await hand.begin()
  const id = randomUUID()
  await tx.run(
    `select holdfast.enqueue_plain(null, array[$1::uuid], array[l.no], '{25}', '{"{}"}', null, null, null, null,
                                   array[l.queue || ':a'], array[l.no], array[l.epoch], null)
       from holdfast.lane l where l.no = $2`,
    [id, await hand.lane('mail')],
  )
  await lease.done()
  await tx.commit()
  await holdfast.sweep()
  return (await holdfast.job(id))?.state
}

test(
  'who comes to a full gate and commits when nobody has room there any more is let in by a sweep',
  inHand(async (hand) => assert.equal(await comesTooLate(hand), 'ready')),
)

test(
  'where nobody knocks at a full gate he is stuck',
  inHand(async (hand) => assert.equal(await comesTooLate(hand), 'held'), { without: [knocksAtFullGates] }),
)

test(
  'who came first and commits last is not passed over, and goes before those who came later',
  inHand(async (hand) => {
    const { holdfast } = hand
    const queue = holdfast.queue(perTenant)
    await queue.enqueue({ tenant: 'a' })
    const running = await claimOne(holdfast, 'mail')
    const tx = await hand.begin()
    const early = await queue.enqueue({ tenant: 'a' }, { tx: tx.client })
    const [second, third] = [await queue.enqueue({ tenant: 'a' }), await queue.enqueue({ tenant: 'a' })]
    await running.done()
    await tx.commit()
    await holdfast.sweep()
    for (const { id } of [second, early, third]) {
      const lease = await claimOne(holdfast, 'mail')
      assert.equal(lease.job.id, id)
      await lease.done()
    }
  }),
)

test(
  'who came in a transaction of its own, and was not attended to yet, goes before who comes later',
  inHand(async (hand) => {
    const { holdfast } = hand
    const queue = holdfast.queue(perTenant)
    const tx = await hand.begin()
    const early = await queue.enqueue({ tenant: 'a' }, { tx: tx.client })
    await tx.commit()
    const late = await queue.enqueue({ tenant: 'a' })
    for (const { id } of [early, late]) {
      const lease = await claimOne(holdfast, 'mail')
      assert.equal(lease.job.id, id)
      await lease.done()
    }
  }),
)

test(
  'a call about more gates than are locked at once lets in at all of them, and so does a sweep that is told by many calls',
  inHand(async (hand) => {
    const { holdfast } = hand
    const queue = holdfast.queue(perTenant)
    const tenants = Array.from({ length: 450 }, (_, n) => ({ payload: { tenant: `tenant ${n}` } }))
    await queue.enqueueMany(tenants)
    assert.equal((await holdfast.stats('mail')).ready, 450)
    const leases = await holdfast.claim(['mail'], { max: 450 })
    for (let n = 0; n < 5; n++) await queue.enqueueMany(tenants)
    await Promise.all(leases.map((lease) => lease.done()))
    const { ready, held } = await holdfast.stats('mail')
    assert.deepEqual({ ready, held }, { ready: 450, held: 4 * 450 })
    await holdfast.sweep()
    assert.deepEqual(await hand.rows('select no from holdfast.limit_event_list limit 1'), [])
    assert.equal((await holdfast.stats('mail')).ready, 450)
  }),
)

test(
  'who dies between the last settlement and the completion leaves no batch unfinished: a sweep tells, once',
  inHand(async (hand) => {
    const { holdfast } = hand
    const items = [{ queue: 'mail', payload: 1 }]
    const batch = await holdfast.batch({ name: 'b', onComplete: { queue: 'told' } }, items)
    const lease = await claimOne(holdfast, 'mail')
    await without(hand, looksAtNone, () => lease.done().then(() => undefined))
    assert.equal((await batch.progress()).state, 'running')
    const [first, second] = [await hand.another(), await hand.another()]
    await Promise.all([first.sweep(), second.sweep()])
    assert.equal((await batch.progress()).state, 'done')
    assert.equal((await holdfast.stats('told')).ready, 1)
  }),
)

test(
  'what a claim reads does not depend on how many jobs are held, nor on how many keys there are',
  inHand(async (hand) => {
    const { holdfast } = hand
    const session = await hand.connect()
    const cost = async () => {
      await holdfast.queue(perTenant).enqueue({ tenant: randomUUID() })
      const text = `select * from holdfast.claim('${randomUUID()}', 'w', 600000, 1, '{mail}', '{}', null)`
      return touched(session, hand.schema.sql(text))
    }
    for (let n = 0; n < 10; n++) await cost()
    const alone = await cost()
    const tenants = (count: number, of: number) =>
      Array.from({ length: count }, (_, n) => ({ payload: { tenant: `t${n % of}` } }))
    for (let n = 0; n < 4; n++) await holdfast.queue(perTenant).enqueueMany(tenants(5_000, 1_000))
    await hand.rows(`update holdfast.job set run_at = run_at where is_held`) // and an old version of each
    assert.ok((await holdfast.stats('mail')).held >= 19_000)
    const among = Math.min(await cost(), await cost(), await cost())
    assert.ok(among < alone + 50, `${among} blocks behind 19,000 held jobs of 1,000 keys, ${alone} without them`)
  }),
)

test(
  'what letting in reads does not depend on how many are held, whatever its session has planned for',
  inHand(async (hand) => {
    const queue = hand.holdfast.queue(perTenant)
    const enqueue = (count: number, tenants: number) =>
      queue.enqueueMany(Array.from({ length: count }, (_, n) => ({ payload: { tenant: `tenant ${n % tenants}` } })))
    const letInOnce = async (session: Client) => {
      const { rows } = await session.query(
        hand.schema.sql(`insert into holdfast.limit_event_list (no, xid, limit_keys, gone)
          select nextval('holdfast.number'), pg_current_xact_id(), array_agg(g.limit_key), array_agg(1)
            from (select distinct limit_key from holdfast.job where is_held and limit_key < '1:tenant 2' order by limit_key limit 10) g
          returning no`),
      )
      return touched(session, hand.schema.sql(`select * from holdfast.admit('{}', '{${rows[0].no}}', null)`))
    }
    /** What the second time touched: the first may also read the catalogs. */
    const letIn = async (session: Client) => {
      await letInOnce(session)
      return letInOnce(session)
    }
    const session = await hand.connect()
    await enqueue(80, 20)
    const few = await letIn(session)
    for (let round = 0; round < 5; round++) await enqueue(4_000, 400)
    const costs = [await letIn(session)]
    for (let analyzed = 0; analyzed < 2; analyzed++) {
      costs.push(await letIn(await hand.connect()))
      await hand.rows('analyze holdfast.job, holdfast.limit_usage, holdfast.limit_event_list')
    }
    assert.ok(Math.max(...costs) < few * 2 + 400, `${few} blocks, then ${costs}`)
  }),
)

const five = defineQueue<{ tenant: string }>('mail', { limit: { key: 'tenant', concurrency: 5 } })

test(
  'a process that dies once it has stored a lower limit leaves no claim beyond it: a sweep does the rest',
  inHand(async (hand) => {
    const { holdfast } = hand
    await holdfast.queue(five).enqueueMany(Array(8).fill({ payload: { tenant: 'a' } }))
    const session = await hand.connect()
    const override = `'{"keyLimit":{"concurrency":2}}'`
    await session.query(hand.schema.sql(`select holdfast.override_limit('mail', ${override})`))
    const claim = `select from holdfast.claim(gen_random_uuid(), 'w', 60000, 9, '{mail}', '{}', null)`
    assert.equal((await session.query(hand.schema.sql(claim))).rowCount, 0, 'claims pass over the queue meanwhile')
    await holdfast.sweep()
    assert.equal((await holdfast.claim(['mail'], { max: 9 })).length, 2)
    const left = await session.query(hand.schema.sql('select from holdfast.queue where lowering is not null'))
    assert.equal(left.rowCount, 0)
  }),
)

test(
  'a lower limit waits for the row of a job that a stranger has locked only where no other job of the key can go back',
  inHand(async (hand) => {
    const { holdfast } = hand
    await holdfast.queue(five).enqueueMany(Array(8).fill({ payload: { tenant: 'a' } }))
    const stranger = await hand.begin('begin')
    const last = 'order by ready_xid desc, ord desc'
    await stranger.run(`select from holdfast.job where ready_xid is not null ${last} limit 1 for update`)
    await holdfast.overrideLimit('mail', { keyLimit: { concurrency: 2 } })
    assert.equal((await holdfast.claim(['mail'], { max: 1 })).length, 1)
    await stranger.run('select from holdfast.job where ready_xid is not null for update')
    const lowered = holdfast.overrideLimit('mail', { keyLimit: { concurrency: 1 } })
    const first = await Promise.race([lowered.then(() => 'lowered'), setTimeout(300, 'waits')])
    assert.equal(first, 'waits')
    assert.equal((await holdfast.claim(['mail'], { max: 9 })).length, 0)
    await stranger.commit()
    await lowered
    assert.equal((await holdfast.claim(['mail'], { max: 9 })).length, 0, 'one runs')
  }),
)

test(
  'what handing over reads does not grow with those who went before, though an old snapshot keeps their rows',
  inHand(async (hand) => {
    const { holdfast } = hand
    const ofMany = defineQueue<{ tenant: string }>('mail', { limit: { key: ({ tenant }) => tenant, concurrency: 50 } })
    await holdfast.queue(ofMany).enqueueMany(Array(4_000).fill({ payload: { tenant: 'a' } }))
    const old = await hand.begin('begin isolation level repeatable read')
    await old.run('select')
    const session = await hand.connect()
    const cost = async () => {
      await session.query('begin')
      const blocks = await touched(session, hand.schema.sql(`select holdfast.admit_next(array['1:a'], '{1}', 0)`))
      await session.query('rollback')
      return blocks
    }
    const planned = async () => [await cost(), await cost()].at(-1) as number // the first may plan it anew
    const few = await planned()
    const work = async (rounds: number) => {
      for (let round = 0; round < rounds; round++) {
        const leases = await holdfast.claim([ofMany], { max: 50 })
        assert.equal(leases.length, 50)
        await Promise.all(leases.map((lease) => lease.done()))
        if (round % 10 === 9 || rounds === 1) await holdfast.sweep()
      }
    }
    await work(60)
    let many = await planned()
    // Where the list begins is recorded for one job in 50, drawn at random: it may take some more.
    for (let more = 0; more < 10 && many >= few + 50; more++) {
      await work(1)
      many = await planned()
    }
    assert.ok(many < few + 50, `${few} blocks, then ${many}`)
    await old.commit()
  }),
)
