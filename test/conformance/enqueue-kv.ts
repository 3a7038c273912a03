// `enqueue(payload, { kv })`: key-value writes that land with the job, or not at all.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import type { KvWrites } from '../../src/queue/kv-writes.ts'
import { allJobs, claimOne, everything, minute, rejects, stateOf } from './expect.ts'
import { type InWorld, type StoreUnderTest, withSql } from './world.ts'

export function enqueueKvTests(inWorld: InWorld, { dialect }: StoreUnderTest): void {
  describe('enqueue with key-value writes', () => {
    writeTests(inWorld)
    discardTests(inWorld)
    mismatchTests(inWorld)
    otherWayTests(inWorld)
    if (dialect) callerTests(inWorld)
  })
}

function writeTests(inWorld: InWorld): void {
  test(
    'puts, deletes and conditional writes land with the job',
    inWorld(async ({ holdfast, clock }) => {
      const { kv } = holdfast
      await kv.put('gone', 1)
      const [moved, dropped] = [await kv.put('moved', 1), await kv.put('dropped', 1)]
      const { id, status } = await holdfast.queue('mail').enqueue('hello', {
        kv: {
          put: [{ key: 'put', value: { n: 1 }, ttl: '1m' }],
          delete: ['gone', 'never was'],
          compareAndSet: [
            { key: 'moved', version: moved, value: 2 },
            { key: 'new', version: null, value: 3, ttl: '2m' },
          ],
          compareAndDelete: [{ key: 'dropped', version: dropped }],
        },
      })
      assert.equal(status, 'created')
      assert.equal(await stateOf(holdfast, id), 'ready')
      assert.deepEqual(await valuesOf(holdfast), { moved: 2, new: 3, put: { n: 1 } })
      assert.equal((await kv.get('put'))?.expiresAt?.getTime(), clock.now() + minute)
      assert.equal((await kv.get('new'))?.expiresAt?.getTime(), clock.now() + 2 * minute)
      assert.notEqual((await kv.get('moved'))?.version, moved)
    }),
  )

  test(
    'each entry of enqueueMany has its own writes, made in the order of the entries',
    inWorld(async ({ holdfast }) => {
      const entries = Array.from({ length: 20 }, (_, n) => ({
        payload: n,
        kv: { put: [{ key: `of/${n}`, value: n }, ...(n % 2 === 0 ? [{ key: 'last', value: n }] : [])] },
        ...(n % 3 === 0 && { dedup: { key: `d${n}` } }),
        ...(n % 5 === 0 && { idempotencyKey: `i${n}` }),
        ...(n % 7 === 0 && { delay: '1m' as const }),
      }))
      const answers = await holdfast.queue('mail').enqueueMany([...entries, { payload: 'without' }])
      assert.ok(answers.every(({ status }) => status === 'created'))
      const values = await valuesOf(holdfast)
      assert.equal(values['last'], 18)
      for (const n of entries.keys()) assert.equal(values[`of/${n}`], n)
      assert.equal((await allJobs(holdfast, { queue: 'mail' })).length, 21)
    }),
  )

  test(
    'a queue that is named by its text, a delayed job and a job with a limit key take writes too',
    inWorld(async ({ holdfast }) => {
      const tenants = holdfast.queue('tenants', { limit: { key: 'tenant', concurrency: 1 } })
      await tenants.enqueue({ tenant: 'a' }, { kv: put('held', 1) })
      await tenants.enqueue({ tenant: 'a' }, { kv: put('held', 2) })
      await holdfast.queue('later').enqueue(1, { delay: '1h', kv: put('later', 1) })
      await holdfast.queue('labelled').enqueue(1, { labels: { customer: 'c' }, priority: 1, kv: put('labelled', 1) })
      assert.deepEqual(await valuesOf(holdfast), { held: 2, labelled: 1, later: 1 })
    }),
  )

  test(
    'a write that is empty is none',
    inWorld(async ({ holdfast }) => {
      await holdfast.queue('mail').enqueue(1, { kv: {} })
      await holdfast.queue('mail').enqueue(2, { kv: { put: [], delete: [] } })
      assert.deepEqual(await valuesOf(holdfast), {})
      assert.equal((await holdfast.stats('mail')).ready, 2)
    }),
  )
}

function discardTests(inWorld: InWorld): void {
  test(
    'a duplicate by its dedup key discards its writes, also the conditions',
    inWorld(async ({ holdfast }) => {
      const mail = holdfast.queue('mail')
      const first = await mail.enqueue(1, { dedup: { key: 'k' }, kv: put('seen', 'first') })
      const again = { put: [{ key: 'seen', value: 'second' }], compareAndDelete: [{ key: 'seen', version: 0 }] }
      assert.deepEqual(await mail.enqueue(2, { dedup: { key: 'k' }, kv: again }), {
        id: first.id,
        status: 'duplicate',
      })
      assert.deepEqual(await valuesOf(holdfast), { seen: 'first' })
    }),
  )

  test(
    'a repeated enqueue with the same idempotency key discards its writes',
    inWorld(async ({ holdfast }) => {
      const mail = holdfast.queue('mail')
      const kv = { compareAndSet: [{ key: 'turn', version: null, value: 1 }] }
      const first = await mail.enqueue(1, { idempotencyKey: 'i', kv })
      assert.deepEqual(await mail.enqueue(1, { idempotencyKey: 'i', kv }), { id: first.id, status: 'duplicate' })
      await (await claimOne(holdfast, 'mail')).done()
      assert.equal((await mail.enqueue(1, { idempotencyKey: 'i', kv })).status, 'duplicate', 'its job is kept')
      await rejects(mail.enqueue(2, { idempotencyKey: 'i', kv: put('turn', 2) }), 'IDEMPOTENCY_MISMATCH')
      assert.deepEqual(await valuesOf(holdfast), { turn: 1 })
    }),
  )

  test(
    'of the entries of one enqueueMany that share a key, only the stored one writes',
    inWorld(async ({ holdfast }) => {
      const entries = Array.from({ length: 10 }, (_, n) => ({ payload: n, dedup: { key: 'k' }, kv: put(`of/${n}`, n) }))
      await holdfast.queue('mail').enqueueMany(entries)
      assert.deepEqual(await valuesOf(holdfast), { 'of/0': 0 })
    }),
  )

  test(
    'writes land if a waiting job was replaced, and are discarded if none was',
    inWorld(async ({ holdfast }) => {
      const mail = holdfast.queue('mail')
      const dedup = { key: 'k', replace: true }
      await mail.enqueue(1, { dedup, kv: put('last', 1) })
      assert.equal((await mail.enqueue(2, { dedup, kv: put('last', 2) })).status, 'replaced')
      assert.deepEqual(await valuesOf(holdfast), { last: 2 })
      await claimOne(holdfast, 'mail')
      assert.equal((await mail.enqueue(3, { dedup, kv: put('last', 3) })).status, 'notReplaced')
      assert.deepEqual(await valuesOf(holdfast), { last: 2 })
    }),
  )

  test(
    'an enqueue that is refused for another reason writes nothing',
    inWorld(async ({ holdfast }) => {
      const { id } = await holdfast.queue('mail').enqueue(1)
      await rejects(holdfast.queue('mail').enqueue(2, { id, kv: put('k', 1) }), 'DUPLICATE_JOB_ID')
      assert.deepEqual(await valuesOf(holdfast), {})
    }),
  )
}

function mismatchTests(inWorld: InWorld): void {
  const stale: Readonly<Record<string, (version: number) => KvWrites>> = {
    'a compare-and-set of an old version': (version) => ({ compareAndSet: [{ key: 'k', version, value: 2 }] }),
    'a compare-and-set of a key that should be absent': () => ({
      compareAndSet: [{ key: 'k', version: null, value: 2 }],
    }),
    'a compare-and-delete of an old version': (version) => ({ compareAndDelete: [{ key: 'k', version }] }),
  }
  for (const [what, kvOf] of Object.entries(stale)) {
    test(
      `${what} refuses its enqueue alone, and writes nothing`,
      inWorld(async ({ holdfast }) => {
        const old = await holdfast.kv.put('k', 0)
        const version = await holdfast.kv.put('k', 1)
        const before = await everything(holdfast)
        const mail = holdfast.queue('mail')
        const kv = kvOf(old)
        const facts = { key: 'k', actual: version }
        await rejects(
          mail.enqueue(1, { kv: { ...kv, put: [{ key: 'beside', value: 1 }] } }),
          'KV_VERSION_MISMATCH',
          facts,
        )
        assert.deepEqual(await everything(holdfast), before)

        const [plain, refused, written, keyed] = await Promise.allSettled([
          mail.enqueue('plain'),
          mail.enqueueMany([
            { payload: 'first', kv: put('first', 1) },
            { payload: 'second', kv },
          ]),
          mail.enqueue('written', { kv: put('written', 1) }),
          mail.enqueue('keyed', { dedup: { key: 'd' } }),
        ])
        assert.deepEqual(
          [plain, written, keyed].map(({ status }) => status),
          Array(3).fill('fulfilled'),
        )
        await rejects(reason(refused), 'KV_VERSION_MISMATCH', { ...facts, index: 1 })
        assert.deepEqual(await valuesOf(holdfast), { k: 1, written: 1 })
        const payloads = (await allJobs(holdfast, { queue: 'mail' })).map(({ payload }) => payload)
        assert.deepEqual(payloads.sort(), ['keyed', 'plain', 'written'])
      }),
    )
  }

  test(
    'an entry that is gone, or whose time is over, has no version',
    inWorld(async ({ holdfast, clock }) => {
      const version = await holdfast.kv.put('k', 1, { ttl: '1m' })
      await clock.advance(minute)
      const mail = holdfast.queue('mail')
      const facts = { key: 'k', version, actual: null }
      await rejects(
        mail.enqueue(1, { kv: { compareAndDelete: [{ key: 'k', version }] } }),
        'KV_VERSION_MISMATCH',
        facts,
      )
      const set = { key: 'k', version, value: 2 }
      await rejects(mail.enqueue(1, { kv: { compareAndSet: [set] } }), 'KV_VERSION_MISMATCH', facts)
      await mail.enqueue(1, { kv: { compareAndSet: [{ ...set, version: null }] } })
      assert.deepEqual(await valuesOf(holdfast), { k: 2 })
    }),
  )

  test(
    'of many enqueues that compare the same version, from several clients, one stores its job',
    inWorld(async ({ holdfast, another }) => {
      const clients = [holdfast, await another()]
      const version = await holdfast.kv.put('turn', 'start')
      const answers = await Promise.allSettled(
        Array.from({ length: 24 }, async (_, n) =>
          clients[n % 2]?.queue('mail').enqueue(n, { kv: { compareAndSet: [{ key: 'turn', version, value: n }] } }),
        ),
      )
      const winners = answers.flatMap(({ status }, n) => (status === 'fulfilled' ? [n] : []))
      assert.equal(winners.length, 1)
      assert.deepEqual(await valuesOf(holdfast), { turn: winners[0] })
      const jobs = await allJobs(holdfast, { queue: 'mail' })
      assert.deepEqual(
        jobs.map(({ payload }) => payload),
        winners,
      )
    }),
  )

  test(
    'enqueues with the same keys in other orders, from several clients, all end',
    inWorld(async ({ holdfast, another }) => {
      const clients = [holdfast, await another()]
      const keys = ['a', 'b', 'c', 'd']
      await holdfast.kv.put('c', 'exists')
      const entries = (n: number) =>
        keys.map((_, i) => {
          const key = keys[n % 2 === 0 ? i : keys.length - 1 - i] as string
          return { payload: n, dedup: { key: `${key}${n}` }, kv: put(key, n) }
        })
      await Promise.all(Array.from({ length: 16 }, (_, n) => clients[n % 2]?.queue('mail').enqueueMany(entries(n))))
      assert.equal((await holdfast.stats('mail')).ready, 64)
      assert.deepEqual(Object.keys(await valuesOf(holdfast)), keys)
    }),
  )

  test(
    'writes that are none are refused before anything is sent',
    inWorld(async ({ holdfast }) => {
      const mail = holdfast.queue('mail')
      const before = await everything(holdfast)
      const bad: readonly [unknown, string][] = [
        [{ put: [{ key: '', value: 1 }] }, 'kv.put.key'],
        [{ put: { key: 'k', value: 1 } }, 'kv.put'],
        [{ delete: ['holdfast.gate.x'] }, 'kv.delete'],
        [{ compareAndSet: [{ key: 'holdfast.x', version: 1, value: 1 }] }, 'kv.compareAndSet.key'],
        [{ compareAndSet: [{ key: 'k', value: 1 }] }, 'version'],
        [{ compareAndSet: [{ key: 'k', version: '1', value: 1 }] }, 'kv.compareAndSet.version'],
        [{ compareAndDelete: [{ key: 'k', version: null }] }, 'kv.compareAndDelete.version'],
        [{ compareAndDelete: [{ key: 'k' }] }, 'kv.compareAndDelete.version'],
        [{ set: [] }, 'set'],
        ['k', 'kv'],
      ]
      for (const [kv, option] of bad)
        await rejects(mail.enqueue(1, { kv: kv as KvWrites }), 'INVALID_OPTION', { option })
      const large = { put: [{ key: 'k', value: 'x'.repeat(256 * 1024) }] }
      await rejects(mail.enqueue(1, { kv: large }), 'KV_VALUE_TOO_LARGE')
      assert.deepEqual(await everything(holdfast), before)
    }),
  )
}

function otherWayTests(inWorld: InWorld): void {
  test(
    'a follow-up has its writes with it: a duplicate discards them, a mismatch fails the settlement',
    inWorld(async ({ holdfast }) => {
      const mail = holdfast.queue('mail')
      await mail.enqueueMany([{ payload: 1 }, { payload: 2, attempts: 1 }])
      const next = { queue: 'next', payload: 1, dedup: { key: 'k' } } as const
      const lease = await claimOne(holdfast, 'mail')
      await lease.done(null, {
        enqueue: [
          { ...next, kv: put('stored', 1) },
          { ...next, kv: put('duplicate', 1) },
        ],
      })
      assert.deepEqual(await valuesOf(holdfast), { stored: 1 })
      const failing = await claimOne(holdfast, 'mail')
      const kv = { compareAndDelete: [{ key: 'stored', version: 0 }] }
      await rejects(failing.done(null, { enqueue: [{ queue: 'next', payload: 2, kv }] }), 'KV_VERSION_MISMATCH')
      assert.equal(await stateOf(holdfast, failing.job.id), 'dead')
      assert.equal((await holdfast.stats('next')).ready, 1)
    }),
  )

  test(
    'an item of a batch has its writes with it, and a mismatch refuses its chunk of items',
    inWorld(async ({ holdfast }) => {
      const item = (n: number, kv: KvWrites) => ({ queue: 'items', payload: n, kv })
      await holdfast.batch({ name: 'b' }, [item(1, put('one', 1)), item(2, put('two', 2))])
      assert.deepEqual(await valuesOf(holdfast), { one: 1, two: 2 })
      const stale = { compareAndSet: [{ key: 'one', version: null, value: 2 }] }
      const facts = { index: 1, key: 'one' }
      await rejects(
        holdfast.batch({ name: 'c' }, [item(3, put('three', 3)), item(4, stale)]),
        'KV_VERSION_MISMATCH',
        facts,
      )
      assert.deepEqual(await valuesOf(holdfast), { one: 1, two: 2 })
    }),
  )

  test(
    'the completion of a batch and the job of a schedule take no writes',
    inWorld(async ({ holdfast }) => {
      const kv = put('k', 1)
      const onComplete = { queue: 'done', kv } as { queue: string }
      await rejects(holdfast.batch({ name: 'b', onComplete }, []), 'INVALID_OPTION', { option: 'onComplete' })
      const schedule = { cron: '@daily', queue: 'daily', kv } as { cron: string; queue: string }
      await rejects(holdfast.schedule('s', schedule), 'INVALID_OPTION', { option: 'kv' })
    }),
  )

  test(
    'effects of a cancel keep the writes of their follow-ups until the job ends',
    inWorld(async ({ holdfast }) => {
      const { id } = await holdfast.queue('mail').enqueue(1)
      const lease = await claimOne(holdfast, 'mail')
      const version = await holdfast.kv.put('k', 1)
      const enqueue = [{ queue: 'next', payload: 1, kv: { compareAndDelete: [{ key: 'k', version }] } }]
      const compareAndSet = [{ key: 'n', version: null, value: 1 }]
      assert.equal(await holdfast.cancel(id, { effects: { enqueue, compareAndSet } }), 'requested')
      assert.deepEqual(await valuesOf(holdfast), { k: 1 })
      await lease.cancelled()
      assert.deepEqual(await valuesOf(holdfast), { n: 1 })
      assert.equal((await holdfast.stats('next')).ready, 1)
    }),
  )
}

function callerTests(inWorld: InWorld): void {
  const inSql = withSql(inWorld)

  test(
    'in the caller’s own transaction the writes land when it commits, and not if it rolls back',
    inSql(async ({ holdfast, sql }) => {
      const mail = holdfast.queue('mail')
      for (const ending of ['rollback', 'commit'] as const) {
        const own = await sql.begin()
        await mail.enqueue(ending, { tx: own.tx, kv: put('k', ending) })
        await mail.enqueueMany([{ payload: ending, tx: own.tx, kv: put('many', ending) }])
        assert.deepEqual(await valuesOf(holdfast), {})
        await own[ending]()
      }
      assert.deepEqual(await valuesOf(holdfast), { k: 'commit', many: 'commit' })
      assert.equal((await holdfast.stats('mail')).ready, 2)
    }),
  )

  test(
    'a mismatch in the caller’s own transaction refuses the enqueue, and the transaction goes on',
    inSql(async ({ holdfast, sql }) => {
      const mail = holdfast.queue('mail')
      await mail.enqueue('before')
      const version = await holdfast.kv.put('k', 1)
      const own = await sql.begin()
      const absent = { compareAndSet: [{ key: 'k', version: null, value: 2 }] }
      const facts = { key: 'k', version: null, actual: version }
      await rejects(mail.enqueue(1, { tx: own.tx, kv: absent }), 'KV_VERSION_MISMATCH', facts)
      const kv = { compareAndSet: [{ key: 'k', version, value: 3 }] }
      assert.equal((await mail.enqueue(2, { tx: own.tx, kv, dedup: { key: 'd' } })).status, 'created')
      assert.equal((await mail.enqueue(3, { tx: own.tx, kv, dedup: { key: 'd' } })).status, 'duplicate')
      await own.commit()
      assert.deepEqual(await valuesOf(holdfast), { k: 3 })
      assert.equal((await holdfast.stats('mail')).ready, 2)
    }),
  )
}

function put(key: string, value: unknown): KvWrites {
  return { put: [{ key, value }] }
}

/** The values of all entries, by key. */
async function valuesOf({ kv }: Holdfast): Promise<Record<string, unknown>> {
  const values: Record<string, unknown> = {}
  for await (const { key, value } of kv.scan('')) values[key] = value
  return values
}

function reason(outcome: PromiseSettledResult<unknown>): Promise<unknown> {
  return outcome.status === 'rejected' ? Promise.reject(outcome.reason) : Promise.resolve(outcome.value)
}
