// Promises about workers: a worker that is asked to end has settled what its handlers returned, and a handler can fail only its
// own job.

import type { AttemptInfo, JobInfo } from '../../../src/client/job-info.ts'
import type { Note } from '../journal.ts'
import { tasks } from '../world.ts'
import type { Evidence, Payload } from './evidence.ts'
import { check, combine, type Ruling } from './ruling.ts'

/** Promise: a worker that is asked to end has settled everything. */
export function judgeDrains(evidence: Evidence): Ruling {
  const stopped = stoppedWorkers(evidence)
  return combine(
    check(endedRuns(evidence), (run) => (isRecordedAs(run, [run.answer, 'cancelled', 'expired']) ? [] : [fault(run)])),
    check(
      evidence.found.jobs.filter(({ state, worker }) => state === 'running' && stopped.has(worker ?? '')),
      ({ id, worker }) => [`${worker} has ended and still holds ${id}`],
    ),
  )
}

/** Promise: a worker that has lost a lease is notified, and settles nothing under it. */
export function judgeLostRuns(evidence: Evidence): Ruling {
  return check(endedRuns(evidence), (run) =>
    isRecordedAs(run, ['expired']) && !isRecordedAs(run, [run.answer, 'cancelled']) ? [fault(run)] : [],
  )
}

interface EndedRun {
  readonly asked: Note<'run'>['asked']
  readonly answer: AttemptInfo['ending']
  readonly recorded: readonly AttemptInfo[]
}

/** Runs of workers that ended when they were asked to, without those whose loss the worker was notified of. */
function endedRuns(evidence: Evidence): EndedRun[] {
  const stopped = stoppedWorkers(evidence)
  const lost = new Set(evidence.of('lost').map(({ asked }) => nameOf(asked)))
  return evidence.of('run').flatMap(({ asked, answer, at, answeredAt }) => {
    if (answer === null || !stopped.has(asked.worker) || lost.has(nameOf(asked))) return []
    // A crash may lose the claim, and with it the run.
    if (evidence.crashedBetween(at - 2_000, (answeredAt ?? at) + 2_000)) return []
    if (evidence.deletedBatches.has(asked.batch ?? '')) return [] // its history is deleted too
    const attempts = evidence.attemptsOf(asked.id, asked.worker).map(({ attempt }) => attempt)
    return [{ asked, answer, recorded: attempts.filter(({ attempt }) => attempt === asked.attempt) }]
  })
}

function isRecordedAs({ recorded }: EndedRun, endings: readonly AttemptInfo['ending'][]): boolean {
  return recorded.some(({ ending }) => endings.includes(ending))
}

function fault({ asked: { id, worker, attempt }, answer, recorded }: EndedRun): string {
  const endings = recorded.map(({ ending }) => ending).join(', ')
  return `${worker} ended attempt ${attempt} of ${id} as ${answer}, and its history says [${endings}]`
}

const nameOf = ({ id, worker, attempt }: Note<'lost'>['asked']) => `${id} ${worker} ${attempt}`

function stoppedWorkers(evidence: Evidence): ReadonlySet<string> {
  const stops = evidence.of('stop').filter(({ answer }) => answer !== null)
  return new Set(stops.map(({ asked }) => asked.worker))
}

/** Promise: bad input is a typed error or one dead job. */
export function judgeInput(evidence: Evidence): Ruling {
  return combine(
    check(evidence.of('misuse'), ({ asked, answer }) =>
      answer === null || answer.code === asked.code ? [] : [`${asked.what} was answered with ${answer.code}`],
    ),
    check(evidence.left.jobs.filter(isUnreadable), ({ id, state, attempts }) =>
      state === 'dead' || state === 'cancelled' ? [] : [`${id} cannot be read, and is ${state} after ${attempts}`],
    ),
    check(evidence.conditions.failures, (failure) => [failure]),
  )
}

function isUnreadable({ queue, payload }: JobInfo): boolean {
  return queue === tasks.name && (payload as Payload).behaviour === 'unreadable'
}

/** Promise: a result equals what the job ended with. */
export function judgeResults(evidence: Evidence): Ruling {
  const states: Readonly<Record<string, string>> = { JOB_DEAD: 'dead', JOB_CANCELLED: 'cancelled' }
  return check(evidence.of('result'), ({ asked: { id }, answer, refused }) => {
    const [job] = evidence.jobs.get(id) ?? []
    const state = answer ? 'done' : states[refused ?? '']
    if (!job || state === undefined || evidence.mayBeRequeued(job)) return []
    if (job.state !== state) return [`the result of ${id} was ${state}, and the job is ${job.state}`]
    return answer && JSON.stringify(answer.value) !== JSON.stringify(job.result)
      ? [`the result of ${id} was ${answer.value}, and the job has ${job.result}`]
      : []
  })
}

/** Promise: a job that kills every process it runs in ends dead. */
export function judgePoison({ left }: Evidence): Ruling {
  const poison = left.jobs.filter(({ payload }) => (payload as Payload).behaviour === 'die')
  return check(poison, ({ id, state }) =>
    state === 'dead' || state === 'cancelled' ? [] : [`${id} kills every process that runs it, and is ${state}`],
  )
}
