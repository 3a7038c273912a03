// A host that vanishes: it sends no answer and does not end the connection.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { isHoldfastError } from '../../src/errors.ts'
import { open } from '../../src/open.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { vanishingProxy } from '../support/vanishing-proxy.ts'
import { query, Scene } from './scene.ts'

let server: Server

before(async () => {
  server = await startServer()
})
after(() => server[Symbol.asyncDispose]())

test('a host that vanishes under load is reported as away once, and work goes on by itself when it is back', async (t) => {
  const url = await database('vanishes')
  await using proxy = await vanishingProxy(url)
  await using scene = await Scene.start({ store: { url: proxy.url, answerTimeout: '1s' }, direct: url })
  proxy.vanish()
  await scene.untilAllEmit('store.down', 1)
  proxy.comeBack()
  const tookMs = await scene.resumed()
  t.diagnostic(`every worker went on within ${tookMs.toFixed()} ms`)
  await scene.untilAllEmit('store.up', 1)
  await scene.judge(t)
  for (const worker of scene.workers) assert.equal(worker.events('store.down').length, 1)
})

test('a call to a host that has vanished fails in bounded time, and says that it may have committed', async (t) => {
  await using world = await setup('bounded')
  world.proxy.vanish()
  const from = performance.now()
  const error = await world.holdfast
    .queue('mail')
    .enqueue(1)
    .catch((thrown: unknown) => thrown)
  const tookMs = performance.now() - from
  t.diagnostic(`failed after ${tookMs.toFixed()} ms`)
  assert.ok(isHoldfastError(error, 'STORE_UNAVAILABLE'), String(error))
  assert.equal(error.facts['mayHaveLanded'], true)
  assert.ok(tookMs < 30_000)
})

test('a single dead connection is replaced, and the call commits once', async () => {
  await using world = await setup('alone')
  world.proxy.vanish()
  world.proxy.comeBack()
  const { id, status } = await world.holdfast.queue('mail').enqueue(1)
  assert.equal(status, 'created')
  const { jobs } = await world.holdfast.jobs({})
  assert.deepEqual(
    jobs.map((job) => job.id),
    [id],
  )
})

test('a call whose answer is lost with its connection is repeated, and has committed once', async () => {
  await using world = await setup('answer')
  await query(world.url, 'create table held (n int)')
  const { id } = await world.holdfast.queue('mail').enqueue(1)
  const lease = (await world.holdfast.claim(['mail']))[0]
  const done = lease?.done(null, { sql: [{ text: 'insert into held select 1 from pg_sleep(1)' }] })
  await sleep(500) // the server is executing it
  world.proxy.vanish()
  world.proxy.comeBack()
  await done
  assert.equal((await world.holdfast.job(id))?.state, 'done')
  assert.deepEqual(await query(world.url, 'select count(*)::int as n from held'), [{ n: 1 }])
})

test('a call that is only slow is waited for', async () => {
  await using world = await setup('slow')
  await query(world.url, 'create table slept (n int)')
  await world.holdfast.queue('mail').enqueue(1)
  const [lease] = await world.holdfast.claim(['mail'])
  const sql = [{ text: 'insert into slept select pg_backend_pid() from pg_sleep(3)' }]
  const from = performance.now()
  await lease?.done(null, { sql })
  assert.ok(performance.now() - from >= 3_000)
  assert.equal((await query(world.url, 'select n from slept')).length, 1)
  assert.equal(await world.broken(), 0, 'no connection was cut')
})

async function setup(name: string) {
  const url = await database(name)
  const proxy = await vanishingProxy(url)
  const holdfast = await open(postgres({ url: proxy.url, answerTimeout: '300ms', listen: false }), { logger: false })
  await holdfast.queue('mail').enqueue(0) // opens a connection
  await (await holdfast.claim(['mail']))[0]?.done()
  await holdfast.deleteAll({ queue: 'mail' })
  /** Sessions of this database that ended because their client had gone. */
  const broken = async () => {
    const text = 'select coalesce(sum(sessions_abandoned), 0)::int as n from pg_stat_database where datname = $1'
    const [row] = await query(url, text.replace('$1', `'${name}'`))
    return Number(row?.['n'])
  }
  const dispose = async () => {
    await holdfast.close()
    await proxy[Symbol.asyncDispose]()
  }
  return { url, proxy, holdfast, broken, [Symbol.asyncDispose]: dispose }
}

async function database(name: string): Promise<string> {
  await query(server.url(), `create database ${name}`)
  return server.url(name)
}
