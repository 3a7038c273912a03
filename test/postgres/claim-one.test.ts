// The short claim of a single job (`schema/functions/claim-one.ts`) and the conditions for its use. Each condition is tested
// twice: with it the claim returns what is right, and without it something else. Late commits and gaps are tested for both kinds
// of claim in `late-commits.test.ts`, `in-progress.test.ts` and `bound.test.ts`.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { type CallerTx, inWorld, type Rule, useDatabase, type World } from './world.ts'

useDatabase()

const raisesIfAlone: Rule = {
  from: 'if not (is_plain and',
  to: `raise exception 'claimed alone'; if not (is_plain and`,
}

test(
  'after a claim that took a single job, the next single job is claimed by the short claim',
  inWorld(
    async (world) => {
      await world.enqueue('mail', 'a')
      await assert.rejects(world.claim(), /claimed alone/)
    },
    { alone: true, without: [raisesIfAlone] },
  ),
)

test(
  'after a claim that took several jobs, the next claim is the long one',
  inWorld(
    async (world) => {
      await world.enqueue('post', 'a')
      await world.enqueue('post', 'b')
      assert.deepEqual(await world.claim('post'), ['a', 'b'])
      await world.enqueue('post', 'c')
      assert.deepEqual(await world.claim('post'), ['c'])
    },
    { alone: true, without: [raisesIfAlone] },
  ),
)

interface Condition {
  readonly title: string
  readonly rules: readonly Rule[]
  readonly show: (world: World) => Promise<unknown>
  /** It changes rows directly, so counts are not recounted. */
  readonly tampers?: true
  readonly brings: unknown
  readonly without: unknown
}

const conditions: readonly Condition[] = [
  {
    title: 'nothing is claimed from a paused queue',
    rules: [{ from: 'if v_paused then', to: 'if false then' }],
    show: async (world) => {
      await world.enqueue('mail', 'a')
      await world.holdfast.pause('mail')
      return world.claim()
    },
    brings: [],
    without: ['a'],
  },
  {
    title: 'a lane that was opened since the last claim is included',
    rules: [{ from: 'limit 2) = array[p_epoch]', to: 'limit 1) = array[p_epoch]' }],
    show: async (world) => {
      await world.enqueue('mail', 'low')
      await world.enqueue('mail', 'high', { priority: 0 })
      return world.claim()
    },
    brings: ['high', 'low'],
    without: ['low'],
  },
  {
    title: 'a limit that was set since the last claim is respected',
    rules: [{ from: 'q.max_running is null and', to: '' }],
    show: async (world) => {
      const queue = world.holdfast.queue('mail', { limit: { concurrency: 1 } })
      await queue.enqueue('a')
      const first = await world.claim()
      await queue.enqueue('b')
      return [first, await world.claim()]
    },
    brings: [['a'], []],
    without: [['a'], ['b']],
  },
  {
    title: 'a rate that was set since the last claim is respected',
    rules: [{ from: 'and q.max_starts is null', to: '' }],
    show: async (world) => {
      const queue = world.holdfast.queue('mail', { limit: { rate: { count: 1, per: '1h' } } })
      await queue.enqueue('a')
      const first = await world.claim()
      await queue.enqueue('b')
      return [first, await world.claim()]
    },
    brings: [['a'], []],
    without: [['a'], ['b']],
  },
  {
    title: 'a rate per key that was set since the last claim is respected',
    rules: [{ from: 'and q.key_max_starts is null', to: '' }],
    show: async (world) => {
      const queue = world.holdfast.queue('mail', { limit: { key: () => 'k', rate: { count: 1, per: '1h' } } })
      await queue.enqueue('a')
      const [lease] = await world.holdfast.claim(['mail'], { max: 100 })
      await lease?.done()
      await queue.enqueue('b')
      await world.holdfast.sweep()
      return [lease?.job.payload, await world.claim()]
    },
    brings: ['a', []],
    without: ['a', ['b']],
  },
  {
    title: 'a transaction that is not read committed claims nothing',
    rules: [{ from: `current_setting('transaction_isolation') = 'read committed' and`, to: '' }],
    show: async (world) => {
      await world.enqueue('mail', 'a')
      return doesNotApply(world, await world.begin('begin isolation level repeatable read'))
    },
    brings: true,
    without: false,
  },
  {
    title: 'a transaction that has written claims nothing',
    rules: [{ from: 'and pg_current_xact_id_if_assigned() is null', to: '' }],
    show: async (world) => {
      await world.enqueue('mail', 'a')
      const tx = await world.begin()
      await tx.xid()
      return doesNotApply(world, tx)
    },
    brings: true,
    without: false,
  },
  {
    title: 'a released job is claimed first',
    rules: [{ from: 'k.lane = p_lane + 1 and (k.ready_xid, k.ord) > (f.xid, f.ord)', to: 'false' }],
    show: async (world) => {
      await world.enqueue('mail', 'back')
      const [lease] = await world.holdfast.claim(['mail'])
      await lease?.release()
      await world.enqueue('mail', 'new')
      return world.claim()
    },
    brings: ['back', 'new'],
    without: ['new'],
  },
  {
    title: 'a job that was released in a transaction that committed late is claimed',
    rules: [{ from: `and f.gap_xids = '{}'`, to: '' }],
    show: async (world) => {
      await world.enqueue('mail', 'back')
      const [lease] = await world.holdfast.claim(['mail'])
      await lease?.release()
      const front = (await world.lane('mail')) + 1
      await world.rows(
        `insert into holdfast.lane_cursor (lane, xid, ord, gap_xids, gap_ords)
         select j.lane, pg_current_xact_id(), 0, array[j.ready_xid], '{0}' from holdfast.job j where j.lane = $1`,
        [front],
      )
      await world.enqueue('mail', 'new')
      return world.claim()
    },
    brings: ['back', 'new'],
    without: ['new'],
  },
  {
    title: 'two jobs are both claimed',
    rules: [{ from: 'k.lane = p_lane and (k.ready_xid, k.ord) > (j.ready_xid, j.ord)', to: 'false' }],
    show: async (world) => {
      await world.enqueue('mail', 'a')
      await world.enqueue('mail', 'b')
      return [await world.claim(), await world.claim()]
    },
    brings: [['a', 'b'], []],
    without: [['a'], []],
  },
  {
    title: 'a claim of at most one job leaves the bound right after that job',
    rules: [{ from: 'case when p_max = 1 then j.ready_xid else', to: 'case when false then j.ready_xid else' }],
    show: async (world) => {
      await world.enqueue('mail', 'a')
      await world.enqueue('mail', 'b')
      return [await world.claim('mail', 1), await world.claim('mail', 1)]
    },
    brings: [['a'], ['b']],
    without: [['a'], []],
  },
  {
    title: 'a job of a transaction that committed late is claimed before newer ones',
    rules: [{ from: 'is_plain := not v_hides and', to: 'is_plain :=' }],
    show: async (world) => {
      const tx = await world.begin()
      await tx.enqueue('mail', 'late')
      await world.enqueue('mail', 'first')
      const first = await world.claim()
      await tx.commit()
      await world.enqueue('mail', 'next')
      return [first, await world.claim(), await world.claim()]
    },
    brings: [['first'], ['late', 'next'], []],
    without: [['first'], ['next'], []],
  },
  {
    title: 'a job that is past its startBefore is not claimed',
    rules: [{ from: 'j.start_before is null and', to: '' }],
    show: async (world) => {
      await world.enqueue('mail', 'late', { startBefore: Date.now() + 30 })
      await sleep(60)
      return world.claim()
    },
    brings: [],
    without: ['late'],
  },
  {
    title: 'a job that was skipped as too late is claimed when it is no longer too late',
    rules: [{ from: 'o.lane in (p_lane, p_lane + 1) and o.passed', to: 'false' }],
    show: async (world) => {
      await world.enqueue('mail', 'late', { startBefore: Date.now() + 60_000 }) // as if the clock had been set back since
      await world.rows('update holdfast.overdue set passed = true')
      const [row] = await world.rows('select pg_snapshot_xmax(pg_current_snapshot())::text as xid')
      await world.setCursor('mail', row?.['xid'] as string)
      return world.claim()
    },
    brings: ['late'],
    without: [],
  },
  {
    title: 'a dedup key with the scope "waiting" is free after the first claim',
    rules: [{ from: `and j.dedup_scope is distinct from 'waiting'`, to: '' }],
    show: async (world) => {
      const dedup = { key: 'k', scope: 'waiting' } as const
      await world.enqueue('mail', 'a', { dedup })
      await world.claim()
      return (await world.holdfast.queue('mail').enqueue('b', { dedup })).status
    },
    brings: 'created',
    without: 'duplicate',
  },
  {
    title: 'a cursor ahead of the cluster is detected',
    rules: [{ from: 'and c.xid <= pg_snapshot_xmax(s.snapshot) and', to: 'and' }],
    show: async (world) => {
      await world.setCursor('mail', '900000000000')
      await world.enqueue('mail', 'a')
      return world.claim()
    },
    brings: ['a'],
    without: [],
  },
  {
    title: 'a cursor of released jobs that is ahead of the cluster is detected',
    rules: [{ from: 'and f.xid <= pg_snapshot_xmax(s.snapshot)', to: '' }],
    show: async (world) => {
      await world.enqueue('mail', 'back')
      const [lease] = await world.holdfast.claim(['mail'])
      await lease?.release()
      await world.rows(
        `insert into holdfast.lane_cursor (lane, xid, ord, gap_xids, gap_ords) values ($1, '900000000000', 0, '{}', '{}')`,
        [(await world.lane('mail')) + 1],
      )
      await world.enqueue('mail', 'new')
      return (await world.claim()).toSorted()
    },
    brings: ['back', 'new'],
    without: ['new'],
  },
  {
    title: 'a lane that belongs to another queue since the database was restored is not claimed from',
    rules: [{ from: 'limit 2) = array[p_epoch]', to: 'limit 2) is not null' }],
    show: async (world) => {
      await world.enqueue('mail', 'a')
      await world.enqueue('other', 'b')
      await world.rows(
        `update holdfast.lane set queue = (select no from holdfast.queue where name = 'other'), priority = 9
                        where no = $1`,
        [await world.lane('mail')],
      )
      return world.claim()
    },
    tampers: true,
    brings: [],
    without: ['a'],
  },
]

/** Whether the short claim, in this transaction, reports that it does not apply. */
async function doesNotApply(world: World, tx: CallerTx): Promise<unknown> {
  const text = `select c.lane is null as does_not_apply from holdfast.lane l
    cross join lateral holdfast.claim_one($1, 'worker', 60000, 100, 'mail', l.no, l.epoch, '{}', null) c where l.no = $2`
  const [row] = await tx.run(text, [randomUUID(), await world.lane('mail')])
  await tx.rollback()
  return row?.['does_not_apply']
}

for (const { title, rules, show, tampers, brings, without } of conditions) {
  test(
    title,
    inWorld(async (world) => assert.deepEqual(await show(world), brings), {
      alone: true,
      ...(tampers && { without: [] }),
    }),
  )
  test(
    `without the condition it fails: ${title}`,
    inWorld(async (world) => assert.deepEqual(await show(world), without), { alone: true, without: rules }),
  )
}

test(
  'after a slow claim, the next one is a long claim, which moves bounds',
  inWorld(
    async (world) => {
      await world.withoutRule({ from: `interval := '1 minute'`, to: `interval := '0'` })
      await world.enqueue('mail', 'a')
      assert.deepEqual(await world.claim(), ['a'])
      await world.withoutRule(raisesIfAlone)
      await world.enqueue('mail', 'b')
      assert.deepEqual(await world.claim(), ['b'])
    },
    { alone: true, without: [] },
  ),
)

test(
  'after a short claim did not apply, the next claim does not try it',
  inWorld(
    async (world) => {
      await world.enqueue('mail', 'a', { dedup: { key: 'k', scope: 'waiting' } })
      assert.deepEqual(await world.claim(), ['a'])
      await world.withoutRule(raisesIfAlone)
      await world.enqueue('mail', 'b')
      assert.deepEqual(await world.claim(), ['b'])
    },
    { alone: true, without: [] },
  ),
)

test(
  'leases of finished claims are removed, even after many claims that took nothing',
  inWorld(
    async (world) => {
      for (let i = 0; i < 24; i++) {
        await world.enqueue('mail', i)
        const [lease] = await world.holdfast.claim(['mail'])
        await lease?.done()
        assert.deepEqual(await world.claim(), [])
      }
      const [row] = await world.rows('select count(*)::int as n from holdfast.lease')
      assert.ok(Number(row?.['n']) <= 9, `${row?.['n']} leases`)
    },
    { alone: true },
  ),
)
