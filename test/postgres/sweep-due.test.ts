// The look of an idle process at what is to be swept (`schema/functions/sweep-due.ts`), for each kind of work.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import { prune } from '../../src/store/postgres/schema/functions/prune.ts'
import {
  type DueLook,
  dueLooks,
  partsWithoutLook,
  sweepDue,
  tablesWithoutLook,
} from '../../src/store/postgres/schema/functions/sweep-due.ts'
import { claimOne } from '../conformance/expect.ts'
import { statementsOf } from './statements.ts'
import { inWorld, until, useDatabase, type World } from './world.ts'

useDatabase()

type Kind = keyof typeof dueLooks

/** Makes work of one kind, and of no other. */
const makes: Readonly<Record<Kind, (world: World) => Promise<unknown>>> = {
  'expired leases': async (world) => {
    await world.enqueue('mail', 1)
    await claimOne(world.holdfast, 'mail', { lease: 30 })
  },
  'leases from before the clock was set back': async (world) => {
    await world.enqueue('mail', 1)
    await claimOne(world.holdfast, 'mail', { lease: '1h' })
    await world.rows('update holdfast.lease set given_at = given_at + 7200000, expires_at = expires_at + 7200000')
  },
  'scheduled jobs': (world) => world.enqueue('mail', 1, { delay: 30 }),
  'rate windows': async (world) => {
    const limit = { rate: { count: 1, per: 30 } }
    await world.holdfast.queue('rated', { limit }).enqueue(1)
    await (await claimOne(world.holdfast, 'rated', { lease: '1h' })).done()
  },
  'jobs that missed their start': (world) => world.enqueue('mail', 1, { startBefore: Date.now() + 300 }),
  'pauses with a time': (world) => world.holdfast.pause('mail', { for: 30 }),
  'pauses from before the clock was set back': async (world) => {
    await world.holdfast.pause('mail', { for: '1h' })
    await world.rows('update holdfast.pause_end set until = until + 7200000')
  },
  'finished jobs': async (world) => {
    await world.enqueue('mail', 1)
    await (await claimOne(world.holdfast, 'mail')).done()
    await world.rows('update holdfast.ended_rest set keep_until = 1')
  },
  'key-value entries': (world) => world.holdfast.kv.put('k', 1, { ttl: 30 }),
  'dedup keys': (world) => world.enqueue('mail', 1, { dedup: { key: 'k', scope: { window: 30 } } }),
  'limit events': async (world) => {
    await world.holdfast.queue('limited', { limit: { concurrency: 1, key: 'k' } }).enqueue({ k: 'defines' })
    await swept(world)
    const tx = await world.begin()
    await tx.enqueue('limited', { k: 'held' })
    await tx.commit()
  },
  'lists of limit events': async (world) => {
    const held = world.holdfast.queue('limited', { limit: { concurrency: 1, key: 'k' } })
    await held.enqueue({ k: 'a' })
    await swept(world)
    await world.rows(
      `insert into holdfast.limit_event_list (no, xid, limit_keys)
       select 1, pg_current_xact_id(), array[limit_key] from holdfast.job where limit_key is not null`,
    )
  },
  'limits that are being lowered': async (world) => {
    await world.holdfast.queue('limited', { limit: { concurrency: 1, key: 'k' } }).enqueue({ k: 'a' })
    await swept(world)
    await world.rows(`update holdfast.queue set lowering = 1 where name = 'limited'`)
  },
  'wake events': async (world) => {
    const id = await world.enqueue('mail', 1)
    await world.rows(
      `insert into holdfast.wake_event (xid, at, id, seq)
       select pg_current_xact_id(), 0, j.id, j.seq from holdfast.job j where j.id = '${id}'`,
    )
  },
  'notices of ends': async (world) => {
    await world.enqueue('mail', 1)
    const job = { id: randomUUID(), queue: 'mail', onEnd: 'ends', state: 'done', attempts: 1, endedAt: 0 }
    await world.rows(`insert into holdfast.end_notice (no, xid, at, job) values (1, pg_current_xact_id(), 0, $1)`, [
      JSON.stringify({ ...job, result: null, error: null, annotations: null, labels: null, payload: '1' }),
    ])
  },
  'messages under keys': (world) =>
    world.rows(
      `insert into holdfast.message (no, key, name, value, at, expires_at, ttl_ms)
       values (1, 'k', 'paid', '1', 0, holdfast.now_ms(null) + 30, 30)`,
    ),
  'batches with chores': async (world) => {
    await world.holdfast.batch({ name: 'b' }, [{ queue: 'mail', payload: 1 }])
    await world.rows('update holdfast.batch set is_cancelled = true')
  },
  'open batches': async (world) => {
    await world.holdfast.batch({ name: 'b' }, [{ queue: 'mail', payload: 1 }])
    await (await claimOne(world.holdfast, 'mail')).done()
    await world.rows('update holdfast.batch set finished_at = null')
  },
  'batches after their retention': (world) => world.holdfast.batch({ name: 'b', retain: 30 }),
  'counts of error groups to fold': async (world) => {
    await world.holdfast.queue('mail').enqueue(1)
    await world.rows(
      `insert into holdfast.error_tally (queue, fingerprint, dead)
       select q.no, 'none', n.n % 2 * 2 - 1 from holdfast.queue q cross join generate_series(1, 100) n(n) where q.name = 'mail'`,
    )
  },
  'counts to fold': async (world) => {
    for (let n = 0; n < 100; n++) await world.enqueue('mail', n)
  },
}

for (const kind of Object.keys(dueLooks) as Kind[]) {
  test(
    `${kind} are found to be due by their own line alone, and are swept`,
    inWorld(async (world) => {
      const isDue = async () => {
        const text = `select is_due from holdfast.sweep_due(0, '0', $1, 2000, 'none.')`
        return (await world.rows(text, [kind === 'open batches']))[0]?.['is_due'] as boolean
      }
      assert.equal(await isDue(), false)
      await makes[kind](world)
      await until(isDue, 'it is due')
      const { nextAt, isDue: condition }: DueLook = dueLooks[kind]
      await world.withoutRule(
        condition ? { from: condition, to: 'false' } : { from: `(${nextAt})`, to: 'null::bigint' },
      )
      assert.equal(await isDue(), false, 'no other line finds it')
      await world.rows(sweepDue.replace('create function', 'create or replace function'))
      assert.equal(await isDue(), true)
      // Counts are folded once no older transaction runs on the server, also of other tests.
      await until(async () => {
        await swept(world)
        return !(await isDue())
      }, 'it is swept')
    }),
  )
}

test(
  'every part of a sweep has a line in the look, or is listed as one that needs none',
  inWorld(async (world) => {
    await world.enqueue('mail', 1)
    const sent = statementsOf(world.pool)
    await world.holdfast.sweep() // the first sweep of a process makes every part
    const schema = world.schema.quoted
    const used = sent.flatMap((text) => text.split(`${schema}.`).slice(1)).map((rest) => /^\w+/.exec(rest)?.[0] ?? '')
    const known = [
      ...Object.values(dueLooks).map(({ part }) => part),
      ...partsWithoutLook,
      ...['now_ms', 'next_due'], // read the time, and what is due next
      ...['job', 'kv'], // whether this role may write; definitions and workers
    ]
    assert.ok(used.includes('expired_leases') && used.includes('fold'), `a whole sweep was made: ${used}`)
    assert.deepEqual(
      used.filter((name) => !known.includes(name)),
      [],
    )
  }),
)

test('every table that is pruned has a line in the look, or is listed as one that needs none', () => {
  const pruned = [...prune.matchAll(/delete from holdfast\.(\w+)/g)].map(([, table]) => table as string)
  assert.ok(pruned.length > 3)
  assert.deepEqual(
    pruned.filter((table) => !tablesWithoutLook.includes(table) && !sweepDue.includes(`from holdfast.${table} `)),
    [],
  )
})

/** Sweeps as a process does that has just started, until nothing is left. */
async function swept(world: World): Promise<void> {
  const sweeper = await world.another()
  for (let sweeps = 0; sweeps < 3; sweeps++) await sweeper.sweep()
}
