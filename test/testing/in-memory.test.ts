// `openInMemory`: a store in memory, with the application's own tables beside the jobs.
import assert from 'node:assert/strict'
import type { DatabaseSync } from 'node:sqlite'
import { test } from 'node:test'
import { openInMemory, runOnce } from '../../src/testing/index.ts'
import { rejects } from '../conformance/expect.ts'

const table = 'create table article (url text primary key, words int not null check (words > 0));'

test('SQL effects write to the tables of setup, and a test can read the rows', async () => {
  const { holdfast, db } = await openInMemory({ setup: `${table} insert into article values ('/old', 1)` })
  const fetch = holdfast.queue<{ url: string; words: number }>('fetch')
  await fetch.enqueue({ url: '/new', words: 42 })
  const run = await runOnce(holdfast, fetch, (job) => {
    job.effects.sql({ text: 'insert into article values ($1, $2)', values: [job.payload.url, job.payload.words] })
  })
  assert.equal(run.outcome, 'done')
  assert.deepEqual(articles(db), ['/new', '/old'])
  await holdfast.close()
})

test('if a table of setup refuses an effect, its job fails and no row is written', async () => {
  const { holdfast, db } = await openInMemory({ setup: table })
  await holdfast.queue('fetch').enqueue(0)
  const run = await runOnce<number, void>(holdfast, 'fetch', (job) => {
    job.effects.sql({ text: 'insert into article values (?, ?)', values: ['/bad', job.payload] })
  })
  assert.equal(run.outcome, 'retried')
  assert.match(run.error?.message ?? '', /CHECK constraint failed/)
  assert.deepEqual(articles(db), [])
  await holdfast.close()
})

test('setup can be a function that takes the connection, also an asynchronous one', async () => {
  for (const setup of [(db: DatabaseSync) => db.exec(table), async (db: DatabaseSync) => db.exec(table)]) {
    const { holdfast, db } = await openInMemory({ setup })
    assert.deepEqual(articles(db), [])
    await holdfast.close()
  }
})

test('an error of setup is thrown unchanged, and the store is closed', async () => {
  await assert.rejects(openInMemory({ setup: 'create tabel x' }), /syntax error/)
  let given: DatabaseSync | undefined
  const failing = async (db: DatabaseSync) => {
    given = db
    db.exec('begin')
    throw new Error('no table today')
  }
  await assert.rejects(openInMemory({ setup: failing }), /no table today/)
  assert.equal(given?.isOpen, false)
})

test('a setup that is neither text nor function, or that leaves a transaction open, is refused', async () => {
  await rejects(openInMemory({ setup: 7 as never }), 'INVALID_OPTION', { option: 'setup' })
  await rejects(openInMemory({ setup: 'begin' }), 'INVALID_OPTION', { option: 'setup' })
})

function articles(db: DatabaseSync): unknown[] {
  return db
    .prepare('select url from article order by url')
    .all()
    .map(({ url }) => url)
}
