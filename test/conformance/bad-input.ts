import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import { defineQueue } from '../../src/queue/definition.ts'
import type { EnqueueOptions } from '../../src/queue/prepare.ts'
import { allJobs, claimOne, deadJob, everything, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

const mebibyte = 1024 * 1024
const circular: Record<string, unknown> = {}
circular['self'] = circular
class Point {
  readonly x = 1
}

const hostile = new Proxy(
  {},
  {
    ownKeys: () => {
      throw new Error('hands off')
    },
  },
)
const { proxy: revoked, revoke } = Proxy.revocable({}, {})
revoke()

const badPayloads: Readonly<Record<string, unknown>> = {
  'not a number': Number.NaN,
  infinity: [1, Number.POSITIVE_INFINITY],
  'a big integer': { n: 1n },
  'a function': { f: () => 1 },
  'a symbol': Symbol('s'),
  'a date': { at: new Date(0) },
  'a map': new Map([['a', 1]]),
  'a class instance': { point: new Point() },
  'undefined in an array': [1, undefined],
  'a hole in an array': Array(3),
  'a circle': circular,
  'its own toJSON': { toJSON: () => 1 },
  'a toJSON on an array': { list: Object.assign([1], { toJSON: () => 2 }) },
  'a symbol for a key': { [Symbol('s')]: 1 },
  'a getter that throws': {
    get secret() {
      throw new Error('hands off')
    },
  },
  'a proxy that throws': { hostile },
  'a proxy that was revoked': [revoked],
  'bottomless depth': nested(501),
}

const badOptions: readonly Record<string, unknown>[] = [
  ...[-1, 10, 1.5, '5', null].map((priority) => ({ priority })),
  ...[0, -1, 10_001, 2.5, 'many'].map((attempts) => ({ attempts })),
  ...[-1, 'soon', Number.NaN, Number.POSITIVE_INFINITY, '5 m', {}].map((delay) => ({ delay })),
  ...[new Date('nonsense'), 'tomorrow', -1, 1e18].map((runAt) => ({ runAt })),
  ...[new Date('nonsense'), 'tomorrow'].map((startBefore) => ({ startBefore })),
  ...[0, -5, 'long'].map((timeout) => ({ timeout })),
  { delay: '1m', runAt: new Date(0) },
  ...['', 'nul\0', 'half\ud800', 'x'.repeat(513), 5].map((idempotencyKey) => ({ idempotencyKey })),
  ...['', 'nul\0', 'x'.repeat(513), undefined].map((key) => ({ dedup: { key } })),
  ...['forever', { window: 0 }, { window: 'x' }, null, {}].map((scope) => ({ dedup: { key: 'k', scope } })),
  ...[null, 'key', 5].map((dedup) => ({ dedup })),
  ...[null, 'text', { n: 1 }, ['a'], { big: 'x'.repeat(16 * 1024) }].map((headers) => ({ headers })),
  ...[
    new Date(0),
    new Map([['a', 'b']]),
    new String('s'),
    new (class {
      toJSON() {}
    })(),
  ].map((headers) => ({ headers })),
  { delya: '5m' },
]

function nested(levels: number): unknown {
  return Array.from({ length: levels }).reduce((inner) => [inner], 1)
}

export function badInputTests(inWorld: InWorld): void {
  describe('bad input', () => {
    for (const [what, payload] of Object.entries(badPayloads)) {
      test(
        `a payload with ${what} is refused with the path to it`,
        inWorld(async ({ holdfast }) => {
          const error = await rejects(holdfast.queue('mail').enqueue(payload), 'INVALID_PAYLOAD')
          assert.match(String(error.facts['path']), /^payload/)
          assert.ok(error.message.length < 500, 'a short sentence')
          assert.deepEqual(await allJobs(holdfast), [])
        }),
      )
    }

    test(
      'unusual but valid payloads are read back unchanged',
      inWorld(async ({ holdfast }) => {
        const odd: unknown[] = [
          ...['', 'nul \0', 'half \ud800', '\u2028', '😀', "'; drop table job; --", '"', '\\u0000'],
          ...[{ ['k'.repeat(10_000)]: 1 }, nested(500)],
          ...[0, 1e308, 5e-324, Number.MAX_SAFE_INTEGER, true, false, null, [], {}, [[[]]]],
          ...[JSON.parse('{"__proto__": {"polluted": true}, "constructor": 1}'), { '': 1, 'a b': 2 }],
        ]
        await holdfast.queue('mail').enqueueMany(odd.map((payload) => ({ payload })))
        const leases = await holdfast.claim(['mail'], { max: 100 })
        assert.deepEqual(
          leases.map(({ job }) => job.payload),
          odd,
        )
        await Promise.all(leases.map((lease) => lease.done(lease.job.payload)))
        const job = await readJob(holdfast, leases[1]?.job.id ?? '')
        assert.deepEqual([job.payload, job.result], ['nul \0', 'nul \0'])
      }),
    )

    test(
      'a job without a payload has the payload null',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueue(undefined)
        assert.equal((await claimOne(holdfast, 'mail')).job.payload, null)
      }),
    )

    test(
      'a payload of 1 MiB fits and one byte more is refused, counted in bytes',
      inWorld(async ({ holdfast }) => {
        const largest = 'x'.repeat(mebibyte - 2)
        const { id } = await holdfast.queue('mail').enqueue(largest)
        assert.equal((await readJob(holdfast, id)).payload, largest)
        const facts = { bytes: mebibyte + 1, maxBytes: mebibyte }
        await rejects(holdfast.queue('mail').enqueue(`${largest}x`), 'PAYLOAD_TOO_LARGE', facts)
        await rejects(holdfast.queue('mail').enqueue('漢'.repeat(mebibyte / 3)), 'PAYLOAD_TOO_LARGE')
      }),
    )

    test(
      '-0 comes back as 0, which it equals, and a key that is undefined as one that is absent',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueue({ n: -0, list: [-0], absent: undefined })
        const { payload } = (await claimOne(holdfast, 'mail')).job
        assert.deepEqual(payload, { n: 0, list: [0] })
      }),
    )

    test(
      'a payload of 100 MB, or one that would become so large, is refused at once and without a copy',
      inWorld(async ({ holdfast }) => {
        const huge = 100 * mebibyte
        const shared = Array.from({ length: 64 }).reduce((inner) => [inner, inner], 'x')
        const payloads = [
          'x'.repeat(huge),
          { text: '\u0000'.repeat(huge) },
          Array(huge / 100).fill({ a: 1 }),
          { a: shared, b: shared },
          Object.fromEntries(Array.from({ length: 100_000 }, (_, n) => [`${'k'.repeat(100)}${n}`, n])),
        ]
        const startedAt = performance.now()
        const heapBefore = process.memoryUsage().heapUsed
        for (const payload of payloads) {
          const error = await rejects(holdfast.queue('mail').enqueue(payload), 'PAYLOAD_TOO_LARGE')
          assert.ok(Number(error.facts['bytes']) > mebibyte, 'gives a lower bound of the size')
          await rejects(holdfast.kv.put('k', payload), 'KV_VALUE_TOO_LARGE')
        }
        await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        await rejects(lease.done(payloads[1]), 'RESULT_TOO_LARGE')
        assert.equal((await lease.done()).state, 'done', 'the lease is unchanged')
        assert.ok(performance.now() - startedAt < 5_000)
        assert.ok(process.memoryUsage().heapUsed - heapBefore < huge, 'no text of that size was built')
      }),
    )

    test(
      'a payload that does not match its schema is refused with the issues',
      inWorld(async ({ holdfast }) => {
        const queue = defineQueue('mail', { payload: z.object({ to: z.string() }) })
        const error = await rejects(holdfast.queue(queue).enqueue({ to: 5 } as never), 'INVALID_PAYLOAD')
        assert.deepEqual((error.facts['issues'] as { path: string }[])[0]?.path, 'to')
        assert.deepEqual(await allJobs(holdfast), [])
      }),
    )

    test(
      'an option that is out of bounds or unknown is refused by name',
      inWorld(async ({ holdfast }) => {
        for (const options of badOptions) {
          await rejects(holdfast.queue('mail').enqueue(1, options as EnqueueOptions), 'INVALID_OPTION')
        }
        await rejects(holdfast.queue('mail').enqueue(1, { priority: 11 }), 'INVALID_OPTION', { option: 'priority' })
        await rejects(holdfast.queue('mail').enqueue(1, { delya: 1 } as never), 'INVALID_OPTION', { option: 'delya' })
        assert.deepEqual(await allJobs(holdfast), [])
        const headers = { big: 'x'.repeat(16 * 1024 - '{"big":""}'.length) }
        const { id } = await holdfast.queue('mail').enqueue(1, { headers })
        assert.deepEqual((await readJob(holdfast, id)).headers, headers)
      }),
    )

    test(
      'every verb refuses options that are no object or have an unknown name, and changes nothing',
      inWorld(async ({ holdfast }) => {
        const id = await deadJob(holdfast, 'mail')
        await holdfast.queue('post').enqueue(1)
        const lease = await claimOne(holdfast, 'post')
        const before = await everything(holdfast)
        const verbs: readonly ((options: never) => unknown)[] = [
          (options) => holdfast.queue('mail', options),
          (options) => holdfast.queue('mail', { backoff: options }),
          (options) => holdfast.queue('mail', { retain: options }),
          (options) => holdfast.queue('mail', { onDead: options }),
          (options) => holdfast.queue('mail').enqueue(1, options),
          (options) => holdfast.queue('mail').enqueueMany([options]),
          (options) => holdfast.claim('*', options),
          (options) => holdfast.jobs(options),
          (options) => holdfast.cancel(id, options),
          (options) => holdfast.cancel(id, { effects: { put: [options] } }),
          (options) => holdfast.result(id, options),
          (options) => holdfast.deleteAll({ queue: 'mail' }, options),
          (options) => holdfast.requeueAll(options),
          (options) => holdfast.requeueAll({ queue: 'mail' }, options),
          (options) => holdfast.kv.put('k', 1, options),
          (options) => holdfast.kv.compareAndSet('k', null, 1, options),
          (options) => lease.retry(new Error('no'), options),
          (options) => lease.done(1, undefined, options),
          (options) => lease.dead(new Error('no'), undefined, options),
          (options) => holdfast.queue('mail', { limit: { rate: options } }),
          (options) => holdfast.pause('mail', options),
          (options) => holdfast.batch(options),
          (options) => holdfast.batch({ name: 'b', onComplete: options }),
          (options) => holdfast.batches(options),
          (options) => holdfast.inbox('in').page(options),
        ]
        for (const verb of verbs) {
          for (const bad of [null, 5, 'text', true, { stat: 'dead' }] as never[]) {
            const error = await rejects((async () => verb(bad))(), 'INVALID_OPTION')
            assert.match(error.message, /\.$/)
          }
        }
        assert.deepEqual(await everything(holdfast), before)
      }),
    )

    test(
      'requeueAll accepts only true or false as dryRun, and only text that an error can contain',
      inWorld(async ({ holdfast }) => {
        const id = await deadJob(holdfast, 'mail')
        for (const dryRun of ['yes', 1, null] as never[]) {
          await rejects(holdfast.requeueAll({ queue: 'mail' }, { dryRun }), 'INVALID_OPTION', { option: 'dryRun' })
        }
        for (const error of ['', 'nul\0', '\ud800', 5, {}, Object.create(null)] as never[]) {
          await rejects(holdfast.requeueAll({ error }), 'INVALID_OPTION', { option: 'error' })
        }
        assert.equal(await stateOf(holdfast, id), 'dead')
      }),
    )

    test(
      'a signal that is no AbortSignal is refused before the call waits',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { delay: '1h' })
        for (const signal of [null, 5, {}, 'stop'] as never[]) {
          await rejects(holdfast.result(id, { timeout: 1, signal }), 'INVALID_OPTION', { option: 'signal' })
          await rejects(holdfast.claim(['mail'], { wait: 1, signal }), 'INVALID_OPTION', { option: 'signal' })
        }
        await rejects(holdfast.result(id, { timeout: 5 }), 'WAIT_TIMEOUT') // by now the waits above would be over
      }),
    )

    test(
      'a backoff that is not made of numbers is refused when the queue is defined, not when a job is retried',
      inWorld(async ({ holdfast }) => {
        for (const bad of ['2', 2n, [2], true, Symbol('2'), Number.NaN, 101] as never[]) {
          assert.throws(() => holdfast.queue('mail', { backoff: { factor: bad } }), { code: 'INVALID_OPTION' })
          assert.throws(() => holdfast.queue('mail', { backoff: { jitter: bad } }), { code: 'INVALID_OPTION' })
        }
        for (const queue of [null, 5, {}, 'a b', { name: 'a b' }] as never[]) {
          assert.throws(() => holdfast.queue('mail', { onDead: { queue } }), { code: 'INVALID_NAME' })
        }
      }),
    )

    test(
      'an object that only resembles a definition, or a hole in a list, is refused',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const before = await everything(holdfast)
        const hole = Array(1) as never[]
        for (const fake of [{ payloadSchema: null }, { payloadSchema: null, name: 'mail' }, undefined, 5] as never[]) {
          assert.throws(() => holdfast.queue(fake), { code: 'INVALID_NAME' })
          await rejects(holdfast.claim([fake]), 'INVALID_NAME')
          await rejects(holdfast.cancel(id, { effects: { enqueue: [{ queue: fake }] } }), 'INVALID_NAME')
        }
        await rejects(holdfast.claim(hole), 'INVALID_NAME')
        await rejects(holdfast.deleteAll({ queue: 'mail', state: hole }), 'INVALID_OPTION')
        await rejects(holdfast.queue('mail').enqueueMany(hole), 'INVALID_OPTION')
        for (const effects of [{ enqueue: hole }, { put: hole }, { delete: hole }, { put: {} }, { delete: 'k' }]) {
          await rejects(holdfast.cancel(id, { effects: effects as never }), 'INVALID_OPTION')
        }
        assert.deepEqual(await everything(holdfast), before)
      }),
    )

    test(
      'effects of a wrong type are refused with an error that says so, and the lease is as it was',
      inWorld(async ({ holdfast }) => {
        for (const bad of [
          { enqeue: [] },
          { put: 5 },
          'text',
          5,
          { enqueue: [null] },
          { delete: [5] },
          null,
        ] as never[]) {
          await holdfast.queue('mail').enqueue(1)
          const lease = await claimOne(holdfast, 'mail')
          await rejects(lease.done(1, bad), 'INVALID_OPTION')
          await rejects(lease.dead(new Error('no'), bad), 'INVALID_OPTION')
          assert.equal((await readJob(holdfast, lease.job.id)).state, 'running')
          assert.equal((await lease.done(1)).state, 'done')
        }
      }),
    )

    test(
      'a queue name is 1 to 255 of A-Z a-z 0-9 . _ : -',
      inWorld(async ({ holdfast }) => {
        for (const name of ['', 'a b', 'ü', 'a/b', "a'b", 'x'.repeat(256), 'a\n', 5, null, undefined]) {
          const claim = async () => holdfast.claim([name as string])
          await rejects(claim(), 'INVALID_NAME')
          await rejects((async () => holdfast.queue(name as string).enqueue(1))(), 'INVALID_NAME')
        }
        for (const name of ['x'.repeat(255), 'AZaz09._:-', '-', '__proto__', 'constructor']) {
          await holdfast.queue(name).enqueue(name)
          assert.equal((await claimOne(holdfast, name)).job.payload, name)
          assert.equal((await holdfast.stats(name)).running, 1)
        }
      }),
    )

    test(
      'an id is a UUID, whatever its case',
      inWorld(async ({ holdfast }) => {
        const id = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'
        for (const bad of ['', 'x', `${id}0`, id.slice(1), `{${id}}`, 5, null]) {
          await rejects(holdfast.queue('mail').enqueue(1, { id: bad as string }), 'INVALID_ID')
          await rejects(holdfast.job(bad as string), 'INVALID_ID')
          await rejects(holdfast.cancel(bad as string), 'INVALID_ID')
          await rejects(holdfast.requeue(bad as string), 'INVALID_ID')
        }
        assert.equal((await holdfast.queue('mail').enqueue(1, { id })).id, id.toLowerCase())
        assert.equal((await readJob(holdfast, id)).id, id.toLowerCase())
      }),
    )

    test(
      'a claim with bad options is refused and takes nothing',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const bad: readonly Record<string, unknown>[] = [
          ...[0, -1, 1.5, 10_001, '1'].map((max) => ({ max })),
          ...[0, -1, '8d', 'x', Number.NaN].map((lease) => ({ lease })),
          ...[-1, 'x'].map((wait) => ({ wait })),
        ]
        for (const options of bad) await rejects(holdfast.claim(['mail'], options), 'INVALID_OPTION')
        for (const worker of ['', 'x'.repeat(256), 'nul\0', 5]) {
          await rejects(holdfast.claim(['mail'], { worker: worker as string }), 'INVALID_NAME')
        }
        await rejects(holdfast.claim([]), 'INVALID_OPTION')
        assert.equal(await stateOf(holdfast, id), 'ready')
      }),
    )

    test(
      'a settlement with a bad argument rejects its promise and leaves the lease unchanged',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        const before = await everything(holdfast)
        for (const bad of ['soon' as never, -1, Number.NaN]) {
          await rejects(lease.snooze(bad), 'INVALID_OPTION')
          await rejects(lease.renew(bad), 'INVALID_OPTION')
          await rejects(lease.retry(new Error('no'), { delay: bad }), 'INVALID_OPTION')
        }
        assert.deepEqual(await everything(holdfast), before)
        assert.equal((await lease.done()).state, 'done')
      }),
    )

    test(
      'bad arguments of batches, items and inboxes are refused; a deleted batch has no items to list',
      inWorld(async ({ holdfast }) => {
        const batch = await holdfast.batch({ name: 'b' }, [{ queue: 'mail', payload: 1 }])
        const places = [['mail'], [3, 0], [1, 2, 'x', 4], [-1.5], {}, null]
        const marks = places.map((place) => Buffer.from(JSON.stringify(place)).toString('base64url'))
        for (const after of ['nonsense', '', '-1', '1e9', ...marks]) {
          await rejects(holdfast.batches({ after }), 'INVALID_OPTION', { option: 'after' })
          await rejects(batch.itemsPage({ after }), 'INVALID_OPTION', { option: 'after' })
        }
        for (const limit of [0, -1, 1.5, 1_001]) {
          await rejects(holdfast.batches({ limit }), 'INVALID_OPTION')
          await rejects(batch.itemsPage({ limit }), 'INVALID_OPTION')
          await rejects(holdfast.inbox('in').page({ limit }), 'INVALID_OPTION')
        }
        await rejects(batch.itemsPage({ state: 'lost' as never }), 'INVALID_OPTION')
        await rejects(holdfast.batches({ state: 'lost' as never }), 'INVALID_OPTION')
        await rejects(batch.pause({ by: 7 as never }), 'INVALID_OPTION')
        await rejects(batch.cancel({ reason: 'x'.repeat(2_000) }), 'INVALID_OPTION')
        await batch.delete()
        await rejects(batch.itemsPage(), 'BATCH_NOT_FOUND')
        await rejects(Array.fromAsync(batch.results()), 'BATCH_NOT_FOUND')
        for (const verb of ['pause', 'resume', 'cancel', 'retryFailed', 'close', 'delete', 'progress'] as const) {
          await rejects(batch[verb](), 'BATCH_NOT_FOUND')
        }
      }),
    )

    test(
      'a page with a bad size, state, queue or cursor is refused',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueue(1)
        for (const limit of [0, -1, 1.5, 1_001]) await rejects(holdfast.jobs({ limit }), 'INVALID_OPTION')
        await rejects(holdfast.jobs({ state: 'lost' as never }), 'INVALID_OPTION')
        await rejects(holdfast.jobs({ queue: 'a b' }), 'INVALID_NAME')
        for (const place of [
          ['mail'],
          ['mail', 1],
          ['mail', 1, -1],
          ['mail', 9, 0, 0],
          ['mail', 1, 2 ** 40, 0, 0, 0],
          ['mail', 6, '1:a\0', 0, 0],
          {},
        ]) {
          const after = Buffer.from(JSON.stringify(place)).toString('base64url')
          await rejects(holdfast.jobs({ after }), 'INVALID_OPTION')
        }
        await rejects(holdfast.jobs({ after: 'nonsense' }), 'INVALID_OPTION')
        await rejects(holdfast.stats('a b'), 'INVALID_NAME')
        await rejects(holdfast.requeueAll({ queue: 'a b' }), 'INVALID_NAME')
        await rejects(holdfast.requeueAll({ ended: { since: new Date('nonsense') } }), 'INVALID_OPTION')
      }),
    )
  })
}
