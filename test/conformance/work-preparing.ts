import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { defineQueue } from '../../src/index.ts'
import { heard, readJob, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

/** Between its handler and its settlement a run waits for schemas, which are code of the application. */
export function workPreparingTests(inWorld: InWorld): void {
  describe('a settlement that is being prepared', () => {
    test(
      'a result schema that does not answer fails the attempt with its timeout, as a handler that does not end',
      inWorld(async ({ holdfast }) => {
        const mail = defineQueue('mail', { result: silent().schema, timeout: '50ms', attempts: 1 })
        const { id } = await holdfast.queue(mail).enqueue(1)
        const dead = heard(holdfast, 'job.dead')
        await using worker = holdfast.work(mail, () => 'sent', { concurrency: 1 })
        assert.equal((await dead)[0]?.ending, 'timeout')
        const { state, result, error } = await readJob(holdfast, id)
        assert.deepEqual([state, result, error?.code], ['dead', null, 'JOB_TIMEOUT'])
        assert.match(error?.message ?? '', /its handler had ended, but a schema/)
        assert.deepEqual([worker.health().running, worker.health().abandoned, worker.health().ok], [0, 1, false])
      }),
    )

    test(
      'a payload schema of a follow-up that does not answer fails the attempt with its timeout',
      inWorld(async ({ holdfast }) => {
        const next = defineQueue('next', { payload: silent().schema })
        const mail = holdfast.queue('mail', { timeout: '50ms', attempts: 1 })
        const { id } = await mail.enqueue(1)
        const dead = heard(holdfast, 'job.dead')
        await using _ = holdfast.work(mail, (job) => job.effects.enqueue(next, 1))
        assert.equal((await dead)[0]?.ending, 'timeout')
        assert.equal((await readJob(holdfast, id)).error?.code, 'JOB_TIMEOUT')
        assert.equal((await holdfast.stats('next')).ready, 0)
      }),
    )

    test(
      'a run keeps its slot, and counts as running, until its result has been validated',
      inWorld(async ({ holdfast }) => {
        const { schema, asked, answer } = silent()
        const mail = defineQueue('mail', { result: schema })
        await holdfast.queue(mail).enqueueMany([{ payload: 'first' }, { payload: 'second' }])
        const started: unknown[] = []
        const done = heard(holdfast, 'job.done', 2)
        await using worker = holdfast.work(mail, ({ payload }) => void started.push(payload), { concurrency: 1 })
        await asked
        const looked = heard(holdfast, 'job.enqueued')
        await holdfast.queue(mail).enqueue('third') // a worker with a free slot would claim now
        await looked
        assert.deepEqual([started, worker.health().running], [['first'], 1])
        answer({ value: null })
        await done
      }),
    )

    test(
      'a job is cancelled while its result is being validated, once it has had its time to unwind',
      inWorld(async ({ holdfast }) => {
        const { schema, asked } = silent()
        const mail = defineQueue('mail', { result: schema })
        const { id } = await holdfast.queue(mail).enqueue(1)
        const cancelled = heard(holdfast, 'job.cancelled')
        await using _ = holdfast.work(mail, () => 'sent', { unwind: 10 })
        await asked
        await holdfast.cancel(id)
        await cancelled
        assert.equal(await stateOf(holdfast, id), 'cancelled')
      }),
    )

    test(
      'a worker that stops releases a job whose result schema does not answer, and what the schema answers later has no effect',
      inWorld(async ({ holdfast }) => {
        const { schema, asked, answer } = silent()
        const mail = defineQueue('mail', { result: schema })
        const { id } = await holdfast.queue(mail).enqueue(1)
        const worker = holdfast.work(mail, () => 'sent', { unwind: 10 })
        await asked
        await worker.stop({ grace: 0 })
        assert.equal(worker.health().abandoned, 1)
        answer({ value: 'sent' })
        await new Promise(setImmediate)
        const { state, attempts, result } = await readJob(holdfast, id)
        assert.deepEqual([state, attempts, result, worker.health().abandoned], ['ready', 0, null, 0])
      }),
    )

    test(
      'an effect that is staged while the result is being validated is refused',
      inWorld(async ({ holdfast }) => {
        const { schema, asked, answer } = silent()
        const mail = defineQueue('mail', { result: schema })
        await holdfast.queue(mail).enqueue(1)
        const done = heard(holdfast, 'job.done')
        let stage = () => {}
        await using _ = holdfast.work(mail, (job) => {
          stage = () => job.effects.put('late', 1)
          return 'sent'
        })
        await asked
        assert.throws(stage, /has ended in this worker/)
        answer({ value: 'sent' })
        await done
        assert.equal(await holdfast.kv.get('late'), null)
      }),
    )

    test(
      'a handler that returns a promise which cannot be awaited fails its attempt, and the worker goes on',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue<string>('mail', { attempts: 1 })
        const { id } = await mail.enqueue('broken')
        const dead = heard(holdfast, 'job.dead')
        const done = heard(holdfast, 'job.done')
        await using _ = holdfast.work(mail, ({ payload }) => (payload === 'broken' ? brokenPromise() : undefined))
        await dead
        assert.equal((await readJob(holdfast, id)).error?.message, 'no constructor')
        await mail.enqueue('next')
        await done
      }),
    )
  })
}

/** A schema that answers when it is told to. */
function silent() {
  const { promise: asked, resolve: tellAsked } = Promise.withResolvers<void>()
  const { promise: answered, resolve: answer } = Promise.withResolvers<{ value: unknown }>()
  const validate = () => {
    tellAsked()
    return answered
  }
  return { schema: { '~standard': { version: 1, vendor: 'test', validate } } as const, asked, answer }
}

function brokenPromise(): Promise<unknown> {
  return Object.defineProperty(Promise.resolve(1), 'constructor', {
    get() {
      throw new Error('no constructor')
    },
  })
}
