// HOLDFAST_DISABLE switches off background loops, and nothing else.
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

test('loops are named in a list with commas, with or without blanks', () => {
  using _ = disable('sweep, work')
  assert.deepEqual([isDisabled('sweep'), isDisabled('work'), isDisabled('schedule')], [true, true, false])
})

test('an empty value switches nothing off', () => {
  using _ = disable('')
  assert.deepEqual([isDisabled('sweep'), isDisabled('work'), isDisabled('schedule')], [false, false, false])
})

test('open refuses an unknown name, also beside known ones', async () => {
  for (const loops of ['sweeps', 'sweep,shedule', 'all', 'Work']) {
    using _ = disable(loops)
    await assert.rejects(openInMemory(), { code: 'INVALID_OPTION', message: /HOLDFAST_DISABLE takes sweep, schedule/ })
  }
  using _ = disable('reap,, schedule,')
  await (await openInMemory()).holdfast.close()
})

test('a worker that is switched off says so in its health, claims nothing, and can be stopped', async () => {
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

test('a worker that is switched off and stopped before it has begun stops', async () => {
  using _ = disable('work')
  const { holdfast } = await openInMemory()
  await holdfast.work('mail', () => assert.fail('nothing is to run')).stop()
  await holdfast.close()
})

test('without the sweep a worker works on, due jobs stay scheduled, and a sweep by hand makes them ready', async () => {
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

test('drain rejects while work is switched off', async () => {
  using _ = disable('work')
  const { holdfast } = await openInMemory()
  await assert.rejects(drain(holdfast, [['mail', () => undefined]]), { code: 'INVALID_STATE' })
  await holdfast.close()
})
