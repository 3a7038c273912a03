// A bundled handler module has a copy of the package of its own: what the one copy makes, the other one must know.
import assert from 'node:assert/strict'
import test from 'node:test'
import { HoldfastError, isHoldfastError } from '../../src/errors.ts'
import { isPermanent, Permanent } from '../../src/lease/permanent.ts'
import { delayAskedBy, RetryLater } from '../../src/lease/retry-later.ts'
import { Job } from '../../src/worker/job.ts'

test('errors of another copy of the package are known by their kind and code', async () => {
  const errors = await copyOf<typeof import('../../src/errors.ts')>('errors.ts')
  const permanent = await copyOf<typeof import('../../src/lease/permanent.ts')>('lease/permanent.ts')
  const later = await copyOf<typeof import('../../src/lease/retry-later.ts')>('lease/retry-later.ts')
  const foreign = new errors.HoldfastError('CLOSED', 'closed')
  assert.equal(foreign instanceof HoldfastError, false) // it is a copy indeed
  assert.deepEqual([isHoldfastError(foreign, 'CLOSED'), isHoldfastError(foreign, 'JOB_DEAD')], [true, false])
  assert.equal(errors.isHoldfastError(new HoldfastError('CLOSED', 'closed')), true)
  assert.equal(isPermanent(new permanent.Permanent('gone')), true)
  assert.equal(permanent.isPermanent(new Permanent('gone')), true)
  assert.equal(delayAskedBy(new later.RetryLater('busy', { delay: '2s' })), 2_000)
  assert.equal(later.delayAskedBy(new RetryLater('busy', { delay: '2s' })), 2_000)
  assert.deepEqual(
    [isHoldfastError(new Error('x')), isPermanent(new Error('x')), delayAskedBy(new Error('x'))],
    [false, false, null],
  )
})

test('a webhook of another copy of the package tells of its calls', async () => {
  const copy = await copyOf<typeof import('../../src/worker/job.ts')>('worker/job.ts')
  const told: unknown[] = []
  const job = new Job({ delivered: (facts: unknown) => told.push(facts) } as never, null)
  const facts = { host: 'example.com', status: 204, outcome: 'done', durationMs: 1 } as const
  copy.Job.delivered(job as never, facts)
  assert.deepEqual(told, [facts])
})

function copyOf<Module>(path: string): Promise<Module> {
  return import(new URL(`../../src/${path}?copy`, import.meta.url).href)
}
