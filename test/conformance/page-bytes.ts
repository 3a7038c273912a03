// Pages are bounded in bytes, not only in entries: a page of large entries ends early, and its cursor continues.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { bounds } from '../../src/job/bounds.ts'
import type { JobOutcome, JobRecord, JobState } from '../../src/job/record.ts'
import type { ChangesQuery, JobsPage, Store } from '../../src/store/store.ts'
import { claimOne, wholePage } from './expect.ts'
import type { InWorld, StoreUnderTest } from './world.ts'

const large = 'x'.repeat(900_000)
const tooLarge = JSON.stringify('x'.repeat(bounds.pageBytes + 1))
const many = Math.ceil(bounds.pageBytes / large.length) + 2

export function pageBytesTests(inWorld: InWorld, { canBeDamaged }: StoreUnderTest): void {
  describe('pages of large entries', () => {
    jobTests(inWorld)
    otherTests(inWorld)
    if (canBeDamaged) tooLargeTests(inWorld)
  })
}

function jobTests(inWorld: InWorld): void {
  test(
    'a page of large waiting jobs ends early, and the pages have every job once',
    inWorld(async ({ holdfast, store }) => {
      const queue = holdfast.queue<{ large: string }>('large', { limit: { concurrency: 1, key: 'key' } })
      const ids: string[] = []
      for (const options of [{ limitKey: null }, { limitKey: null, delay: '1h' }, { limitKey: 'k' }] as const) {
        const jobs = Array.from({ length: many }, () => ({ payload: { large }, ...options }))
        ids.push(...(await queue.enqueueMany(jobs)).map(({ id }) => id))
      }
      const opened = await store()
      const read = (state: JobState | null) =>
        pagesOf((after) =>
          wholePage(opened, { filter: state === null ? {} : { states: [state] }, limit: bounds.pageMax, after }),
        )
      const pages = await read(null)
      bounded(pages)
      assert.deepEqual(idsOf(pages).sort(), [...ids].sort())
      for (const [state, count] of [
        ['ready', many + 1],
        ['scheduled', many],
        ['held', many - 1],
      ] as const) {
        const some = await read(state)
        bounded(some)
        assert.ok(some.length > 1, `${state}: more than one page`)
        assert.deepEqual([idsOf(some).length, new Set(idsOf(some)).size], [count, count], state)
      }
    }),
  )

  test(
    'a page of large running and ended jobs ends early: results and headers count too',
    inWorld(async ({ holdfast, store }) => {
      const queue = holdfast.queue('large')
      const ids: string[] = []
      for (let i = 0; i < many; i++) ids.push((await queue.enqueue({ large })).id)
      const opened = await store()
      const read = (state: 'running' | 'done') =>
        pagesOf((after) =>
          wholePage(opened, { filter: { queues: ['large'], states: [state] }, limit: bounds.pageMax, after }),
        )
      const leases = []
      for (let i = 0; i < many; i++) leases.push(await claimOne(holdfast, 'large'))
      const running = await read('running')
      bounded(running)
      assert.deepEqual([running.length, idsOf(running).sort()], [2, [...ids].sort()])
      for (const lease of leases) await lease.done(large)
      const done = await read('done')
      bounded(done)
      assert.deepEqual([done.length, idsOf(done).sort()], [3, [...ids].sort()])
    }),
  )

  test(
    'outcomes of large results are answered in parts, each below the bound, and callers that wait get all of them',
    inWorld(async ({ holdfast, store }) => {
      const queue = holdfast.queue('large')
      const payloads = Array.from({ length: 20 }, (_, n) => ({ payload: n }))
      const ids = (await queue.enqueueMany(payloads)).map(({ id }) => id)
      const live = (await queue.enqueue('live', { delay: '1h' })).id
      const results = ids.map((id) => holdfast.result(id, { timeout: '5m' }))
      const leases = await holdfast.claim(['large'], { max: ids.length })
      const endOf = (n: unknown) => `${n}`.padEnd(bounds.resultBytes - 2, 'x')
      await Promise.all(leases.map((lease) => lease.done(endOf(lease.job.payload))))
      const got = await Promise.all(results)
      assert.deepEqual(
        got.map((result) => [Number.parseInt(result as string, 10), (result as string).length]),
        ids.map((_, n) => [n, bounds.resultBytes - 2]),
      )
      const opened = await store()
      const unknown = '01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80'
      let rest: readonly string[] = [unknown, live, ...ids, live, unknown]
      const seen = []
      for (let parts = 0; rest.length > 0; parts++) {
        const part = await opened.outcomes(rest)
        const bytes = part.reduce((sum, each) => sum + sizeOf(each), 0)
        assert.ok(part.length > 0 && bytes <= bounds.pageBytes, `part ${parts} has ${part.length} with ${bytes} bytes`)
        seen.push(...part.map((each) => (each === null || each === 'live' ? each : each.state)))
        rest = rest.slice(part.length)
      }
      assert.deepEqual(seen, [null, 'live', ...ids.map(() => 'done'), 'live', null])
    }),
  )

  test(
    'a page of large items of a batch ends early, with and without a filter',
    inWorld(async ({ holdfast, store }) => {
      const items = Array.from({ length: many }, () => ({ queue: 'large', payload: { large } }))
      const batch = await holdfast.batch({ name: 'large', concurrency: many }, items)
      const opened = await store()
      const read = (state: 'ready' | 'done' | null) =>
        pagesOf((after) =>
          opened.items({ batch: batch.id, state, outcome: null, warning: null, limit: bounds.pageMax, after }),
        )
      for (const state of [null, 'ready'] as const) {
        const pages = await read(state)
        bounded(pages)
        assert.deepEqual([pages.length > 1, new Set(idsOf(pages)).size, idsOf(pages).length], [true, many, many])
      }
      for (let i = 0; i < many; i++) await (await claimOne(holdfast, 'large')).done(large)
      for (const state of [null, 'done'] as const) {
        const pages = await read(state)
        bounded(pages)
        assert.deepEqual([pages.length > 2, new Set(idsOf(pages)).size, idsOf(pages).length], [true, many, many])
      }
    }),
  )
}

function otherTests(inWorld: InWorld): void {
  test(
    'a page of large key-value entries ends early, and a scan has every entry once',
    inWorld(async ({ holdfast, store }) => {
      const value = large.slice(0, 250_000)
      const count = Math.ceil(bounds.pageBytes / value.length) + 2
      const keys = Array.from({ length: count }, (_, i) => `k${String(i).padStart(4, '0')}`)
      for (const key of keys) await holdfast.kv.put(key, value)
      const opened = await store()
      const first = await opened.kvScan({ prefix: 'k', limit: bounds.pageMax, after: null })
      assert.ok(first.next !== null && first.entries.length < count)
      assert.ok(first.entries.reduce((sum, entry) => sum + entry.value.length, 0) <= bounds.pageBytes)
      const scanned = await Array.fromAsync(holdfast.kv.scan('k'))
      assert.deepEqual(
        scanned.map(({ key }) => key),
        keys,
      )
    }),
  )

  test(
    'a page of batches with large completions ends early, and the pages have every batch once',
    inWorld(async ({ holdfast, store }) => {
      const ids: string[] = []
      const onComplete = { queue: 'completed', payload: { large } }
      for (let i = 0; i < many; i++) ids.push((await holdfast.batch({ name: 'large', onComplete, open: true })).id)
      const opened = await store()
      const pages = await pagesOf((after) => opened.batches({ state: null, limit: bounds.pageMax, after }))
      assert.equal(pages.length, 2)
      for (const { batches } of pages) assert.ok(JSON.stringify(batches).length <= bounds.pageBytes + 1024 * many)
      assert.deepEqual(
        pages.flatMap(({ batches }) => batches.map(({ id }) => id)),
        ids.reverse(),
      )
    }),
  )

  test(
    'a page of changes is bounded also inside the change of many jobs, and continues there',
    inWorld(async ({ holdfast, store }) => {
      const opened = await store()
      const mark = await opened.watch()
      const jobs = Array.from({ length: bounds.enqueueMax }, (_, payload) => ({ payload }))
      const ids = (await holdfast.queue('many').enqueueMany(jobs)).map(({ id }) => id)
      ids.push((await holdfast.queue('many').enqueue(1)).id)
      const wanted = ids.slice(bounds.changesPage - 2, bounds.changesPage + 2)
      const read = (filter: Partial<ChangesQuery>) => allChanges(opened, mark, filter)
      const all = await read({})
      assert.ok(all.pages.every((changes) => changes.length <= bounds.changesPage))
      assert.ok(all.pages.length > 2)
      assert.deepEqual(all.pages.flat().sort(), [...ids].sort())
      assert.deepEqual((await read({ ids: wanted })).pages.flat().sort(), [...wanted].sort())
    }),
  )
}

function tooLargeTests(inWorld: InWorld): void {
  test(
    'an entry that is larger than the bound comes alone on its page',
    inWorld(async ({ holdfast, store, overwrite }) => {
      const jobs = Array.from({ length: 3 }, (_, payload) => ({ payload }))
      const ids = (await holdfast.queue('mail').enqueueMany(jobs)).map(({ id }) => id)
      const keys = ['a', 'b', 'c']
      for (const key of keys) await holdfast.kv.put(key, 1)
      await overwrite?.('payload', ids[1] as string, tooLarge)
      await overwrite?.('value', 'b', tooLarge)
      const opened = await store()
      const pages = await pagesOf((after) => wholePage(opened, { filter: { queues: ['mail'] }, limit: 10, after }))
      assert.deepEqual(
        pages.map((page) => idsOf([page])),
        ids.map((id) => [id]),
      )
      const scans = await pagesOf((after) => opened.kvScan({ prefix: '', limit: 10, after }))
      assert.deepEqual(
        scans.map(({ entries }) => entries.map(({ key }) => key)),
        keys.map((key) => [key]),
      )
    }),
  )
}

async function pagesOf<Page extends { readonly next: string | null }>(
  read: (after: string | null) => Promise<Page>,
): Promise<Page[]> {
  const pages: Page[] = []
  for (let after: string | null = null; pages.length === 0 || after !== null; after = pages.at(-1)?.next ?? null)
    pages.push(await read(after))
  return pages
}

async function allChanges(store: Store, from: string, filter: Partial<ChangesQuery>) {
  const pages: string[][] = []
  for (let after = from, more = true; more; ) {
    const page = await store.changes({ after, queue: null, states: null, ids: null, ...filter })
    pages.push(page.changes.map(({ id }) => id))
    ;({ next: after, more } = page)
  }
  return { pages }
}

function idsOf(pages: readonly JobsPage[]): string[] {
  return pages.flatMap(({ jobs }) => jobs.map(({ id }) => id))
}

function bounded(pages: readonly JobsPage[]): void {
  for (const { jobs } of pages) {
    const bytes = jobs.reduce((sum, job: JobRecord) => sum + job.payload.length + (job.result?.length ?? 0), 0)
    assert.ok(bytes <= bounds.pageBytes, `a page has ${bytes} bytes`)
  }
}

function sizeOf(outcome: JobOutcome | 'live' | null): number {
  return outcome === null || outcome === 'live' ? 0 : (outcome.result ?? '').length
}
