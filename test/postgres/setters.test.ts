// SQL effects of one job may set a setting, a role or a temporary table. The effects of another job never see it, although the
// jobs of a flush are settled together and connections are reused.
import assert from 'node:assert/strict'
import test, { describe } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import type { Effects } from '../../src/queue/effects.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { leavesByText } from '../../src/store/postgres/sql-leftovers.ts'
import { VirtualClock } from '../../src/testing/index.ts'
import { allJobs } from '../conformance/expect.ts'
import { inWorld, useDatabase, type World } from './world.ts'

useDatabase()

type Sql = NonNullable<Effects['sql']>

/** Each sets the tenant, the role or a temporary table for the statement after it. */
const ways: Readonly<Record<string, readonly string[]>> = {
  'set_config for the transaction': [
    `select set_config('app.tenant', 'a', true), set_config('search_path', 'other', true)`,
  ],
  'set_config for the session': [`select set_config('app.tenant', 'a', false)`],
  'a function that sets': [`select holdfast.as_tenant('a')`],
  'a function with a quoted name, after a comment': [`select holdfast."as_tenant" /* x */ ('a')`],
  'a block that sets': [`do $$ begin perform set_config('app.tenant', 'a', true); end $$`],
  'a trigger that sets': ['insert into holdfast.touched values (1)'],
  'a temporary table': [
    `create temporary table seen (job text, tenant text default 'a', role text default current_user)`,
  ],
  'a temporary table that is dropped at commit': [
    `create temp table seen (job text, tenant text default 'a', role text default current_user) on commit drop`,
  ],
  'a role': [`select set_config('role', 'pg_monitor', true)`],
}

describe('what the SQL effects of a job set', () => {
  for (const [what, texts] of Object.entries(ways))
    for (const isOwn of [true, false])
      test(
        `${what} holds for that job alone (${isOwn ? 'own connections' : 'connections of the application'})`,
        inWorld(async (world) => {
          await makeTables(world)
          const url = new URL(world.url)
          url.searchParams.set('schema', world.schema.name)
          await using own = isOwn ? await open(url.href, { logger: false }) : null
          const holdfast = own ?? world.holdfast
          const see = (job: string): Sql[number] => ({ text: 'insert into seen (job) values ($1)', values: [job] })
          const sql = (text: string): Sql[number] => ({ text: world.schema.sql(text) })
          for (const round of [1, 2, 3]) {
            await settleTogether(holdfast, [
              [see(`before ${round}`)],
              [
                ...texts.map(sql),
                sql(
                  `insert into holdfast.kept select coalesce(current_setting('app.tenant', true), '') || current_user`,
                ),
              ],
              [see(`after ${round}`)],
              [see(`last ${round}`)],
            ])
          }
          const seen = await world.rows(`select job, tenant, role from public.seen where job ~ ' ' order by job`)
          const jobs = ['after', 'before', 'last'].flatMap((job) => [1, 2, 3].map((round) => `${job} ${round}`))
          assert.deepEqual(
            seen.map(({ job, tenant, role }) => [job, tenant, role]),
            jobs.map((job) => [job, '', 'postgres']),
          )
          const kept = (await world.rows('select what from holdfast.kept')).map(({ what }) => what)
          const expected = { 'a role': 'pg_monitor' }[what] ?? (what.includes('temporary') ? 'postgres' : 'apostgres')
          assert.deepEqual(kept, [expected, expected, expected], 'the job itself sees what it set')
        }),
      )

  test(
    'is not seen by the effects of another cancel in the same sweep, nor by concurrent cancels',
    inWorld(async (world) => {
      await makeTables(world)
      const clock = new VirtualClock()
      await using holdfast = await open(postgres({ pool: world.pool, schema: world.schema.name, listen: false }), {
        clock,
      })
      await holdfast.queue('mail').enqueueMany([1, 2, 3, 4].map((payload) => ({ payload })))
      const leases = await holdfast.claim(['mail'], { max: 2, lease: '1s' })
      const set = { text: `select set_config('app.tenant', 'a', true)` }
      const see = (job: string) => ({ text: 'insert into public.seen (job) values ($1)', values: [job] })
      await holdfast.cancel(leases[0]?.job.id as string, { effects: { sql: [set] } })
      await holdfast.cancel(leases[1]?.job.id as string, { effects: { sql: [see('swept')] } })
      clock.advance(60_000)
      assert.equal((await holdfast.sweep()).rescued, 2)
      const ready = (await allJobs(holdfast, { queue: 'mail' })).filter(({ state }) => state === 'ready')
      await Promise.all(
        ready.map(({ id }, i) => holdfast.cancel(id, { effects: { sql: i === 0 ? [set] : [see('cancelled')] } })),
      )
      const seen = await world.rows("select job, tenant from public.seen where job !~ ' ' order by job")
      assert.deepEqual(seen, [
        { job: 'cancelled', tenant: '' },
        { job: 'swept', tenant: '' },
      ])
    }),
  )
})

test('the text of a statement shows what it may leave behind, if possible', () => {
  const texts: readonly [string, string][] = [
    ['insert into t values ($1)', 'nothing'],
    ['update t set x = $1', 'nothing'],
    [`select set_config('a.b', $1, true)`, 'local'],
    [`select set_config('a.b', 'it''s (x', TRUE ), SET_CONFIG('c', 'd', true)`, 'local'],
    [`select set_config('a.b', $1, false)`, 'anything'],
    [`select set_config('a.b', '${"''".repeat(1_000)}', f(1))`, 'anything'], // two ways to read each pair: 2^1000 in all
    [`select set_config('a.b', $1, $2)`, 'anything'],
    [`select set_config('a', 'b', true), set_config('c', 'd', false)`, 'anything'],
    [`select "set_config"('a', 'b', true)`, 'anything'],
    ['select 1 as x into temp t', 'anything'],
    ['call p()', 'anything'],
    ['/* x */ do $$ begin end $$', 'anything'],
  ]
  for (const [text, leaves] of texts) assert.equal(leavesByText(text), leaves, text)
})

async function makeTables(world: World): Promise<void> {
  await world.rows(`create table if not exists public.seen
    (job text, tenant text default coalesce(current_setting('app.tenant', true), ''), role text default current_user)`)
  await world.rows('truncate public.seen')
  await world.rows('create table holdfast.kept (what text)')
  await world.rows('grant insert on holdfast.kept to public')
  await world.rows(`grant usage on schema ${world.schema.quoted} to public`)
  await world.rows(`create function holdfast.as_tenant(p text) returns void language plpgsql as $$
    begin perform set_config('app.tenant', p, true); end $$`)
  await world.rows('create table holdfast.touched (n int)')
  await world.rows(`create function holdfast.touch() returns trigger language plpgsql as $$
    begin perform set_config('app.tenant', 'a', true); return null; end $$`)
  await world.rows('create trigger touch after insert on holdfast.touched execute function holdfast.touch()')
}

/** In one flush: the jobs are settled at the same moment. */
async function settleTogether(holdfast: Holdfast, sqls: readonly Sql[]): Promise<void> {
  await holdfast.queue('mail').enqueueMany(sqls.map((_, payload) => ({ payload })))
  const leases = await holdfast.claim(['mail'], { max: sqls.length })
  await Promise.all(leases.map((lease, i) => lease.done(null, { sql: sqls[i] as Sql })))
}
