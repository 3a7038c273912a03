import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import { defineQueue } from '../../src/definition.ts'
import type { EnqueueOptions } from '../../src/prepare.ts'
import { allJobs, claimOne, everything, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

const mebibyte = 1024 * 1024
const circular: Record<string, unknown> = {}
circular['self'] = circular
class Point {
  readonly x = 1
}

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
  'bottomless depth': Array.from({ length: 600 }).reduce((inner) => [inner], 1),
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
  { delya: '5m' },
]

export function badInputTests(inWorld: InWorld): void {
  describe('bad input', () => {
    for (const [what, payload] of Object.entries(badPayloads)) {
      test(
        `a payload with ${what} is refused with the path to it`,
        inWorld(async ({ holdfast }) => {
          const error = await rejects(holdfast.queue('mail').enqueue(payload), 'INVALID_PAYLOAD')
          assert.match(String(error.facts['path']), /^payload/)
          assert.deepEqual(await allJobs(holdfast), [])
        }),
      )
    }

    test(
      'odd but honest payloads come back as they were',
      inWorld(async ({ holdfast }) => {
        const odd: unknown[] = [
          ...['', 'nul \0', 'half \ud800', '\u2028', '😀', "'; drop table job; --", '"', '\\u0000'],
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
      'no payload at all is null',
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
      'a payload that does not fit its schema is refused with what is wrong',
      inWorld(async ({ holdfast }) => {
        const queue = defineQueue('mail', { payload: z.object({ to: z.string() }) })
        const error = await rejects(holdfast.queue(queue).enqueue({ to: 5 } as never), 'INVALID_PAYLOAD')
        assert.deepEqual((error.facts['issues'] as { path: string }[])[0]?.path, 'to')
        assert.deepEqual(await allJobs(holdfast), [])
      }),
    )

    test(
      'an option that is out of bounds, or unknown, is refused and named',
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
      'a settlement with a bad argument is refused as a promise and leaves the lease as it is',
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
      'a page with a bad size, state, queue or place to go on from is refused',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueue(1)
        for (const limit of [0, -1, 1.5, 1_001]) await rejects(holdfast.jobs({ limit }), 'INVALID_OPTION')
        await rejects(holdfast.jobs({ state: 'lost' as never }), 'INVALID_OPTION')
        await rejects(holdfast.jobs({ queue: 'a b' }), 'INVALID_NAME')
        await rejects(holdfast.jobs({ after: 'nonsense' }), 'INVALID_OPTION')
        await rejects(holdfast.stats('a b'), 'INVALID_NAME')
        await rejects(holdfast.requeueAll({ queue: 'a b' }), 'INVALID_NAME')
        await rejects(holdfast.requeueAll({ diedSince: new Date('nonsense') }), 'INVALID_OPTION')
      }),
    )
  })
}
