// The next version of Holdfast, as a copy of this one with one more step of each schema: a column in a busy table (on SQLite
// a small one), and on PostgreSQL functions that are replaced, and one that only the next version calls. Older clients have
// room beside it.
//
//   await using next = await nextVersion()
//   const { open } = await import(next.path('open.ts'))
import { cp, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { claim } from '../../src/store/postgres/migrations/0002-claim.ts'
import { type Step, steps } from '../../src/store/postgres/migrations.ts'
import { root } from './checkout.ts'
import { scratchDirectory } from './scratch.ts'

const columnSql = 'alter table holdfast.job add column origin text not null default $$unknown$$;'

const newClaim = claim
  .slice(claim.indexOf('create function holdfast.claim('), claim.indexOf('-- A claim that was sent again'))
  .replace('holdfast.claim(', 'holdfast.claim_2(')

const nextSql = [columnSql, claim.replaceAll('create function', 'create or replace function'), newClaim].join('\n')

const nextSqlite = `alter table holdfast_lease add column origin text not null default 'unknown';`

export const nextSteps: readonly Step[] = [...steps, { sql: nextSql }]

export interface NextVersion extends AsyncDisposable {
  /** Where a module of its source is. */
  path(module: string): string
}

export async function nextVersion(): Promise<NextVersion> {
  const scratch = await scratchDirectory(join(root, 'test/.tmp')) // where it finds its dependencies
  const path = (module: string) => join(scratch.path, 'src', module)
  await cp(join(root, 'src'), join(scratch.path, 'src'), { recursive: true })
  const edit = async (module: string, change: (text: string) => string) =>
    writeFile(path(module), change(await readFile(path(module), 'utf8')))
  await edit('store/postgres/migrations.ts', (text) => withStep(text, nextSql))
  await edit('store/postgres/claim.ts', (text) => text.replace('from holdfast.claim(', 'from holdfast.claim_2('))
  await edit('store/sqlite/migrations.ts', (text) => withStep(text, nextSqlite))
  return { path, [Symbol.asyncDispose]: () => scratch[Symbol.asyncDispose]() }
}

/** At the end of the list. */
function withStep(text: string, sql: string): string {
  const end = text.indexOf('\n]\n', text.indexOf('export const steps'))
  return `${text.slice(0, end)}\n  { sql: ${JSON.stringify(sql)} },${text.slice(end)}`
}
