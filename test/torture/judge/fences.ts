// Promise: no fence is accepted twice, and the history of a job agrees with the answers that were given.

import type { AttemptInfo, JobInfo } from '../../../src/client/job-info.ts'
import type { Note, SettleMethod } from '../journal.ts'
import { capOf } from '../world.ts'
import { replacementsOf } from './effects.ts'
import { type Evidence, isUnknown } from './evidence.ts'
import { check, combine, type Ruling } from './ruling.ts'
import { judgeLostRuns } from './workers.ts'

const endings: Readonly<Record<SettleMethod, AttemptInfo['ending']>> = {
  done: 'done',
  retry: 'failed',
  dead: 'failed',
  release: 'released',
  snooze: 'snoozed',
  cancelled: 'cancelled',
}

const historyMax = 50

export function judgeFences(evidence: Evidence): Ruling {
  return combine(
    honouredTwice(evidence),
    missingFromHistory(evidence),
    invented(evidence),
    otherState(evidence),
    judgeLostRuns(evidence),
  )
}

function honouredTwice(evidence: Evidence): Ruling {
  const honoured = evidence.of('settle').filter(isHonoured)
  return unique(
    honoured.map(({ asked }) => `${asked.id} ${asked.fence}`),
    'was settled',
  )
}

/** Also true if an effect failed: then the attempt has ended as failed. */
export function isHonoured({ answer, refused }: Note<'settle'>): boolean {
  return answer !== null || refused === 'DUPLICATE_JOB_ID' || refused === 'INVALID_OPTION'
}

function endingOf({ asked }: Note<'settle'>): AttemptInfo['ending'] {
  return asked.hasBadEffect ? 'failed' : (asked.ending ?? endings[asked.as])
}

/**
 * Each accepted settlement is in the history once, with its ending, under the attempt that the claim answered. A claim whose
 * answer was lost is sent again. If the lost lease has expired meanwhile, it may get the same job under the next attempt; the
 * expired attempts before it are no fault.
 */
export function missingFromHistory(evidence: Evidence): Ruling {
  const handedOut = new Map(
    evidence
      .of('claim')
      .flatMap(({ asked, answer }) => (answer ?? []).map((got) => [`${got.id} ${asked.worker}`, got.attempt])),
  )
  return check(evidence.of('settle').filter(isHonoured), (note) => {
    const { id, worker, as } = note.asked
    const jobs = evidence.jobs.get(id) ?? []
    const isCut = jobs.length === 0 || jobs.some(({ history }) => history.length >= historyMax)
    if (isCut || evidence.mayBeGone(id, jobs[0]?.queue ?? '')) return []
    const recorded = evidence.attemptsOf(id, worker).map(({ attempt }) => attempt)
    const last = recorded.at(-1)
    const wasAsSaid = last?.ending === endingOf(note) && last.attempt === handedOut.get(`${id} ${worker}`)
    if (wasAsSaid && recorded.slice(0, -1).every(({ ending }) => ending === 'expired')) return []
    return [
      `${worker} settled ${id} as ${as}, and its history says [${recorded.map(({ ending }) => ending).join(', ')}]`,
    ]
  })
}

/** Each attempt in the history was begun by a claim, and ended by a settlement in the journals or by expiry. */
function invented(evidence: Evidence): Ruling {
  const claimers = new Set(evidence.of('claim').map(({ asked }) => asked.worker))
  const settlements = Map.groupBy(evidence.of('settle'), ({ asked }) => `${asked.id} ${asked.worker}`)
  return check(evidence.left.jobs, (job) =>
    job.history.flatMap(({ worker, ending }) => {
      if (evidence.workers.has(worker)) return []
      if (!claimers.has(worker)) return [`${job.id} was claimed by ${worker}, which made no claim`]
      const made = settlements.get(`${job.id} ${worker}`) ?? []
      const possible = made.filter((note) => isHonoured(note) || isUnknown(note))
      if (ending === 'expired' || possible.some((note) => endingOf(note) === ending)) return []
      return [`${job.id} has ended as ${ending} under ${worker}, which did not settle it so`]
    }),
  )
}

/** The final state that a settlement or a cancel answered is the state of the job, unless it was requeued. */
export function otherState(evidence: Evidence): Ruling {
  const settled = check(evidence.of('settle'), ({ asked: { id, worker, as, result }, answer }) => {
    const [recorded] = evidence.attemptsOf(id, worker)
    if (!answer || !recorded || !['done', 'dead', 'cancelled'].includes(answer.state)) return []
    const { job } = recorded
    if (evidence.mayBeRequeuedById(id) || (answer.state === 'dead' && evidence.mayBeRequeued(job))) return []
    const said = `${worker} settled ${id} as ${as} and was answered ${answer.state}`
    if (job.state !== answer.state) return [`${said}, but it is ${job.state}`]
    return job.result === result ? [] : [`${said}, but its result is ${job.result} instead of ${result}`]
  })
  const cancelled = check(evidence.of('cancel'), ({ asked: { id }, answer }) => {
    const jobs = evidence.jobs.get(id) ?? []
    if (answer !== 'cancelled' || jobs.length === 0 || jobs.some(({ state }) => state === 'cancelled')) return []
    if (evidence.mayBeGone(id, '') || evidence.mayBeRequeuedById(id)) return []
    return [`${id} was cancelled, but it is ${jobs[0]?.state}`]
  })
  return combine(settled, cancelled)
}

/** Promise: attempts add up and stay below the cap. */
export function judgeAttempts(evidence: Evidence): Ruling {
  return check([...evidence.left.jobs, ...evidence.found.jobs], (job) => {
    const cap = capOf(job.queue)
    const all = [...job.history.map(({ attempt }) => attempt), job.attempts]
    if (Math.max(...all) > cap) return [`${job.id} had ${Math.max(...all)} attempts of ${cap}`]
    if (job.history.length >= historyMax) return []
    const fault = countFault(job, evidence.mayBeRequeued(job) || replacementsOf(evidence, job) > 0)
    return fault === undefined ? [] : [`${job.id}: ${fault}`]
  })
}

/** Releases and snoozes are free. A requeue and a replacement start the count again. */
function countFault({ history, state, attempts }: JobInfo, mayStartAgain: boolean): string | undefined {
  let spent = 0
  for (const { attempt, ending } of history) {
    const isAnew = attempt === 1 && spent > 0 && mayStartAgain
    if (!isAnew && attempt !== spent + 1) return `attempt ${attempt} after ${spent} that counted`
    spent = isFree(ending) ? attempt - 1 : attempt
  }
  if (state === 'running') spent += 1
  if (attempts === spent || (mayStartAgain && attempts <= 1 && !['done', 'dead', 'cancelled'].includes(state))) return
  if (mayStartAgain && state === 'cancelled' && attempts === 0) return // it was cancelled while it waited
  return `${attempts} attempts, where its history counts ${spent}`
}

export const isFree = (ending: AttemptInfo['ending']) => ending === 'released' || ending === 'snoozed'

/** Promise: a job has one holder at a time, and a fence one claim. */
export function judgeHolders(evidence: Evidence): Ruling {
  const fences = evidence.of('claim').flatMap(({ answer }) => answer?.map(({ fence }) => fence) ?? [])
  return combine(unique(fences, 'was answered'), overlapping(evidence))
}

export interface Hold {
  readonly id: string
  readonly worker: string
  readonly at: number
  readonly answeredAt: number
  /** From the answer until then the job is certainly held. */
  readonly endsAt: number
}

/** Compares only claims of which one was answered before the other was made. Overlapping claims may commit in either order. */
function overlapping(evidence: Evidence): Ruling {
  return check([...Map.groupBy(holdsOf(evidence), ({ id }) => id).values()], (ofJob) =>
    ofJob.flatMap((hold) =>
      ofJob
        .filter((next) => next.at > hold.answeredAt && next.answeredAt < hold.endsAt)
        .filter((next) => !evidence.crashedBetween(hold.at, next.answeredAt))
        .map((next) => `${hold.id} was claimed by ${next.worker} while ${hold.worker} held it`),
    ),
  )
}

/** Every claim by hand, and until when its job was certainly held. */
export function holdsOf(evidence: Evidence): Hold[] {
  const settledAt = new Map<string, number>()
  for (const note of evidence.of('settle')) {
    if (!isHonoured(note) && !isUnknown(note)) continue
    const hold = `${note.asked.id} ${note.asked.worker}`
    settledAt.set(hold, Math.min(note.at, settledAt.get(hold) ?? note.at))
  }
  return evidence.of('claim').flatMap(({ asked: { worker, leaseMs }, at, answer, answeredAt }) =>
    (answer ?? []).map(({ id }): Hold => {
      const endsAt = at + leaseMs - evidence.gainedMs(at, at + leaseMs) - clockSlackMs
      return {
        ...{ id, worker, at, answeredAt: answeredAt as number },
        endsAt: Math.min(endsAt, settledAt.get(`${id} ${worker}`) ?? Infinity),
      }
    }),
  )
}

/** Leases end by the wall clock; notes are timed by another clock. */
const clockSlackMs = 20

function unique(names: readonly string[], what: string): Ruling {
  return check([...Map.groupBy(names, (name) => name)], ([name, each]) =>
    each.length === 1 ? [] : [`${name} ${what} ${each.length} times`],
  )
}
