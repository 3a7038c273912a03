// What our calls make the server write to its log. Payloads are sent as parameters only: they are not in the text of a statement
// and not in an error that one of our functions raises. So the administrator decides whether they are logged, by the settings for
// parameters. One exception: a row that a table refuses is shown in the DETAIL of that error, each column cut to 64 bytes. This
// happens to none of our rows unless the tables were changed by hand.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { isHoldfastError } from '../../src/errors.ts'
import { open } from '../../src/open.ts'
import { rejects } from '../conformance/expect.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { setup } from './exactness-database.ts'

const secret = 'z9f3-not-for-the-log'
const everything = { log_statement: 'all', log_min_duration_statement: '0', log_min_error_statement: 'error' }

test('a server that logs every statement but no parameters logs no payload, result, error text or key-value', async () => {
  await using server = await startServer({ inMemory: true, settings: { ...everything, log_parameter_max_length: '0' } })
  await live(server)
  const log = await readFile(server.logFile, 'utf8')
  assert.match(log, /holdfast\.enqueue_one/, 'statements are logged')
  assert.match(log, /ERROR: {2}/, 'errors are logged')
  assert.doesNotMatch(log, new RegExp(secret))
})

test('a server that logs errors only, as it does by default, logs no payload', async () => {
  await using server = await startServer({ inMemory: true })
  await live(server)
  const log = await readFile(server.logFile, 'utf8')
  assert.match(log, /ERROR: {2}/)
  assert.doesNotMatch(log, new RegExp(secret))
})

test('a job that is settled while its partition is created is not refused, and not shown in the log', async () => {
  await using server = await startServer({ inMemory: true })
  await using database = await setup(server)
  await using holdfast = await open(database.url)
  const mail = holdfast.queue('mail', { retain: { done: '3d' } })
  await mail.enqueue({ secret })
  const [lease] = await mail.claim()
  const made = await database.rows<{ name: string }>(
    `select inhrelid::regclass::text as name from pg_inherits
      where inhparent = 'holdfast.ended'::regclass and inhrelid <> 'holdfast.ended_rest'::regclass`,
  )
  for (const { name } of made) await database.rows(`drop table ${name}`)
  const maker = new pg.Client(database.url)
  maker.on('error', () => {}) // a test that failed leaves it open
  await maker.connect()
  await maker.query('begin')
  const { rows } = await maker.query(
    'select holdfast.make_partitions((extract(epoch from now()) * 1000)::bigint) as made',
  )
  assert.ok(rows[0].made > 0, 'partitions are missing')
  const done = lease?.done()
  const waiting = `select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`
  while ((await database.rows(waiting)).length === 0) await sleep(10)
  await maker.query('commit')
  await maker.end()
  await done
  assert.equal((await holdfast.stats('mail')).done, 1)
  assert.doesNotMatch(await readFile(server.logFile, 'utf8'), new RegExp(`Failing row|${secret}`))
})

test('a number that SQL refuses is not shown in the log', async () => {
  await using server = await startServer({ inMemory: true })
  await using database = await setup(server)
  await using _ = await open(database.url)
  const payload = '{"card": 4111111111111111999}'
  const error = await database
    .rows('select holdfast.enqueue($1, $2)', ['mail', payload])
    .catch((thrown: Error) => thrown)
  assert.match(String(error), /INVALID_PAYLOAD: a number in the payload/)
  assert.doesNotMatch(`${error}${await readFile(server.logFile, 'utf8')}`, /41111111/)
})

test('a row that a table refuses is shown in the log, unless log_error_verbosity is terse', async () => {
  await using server = await startServer({ inMemory: true, settings: { log_error_verbosity: 'terse' } })
  await refusedRow(server)
  assert.doesNotMatch(await readFile(server.logFile, 'utf8'), new RegExp(secret))
  await using talkative = await startServer({ inMemory: true })
  await refusedRow(talkative)
  assert.match(await readFile(talkative.logFile, 'utf8'), new RegExp(`DETAIL: .*${secret}`))
})

test('a server that logs parameters logs payloads, so the check can fail', async () => {
  await using server = await startServer({ inMemory: true, settings: everything })
  await live(server)
  assert.match(await readFile(server.logFile, 'utf8'), new RegExp(secret))
})

/** Every call that carries a text of the application, and every call that the server refuses. */
async function live(server: Server): Promise<void> {
  await using database = await setup(server)
  await database.rows('create table article (n int primary key)')
  await database.rows('insert into article values (1)')
  await using holdfast = await open(database.url)
  const mail = holdfast.queue('mail', { attempts: 1, onDead: { queue: 'alerts' } })
  const payload = { secret }
  const failures: unknown[] = []
  const fails = async (call: () => Promise<unknown>) => {
    await call().then(
      () => assert.fail('it was to fail'),
      (error) => failures.push(error),
    )
  }
  const { id } = await mail.enqueue(payload, { idempotencyKey: 'key', headers: { secret } })
  await fails(() => mail.enqueue({ secret, other: true }, { idempotencyKey: 'key' }))
  await fails(() => mail.enqueue(payload, { id }))
  await mail.enqueueMany([{ payload }, { payload, dedup: { key: 'd' } }, { payload, delay: '1h' }])
  await mail.enqueue(payload, { dedup: { key: 'd', replace: true } })
  const [one, two, three] = await mail.claim({ max: 3 })
  await one?.progress(0.5, secret)
  await one?.done({ secret }, { put: [{ key: 'k', value: payload }], enqueue: [{ queue: 'next', payload }] })
  await fails(async () => two?.done({ secret }, { sql: [{ text: 'insert into article values ($1)', values: [1] }] }))
  await three?.dead(new Error(secret))
  await fails(async () => one?.done({ secret }))
  await holdfast.kv.put('k', payload)
  await database.rows('alter table holdfast.job drop column timeout_ms')
  await fails(() => mail.enqueue(payload))
  for (const error of failures) {
    assert.ok(isHoldfastError(error), String(error))
    assert.doesNotMatch(`${error.message} ${JSON.stringify(error.facts)}`, new RegExp(secret))
  }
}

async function refusedRow(server: Server): Promise<void> {
  await using database = await setup(server)
  await using holdfast = await open(database.url)
  await database.rows('alter table holdfast.job add constraint none check (max_attempts < 0)')
  const error = await rejects(holdfast.queue('mail').enqueue({ secret }), 'INVALID_OPTION', { code: '23514' })
  assert.doesNotMatch(error.message, new RegExp(secret))
}
