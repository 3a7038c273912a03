// A pause or a limit during claims that have begun: once it was answered, no claim uses the state before it.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { statementsOf } from './statements.ts'
import { type CallerTx, inWorld, type Rule, until, useDatabase, type World } from './world.ts'

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

test(
  'pauseAll waits for a claim that is at work, and then no claim takes a job',
  inWorld(async (world) => {
    await world.enqueue('mail', 'a')
    assert.deepEqual(await claimedAfter(world, (other) => other.pauseAll()), [])
    assert.deepEqual(await world.holdfast.resumeAll(), ['mail'])
    assert.deepEqual(await world.claim(), ['a'])
  }),
)

test(
  'pauseAll sends as many statements for 40 queues as for one',
  inWorld(async (world) => {
    const sent = statementsOf(world.pool)
    const countOf = async () => {
      const before = sent.length
      await world.holdfast.pauseAll()
      const count = sent.slice(before).filter((text) => !text.includes('pg_notify')).length // of earlier enqueues
      await world.holdfast.resumeAll()
      return count
    }
    await world.enqueue('q0', 1)
    await countOf()
    const one = await countOf()
    for (let n = 1; n < 40; n++) await world.enqueue(`q${n}`, n)
    assert.equal(await countOf(), one)
    assert.ok(one > 0 && one < 8, `${one} statements`) // begin, the change, its kept answer, commit, the look for claims
  }),
)

test(
  'a transaction that has the row of one queue delays pauseAll for that queue alone',
  inWorld(async (world) => {
    for (const queue of ['a', 'b', 'c']) await world.enqueue(queue, queue)
    const tx = await world.begin()
    await tx.run(`select from holdfast.queue where name = 'b' for update`, [])
    const paused = world.holdfast.pauseAll()
    const other = await world.another()
    const isPaused = async () => (await other.queues()).filter((queue) => queue.paused).length === 2
    await until(isPaused, 'the others are paused')
    await tx.commit()
    assert.deepEqual(await paused, ['a', 'b', 'c'])
    assert.deepEqual(await other.claim('*'), [])
  }),
)

test(
  'a pause whose time is over ends by a later sweep while a transaction has the row of the queue, and other pauses end at once',
  inWorld(async (world) => {
    for (const queue of ['a', 'b']) await world.holdfast.pause(queue, { for: 1 })
    const tx = await world.begin()
    await tx.run(`select from holdfast.queue where name = 'b' for update`, [])
    const paused = async () => (await world.holdfast.queues()).filter((queue) => queue.paused).map(({ name }) => name)
    await until(async () => {
      await world.holdfast.sweep()
      return (await paused()).join() === 'b'
    }, 'the pause of the other queue has ended')
    await tx.commit()
    await until(async () => {
      await world.holdfast.sweep()
      return (await paused()).length === 0
    }, 'the pause has ended')
  }),
)

test(
  'of several queues whose rows are locked, pauseAll pauses each as soon as it is free',
  inWorld(async (world) => {
    for (const queue of ['a', 'b']) await world.enqueue(queue, queue)
    const [first, second] = [await world.begin(), await world.begin()]
    await first.run(`select from holdfast.queue where name = 'a' for update`, [])
    await second.run(`select from holdfast.queue where name = 'b' for update`, [])
    const paused = world.holdfast.pauseAll()
    const other = await world.another()
    await second.commit()
    const isPaused = async () => (await other.queues()).some(({ name, paused: is }) => name === 'b' && is)
    await until(isPaused, 'b is paused while a is locked')
    await first.commit()
    assert.deepEqual(await paused, ['a', 'b'])
  }),
)

test(
  'a pause that was extended before the sweep got the lock of its queue does not end',
  inWorld(async (world) => {
    await world.holdfast.pause('mail', { for: 1 })
    const [row] = await world.rows(`select q.no from holdfast.queue q where q.name = 'mail'`)
    await world.holdfast.pause('mail', { for: '1h' }) // as if it came between the look and the lock
    const [ended] = await world.rows('select holdfast.end_pause($1, $2) as ended', [row?.['no'], Date.now()])
    assert.equal(ended?.['ended'], false)
    assert.equal((await world.holdfast.queues())[0]?.paused, true)
  }),
)
