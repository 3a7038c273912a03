// Steps of a schema in use, by docs/guides/upgrading.md: the rules that a program can check.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import test from 'node:test'
import { steps as postgresSteps, release } from '../../src/store/postgres/schema/migrations.ts'
import { steps as sqliteSteps } from '../../src/store/sqlite/schema/migrations.ts'

interface Frozen {
  readonly postgres: readonly string[]
  readonly sqlite: readonly string[]
  /** Hash of the PostgreSQL functions at the last of these steps. */
  readonly functions: string
}

const hash = (text: string) => createHash('sha256').update(text).digest('hex').slice(0, 32)

// UPDATE_GOLDEN=1 npm test -- test/house/steps.test.ts    pins the current ones. Before the first release any step may be pinned
// again. After it only new ones are added, and changed functions require a new step, which may be empty.
test('steps and functions are the ones that were pinned', () => {
  const file = join(import.meta.dirname, 'steps.json')
  const now: Frozen = {
    postgres: postgresSteps.map(({ sql }) => hash(sql)),
    sqlite: sqliteSteps.map(({ sql }) => hash(sql)),
    functions: hash(release.functions.join('')),
  }
  if (process.env['UPDATE_GOLDEN'] === '1') writeFileSync(file, `${JSON.stringify(now, null, 2)}\n`)
  assert.deepEqual(now, JSON.parse(readFileSync(file, 'utf8')))
})

/** Steps up to here were never released. */
const first = { postgres: 5, sqlite: 6 }

const takesLong = [
  /\balter\s+(column\s+)?\w+\s+(set\s+data\s+)?type\b/i,
  /\bset\s+not\s+null\b/i,
  /\badd\s+(constraint|primary|unique|check|foreign)\b(?![^;]*\bnot valid\b)/i,
  /\badd\s+column\b[^,;]*\bdefault\s+(?!null|true|false|'|-?\d|\$\$)/i,
  /\badd\s+column\b(?![^,;]*\bdefault\b)[^,;]*\bnot\s+null\b/i,
  /\b(vacuum full|cluster|reindex)\b/i,
  /\balter\s+table\s+holdfast_(?!meta|queue|claim|lease|retention_class)\w+\s+add\b/i, // SQLite reads all of a strict table
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
  test(`steps of ${store} since the first release only add, and none of them is slow`, () => {
    for (const { sql, minClient } of steps.slice(first[store as keyof typeof first]))
      assert.deepEqual(faultsOf(sql, { mayTakeAway: minClient !== undefined }), [])
  })

test('steps that are slow or remove something are found', () => {
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

test('steps that only add are accepted', () => {
  const sound = [
    `alter table holdfast.job add column origin text not null default 'unknown'`,
    'alter table holdfast.job add column origin text',
    'create table holdfast.batch (no int); create index batch_no on holdfast.batch (no)',
    'create or replace function holdfast.fold() returns void language plpgsql as $holdfast$ begin drop table x; end $holdfast$',
  ]
  for (const sql of sound) assert.deepEqual(faultsOf(sql, { mayTakeAway: false }), [], sql)
  assert.deepEqual(faultsOf('drop function holdfast.claim(uuid)', { mayTakeAway: true }), [])
})
