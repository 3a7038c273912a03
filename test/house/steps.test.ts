// Steps of a schema that is in use somewhere, by docs/guides/upgrading.md: what a machine can see of its rules.
import assert from 'node:assert/strict'
import test from 'node:test'
import { steps as postgresSteps } from '../../src/store/postgres/migrations.ts'
import { steps as sqliteSteps } from '../../src/store/sqlite/migrations.ts'

/** Up to here nothing was released. */
const first = { postgres: 11, sqlite: 3 }

const takesLong = [
  /\balter\s+(column\s+)?\w+\s+(set\s+data\s+)?type\b/i,
  /\bset\s+not\s+null\b/i,
  /\badd\s+(constraint|primary|unique|check|foreign)\b(?![^;]*\bnot valid\b)/i,
  /\badd\s+column\b[^,;]*\bdefault\s+(?!null|true|false|'|-?\d|\$\$)/i,
  /\badd\s+column\b(?![^,;]*\bdefault\b)[^,;]*\bnot\s+null\b/i,
  /\b(vacuum full|cluster|reindex)\b/i,
  /\balter\s+table\s+holdfast_(?!meta|queue|claim|lease|shelf)\w+\s+add\b/i, // a strict table is read through
]
const takesAway = [/\bdrop\s+(table|column|function|type|sequence|view)\b/i, /\brename\b/i]

function faultsOf(sql: string, { mayTakeAway }: { readonly mayTakeAway: boolean }): string[] {
  const text = sql.replace(/--.*$/gm, '').replace(/\$holdfast\$[\s\S]*?\$holdfast\$/g, '')
  const made = new Set([...text.matchAll(/create\s+(?:unlogged\s+)?table\s+(\S+)/gi)].map(([, table]) => table))
  const indexed = [...text.matchAll(/create\s+(?:unique\s+)?index\s+\S+\s+on\s+(\S+)/gi)].map(([, table]) => table)
  const faults = [...takesLong, ...(mayTakeAway ? [] : takesAway)].filter((rule) => rule.test(text)).map(String)
  return [...faults, ...indexed.filter((table) => !made.has(table)).map((table) => `an index on ${table}`)]
}

for (const [store, steps] of Object.entries({ postgres: postgresSteps, sqlite: sqliteSteps }))
  test(`steps of ${store} since the first release only add, and none takes long`, () => {
    for (const { sql, minClient } of steps.slice(first[store as keyof typeof first]))
      assert.deepEqual(faultsOf(sql, { mayTakeAway: minClient !== undefined }), [])
  })

test('what would take long or take away is seen', () => {
  const faulty = [
    'alter table holdfast.job alter attempts type int',
    'alter table holdfast.job alter column headers set not null',
    'alter table holdfast.job add constraint few check (attempts < 9)',
    'alter table holdfast.job add column made_at timestamptz default clock_timestamp()',
    'alter table holdfast_lease add column origin text not null',
    'alter table holdfast_job add column origin text',
    'create index job_origin on holdfast.job (origin)',
    'drop function holdfast.claim(uuid)',
    'alter table holdfast.job rename column ord to turn',
  ]
  for (const sql of faulty) assert.notDeepEqual(faultsOf(sql, { mayTakeAway: false }), [], sql)
})

test('what adds is let through', () => {
  const sound = [
    `alter table holdfast.job add column origin text not null default 'unknown'`,
    'alter table holdfast.job add column origin text',
    'create table holdfast.batch (no int); create index batch_no on holdfast.batch (no)',
    'create or replace function holdfast.fold() returns void language plpgsql as $holdfast$ begin drop table x; end $holdfast$',
  ]
  for (const sql of sound) assert.deepEqual(faultsOf(sql, { mayTakeAway: false }), [], sql)
  assert.deepEqual(faultsOf('drop function holdfast.claim(uuid)', { mayTakeAway: true }), [])
})
