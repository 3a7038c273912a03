import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { claimOne, hour, minute, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

export function kvTests(inWorld: InWorld): void {
  describe('key-value', () => {
    test(
      'every client reads what was put, and null is a value',
      inWorld(async ({ holdfast, another }) => {
        const other = await another()
        assert.equal(await other.kv.get('k'), null)
        for (const value of [{ a: [1, 'ü', null, true] }, 'text', 0, false, [], null]) {
          const version = await holdfast.kv.put('k', value)
          assert.deepEqual(await other.kv.get('k'), { value, version, expiresAt: null })
        }
      }),
    )

    test(
      'delete says whether there was anything to delete',
      inWorld(async ({ holdfast }) => {
        await holdfast.kv.put('k', 1)
        assert.equal(await holdfast.kv.delete('k'), true)
        assert.equal(await holdfast.kv.get('k'), null)
        assert.equal(await holdfast.kv.delete('k'), false)
      }),
    )

    test(
      'a version differs after every write, also after a delete and after the key expired',
      inWorld(async ({ holdfast, clock }) => {
        const versions = [await holdfast.kv.put('k', 1), await holdfast.kv.put('k', 1)]
        await holdfast.kv.delete('k')
        versions.push(await holdfast.kv.put('k', 1, { ttl: '1s' }))
        await clock.advance(minute)
        await holdfast.sweep()
        versions.push(await holdfast.kv.put('k', 1))
        versions.push((await holdfast.kv.compareAndSet('k', versions.at(-1) ?? null, 1)).version ?? -1)
        assert.equal(new Set(versions).size, 5, `${versions}`)
      }),
    )

    test(
      'compare-and-set writes only over the version it names, or if there is no entry',
      inWorld(async ({ holdfast }) => {
        const created = await holdfast.kv.compareAndSet('k', null, 'one')
        assert.equal(created.applied, true)
        const { version } = created
        assert.deepEqual(await holdfast.kv.compareAndSet('k', null, 'two'), { applied: false, version })
        const stale = await holdfast.kv.compareAndSet('k', (version ?? 0) + 1_000, 'two')
        assert.deepEqual(stale, { applied: false, version })
        assert.deepEqual(await holdfast.kv.get('k'), { value: 'one', version, expiresAt: null })
        const next = await holdfast.kv.compareAndSet('k', version, 'two', { ttl: '1m' })
        assert.equal(next.applied, true)
        const entry = await holdfast.kv.get('k')
        assert.deepEqual([entry?.value, entry?.version], ['two', next.version])
        assert.deepEqual(await holdfast.kv.compareAndSet('absent', 7, 1), { applied: false, version: null })
        assert.equal(await holdfast.kv.get('absent'), null)
      }),
    )

    test(
      'compare-and-delete deletes only the version it names',
      inWorld(async ({ holdfast, clock }) => {
        const { kv } = holdfast
        const old = await kv.put('k', 1)
        const version = await kv.put('k', 2)
        assert.deepEqual(await kv.compareAndDelete('k', old), { applied: false, version })
        assert.equal((await kv.get('k'))?.value, 2)
        assert.deepEqual(await kv.compareAndDelete('k', version), { applied: true, version: null })
        assert.equal(await kv.get('k'), null)
        assert.deepEqual(await kv.compareAndDelete('k', version), { applied: false, version: null })
        const brief = await kv.put('k', 3, { ttl: '1m' })
        await clock.advance(minute)
        assert.deepEqual(await kv.compareAndDelete('k', brief), { applied: false, version: null })
        for (const bad of [null, undefined, -1, 1.5, '7'])
          await rejects(kv.compareAndDelete('k', bad as number), 'INVALID_OPTION', { option: 'version' })
      }),
    )

    test(
      'of many compare-and-deletes and compare-and-sets of the same version one wins',
      inWorld(async ({ holdfast, another }) => {
        const clients = [holdfast, await another()]
        const version = await holdfast.kv.put('k', 'start')
        const answers = await Promise.all(
          Array.from({ length: 40 }, (_, n) => {
            const { kv } = clients[n % 2] as typeof holdfast
            return n % 4 < 2 ? kv.compareAndDelete('k', version) : kv.compareAndSet('k', version, n)
          }),
        )
        const winners = answers.flatMap(({ applied }, n) => (applied ? [n] : []))
        assert.equal(winners.length, 1)
        const [winner = 0] = winners
        assert.deepEqual((await holdfast.kv.get('k'))?.value ?? null, winner % 4 < 2 ? null : winner)
      }),
    )

    test(
      'of many compare-and-sets of the same version one wins',
      inWorld(async ({ holdfast, another }) => {
        const clients = [holdfast, await another()]
        const version = await holdfast.kv.put('k', 'start')
        const answers = await Promise.all(
          Array.from({ length: 40 }, (_, n) => clients[n % 2]?.kv.compareAndSet('k', version, n)),
        )
        const winners = answers.flatMap((answer, n) => (answer?.applied ? [n] : []))
        assert.equal(winners.length, 1)
        assert.equal((await holdfast.kv.get('k'))?.value, winners[0])
      }),
    )

    test(
      'an entry no longer exists when its time to live is over, for every verb',
      inWorld(async ({ holdfast, clock }) => {
        for (const key of ['get', 'delete', 'cas', 'scan']) await holdfast.kv.put(key, 1, { ttl: '1m' })
        const version = await holdfast.kv.put('kept', 1)
        assert.equal((await holdfast.kv.get('get'))?.expiresAt?.getTime(), clock.now() + minute)
        await clock.advance(minute - 1)
        assert.equal((await holdfast.kv.get('get'))?.value, 1)
        await clock.advance(2)
        assert.equal(await holdfast.kv.get('get'), null)
        assert.equal(await holdfast.kv.delete('delete'), false)
        assert.deepEqual(
          (await Array.fromAsync(holdfast.kv.scan(''))).map(({ key }) => key),
          ['kept'],
        )
        assert.equal((await holdfast.kv.compareAndSet('cas', null, 2)).applied, true)
        await holdfast.sweep()
        assert.equal((await holdfast.kv.get('cas'))?.value, 2)
        assert.deepEqual(await holdfast.kv.get('kept'), { value: 1, version, expiresAt: null })
      }),
    )

    test(
      'a put without a time to live keeps the entry, and expired entries are pruned',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.kv.put('k', 1, { ttl: '1m' })
        await holdfast.kv.put('k', 2)
        await holdfast.kv.put('swept', 1, { ttl: '1m' })
        await clock.advance(hour)
        assert.equal((await holdfast.sweep()).pruned, 1)
        assert.deepEqual([(await holdfast.kv.get('k'))?.value, await holdfast.kv.get('swept')], [2, null])
      }),
    )

    test(
      'a scan gives every key with the prefix, in order, and no other',
      inWorld(async ({ holdfast }) => {
        const keys = [
          'a',
          'a%',
          'a%1',
          'a/1',
          'a/10',
          'a/2',
          'a_',
          'ab',
          'b',
          'A/1',
          'ä/1',
          '😀/1',
          '😀/2',
          '\u{10ffff}',
        ]
        for (const key of keys) await holdfast.kv.put(key, key)
        const scan = async (prefix: string) => (await Array.fromAsync(holdfast.kv.scan(prefix))).map(({ key }) => key)
        assert.deepEqual(await scan('a/'), ['a/1', 'a/10', 'a/2'])
        assert.deepEqual(await scan('a%'), ['a%', 'a%1'])
        assert.deepEqual(await scan('a_'), ['a_'])
        assert.deepEqual(await scan('😀'), ['😀/1', '😀/2'])
        assert.deepEqual(await scan('\u{10ffff}'), ['\u{10ffff}'])
        assert.deepEqual(await scan('c'), [])
        assert.deepEqual(
          await scan(''),
          [...keys].sort((x, y) => Buffer.compare(Buffer.from(x), Buffer.from(y))),
        )
        const [entry] = await Array.fromAsync(holdfast.kv.scan('ab'))
        assert.deepEqual(entry, { key: 'ab', ...(await holdfast.kv.get('ab')) })
      }),
    )

    test(
      'a scan of thousands has every key once',
      inWorld(async ({ holdfast }) => {
        const keys = Array.from({ length: 2_345 }, (_, n) => `k${String(n).padStart(5, '0')}`)
        await Promise.all(keys.map((key) => holdfast.kv.put(key, 1)))
        const scanned = (await Array.fromAsync(holdfast.kv.scan('k'))).map(({ key }) => key)
        assert.deepEqual(scanned, keys)
      }),
    )

    test(
      'values up to 256 KiB are accepted; larger ones, and values that JSON cannot represent, are refused',
      inWorld(async ({ holdfast }) => {
        const largest = 'x'.repeat(256 * 1024 - 2)
        await holdfast.kv.put('k', largest)
        assert.equal((await holdfast.kv.get('k'))?.value, largest)
        await rejects(holdfast.kv.put('k', `${largest}x`), 'KV_VALUE_TOO_LARGE', { maxBytes: 256 * 1024 })
        await rejects(holdfast.kv.compareAndSet('k', null, '漢'.repeat(90_000)), 'KV_VALUE_TOO_LARGE')
        await rejects(holdfast.kv.put('k', new Map()), 'INVALID_PAYLOAD')
        assert.equal((await holdfast.kv.get('k'))?.value, largest)
      }),
    )

    test(
      'a bad key, version or time to live is refused',
      inWorld(async ({ holdfast }) => {
        const longest = 'ü'.repeat(256)
        await holdfast.kv.put(longest, 1)
        assert.equal((await holdfast.kv.get(longest))?.value, 1)
        for (const key of ['', `${longest}x`, 'nul\0', 'half\ud800', 7 as never]) {
          await rejects(holdfast.kv.put(key, 1), 'INVALID_OPTION')
          await rejects(holdfast.kv.get(key), 'INVALID_OPTION')
          await rejects(holdfast.kv.delete(key), 'INVALID_OPTION')
        }
        await rejects(holdfast.kv.compareAndSet('k', 1.5, 1), 'INVALID_OPTION')
        for (const ttl of [0, -1, 'soon' as never, Number.NaN]) {
          await rejects(holdfast.kv.put('k', 1, { ttl }), 'INVALID_OPTION')
        }
        await rejects(Array.fromAsync(holdfast.kv.scan('nul\0')), 'INVALID_OPTION')
      }),
    )

    test(
      'entries of Holdfast itself cannot be written, and a scan passes them over unless its prefix names them',
      inWorld(async ({ holdfast }) => {
        await holdfast.gate('shop').close('maintenance')
        await Promise.all(['a', 'holdfast', 'holdfastly', 'holdfasz', 'z'].map((key) => holdfast.kv.put(key, 1)))
        const keysIn = async (prefix: string) => (await Array.fromAsync(holdfast.kv.scan(prefix))).map(({ key }) => key)
        assert.deepEqual(await keysIn(''), ['a', 'holdfast', 'holdfastly', 'holdfasz', 'z'])
        assert.deepEqual(await keysIn('hold'), ['holdfast', 'holdfastly', 'holdfasz'])
        assert.deepEqual(await keysIn('holdfast.'), ['holdfast.gate.shop'])
        const key = 'holdfast.gate.shop'
        await rejects(holdfast.kv.put(key, 1), 'INVALID_OPTION')
        await rejects(holdfast.kv.compareAndSet(key, null, 1), 'INVALID_OPTION')
        for (const effects of [{ put: [{ key, value: 1 }] }, { delete: [key] }]) {
          await holdfast.queue('mail').enqueue(1)
          await rejects((await claimOne(holdfast, 'mail')).done(undefined, effects), 'INVALID_OPTION')
        }
        assert.equal((await holdfast.gate('shop').state()).open, false)
        assert.equal(await holdfast.kv.delete(key), true, 'a repair')
        assert.equal((await holdfast.gate('shop').state()).open, true)
      }),
    )
  })
}
