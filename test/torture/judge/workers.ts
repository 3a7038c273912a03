// Promises about workers: whoever is asked to end has settled what its handlers brought; whatever a handler does fails its
// own job only.

import type { AttemptInfo, JobInfo } from '../../../src/client/job-info.ts'
import type { Note } from '../journal.ts'
import { tasks } from '../world.ts'
import type { Evidence, Payload } from './evidence.ts'
import { check, type Ruling, together } from './ruling.ts'

/** Promise: a drain flushes everything. */
export function judgeDrains(evidence: Evidence): Ruling {
  const stopped = stoppedWorkers(evidence)
  return together(
    check(endedRuns(evidence), (run) => (isToldAs(run, [run.answer, 'cancelled', 'expired']) ? [] : [fault(run)])),
    check(
      evidence.found.jobs.filter(({ state, worker }) => state === 'running' && stopped.has(worker ?? '')),
      ({ id, worker }) => [`${worker} has ended and still holds ${id}`],
    ),
  )
}

/** Promise: who has lost a lease is told so, and settles nothing. */
export function judgeLostRuns(evidence: Evidence): Ruling {
  return check(endedRuns(evidence), (run) =>
    isToldAs(run, ['expired']) && !isToldAs(run, [run.answer, 'cancelled']) ? [fault(run)] : [],
  )
}

interface EndedRun {
  readonly asked: Note<'run'>['asked']
  readonly answer: AttemptInfo['ending']
  readonly told: readonly AttemptInfo[]
}

/** Runs of workers that have ended as they were asked to, and that they were not told to have lost. */
function endedRuns(evidence: Evidence): EndedRun[] {
  const stopped = stoppedWorkers(evidence)
  const lost = new Set(evidence.of('lost').map(({ asked }) => nameOf(asked)))
  return evidence.of('run').flatMap(({ asked, answer, at, answeredAt }) => {
    if (answer === null || !stopped.has(asked.worker) || lost.has(nameOf(asked))) return []
    // A claim that a crash took along took the run with it.
    if (evidence.crashedBetween(at - 2_000, (answeredAt ?? at) + 2_000)) return []
    if (evidence.deletedBatches.has(asked.batch ?? '')) return [] // and its history with it
    const told = evidence.attemptsOf(asked.id, asked.worker).map(({ attempt }) => attempt)
    return [{ asked, answer, told: told.filter(({ attempt }) => attempt === asked.attempt) }]
  })
}

function isToldAs({ told }: EndedRun, endings: readonly AttemptInfo['ending'][]): boolean {
  return told.some(({ ending }) => endings.includes(ending))
}

function fault({ asked: { id, worker, attempt }, answer, told }: EndedRun): string {
  const endings = told.map(({ ending }) => ending).join(', ')
  return `${worker} ended attempt ${attempt} of ${id} as ${answer}, and its history says [${endings}]`
}

const nameOf = ({ id, worker, attempt }: Note<'lost'>['asked']) => `${id} ${worker} ${attempt}`

function stoppedWorkers(evidence: Evidence): ReadonlySet<string> {
  const stops = evidence.of('stop').filter(({ answer }) => answer !== null)
  return new Set(stops.map(({ asked }) => asked.worker))
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
