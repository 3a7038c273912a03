// A login without any rights sends notifications on the store's channel. Notifications are only hints: because of them nothing
// is lost or cancelled, no job is kept longer, and queries are not repeated without bound.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { open } from '../../src/open.ts'
import { newId } from '../../src/runtime/id.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { stateOf } from '../conformance/expect.ts'
import { fromListeningSessions } from '../support/listeners.ts'
import { setup, type TestDatabase } from './exactness-database.ts'

const channel = 'holdfast holdfast'
const backstopMs = 1_000
const stranger = crypto.randomUUID()

const garbage = [
  ...['', '{', 'null', '[]', '{}', '[[[[', '{"ready":[null]}', '{"ready":[["mail"]]}', '{"ready":["mail"]}'],
  ...[
    '{"ready":[[null,1]]}',
    '{"ready":[["mail",null]]}',
    '{"ready":[["mail",-1000000]]}',
    '{"ready":[["mail",1e308]]}',
  ],
  ...['{"ready":{"length":1e9}}', '{"ready":[[{},{}]]}', '{"cancel":null}', '{"cancel":[null]}', '{"cancel":[[]]}'],
  ...['{"from":null}', '{"from":{}}', '{"probe":true}', '{"from":"x","ready":3}', '{"cancel":{"includes":1}}'],
  `{"ready":${'['.repeat(3_000)}${']'.repeat(3_000)}}`,
]

test('malformed notifications do not end a process, and real wake-ups still arrive', async (t) => {
  await using database = await setup()
  await using hostile = await strangerOn(database)
  await using works = await open(database.url, { logger: false })
  await using enqueues = await open(database.url, { logger: false })
  const ran = new Map<number, PromiseWithResolvers<void>>()
  const handler = async ({ payload }: { payload: unknown }) => void ran.get(payload as number)?.resolve()
  const named = works.work('mail', handler)
  const all = works.work('*', handler)
  await hostile.untilListening()
  const storm = hostile.storm(garbage)
  const tookMs: number[] = []
  for (let n = 0; n < 12; n++) {
    await sleep(100 + 37 * n) // at different moments of any polling interval
    const done = Promise.withResolvers<void>()
    ran.set(n, done)
    const from = performance.now()
    await enqueues.queue('mail').enqueue(n)
    await done.promise
    tookMs.push(Math.round(performance.now() - from))
  }
  const sent = await storm.end()
  t.diagnostic(`${sent} notifications; jobs ran after ${tookMs.toSorted((a, b) => a - b)} ms`)
  const median = tookMs.toSorted((a, b) => a - b)[6] as number
  assert.ok(median < backstopMs / 3, `woken by the notification, not by the poll of every second: ${tookMs}`)
  await Promise.all([named.stop(), all.stop()])
})

test('a forged request to cancel cancels nothing', async () => {
  await using database = await setup()
  await using hostile = await strangerOn(database)
  await using holdfast = await open(database.url, { logger: false })
  const started = Promise.withResolvers<string>()
  const may = Promise.withResolvers<void>()
  const worker = holdfast.work('mail', async (job) => {
    started.resolve(job.id)
    await may.promise
    return { aborted: job.signal.aborted }
  })
  const { id } = await holdfast.queue('mail').enqueue(1)
  assert.equal(await started.promise, id)
  await hostile.untilListening()
  const storm = hostile.storm([
    JSON.stringify({ cancel: [id] }),
    JSON.stringify({ from: stranger, cancel: [id, newId()] }),
  ])
  await sleep(1_500) // longer than a query about a cancel takes
  assert.equal(await stateOf(holdfast, id), 'running')
  assert.ok((await storm.end()) > 100)
  may.resolve()
  assert.deepEqual(await holdfast.result(id), { aborted: false })
  await worker.stop()
})

test('a flood of hints never causes more than one query at a time', async (t) => {
  await using database = await setup()
  await using hostile = await strangerOn(database)
  await using counted = countingPool(database.url)
  await using holdfast = await open(postgres({ pool: counted.pool }), { logger: false })
  const started = Promise.withResolvers<string>()
  const may = Promise.withResolvers<void>()
  const worker = holdfast.work('mail', async (job) => {
    started.resolve(job.id)
    await may.promise
  })
  await holdfast.queue('mail').enqueue(1)
  const id = await started.promise
  await hostile.untilListening()
  for (const text of [JSON.stringify({ from: stranger }), JSON.stringify({ cancel: [id] })]) {
    counted.begin()
    const sent = await hostile.burst(text, 5_000)
    const { asked, atOnce } = await counted.quiet()
    t.diagnostic(`${text}: ${sent} notifications, ${asked} statements, ${atOnce} at once`)
    assert.ok(asked < sent / 5, `${asked} statements for ${sent} notifications`)
    assert.ok(atOnce <= 4, `${atOnce} statements at once`)
  }
  may.resolve()
  await worker.stop()
  await holdfast.close()
})

async function strangerOn(database: TestDatabase) {
  const name = `stranger_${database.name}`
  await database.rows(`create role ${name} login nosuperuser`)
  const url = new URL(database.url)
  url.username = name
  const client = new pg.Client({ connectionString: url.href, application_name: 'stranger' })
  await client.connect()
  const say = (texts: readonly string[]) =>
    client.query('select pg_notify($1, u.text) from unnest($2::text[]) u(text)', [channel, texts])
  return {
    async untilListening(): Promise<void> {
      while ((await database.rows(`select 1 ${fromListeningSessions()}`)).length === 0) await sleep(10)
      await sleep(150) // and has received its own probe
    },
    /** Sends the same text this many times. Equal notifications of one transaction are delivered once. */
    async burst(text: string, times: number): Promise<number> {
      const padded = (n: number) => text.replace('{', `{${' '.repeat(n % 1_000)}`)
      const distinct = Array.from({ length: Math.min(1_000, times) }, (_, n) => padded(n))
      for (let sent = 0; sent < times; sent += distinct.length) await say(distinct)
      return times
    },
    storm(texts: readonly string[]) {
      let sent = 0
      let isOver = false
      const going = (async () => {
        for (; !isOver; sent += texts.length) {
          await say(texts)
          await sleep(2)
        }
      })()
      return {
        async end(): Promise<number> {
          isOver = true
          await going
          return sent
        },
      }
    },
    async [Symbol.asyncDispose]() {
      await client.end()
      await database.rows(`drop role ${name}`)
    },
  }
}

/** A pool that counts the statements that were sent, and how many of them ran at once. */
function countingPool(url: string) {
  const pool = new pg.Pool({ connectionString: url, max: 10 })
  let [asked, underWay, atOnce] = [0, 0, 0]
  pool.on('connect', (client) => {
    const query = client.query
    client.query = ((...args: unknown[]) => {
      asked += 1
      underWay += 1
      atOnce = Math.max(atOnce, underWay)
      const ended = () => {
        underWay -= 1
      }
      const [first] = args as [{ callback?: (...values: unknown[]) => unknown }]
      const { callback } = first
      if (typeof callback === 'function') {
        first.callback = (...values) => {
          ended()
          return Reflect.apply(callback, first, values)
        }
        return Reflect.apply(query, client, args)
      }
      const answer = Reflect.apply(query, client, args) as Promise<unknown>
      answer.then(ended, ended)
      return answer
    }) as typeof client.query
  })
  return {
    pool,
    begin(): void {
      asked = 0
      atOnce = 0
    },
    /** Resolves when no more statements are sent. */
    async quiet(): Promise<{ readonly asked: number; readonly atOnce: number }> {
      for (let before = -1; underWay > 0 || asked - before > 5; await sleep(300)) before = asked
      return { asked, atOnce }
    },
    [Symbol.asyncDispose]: () => pool.end(),
  }
}
