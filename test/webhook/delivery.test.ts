// Deliveries to a real server on this machine.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import test from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { defineWebhooks, open, verifyWebhook, type Webhooks, type WebhooksOptions } from '../../src/index.ts'
import { Program } from '../sqlite/process.ts'
import { scratchDirectory } from '../support/scratch.ts'

test('a delivery with a 2xx is done: it is signed, has the id of the job, and its result is the beginning of the answer', async () => {
  await using world = await setup((_, response) => response.writeHead(201).end('x'.repeat(5_000)))
  const { id } = await world.hooks.enqueue(world.holdfast, world.url, { total: 7 }, { headers: { 'x-shop': 'a' } })
  const result = await world.holdfast.result<{ status: number; body: string }>(id)
  assert.deepEqual([result.status, result.body.length], [201, 1_024])
  const [call] = world.calls
  assert.deepEqual([call?.method, call?.body, call?.headers['x-shop']], ['POST', '{"total":7}', 'a'])
  assert.equal(call?.headers['content-type'], 'application/json')
  assert.equal(verifyWebhook({ secret: 's1', headers: call?.headers ?? {}, body: call?.body ?? '' })?.id, id)
})

test('as an effect a webhook is sent exactly if the job that it announces is settled', async () => {
  await using world = await setup((_, response) => response.end())
  const orders = world.holdfast.queue('orders')
  await orders.enqueue({ order: 1 })
  const [lease] = await orders.claim()
  await lease?.done(null, { enqueue: [world.hooks.effect(world.url, { order: 1, paid: true })] })
  await world.called(1)
  await orders.enqueue({ order: 2 })
  const [lost] = await orders.claim({ lease: 1 })
  await sleep(20)
  await world.holdfast.sweep()
  await assert.rejects(async () => lost?.done(null, { enqueue: [world.hooks.effect(world.url, { order: 2 })] }), {
    code: 'LEASE_LOST',
  })
  await sleep(200)
  assert.deepEqual(
    world.calls.map(({ body }) => body),
    ['{"order":1,"paid":true}'],
  )
})

test('5xx, 408, 429 and no answer are retried; Retry-After sets the time', async () => {
  const answers = [
    (response: ServerResponse) => response.writeHead(503).end('busy'),
    (response: ServerResponse) => response.writeHead(408).end(),
    (response: ServerResponse) => response.destroy(),
    (response: ServerResponse) => response.writeHead(429, { 'retry-after': '1' }).end(),
    (response: ServerResponse) => response.end('ok'),
  ]
  await using world = await setup((_, response) => answers.shift()?.(response))
  const { id } = await world.hooks.enqueue(world.holdfast, world.url, 'plain')
  await world.holdfast.result(id)
  const job = await world.holdfast.job(id)
  assert.deepEqual(
    job?.history.map(({ ending }) => ending),
    ['failed', 'failed', 'failed', 'failed', 'done'],
  )
  assert.match(job?.history[0]?.error?.message ?? '', /answered 503: busy$/)
  const [, , , asked, last] = world.calls
  const waitedMs = (last?.at ?? 0) - (asked?.at ?? 0)
  assert.ok(waitedMs >= 990, `waited ${waitedMs} ms although the backoff is 10`)
  assert.ok(world.calls.every(({ headers }) => headers['holdfast-id'] === id))
})

test('every delivery emits an event with its outcome', async () => {
  const answers = [
    (response: ServerResponse) => response.writeHead(503).end('busy'),
    (response: ServerResponse) => response.destroy(),
    (response: ServerResponse) => response.writeHead(204).end(),
    (response: ServerResponse) => response.writeHead(404).end(),
  ]
  await using world = await setup((_, response) => answers.shift()?.(response))
  const emitted: unknown[] = []
  world.holdfast.on('delivery.ended', ({ id, host, status, outcome, attempt, durationMs }) => {
    assert.ok(durationMs > 0 && durationMs < 10_000)
    emitted.push([id, host, attempt, status, outcome])
  })
  const delivered = await world.hooks.enqueue(world.holdfast, world.url, 'plain')
  await world.holdfast.result(delivered.id)
  const refused = await world.hooks.enqueue(world.holdfast, world.url, 'plain')
  await assert.rejects(world.holdfast.result(refused.id))
  const { host } = new URL(world.url)
  assert.deepEqual(emitted, [
    [delivered.id, host, 1, 503, 'retry'],
    [delivered.id, host, 2, null, 'retry'],
    [delivered.id, host, 3, 204, 'done'],
    [refused.id, host, 1, 404, 'dead'],
  ])
})

test('Retry-After is capped', async () => {
  let answered = 0
  await using world = await setup(
    (_, response) => (answered++ === 0 ? response.writeHead(503, { 'retry-after': '86400' }).end() : response.end()),
    { retryAfterMax: '50ms' },
  )
  const { id } = await world.hooks.enqueue(world.holdfast, world.url, {})
  await world.holdfast.result(id, { timeout: '10s' })
  assert.equal(world.calls.length, 2)
})

test('any other answer makes the job dead at once', async () => {
  for (const status of [400, 401, 404, 410, 301, 302, 304]) {
    await using world = await setup((_, response) => response.writeHead(status, { location: '/elsewhere' }).end('no'))
    const { id } = await world.hooks.enqueue(world.holdfast, world.url, {})
    await assert.rejects(world.holdfast.result(id), { code: 'JOB_DEAD', message: new RegExp(`answered ${status}`) })
    assert.equal(world.calls.length, 1)
  }
})

test('307 and 308 are followed three times, own headers stay with their host, another scheme is not followed', async () => {
  await using elsewhere = await setup((_, response) => response.end('there'))
  const routes: Record<string, string> = {
    '/1': '/2',
    '/2': '/3',
    '/3': elsewhere.url,
    '/loop': '/loop',
    '/tls': 'https://localhost/',
  }
  await using world = await setup((request, response) =>
    response.writeHead(307, { location: routes[request.url ?? ''] ?? '' }).end(),
  )
  const to = (path: string) =>
    world.hooks.enqueue(world.holdfast, new URL(path, world.url), { a: 1 }, { headers: { authorization: 'mine' } })
  const followed = await to('/1')
  assert.deepEqual(await world.holdfast.result(followed.id), { status: 200, body: 'there' })
  assert.deepEqual(
    world.calls.map(({ headers }) => headers['authorization']),
    ['mine', 'mine', 'mine'],
  )
  const [there] = elsewhere.calls
  assert.deepEqual([there?.headers['authorization'], there?.body], [undefined, '{"a":1}'])
  assert.ok(verifyWebhook({ secret: 's1', headers: there?.headers ?? {}, body: there?.body ?? '' }))
  await assert.rejects(world.holdfast.result((await to('/loop')).id), { message: /redirects more than 3 times/ })
  await assert.rejects(world.holdfast.result((await to('/tls')).id), { message: /another scheme is not followed/ })
})

test('a private address is refused, in the call and in a redirect', async () => {
  await using inside = await setup((_, response) => response.end('secret'))
  await using world = await setup((_, response) => response.writeHead(308, { location: inside.url }).end(), {
    allowPrivate: false,
    allow: ['localhost'],
  })
  const first = await world.hooks.enqueue(world.holdfast, world.url, {})
  await assert.rejects(world.holdfast.result(first.id), { code: 'JOB_DEAD', message: /may not go to 127\.0\.0\.1/ })
  const named = await world.hooks.enqueue(world.holdfast, world.url.replace('127.0.0.1', 'localhost'), {})
  await assert.rejects(world.holdfast.result(named.id), { code: 'JOB_DEAD', message: /may not go to 127\.0\.0\.1/ })
  assert.deepEqual([world.calls.length, inside.calls.length], [1, 0])
})

test('a call without an answer in time is retried', async () => {
  let answered = 0
  await using world = await setup((_, response) => (answered++ === 0 ? undefined : response.end()), {
    timeout: '200ms',
  })
  const { id } = await world.hooks.enqueue(world.holdfast, world.url, {})
  await world.holdfast.result(id)
  const job = await world.holdfast.job(id)
  assert.match(job?.history[0]?.error?.message ?? '', /did not answer within 200 ms/)
})

test('no more calls than allowed are made to one host at a time', async () => {
  let now = 0
  let most = 0
  const answer = async (_: IncomingMessage, response: ServerResponse) => {
    most = Math.max(most, ++now)
    await sleep(30)
    now -= 1
    response.end()
  }
  await using world = await setup((request, response) => void answer(request, response), { perHost: 2 })
  const all = Array.from({ length: 12 }, () => world.hooks.enqueue(world.holdfast, world.url, {}))
  for (const { id } of await Promise.all(all)) await world.holdfast.result(id)
  assert.equal(most, 2)
})

test('a call that finds no free slot at a slow host is snoozed, which costs no attempt', async () => {
  const slow: ServerResponse[] = []
  await using world = await setup((_, response) => slow.push(response), { perHost: 1 })
  const snoozed = new Promise<{ id: string }>((resolve) => void world.holdfast.on('job.snoozed', resolve))
  const ids = [1, 2].map(async (n) => (await world.hooks.enqueue(world.holdfast, world.url, n)).id)
  const { id } = await snoozed
  assert.ok((await Promise.all(ids)).includes(id))
  const job = await world.holdfast.job(id)
  assert.deepEqual([job?.state, job?.attempts, world.calls.length], ['scheduled', 0, 1])
  for (const response of slow) response.end()
})

test('if a worker is killed after a delivery, the call is delivered again, with the same id', async () => {
  await using scratch = await scratchDirectory()
  const store = `sqlite:${join(scratch.path, 'jobs.db')}`
  let victim: Program | null = null
  await using world = await setup(
    (_, response) => {
      if (!victim) return response.end()
      victim.kill('SIGKILL') // delivered, and the worker cannot settle it any more
      victim = null
      return undefined
    },
    {},
    store,
  )
  await world.worker.stop()
  await using program = Program.start('../../webhook/programs/delivers', store)
  victim = program
  await program.hear()
  const { id } = await world.hooks.enqueue(world.holdfast, world.url, { order: 1 })
  assert.equal(await program.ended, 'SIGKILL')
  world.hooks.work(world.holdfast)
  assert.deepEqual(await world.holdfast.result(id), { status: 200, body: '' })
  assert.deepEqual(
    world.calls.map(({ headers }) => headers['holdfast-id']),
    [id, id],
  )
})

test('bad options and calls are refused', async () => {
  const hooks = defineWebhooks({ secret: 's1' })
  const bad: [unknown, RegExp][] = [
    ['ftp://example.org/', /url must be an http or https URL/],
    ['file:///etc/passwd', /url must be an http or https URL/],
    ['nonsense', /url must be an http or https URL/],
    ['https://user:pass@example.org/', /must not contain a password/],
  ]
  for (const [url, message] of bad)
    assert.throws(() => hooks.call(url as string, {}), { code: 'INVALID_OPTION', message })
  const url = 'https://example.org/'
  assert.throws(() => hooks.call(url, 'x'.repeat(300_000)), { code: 'PAYLOAD_TOO_LARGE' })
  for (const headers of [{ host: 'x' }, { 'holdfast-id': 'x' }, { 'a b': 'x' }, { a: 'x\r\ny: z' }, { a: 7 }, []]) {
    assert.throws(() => hooks.call(url, {}, { headers: headers as never }), { code: 'INVALID_OPTION' })
  }
  for (const options of [
    { secret: '' },
    { secret: 's', perHost: 0 },
    { secret: 's', allow: ['a b'] },
    { secret: 's', x: 1 },
  ]) {
    assert.throws(() => defineWebhooks(options as never), { code: 'INVALID_OPTION' })
  }
})

test('a job in the queue that is not a call becomes dead, and disturbs no other', async () => {
  await using world = await setup((_, response) => response.end())
  const { id } = await world.holdfast.queue(world.hooks.queue.name).enqueue({ url: 'file:///etc/passwd' })
  await assert.rejects(world.holdfast.result(id), { code: 'JOB_DEAD', message: /http or https/ })
})

interface Call {
  readonly method: string | undefined
  readonly headers: IncomingMessage['headers']
  readonly body: string
  readonly at: number
}

async function setup(
  answer: (request: IncomingMessage, response: ServerResponse) => unknown,
  options: Partial<WebhooksOptions> = {},
  store = 'sqlite::memory:',
) {
  const calls: Call[] = []
  const server = createServer(async (request, response) => {
    const body = Buffer.concat(await Array.fromAsync(request)).toString()
    calls.push({ method: request.method, headers: request.headers, body, at: performance.now() })
    answer(request, response)
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const holdfast = await open(store, { logger: false })
  const backoff = { base: 10, factor: 1, jitter: 0 }
  const hooks: Webhooks = defineWebhooks({ secret: 's1', allowPrivate: true, backoff, ...options })
  const worker = hooks.work(holdfast)
  const called = async (count: number) => {
    while (calls.length < count) await sleep(5)
  }
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`
  const dispose = async () => {
    await holdfast.close({ grace: 0 })
    server.closeAllConnections()
    server.close()
  }
  return { calls, called, holdfast, hooks, worker, url, [Symbol.asyncDispose]: dispose }
}
