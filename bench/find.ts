// What a page of a listing costs in a store with a million jobs, filter by filter, on either store.
//
// Half of the jobs are ready and half are done, in ten queues. Some more are items of a batch, have a label, or are dead. Done
// jobs are made by SQL: ready jobs of some queues are moved to the ended jobs, with their counts, as settlements leave them. All
// is read through the public API. A run whose counts are wrong, or whose page is not full, gives no figure.

import { DatabaseSync } from 'node:sqlite'
import pg from 'pg'
import type { JobsFilter } from '../src/client/filter.ts'
import { type Holdfast, open, postgres } from '../src/index.ts'
import { roundUp } from './lines.ts'
import { dropSchema } from './postgres-contenders.ts'
import { benchServer } from './postgres-place.ts'
import { showProgress } from './progress.ts'
import type { Line, Section } from './report.ts'
import type { BenchOptions } from './run.ts'
import { Files } from './sqlite-files.ts'

const group = 10_000
const queues = 10
const items = 1_000
const schema = 'holdfast_find'
const startMs = Date.UTC(2026, 0, 1)

/** Ends all ready jobs of these queues, each at a time of its own. */
type EndAll = (names: readonly string[]) => Promise<void>

export async function* findBench({ directory, jobs, rounds, isQuick, only }: BenchOptions): AsyncGenerator<Section> {
  const count = roundUp(jobs ?? (isQuick ? 100_000 : 1_000_000), group * queues)
  const samples = rounds ?? (isQuick ? 5 : 15)
  if ('SQLite'.includes(only)) yield await onSqlite(new Files(directory).next(), count, samples)
  if (!'PostgreSQL'.includes(only)) return
  showProgress('starting a server')
  await using server = await benchServer()
  yield await onPostgres(server.url, count, samples)
}

async function onSqlite(path: string, count: number, samples: number): Promise<Section> {
  const holdfast = await open(`sqlite:${path}`)
  try {
    return await measure('SQLite', { holdfast, count, samples }, async (names) => endInFile(path, names))
  } finally {
    await holdfast.close()
  }
}

async function onPostgres(url: string, count: number, samples: number): Promise<Section> {
  const holdfast = await open(postgres({ url, schema }))
  try {
    return await measure('PostgreSQL', { holdfast, count, samples }, (names) => endInSchema(url, names))
  } finally {
    await holdfast.close()
    await dropSchema(url, schema)
  }
}

interface Run {
  readonly holdfast: Holdfast
  readonly count: number
  readonly samples: number
}

async function measure(store: string, { holdfast, count, samples }: Run, endAll: EndAll): Promise<Section> {
  const names = Array.from({ length: queues }, (_, i) => `queue-${i}`)
  const { id, ids } = await enqueueAll(holdfast, names, count)
  const batch = await holdfast.batch(
    { name: 'items' },
    Array.from({ length: items }, (_, n) => ({ queue: 'items', payload: { n } })),
  )
  await holdfast
    .queue('labelled')
    .enqueueMany(Array.from({ length: items }, (_, n) => ({ payload: { n }, labels: { customer: `c${n % 2}` } })))
  const errorGroup = await die(holdfast)
  showProgress(`${store}: ending half of the jobs`)
  await endAll(names.filter((_, i) => i % 2 === 1))
  const { count: done } = await holdfast.count({ state: 'done' })
  if (done !== count / 2) throw new Error(`${store}: ${done} jobs are done, not ${count / 2}`)
  const middle = startMs + count / (2 * queues)
  const filters: Readonly<Record<string, JobsFilter>> = {
    everything: {},
    'a queue and ready': { queue: 'queue-8', state: 'ready' },
    'a queue and done': { queue: 'queue-9', state: 'done' },
    '100 ids': { ids },
    'a batch': { batch: batch.id },
    'a label': { labels: { customer: 'c1' } },
    'an error group': { queue: 'dying', errorGroup },
    'ended within a time': { queue: 'queue-9', ended: { since: startMs, before: middle } },
    'holder of a dedup key': { queue: 'keys', dedupKey: 'k' },
    'a payload, found at once': { queue: 'queue-8', payload: { path: 'kind', equals: 'usual' } },
    'a worker, not found: 10,000 jobs': { worker: 'nowhere' },
    'a payload, not found: 10,000 jobs': { payload: { path: 'kind', equals: 'none' } },
  }
  const lines: Line[] = []
  for (const [name, filter] of Object.entries(filters)) {
    showProgress(`${store}: ${name}`)
    const figures: number[] = []
    let page = await holdfast.jobs(filter) // the first plans
    for (let i = 0; i < samples; i++) {
      const from = performance.now()
      page = await holdfast.jobs(filter)
      figures.push(performance.now() - from)
    }
    const isWhole = name.includes('not found')
      ? page.looked === 10_000
      : page.jobs.length === (name.includes('holder') ? 1 : 100)
    if (!isWhole) throw new Error(`${store}: the page of ${name} has ${page.jobs.length} jobs of ${page.looked}`)
    lines.push({
      name,
      unit: 'ms',
      rounds: { page: figures },
      annotation: `${page.jobs.length} of ${page.looked} looked at`,
    })
  }
  if (ids.includes(id)) throw new Error('the ids are not distinct')
  return { title: `${store}: a page of 100 among ${count.toLocaleString('en')} jobs`, columns: ['page'], lines }
}

async function enqueueAll(holdfast: Holdfast, names: readonly string[], count: number) {
  const ids: string[] = []
  for (let from = 0; from < count; from += group) {
    showProgress(`enqueuing ${from.toLocaleString('en')} of ${count.toLocaleString('en')}`)
    const queue = holdfast.queue(names[(from / group) % names.length] as string)
    const added = await queue.enqueueMany(
      Array.from({ length: group }, (_, i) => ({ payload: { n: from + i, kind: 'usual', text: 'x'.repeat(60) } })),
    )
    if (ids.length < 100) ids.push(...added.slice(0, 10).map(({ id }) => id))
  }
  const { id } = await holdfast.queue('keys').enqueue({}, { dedup: { key: 'k' } })
  return { id, ids: ids.slice(0, 100) }
}

/** Dead jobs with one of two errors; answers the group of the first. */
async function die(holdfast: Holdfast): Promise<string> {
  const dying = holdfast.queue('dying', { attempts: 1 })
  await dying.enqueueMany(Array.from({ length: items }, (_, n) => ({ payload: { n } })))
  const leases = await dying.claim({ max: items, lease: '5m' })
  await Promise.all(leases.map((lease, n) => lease.dead(new Error(n % 2 === 0 ? `no answer to ${n}` : 'refused'))))
  const { groups } = await holdfast.deadGroups({ queue: 'dying' })
  const group = groups.find(({ message }) => message.startsWith('no answer'))
  if (group?.dead !== items / 2) throw new Error(`${group?.dead} jobs are dead of the first error, not ${items / 2}`)
  return group.group
}

function endInFile(path: string, names: readonly string[]): void {
  const db = new DatabaseSync(path)
  db.exec('begin immediate')
  for (const name of names) {
    const { no } = db.prepare('select no from holdfast_queue where name = ?').get(name) as { no: number }
    const { next } = db.prepare('update holdfast_meta set next = next + 1 returning next').get() as { next: number }
    db.prepare(`insert into holdfast_retention_class values (?, ?, 'done', 86400000000)`).run(next, no)
    db.prepare(
      `insert into holdfast_ended (seq, retention_class, attempts, attempt, worker, started_at, ending, finished_at)
       select seq, ?, 1, 1, 'w1', ?, 'done', ? + row_number() over (order by seq) from holdfast_ready where queue = ?`,
    ).run(next, startMs, startMs, no)
    db.prepare('delete from holdfast_ready where queue = ?').run(no)
    db.prepare('update holdfast_queue set done = ready, ready = 0 where no = ?').run(no)
  }
  db.exec('commit')
  db.close()
}

async function endInSchema(url: string, names: readonly string[]): Promise<void> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  const sql = (text: string) => text.replaceAll('holdfast.', `${schema}.`)
  await client.query('begin')
  await client.query(
    sql(`with gone as (
           delete from holdfast.job j using holdfast.lane l join holdfast.queue q on q.no = l.queue
            where l.no = j.lane and q.name = any ($1) returning j.*, l.queue, l.priority)
         insert into holdfast.ended (seq, finished_at, keep_until, retention_class, run_at, created_at, id, queue, priority, state,
           attempts, max_attempts, attempt, started_at, worker, ending, payload)
         select seq, $2::bigint + row_number() over (partition by queue order by seq), 1e15::bigint, 0, run_at, created_at, id, queue, priority, 'done',
                1, max_attempts, 1, $2, 'w1', 'done', payload from gone`),
    [names, startMs],
  )
  await client.query(
    sql(`insert into holdfast.tally (queue, xid, ready, done)
         select e.queue, pg_current_xact_id(), -count(*), count(*) from holdfast.ended e where e.state = 'done' group by e.queue`),
  )
  await client.query('commit')
  await client.query(sql('vacuum analyze holdfast.job'))
  await client.query(sql('vacuum analyze holdfast.ended'))
  await client.end()
}
