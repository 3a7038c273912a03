import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Revival } from '../../src/index.ts'
import { heard } from './expect.ts'
import type { InWorld } from './world.ts'

export function reaperTests(inWorld: InWorld): void {
  describe('reapers', () => {
    test(
      'rows that were left behind get a job each, and none that has one gets a second',
      inWorld(async ({ holdfast, another }) => {
        const options = { every: '1h', find: () => [{ id: 1 }, { id: 2 }], enqueue: toJob } as const
        const reaper = holdfast.reaper('orders', options)
        await heard(holdfast, 'reaper.ran')
        assert.equal((await holdfast.stats('orders')).ready, 2)
        const [lease] = await holdfast.claim(['orders'])
        assert.deepEqual(await reaper.run(), { found: 2, revived: 0, duplicates: 2, failed: 0 })
        await lease?.done()
        const other = (await another()).reaper('orders', options)
        assert.deepEqual(await other.run(), { found: 2, revived: 1, duplicates: 1, failed: 0 })
      }),
    )

    test(
      'in every process it may run, and one of them looks in each interval',
      inWorld(async ({ holdfast, clock, another }) => {
        const clients = [holdfast, await another(), await another()]
        let searches = 0
        const find = () => {
          searches += 1
          return []
        }
        for (const client of clients) client.reaper('orders', { every: '50ms', find, enqueue: toJob })
        const soon = () => new Promise((resolve) => setTimeout(resolve, 150))
        /** That many, and not one more when the others have looked, too. */
        const become = async (count: number, why: string) => {
          while (searches < count) await soon()
          await soon()
          assert.equal(searches, count, why)
        }
        await become(1, 'the clock stands still, and so does the interval')
        await clock.advance(50)
        await become(2, 'the next interval')
        await clock.advance(-1_000)
        await become(3, 'a clock that was set back keeps nobody from looking')
        await clock.advance(50)
        await become(4, 'and goes on from there')
      }),
    )

    test(
      'a search that fails or hangs is told, and it looks again',
      inWorld(async ({ holdfast, clock }) => {
        const errors: string[] = []
        holdfast.on('reaper.failed', ({ error }) => errors.push(error.message))
        let searches = 0
        const find = async () => {
          searches += 1
          if (searches === 1) throw new Error('no such table')
          if (searches === 2) await new Promise(() => {})
          return [{ id: 1 }]
        }
        const ran = heard(holdfast, 'reaper.ran')
        await using _ = holdfast.reaper('orders', { every: '50ms', timeout: '50ms', find, enqueue: toJob })
        const tick = setInterval(() => void clock.advance(50), 20)
        const [event] = await ran
        clearInterval(tick)
        assert.deepEqual(errors, ['no such table', 'The search took longer than 50 ms.'])
        assert.deepEqual([event?.reaper, event?.found, event?.revived], ['orders', 1, 1])
      }),
    )

    test(
      'a row that cannot be enqueued, or has no dedup key, fails alone',
      inWorld(async ({ holdfast }) => {
        const errors: string[] = []
        holdfast.on('reaper.failed', ({ error }) => errors.push(error.message))
        const enqueue = ({ id }: { id: number }) => {
          if (id === 1) throw new Error('no such order')
          if (id === 2) return { queue: 'orders', payload: id } as Revival
          if (id === 3) return null
          return toJob({ id })
        }
        const find = async function* () {
          for (let id = 1; id < 10; id++) yield { id }
        }
        const reaper = holdfast.reaper('orders', { every: '1h', find, enqueue, batch: 5 })
        await heard(holdfast, 'reaper.ran')
        assert.equal((await holdfast.stats('orders')).ready, 2)
        assert.match(errors[0] ?? '', /no such order/)
        assert.match(errors[1] ?? '', /dedup: \{ key \}/)
        assert.deepEqual(await reaper.run(), { found: 5, revived: 0, duplicates: 2, failed: 2 })
      }),
    )

    test(
      'stopped it looks no more, and closing the client stops it, also in the middle of a search',
      inWorld(async ({ another }) => {
        const client = await another()
        const { promise: searching, resolve } = Promise.withResolvers<AbortSignal>()
        const find = ({ signal }: { signal: AbortSignal }) => {
          resolve(signal)
          return new Promise<never[]>(() => {})
        }
        client.reaper('orders', { every: '1h', find, enqueue: toJob })
        const signal = await searching
        await client.close()
        assert.ok(signal.aborted)
        assert.throws(() => client.reaper('orders', { every: '1h', find, enqueue: toJob }), { code: 'CLOSED' })
      }),
    )

    test(
      'bad options are refused',
      inWorld(async ({ holdfast }) => {
        const good = { every: '1h', find: () => [], enqueue: toJob } as const
        const bad: object[] = [
          { ...good, every: 'often' },
          { ...good, every: 0 },
          { ...good, find: [] },
          { ...good, enqueue: undefined },
          { ...good, batch: 0 },
          { ...good, evry: 1 },
        ]
        const code = { code: 'INVALID_OPTION' }
        for (const options of bad) assert.throws(() => holdfast.reaper('orders', options as never), code)
        assert.throws(() => holdfast.reaper('a b', good), { code: 'INVALID_NAME' })
        const reaper = holdfast.reaper('orders', { ...good, find: () => Promise.reject(new Error('gone')) })
        await assert.rejects(reaper.run(), { message: 'gone' })
      }),
    )
  })
}

function toJob({ id }: { readonly id: number }): Revival {
  return { queue: 'orders', payload: { id }, dedup: { key: `order ${id}` } }
}
