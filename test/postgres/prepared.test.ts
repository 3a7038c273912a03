// Each connection keeps its statements prepared. A pooler that assigns another connection for every transaction, or a
// `deallocate`, may remove them. Then calls still succeed.
import assert from 'node:assert/strict'
import test from 'node:test'
import type { Pool } from 'pg'
import { open } from '../../src/open.ts'
import type { Queue } from '../../src/queue/queue.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { allJobs } from '../conformance/expect.ts'
import { setup } from './exactness-database.ts'
import { newPool } from './world.ts'

test('a connection prepares statements that are sent repeatedly, and none of them twice', async () => {
  await using database = await setup()
  const pool = newPool(database.url, 1)
  await using holdfast = await open(postgres({ pool, listen: false }))
  for (let i = 0; i < 5; i++) await cycle(holdfast.queue('mail'))
  const names = (await prepared(pool)).map(({ statement }) => /holdfast"?\.(\w+)\(/.exec(statement)?.[1] ?? 'notify')
  assert.deepEqual(names.sort(), [
    'claim',
    'claim_one',
    'enqueue_one',
    'enqueue_plain',
    'notify',
    'renew',
    'settle_done',
  ])
  await holdfast.close()
  await pool.end()
})

test('a statement whose prepared form is gone, or exists already, is sent in full, and commits once', async () => {
  await using database = await setup()
  const pool = newPool(database.url, 1)
  await using holdfast = await open(postgres({ pool, listen: false }))
  for (let i = 0; i < 2; i++) await cycle(holdfast.queue('mail'))
  const known = await prepared(pool)
  await pool.query('deallocate all')
  await cycle(holdfast.queue('mail'))
  assert.deepEqual(await prepared(pool), [])
  await holdfast.close()
  await pool.end()

  const taken = newPool(database.url, 1)
  await using later = await open(postgres({ pool: taken, listen: false }))
  for (const { name, statement } of known) await taken.query(`prepare "${name}" as ${statement}`)
  await cycle(later.queue('mail'))
  assert.equal((await allJobs(later, { queue: 'mail', state: 'done' })).length, 4)
  await later.close()
  await taken.end()
})

async function cycle(queue: Queue): Promise<void> {
  assert.equal((await queue.enqueue('job')).status, 'created')
  const [lease, another] = await queue.claim({ max: 2 })
  assert.equal(another, undefined)
  await lease?.renew()
  assert.equal((await lease?.done())?.state, 'done')
}

async function prepared(pool: Pool): Promise<{ name: string; statement: string }[]> {
  const { rows } = await pool.query('select name, statement from pg_prepared_statements order by name')
  return rows
}
