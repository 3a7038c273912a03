// Promises: counts equal a recount; what is not at its end comes back; what is ready is handed out.

import type { JobInfo } from '../../../src/client/job-info.ts'
import type { JobState } from '../../../src/job/record.ts'
import type { Observation } from '../observe.ts'
import type { Evidence } from './evidence.ts'
import { check, type Ruling, together } from './ruling.ts'

const states: readonly JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']

export function judgeCounts({ found, left, ordeal }: Evidence): Ruling {
  return together(
    miscounted('after the last fault', found),
    miscounted('in the end', left),
    check(ordeal.inspections, ({ when, fault }) => (fault === null ? [] : [`behind the queue, ${when}: ${fault}`])),
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
      return queue[state] === counted ? [] : [`${when} ${queue.name} says ${queue[state]} ${state} and has ${counted}`]
    },
  )
  return together(unlisted, wrong)
}

/** Promise: what a lease, a delay or a cancel left half-way comes to its end. */
export function judgeReturn({ left }: Evidence): Ruling {
  return check(left.jobs, (job) => (['running', 'scheduled', 'held'].includes(job.state) ? [stuck(job)] : []))
}

/** Promise: nothing hides behind the point where claiming stands. */
export function judgeHiding({ left }: Evidence): Ruling {
  return check(left.jobs, (job) => (job.state === 'ready' ? [stuck(job)] : []))
}

function stuck({ id, queue, state, attempts }: JobInfo): string {
  return `${id} in ${queue} is ${state} after ${attempts} attempts, and nobody gets it`
}
