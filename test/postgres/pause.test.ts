// A pause or a limit during claims that have begun: once it was answered, no claim uses the state before it.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { type CallerTx, inWorld, type Rule, useDatabase, type World } from './world.ts'

useDatabase()

/** A claim reads the queue again after it has locked its lanes. */
const secondLook: Rule = {
  from: 'no = v_queues[u.turn] and not paused and lowering is null and (v_choice.are_limited',
  to: 'true or (true',
}

/** Locks the lanes of a queue, as a claim of another process does. */
async function lockLanes(world: World): Promise<CallerTx> {
  const tx = await world.begin()
  const lane = await world.lane('mail')
  await tx.run('select holdfast.lock_lanes(array[$1::int, $2::int])', [lane, lane + 1])
  return tx
}

const ways: Readonly<Record<string, { readonly alone: boolean; claim(world: World): Promise<[string, unknown[]]> }>> = {
  'a claim': {
    alone: false,
    claim: async () => ["select unnest(ids) as id from holdfast.claim($1, 'w', 60000, 10, '{mail}', '{}', null)", []],
  },
  'a claim of a single job': {
    alone: true,
    claim: async (world) => [
      `select unnest(c.ids) as id from holdfast.lane l
        cross join lateral holdfast.claim_one($1, 'w', 60000, 10, 'mail', l.no, l.epoch, '{}', null) c where l.no = $2`,
      [await world.lane('mail')],
    ],
  },
}

/** Pauses the queue, or sets a limit, while a claim waits for its lanes. Returns what that claim took. */
async function claimedAfter(world: World, change: (other: Holdfast) => Promise<unknown>): Promise<unknown[]> {
  const other = await world.another()
  const lock = await lockLanes(world)
  const claimed = world.claim()
  await world.waiters(1, 0, 'claim')
  const changed = change(other)
  await Promise.race([changed, world.waiters(2)])
  await lock.commit()
  const [taken] = await Promise.all([claimed, changed])
  return taken
}

for (const [what, { alone, claim }] of Object.entries(ways)) {
  test(
    `${what} that waited for its lane while the queue was paused takes nothing`,
    inWorld(
      async (world) => {
        await world.enqueue('mail', 'a')
        assert.deepEqual(await claimedAfter(world, (other) => other.pause('mail')), [])
        await world.holdfast.resume('mail')
        assert.deepEqual(await world.claim(), ['a'])
      },
      { alone },
    ),
  )

  test(
    `a pause during ${what} is answered when the claim has ended`,
    inWorld(
      async (world) => {
        await world.enqueue('mail', 'a')
        const tx = await world.begin()
        const [text, values] = await claim(world)
        assert.equal((await tx.run(text, [randomUUID(), ...values])).length, 1)
        let isPaused = false
        const paused = world.holdfast.pause('mail').then(() => {
          isPaused = true
        })
        await Promise.race([paused, world.waiters(1)])
        assert.equal(isPaused, false)
        await tx.commit()
        await paused
        assert.equal((await world.holdfast.stats('mail')).running, 1)
      },
      { alone },
    ),
  )

  test(
    `${what} that waited for its lane while a limit was set takes no more than the limit`,
    inWorld(
      async (world) => {
        const limited = defineQueue('mail', { limit: { concurrency: 1 } })
        for (const payload of alone ? ['a'] : ['a', 'b', 'c']) await world.enqueue('mail', payload)
        const change = async (other: Holdfast) => void (await other.queue(limited).enqueue('d'))
        const first = await claimedAfter(world, change)
        await world.claim()
        assert.ok(first.length <= 1, `it took ${first.length}`)
        assert.equal((await world.holdfast.stats('mail')).running, 1)
      },
      { alone },
    ),
  )
}

test(
  'a claim of all queues, and of lanes of every priority, skips a queue that was paused meanwhile',
  inWorld(async (world) => {
    for (const priority of [0, 5, 9]) await world.enqueue('mail', `mail ${priority}`, { priority })
    await world.enqueue('post', 'letter')
    const other = await world.another()
    const lock = await lockLanes(world)
    const claimed = world.claim('*')
    await world.waiters(1, 0, 'claim')
    const paused = other.pause('mail')
    await Promise.race([paused, world.waiters(2)])
    await lock.commit()
    assert.deepEqual(await claimed, ['letter'])
    await paused
  }),
)

test(
  'if a claim does not read the queue again, it takes jobs of a paused queue',
  inWorld(
    async (world) => {
      await world.enqueue('mail', 'a')
      assert.deepEqual(await claimedAfter(world, (other) => other.pause('mail')), ['a'])
    },
    { without: [secondLook] },
  ),
)
