import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { open } from '../../src/index.ts'
import { type HealthParts, healthHandler, type PartHealth, storeHealth } from '../../src/observe/health.ts'
import { createHandler } from '../../src/server/index.ts'

interface Answer {
  readonly parts: Readonly<Record<string, PartHealth>>
}

const well = () => ({ ok: true })
const down = (why: string) => () => ({ ok: false, why })
const never = () => new Promise<never>(() => undefined)

function asking(parts: HealthParts, basePath?: string) {
  const handler = healthHandler(parts, basePath === undefined ? {} : { basePath })
  return async (path: string) => {
    const response = await handler(new Request(`http://localhost${path}`))
    return { status: response.status, body: (await response.json()) as Answer }
  }
}

test('it is live while its loops run, and ready while every part is healthy', async () => {
  const get = asking({ live: { sweeper: well }, ready: { store: down('connection refused'), workers: well } })
  assert.deepEqual(await get('/health/live'), { status: 200, body: { live: true, parts: { sweeper: { ok: true } } } })
  assert.deepEqual(await get('/health/ready'), {
    status: 503,
    body: {
      ready: false,
      parts: { sweeper: { ok: true }, store: { ok: false, why: 'connection refused' }, workers: { ok: true } },
    },
  })
})

test('a part that is not live is not ready either', async () => {
  const get = asking({ live: { workers: down('Worker w1 failed.') }, ready: { store: well } })
  assert.equal((await get('/health/live')).status, 503)
  assert.equal((await get('/health/ready')).status, 503)
})

test('a part that throws is down, with its message', async () => {
  const get = asking({
    ready: {
      throws: () => {
        throw new Error('no such table')
      },
      rejects: () => Promise.reject('nothing'),
    },
  })
  const { body } = await get('/health/ready')
  assert.deepEqual(body, {
    ready: false,
    parts: { throws: { ok: false, why: 'no such table' }, rejects: { ok: false, why: 'nothing' } },
  })
})

test('a part that does not answer is down after two seconds, and is not called again meanwhile', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  let asked = 0
  const hung = () => {
    asked += 1
    return never()
  }
  const get = asking({ ready: { hung, well } })
  for (let probe = 0; probe < 3; probe++) {
    const answered = get('/health/ready')
    await setImmediate() // the other parts have answered
    t.mock.timers.tick(2_000)
    const why = 'No answer within 2000 ms.'
    assert.deepEqual((await answered).body, { ready: false, parts: { hung: { ok: false, why }, well: { ok: true } } })
  }
  assert.equal(asked, 1)
})

test('the store is a part, and a closed store is down', async () => {
  const holdfast = await open('sqlite::memory:')
  const get = asking({ ready: { store: storeHealth(holdfast) } }, '/ops/')
  assert.equal((await get('/ops/health/ready')).status, 200)
  await holdfast.close()
  const { status, body } = await get('/ops/health/ready')
  assert.equal(status, 503)
  assert.match(body.parts['store']?.why ?? '', /^CLOSED: /)
  for (const path of ['/health/ready', '/ops/health', '/ops/health/else']) assert.equal((await get(path)).status, 404)
})

test('the HTTP handler checks the store and the given parts', async () => {
  await using holdfast = await open('sqlite::memory:')
  const handler = createHandler(holdfast, { health: { live: { workers: down('stopped') } } })
  const ready = await handler(new Request('http://localhost/health/ready'))
  assert.equal(ready.status, 503)
  const { parts } = (await ready.json()) as Answer
  assert.deepEqual(parts, { workers: { ok: false, why: 'stopped' }, store: { ok: true } })
})
