// Journals, signals and children where several transactions are at work at once: which of them waits for which, what a crash
// leaves behind, and what a repeated call does. What they promise on every store is in test/conformance.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import { isRefused } from '../../src/errors.ts'
import { endNotice } from '../../src/job/end-notice.ts'
import { systemClock } from '../../src/runtime/clock.ts'
import { newId } from '../../src/runtime/id.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import type { CheckpointAnswer, ClaimedJob, Store } from '../../src/store/store.ts'
import { stateOf } from '../conformance/expect.ts'
import {
  checkpoint,
  checkpointOf,
  child,
  claimedRun,
  claimRun,
  claimRuns,
  mailbox,
  namesOf,
  noEffects,
  park,
  record,
  records,
  send,
  sent,
  settle,
} from '../conformance/journals.ts'
import { cuttingProxy } from '../support/cutting-proxy.ts'
import { type CallerTx, inWorld, until, useDatabase, type World } from './world.ts'

useDatabase()

interface StoreOptions {
  readonly url?: string
  readonly listen?: boolean
}

/** Shows something with a store of its own, which is closed afterwards. */
function withStore(
  show: (world: World, store: Store) => Promise<void>,
  without: Parameters<typeof inWorld>[1] = {},
): () => Promise<void> {
  return inWorld(async (world) => {
    const store = await openStore(world)
    try {
      await show(world, store)
    } finally {
      await store.close()
    }
  }, without)
}

function openStore(world: World, { url = world.url, listen = false }: StoreOptions = {}): Promise<Store> {
  return postgres({ url, schema: world.schema.name, listen })({ clock: systemClock })
}

/** A signal in a transaction that stays open. */
async function sendIn(store: Store, tx: CallerTx, to: { id: string } | { key: string }, name = 'paid'): Promise<void> {
  const answer = await store.signalIn?.(tx.client, { to, name, value: '1', ttlMs: 60_000 })
  assert.ok(answer && !isRefused(answer))
}

/** The settlement that parks this run, in a transaction that stays open: as a settlement whose effects take long. */
async function parkIn(tx: CallerTx, { id, fence }: ClaimedJob): Promise<void> {
  const [token, lane, xid, ord] = fence.split('.')
  const places = [`{${token}}`, '{1}', `{${lane}}`, `{${xid}}`, `{${ord}}`, `{${ord}}`, '{1}']
  const leased = await tx.run('select * from holdfast.leased($1, $2, $3, $4, $5, $6, $7)', places)
  assert.equal(leased.length, 1)
  const runAt = Date.now() + 3_600_000
  const job = {
    id,
    lane: Number(lane) & ~1,
    ready: false,
    runAt,
    attempts: 0,
    free_releases: 1,
    past: null,
    snoozed: true,
    parked: true,
  }
  await tx.run('select holdfast.wait_again($1::jsonb, holdfast.now_ms(null))', [JSON.stringify([job])])
}

const awaiting = (key: string, name = 'paid') => ({ records: [], awaits: [{ key, name }] })

test(
  'a signal in a transaction that stays open delays nothing, and wakes its job at the commit, through a process that listens',
  withStore(async (world, store) => {
    const listening = await openStore(world, { listen: true })
    const ready: string[] = []
    listening.subscribe({ onReady: (queue) => ready.push(queue) })
    const run = await claimedRun(world.holdfast, store)
    const stranger = await world.begin()
    await sendIn(listening, stranger, { id: run.id })
    await sendIn(listening, stranger, { key: 'order' })

    assert.ok('expiresAt' in ((await checkpoint(store, run, { journal: records(record(1, 'a')) })) as object))
    await sent(store, run.id, 'other')
    assert.deepEqual(await mailbox(store, run.id), [['other', 'other']])
    const again = await park(store, run)
    assert.equal((again as { state: string }).state, 'ready', 'the other signal has woken it')
    await park(store, await claimRun(store))
    assert.equal(await stateOf(world.holdfast, run.id), 'scheduled')

    await listening.claim({ queues: ['none'], max: 1, leaseMs: 1_000, worker: 'listens' })
    await until(async () => {
      const [row] = await world.rows(
        `select count(*)::int as n from pg_stat_activity where query like 'listen%${world.schema.name}%'`,
      )
      return Number(row?.['n']) > 0
    }, 'it listens')
    await stranger.commit()
    await until(async () => (await stateOf(world.holdfast, run.id)) === 'ready', 'it is woken')
    assert.deepEqual(
      (await store.messages({ id: run.id, keys: [] })).map(({ name }) => name),
      ['paid', 'other'],
    )
    await listening.close()
  }),
)

test(
  'a signal whose transaction is rolled back leaves nothing',
  withStore(async (world, store) => {
    const run = await claimedRun(world.holdfast, store)
    await park(store, run)
    const stranger = await world.begin()
    await sendIn(store, stranger, { id: run.id })
    await stranger.rollback()
    assert.equal((await store.sweep({ max: 10 })).promoted, 0)
    assert.equal(await stateOf(world.holdfast, run.id), 'scheduled')
    assert.deepEqual(await mailbox(store, run.id), [])
  }),
)

for (const [to, address] of [
  ['its mailbox', (run: ClaimedJob) => ({ id: run.id })],
  ['a key that it awaits', () => ({ key: 'order' })],
] as const) {
  test(
    `a park that commits while a message to ${to} is not committed yet: the message wakes it`,
    withStore(async (world, store) => {
      const run = await claimedRun(world.holdfast, store)
      const message = await world.begin()
      await sendIn(store, message, address(run))
      await park(store, run, { journal: awaiting('order') })
      assert.equal(await stateOf(world.holdfast, run.id), 'scheduled')
      await message.commit()
      assert.equal((await store.sweep({ max: 10 })).promoted, 1)
      assert.equal(await stateOf(world.holdfast, run.id), 'ready')
    }),
  )
}

test(
  'a message that is delivered while the park is not committed yet stays until the park is, and wakes it then',
  withStore(async (world, store) => {
    const run = await claimedRun(world.holdfast, store)
    const settlement = await world.begin()
    await parkIn(settlement, run)
    await sent(store, run.id, 'paid')
    assert.equal((await events(world)).length, 1, 'the row of the job was locked, so nothing was delivered')
    assert.equal((await store.sweep({ max: 10 })).promoted, 0)
    await settlement.commit()
    assert.equal(await stateOf(world.holdfast, run.id), 'scheduled')
    assert.equal((await store.sweep({ max: 10 })).promoted, 1)
    assert.deepEqual(await events(world), [])
  }),
)

test(
  'a settlement that parks finds the message that could not be delivered while it had the job',
  withStore(async (world, store) => {
    const run = await claimedRun(world.holdfast, store)
    await leaveMessage(world, run.id) // as it is where the delivery found the row locked
    await park(store, run)
    assert.equal(await stateOf(world.holdfast, run.id), 'ready')
    assert.deepEqual(await events(world), [])
  }),
)

test(
  'a message under a key that is delivered before the park commits is found by the delivery after the park',
  withStore(async (world, store) => {
    const run = await claimedRun(world.holdfast, store)
    await send(store, { key: 'order' }, 'paid') // no job awaits it yet, so its event is gone
    assert.deepEqual(await events(world), [])
    await park(store, run, { journal: awaiting('order') })
    assert.equal(await stateOf(world.holdfast, run.id), 'ready')
  }),
)

test(
  'without an event of its own, a park with keys would miss a message that came before',
  withStore(
    async (world, store) => {
      const run = await claimedRun(world.holdfast, store)
      await send(store, { key: 'order' }, 'paid')
      await park(store, run, { journal: awaiting('order') })
      assert.equal(await stateOf(world.holdfast, run.id), 'scheduled')
    },
    { without: [{ from: 'where u.parked and not u.ready and exists', to: 'where false and exists' }] },
  ),
)

test(
  'a park with keys does not wake itself if no message waits, if the message is over, or if it has another name',
  withStore(async (world, store) => {
    await send(store, { key: 'order' }, 'other')
    await send(store, { key: 'order' }, 'paid', 1, 1)
    await until(
      async () => (await store.messages({ id: null, keys: [{ key: 'order', name: 'paid' }] })).length === 0,
      'it is over',
    )
    const run = await claimedRun(world.holdfast, store)
    await park(store, run, { journal: awaiting('order') })
    assert.deepEqual([await stateOf(world.holdfast, run.id), await events(world)], ['scheduled', []])
    assert.equal((await store.sweep({ max: 10 })).promoted, 0)
  }),
)

test(
  'a process that dies between a message and its delivery: a sweep wakes the job, also the one that awaits the key',
  withStore(async (world, store) => {
    const [first, second] = [await claimedRun(world.holdfast, store), await claimedRun(world.holdfast, store)]
    await park(store, first)
    await park(store, second, { journal: awaiting('order') })
    await leaveMessage(world, first.id)
    await world.rows(
      `insert into holdfast.message (no, key, name, value, at, expires_at) values (1, 'order', 'paid', '1', 0, 9e15)`,
    )
    await world.rows(
      `insert into holdfast.wake_event (xid, at, key, name) values (pg_current_xact_id(), 0, 'order', 'paid')`,
    )
    assert.equal((await store.sweep({ max: 10 })).promoted, 2)
    assert.deepEqual(await Promise.all([first, second].map(({ id }) => stateOf(world.holdfast, id))), [
      'ready',
      'ready',
    ])
  }),
)

test(
  'a process that dies between an end and its notice: one of several sweeps enqueues it, once',
  withStore(async (world, store) => {
    const ends = { id: newId(), queue: 'flow', onEnd: 'ends', state: 'done', attempts: 1, endedAt: 5 } as const
    const facts = { result: null, error: null, annotations: null, labels: null, payload: '7' }
    await world.rows('insert into holdfast.end_notice (no, xid, at, job) values (1, pg_current_xact_id(), 0, $1)', [
      JSON.stringify({ ...ends, ...facts }),
    ])
    const other = await openStore(world)
    await Promise.all([store, other].map((each) => each.sweep({ max: 10 })))
    const jobs = await claimRuns(store, 'ends')
    assert.deepEqual(
      jobs.map(({ payload }) => payload),
      [endNotice({ ...ends, ...facts }, newId()).payload],
    )
    assert.deepEqual(await world.rows('select from holdfast.end_notice'), [])
    await other.close()
  }),
)

test(
  'an end notice that another process takes at this moment is passed over, and is enqueued again if that process dies',
  withStore(async (world, store) => {
    await world.holdfast.queue('flow', {}).enqueue(1)
    const ends = { id: newId(), queue: 'flow', onEnd: 'ends', state: 'done', attempts: 1, endedAt: 5 } as const
    await world.rows('insert into holdfast.end_notice (no, xid, at, job) values (1, pg_current_xact_id(), 0, $1)', [
      JSON.stringify({ ...ends, result: null, error: null, annotations: null, labels: null, payload: '7' }),
    ])
    const taking = await world.begin()
    assert.equal((await taking.run(`select * from holdfast.take_notices('{1}')`)).length, 1)
    await store.sweep({ max: 10 })
    assert.deepEqual(await claimRuns(store, 'ends'), [])
    await taking.rollback()
    await store.sweep({ max: 10 })
    assert.equal((await claimRuns(store, 'ends')).length, 1)
  }),
)

test(
  'of two runs that use up one message at the same moment, the second does not wait: the message is gone for it',
  withStore(async (world, store) => {
    const [first, second] = [await claimedRun(world.holdfast, store), await claimedRun(world.holdfast, store)]
    const no = await sent(store, { key: 'order' }, 'paid')
    const other = await world.begin()
    await other.run('select from holdfast.message where no = $1 for update', [no])
    const consume = (step: string) => ({ journal: { ...records(record(1, step)), consume: [no] } })
    const refused = await checkpoint(store, first, consume('a'))
    assert.ok(typeof refused === 'object' && 'failed' in refused)
    assert.equal(refused.failed.refused, 'SIGNAL_GONE')
    assert.deepEqual(await namesOf(store, first.id), [])
    await other.rollback()
    assert.ok('expiresAt' in ((await checkpoint(store, second, consume('b'))) as object))
    const late = await checkpoint(store, first, consume('a'))
    assert.ok(typeof late === 'object' && 'failed' in late)
  }),
)

test(
  'while a checkpoint has the job, a sweep does not rescue it; after a rescue, a checkpoint is lost',
  withStore(async (world, store) => {
    const run = await claimedRun(world.holdfast, store)
    const other = await world.begin()
    await other.run('select from holdfast.job where id = $1 for update', [run.id])
    await expire(world)
    assert.equal((await store.sweep({ max: 10 })).rescued, 0)
    await other.commit()
    const held = await checkpoint(store, run, { journal: records(record(1, 'a')) })
    assert.ok(typeof held === 'object' && 'expiresAt' in held && held.expiresAt > Date.now() + 10_000, 'it is renewed')
    assert.equal((await store.sweep({ max: 10 })).rescued, 0)

    await expire(world)
    assert.equal((await store.sweep({ max: 10 })).rescued, 1)
    assert.equal(await checkpoint(store, run, { journal: records(record(2, 'b')) }), 'lost')
    assert.deepEqual(await namesOf(store, run.id), ['a'])
  }),
)

test(
  'a checkpoint waits for a cancel of its job, and says that it was asked',
  withStore(async (world, store) => {
    const run = await claimedRun(world.holdfast, store)
    const canceller = await world.begin()
    await canceller.run(`update holdfast.job set cancel = '[]' where id = $1`, [run.id])
    const held = checkpoint(store, run, { journal: records(record(1, 'a')) })
    await world.waiters(1, 0, 'holdfast.checkpoint'.replace('holdfast.', ''))
    await canceller.commit()
    assert.deepEqual((await held) as object, { expiresAt: run.expiresAt, cancelRequested: true, enqueued: [] })
  }),
)

const withEffects = {
  effects: { ...noEffects, sql: [{ text: 'update public.counter set n = n + 1', values: [] }] },
} as const

for (const [what, changes, says] of [
  ['that only writes its journal', {}, '.checkpoint('],
  ['with effects', withEffects, 'commit\0'],
] as const) {
  for (const moment of ['during', 'after'] as const) {
    test(
      `a checkpoint ${what} whose answer is lost (${moment}) is carried out once, and answered as the first time`,
      withStore(async (world, store) => {
        await world.rows('drop table if exists public.counter')
        await world.rows('create table public.counter as select 0 as n')
        const run = await claimedRun(world.holdfast, store)
        await using proxy = await cuttingProxy(world.url)
        const far = await openStore(world, { url: proxy.url })
        await far.stats()
        const cut = proxy.cut(says, moment)
        const answer = await checkpoint(far, run, { ...changes, journal: records(record(1, 'a')) })
        await cut
        assert.deepEqual(answer, { expiresAt: run.expiresAt, cancelRequested: false, enqueued: [] })
        assert.deepEqual(await namesOf(store, run.id), ['a'])
        const [row] = await world.rows('select n from public.counter')
        assert.equal(row?.['n'], 'effects' in changes ? 1 : 0)
        await far.close()
      }),
    )
  }
}

test(
  'a checkpoint that is asked again under its token is answered as the first time, although its lane is busy now',
  withStore(async (world, store) => {
    const run = await claimedRun(world.holdfast, store)
    const request = checkpointOf(run, { journal: records(record(1, 'a')), effects: child(run, 'step') })
    const ask = async (from: Store) => (await (await from.checkpoint([request], 'token'))[0]) as CheckpointAnswer
    const first = await ask(store)
    assert.ok(typeof first === 'object' && 'enqueued' in first && first.enqueued.length === 1)
    const other = await openStore(world)
    assert.deepEqual(await ask(other), first)
    assert.equal((await claimRuns(store, 'children')).length, 1)
    await other.close()
  }),
)

test(
  'a checkpoint whose effects wait for a row of another transaction delays no other; it is carried out once the row is free',
  withStore(async (world, store) => {
    await world.rows('drop table if exists public.counter')
    await world.rows('create table public.counter as select 0 as n')
    const [first, second] = [await claimedRun(world.holdfast, store), await claimedRun(world.holdfast, store)]
    const other = await world.begin()
    await other.run('update public.counter set n = n')
    const journal = records(record(1, 'a'))
    const token = randomUUID()
    const requests = [
      checkpointOf(first, { journal, ...withEffects }),
      checkpointOf(second, { journal, effects: noEffects }),
    ]
    const [blocked, free] = await store.checkpoint(requests, token)
    assert.ok(blocked instanceof Promise)
    assert.ok('expiresAt' in ((await free) as object))
    assert.deepEqual([await namesOf(store, first.id), await namesOf(store, second.id)], [[], ['a']])
    await other.commit()
    assert.ok('expiresAt' in ((await blocked) as object))
    const again = await store.checkpoint(requests, token)
    assert.ok('expiresAt' in ((await again[0]) as object))
    assert.deepEqual((await world.rows('select n from public.counter'))[0], { n: 1 })
    assert.deepEqual(await namesOf(store, first.id), ['a'])
  }),
)

test(
  'an effect that fails only at the commit fails its own checkpoint, and the job keeps its lease',
  withStore(async (world, store) => {
    for (const statement of [
      'drop table if exists public.noted',
      'create table public.noted (n int)',
      `create or replace function public.mind() returns trigger language plpgsql as $$ begin
         if new.n = 7 then raise exception 'not seven'; end if; return null; end $$`,
      `create constraint trigger mind after insert on public.noted deferrable initially deferred
         for each row execute function public.mind()`,
    ])
      await world.rows(statement)
    const [first, second] = [await claimedRun(world.holdfast, store), await claimedRun(world.holdfast, store)]
    const noting = (n: number) => ({
      journal: records(record(1, 'a')),
      effects: { ...noEffects, sql: [{ text: `insert into public.noted values (${n})`, values: [] }] },
    })
    const requests = [checkpointOf(first, noting(7)), checkpointOf(second, noting(1))]
    const [bad, good] = await Promise.all(await store.checkpoint(requests, randomUUID()))
    assert.ok(typeof bad === 'object' && 'failed' in bad && /not seven/.test(bad.failed.message))
    assert.ok(typeof good === 'object' && 'expiresAt' in good)
    assert.deepEqual([await namesOf(store, first.id), await namesOf(store, second.id)], [[], ['a']])
    assert.deepEqual(await world.rows('select n from public.noted'), [{ n: 1 }])
    assert.equal(((await settle(store, first)) as { state: string }).state, 'done')
  }),
)

test(
  'the end of a child is told although its parent is locked, and wakes it once it parks',
  withStore(async (world, store) => {
    const run = await claimedRun(world.holdfast, store)
    await checkpoint(store, run, { journal: records(record(1, 'a', -1)), effects: child(run, 'a') })
    const settlement = await world.begin()
    await parkIn(settlement, run)
    await settle(store, await claimRun(store, 'children'))
    assert.equal((await events(world)).length, 1)
    await settlement.commit()
    await store.sweep({ max: 10 })
    assert.equal(await stateOf(world.holdfast, run.id), 'ready')
    assert.deepEqual(await mailbox(store, run.id), [['a', { state: 'done' }]])
  }),
)

test(
  'a message that commits after its job is gone is removed by its delivery',
  withStore(async (world, store) => {
    await world.holdfast.queue('brief', { retain: { done: 0 } }).enqueue(1)
    const run = await claimRun(store, 'brief')
    const stranger = await world.begin()
    await sendIn(store, stranger, { id: run.id })
    await settle(store, run)
    await stranger.commit()
    assert.equal((await world.rows('select from holdfast.message')).length, 1)
    await store.sweep({ max: 10 })
    assert.deepEqual(await world.rows('select from holdfast.message'), [])
    assert.deepEqual(await events(world), [])
  }),
)

test(
  'jobs that are pruned leave nothing of their journals, also those that had only messages',
  withStore(async (world, store) => {
    const [first, second] = [await claimedRun(world.holdfast, store), await claimedRun(world.holdfast, store)]
    await checkpoint(store, first, { journal: { ...records(record(1, 'a')), partial: '1' } })
    await sent(store, second.id, 'paid')
    await settle(store, first)
    await settle(store, second)
    await world.rows('update holdfast.ended_rest set keep_until = 1')
    assert.equal((await store.sweep({ max: 10 })).pruned, 2)
    for (const table of ['record', 'journal', 'message', 'await_key', 'wake_event'])
      assert.deepEqual(await world.rows(`select from holdfast.${table}`), [], table)
  }),
)

test(
  'a partition is dropped only after the journals of its jobs were removed',
  withStore(
    async (world, store) => {
      await world.holdfast.queue('flow', { retain: { done: '1s' } }).enqueue(0)
      await store.sweep({ max: 10 })
      const run = await claimRun(store)
      await checkpoint(store, run, { journal: records(record(1, 'a')) })
      await settle(store, run)
      const at = Date.now() + 2 * 86_400_000
      const drop = async (cleared: object) =>
        (await world.rows('select holdfast.drop_partition($1, $2)::int as n', [at, JSON.stringify(cleared)]))[0]?.['n']
      assert.equal(await drop({}), null)
      const [found] = await world.rows(`select * from holdfast.partition_to_clear($1, '{}')`, [at])
      assert.ok(found)
      const { class: retention, bucket } = found as { class: number; bucket: string }
      const [step] = await world.rows('select jobs::int, seqs::text from holdfast.clear_partition($1, $2, 0, $3)', [
        ...[retention, bucket, at],
      ])
      assert.deepEqual(await world.rows('select from holdfast.record'), [])
      assert.equal(await drop({ [`ended_${retention}_${bucket}`]: [step?.['jobs'], step?.['seqs']] }), 1)
    },
    { partitions: true },
  ),
)

async function events(world: World): Promise<unknown[]> {
  return world.rows('select seq from holdfast.wake_event')
}

/** A message and its event, as a process leaves them that dies before it delivers. */
async function leaveMessage(world: World, id: string): Promise<void> {
  await world.rows(
    `with sent as (
       insert into holdfast.message (no, seq, name, value, at)
       select nextval('holdfast.number'), j.seq, 'paid', '1', 0 from holdfast.job j where j.id = $1 returning seq
     )
     insert into holdfast.wake_event (xid, at, id, seq) select pg_current_xact_id(), 0, $1, s.seq from sent s`,
    [id],
  )
}

async function expire(world: World): Promise<void> {
  await world.rows('update holdfast.lease set expires_at = holdfast.now_ms(null) - 100')
}
