// Runs in a thread, and does there what its payload says.
import { setTimeout as sleep } from 'node:timers/promises'
import { isMainThread, threadId } from 'node:worker_threads'
import { Permanent } from '../../../src/lease/permanent.ts'
import { RetryLater } from '../../../src/lease/retry-later.ts'
import type { Job } from '../../../src/worker/job.ts'

export type ThreadTask =
  | 'whereAmI'
  | 'everything'
  | 'extend'
  | 'checkpoint'
  | 'snooze'
  | 'release'
  | 'outcome'
  | 'permanent'
  | 'permanentWithBadEffects'
  | 'ifDead'
  | 'ifDeadUnprepared'
  | 'ifDeadAtTimeout'
  | 'ifDeadUncloneable'
  | 'retryLater'
  | 'failure'
  | 'typeError'
  | 'causedError'
  | 'strange'
  | 'uncloneable'
  | 'followSignal'
  | 'loop'
  | 'exit'
  | 'uncaught'
  | 'memory'

export default function perform(job: Job<ThreadTask>): unknown {
  return tasks[job.payload](job)
}

const forever = () => new Promise<never>(() => {})

const tasks: Readonly<Record<ThreadTask, (job: Job) => unknown>> = {
  whereAmI: () => ({ isMainThread, threadId }),
  async everything(job) {
    await job.progress(0.5, 'half')
    job.log('so far', { rows: 3 })
    job.effects.put('kept', job.id)
    job.effects.enqueue('followUps', { from: job.id })
    job.effects.sql('insert into effect (job, worker) values ($1, $2)', [job.id, 'thread'])
    return [job.id, job.queue, job.attempt, job.maxAttempts, job.headers]
  },
  async extend(job) {
    await job.extend('10s')
    await sleep(600)
    return 'extended'
  },
  async checkpoint(job) {
    await job.checkpoint({ put: [{ key: 'early', value: job.id }] })
    const refused = job.checkpoint({ compareAndSet: [{ key: 'early', version: null, value: 2 }] })
    return refused.catch(({ name, code }) => [name, code])
  },
  snooze: (job) => job.snooze('1h'),
  release: (job) => job.release('not now'),
  outcome: (job) => job.outcome('saved', { rows: 3 }, { warning: 'consent-wall' }),
  permanent(job) {
    throw new Permanent('no such user', { effects: { put: [{ key: 'noted', value: job.id }] } })
  },
  permanentWithBadEffects() {
    throw new Permanent('no such user', { effects: { sql: [{ text: '' }] } })
  },
  ifDead(job) {
    job.ifDead.put('died', job.id)
    job.ifDead.enqueue('followUps', { from: job.id })
    throw new Error('no luck')
  },
  ifDeadUnprepared(job) {
    job.ifDead.put('never', Number.NaN)
    throw new Error('no luck')
  },
  async ifDeadAtTimeout(job) {
    job.ifDead.put('died', job.id)
    await new Promise((_, reject) => job.signal.addEventListener('abort', () => reject(job.signal.reason)))
  },
  ifDeadUncloneable(job) {
    job.ifDead.put('died', job.id)
    return () => undefined
  },
  causedError() {
    const refused = Object.assign(new Error('no answer'), { code: 'ECONNREFUSED' })
    throw new TypeError('fetch failed', { cause: new AggregateError([refused], 'all refused') })
  },
  retryLater() {
    throw new RetryLater('busy', { delay: '7m' })
  },
  failure() {
    throw Object.assign(new Error('no luck'), { code: 'E_LUCK' })
  },
  async typeError() {
    return (undefined as unknown as { readonly name: string }).name
  },
  strange() {
    throw new Proxy(
      {},
      {
        getPrototypeOf() {
          throw new Error('not to be looked at')
        },
      },
    )
  },
  uncloneable: () => ({ call: () => 1 }),
  followSignal: ({ signal }) =>
    new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
  loop() {
    for (;;);
  },
  exit() {
    process.exit(3)
  },
  uncaught() {
    setTimeout(() => {
      throw new Error('no code caught this')
    })
    return forever()
  },
  memory() {
    const kept: unknown[] = []
    for (;;) kept.push(new Array(100_000).fill(kept.length))
  },
}
