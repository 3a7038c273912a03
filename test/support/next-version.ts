// The next version of Holdfast, as a copy of this one with one more step of each schema: a column in the busiest table, and
// on PostgreSQL functions that are replaced, and one that only the next version calls. Older clients have room beside it.
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

export const nextSteps: readonly Step[] = [...steps, { sql: nextSql }]

export interface NextVersion extends AsyncDisposable {
  /** Where a module of its source is. */
  path(module: string): string
}

export async function nextVersion(): Promise<NextVersion> {
  const scratch = await scratchDirectory(join(root, 'test/.tmp')) // where it finds its dependencies
  const path = (module: string) => join(scratch.path, 'src', module)
  await cp(join(root, 'src'), join(scratch.path, 'src'), { recursive: true })
  const edit = async (module: string, from: string, to: string) => {
    const text = await readFile(path(module), 'utf8')
    if (text.split(from).length !== 2) throw new Error(`${module} has this once: ${from}`)
    await writeFile(
      path(module),
      text.replace(from, () => to),
    )
  }
  await writeFile(path('next.json'), JSON.stringify(nextSql))
  const addStep = `  { sql: next },\n]\n`
  const readNext = `import next from '../../next.json' with { type: 'json' }\n`
  await edit('store/postgres/migrations.ts', `minClient: 10 },\n]\n`, `minClient: 10 },\n${addStep}`)
  await edit('store/postgres/migrations.ts', `import { tables }`, `${readNext}import { tables }`)
  await edit('store/postgres/claim.ts', 'select * from holdfast.claim(', 'select * from holdfast.claim_2(')
  const lastStep = `    minClient: 3,\n  },\n]\n`
  const nextStep = "{ sql: `alter table holdfast_job add column origin text not null default 'unknown'` },"
  await edit('store/sqlite/migrations.ts', lastStep, lastStep.replace(']\n', `  ${nextStep}\n]\n`))
  return { path, [Symbol.asyncDispose]: () => scratch[Symbol.asyncDispose]() }
}
