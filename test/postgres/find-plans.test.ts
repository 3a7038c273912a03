// A page of a listing reads a bounded number of blocks, whatever the filter, the number of jobs and the statistics of the server.
// Judged by blocks, never by time.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { type TestContext, test } from 'node:test'
import type { JobsFilter } from '../../src/client/filter.ts'
import { setup, useDatabase, type World } from './world.ts'

useDatabase()

const jobs = 100_000

/** 100,000 jobs are some 1,800 blocks. A look at a job reads its row and a part of an index; a full page may read ahead. */
const blocksALook = 3
const slack = 600

test('a page reads a few blocks for each job that it looks at, with any filter, and scans no table', {
  timeout: 240_000,
}, async (t) => {
  await using world = await setup()
  const { holdfast } = world
  const batch = await holdfast.batch({ name: 'items', concurrency: 2 }, [{ queue: 'mail', payload: { n: 1 } }])
  const { id } = await holdfast.queue('mail').enqueue({ n: 1 }, { dedup: { key: 'k' } })
  for (const delay of [0, 60_000]) await holdfast.queue('mail').enqueue({ n: 1 }, { delay })
  await (await holdfast.claim(['mail'], { max: 1, worker: 'w1' }))[0]?.done()
  const filters: Record<string, JobsFilter> = {
    ...{
      everything: {},
      ready: { state: 'ready' },
      scheduled: { state: 'scheduled' },
      held: { state: 'held' },
      done: { state: 'done' },
    },
    ...{
      ids: { ids: [id, randomUUID()] },
      batch: { batch: batch.id },
      key: { queue: 'mail', state: 'ready', dedupKey: 'k' },
    },
    ended: { ended: { since: 5_000, before: 5_050 } },
    'ended and a worker': { ended: { before: 2_000 }, worker: 'w2' },
    ...{ 'a worker': { worker: 'nowhere' }, enqueued: { enqueued: { before: 1 } }, error: { error: 'nothing' } },
    ...{ payload: { payload: { path: 'n', equals: -1 } }, attempts: { attempts: 7 } },
  }
  await fill(world, jobs)
  for (const name of ['a worker', 'ready']) {
    const filter = { ...filters[name], ...(name === 'ready' && { limit: 1_000 }) }
    let after = (await holdfast.jobs(filter)).next
    for (let i = 0; i < 3; i++) after = (await holdfast.jobs({ ...filter, after: after ?? '' })).next
    filters[`${name}, some pages later`] = { ...filter, after: after ?? '' }
  }
  await judge(t, world, filters, 'with old statistics')
  await world.rows('analyze holdfast.job')
  await world.rows('analyze holdfast.ended')
  await judge(t, world, filters, 'with new statistics')
})

async function judge(t: TestContext, world: World, filters: Readonly<Record<string, JobsFilter>>, when: string) {
  const seen: string[] = []
  for (const [name, filter] of Object.entries(filters)) {
    const { looked, blocks, scans } = await costsOf(world, filter)
    seen.push(`${name} ${blocks} for ${looked}`)
    assert.deepEqual(scans, [], `${name} ${when} scans a table`)
    assert.ok(blocks <= looked * blocksALook + slack, `${name} ${when}: ${blocks} blocks for ${looked} jobs`)
  }
  t.diagnostic(`${when}: ${seen.join(', ')}`)
}

interface Sent {
  readonly text: string
  readonly values: unknown[]
}

/** Blocks that all statements of one call read, from memory or disk, when they are run again, and the tables that they scan. */
async function costsOf(world: World, filter: JobsFilter) {
  const sent: Sent[] = []
  const client = await world.pool.connect()
  const query = client.query
  client.query = ((...args: [Sent]) => {
    sent.push({ text: args[0].text, values: args[0].values })
    return (query as (...args: unknown[]) => unknown).apply(client, args)
  }) as never
  client.release() // the pool hands out the connection that was used last
  const { looked } = await world.holdfast.jobs(filter)
  client.query = query
  assert.ok(sent.length > 0)
  const scans: string[] = []
  let blocks = 0
  for (const { text, values } of sent) {
    if (!/^\s*(select|with)/.test(text) || text.includes('set_config')) continue
    const explain = { text: `explain (analyze, buffers, timing off, format json) ${text}`, values }
    await world.pool.query(explain) // the first run also reads the catalogs
    const [{ Plan: plan }] = (await world.pool.query(explain)).rows[0]['QUERY PLAN']
    blocks += plan['Shared Hit Blocks'] + plan['Shared Read Blocks']
    scans.push(...scannedIn(plan))
  }
  return { looked, blocks, scans, statements: sent.length }
}

interface PlanNode {
  readonly 'Node Type': string
  readonly 'Relation Name'?: string
  readonly Plans?: readonly PlanNode[]
}

function scannedIn(plan: PlanNode): string[] {
  const name = plan['Relation Name'] ?? ''
  const isScan = plan['Node Type'] === 'Seq Scan' && /^(job|ended)/.test(name)
  return [...(isScan ? [name] : []), ...(plan.Plans ?? []).flatMap(scannedIn)]
}

/** Jobs that are ready, scheduled, held and done, as many of each, with their counts. */
async function fill(world: World, count: number): Promise<void> {
  const lane = `(select l.no from holdfast.lane l join holdfast.queue q on q.no = l.queue where q.name = 'mail' and l.batch = 0)`
  const columns = 'seq, ord, ready_xid, run_at, created_at, id, lane, max_attempts, payload'
  const numbers = `(select nextval('holdfast.number') as n from generate_series(1, $1::int)) s`
  const row = (xid: string) => `n, n, ${xid}, n, 5, gen_random_uuid(), ${lane}, 25, '{"n":' || n || '}'`
  for (const xid of ['pg_current_xact_id()', 'null'])
    await world.rows(`insert into holdfast.job (${columns}) select ${row(xid)} from ${numbers}`, [count])
  await world.rows(
    `insert into holdfast.job (${columns}, is_held, limit_key)
     select n, n + (1::bigint << 56), null, n, 5, gen_random_uuid(), ${lane}, 25, '1', true, '1:k' from ${numbers}`,
    [count],
  )
  await world.rows(
    `insert into holdfast.ended (seq, finished_at, keep_until, retention_class, run_at, created_at, id, queue, priority, state,
       attempts, max_attempts, attempt, started_at, worker, ending, payload)
     select n, n % 10000, 1e15::bigint, 0, 5, 5, gen_random_uuid(), (select no from holdfast.queue where name = 'mail'), 5, 'done',
            1, 25, 1, 5, 'w1', 'done', '{"n":' || n || '}' from ${numbers}`,
    [count],
  )
  await world.rows(
    `insert into holdfast.tally (queue, xid, ready, scheduled, held, done)
     select no, pg_current_xact_id(), $1, $1, $1, $1 from holdfast.queue where name = 'mail'`,
    [count],
  )
}

test('a page of running jobs reads each lease of its queue and its job once, whatever the statistics say', {
  timeout: 120_000,
}, async (t) => {
  await using world = await setup()
  for (const queue of ['busy', 'other']) await world.holdfast.queue(queue).enqueue({})
  await world.rows('analyze') // of empty tables
  const running = 3_000
  for (const queue of ['busy', 'other']) await run(world, queue, running)
  const seen: string[] = []
  for (const when of ['old', 'new']) {
    for (const state of ['running', ['running', 'ready']] as const) {
      const filter: JobsFilter = { queue: 'busy', state }
      const { next } = await world.holdfast.jobs(filter)
      for (const after of [undefined, next as string]) {
        const { looked, blocks } = await costsOf(world, { ...filter, ...(after !== undefined && { after }) })
        assert.equal(looked, 100)
        seen.push(`${when} ${state} ${blocks}`)
        assert.ok(blocks <= running * 4 + slack, `${state}, ${when} statistics: ${blocks} blocks`)
      }
    }
    await world.rows('analyze')
  }
  t.diagnostic(seen.join(', '))
})

test('a page over many lists with few jobs each takes a few statements', { timeout: 120_000 }, async () => {
  await using world = await setup()
  const { holdfast } = world
  const queues = Array.from({ length: 300 }, (_, i) => `q${i}`)
  for (let i = 0; i < queues.length; i += 50) {
    const some = queues.slice(i, i + 50)
    await Promise.all(
      some.map((name) => holdfast.queue(name).enqueueMany([{ payload: { n: i } }, { payload: { n: i } }])),
    )
    await Promise.all(some.map(async (name, n) => (await holdfast.claim([name]))[0]?.[n % 2 ? 'done' : 'dead'](n)))
  }
  for (const [filter, looked] of [
    [{}, 100],
    [{ limit: 1_000 }, 600],
    [{ payload: { path: 'n', equals: -1 } }, 600],
    [{ state: 'dead', error: 'nothing' }, 150],
  ] as const) {
    const costs = await costsOf(world, filter)
    assert.equal(costs.looked, looked)
    assert.ok(costs.statements <= 5, `${JSON.stringify(filter)}: ${costs.statements} statements`)
    assert.deepEqual(costs.scans, [])
  }
})

/** Jobs that run, each under a lease of its own. */
async function run(world: World, queue: string, count: number): Promise<void> {
  const lane = `(select l.no from holdfast.lane l join holdfast.queue q on q.no = l.queue where q.name = '${queue}')`
  await world.rows(
    `with added as (
       insert into holdfast.job (seq, ord, ready_xid, run_at, created_at, id, lane, max_attempts, payload)
       select n, n, pg_current_xact_id(), n, 5, gen_random_uuid(), ${lane}, 25, '1'
         from (select nextval('holdfast.number') as n from generate_series(1, $1::int)) s returning *)
     insert into holdfast.lease (token, lane, worker, started_at, given_at, expires_at, xids, ords)
     select gen_random_uuid(), lane, 'w', 5, 5, 1e15::bigint, array[ready_xid], array[ord] from added`,
    [count],
  )
  const counts =
    'insert into holdfast.tally (queue, xid, running) select no, pg_current_xact_id(), $1 from holdfast.queue where name = $2'
  await world.rows(counts, [count, queue])
}
