import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Revival } from '../../src/index.ts'
import { heard } from './expect.ts'
import type { InWorld } from './world.ts'

export function reaperTests(inWorld: InWorld): void {
  describe('reapers', () => {
    test(
      'each row that was left behind gets a job, and a row with a job gets no second one',
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
      'of the processes with the same reaper one searches in each interval',
      inWorld(async ({ holdfast, clock, another }) => {
        const clients = [holdfast, await another(), await another()]
        let searches = 0
        const find = () => {
          searches += 1
          return []
        }
        for (const client of clients) client.reaper('orders', { every: '50ms', find, enqueue: toJob })
        const soon = () => new Promise((resolve) => setTimeout(resolve, 150))
        /** Exactly so many searches, also after every process has checked. */
        const expectSearches = async (count: number, why: string) => {
          while (searches < count) await soon()
          await soon()
          assert.equal(searches, count, why)
        }
        await expectSearches(1, 'the clock does not move, so the interval does not end')
        await clock.advance(50)
        await expectSearches(2, 'the next interval')
        await clock.advance(-1_000)
        await expectSearches(3, 'a clock that was set back does not keep the reaper from searching')
        await clock.advance(50)
        await expectSearches(4, 'the next interval after that')
      }),
    )

    test(
      'a search that fails or hangs emits an event, and the reaper searches again',
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
      'after a stop it searches no more; closing the client stops it too, also during a search',
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
