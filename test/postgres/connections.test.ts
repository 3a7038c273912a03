// Connections of the store's own pool are kept between two uses. Those of an application's pool are returned after each use.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type pg from 'pg'
import type { PoolClient } from 'pg'
import { open } from '../../src/open.ts'
import { Connections } from '../../src/store/postgres/connection/connections.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { fromListeningSessions, lastListener } from '../support/listeners.ts'
import { testDatabase } from '../support/postgres.ts'
import { newPool } from './world.ts'

const isFit = () => Promise.resolve(true)
const pidOf = async (client: PoolClient) => (await client.query('select pg_backend_pid() as pid')).rows[0].pid as number

async function setup({ isOwn }: { readonly isOwn: boolean }) {
  const database = await testDatabase()
  const pool = newPool(database.url, 2)
  const taken: unknown[] = []
  pool.on('error', () => undefined)
  pool.on('acquire', (client) => taken.push(client))
  const connections = new Connections({ pool, isOwn, most: 2 })
  return {
    ...{ database, pool, taken, connections },
    pid: () => connections.use(pidOf, { ends: false, isFit }),
    [Symbol.asyncDispose]: async () => {
      connections.close()
      await pool.end()
      await database[Symbol.asyncDispose]()
    },
  }
}

test('a connection of the store’s own pool is kept for the next call, which then skips the pool’s queue', async () => {
  await using scene = await setup({ isOwn: true })
  const pids = [await scene.pid(), await scene.pid(), await scene.pid()]
  assert.equal(new Set(pids).size, 1)
  assert.equal(scene.taken.length, 1)
  assert.equal(scene.pool.idleCount, 0)
})

test('a connection of an application’s pool is returned after each use', async () => {
  await using scene = await setup({ isOwn: false })
  for (let i = 0; i < 3; i++) await scene.pid()
  assert.equal(scene.taken.length, 3)
  assert.equal(scene.pool.idleCount, 1)
})

test('a kept connection that the server ended is not handed out', async () => {
  await using scene = await setup({ isOwn: true })
  const before = await scene.pid()
  const stranger = newPool(scene.database.url, 1)
  await stranger.query('select pg_terminate_backend($1)', [before])
  while (scene.pool.totalCount > 0) await sleep(5)
  assert.notEqual(await scene.pid(), before)
  await stranger.end()
})

test('a connection that was marked unfit, or that ends with its use, is not handed out', async () => {
  await using scene = await setup({ isOwn: true })
  const first = await scene.pid()
  const failing = scene.connections.use(() => Promise.reject(new Error('broken')), {
    ends: false,
    isFit: () => Promise.resolve(false),
  })
  await assert.rejects(failing, /broken/)
  const second = await scene.connections.use(pidOf, { ends: true, isFit })
  assert.equal(new Set([first, second, await scene.pid()]).size, 3)
})

test('an unused connection returns to the pool, which ends it', async () => {
  await using scene = await setup({ isOwn: true })
  await Promise.all([scene.pid(), scene.pid()])
  assert.equal(scene.pool.idleCount, 0)
  await sleep(3_000)
  const used = await scene.pid()
  await sleep(2_500)
  assert.equal(scene.pool.idleCount, 1, 'the connection that was not used meanwhile')
  assert.equal(await scene.pid(), used)
})

async function listening({ hasOwnAddress = false } = {}) {
  const database = await testDatabase()
  const { url } = database
  const holdfast = await open(postgres({ url, listen: hasOwnAddress ? url : true }))
  const pool = newPool(database.url, 2)
  const said = async () =>
    (await pool.query(`select query ${fromListeningSessions()}`)).rows.map(({ query }) => query as string)
  const next = async (payload: unknown) => {
    const waiting = holdfast.claim(['mail'], { wait: '20s' })
    await holdfast.queue('mail').enqueue(payload)
    const [lease] = await waiting
    assert.equal(lease?.job.payload, payload)
    await lease?.done()
  }
  const untilListening = async () => {
    const waiting = holdfast.claim(['mail'], { wait: 200 })
    while ((await said()).length === 0) await sleep(20)
    assert.deepEqual(await waiting, [])
  }
  await untilListening()
  return {
    ...{ database, holdfast, pool, said, next, untilListening },
    [Symbol.asyncDispose]: async () => {
      await holdfast.close()
      await pool.end()
      await database[Symbol.asyncDispose]()
    },
  }
}

test('claims use the connection that listens', async () => {
  await using scene = await listening()
  while (!(await scene.said())[0]?.includes('.claim(')) await scene.next('a')
})

test('claims do not use the listening connection if it has its own address, where it may have another role', async () => {
  await using scene = await listening({ hasOwnAddress: true })
  for (let i = 0; i < 5; i++) await scene.next(i)
  assert.match((await scene.said())[0] as string, /^listen /)
})

test('a listening connection that broke is not used again, although it is still referenced', async () => {
  await using scene = await listening()
  await scene.next('first')
  const listener = lastListener() as pg.Client
  let asked = 0
  listener.query = ((call: { callback(error: unknown): void }) => {
    asked += 1
    setImmediate(() => call.callback(Object.assign(new Error('cannot execute INSERT'), { code: '25006' })))
  }) as unknown as typeof listener.query
  for (let i = 0; i < 5; i++) await scene.next(i)
  assert.equal(asked, 1)
  while (lastListener() === listener) await sleep(20)
})

test('a claim whose connection is ended meanwhile still returns the job', async () => {
  await using scene = await listening()
  for (let round = 0; round < 3; round++) {
    await scene.next('before')
    const lock = await scene.pool.connect()
    await lock.query(lanes('select pg_advisory_lock(LANE_LOCKS, no) from holdfast.lane'))
    const waiting = scene.next(round)
    const stuck = `select pg_terminate_backend(pid) ${fromListeningSessions()} and wait_event_type = 'Lock'`
    while ((await lock.query(stuck)).rowCount === 0) await sleep(20) // a claim is in progress on it
    await lock.query('select pg_advisory_unlock_all()')
    lock.release()
    await waiting
    while ((await scene.said()).length === 0) await scene.next('again')
  }
})

const lanes = (text: string) => new Schema('holdfast').sql(text)
