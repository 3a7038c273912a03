// Restores between real clusters. In the first test rows are copied into a new cluster, whose transaction numbers are behind
// theirs. In the second a cluster is set back to an earlier copy of itself while a process works on it.
import assert from 'node:assert/strict'
import { rename } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import test from 'node:test'
import { open } from '../../src/open.ts'
import { migrationScript } from '../../src/store/postgres/schema/migrations.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { claimOne, claimOrder, rejects } from '../conformance/expect.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { runOk } from '../support/shell.ts'
import { assertRecount } from './exactness-recount.ts'
import { assertRestored, burnTransactions, fillDatabase, withClient } from './filled-database.ts'

test('tables that were copied one by one into a new cluster, without sequences, are repaired when they are opened', async () => {
  await using source = await startServer({ inMemory: true })
  await using target = await startServer({ inMemory: true })
  await burnTransactions(source.url())
  const contents = await fillDatabase(source.url())
  await copyTables(source, target)
  await assertRestored(target.url(), contents)
})

async function copyTables(source: Server, target: Server): Promise<void> {
  const file = (table: string) => `'${join(dirname(source.dataDirectory), `${table}.copy`)}'`
  const tables = await withClient(source.url(), async (client) => {
    const { rows } = await client.query(
      `select relname from pg_class where relnamespace = 'holdfast'::regnamespace and relkind in ('r', 'p') and not relispartition
        order by oid`, // a table that another refers to was made before it
    )
    for (const { relname } of rows) await client.query(`copy (select * from holdfast.${relname}) to ${file(relname)}`)
    return rows.map(({ relname }) => relname as string)
  })
  await withClient(target.url(), async (client) => {
    await client.query(migrationScript(new Schema('holdfast')))
    await client.query('delete from holdfast.meta')
    for (const table of tables) await client.query(`copy holdfast.${table} from ${file(table)}`)
  })
}

test('a process goes on after its cluster is set back to an earlier copy of itself', async () => {
  await using server = await startServer({ inMemory: true })
  await using holdfast = await open(server.url())
  const mail = holdfast.queue('mail')
  await mail.enqueueMany([{ payload: 'held' }, { payload: 'claimed since' }, { payload: 'waits' }])
  const held = await claimOne(holdfast, 'mail', { lease: '1h' })
  const copy = `${server.dataDirectory}-copy`
  await stopped(server, () => runOk('cp', ['-a', server.dataDirectory, copy]))
  const since = await claimOne(holdfast, 'mail', { lease: '1h' })
  await mail.enqueue('lost with the server')
  await holdfast.queue('made-since').enqueue('lost, too')
  await stopped(server, async () => {
    await rename(server.dataDirectory, `${server.dataDirectory}-gone`)
    await rename(copy, server.dataDirectory)
  })
  await rejects(since.done(), 'LEASE_LOST')
  assert.equal((await held.done()).state, 'done')
  await holdfast.queue('made-since').enqueue('new')
  await using another = await open(server.url())
  assert.deepEqual(await claimOrder(another, ['mail', 'made-since']), ['claimed since', 'waits', 'new'])
  await withClient(server.url(), (client) => assertRecount(client))
})

async function stopped(server: Server, work: () => Promise<unknown>): Promise<void> {
  await server.stop('fast')
  await work()
  await server.start()
}
