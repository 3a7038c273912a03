// The next version of Holdfast: a copy of this one with one more step of each schema. The step adds a column to a busy table (on
// SQLite a small one). On PostgreSQL functions are replaced, and one is added that only the next version calls. Older clients may
// work beside it.
//
//   await using next = await nextVersion()
//   const { open } = await import(next.path('open.ts'))
import { cp, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { claim } from '../../src/store/postgres/schema/functions/claim.ts'
import { type Release, release } from '../../src/store/postgres/schema/migrations.ts'
import { root } from './checkout.ts'
import { scratchDirectory } from './scratch.ts'

const columnSql = 'alter table holdfast.job add column origin text not null default $$unknown$$;'

const newClaim = claim
  .slice(claim.indexOf('create function holdfast.claim('), claim.indexOf('-- A claim that was sent again'))
  .replace('holdfast.claim(', 'holdfast.claim_2(')

const nextSqlite = `alter table holdfast_lease add column origin text not null default 'unknown';`

export const nextRelease: Release = {
  steps: [...release.steps, { sql: columnSql }],
  functions: [...release.functions, newClaim],
}

export interface NextVersion extends AsyncDisposable {
  /** The path of a module of its source. */
  path(module: string): string
}

export async function nextVersion(): Promise<NextVersion> {
  const scratch = await scratchDirectory(join(root, 'test/.tmp')) // where its imports of dependencies resolve
  const path = (module: string) => join(scratch.path, 'src', module)
  await cp(join(root, 'src'), join(scratch.path, 'src'), { recursive: true })
  const edit = async (module: string, change: (text: string) => string) =>
    writeFile(path(module), change(await readFile(path(module), 'utf8')))
  await edit('store/postgres/schema/migrations.ts', (text) => withStep(text, columnSql))
  await edit('store/postgres/schema/functions/index.ts', (text) => withFunction(text, newClaim))
  await edit('store/postgres/claim.ts', (text) => text.replace('from holdfast.claim(', 'from holdfast.claim_2('))
  await edit('store/sqlite/schema/migrations.ts', (text) => withStep(text, nextSqlite))
  return { path, [Symbol.asyncDispose]: () => scratch[Symbol.asyncDispose]() }
}

/** Adds the step at the end of the list, which is one line or several. */
function withStep(text: string, sql: string): string {
  const start = text.indexOf('export const steps')
  const line = text.slice(start, text.indexOf('\n', start))
  const end = line.endsWith(']') ? start + line.length - 1 : text.indexOf('\n]\n', start)
  const comma = line.endsWith(']') ? ', ' : '\n'
  return `${text.slice(0, end)}${comma}{ sql: ${JSON.stringify(sql)} },${text.slice(end)}`
}

function withFunction(text: string, sql: string): string {
  return text.replace(/\n\]\n$/, () => `\n  ${JSON.stringify(sql)},\n]\n`)
}
