// A dump by pg_dump, restored into another cluster: of the same version, and of a newer one, as in an upgrade of the server.
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { assertRestored, burnTransactions, fillDatabase } from '../postgres/filled-database.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { nativeOf, needsPostgres } from '../support/postgres-versions.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { runOk } from '../support/shell.ts'
import { needs } from '../support/system.ts'

describe('a dump of PostgreSQL 15', { skip: needs('pg_dump') || needsPostgres(15) }, () => {
  test('restored into a new cluster, whose transaction numbers are behind, is repaired when it is opened', async () => {
    await using target = await startServer({ native: nativeOf(15) })
    await dumpInto(target, { lag: true })
  })

  test('restored into a cluster that is ahead is repaired as well', async () => {
    await using target = await startServer({ native: nativeOf(15) })
    await burnTransactions(target.url())
    await burnTransactions(target.url())
    await dumpInto(target, { lag: false })
  })

  test('restored into PostgreSQL 18 is repaired when it is opened', async () => {
    await using target = await startServer()
    await dumpInto(target, { lag: true })
  })
})

async function dumpInto(target: Server, { lag }: { readonly lag: boolean }): Promise<void> {
  await using scratch = await scratchDirectory()
  await using source = await startServer({ native: nativeOf(15) })
  if (lag) await burnTransactions(source.url())
  const contents = await fillDatabase(source.url())
  const file = join(scratch.path, 'holdfast.dump')
  await runOk('pg_dump', ['--format=custom', '--schema=holdfast', `--file=${file}`, source.url()])
  await runOk('pg_restore', ['--exit-on-error', '--single-transaction', `--dbname=${target.url()}`, file])
  await assertRestored(target.url(), contents)
}
