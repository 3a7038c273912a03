// What a watch sees if transactions begin, change jobs and commit in any order.
import assert from 'node:assert/strict'
import test from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { JobChange, Watch, WatchFilter } from '../../src/client/watch.ts'
import { touched } from './plans.ts'
import { inWorld, type Rule, useDatabase, type World } from './world.ts'

useDatabase()

const inProgress: Rule = { from: 'from unnest(v_open) o(xid)', to: "from unnest('{}'::xid8[]) o(xid)" }
async function lateCommit(world: World): Promise<string[]> {
  await using watch = await begun(world)
  const early = await world.begin()
  await early.enqueue('early', 1)
  await world.enqueue('meanwhile', 1)
  const seen = await next(watch, 1)
  await early.commit()
  await world.enqueue('last', 1)
  return [...seen, ...(await nextUntil(watch, 'last'))].map(({ queue }) => queue)
}

test(
  'changes of a transaction that commits late are seen, although newer changes were seen before',
  inWorld(async (world) => assert.deepEqual(await lateCommit(world), ['meanwhile', 'early', 'last'])),
)

test(
  'if transactions in progress are ignored, changes of a late commit are lost',
  inWorld(async (world) => assert.deepEqual(await lateCommit(world), ['meanwhile', 'last']), { without: [inProgress] }),
)

test(
  'a repeatable read transaction that began before the first watch records its later changes',
  inWorld(async (world) => {
    const old = await world.begin('begin isolation level repeatable read')
    await old.run('select count(*) from holdfast.job')
    await using watch = await begun(world)
    await old.enqueue('old', 1)
    await old.commit()
    assert.deepEqual(
      (await next(watch, 1)).map(({ queue }) => queue),
      ['old'],
    )
  }),
)

test(
  'a watch begins when the transactions that changed something before it have ended',
  inWorld(async (world) => {
    const before = await world.begin()
    await before.enqueue('before', 1)
    const watch = world.holdfast.watch()
    const first = await Promise.race([watch.begun.then(() => 'begun'), sleep(200).then(() => 'waits')])
    assert.equal(first, 'waits')
    await before.commit()
    await watch.begun
    await world.enqueue('after', 1)
    assert.deepEqual(
      (await next(watch, 1)).map(({ queue }) => queue),
      ['after'],
    )
    await watch.return()
  }),
)

test(
  'a transaction that stays open delays a watch only briefly, and changes of others are seen',
  inWorld(async (world) => {
    const open = await world.begin()
    await open.enqueue('open', 1)
    await using watch = await begun(world)
    await world.enqueue('after', 1)
    assert.deepEqual(
      (await next(watch, 1)).map(({ queue }) => queue),
      ['after'],
    )
    await open.commit()
  }),
)

test(
  'each change of transactions that commit in any order, with savepoints and rollbacks, is seen once, in order',
  inWorld(async (world) => {
    await using watch = await begun(world)
    const committed: string[] = []
    const produce = async (_: unknown, producer: number) => {
      const tx = await world.begin()
      for (let round = 0; round < 15; round++) {
        if (round > 0) await tx.run('begin')
        const ids = [await tx.enqueue('mail', round)]
        await tx.run('savepoint one')
        await tx.enqueue('mail', 'undone')
        await tx.run('rollback to savepoint one')
        ids.push(await tx.enqueue('mail', 'again'))
        await sleep(Math.random() * 20)
        const isUndone = (round * 7 + producer) % 10 < 3
        await (isUndone ? tx.rollback() : tx.commit())
        if (!isUndone) committed.push(...ids)
      }
    }
    const drain = async () => {
      for (let left = 200; left > 0; left--) {
        const leases = await world.holdfast.claim(['mail'], { max: 1 + (left % 20) })
        await Promise.all(leases.map((lease) => lease.done()))
        await sleep(Math.random() * 10)
      }
    }
    const seen = readOn(world, watch.cursor as string, 'last')
    await Promise.all([...Array.from({ length: 12 }, produce), drain(), drain()])
    for (const lease of await world.holdfast.claim(['mail'], { max: 1_000 })) await lease.done()
    await world.enqueue('last', 1)
    const states = Object.groupBy(await seen, ({ id }) => id)
    const seenStates = committed.map((id) => states[id]?.map(({ state }) => state).join(' '))
    assert.deepEqual(new Set(seenStates), new Set(['ready running done']))
    assert.equal(Object.keys(states).length, committed.length + 1, 'and nothing of what was rolled back')
  }),
)

/** Reads until a change of that queue. After every few changes a new watch continues from the cursor. */
async function readOn(world: World, from: string, queue: string): Promise<JobChange[]> {
  const changes: JobChange[] = []
  for (let after = from; changes.at(-1)?.queue !== queue; after = changes.at(-1)?.cursor as string) {
    await using watch = world.holdfast.watch({ after })
    for (let left = 1 + (changes.length % 10); left > 0 && changes.at(-1)?.queue !== queue; left--) {
      changes.push(...(await next(watch, 1)))
    }
  }
  return changes
}

test(
  'missed changes are read in pages, none of them twice',
  inWorld(async (world) => {
    await using watch = await begun(world)
    const late = await world.begin()
    await late.enqueue('late', 1)
    await world.enqueue('mail', 0)
    assert.equal((await next(watch, 1)).length, 1)
    await late.commit()
    await world.rows(`select holdfast.tell($1, 'ready', array[gen_random_uuid()], 0) from generate_series(1, 699)`, [
      await queueNo(world),
    ])
    const seen = await next(watch, 700)
    assert.equal(new Set(seen.map(({ id }) => id)).size, 700)
  }),
)

test(
  'after a crash of the server a watch reports that changes were lost',
  inWorld(async (world) => {
    await using watch = await begun(world)
    await world.enqueue('mail', 1)
    const [change] = await next(watch, 1)
    await world.rows('truncate holdfast.change, holdfast.watch_log') // as a crash does to unlogged tables
    for (const lost of [watch, world.holdfast.watch({ after: change?.cursor as string })]) {
      await assert.rejects(lost.next(), { code: 'INVALID_OPTION', message: /no longer kept/ })
    }
  }),
)

test(
  'neither reading nor pruning scans the rows that an old snapshot keeps',
  inWorld(async (world) => {
    await using watch = await begun(world)
    const old = await world.begin('begin isolation level repeatable read')
    await old.run('select count(*) from holdfast.change')
    const client = await world.connect()
    const blocks = (call: string) => touched(client, world.schema.sql(call))
    const look = async (watching: Watch) => {
      const [era, from, no, ahead] = (watching.cursor as string).split('.')
      return blocks(
        `select * from holdfast.changes('${era}', '${from}', ${no}, null, ${ahead}, 0, null, null, null, 250, null, 0, 5000, 16777216)`,
      )
    }
    const prune = (laterMs: number) => blocks(`select holdfast.prune_changes(holdfast.now_ms(null) + ${laterMs})`)
    await world.enqueue('mail', 1)
    const few = await look(watch)
    await world.rows(
      `insert into holdfast.change (xid, at, queue, state, jobs, ids)
       select pg_current_xact_id(), 0, q.no, 'ready', 1, array[gen_random_uuid()]
         from holdfast.queue q, generate_series(1, 20000)`,
    )
    await otherTransactionsHaveEnded(world)
    for (const laterMs of [11_000, 140_000]) await prune(laterMs)
    assert.deepEqual(await world.rows('select count(*)::int kept from holdfast.change'), [{ kept: 0 }])
    await using fresh = await begun(world)
    await world.enqueue('mail', 2)
    const many = await look(fresh)
    assert.ok(many < few + 50, `${few} blocks, then ${many}`)
    await prune(11_000) // starts at the beginning, once
    const pruned = await prune(22_000)
    assert.ok(pruned < 100, `${pruned} blocks to prune nothing`)
    await old.rollback()
  }),
)

/** Waits for all transactions of this server, also of other tests: rows that are newer than theirs are kept. */
async function otherTransactionsHaveEnded(world: World): Promise<void> {
  const [now] = await world.rows('select pg_current_xact_id()::text xid')
  const hasEnded = `select pg_snapshot_xmin(pg_current_snapshot()) > '${now?.['xid']}'::xid8 ended`
  while ((await world.rows(hasEnded))[0]?.['ended'] !== true) await sleep(100)
}

async function queueNo(world: World): Promise<number> {
  const [row] = await world.rows(`select no from holdfast.queue where name = 'mail'`)
  return row?.['no'] as number
}

async function begun(world: World, filter: WatchFilter = {}): Promise<Watch> {
  const watch = world.holdfast.watch(filter)
  await watch.begun
  return watch
}

async function next(watch: Watch, count: number): Promise<JobChange[]> {
  const changes: JobChange[] = []
  while (changes.length < count) {
    const { value, done } = await watch.next()
    if (done) assert.fail('the watch ended')
    changes.push(value)
  }
  return changes
}

async function nextUntil(watch: Watch, queue: string): Promise<JobChange[]> {
  const changes: JobChange[] = []
  while (changes.at(-1)?.queue !== queue) changes.push(...(await next(watch, 1)))
  return changes
}
