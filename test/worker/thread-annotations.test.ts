// The annotations and offers of a handler in a thread are stored like those of any other handler.
import assert from 'node:assert/strict'
import test from 'node:test'
import { open } from '../../src/index.ts'

test('outcomes, warnings, costs and offers of a handler in a thread are stored', async () => {
  await using holdfast = await open('sqlite::memory:', { logger: false })
  const items = ['save', 'fail', 'offer'].map((payload) => ({ queue: 'mail', payload, attempts: 1 }))
  const batch = await holdfast.batch({ name: 'threads' }, items)
  const worker = holdfast.work('mail', new URL('./handlers/costs.ts', import.meta.url), { threads: 1 })
  while ((await batch.progress()).waiting + (await batch.progress()).running > 1) await pause()
  while ((await Array.fromAsync(holdfast.inbox('threads'))).length === 0) await pause()
  const [pickup] = await Array.fromAsync(holdfast.inbox('threads'))
  assert.deepEqual(pickup?.value, { from: batch.id })
  await pickup?.accept()
  await worker.stop()
  const { state, done, dead, outcomes, warnings, costs } = await batch.finished({ timeout: '10s' })
  assert.deepEqual({ state, done, dead }, { state: 'done', done: 2, dead: 1 })
  assert.deepEqual(
    { outcomes, warnings, costs },
    {
      ...{ outcomes: { saved: 1 }, warnings: { slow: 1 }, costs: { tokens: 10 } },
    },
  )
})

function pause(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 20))
}
