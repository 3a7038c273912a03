import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { DeadGroupsFilter } from '../../src/client/requests.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { claimOne, hour, rejects } from './expect.ts'
import type { InWorld, World } from './world.ts'

const declined = (card: number) => Object.assign(new Error(`Card ${card} was declined`), { name: 'CardError' })
const refused = new TypeError('fetch failed', { cause: Object.assign(new Error('connect'), { code: 'ECONNREFUSED' }) })

async function die({ holdfast }: Pick<World, 'holdfast'>, queue: string, error: Error): Promise<string> {
  const { id } = await holdfast.queue(queue).enqueue(1)
  await (await claimOne(holdfast, queue)).dead(error)
  return id
}

export function deadGroupsTests(inWorld: InWorld): void {
  describe('error groups', () => {
    const list = async ({ holdfast }: Pick<World, 'holdfast'>, filter: DeadGroupsFilter = {}) =>
      (await holdfast.deadGroups(filter)).groups.map(({ queue, message, dead }) => [queue, message, dead])

    test(
      'dead jobs are counted by queue and error, whatever numbers their messages have',
      inWorld(async (world) => {
        for (const card of [1, 22, 333]) await die(world, 'pay', declined(card))
        await die(world, 'refund', declined(4))
        const id = await die(world, 'pay', refused)
        const { groups, next } = await world.holdfast.deadGroups({ queue: 'pay' })
        assert.equal(next, null)
        assert.equal(groups.length, 2)
        const fetched = groups.find(({ message }) => message === 'fetch failed')
        assert.deepEqual(
          { ...fetched, group: null },
          {
            ...{ queue: 'pay', group: null, name: 'TypeError', code: 'ECONNREFUSED', message: 'fetch failed', dead: 1 },
            lastDiedAt: new Date(world.clock.now()),
          },
        )
        assert.equal((await world.holdfast.job(id))?.errorGroup, fetched?.group)
        assert.deepEqual((await list(world)).sort(), [
          ['pay', 'Card # was declined', 3],
          ['pay', 'fetch failed', 1],
          ['refund', 'Card # was declined', 1],
        ])
      }),
    )

    test(
      'groups are listed newest or largest first, page by page',
      inWorld(async (world) => {
        for (const [queue, deaths] of Object.entries({ a: 2, b: 3, c: 1 })) {
          for (let n = 0; n < deaths; n++) await die(world, queue, declined(n))
          await world.clock.advance(hour)
        }
        const queues = async (filter: DeadGroupsFilter) => (await list(world, filter)).map(([queue]) => queue)
        assert.deepEqual(await queues({}), ['c', 'b', 'a'])
        assert.deepEqual(await queues({ order: 'newest' }), ['c', 'b', 'a'])
        assert.deepEqual(await queues({ order: 'largest' }), ['b', 'a', 'c'])
        for (const order of ['newest', 'largest'] as const) {
          const paged: string[] = []
          let after: string | undefined
          do {
            const page = await world.holdfast.deadGroups({ order, limit: 1, ...(after !== undefined && { after }) })
            assert.equal(page.groups.length, 1)
            paged.push(...page.groups.map(({ queue }) => queue))
            after = page.next ?? undefined
          } while (after !== undefined)
          assert.deepEqual(paged, await queues({ order }))
        }
      }),
    )

    test(
      'a job that is requeued, deleted or pruned leaves its group, and an empty group is gone',
      inWorld(async (world) => {
        const { holdfast, clock } = world
        const brief = defineQueue<number>('brief', { retain: { dead: '1h' } })
        await holdfast.queue(brief).enqueue(1)
        const ids: string[] = []
        for (const card of [1, 2, 3]) ids.push(await die(world, 'pay', declined(card)))
        await die(world, 'brief', declined(4))
        await holdfast.requeue(ids[0] as string)
        assert.deepEqual(await list(world, { queue: 'pay' }), [['pay', 'Card # was declined', 2]])
        await holdfast.delete(ids[1] as string)
        assert.deepEqual(await list(world, { queue: 'pay' }), [['pay', 'Card # was declined', 1]])
        assert.deepEqual(await list(world, { queue: 'brief' }), [['brief', 'Card # was declined', 1]])
        await clock.advance(2 * 24 * hour)
        await holdfast.sweep()
        assert.deepEqual(await list(world, { queue: 'brief' }), [])
        await holdfast.deleteAll({ queue: 'pay' })
        assert.deepEqual(await list(world), [])
      }),
    )

    test(
      'an expired lease counts, a queue that keeps no dead jobs counts nothing, and cancelled jobs do not count',
      inWorld(async (world) => {
        const { holdfast, clock } = world
        await holdfast.queue(defineQueue('none', { attempts: 1, retain: { dead: 0 } })).enqueue(1)
        await (await claimOne(holdfast, 'none')).dead(declined(1))
        const late = await holdfast.queue('late').enqueue(1, { startBefore: clock.now() + 1 })
        await holdfast.queue(defineQueue('lost', { attempts: 1 })).enqueueMany([{ payload: 1 }, { payload: 2 }])
        await holdfast.claim(['lost'], { max: 1, worker: 'web-1', lease: '1s' })
        await holdfast.claim(['lost'], { max: 1, worker: 'web-2', lease: '1s' })
        await clock.advance(hour)
        await holdfast.sweep()
        assert.equal((await holdfast.job(late.id))?.state, 'cancelled')
        const groups = await list(world)
        assert.equal(groups.length, 1)
        assert.deepEqual(
          groups[0]?.filter((_, i) => i !== 1),
          ['lost', 2],
        )
      }),
    )

    test(
      'thousands of deaths in hundreds of groups stay exact while sweeps run',
      inWorld(async ({ holdfast }) => {
        const many = holdfast.queue('many')
        const words = Array.from({ length: 150 }, (_, n) =>
          [...String(n)].map((digit) => 'abcdefghij'[Number(digit)]).join(''),
        )
        for (let round = 0; round < 3; round++) {
          await many.enqueueMany(words.map((word) => ({ payload: word })))
          const leases = await holdfast.claim(['many'], { max: words.length })
          await Promise.all(leases.map((lease, n) => lease.dead(new Error(`no ${words[n]}`))))
          await holdfast.sweep()
        }
        const { groups } = await holdfast.deadGroups({ limit: 1000 })
        assert.equal(groups.length, words.length)
        assert.ok(groups.every(({ dead }) => dead === 3))
      }),
    )

    test(
      'a wrong order, limit, cursor or option is refused',
      inWorld(async ({ holdfast }) => {
        for (const filter of [
          { order: 'oldest' },
          { limit: 0 },
          { limit: 1001 },
          { after: 1 },
          { after: 'x' },
          { state: 'dead' },
          ...[
            [-1, 'a\0', ''],
            [-1, 'a', '\0'],
            [-1, '\ud800', ''],
            [-1, 'a', '', 1],
            [0.5, 'a', ''],
            [1, 'a'],
          ].map((position) => ({
            after: Buffer.from(JSON.stringify(position)).toString('base64url'),
          })),
        ]) {
          await rejects(holdfast.deadGroups(filter as never), 'INVALID_OPTION')
        }
      }),
    )
  })
}
