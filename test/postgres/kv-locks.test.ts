// Key-value entries that a caller's open transaction has written (`enqueue(payload, { kv, tx })`) stay locked until it ends. Only
// what writes the same entry waits for it. An entry that the transaction has made is locked too, and no other session sees it.
import assert from 'node:assert/strict'
import test from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Pool } from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import type { NewJob } from '../../src/job/record.ts'
import { systemClock } from '../../src/runtime/clock.ts'
import { newId } from '../../src/runtime/id.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import type { Store } from '../../src/store/store.ts'
import { stateOf } from '../conformance/expect.ts'
import { type CallerTx, inWorld, until, useDatabase, type World } from './world.ts'

useDatabase()

/** Long enough for a slow machine: without an end of the open transaction, a call that waits for it is never answered. */
const waitMaxMs = 60_000

const kinds = ['that exists', 'that is new'] as const

for (const kind of kinds) {
  test(
    `writes of other keys are answered while a caller's transaction has an entry ${kind}; writes of that entry follow its commit, in their order`,
    inWorld(async (world) => {
      const { kv } = world.holdfast
      const before = await kv.put('counter', 0)
      const tx = await locking(world, ['k'], kind)
      const waiting = new Waiting([kv.put('k', 1), kv.compareAndSet('k', null, 'never')])
      const others = [
        kv.put('a', 1),
        kv.delete('nothing'),
        kv.compareAndSet('counter', before, 1),
        kv.put('a', 2),
        kv.compareAndSet('new', null, 1),
      ]
      const [first, deleted, moved, second, made] = (await soon(Promise.all(others))) as [number, ...unknown[]]
      assert.ok((second as number) > first)
      assert.equal(deleted, false)
      assert.deepEqual(
        [moved, made].map((answer) => (answer as { applied: boolean }).applied),
        [true, true],
      )
      assert.equal((await kv.get('a'))?.value, 2)
      waiting.add(kv.put('k', 2))
      assert.equal(typeof (await soon(kv.put('b', 1))), 'number')
      waiting.add(kv.put('k', 3))
      assert.deepEqual(await soon(Promise.all([kv.put('c', 1), kv.delete('b')])).then(([, gone]) => gone), true)
      assert.equal(waiting.settled, 0)
      await tx.commit()
      const [put1, compared, put2, put3] = (await soon(waiting.all)) as [number, object, number, number]
      assert.ok(put1 < put2 && put2 < put3)
      assert.deepEqual(compared, { applied: false, version: put1 })
      const entry = await kv.get('k')
      assert.deepEqual([entry?.value, entry?.version], [3, put3])
    }),
  )

  test(
    `of 50 settlements in one flush, only the one that puts an entry ${kind} of a caller's transaction waits, and it is written once`,
    inWorld(async (world) => {
      const { holdfast } = world
      await recordWrites(world)
      const tx = await locking(world, ['k'], kind)
      await holdfast.kv.put('common', 0)
      await holdfast.queue('mail').enqueueMany(Array.from({ length: 50 }, (_, payload) => ({ payload })))
      const leases = await holdfast.claim(['mail'], { max: 50 })
      const settled = leases.map((lease, i) =>
        lease.done(i, {
          put: [
            { key: `own ${i}`, value: i },
            { key: i === 20 ? 'k' : 'common', value: i },
          ],
          delete: [`gone ${i}`],
        }),
      )
      const [blocked] = settled.splice(20, 1) as [(typeof settled)[number]]
      const waiting = new Waiting([blocked])
      const answers = await soon(Promise.all(settled))
      assert.deepEqual(new Set(answers.map(({ state }) => state)), new Set(['done']))
      assert.equal((await entriesOf(holdfast, 'own ')).length, 49)
      assert.equal(await holdfast.kv.get('own 20'), null, 'nothing of the settlement that waits is written')
      assert.equal((await holdfast.kv.get('common'))?.value, 49)
      assert.equal(await stateOf(holdfast, leases[20]?.job.id ?? ''), 'running')
      assert.equal(waiting.settled, 0)
      await tx.commit()
      const [last] = (await soon(waiting.all)) as [{ state: string }]
      assert.equal(last.state, 'done')
      assert.equal((await holdfast.kv.get('k'))?.value, 20)
      assert.equal((await holdfast.kv.get('own 20'))?.value, 20)
      const written = await world.rows(`select key from public.written where value = '20' order by key`)
      assert.deepEqual(
        written.map(({ key }) => key),
        ['k', 'own 20'],
      )
    }),
  )

  test(
    `enqueues with writes of other keys are answered while a caller's transaction has an entry ${kind}`,
    inWorld(async (world) => {
      const mail = world.holdfast.queue<number>('mail')
      const tx = await locking(world, ['k'], kind)
      const waiting = new Waiting([mail.enqueue(0, { kv: { put: [{ key: 'k', value: 0 }] } })])
      const others = [1, 2, 3].map((n) => mail.enqueue(n, { kv: { put: [{ key: `key ${n}`, value: n }] } }))
      const answers = await soon(Promise.all(others))
      assert.deepEqual(
        answers.map(({ status }) => status),
        ['created', 'created', 'created'],
      )
      assert.equal(waiting.settled, 0)
      await tx.commit()
      await soon(waiting.all)
      assert.equal((await world.holdfast.kv.get('k'))?.value, 0)
      assert.deepEqual((await world.claim('mail')).toSorted(), [0, 1, 2, 3])
    }),
  )

  test(
    `while the effects of a cancel wait for an entry ${kind} of a caller's transaction, a sweep rescues jobs whose effects write other entries`,
    inWorld(async (world) => {
      const { holdfast } = world
      const tx = await locking(world, ['k'], kind)
      await holdfast.queue('mail').enqueueMany(Array(3).fill({ payload: 1 }))
      const leases = await holdfast.claim(['mail'], { max: 3, lease: 1 })
      const ids = leases.map(({ job }) => job.id)
      for (const [i, id] of ids.entries())
        await holdfast.cancel(id, { effects: { put: [{ key: i === 0 ? 'k' : `key ${i}`, value: i }] } })
      const sweeper = await world.another()
      let rescued = 0
      await until(async () => {
        rescued += (await soon(sweeper.sweep())).rescued
        return rescued === 2
      }, 'the two that are not blocked are rescued')
      const states = () => Promise.all(ids.map((id) => stateOf(holdfast, id)))
      assert.deepEqual(await states(), ['running', 'cancelled', 'cancelled'])
      await tx.commit()
      await world.rows('update holdfast.lease set expires_at = holdfast.now_ms(null) - 1')
      assert.equal((await sweeper.sweep()).rescued, 1)
      assert.deepEqual(await states(), ['cancelled', 'cancelled', 'cancelled'])
      assert.equal((await holdfast.kv.get('k'))?.value, 0)
    }),
  )

  test(
    `a cancel whose effects wait for an entry ${kind} of a caller's transaction keeps no claim of its queue waiting`,
    inWorld(async (world) => {
      const { holdfast } = world
      const tx = await locking(world, ['k'], kind)
      const cancelled = await world.enqueue('mail', 1)
      const waiting = new Waiting([holdfast.cancel(cancelled, { effects: { put: [{ key: 'k', value: 1 }] } })])
      await world.waiters(1)
      await world.enqueue('mail', 2, { priority: 9 })
      assert.equal((await soon(holdfast.claim(['mail'], { max: 1 }))).length, 1)
      assert.equal(waiting.settled, 0)
      await tx.commit()
      await soon(waiting.all)
      assert.equal((await holdfast.kv.get('k'))?.value === 1, (await stateOf(holdfast, cancelled)) === 'cancelled')
    }),
  )

  test(
    `items of a batch that write other entries are added while items that write an entry ${kind} of a caller's transaction wait`,
    inWorld(async (world) => {
      const { holdfast } = world
      const tx = await locking(world, ['k'], kind)
      const batch = await holdfast.batch({ name: 'b', open: true }, [])
      const item = (key: string) => [{ queue: 'mail', payload: key, kv: { put: [{ key, value: key }] } }]
      const waiting = new Waiting([batch.add(item('k'))])
      await world.waiters(1)
      assert.equal((await soon(batch.add(item('other')))).added, 1)
      assert.equal(waiting.settled, 0)
      await tx.commit()
      await soon(waiting.all)
      assert.equal((await holdfast.kv.get('k'))?.value, 'k')
      assert.equal((await batch.progress()).waiting, 2)
    }),
  )
}

test(
  'writes that wait for 40 entries hold no connection: a client with two connections goes on, and all are written after the commit',
  inWorld(async (world) => {
    const keys = Array.from({ length: 40 }, (_, n) => `k${n}`)
    const tx = await locking(world, keys.slice(20), 'that exists')
    for (const key of keys.slice(0, 20)) await tx.enqueue('first', 1, { kv: { put: [{ key, value: 'tx' }] } })
    const { kv } = await world.another({ max: 2 })
    const waiting = new Waiting(keys.map((key) => kv.put(key, key)))
    for (let n = 0; n < 20; n++) await soon(kv.put('other', n))
    assert.equal(waiting.settled, 0)
    await tx.commit()
    await soon(waiting.all)
    for (const key of keys) assert.equal((await kv.get(key))?.value, key)
  }),
)

test(
  'a write that waits ends with CLOSED when its client closes, and nothing is written',
  inWorld(async (world) => {
    const tx = await locking(world, ['k'], 'that exists')
    const closing = await world.another()
    const puts = [closing.kv.put('k', 1), closing.kv.put('k', 2)]
    await soon(closing.kv.put('other', 1))
    await Promise.all([soon(closing.close()), ...puts.map((put) => assert.rejects(soon(put), { code: 'CLOSED' }))])
    await tx.commit()
    assert.equal((await world.holdfast.kv.get('k'))?.value, 'tx')
  }),
)

test(
  'a sweep does not wait for an expired entry or dedup key that a caller writes again, and leaves both',
  inWorld(async (world) => {
    const { holdfast } = world
    await holdfast.kv.put('k', 1, { ttl: 1 })
    await holdfast.kv.put('over', 1, { ttl: 1 })
    const dedup = { key: 'd', scope: { window: 1 } }
    await world.enqueue('first', 0, { dedup })
    await sleep(5)
    const tx = await world.begin()
    await tx.enqueue('first', 1, {
      kv: { put: [{ key: 'k', value: 2 }] },
      dedup: { key: 'd', scope: { window: 60_000 } },
    })
    const { id } = await holdfast.queue('mail').enqueue(1, { delay: 1 })
    await until(async () => {
      await soon(holdfast.sweep())
      return (await stateOf(holdfast, id)) === 'ready'
    }, 'the job is promoted')
    assert.deepEqual(await world.rows(`select key from holdfast.kv where key in ('k', 'over')`), [{ key: 'k' }])
    await tx.commit()
    await holdfast.sweep()
    assert.equal((await holdfast.kv.get('k'))?.value, 2)
    assert.equal((await world.rows('select from holdfast.dedup')).length, 1)
  }),
)

test(
  "a schedule whose job has a dedup key of a caller's transaction is busy, and other schedules fire",
  inWorld(async (world) => {
    await using store = await storeOf(world)
    const keys = ['one', 'other']
    const moves = await Promise.all(
      keys.map(async (key) => {
        const [answer] = await store.kvWrite([{ as: 'put', key, value: '0', ttlMs: null }])
        return { key, value: '1', version: Number(((await answer) as { version: number }).version) }
      }),
    )
    await world.enqueue('mail', 0)
    const tx = await world.begin()
    await tx.enqueue('mail', 1, { dedup: { key: 'd' }, kv: { put: [{ key: 'k', value: 1 }] } })
    const [one, other] = moves as [(typeof moves)[number], (typeof moves)[number]]
    const jobs = [{ ...plainJob, id: newId(), dedup: { key: 'd', scope: 'live', replace: false } as const }]
    assert.equal(await soon(store.advance({ ...one, jobs })), 'busy')
    assert.equal(typeof (await soon(store.advance({ ...other, jobs: [{ ...plainJob, id: newId() }] }))), 'object')
    assert.equal((await store.kvGet('one'))?.value, '0')
    await tx.run('rollback')
    const answer = await store.advance({ ...one, jobs })
    assert.deepEqual(typeof answer === 'object' && 'enqueued' in answer && answer.enqueued.length, 1)
  }),
)

test(
  'a schedule whose entry another transaction has locked is busy, and fires after that',
  inWorld(async (world) => {
    await using store = await storeOf(world)
    const version = await world.holdfast.kv.put('k', 0)
    const tx = await world.begin()
    await tx.run('select from holdfast.kv for update')
    const move = { key: 'k', value: '1', version, jobs: [{ ...plainJob, id: newId() }] }
    assert.equal(await soon(store.advance(move)), 'busy')
    await tx.commit()
    assert.equal(typeof (await store.advance(move)), 'object')
  }),
)

test(
  "an accept whose effects wait for an entry of a caller's transaction holds no connection, and is made once",
  inWorld(async (world) => {
    const { holdfast } = world
    const tx = await locking(world, ['k'], 'that exists')
    const id = await world.enqueue('mail', 1)
    const worker = holdfast.work('mail', (job) => job.offer(1, { inbox: 'in' }))
    await new Promise((resolve) => holdfast.on('job.snoozed', resolve))
    await worker.stop()
    const accepting = await world.another({ max: 1 })
    const pickup = (await accepting.inbox('in').get(id)) ?? assert.fail()
    const waiting = new Waiting([pickup.accept('ok', { effects: { put: [{ key: 'k', value: 1 }] } })])
    await world.waiters(1)
    await soon(accepting.kv.put('other', 1)) // over its only connection
    assert.equal(waiting.settled, 0)
    await tx.commit()
    await soon(waiting.all)
    assert.equal(await stateOf(holdfast, id), 'done')
    assert.equal((await holdfast.kv.get('k'))?.value, 1)
  }),
)

const plainJob: Omit<NewJob, 'id'> = {
  ...{ idGiven: false, queue: 'mail', payload: '1', headers: null, priority: null, maxAttempts: null, timeoutMs: null },
  ...{ delayMs: 0, runAt: null, startBefore: null, dedup: null, idempotency: null, limitKey: null },
}

/** A caller's open transaction that has enqueued with a put of each of these keys. */
async function locking(world: World, keys: readonly string[], kind: (typeof kinds)[number]): Promise<CallerTx> {
  await world.enqueue('first', 0) // so that its lane is open
  if (kind === 'that exists') for (const key of keys) await world.holdfast.kv.put(key, 'before')
  const tx = await world.begin()
  await tx.enqueue('first', 1, { kv: { put: keys.map((key) => ({ key, value: 'tx' })) } })
  return tx
}

/** Records each row of `kv` that is inserted or updated, those of undone transactions not included. */
async function recordWrites(world: World): Promise<void> {
  await world.rows('drop table if exists public.written')
  await world.rows('create table public.written (key text, value text)')
  await world.rows(`create or replace function public.record_write() returns trigger language plpgsql as
    $f$ begin insert into public.written values (new.key, new.value); return new; end $f$`)
  await world.rows(`create trigger record_writes after insert or update on holdfast.kv
    for each row execute function public.record_write()`)
}

async function entriesOf({ kv }: Holdfast, prefix: string) {
  return Array.fromAsync(kv.scan(prefix))
}

/** Promises that are not answered yet. */
class Waiting {
  settled = 0
  readonly #promises: Promise<unknown>[] = []

  constructor(promises: readonly Promise<unknown>[]) {
    for (const promise of promises) this.add(promise)
  }

  add(promise: Promise<unknown>): void {
    this.#promises.push(promise)
    const count = () => {
      this.settled += 1
    }
    promise.then(count, count)
  }

  get all(): Promise<unknown[]> {
    return Promise.all(this.#promises)
  }
}

/** Fails if there is no answer for a long time: the call waits for the open transaction. */
async function soon<T>(answer: Promise<T>): Promise<T> {
  const stop = new AbortController()
  const late = sleep(waitMaxMs, undefined, { signal: stop.signal }).then(() => assert.fail('it is not answered'))
  try {
    return await Promise.race([answer, late])
  } finally {
    stop.abort()
    late.catch(() => undefined)
  }
}

async function storeOf({ url, schema }: World): Promise<Store & AsyncDisposable> {
  const pool = new Pool({ connectionString: url })
  const store = await postgres({ pool, schema: schema.name, listen: false })({ clock: systemClock })
  const dispose = async () => {
    await store.close()
    await pool.end()
  }
  return Object.assign(store, { [Symbol.asyncDispose]: dispose })
}
