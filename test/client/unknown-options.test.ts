// An option that does not exist is refused with a sentence that names those that do: a typing error must not change what is done.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { healthHandler, open, postgres, sqlite, tracing } from '../../src/index.ts'
import { metrics } from '../../src/observe/metrics.ts'
import { createHandler } from '../../src/server/index.ts'
import { rejects } from '../conformance/expect.ts'

const unknown = { readonly: true } as object

test('open refuses an option that does not exist, and opens nothing', async () => {
  await rejects(open('sqlite::memory:', unknown), 'INVALID_OPTION', { option: 'readonly' })
  await rejects(open('sqlite::memory:', { readOnly: 'yes' as never }), 'INVALID_OPTION', { option: 'readOnly' })
})

test('so do the stores, the metrics, the tracing and the handlers', async () => {
  await using holdfast = await open('sqlite::memory:')
  const calls: Record<string, () => unknown> = {
    sqlite: () => sqlite({ path: ':memory:', ...unknown }),
    postgres: () => postgres({ url: 'postgres://127.0.0.1:1/app', ...unknown }),
    metrics: () => metrics(holdfast, unknown),
    tracing: () => tracing(unknown),
    createHandler: () => createHandler(holdfast, unknown),
    'health of createHandler': () => createHandler(holdfast, { health: unknown }),
    healthHandler: () => healthHandler({}, unknown),
    'parts of healthHandler': () => healthHandler(unknown),
  }
  for (const [name, call] of Object.entries(calls)) {
    assert.throws(call, { code: 'INVALID_OPTION', message: /There is no option "readonly"/ }, name)
  }
})

test('close with an option that does not exist is refused, and closes nothing', async () => {
  await using holdfast = await open('sqlite::memory:')
  holdfast.work('mail', () => 7)
  await rejects(holdfast.close({ grce: 0 } as object), 'INVALID_OPTION', { option: 'grce' })
  await rejects(holdfast.close({ grace: 'soon' as never }), 'INVALID_OPTION', { option: 'grace' })
  const { id } = await holdfast.queue('mail').enqueue(1)
  assert.equal(await holdfast.result(id), 7)
})
