// A settlement committed, but the store could not be reached for longer than it retries. The caller may repeat the settlement
// under the same token, and gets its answer.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import type { EffectSet } from '../../src/job/record.ts'
import type { Settlement } from '../../src/job/transition.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { prepareJob } from '../../src/queue/prepare.ts'
import { systemClock } from '../../src/runtime/clock.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import type { ClaimedJob, SettleAnswer, SettleRequest, Store } from '../../src/store/store.ts'
import { hour, rejects } from '../conformance/expect.ts'
import { type CuttingProxy, cuttingProxy } from '../support/cutting-proxy.ts'
import { inWorld, newPool, useDatabase, type World } from './world.ts'

useDatabase()

const commit = 'commit\0' // the whole statement; "read committed" is another
const done: Settlement = { as: 'done', result: '"sent"', effects: null }
const snooze: Settlement = { as: 'snooze', delayMs: hour }
const put: EffectSet = { put: [{ key: 'k', value: '1', ttlMs: null }], delete: [], sql: [], enqueue: [] }

const kinds: Readonly<Record<string, { readonly settlements: readonly Settlement[]; readonly says: string }>> = {
  'as done without effects': { settlements: [done, done], says: 'settle_done' },
  'with effects': { settlements: [{ ...done, effects: put }], says: commit },
  'of jobs that are done and snoozed': { settlements: [done, snooze, done], says: 'settle_done' },
  'of jobs that are done and snoozed, of which only the snoozed have committed': {
    settlements: [done, snooze, done],
    says: commit,
  },
}

async function settleAll(store: Store, requests: readonly SettleRequest[], token?: string): Promise<SettleAnswer[]> {
  return Promise.all(await store.settle(requests, token))
}

for (const [what, { settlements, says }] of Object.entries(kinds)) {
  test(
    `a settlement ${what}, whose answer was lost, is answered when it is repeated under its token`,
    inWorld(async (world) => {
      await using far = await farStore(world)
      const requests = await claimed(far.store, world, settlements)
      const token = randomUUID()
      await settleWithoutAnswer(far, requests, says, token)
      const states = (answers: readonly SettleAnswer[]) => answers.map((answer) => stateOf(answer))
      const expected = settlements.map(({ as }) => (as === 'done' ? 'done' : 'scheduled'))
      assert.deepEqual(states(await settleAll(far.store, requests, token)), expected)
      assert.deepEqual(states(await settleAll(far.store, requests, token)), expected, 'and again')
      assert.deepEqual(
        states(await settleAll(far.store, requests)),
        expected.map(() => 'lost'),
      )
      assert.deepEqual(
        states(await settleAll(far.store, requests, randomUUID())),
        expected.map(() => 'lost'),
      )
      assert.equal((await world.holdfast.stats()).done, expected.filter((state) => state === 'done').length)
    }),
  )
}

const perTenant = defineQueue<number>('mail', { limit: { key: (tenant) => tenant, concurrency: 1 } })

for (const { what, definition, parts } of [
  { what: 'jobs that admit others, which is written in two parts', definition: perTenant, parts: 2 },
  { what: 'jobs without keys, which is written in one part', definition: defineQueue<number>('mail'), parts: 1 },
]) {
  test(
    `a settlement of many ${what}, is answered when it is repeated under its token`,
    inWorld(async (world) => {
      const payloads = Array.from({ length: 1_200 }, (_, n) => ({ payload: n % 600 }))
      await world.holdfast.queue(definition).enqueueMany(payloads)
      await using far = await farStore(world)
      const jobs = await far.store.claim({ queues: ['mail'], max: 600, leaseMs: hour, worker: 'w' })
      const requests = jobs.map(({ id, fence }) => ({ id, fence, settlement: done, retryDelayMs: 0 }))
      const committedParts = async () =>
        Number((await world.rows('select count(*) as parts from holdfast.flush'))[0]?.['parts'])
      const before = await committedParts()
      const token = randomUUID()
      await settleWithoutAnswer(far, requests, 'settle_done', token)
      const expected = Array(600).fill('done')
      assert.deepEqual((await settleAll(far.store, requests, token)).map(stateOf), expected)
      assert.equal((await committedParts()) - before, parts)
      assert.deepEqual((await settleAll(far.store, requests, token)).map(stateOf), expected, 'and again')
      const { done: ended, ready, held, running } = await world.holdfast.stats()
      assert.deepEqual({ ended, ready, held, running }, { ended: 600, ready: 600, held: 0, running: 0 })
    }),
  )
}

test(
  'if one part of a settlement in two parts fails, the error says that it may have been applied, and a repeat completes it',
  inWorld(async (world) => {
    const payloads = Array.from({ length: 1_002 }, (_, n) => ({ payload: n % 501 }))
    await world.holdfast.queue(perTenant).enqueueMany(payloads)
    await using far = await farStore(world)
    const jobs = await far.store.claim({ queues: ['mail'], max: 501, leaseMs: hour, worker: 'w' })
    const requests = jobs.map(({ id, fence }) => ({ id, fence, settlement: done, retryDelayMs: 0 }))
    const token = randomUUID()
    const whole = 'if cardinality(v_landed) < v_count then'
    const second = `if v_count = 251 then raise exception 'no room' using errcode = '53100'; end if; ${whole}`
    await world.withoutRule({ from: whole, to: second })
    await rejects(far.store.settle(requests, token), 'STORE_UNAVAILABLE', { mayHaveLanded: true })
    assert.deepEqual(await counts(world), { done: 250, running: 251, ready: 250, held: 251 })
    await world.withoutRule({ from: second, to: whole })
    assert.deepEqual((await settleAll(far.store, requests, token)).map(stateOf), Array(501).fill('done'))
    assert.deepEqual(await counts(world), { done: 501, running: 0, ready: 501, held: 0 })
  }),
)

async function counts(world: World) {
  const { done, running, ready, held } = await world.holdfast.stats()
  return { done, running, ready, held }
}

test(
  'a settlement that never arrived is applied when it is repeated under its token',
  inWorld(async (world) => {
    await using far = await farStore(world)
    const requests = await claimed(far.store, world, [done, snooze])
    const token = 'any text will do'
    await settleWithoutAnswer(far, requests, 'begin isolation', token, 'before')
    assert.equal((await world.holdfast.stats()).running, 2)
    assert.deepEqual((await settleAll(far.store, requests, token)).map(stateOf), ['done', 'scheduled'])
  }),
)

test(
  'a committed settlement is remembered for an hour',
  inWorld(async (world) => {
    await using far = await farStore(world)
    const requests = await claimed(far.store, world, [done])
    const token = randomUUID()
    await settleAll(far.store, requests, token)
    await world.rows('update holdfast.flush set at = at - 3500000')
    await world.holdfast.sweep()
    assert.deepEqual((await settleAll(far.store, requests, token)).map(stateOf), ['done'])
    await world.rows('update holdfast.flush set at = at - 200000')
    const other = await world.another()
    await other.sweep()
    assert.deepEqual((await settleAll(far.store, requests, token)).map(stateOf), ['lost'])
  }),
)

/** A flush as a whole has no rollback to a savepoint: that follows when the bad job is settled alone. */
const undo = 'rollback to savepoint attempt'

for (const isFixed of [false, true]) {
  const then = isFixed ? 'after the cause is fixed' : 'although one of them still cannot be committed'
  test(
    `a settlement job by job, of which some have committed, is answered when it is repeated under its token, ${then}`,
    inWorld(async (world) => {
      await world.rows('create table holdfast.parent (n int primary key)')
      await world.rows('create table holdfast.child (n int references holdfast.parent deferrable initially deferred)')
      await world.rows('insert into holdfast.parent values (1), (2)')
      await using far = await farStore(world)
      const add = (n: number): Settlement => {
        const sql = [{ text: world.schema.sql('insert into holdfast.child values ($1)'), values: [n] }]
        return { ...done, effects: { put: [], delete: [], sql, enqueue: [] } }
      }
      const requests = await claimed(far.store, world, [add(1), done, add(7), add(2)])
      const token = randomUUID()
      await settleWithoutAnswer(far, requests, undo, token, 'before')
      assert.deepEqual(await childrenOf(world), [1], 'the first has committed')
      if (isFixed) await world.rows('insert into holdfast.parent values (7)')
      const expected = ['done', 'done', isFixed ? 'done' : 'failed', 'done']
      const states = (answers: readonly SettleAnswer[]) =>
        answers.map((answer) => (typeof answer === 'object' && 'failed' in answer ? 'failed' : stateOf(answer)))
      assert.deepEqual(states(await settleAll(far.store, requests, token)), expected)
      assert.deepEqual(states(await settleAll(far.store, requests, token)), expected, 'and again')
      assert.deepEqual(states(await settleAll(far.store, requests)), ['lost', 'lost', 'lost', 'lost'])
      assert.deepEqual(await childrenOf(world), isFixed ? [1, 2, 7] : [1, 2])
    }),
  )
}

async function childrenOf(world: World): Promise<unknown[]> {
  return (await world.rows('select n from holdfast.child order by n')).map(({ n }) => n)
}

test(
  'a full disk fails no job, and settlements are applied when there is space again',
  inWorld(async (world) => {
    await world.rows('create table holdfast.child (n int)')
    await world.rows(`create function holdfast.refuse_row() returns trigger language plpgsql as $$
      begin raise exception 'no room' using errcode = '53100'; end $$`)
    for (const table of ['child', 'job', 'ended'])
      await world.rows(`create trigger refuse_row before insert or update on holdfast.${table}
        for each row execute function holdfast.refuse_row()`)
    await world.rows('alter table holdfast.job disable trigger refuse_row')
    await using far = await farStore(world)
    const add = (n: number): Settlement => {
      const sql = [{ text: world.schema.sql('insert into holdfast.child values ($1)'), values: [n] }]
      return { ...done, effects: { put: [], delete: [], sql, enqueue: [] } }
    }
    const requests = await claimed(far.store, world, [add(1), add(7), add(2)])
    await world.rows('alter table holdfast.job enable trigger refuse_row')
    const token = randomUUID()
    await assert.rejects(far.store.settle(requests, token), { code: 'STORE_UNAVAILABLE' })
    assert.equal((await world.holdfast.stats()).running, 3)
    for (const table of ['child', 'job', 'ended']) await world.rows(`drop trigger refuse_row on holdfast.${table}`)
    assert.deepEqual((await settleAll(far.store, requests, token)).map(stateOf), ['done', 'done', 'done'])
    assert.deepEqual(await childrenOf(world), [1, 2, 7])
  }),
)

test(
  'a flush of which one settlement waits for an open transaction gets the same answer when it is repeated under its token',
  inWorld(async (world) => {
    await using far = await farStore(world)
    const follows = await prepareJob(defineQueue('new'), 'follows')
    const requests = await claimed(far.store, world, [
      { ...done, effects: put },
      { ...done, effects: { put: [], delete: [], sql: [], enqueue: [follows] } },
    ])
    const stranger = await world.begin()
    await stranger.run(`select holdfast.enqueue('new', '"stranger"')`)
    const token = randomUUID()
    const first = await far.store.settle(requests, token)
    const again = await far.store.settle(requests, token)
    for (const [soon, later] of [first, again]) {
      assert.ok(!(soon instanceof Promise) && later instanceof Promise, 'only one of them waits')
      assert.equal(stateOf(soon as SettleAnswer), 'done')
    }
    await stranger.commit()
    for (const answers of [first, again]) assert.deepEqual((await Promise.all(answers)).map(stateOf), ['done', 'done'])
    assert.deepEqual(
      (await settleAll(far.store, requests, token)).map(stateOf),
      ['done', 'done'],
      'and after the commit',
    )
    assert.deepEqual((await settleAll(far.store, requests)).map(stateOf), ['lost', 'lost'])
    assert.equal((await world.holdfast.stats('new')).ready, 2)
  }),
)

const withSql = (text: string): Settlement => ({
  ...done,
  effects: { put: [], delete: [], sql: [{ text, values: [] }], enqueue: [] },
})

test(
  'no job is failed for a session that breaks during a statement while the store is unreachable',
  inWorld(async (world) => {
    await using far = await farStore(world)
    const requests = await claimed(far.store, world, [withSql('select pg_sleep(0)'), done])
    const token = randomUUID()
    await settleWithoutAnswer(far, requests, 'pg_sleep', token, 'before')
    assert.deepEqual((await settleAll(far.store, requests, token)).map(stateOf), ['done', 'done'])
  }),
)

for (const moment of ['before', 'after'] as const)
  test(
    `a settlement that was about to be abandoned when the wire broke (${moment} that) is answered when it is repeated under its token`,
    inWorld(async (world) => {
      await using far = await farStore(world)
      const bad = withSql('select pg_terminate_backend(pg_backend_pid())')
      const requests = await claimed(far.store, world, [withSql('select 1'), bad, withSql('select 2'), done])
      const token = randomUUID()
      await settleWithoutAnswer(far, requests, '"abandoned"', token, moment)
      assert.equal((await world.holdfast.stats()).running, 4)
      const states = (answers: readonly SettleAnswer[]) =>
        answers.map((answer) => (typeof answer === 'object' && 'failed' in answer ? 'failed' : stateOf(answer)))
      const expected = ['done', 'failed', 'done', 'done']
      assert.deepEqual(states(await settleAll(far.store, requests, token)), expected)
      assert.deepEqual(states(await settleAll(far.store, requests, token)), expected, 'and again')
    }),
  )

interface FarStore extends AsyncDisposable {
  readonly store: Store
  readonly proxy: CuttingProxy
}

/** A store whose connections go through a proxy that can cut them. */
async function farStore(world: World): Promise<FarStore> {
  const proxy = await cuttingProxy(world.url)
  const pool = newPool(proxy.url)
  const store = await postgres({ pool, schema: world.schema.name, listen: false })({ clock: systemClock })
  return {
    store,
    proxy,
    async [Symbol.asyncDispose]() {
      await store.close()
      await pool.end()
      await proxy[Symbol.asyncDispose]()
    },
  }
}

async function claimed(store: Store, world: World, settlements: readonly Settlement[]): Promise<SettleRequest[]> {
  for (const { as } of settlements) await world.enqueue('mail', as)
  const jobs = await store.claim({ queues: ['mail'], max: 10, leaseMs: hour, worker: 'w' })
  return settlements.map((settlement, i) => {
    const { id, fence } = jobs[i] as ClaimedJob
    return { id, fence, settlement, retryDelayMs: 0 }
  })
}

async function settleWithoutAnswer(
  { store, proxy }: FarStore,
  requests: readonly SettleRequest[],
  says: string,
  token: string,
  moment: 'before' | 'after' = 'after',
): Promise<void> {
  const cut = proxy.cut(says, moment, { stays: true })
  await rejects(store.settle(requests, token), 'STORE_UNAVAILABLE')
  await cut
  proxy.mend()
}

function stateOf(answer: SettleAnswer): unknown {
  return typeof answer === 'object' && 'state' in answer ? answer.state : answer
}
