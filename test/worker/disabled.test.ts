// HOLDFAST_DISABLE switches off what runs in the background, and nothing else.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isDisabled } from '../../src/runtime/kill-switch.ts'
import { drain, openInMemory } from '../../src/testing/index.ts'

/** Sets the variable for the length of a test. */
function disable(loops: string): Disposable {
  const before = process.env['HOLDFAST_DISABLE']
  process.env['HOLDFAST_DISABLE'] = loops
  return {
    [Symbol.dispose]: () => {
      if (before === undefined) delete process.env['HOLDFAST_DISABLE']
      else process.env['HOLDFAST_DISABLE'] = before
    },
  }
}

test('loops are named one by one, with or without blanks', () => {
  using _ = disable('sweep, work')
  assert.deepEqual([isDisabled('sweep'), isDisabled('work'), isDisabled('schedule')], [true, true, false])
})

test('nothing is switched off by nothing', () => {
  using _ = disable('')
  assert.deepEqual([isDisabled('sweep'), isDisabled('work'), isDisabled('schedule')], [false, false, false])
})

test('a name that is none is refused by open, whatever else is named', async () => {
  for (const loops of ['sweeps', 'sweep,shedule', 'all', 'Work']) {
    using _ = disable(loops)
    await assert.rejects(openInMemory(), { code: 'INVALID_OPTION', message: /HOLDFAST_DISABLE takes sweep, schedule/ })
  }
  using _ = disable('reap,, schedule,')
  await (await openInMemory()).holdfast.close()
})

test('a worker that is switched off says so, takes nothing, and stops when it is told to', async () => {
  using _ = disable('work')
  const { holdfast } = await openInMemory()
  await holdfast.queue('mail').enqueue({})
  const worker = holdfast.work('mail', () => assert.fail('nothing is to run'))
  await new Promise((resolve) => setImmediate(resolve))
  const { ok, state, why } = worker.health()
  assert.deepEqual([ok, state, why], [false, 'disabled', 'Switched off by HOLDFAST_DISABLE=work.'])
  await worker.stop()
  assert.equal((await holdfast.stats()).ready, 1)
  await holdfast.close()
})

test('without the sweep a worker works on, due jobs stay where they are, and a sweep by hand brings them', async () => {
  using _ = disable('sweep')
  const { holdfast, clock } = await openInMemory()
  await holdfast.queue('mail').enqueueMany([{ payload: 'now' }, { payload: 'later', delay: '1m' }])
  clock.advance('2m')
  const done: unknown[] = []
  const both = Promise.withResolvers<void>()
  const worker = holdfast.work('mail', (job) => {
    done.push(job.payload)
    if (done.length === 2) both.resolve()
  })
  await new Promise((resolve) => holdfast.on('job.done', resolve))
  assert.deepEqual([done, worker.health().sweeper.state], [['now'], 'off'])
  await holdfast.sweep()
  await both.promise
  await holdfast.close()
})

test('drain says why it runs nothing', async () => {
  using _ = disable('work')
  const { holdfast } = await openInMemory()
  await assert.rejects(drain(holdfast, [['mail', () => undefined]]), { code: 'INVALID_STATE' })
  await holdfast.close()
})
