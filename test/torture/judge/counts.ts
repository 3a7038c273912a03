// Promises: counts equal a recount; lost jobs come back; no ready job is hidden.

import type { JobInfo } from '../../../src/client/job-info.ts'
import type { JobState } from '../../../src/job/record.ts'
import type { Observation } from '../observe.ts'
import type { Evidence } from './evidence.ts'
import { check, combine, type Ruling } from './ruling.ts'

const states: readonly JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']

export function judgeCounts({ found, left, conditions }: Evidence): Ruling {
  return combine(
    miscounted('after the last fault', found),
    miscounted('in the end', left),
    check(conditions.inspections, ({ when, fault }) =>
      fault === null ? [] : [`inspection of the tables, ${when}: ${fault}`],
    ),
  )
}

function miscounted(when: string, { jobs, queues }: Observation): Ruling {
  const recount = Map.groupBy(jobs, ({ queue, state }) => `${queue} ${state}`)
  const known = new Set(queues.map(({ name }) => name))
  const unlisted = check(jobs, ({ id, queue }) => (known.has(queue) ? [] : [`${id} is in ${queue}, unlisted`]))
  const wrong = check(
    queues.flatMap((queue) => states.map((state) => ({ queue, state }))),
    ({ queue, state }) => {
      const counted = recount.get(`${queue.name} ${state}`)?.length ?? 0
      return queue[state] === counted
        ? []
        : [`${when} ${queue.name} reports ${queue[state]} ${state} and has ${counted}`]
    },
  )
  return combine(unlisted, wrong)
}

/** Promise: lost jobs come back. After an expired lease, a delay or a cancel, every job ends. */
export function judgeReturn({ left }: Evidence): Ruling {
  return check(left.jobs, (job) => (['running', 'scheduled', 'held'].includes(job.state) ? [stuck(job)] : []))
}

/** Promise: no ready job is hidden. Claims also find jobs that became ready behind their cursor. */
export function judgeHiding({ left }: Evidence): Ruling {
  return check(left.jobs, (job) => (job.state === 'ready' ? [stuck(job)] : []))
}

function stuck({ id, queue, state, attempts }: JobInfo): string {
  return `${id} in ${queue} is ${state} after ${attempts} attempts, and no claim gets it`
}
