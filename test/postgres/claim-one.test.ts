// A job alone: what has to hold for the short way to claim (`migrations/0002-claim-one.ts`). Each condition is shown by what the
// claim brings, and once more without it, where the claim must bring something else. Late commits and gaps are shown for both
// ways in `late-commits.test.ts`, `in-progress.test.ts` and `bound.test.ts`.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Hand, inHand, type Rule, useDatabase } from './hand.ts'

useDatabase()

const toldOf: Rule = { from: 'if v_paused then', to: `raise exception 'claimed alone'; if v_paused then` }

test(
  'a job that follows one that was alone is claimed as one',
  inHand(
    async (hand) => {
      await hand.enqueue('mail', 'a')
      await assert.rejects(hand.claim(), /claimed alone/)
    },
    { alone: true, without: [toldOf] },
  ),
)

test(
  'jobs that follow several are claimed as many',
  inHand(
    async (hand) => {
      await hand.enqueue('post', 'a')
      await hand.enqueue('post', 'b')
      assert.deepEqual(await hand.claim('post'), ['a', 'b'])
      await hand.enqueue('post', 'c')
      assert.deepEqual(await hand.claim('post'), ['c'])
    },
    { alone: true, without: [toldOf] },
  ),
)

/** Where it took long to find nothing, a claim like any other must move the bound. */
const slowLook: Rule = { from: `and clock_timestamp() - v_began < interval '2 milliseconds'`, to: '' }

interface Condition {
  readonly title: string
  readonly rules: readonly Rule[]
  readonly show: (hand: Hand) => Promise<unknown>
  readonly brings: unknown
  readonly without: unknown
}

const conditions: readonly Condition[] = [
  {
    title: 'a queue that is paused gives nothing',
    rules: [{ from: 'if v_paused then', to: 'if false then' }],
    show: async (hand) => {
      await hand.enqueue('mail', 'a')
      await hand.holdfast.pause('mail')
      return hand.claim()
    },
    brings: [],
    without: ['a'],
  },
  {
    title: 'a lane that was opened since is looked into',
    rules: [{ from: 'l.queue = q.no and l.is_open and l.no <> p_lane', to: 'false' }],
    show: async (hand) => {
      await hand.enqueue('mail', 'low')
      await hand.enqueue('mail', 'high', { priority: 0 })
      return hand.claim()
    },
    brings: ['high', 'low'],
    without: ['low'],
  },
  {
    title: 'a limit that was set since holds',
    rules: [{ from: 'q.max_running is null and', to: '' }],
    show: async (hand) => {
      const queue = hand.holdfast.queue('mail', { limit: { concurrency: 1 } })
      await queue.enqueue('a')
      const first = await hand.claim()
      await queue.enqueue('b')
      return [first, await hand.claim()]
    },
    brings: [['a'], []],
    without: [['a'], ['b']],
  },
  {
    title: 'who came back goes first',
    rules: [{ from: 'k.lane = f.lane and (k.ready_xid, k.ord) > (f.xid, f.ord)', to: 'false' }],
    show: async (hand) => {
      await hand.enqueue('mail', 'back')
      const [lease] = await hand.holdfast.claim(['mail'])
      await lease?.release()
      await hand.enqueue('mail', 'new')
      return hand.claim()
    },
    brings: ['back', 'new'],
    without: ['new'],
  },
  {
    title: 'who came back in a transaction that committed late is claimed',
    rules: [{ from: 'and cardinality(f.gap_xids) = 0', to: '' }],
    show: async (hand) => {
      await hand.enqueue('mail', 'back')
      const [lease] = await hand.holdfast.claim(['mail'])
      await lease?.release()
      const front = (await hand.lane('mail')) + 1
      await hand.rows(
        `insert into holdfast.lane_cursor (lane, xid, ord, gap_xids, gap_ords)
         select j.lane, pg_current_xact_id(), 0, array[j.ready_xid], '{0}' from holdfast.job j where j.lane = $1`,
        [front],
      )
      await hand.enqueue('mail', 'new')
      return hand.claim()
    },
    brings: ['back', 'new'],
    without: ['new'],
  },
  {
    title: 'two jobs are both claimed',
    rules: [{ from: 'k.lane = p_lane and (k.ready_xid, k.ord) > (j.ready_xid, j.ord)', to: 'false' }],
    show: async (hand) => {
      await hand.enqueue('mail', 'a')
      await hand.enqueue('mail', 'b')
      return [await hand.claim(), await hand.claim()]
    },
    brings: [['a', 'b'], []],
    without: [['a'], []],
  },
  {
    title: 'where one is wanted the bound stops behind it',
    rules: [{ from: 'case when p_max = 1 then j.ready_xid else', to: 'case when false then j.ready_xid else' }],
    show: async (hand) => {
      await hand.enqueue('mail', 'a')
      await hand.enqueue('mail', 'b')
      return [await hand.claim('mail', 1), await hand.claim('mail', 1)]
    },
    brings: [['a'], ['b']],
    without: [['a'], []],
  },
  {
    title: 'a job of a transaction that committed late comes before the next',
    rules: [{ from: 'is_plain := not v_hides and', to: 'is_plain :=' }],
    show: async (hand) => {
      const tx = await hand.begin()
      await tx.enqueue('mail', 'late')
      await hand.enqueue('mail', 'first')
      const first = await hand.claim()
      await tx.commit()
      await hand.enqueue('mail', 'next')
      return [first, await hand.claim(), await hand.claim()]
    },
    brings: [['first'], ['late', 'next'], []],
    without: [['first'], ['next'], []],
  },
  {
    title: 'a job that is too late to start is not claimed',
    rules: [{ from: 'j.start_before is null and', to: '' }],
    show: async (hand) => {
      await hand.enqueue('mail', 'late', { startBefore: Date.now() + 30 })
      await sleep(60)
      return hand.claim()
    },
    brings: [],
    without: ['late'],
  },
  {
    title: 'one that was passed over for being late is claimed where it is not any more',
    rules: [{ from: 'o.lane in (p_lane, p_lane + 1) and o.passed', to: 'false' }],
    show: async (hand) => {
      await hand.enqueue('mail', 'late', { startBefore: Date.now() + 30 })
      await sleep(60)
      await hand.enqueue('mail', 'in time')
      const first = await hand.claim()
      const later = Date.now() + 60_000 // as if the clock had been set back
      await hand.rows('update holdfast.overdue set start_before = $1', [later])
      await hand.rows('update holdfast.job set start_before = $1 where start_before is not null', [later])
      return [first, await hand.claim()]
    },
    brings: [['in time'], ['late']],
    without: [['in time'], []],
  },
  {
    title: 'a key that is taken until the first claim is free after it',
    rules: [{ from: `and j.dedup_scope is distinct from 'waiting'`, to: '' }],
    show: async (hand) => {
      const dedup = { key: 'k', scope: 'waiting' } as const
      await hand.enqueue('mail', 'a', { dedup })
      await hand.claim()
      return (await hand.holdfast.queue('mail').enqueue('b', { dedup })).status
    },
    brings: 'created',
    without: 'duplicate',
  },
  {
    title: 'a cursor ahead of the cluster is found out',
    rules: [{ from: 'and c.xid <= pg_snapshot_xmax(s.snapshot)', to: '' }, slowLook],
    show: async (hand) => {
      await hand.setCursor('mail', '900000000000')
      await hand.enqueue('mail', 'a')
      return hand.claim()
    },
    brings: ['a'],
    without: [],
  },
]

for (const { title, rules, show, brings, without } of conditions) {
  test(
    title,
    inHand(async (hand) => assert.deepEqual(await show(hand), brings), { alone: true }),
  )
  test(
    `without that: ${title}`,
    inHand(async (hand) => assert.deepEqual(await show(hand), without), { alone: true, without: rules }),
  )
}
