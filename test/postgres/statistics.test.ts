// The statistics of the server have no value of the application's data, also after the rows were analyzed.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { root } from '../support/checkout.ts'
import { setup, useDatabase, type World } from './world.ts'

useDatabase()

/** Columns of text whose values are the store's own words, or names that operators choose. */
const ours = new Set([
  ...['batch_annotation.kind', 'ended.state', 'ended.ending', 'ended.dedup_scope', 'job.dedup_scope', 'flush.role'],
  ...['ended.worker', 'lease.worker', 'ended.error_group', 'error_tally.fingerprint', 'change.state'],
  ...[
    'grantee.role',
    'grantee.uses',
    'meta.steps_hash',
    'meta.functions_hash',
    'meta.functions',
    'meta.system_identifier',
  ],
  ...[
    'queue.name',
    'queue.on_dead',
    'queue.definition',
    'queue.key_path',
    'queue.limit_override',
    'queue.paused_by',
    'queue.labels',
  ],
])

test('no column of text has statistics unless it has our own words; partitions are like their table', async () => {
  await using world = await setup({ partitions: true })
  await world.holdfast.queue('mail').enqueue(1)
  await world.holdfast.sweep()
  const columns = await world.rows(`
    select coalesce(p.relname, c.relname) as table, a.attname as column, c.relispartition as "isPartition", a.attstattarget = 0 as without
      from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
      left join pg_inherits i on i.inhrelid = c.oid left join pg_class p on p.oid = i.inhparent
     where c.relnamespace = '${world.schema.quoted}'::regnamespace and c.relkind in ('r', 'p')
       and a.atttypid in ('text'::regtype, 'text[]'::regtype, 'jsonb'::regtype)`)
  assert.ok(columns.filter(({ isPartition }) => isPartition).length > 40)
  const kept = columns.filter(({ without }) => without !== true).map(({ table, column }) => `${table}.${column}`)
  assert.deepEqual(new Set(kept), ours)
})

test('erased words are in no statistics, neither after vacuum full nor after analyze', async () => {
  await using world = await setup({ partitions: true })
  await fill(world)
  await world.rows('analyze')
  assert.deepEqual(await wordsIn(world), [])
  await world.holdfast.deleteAll({ queue: 'mail' })
  await world.rows('vacuum full holdfast.job, holdfast.ended')
  assert.deepEqual(await wordsIn(world), [])
  await world.rows('analyze')
  assert.deepEqual(await wordsIn(world), [])
})

test('the statement of the guide removes the statistics that a store had before', async () => {
  await using world = await setup()
  for (const column of ['payload', 'labels'])
    await world.rows(`alter table holdfast.job alter column ${column} set statistics -1`)
  await fill(world)
  await world.rows('analyze')
  assert.deepEqual(await wordsIn(world), ['labels', 'payload'])
  for (const column of ['payload', 'labels'])
    await world.rows(`alter table holdfast.job alter column ${column} set statistics 0`)
  await world.holdfast.deleteAll({ queue: 'mail' })
  await world.rows('analyze')
  assert.deepEqual(await wordsIn(world), ['labels', 'payload'])
  const [, statement = ''] =
    /```sql\n(delete from pg_statistic[\s\S]*?)```/.exec(readFileSync(join(root, 'docs/guides/erasing.md'), 'utf8')) ??
    []
  await world.rows(statement.replace(`'holdfast'`, `'${world.schema.quoted}'`))
  assert.deepEqual(await wordsIn(world), [])
})

/** Each word is in several rows, so that it is a frequent value, and among others, so that it is a typical one. */
async function fill({ holdfast }: World): Promise<void> {
  const word = (n: number) => `geheim${n % 7}`
  const queue = holdfast.queue<{ name: string }>('mail', { attempts: 1, limit: { concurrency: 100, key: 'name' } })
  const jobs = Array.from({ length: 200 }, (_, n) => ({
    ...{ payload: { name: word(n) }, headers: { a: word(n) }, labels: { customer: word(n) } },
    ...{ dedup: { key: `geheim${n}` }, idempotencyKey: `geheim${n}` },
  }))
  await queue.enqueueMany(jobs)
  for (const [n, lease] of (await queue.claim({ max: 100 })).entries()) {
    await lease.progress(0.5, word(n))
    if (n % 3 === 0) await lease.dead(new Error(word(n)))
    else if (n % 3 === 1) await lease.done({ name: word(n) })
    else await holdfast.kv.put(`geheim${n}`, word(n))
  }
}

async function wordsIn(world: World): Promise<unknown[]> {
  const rows = await world.rows(`select distinct attname as column from pg_stats s
     where s.schemaname = '${world.schema.name}'
       and s::text like '%geheim%' order by 1`)
  return rows.map(({ column }) => column)
}
