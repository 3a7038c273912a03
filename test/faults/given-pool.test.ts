// A pool of the application without an error listener. pg emits an `error` event when the server ends an idle connection, and an
// `error` event without a listener ends the process. Here, it fails the test.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Pool, type PoolClient } from 'pg'
import { isHoldfastError } from '../../src/errors.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { Connections } from '../../src/store/postgres/connection/connections.ts'
import { ignoreErrorsOf } from '../../src/store/postgres/connection/pool-errors.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { query } from './scene.ts'

let server: Server

before(async () => {
  server = await startServer()
})
after(() => server[Symbol.asyncDispose]())

for (const mode of ['fast', 'immediate'] as const) {
  for (const listen of ['pool', 'address', false] as const) {
    test(`the process survives a server that stops (${mode}), with the option listen: ${listen}`, async () => {
      await using scene = await setup({ listen })
      const { holdfast, pool } = scene
      const claiming = holdfast.claim(['mail'], { wait: '60s' }) // a connection listens meanwhile
      claiming.catch(() => undefined)
      await Promise.all([1, 2, 3].map(() => pool.query('select pg_sleep(0.05)'))) // and three are idle
      await server.stop(mode)
      while (pool.idleCount > 0) await sleep(10)
      await server.start()
      const { id } = await eventually(() => holdfast.queue('mail').enqueue('after'))
      const [lease] = await eventually(() => claiming.catch(() => holdfast.claim(['mail'], { wait: '20s' })))
      assert.equal(lease?.job.id, id)
      await lease?.done()
    })
  }
}

test('the process survives the end of a connection that the store uses, between two statements', async () => {
  await using scene = await setup({ listen: false })
  const connections = new Connections({ pool: scene.pool, isOwn: false, most: 1 })
  const ended = connections.use(
    async (client) => {
      const { rows } = await client.query('select pg_backend_pid() as pid')
      const over = new Promise((resolve) => client.once('end', resolve))
      await query(server.url(), `select pg_terminate_backend(${rows[0].pid})`)
      await over
      return 'over'
    },
    { ends: false, isFit: () => Promise.resolve(false) },
  )
  assert.equal(await ended, 'over')
  connections.close()
})

test('twelve stores on one pool add one listener together, and remove it when the last of them is closed', async () => {
  const pool = new Pool({ connectionString: await database(), max: 30 })
  const own = () => undefined
  pool.on('error', own)
  const warnings: Error[] = []
  const note = (warning: Error) => void warnings.push(warning)
  process.on('warning', note)
  const stores: Holdfast[] = []
  for (let n = 0; n < 12; n++) stores.push(await open(postgres({ pool }), { logger: false }))
  await Promise.all(stores.map((holdfast) => holdfast.claim(['mail'], { wait: 50 })))
  assert.equal(pool.listenerCount('error'), 2)
  for (const holdfast of stores.splice(1)) await holdfast.close()
  assert.equal(pool.listenerCount('error'), 2, 'one store is still open')
  await stores[0]?.close()
  await stores[0]?.close()
  while (pool.listenerCount('error') > 1) await sleep(5) // connections with LISTEN are being closed
  assert.deepEqual(pool.listeners('error'), [own])
  const clients = await Promise.all(Array.from({ length: 5 }, () => pool.connect()))
  for (const client of clients) {
    assert.ok(client.listenerCount('error') <= 1, `${client.listenerCount('error')} listeners on a connection`)
    client.release()
  }
  await pool.end()
  process.off('warning', note)
  assert.deepEqual(warnings, [])
})

test('a store that cannot be opened leaves no listener on the pool', async () => {
  const pool = new Pool({ host: '127.0.0.1', port: 1, user: 'u', database: 'd' })
  await assert.rejects(open(postgres({ pool }), { logger: false }), (error) =>
    isHoldfastError(error, 'STORE_UNAVAILABLE'),
  )
  assert.equal(pool.listenerCount('error'), 0)
  await pool.end()
})

test('the listener stays until the connections that the store has ended are gone', async () => {
  await using late = await lateFarewell()
  const pool = new Pool({ host: '127.0.0.1', port: late.port, user: 'u', database: 'd' })
  const stop = ignoreErrorsOf(pool)
  const connections = new Connections({ pool, isOwn: false, most: 1 })
  const taken: PoolClient[] = []
  await connections.use(async (client) => void taken.push(client), { ends: true, isFit: () => Promise.resolve(true) })
  connections.close()
  stop()
  assert.equal(pool.listenerCount('error'), 1, 'the server may still send an error')
  const [error] = await once(pool, 'error')
  assert.match((error as Error).message, /terminating connection/)
  await once(taken[0] as PoolClient, 'end')
  await sleep(0)
  assert.equal(pool.listenerCount('error'), 0)
  await pool.end()
})

let databases = 0

async function database(): Promise<string> {
  const name = `given_${++databases}`
  await query(server.url(), `create database ${name}`)
  return server.url(name)
}

async function setup({ listen }: { readonly listen: 'pool' | 'address' | false }) {
  const url = await database()
  const pool = new Pool({ connectionString: url, max: 6 })
  const holdfast = await open(postgres({ pool, listen: listen === 'address' ? url : listen === 'pool' }), {
    logger: false,
  })
  return {
    ...{ pool, holdfast },
    [Symbol.asyncDispose]: async () => {
      await holdfast.close()
      await pool.end()
    },
  }
}

/** A server that was away may need longer than one call tries. */
async function eventually<T>(action: () => Promise<T>): Promise<T> {
  for (const until = performance.now() + 30_000; ; ) {
    try {
      return await action()
    } catch (error) {
      if (!isHoldfastError(error, 'STORE_UNAVAILABLE') || performance.now() > until) throw error
    }
  }
}

/** A server that answers the end of a connection with a fatal error, as one does that is stopped at that moment. */
async function lateFarewell() {
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    socket.once('data', () => {
      socket.write(welcome)
      socket.on('data', () => socket.end(farewell))
    })
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    [Symbol.asyncDispose]: async () => void server.close(),
  }
}

/** Authenticated, and ready for a query. */
const welcome = Buffer.from('R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I', 'latin1')
const farewellText = 'SFATAL\0C57P01\0Mterminating connection\0\0'
const farewell = Buffer.concat([
  Buffer.from('E'),
  Buffer.from([0, 0, 0, farewellText.length + 4]),
  Buffer.from(farewellText, 'latin1'),
])
