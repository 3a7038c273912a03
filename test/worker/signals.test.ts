import assert from 'node:assert/strict'
import { test } from 'node:test'
import { sqliteSharedStore } from './shared-store.ts'
import { WorkerProcess } from './worker-process.ts'

test('the function that closeOnSignals returns removes its listeners', async () => {
  await using sharedStore = await sqliteSharedStore()
  const holdfast = await sharedStore.open()
  const listeners = () => ['SIGTERM', 'SIGINT', 'SIGHUP'].map((signal) => process.listenerCount(signal))
  const before = listeners()
  const ignore = holdfast.closeOnSignals()
  assert.deepEqual(
    listeners(),
    before.map((count, at) => count + (at < 2 ? 1 : 0)),
  )
  ignore()
  holdfast.closeOnSignals({ grace: '1s', signals: ['SIGHUP', 'SIGHUP'] })()
  assert.deepEqual(listeners(), before)
})

test('signals that a process cannot catch, and names of no signal, are refused', async () => {
  await using sharedStore = await sqliteSharedStore()
  const holdfast = await sharedStore.open()
  for (const signals of [['SIGKILL'], ['SIGSTOP'], ['SIGNAL'], [], 'SIGTERM', [15]] as never[])
    assert.throws(() => holdfast.closeOnSignals({ signals }), { code: 'INVALID_OPTION' })
  assert.throws(() => holdfast.closeOnSignals({ grace: 'soon' as never }), { code: 'INVALID_OPTION' })
})

test('a process ends by the first of two different signals', async () => {
  await using sharedStore = await sqliteSharedStore()
  const holdfast = await sharedStore.open()
  await using worker = await WorkerProcess.start(sharedStore.url, 'worker', { lease: '30s', concurrency: 1 })
  await holdfast.queue('tasks').enqueue({ do: 'hang' })
  await worker.until(() => worker.began.length === 1)
  worker.kill('SIGINT')
  await worker.happened('worker.stopping', 1)
  worker.kill('SIGTERM')
  assert.equal(await worker.ended, 'SIGINT')
})
