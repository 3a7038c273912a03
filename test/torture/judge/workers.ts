// Promises about workers: whoever is asked to end has settled what its handlers brought; whatever a handler does fails its
// own job only.

import type { JobInfo } from '../../../src/job-info.ts'
import { tasks } from '../world.ts'
import type { Evidence, Payload } from './evidence.ts'
import { check, type Ruling, together } from './ruling.ts'

/** Promise: a drain flushes everything. */
export function judgeDrains(evidence: Evidence): Ruling {
  const stopped = new Set(
    evidence
      .of('stop')
      .filter(({ answer }) => answer !== null)
      .map(({ asked }) => asked.worker),
  )
  const lost = new Set(evidence.of('lost').map(({ asked }) => `${asked.id} ${asked.worker} ${asked.attempt}`))
  const ended = evidence.of('run').filter(({ asked, answer }) => {
    return answer !== null && stopped.has(asked.worker) && !lost.has(`${asked.id} ${asked.worker} ${asked.attempt}`)
  })
  return together(
    check(ended, ({ asked: { id, worker, attempt }, answer, at, answeredAt }) => {
      const told = evidence.attemptsOf(id, worker).filter((each) => each.attempt.attempt === attempt)
      const isTold = told.some((each) => each.attempt.ending === answer || each.attempt.ending === 'cancelled')
      // A claim that a crash took along took the run with it.
      if (isTold || evidence.crashedBetween(at - 2_000, (answeredAt ?? at) + 2_000)) return []
      const endings = told.map((each) => each.attempt.ending)
      return [`${worker} ended attempt ${attempt} of ${id} as ${answer}, and its history says [${endings.join(', ')}]`]
    }),
    check(
      evidence.found.jobs.filter(({ state, worker }) => state === 'running' && stopped.has(worker ?? '')),
      ({ id, worker }) => [`${worker} has ended and still holds ${id}`],
    ),
  )
}

/** Promise: bad input is a typed error or one dead job. */
export function judgeInput(evidence: Evidence): Ruling {
  return together(
    check(evidence.of('misuse'), ({ asked, answer }) =>
      answer === null || answer.code === asked.code ? [] : [`${asked.what} was answered with ${answer.code}`],
    ),
    check(evidence.left.jobs.filter(isUnreadable), ({ id, state, attempts }) =>
      state === 'dead' || state === 'cancelled' ? [] : [`${id} cannot be read, and is ${state} after ${attempts}`],
    ),
    check(evidence.ordeal.failures, (failure) => [failure]),
  )
}

function isUnreadable({ queue, payload }: JobInfo): boolean {
  return queue === tasks.name && (payload as Payload).deed === 'unreadable'
}

/** Promise: who waits for a result is told how its job ended. */
export function judgeResults(evidence: Evidence): Ruling {
  const states: Readonly<Record<string, string>> = { JOB_DEAD: 'dead', JOB_CANCELLED: 'cancelled' }
  return check(evidence.of('result'), ({ asked: { id }, answer, refused }) => {
    const [job] = evidence.jobs.get(id) ?? []
    const state = answer ? 'done' : states[refused ?? '']
    if (!job || state === undefined || evidence.mayBeRequeued(job)) return []
    if (job.state !== state) return [`${id} was told to be ${state}, and is ${job.state}`]
    return answer && JSON.stringify(answer.value) !== JSON.stringify(job.result)
      ? [`${id} was told to have brought ${answer.value}, and has ${job.result}`]
      : []
  })
}

/** Promise: a job that kills every process it runs in ends dead. */
export function judgePoison({ left }: Evidence): Ruling {
  const poison = left.jobs.filter(({ payload }) => (payload as Payload).deed === 'die')
  return check(poison, ({ id, state }) =>
    state === 'dead' || state === 'cancelled' ? [] : [`${id} kills whoever runs it, and is ${state}`],
  )
}
