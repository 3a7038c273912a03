// Finding jobs: one promise for each condition of a filter, then pages, sizes, bounded scans, and values that a careless
// statement would misread.
//
//   HOLDFAST_FIND_SEED=1 npm test -- test/conformance/sqlite-file.test.ts      replays seed 1
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import type { CountFilter, JobConditions, JobsFilter } from '../../src/client/filter.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { bounds } from '../../src/job/bounds.ts'
import { type JobFilter, matches } from '../../src/job/filter.ts'
import type { JobRecord, JobState } from '../../src/job/record.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import type { Store } from '../../src/store/store.ts'
import { allJobs, claimOne, hour, minute, rejects, wholePage } from './expect.ts'
import type { InWorld, StoreUnderTest, World } from './world.ts'

const seed = Number(process.env['HOLDFAST_FIND_SEED'] ?? Date.now() % 0x7fffffff)
const states: readonly JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']

export function findTests(inWorld: InWorld, { canBeDamaged }: StoreUnderTest): void {
  describe('finding jobs', () => {
    conditionTests(inWorld)
    pageTests(inWorld)
    countTests(inWorld)
    slimTests(inWorld)
    hostileTests(inWorld)
    if (canBeDamaged) damagedTests(inWorld)
  })
}

function conditionTests(inWorld: InWorld): void {
  test(
    'by queue and by state, one or several of them',
    inWorld(async (world) => {
      const { holdfast, ids } = await variety(world)
      const all = await allJobs(holdfast)
      assert.deepEqual(new Set(all.map(({ state }) => state)), new Set(states), 'the store has jobs in every state')
      for (const state of states) await finds(holdfast, { state }, ({ state: is }) => is === state)
      await finds(holdfast, { queue: ['a', 'never'] }, ({ queue }) => queue === 'a')
      await finds(holdfast, { queue: ['b', 'a'] }, ({ queue }) => queue !== 'c')
      await finds(holdfast, { queue: 'a', state: ['dead', 'ready'] }, ({ queue, state }) =>
        queue === 'a' ? state === 'dead' || state === 'ready' : false,
      )
      await finds(holdfast, { queue: 'never' }, () => false)
      await finds(holdfast, {}, () => true)
      await finds(holdfast, { ended: { since: 0 } }, ({ finishedAt }) => finishedAt !== null)
      assert.equal(all.length, ids.length)
    }),
  )

  test(
    'by ids, in the order given; unknown ids are skipped',
    inWorld(async (world) => {
      const { holdfast, ids } = await variety(world)
      const wanted = [ids.at(-1), randomUUID(), ids[0], ids[0], ids[5]] as string[]
      const { jobs, next } = await holdfast.jobs({ ids: wanted })
      assert.deepEqual(jobs.map(({ id }) => id).sort(), [ids.at(-1), ids[0], ids[5]].sort())
      assert.equal(next, null)
      await finds(holdfast, { ids, state: 'dead' }, ({ state }) => state === 'dead')
      await finds(holdfast, { ids, queue: 'b' }, ({ queue }) => queue === 'b')
      assert.deepEqual((await holdfast.jobs({ ids: [randomUUID()] })).jobs, [])
    }),
  )

  test(
    'an id names the newest job that has it',
    inWorld(async ({ holdfast }) => {
      const id = randomUUID()
      for (const payload of ['old', 'new']) {
        await holdfast.queue('a').enqueue(payload, { id })
        if (payload === 'old') await (await claimOne(holdfast, 'a')).done()
      }
      const { jobs } = await holdfast.jobs({ ids: [id], include: ['payload'] })
      assert.deepEqual(
        jobs.map(({ payload }) => payload),
        ['new'],
      )
    }),
  )

  for (const range of ['enqueued', 'started', 'ended'] as const) {
    test(
      `by the time at which jobs were ${range}: since is inclusive, before is exclusive`,
      inWorld(async (world) => {
        const { holdfast } = await variety(world)
        const timeOf = (job: Read) => times(job)[range]
        const known = (await allJobs(holdfast)).flatMap((job) => timeOf(job) ?? [])
        const [low = 0, middle = 0] = [Math.min(...known), known.toSorted((a, b) => a - b)[known.length >> 1]]
        assert.ok(low < middle)
        const inRange = (since: number, before: number) => (job: Read) => {
          const time = timeOf(job)
          return time !== null && time >= since && time < before
        }
        await finds(holdfast, { [range]: { since: middle } }, inRange(middle, Number.POSITIVE_INFINITY))
        await finds(holdfast, { [range]: { since: middle + 1 } }, inRange(middle + 1, Number.POSITIVE_INFINITY))
        await finds(holdfast, { [range]: { before: new Date(middle) } }, inRange(0, middle))
        await finds(holdfast, { [range]: { since: low, before: middle + 1 } }, inRange(low, middle + 1))
        await finds(holdfast, { [range]: { since: middle, before: middle } }, () => false)
      }),
    )
  }

  test(
    'by text of the error: in its message, and in the name, message and code of a cause',
    inWorld(async ({ holdfast }) => {
      const die = async (queue: string, error: Error) => {
        const { id } = await holdfast.queue(queue).enqueue(1)
        await (await claimOne(holdfast, queue)).dead(error)
        return id
      }
      const cause = Object.assign(new Error('the socket hung up'), { code: 'ECONNRESET', name: 'SocketError' })
      const plain = await die('a', new Error('100% of host_1 "quoted" \\ back'))
      const caused = await die('b', new Error('could not send', { cause }))
      await holdfast.queue('a').enqueue(1)
      const found = async (error: string) => (await holdfast.jobs({ error })).jobs.map(({ id }) => id)
      for (const text of ['100%', '% of', 'host_1', '"quoted"', '\\ back', '\\'])
        assert.deepEqual(await found(text), [plain])
      for (const text of ['ECONNRESET', 'SocketError', 'hung up', 'could not'])
        assert.deepEqual(await found(text), [caused])
      for (const text of ['hostX1', '100_', '%%', 'message']) assert.deepEqual(await found(text), [])
    }),
  )

  test(
    'by batch, in every state of its items',
    inWorld(async (world) => {
      const { holdfast, batch } = await variety(world)
      await finds(holdfast, { batch }, (job) => job.batch === batch)
      await finds(holdfast, { batch, state: ['ready', 'done'] }, (job) =>
        job.batch === batch ? job.state === 'ready' || job.state === 'done' : false,
      )
      await finds(holdfast, { batch, queue: 'a' }, () => false)
      assert.deepEqual(await holdfast.jobs({ batch: randomUUID() }), { jobs: [], looked: 0, next: null })
    }),
  )

  for (const [field, value] of [
    ['limitKey', 'k1'],
    ['dedupKey', 'd1'],
    ['idempotencyKey', 'i1'],
    ['worker', 'w1'],
  ] as const) {
    test(
      `by ${field}, with and without a queue`,
      inWorld(async (world) => {
        const { holdfast } = await variety(world)
        const isOf = (job: Read) => (field === 'worker' ? times(job).worker : job[field]) === value
        assert.ok((await allJobs(holdfast)).filter(isOf).length > 1)
        await finds(holdfast, { [field]: value }, isOf)
        for (const queue of ['a', 'b', 'c'])
          await finds(holdfast, { [field]: value, queue }, (job) => job.queue === queue && isOf(job))
        await finds(holdfast, { [field]: `${value}x` }, () => false)
      }),
    )
  }

  test(
    'the holder of a dedup key comes first, and once, whatever its list is',
    inWorld(async ({ holdfast }) => {
      const ids: string[] = []
      for (let i = 0; i < 4; i++) {
        ids.unshift((await holdfast.queue('a').enqueue(i, { dedup: { key: 'k' } })).id)
        if (i < 3) await (await claimOne(holdfast, 'a')).done()
      }
      for (const limit of [1, 2, 100]) {
        const found = await idsOf(holdfast, { queue: 'a', dedupKey: 'k', limit })
        assert.deepEqual([found[0], found.length, new Set(found)], [ids[0], 4, new Set(ids)], `pages of ${limit}`)
      }
      const done = await idsOf(holdfast, { queue: 'a', dedupKey: 'k', state: 'done', limit: 2 })
      assert.deepEqual(new Set(done), new Set(ids.slice(1)), 'not the holder, which is ready')
      await (await claimOne(holdfast, 'a')).dead(new Error('no'))
      assert.deepEqual(new Set(await idsOf(holdfast, { queue: 'a', dedupKey: 'k', limit: 1 })), new Set(ids))
    }),
  )

  test(
    'by the number of attempts, exact, at least and at most',
    inWorld(async (world) => {
      const { holdfast } = await variety(world)
      await finds(holdfast, { attempts: 0 }, ({ attempts }) => attempts === 0)
      await finds(holdfast, { attempts: 2 }, ({ attempts }) => attempts === 2)
      await finds(holdfast, { attempts: { min: 1 } }, ({ attempts }) => attempts >= 1)
      await finds(holdfast, { attempts: { max: 1 } }, ({ attempts }) => attempts <= 1)
      await finds(holdfast, { attempts: { min: 1, max: 1 } }, ({ attempts }) => attempts === 1)
    }),
  )

  test(
    'by a value in the payload: text, number, boolean and null, at any depth; arrays are not entered',
    inWorld(async ({ holdfast }) => {
      const payloads = [
        { customer: { id: 'c1' }, n: 1, on: true, none: null },
        { customer: { id: 'c2' }, n: 1.5, on: false },
        { customer: [{ id: 'c1' }], n: '1', on: 'true', none: 'null' },
        ...['c1', 7, null, ['c1']],
      ]
      await holdfast.queue('a').enqueueMany(payloads.map((payload) => ({ payload })))
      const found = async (path: string, equals: string | number | boolean | null) => {
        const { jobs } = await holdfast.jobs({ payload: { path, equals }, include: ['payload'] })
        return jobs.map(({ payload }) => payloads.findIndex((each) => JSON.stringify(each) === JSON.stringify(payload)))
      }
      assert.deepEqual(await found('customer.id', 'c1'), [0])
      assert.deepEqual(await found('customer.id', 'c2'), [1])
      assert.deepEqual([await found('n', 1), await found('n', 1.5), await found('n', '1')], [[0], [1], [2]])
      assert.deepEqual([await found('on', true), await found('on', 'true')], [[0], [2]])
      assert.deepEqual([await found('none', null), await found('none', 'null')], [[0], [2]])
      for (const path of ['customer', 'missing', 'customer.id.x', 'length', 'constructor'])
        assert.deepEqual(await found(path, 'c1'), [], path)
    }),
  )

  test(
    'held jobs of one limit key, and of one batch or of none, in the order in which they will run; each once in pages',
    inWorld(async ({ holdfast }) => {
      const keyed = defineQueue<{ tenant: string; n: number }>('keyed', {
        limit: { key: ({ tenant }) => tenant, concurrency: 1 },
      })
      const tenants = ['z', 'a', 'm'] as const
      for (const tenant of tenants) await holdfast.queue(keyed).enqueue({ tenant, n: -1 })
      const priorityOf = (n: number) => [5, 1, 9, 3][(n * 7) % 4] as number
      const itemOf = (n: number) => ({ payload: { tenant: tenants[n % 3] as string, n }, priority: priorityOf(n) })
      const numbers = Array.from({ length: 36 }, (_, n) => n)
      await holdfast.queue(keyed).enqueueMany(numbers.map(itemOf))
      await holdfast.batch(
        { name: 'b' },
        numbers.map((n) => ({ queue: keyed, ...itemOf(n) })),
      )
      const filter = { queue: keyed, state: 'held', include: ['payload'] } as const
      const { jobs } = await holdfast.jobs(filter)
      assert.equal(jobs.length, 72)
      const numberOf = ({ payload }: { readonly payload?: unknown }) => (payload as { n: number }).n
      for (const tenant of tenants)
        for (const isItem of [false, true]) {
          const found = jobs.filter(({ limitKey, batch }) => limitKey === tenant && (batch !== null) === isItem)
          const ordered = numbers
            .filter((n) => itemOf(n).payload.tenant === tenant)
            .sort((a, b) => priorityOf(a) - priorityOf(b))
          assert.deepEqual(found.map(numberOf), ordered, `${tenant} ${isItem}`)
        }
      const paged: string[] = []
      for (let after: string | null | undefined; after !== null; ) {
        const page = await holdfast.jobs({ ...filter, limit: 5, ...(after !== undefined && { after }) })
        paged.push(...page.jobs.map(({ id }) => id))
        after = page.next
      }
      assert.deepEqual(
        paged,
        jobs.map(({ id }) => id),
      )
    }),
  )

  test(
    'by states in one order: running, ready, held, scheduled, dead, cancelled, done',
    inWorld(async (world) => {
      const { holdfast } = await variety(world)
      for (const queue of ['a', 'b', 'c']) {
        const found = (await holdfast.jobs({ queue, limit: 1_000 })).jobs.map(({ state }) => state)
        const order = ['running', 'ready', 'held', 'scheduled', 'dead', 'cancelled', 'done']
        assert.deepEqual(
          found,
          found.toSorted((a, b) => order.indexOf(a) - order.indexOf(b)),
        )
      }
    }),
  )

  test(
    'by an error: its name, its code and its message are searched, and those of its causes',
    inWorld(async ({ holdfast }) => {
      class PaymentError extends Error {
        override readonly name = 'PaymentError'
        readonly code = 'PSP'
      }
      const { id } = await holdfast.queue('mail').enqueue(1)
      const cause = Object.assign(new TypeError('the socket'), { code: 'E7' })
      await (await claimOne(holdfast, 'mail')).dead(new PaymentError('card declined', { cause }))
      await holdfast.queue('mail').enqueue(2)
      await (await claimOne(holdfast, 'mail')).dead(new Error('card expired'))
      for (const error of ['PSP', 'PaymentError', 'card declined', 'PaymentError card declined PSP', 'socket E7']) {
        const filter = { queue: 'mail', error }
        assert.deepEqual(
          (await holdfast.jobs(filter)).jobs.map((job) => job.id),
          [id],
          error,
        )
        assert.equal((await holdfast.count(filter)).count, 1)
      }
      assert.deepEqual((await holdfast.jobs({ error: 'PSX' })).jobs, [])
      assert.equal((await holdfast.requeueAll({ queue: 'mail', error: 'PSP' })).changed, 1)
    }),
  )

  test(
    'by labels, newest first, in whatever state; all that are given must be there',
    inWorld(async (world) => {
      const { holdfast } = await variety(world)
      await finds(holdfast, { labels: { customer: 'w1' } }, ({ labels }) => labels['customer'] === 'w1')
      await finds(
        holdfast,
        { labels: { all: 'yes', customer: 'w2' } },
        ({ labels }) => labels['customer'] === 'w2' && labels['all'] === 'yes',
      )
      await finds(
        holdfast,
        { labels: { customer: 'w0' }, state: 'dead' },
        ({ labels, state }) => labels['customer'] === 'w0' && state === 'dead',
      )
      await finds(holdfast, { labels: { customer: 'w9' } }, () => false)
      const { jobs } = await holdfast.jobs({ labels: { all: 'yes' } })
      const times = jobs.map(({ createdAt }) => createdAt.getTime())
      assert.deepEqual(
        times,
        times.toSorted((a, b) => b - a),
      )
      for (const labels of [{}, { 'no name': 'x' }, { customer: '' }, { customer: 1 }, null, [], 'customer'])
        await rejects(holdfast.jobs({ labels } as never), 'INVALID_OPTION')
      for (const [label, value, is] of [
        ['customer', undefined, 'undefined'],
        ['order', 3, 'of type number'],
        ['empty', '', 'empty'],
      ] as const) {
        const labels = { all: 'yes', [label]: value }
        const { message } = await rejects(holdfast.jobs({ labels } as never), 'INVALID_OPTION', { label })
        assert.match(message, new RegExp(`a value is 1 to 128 bytes .*; that of ${label} is ${is}\\.`))
      }
    }),
  )

  test(
    'several labels are looked for by the rarest of them, on every page, and in whichever order they are given',
    inWorld(async ({ holdfast }) => {
      const kinds = Array.from({ length: 300 }, (_, n) => (n % 100 === 50 ? 'odd' : 'usual'))
      await holdfast.queue('a').enqueueMany(kinds.map((kind, n) => ({ payload: n, labels: { all: 'yes', kind } })))
      for (const labels of [
        { all: 'yes', kind: 'odd' },
        { kind: 'odd', all: 'yes' },
      ]) {
        const { jobs, looked } = await holdfast.jobs({ labels, include: ['payload'] })
        assert.deepEqual([jobs.map(({ payload }) => payload), looked], [[250, 150, 50], 3])
        assert.deepEqual(await holdfast.count({ labels }), { count: 3, looked: 3, next: null })
        let all = 0
        for await (const page of pages(holdfast, { labels, limit: 1 })) all += page.looked
        assert.equal(all, 3)
      }
      const none = await holdfast.jobs({ labels: { all: 'yes', kind: 'never' } })
      assert.deepEqual([none.jobs, none.looked, none.next], [[], 0, null])
    }),
  )

  test(
    'by error group, only dead jobs',
    inWorld(async (world) => {
      const { holdfast } = await variety(world)
      const { groups } = await holdfast.deadGroups()
      assert.ok(groups.length > 0)
      for (const { group, queue, dead } of groups) {
        await finds(
          holdfast,
          { errorGroup: group, queue },
          ({ errorGroup, queue: of }) => errorGroup === group && of === queue,
        )
        assert.equal((await holdfast.count({ errorGroup: group, queue })).count, dead)
      }
      await finds(holdfast, { errorGroup: '0123456789abcdef' }, () => false)
      await finds(holdfast, { errorGroup: groups[0]?.group ?? '', state: 'ready' }, () => false)
      for (const errorGroup of ['x', 7, null, '0123456789ABCDEF'])
        await rejects(holdfast.jobs({ errorGroup } as never), 'INVALID_OPTION')
    }),
  )

  test(
    'any combination of conditions finds what `matches` says, on pages of any size, and counts it',
    { timeout: 120_000 },
    inWorld(async (world, t) => {
      t.diagnostic(`HOLDFAST_FIND_SEED=${seed}`)
      const { batch, store } = await variety(world)
      const opened = await store()
      const all = await everyRecord(opened)
      const filters = fc.sample(filterOf(all, batch), { seed, numRuns: 120 })
      for (const [no, filter] of filters.entries()) {
        const wanted = all.filter((job) => matches(filter, job))
        const limit = [1, 3, 1_000][no % 3] as number
        const found = await everyRecord(opened, filter, limit)
        const why = `${JSON.stringify(filter)} in pages of ${limit}`
        assert.deepEqual(found.map(({ id }) => id).sort(), wanted.map(({ id }) => id).sort(), why)
        for (const job of found)
          assert.deepEqual(
            job,
            all.find(({ id }) => id === job.id),
          )
        assert.deepEqual((await opened.count({ filter, after: null })).count, wanted.length, why)
      }
    }),
  )

  test(
    'by a key and a state: the holder of the key is found only if it is in that state',
    inWorld(async ({ holdfast }) => {
      const { id } = await holdfast.queue('a').enqueue(1, { dedup: { key: 'k' }, idempotencyKey: 'i' })
      await claimOne(holdfast, 'a')
      for (const key of [{ dedupKey: 'k' }, { idempotencyKey: 'i' }]) {
        assert.deepEqual(await idsOf(holdfast, { queue: 'a', ...key, state: 'running' }), [id])
        for (const state of ['ready', 'dead'] as const) {
          assert.deepEqual(await idsOf(holdfast, { queue: 'a', ...key, state }), [])
          assert.equal((await holdfast.count({ queue: 'a', ...key, state })).count, 0)
        }
      }
    }),
  )
}

function pageTests(inWorld: InWorld): void {
  test(
    'jobs that stay are never missed while others come and go between the pages',
    inWorld(async ({ holdfast }) => {
      const many = (prefix: string) => Array.from({ length: 15 }, (_, n) => ({ payload: { kind: prefix, n } }))
      const moving = holdfast.queue('moving')
      const still = await holdfast.queue('still').enqueueMany(many('still'))
      await moving.enqueueMany(many('moving'))
      const seen: string[] = []
      let after: string | undefined
      do {
        const page = await holdfast.jobs({
          ...{ payload: { path: 'kind', equals: 'still' }, limit: 2 },
          ...(after !== undefined && { after }),
        })
        seen.push(...page.jobs.map(({ id }) => id))
        after = page.next ?? undefined
        await (await claimOne(holdfast, 'moving')).done()
        await moving.enqueue({ kind: 'moving' })
      } while (after !== undefined)
      assert.deepEqual(seen.toSorted(), still.map(({ id }) => id).toSorted())
    }),
  )

  test(
    'the numbers of jobs that pages have looked at add up to the jobs of their lists',
    inWorld(async (world) => {
      const { holdfast, ids } = await variety(world)
      for (const limit of [1, 2, 100]) {
        for (const filter of [{}, { attempts: { min: 1 } }, { worker: 'nowhere' }]) {
          let looked = 0
          for await (const page of pages(holdfast, { ...filter, limit })) looked += page.looked
          assert.equal(looked, ids.length, `${JSON.stringify(filter)} in pages of ${limit}`)
        }
      }
    }),
  )

  test(
    'a scan ends after a bounded number of jobs, says how many it has looked at, and goes on from there',
    inWorld(async ({ holdfast }) => {
      const queue = holdfast.queue<{ n: number }>('many')
      const count = bounds.lookMax + 500
      for (let from = 0; from < count; from += bounds.enqueueMax) {
        const size = Math.min(bounds.enqueueMax, count - from)
        await queue.enqueueMany(Array.from({ length: size }, (_, i) => ({ payload: { n: from + i } })))
      }
      const last = { payload: { path: 'n', equals: count - 1 } }
      const first = await holdfast.jobs(last)
      assert.deepEqual([first.jobs.length, first.looked, first.next === null], [0, bounds.lookMax, false])
      const second = await holdfast.jobs({ ...last, after: first.next ?? '' })
      assert.deepEqual([second.jobs.length, second.looked, second.next], [1, 500, null])
      const counted = await holdfast.count({ attempts: 0 })
      assert.deepEqual([counted.count, counted.looked], [bounds.lookMax, bounds.lookMax])
      const rest = await holdfast.count({ attempts: 0, after: counted.next ?? '' })
      assert.deepEqual(rest, { count: 500, looked: 500, next: null })
      assert.deepEqual(await holdfast.count({ queue: 'many' }), { count, looked: 0, next: null })
    }),
  )

  test(
    'a scan ends after a bounded number of bytes that it compared',
    inWorld(async ({ holdfast }) => {
      const large = 'x'.repeat(900_000)
      const count = Math.ceil(bounds.lookBytes / large.length) + 3
      for (let i = 0; i < count; i++) await holdfast.queue('large').enqueue({ large, i })
      const filter = { payload: { path: 'i', equals: count - 1 } }
      const first = await holdfast.jobs(filter)
      assert.equal(first.jobs.length, 0)
      assert.ok(first.looked < count && first.looked * large.length >= bounds.lookBytes - large.length)
      const second = await holdfast.jobs({ ...filter, after: first.next ?? '' })
      assert.deepEqual([second.jobs.length, second.looked, second.next], [1, count - first.looked, null])
    }),
  )
}

function countTests(inWorld: InWorld): void {
  test(
    'a count of queues and states is exact and looks at no job; any other looks at each',
    inWorld(async (world) => {
      const { holdfast } = await variety(world)
      const all = await allJobs(holdfast)
      assert.deepEqual(await holdfast.count(), { count: all.length, looked: 0, next: null })
      const dead = all.filter(({ queue, state }) => queue === 'a' && (state === 'dead' || state === 'done')).length
      assert.deepEqual(await holdfast.count({ queue: 'a', state: ['dead', 'done'] }), {
        count: dead,
        looked: 0,
        next: null,
      })
      assert.deepEqual(await holdfast.count({ queue: 'never' }), { count: 0, looked: 0, next: null })
      const run = all.filter((job) => times(job).worker === 'w1').length
      assert.deepEqual(await holdfast.count({ worker: 'w1' }), { count: run, looked: all.length, next: null })
    }),
  )
}

function slimTests(inWorld: InWorld): void {
  test(
    'a page has no payload, headers, wake, result and history, but their sizes; include adds each',
    inWorld(async ({ holdfast }) => {
      const headers = { trace: 'ä' }
      const { id } = await holdfast.queue('a').enqueue({ text: 'grün' }, { headers })
      await (await claimOne(holdfast, 'a')).retry(new Error('first'), { delay: 0 })
      await (await claimOne(holdfast, 'a')).done({ ok: true })
      const whole = await holdfast.job(id)
      const [slim] = (await holdfast.jobs()).jobs
      assert.ok(whole && slim)
      const { payload, headers: _, wake, result, history, changes, ...rest } = whole
      const { payloadBytes, headersBytes, resultBytes, historyBytes, ...same } = slim
      assert.deepEqual(same, rest)
      assert.equal(payloadBytes, Buffer.byteLength('{"text":"grün"}'))
      assert.equal(headersBytes, Buffer.byteLength(JSON.stringify(headers)))
      assert.equal(resultBytes, Buffer.byteLength('{"ok":true}'))
      assert.ok(historyBytes > 50)
      const sizes = { payloadBytes, headersBytes, resultBytes, historyBytes }
      const parts = {
        payload: { payload },
        headers: { headers, wake },
        result: { result },
        history: { history, changes },
      }
      for (const [part, fields] of Object.entries(parts)) {
        const [with1] = (await holdfast.jobs({ include: [part as 'payload'] })).jobs
        assert.deepEqual(with1, { ...rest, ...sizes, ...fields }, part)
      }
      const [all] = (await holdfast.jobs({ include: ['payload', 'headers', 'result', 'history', 'error'] })).jobs
      assert.deepEqual(all, { ...whole, ...sizes })
    }),
  )

  test(
    'a page has the name, the code and the beginning of an error; include adds the rest',
    inWorld(async ({ holdfast }) => {
      await holdfast.queue('a').enqueue(1)
      const message = `${'ü'.repeat(198)}😀${'z'.repeat(500)}`
      const error = Object.assign(new Error(message, { cause: new Error('why') }), { code: 'E1', name: 'Odd' })
      await (await claimOne(holdfast, 'a')).dead(error)
      const [slim] = (await holdfast.jobs()).jobs
      assert.deepEqual(Object.keys(slim?.error ?? {}).sort(), ['code', 'message', 'name'])
      const { message: beginning, name, code } = slim?.error ?? { message: '' }
      assert.deepEqual([name, code, beginning.slice(0, 198)], ['Odd', 'E1', 'ü'.repeat(198)])
      assert.ok(beginning.length <= bounds.summaryLength && beginning.isWellFormed(), beginning)
      const [full] = (await holdfast.jobs({ include: ['error'] })).jobs
      assert.equal(full?.error?.message, message)
      assert.equal(full?.error?.causes?.length, 1)
    }),
  )

  for (const [filler, most] of [
    ['x', 8 * 1024],
    ['\u0001', 32 * 1024],
  ] as const)
    test(
      `an entry with every text at its bound is below ${most} bytes as JSON, if its characters are ${JSON.stringify(filler)}`,
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue('q'.repeat(bounds.nameLength), { attempts: 1 })
        const key = filler.repeat(bounds.keyBytes)
        const labels = Object.fromEntries(
          Array.from({ length: bounds.labelsMax }, (_, n) => [
            `${'n'.repeat(63)}${n}`,
            filler.repeat(bounds.labelBytes),
          ]),
        )
        const keys = () => ({ dedup: { key }, idempotencyKey: key, limitKey: key, labels })
        await queue.enqueue(1, keys())
        const [lease] = await queue.claim({ worker: filler.repeat(bounds.workerLength) })
        await lease?.progress(0.123456789, filler.repeat(bounds.progressMessageBytes))
        const bytes = async () => Buffer.byteLength(JSON.stringify((await holdfast.jobs()).jobs[0]))
        const running = await bytes()
        assert.ok(running > most / 2 && running < most, `${running} bytes`)
        const text = filler.repeat(bounds.errorTextBytes)
        await lease?.dead(Object.assign(new Error(text), { name: text, code: text }))
        const dead = await bytes()
        assert.ok(dead < most, `${dead} bytes`)
      }),
    )

  test(
    'a page of 100 jobs with payloads of a mebibyte is below 64 KB as JSON',
    { timeout: 60_000 },
    inWorld(async ({ holdfast }) => {
      const large = 'x'.repeat(bounds.payloadBytes - 2)
      for (let i = 0; i < 10; i++)
        await holdfast.queue('large').enqueueMany(Array.from({ length: 10 }, () => ({ payload: large })))
      const page = await holdfast.jobs()
      assert.deepEqual([page.jobs.length, page.next], [100, null])
      assert.ok(page.jobs.every(({ payloadBytes }) => payloadBytes === bounds.payloadBytes))
      const bytes = Buffer.byteLength(JSON.stringify(page))
      assert.ok(bytes < 64_000, `${bytes} bytes`)
    }),
  )
}

const hostile = [
  ...['%', '_', "'", '"', '\\', '\\\\', "';drop table holdfast_job;--", '$1', '{}', '[]', 'null', '0', ' '],
  ...['\n', '\u{1F600}', 'ä', '\u0301', '\ud7ff', '\ufffe', 'x'.repeat(512)],
]

function hostileTests(inWorld: InWorld): void {
  test(
    'keys, errors and payload values of any text find exactly their jobs',
    inWorld(async ({ holdfast }) => {
      const queue = holdfast.queue<{ at: { value: string } }>('a', { limit: { concurrency: 100, key: 'at.value' } })
      const ids: string[] = []
      for (const value of hostile) {
        const { id } = await queue.enqueue({ at: { value } }, { dedup: { key: value }, idempotencyKey: value })
        ids.push(id)
        await (await claimOne(holdfast, 'a')).dead(new Error(`<${value}>`))
      }
      for (const [i, value] of hostile.entries()) {
        const filters: JobConditions[] = [
          { dedupKey: value },
          { idempotencyKey: value },
          { limitKey: value },
          { error: `<${value}>` },
          { payload: { path: 'at.value', equals: value } },
          { queue: 'a', dedupKey: value, idempotencyKey: value, limitKey: value },
        ]
        for (const filter of filters) assert.deepEqual(await idsOf(holdfast, filter), [ids[i]], JSON.stringify(filter))
      }
    }),
  )

  test(
    'paths like __proto__ are properties of the payload and nothing else; numbers are compared as numbers',
    inWorld(async ({ holdfast }) => {
      const payloads = [
        '{"__proto__":{"x":1}}',
        '{"x":1e300}',
        '{"x":-0}',
        '{"x":9007199254740993}',
        '{"$a-b":{"_":2}}',
      ]
      const ids: string[] = []
      for (const text of payloads) ids.push((await holdfast.queue('a').enqueue(JSON.parse(text))).id)
      const found = async (path: string, equals: number) => {
        const at = await idsOf(holdfast, { payload: { path, equals } })
        return at.map((id) => ids.indexOf(id))
      }
      assert.deepEqual(await found('__proto__.x', 1), [0])
      assert.deepEqual(await found('x', 1), [])
      assert.deepEqual(await found('x', 1e300), [1])
      assert.deepEqual(await found('x', 0), [2])
      assert.deepEqual(await found('x', 9007199254740992), [3])
      assert.deepEqual(await found('$a-b._', 2), [4])
    }),
  )

  test(
    'a bad filter is refused with a sentence, and nothing is looked at',
    inWorld(async ({ holdfast }) => {
      const bad: unknown[] = [
        ...[{ queue: [] }, { state: [] }, { ids: [] }, { ids: 'x' }, { state: ['lost'] }, { colour: 'red' }],
        ...[{ enqueued: {} }, { enqueued: { since: 'now' } }, { ended: { until: 1 } }, { started: 1 }],
        ...[
          { error: '' },
          { error: 'a\0' },
          { error: 7 },
          { dedupKey: '' },
          { dedupKey: '\ud800' },
          { limitKey: 'a\0b' },
        ],
        ...[
          { idempotencyKey: 'x'.repeat(513) },
          { attempts: -1 },
          { attempts: 1.5 },
          { attempts: {} },
          { attempts: '1' },
        ],
        ...[{ attempts: { min: 1, most: 2 } }, { payload: {} }, { payload: { path: 'a' } }, { payload: 'a=1' }],
        ...['', 'a.', '.a', 'a..b', 'a[0]', '0', '$.a b', "a'", 'a'.repeat(256)].map((path) => ({
          payload: { path, equals: 1 },
        })),
        ...[undefined, Number.NaN, Number.POSITIVE_INFINITY, {}, [], 'a\0', '\udc00', 'x'.repeat(10_000), 1n].map(
          (equals) => ({
            payload: { path: 'a', equals },
          }),
        ),
        ...[{ ids: Array.from({ length: 1_001 }, () => randomUUID()) }],
      ]
      for (const filter of bad) {
        const error = await rejects(holdfast.jobs(filter as JobsFilter), 'INVALID_OPTION')
        assert.match(error.message, /[.]$/)
        await rejects(holdfast.count(filter as CountFilter), 'INVALID_OPTION')
      }
      for (const filter of [{ queue: 'a b' }, { queue: ['a', ''] }, { worker: '' }, { worker: 'a\0' }])
        await rejects(holdfast.jobs(filter as JobsFilter), 'INVALID_NAME')
      for (const filter of [{ ids: ['x'] }, { batch: 'x' }, { batch: 7 }])
        await rejects(holdfast.jobs(filter as JobsFilter), 'INVALID_ID')
      for (const include of [['stack'], 'all', [1]])
        await rejects(holdfast.jobs({ include: include as never }), 'INVALID_OPTION')
    }),
  )

  test(
    'a cursor of another filter, or of no listing, is refused',
    inWorld(async ({ holdfast }) => {
      const added = await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }])
      const ids = added.map(({ id }) => id)
      const batch = await holdfast.batch({ name: 'b' }, [{ queue: 'mail', payload: 3 }])
      const { next } = await holdfast.jobs({ limit: 1 })
      await rejects(holdfast.jobs({ ids, after: next ?? '' }), 'INVALID_OPTION')
      await rejects(holdfast.jobs({ batch: batch.id, after: next ?? '' }), 'INVALID_OPTION')
      const marks: unknown[] = [
        ...[
          ['lists'],
          ['lists', -1],
          ['lists', 0.5],
          ['lists', 'x'],
          ['lists', 0, 7, 0],
          ['lists', 0, 'mail', 1, -1.5],
        ],
        ...[
          ['lists', 0, 'mail', 99, 0, 0, 0],
          ['lists', 0, 'mail', 0, 'x', 0, 0],
          ['lists', 0, 'mail', 1, 1, 2, 3, 4, 5],
        ],
        ...[['ids', 0], ['other', 0], [], [['lists', 0]], ['mail', 1, 0, 0, 0], null, 7, {}],
      ]
      for (const mark of marks) {
        const after = Buffer.from(JSON.stringify(mark)).toString('base64url')
        await rejects(holdfast.jobs({ after }), 'INVALID_OPTION')
      }
      for (const mark of [['ids'], ['ids', 'x'], ['ids', -1], ['ids', 0, 2 ** 60], ['ids', 0, 1, 2]]) {
        const after = Buffer.from(JSON.stringify(mark)).toString('base64url')
        await rejects(holdfast.jobs({ ids, after }), 'INVALID_OPTION')
      }
      for (const mark of [['items'], ['items', 'x'], ['items', -1], ['items', 1, 2 ** 40, 0, 0], ['items', 7, 1]]) {
        const after = Buffer.from(JSON.stringify(mark)).toString('base64url')
        await rejects(holdfast.jobs({ batch: batch.id, after }), 'INVALID_OPTION')
      }
    }),
  )
}

function damagedTests(inWorld: InWorld): void {
  test(
    'a payload, an error or a past that is no JSON fails no search',
    inWorld(async ({ holdfast, overwrite }) => {
      const ids = (await holdfast.queue('a').enqueueMany([{ payload: { n: 1 } }, { payload: { n: 1 } }])).map(
        ({ id }) => id,
      )
      const [broken = '', sound = ''] = ids
      for (const text of ['{"n":1', '', '{"n":"\\u0000"}', '['.repeat(100_000)]) {
        await overwrite?.('payload', broken, text)
        assert.deepEqual(await idsOf(holdfast, { payload: { path: 'n', equals: 1 } }), [sound], text.slice(0, 20))
      }
      await overwrite?.('payload', broken, '{}')
      for (const lease of await holdfast.claim(['a'], { max: 2, worker: 'w' }))
        await lease.retry(new Error('no'), { delay: '1h' })
      await overwrite?.('past', broken, '[{')
      assert.deepEqual(await idsOf(holdfast, { worker: 'w' }), [sound])
      for (const id of ids) await holdfast.wake(id)
      for (const lease of await holdfast.claim(['a'], { max: 2, worker: 'w' })) await lease.dead(new Error('broken'))
      await overwrite?.('error', broken, 'no JSON, but broken')
      assert.deepEqual((await idsOf(holdfast, { error: 'broken' })).sort(), ids.toSorted())
      assert.deepEqual(await idsOf(holdfast, { error: 'no JSON' }), [broken])
    }),
  )
}

type Read = Awaited<ReturnType<typeof allJobs>>[number]

/** Times and worker of the newest attempt, as a reader of the job sees them. */
function times({ createdAt, startedAt, finishedAt, worker, history }: Read) {
  return {
    enqueued: createdAt.getTime(),
    started: (startedAt ?? history.at(-1)?.startedAt)?.getTime() ?? null,
    ended: finishedAt?.getTime() ?? null,
    worker: worker ?? history.at(-1)?.worker ?? null,
  }
}

/** Asserts that the filter finds these jobs and no others, each once, and in pages of any size in the same order. */
async function finds(holdfast: Holdfast, filter: JobsFilter, isWanted: (job: Read) => boolean): Promise<void> {
  const wanted = (await allJobs(holdfast)).filter(isWanted).map(({ id }) => id)
  const whole = await idsOf(holdfast, { ...filter, limit: 1_000 })
  for (const limit of [1, 4, 1_000]) {
    const found = await idsOf(holdfast, { ...filter, limit })
    assert.deepEqual(found, whole, `${JSON.stringify(filter)} in pages of ${limit}`)
    assert.deepEqual(found.toSorted(), wanted.toSorted(), `${JSON.stringify(filter)} in pages of ${limit}`)
  }
}

async function idsOf(holdfast: Holdfast, filter: JobsFilter): Promise<string[]> {
  const ids: string[] = []
  for await (const { jobs } of pages(holdfast, filter)) ids.push(...jobs.map(({ id }) => id))
  return ids
}

async function* pages(holdfast: Holdfast, filter: JobsFilter) {
  let after: string | undefined
  do {
    const page = await holdfast.jobs({ ...filter, ...(after !== undefined && { after }) })
    yield page
    after = page.next ?? undefined
  } while (after !== undefined)
}

async function everyRecord(store: Store, filter: JobFilter = {}, limit = 1_000): Promise<JobRecord[]> {
  const records: JobRecord[] = []
  let after: string | null = null
  do {
    const page: Awaited<ReturnType<typeof wholePage>> = await wholePage(store, { filter, limit, after })
    records.push(...page.jobs)
    after = page.next
  } while (after !== null)
  return records
}

/** Filters of some conditions, with values that jobs have, values near them, and values that none has. */
function filterOf(all: readonly JobRecord[], batch: string): fc.Arbitrary<JobFilter> {
  const some = <T>(values: readonly T[]) => fc.constantFrom(...new Set(values))
  const texts = (values: readonly (string | null)[]) => some([...values.filter((value) => value !== null), 'none'])
  const range = (values: readonly (number | null | undefined)[]) => {
    const time = fc
      .tuple(some(values.filter((value) => value != null)), fc.integer({ min: -1, max: 1 }))
      .map(([a, b]) => a + b)
    return fc
      .record({ since: time, before: time }, { requiredKeys: [] })
      .filter((given) => Object.keys(given).length > 0)
  }
  const workers = all.flatMap(({ hold, history }) => hold?.worker ?? history.at(-1)?.worker ?? [])
  const starts = all.map(({ hold, history }) => hold?.startedAt ?? history.at(-1)?.startedAt)
  return fc.record(
    {
      queues: fc.subarray(['a', 'b', 'c', 'never'], { minLength: 1 }),
      states: fc.subarray([...states], { minLength: 1 }),
      ids: fc.subarray(
        all.map(({ id }) => id),
        { minLength: 1 },
      ),
      enqueued: range(all.map(({ createdAt }) => createdAt)),
      started: range(starts),
      ended: range(all.map(({ finishedAt }) => finishedAt)),
      error: some(['fail', 'why', 'E7', 'none']),
      errorGroup: some([...all.flatMap(({ errorGroup }) => errorGroup ?? []), '', '0123456789abcdef']),
      labels: fc
        .record({ customer: some(['w0', 'w1', 'w2', 'none']), all: some(['yes', 'no']) }, { requiredKeys: [] })
        .filter((given) => Object.keys(given).length > 0),
      batch: some([batch, randomUUID()]),
      limitKey: texts(all.map(({ limitKey }) => limitKey)),
      dedupKey: texts(all.map(({ dedupKey }) => dedupKey)),
      idempotencyKey: texts(all.map(({ idempotencyKey }) => idempotencyKey)),
      worker: texts(workers),
      attempts: fc
        .record({ min: fc.nat(2), max: fc.nat(2) }, { requiredKeys: [] })
        .filter((given) => Object.keys(given).length > 0),
      payload: fc.record({ path: some(['n', 'key', 'deep.n', 'none']), equals: some([0, 1, 2, 'k1', true, null]) }),
    },
    { requiredKeys: [] },
  )
}

interface Variety extends World {
  readonly ids: readonly string[]
  readonly batch: string
}

/** Jobs in every state, with keys, batches, several workers, retries and deaths, at different times. */
async function variety(world: World): Promise<Variety> {
  const { holdfast, clock } = world
  const limited = { limit: { concurrency: 1, key: (payload: { key?: string }) => payload.key ?? null } }
  const queues = ['a', 'b', 'c'].map((name) =>
    holdfast.queue<{ n: number; key?: string }>(name, name === 'b' ? limited : {}),
  )
  for (let n = 0; n < 3; n++) {
    for (const queue of queues) {
      const key = `k${n % 2}`
      await queue.enqueue({ n, key }, { dedup: { key: `d${n % 2}`, scope: 'waiting' }, idempotencyKey: `i${n}` })
      await queue.enqueue({ n, key, deep: { n } } as never, {
        dedup: { key: `e${n}` },
        labels: { customer: `w${n}`, all: 'yes' },
      })
      await queue.enqueue({ n, key } as never, { delay: 10 * hour, labels: { customer: `w${n % 2}` } })
      await queue.enqueue({ n, key }, {})
      await clock.advance(minute)
    }
  }
  const items = Array.from({ length: 5 }, (_, n) => ({ queue: 'c', payload: { n } }))
  const batch = await holdfast.batch({ name: 'items', concurrency: 5 }, items)
  for (const [turn, worker] of ['w1', 'w2', 'w1', 'w3'].entries()) {
    for (const [at, name] of ['a', 'b', 'c'].entries()) {
      const leases = await holdfast.claim([name], { max: 3, worker, lease: '9h' })
      await clock.advance(minute)
      for (const [i, lease] of leases.entries()) {
        const way = (turn + at + i) % 5
        const cause = Object.assign(new Error('why'), { code: 'E7' })
        if (way === 0) await lease.done({ n: i })
        else if (way === 1) await lease.dead(new Error('failed', { cause }))
        else if (way === 2) await lease.retry(new Error('again'), { delay: i % 2 === 0 ? 0 : hour })
        else if (way === 3) await lease.release()
      }
    }
  }
  for (const state of ['ready', 'scheduled', 'held'] as const)
    for (const { id } of (await holdfast.jobs({ state, limit: 2 })).jobs) await holdfast.cancel(id)
  const ids = (await allJobs(holdfast)).map(({ id }) => id)
  return { ...world, ids, batch: batch.id }
}
