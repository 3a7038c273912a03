// Runs in a thread. Some jobs leave work running after their end; `wait` is the job that runs at the same time as it.
import { execSync } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { threadId } from 'node:worker_threads'
import type { Job } from '../../../src/worker/job.ts'

export type LeftoverTask =
  | 'wait'
  | 'wait and extend'
  | 'say and wait'
  | 'late calls'
  | 'late throw'
  | 'late rejection'
  | 'late exit'
  | 'own throw'
  | 'own exit'
  | 'late effects'
  | 'keep signal'
  | 'throw at once after the end'
  | 'block the thread'
  | 'throw outside of every job'
  | 'many late throws'
  | 'open extension'

/** What leftovers saw; kept in the thread and returned by the next `wait`. */
const seen: unknown[] = []
/** A neighbour waits now. */
let isWaiting = false
const waitMs = 300

/** Made outside of every job. */
let throwOutside = false
setInterval(() => {
  if (!throwOutside) return
  throwOutside = false
  throw new Error('thrown outside of every job')
}, 20)

export default (job: Job<LeftoverTask>): unknown => tasks[job.payload](job)

const forever = () => new Promise<never>(() => {})

async function wait(job: Job): Promise<unknown> {
  isWaiting = true
  await sleep(waitMs)
  isWaiting = false
  return { threadId, aborted: job.signal.aborted, seen: seen.splice(0) }
}

/** Acts after the end of its job, as soon as a neighbour waits. */
function later(act: () => unknown): number {
  const timer = setInterval(() => {
    if (!isWaiting) return
    clearInterval(timer)
    act()
  }, 5)
  return threadId
}

async function outcomeOf(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(
    () => 'ok',
    (error) => error.code ?? error.message,
  )
}

const tasks: Readonly<Record<LeftoverTask, (job: Job) => unknown>> = {
  wait,
  async 'wait and extend'(job) {
    await job.extend('1m')
    return wait(job)
  },
  'say and wait'(job) {
    job.log('waiting')
    return wait(job)
  },
  'late calls': (job) =>
    later(async () => {
      const progress = outcomeOf(job.progress(0.9, 'late'))
      job.log('late')
      seen.push({ progress: await progress, extend: await outcomeOf(job.extend('1h')) })
    }),
  'late throw': () =>
    later(() => {
      throw new Error('thrown late')
    }),
  'late rejection': () => later(() => void Promise.reject(new Error('rejected late'))),
  'late exit': () => later(() => process.exit(7)),
  'own throw'() {
    setTimeout(() => {
      throw new Error('my own')
    }, 20)
    return forever()
  },
  'own exit'() {
    setTimeout(() => process.exit(7), 20)
    return forever()
  },
  'late effects': (job) => {
    const { effects } = job
    effects.put('in time', job.id)
    return later(() => {
      effects.put('late', job.id)
      job.effects.put('later', job.id)
      job.cost('late', 1)
    })
  },
  'keep signal': (job) => {
    job.signal.addEventListener('abort', () => seen.push('the old signal aborted'))
    return threadId
  },
  'throw at once after the end'() {
    Promise.reject(new Error('forgotten'))
    return threadId
  },
  'block the thread': () => {
    setTimeout(() => execSync('sleep 8'))
    return threadId
  },
  'throw outside of every job': (job) => {
    throwOutside = true
    return wait(job)
  },
  'many late throws': () => {
    const timer = setInterval(() => {
      throw new Error('again and again')
    }, 5)
    timer.unref()
    return threadId
  },
  'open extension': (job) => {
    job.extend('1h').then(
      () => seen.push('extended'),
      (error) => seen.push(error.code),
    )
    return threadId
  },
}
