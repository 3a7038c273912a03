import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test } from 'node:test'
import { open } from '../../src/index.ts'
import { createHandler } from '../../src/server/index.ts'

async function setup(basePath?: string) {
  const holdfast = await open('sqlite::memory:')
  const handler = createHandler(holdfast, basePath === undefined ? {} : { basePath })
  const get = async (path: string, method = 'GET') => {
    const response = await handler(new Request(`http://localhost${path}`, { method }))
    return { status: response.status, body: await response.json() }
  }
  return { holdfast, handler, get, [Symbol.asyncDispose]: () => holdfast.close() }
}

test('queues and jobs are the same as in the client', async () => {
  await using world = await setup()
  const { id } = await world.holdfast.queue('mail').enqueue({ to: 'a' })
  const queues = await world.get('/api/queues')
  assert.partialDeepStrictEqual(queues, { status: 200, body: [{ name: 'mail', ready: 1 }] })
  const page = await world.get('/api/jobs?queue=mail&state=ready&limit=1')
  assert.partialDeepStrictEqual(page, { status: 200, body: { jobs: [{ id }], next: null } })
  const job = await world.get(`/api/jobs/${id}`)
  assert.partialDeepStrictEqual(job, { status: 200, body: { payload: { to: 'a' } } })
})

test('every condition of a filter is a parameter', async () => {
  await using world = await setup()
  const queue = world.holdfast.queue('mail', { attempts: 1, limit: { concurrency: 9, key: 'to' } })
  const { id } = await queue.enqueue(
    { to: 'a', n: 3 },
    { dedup: { key: 'd' }, idempotencyKey: 'i', labels: { a: 'b=c', d: 'e' } },
  )
  await queue.enqueue({ to: 'b' })
  const [lease] = await queue.claim({ worker: 'w1' })
  await lease?.dead(new Error('no & never'))
  const range = ['enqueued', 'started', 'ended'].map((name) => `${name}Since=0&${name}Before=2200-01-01`).join('&')
  const { errorGroup } = (await world.holdfast.job(id)) ?? {}
  for (const query of [
    ...['label=a%3Db%3Dc&label=d%3De', `errorGroup=${errorGroup}`],
    ...[`id=${id}`, 'queue=mail&queue=post&state=dead&state=done', 'error=no%20%26%20never', 'worker=w1', range],
    ...[
      'limitKey=a',
      'dedupKey=d',
      'idempotencyKey=i',
      'attemptsMin=1&attemptsMax=1',
      'payloadPath=to&payloadEquals=%22a%22',
    ],
    ...['payloadPath=n&payloadEquals=3'],
  ]) {
    const { status, body } = await world.get(`/api/jobs?${query}`)
    assert.partialDeepStrictEqual({ status, body }, { status: 200, body: { jobs: [{ id }], next: null } }, query)
    assert.equal((body as { jobs: unknown[] }).jobs.length, 1, query)
  }
  const { body } = await world.get(`/api/jobs?id=${id}&include=payload&include=error`)
  assert.partialDeepStrictEqual(body, { jobs: [{ payload: { to: 'a', n: 3 }, error: { message: 'no & never' } }] })
  for (const query of [
    'attemptsMin=',
    'endedSince=x',
    'endedSince=yesterday%205',
    'startedBefore=2030-02-30',
    'enqueuedSince=-1',
    'enqueuedSince=1.5',
    'enqueuedSince=2030-01-31T09:00:00+02:00',
    'payloadPath=a',
    'payloadEquals=1',
    'payloadPath=a&payloadEquals=x',
    'include=all',
    'label=a',
    'errorGroup=x',
    ...[
      'label=c%3Dx&label=c%3Dy',
      'error=a&error=b',
      'limit=1&limit=5',
      'endedSince=1&endedSince=2',
      'worker=w&worker=w',
    ],
    ...['attemptsMin=1&attemptsMin=2', 'payloadPath=a&payloadEquals=1&payloadEquals=2', `after=&after=${id}`],
  ])
    assert.equal((await world.get(`/api/jobs?${query}`)).status, 400, query)
  const { body: refused } = await world.get('/api/jobs?endedSince=yesterday%205')
  assert.partialDeepStrictEqual(refused, { error: { code: 'INVALID_OPTION' } })
  assert.match(
    JSON.stringify(refused),
    /endedSince must be a time such as .*, a date such as 2030-01-31, or whole milliseconds/,
  )
})

test('a wrong request gets the matching status and code', async () => {
  await using world = await setup()
  const cases: [path: string, method: string, status: number, code: string | undefined][] = [
    ['/api/jobs?state=lost', 'GET', 400, 'INVALID_OPTION'],
    ['/api/jobs?limit=many', 'GET', 400, 'INVALID_OPTION'],
    ['/api/jobs?colour=red', 'GET', 400, 'INVALID_OPTION'],
    ['/api/jobs/nonsense', 'GET', 400, 'INVALID_ID'],
    ['/api/jobs/%E0%A4%A', 'GET', 400, 'INVALID_ID'],
    ['/api/jobs/01a1e15d-1f43-7000-aa1d-1fba58c70098', 'GET', 404, 'JOB_NOT_FOUND'],
    ['/api/else', 'GET', 404, undefined],
    ['/api/queues', 'POST', 405, undefined],
  ]
  for (const [path, method, status, code] of cases) {
    const answer = await world.get(path, method)
    assert.partialDeepStrictEqual(answer, { status, body: { error: code === undefined ? {} : { code } } }, path)
  }
})

test('it is live while the process answers, and ready while the store answers', async () => {
  await using world = await setup('/ops/')
  const well = { ready: true, parts: { store: { ok: true } } }
  assert.deepEqual(await world.get('/ops/health/ready'), { status: 200, body: well })
  assert.equal((await world.get('/health/ready')).status, 404)
  await world.holdfast.close()
  assert.deepEqual(await world.get('/ops/health/live'), { status: 200, body: { live: true, parts: {} } })
  const ready = await world.get('/ops/health/ready')
  const why = 'CLOSED: This Holdfast was closed. Open it again to continue.'
  assert.deepEqual(ready, { status: 503, body: { ready: false, parts: { store: { ok: false, why } } } })
  assert.equal((await world.get('/ops/health/else')).status, 404)
})

test('it works in a plain Node server', async () => {
  await using world = await setup()
  await world.holdfast.queue('mail').enqueue(1)
  const server = createServer(async (request, response) => {
    const answer = await world.handler(new Request(`http://localhost${request.url}`))
    response.writeHead(answer.status, Object.fromEntries(answer.headers)).end(await answer.text())
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  try {
    const { port } = server.address() as AddressInfo
    const response = await fetch(`http://127.0.0.1:${port}/api/queues`)
    assert.equal(response.headers.get('content-type'), 'application/json')
    assert.partialDeepStrictEqual(await response.json(), [{ name: 'mail', ready: 1 }])
  } finally {
    server.close()
  }
})
