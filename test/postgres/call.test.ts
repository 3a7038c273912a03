// Statements as `call.ts` sends them, through drivers and pools that wrap the connection in different ways.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { open, postgres } from '../../src/index.ts'
import { setup } from './exactness-database.ts'
import { until } from './world.ts'

test('a driver that does not expose the protocol is called by its public query method', async () => {
  await using database = await setup()
  const kinds = new Set<string>()
  const Closed = closedClient((statement) =>
    kinds.add(typeof statement === 'object' && 'submit' in statement ? 'ours' : 'its own'),
  )
  await using pool = ending(new pg.Pool({ connectionString: database.url, max: 3, Client: Closed } as pg.PoolConfig))
  assert.deepEqual(await wholeLife(pool), ['mail', { n: 1 }, 'done', { fine: true }])
  assert.deepEqual([...kinds], ['its own'])
})

test('every kind of pool gives the same results', async () => {
  await using database = await setup()
  await using pool = ending(new pg.Pool({ connectionString: database.url, max: 3, binary: true } as pg.PoolConfig))
  assert.deepEqual(await wholeLife(pool), ['mail', { n: 1 }, 'done', { fine: true }])
})

test("the driver's own query timer ends with the answer", async () => {
  await using database = await setup()
  await using pool = ending(
    new pg.Pool({ connectionString: database.url, max: 3, query_timeout: 60_000, idleTimeoutMillis: 0 }),
  )
  const timers = () => process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout').length
  const before = timers()
  await wholeLife(pool)
  await until(async () => timers() <= before, 'no timer is left')
})

test("a statement that the driver's own timeout ends is sent again, and commits once", async () => {
  await using database = await setup()
  await using pool = ending(new pg.Pool({ connectionString: database.url, max: 3, query_timeout: 300 }))
  await using holdfast = await open(postgres({ pool }))
  await holdfast.queue('mail').enqueue(1)
  await using other = ending(new pg.Pool({ connectionString: database.url, max: 1 }))
  const client = await other.connect()
  await client.query('begin; lock table holdfast.job in access exclusive mode')
  const enqueued = holdfast.queue('mail').enqueue(2)
  await sleep(700)
  await client.query('commit')
  client.release()
  assert.equal((await enqueued).status, 'created')
  assert.deepEqual(
    (await holdfast.claim(['mail'], { max: 9 })).map(({ job }) => job.payload),
    [1, 2],
  )
})

test('a wrapper around the query method sees the end of each query, and may refuse to send it', async () => {
  await using database = await setup()
  await using pool = ending(new pg.Pool({ connectionString: database.url, max: 3 }))
  const verbs: (string | null)[] = []
  let refuses = 1
  pool.on('connect', (client) => {
    const query = client.query
    client.query = ((
      statement: { text?: string; callback?: (error: Error | null, answer: unknown) => void },
      ...rest: unknown[]
    ) => {
      const { text = '', callback } = statement
      if (text.includes('enqueue_plain') && refuses-- > 0) {
        return Promise.reject(Object.assign(new Error('Connection terminated'), { code: '08006' }))
      }
      if (callback) {
        statement.callback = (error, answer) => {
          verbs.push(/\.(\w+)\(/.exec(text)?.[1] ?? null)
          callback(error, answer)
        }
      }
      return Reflect.apply(query, client, [statement, ...rest])
    }) as typeof client.query
  })
  assert.deepEqual(await wholeLife(pool), ['mail', { n: 1 }, 'done', { fine: true }])
  for (const verb of ['enqueue_plain', 'claim', 'settle_done']) assert.ok(verbs.includes(verb), verb)
  assert.ok(refuses < 0)
})

async function wholeLife(pool: pg.Pool): Promise<unknown[]> {
  await using holdfast = await open(postgres({ pool }))
  const { id } = await holdfast.queue('mail').enqueue({ n: 1 })
  const [lease] = await holdfast.claim(['mail'])
  await lease?.done({ fine: true })
  const job = await holdfast.job(id)
  return [job?.queue, lease?.job.payload, job?.state, job?.result]
}

/** A client with all methods of the driver's, without access to the connection inside. */
function closedClient(onQuery: (statement: object) => void): typeof pg.Client {
  return class {
    constructor(options: pg.ClientConfig) {
      const client = new pg.Client(options)
      // biome-ignore lint/correctness/noConstructorReturn: it replaces the client
      return new Proxy(client, {
        get: (target, name) => {
          if (name === 'connection') return undefined
          const value = Reflect.get(target, name) as unknown
          if (typeof value !== 'function') return value
          return (...args: unknown[]) => {
            if (name === 'query') onQuery(args[0] as object)
            return Reflect.apply(value, target, args)
          }
        },
      }) as never
    }
  } as never
}

function ending(pool: pg.Pool): pg.Pool & AsyncDisposable {
  pool.on('error', () => {})
  return Object.assign(pool, { [Symbol.asyncDispose]: () => pool.end() })
}
