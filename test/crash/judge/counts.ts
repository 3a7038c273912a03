// Promises: counts equal a recount; and nothing stays stuck.

import type { JobState } from '../../../src/job/record.ts'
import { isAtItsEnd } from '../drain.ts'
import type { Observation } from '../observe.ts'
import type { Evidence } from './evidence.ts'

const states: readonly JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']

export function judgeCounts({ found, left }: Evidence): string[] {
  return [...miscounted('after the crash', found), ...miscounted('in the end', left)]
}

function miscounted(when: string, { jobs, queues }: Observation): string[] {
  const recount = Map.groupBy(jobs, ({ queue, state }) => `${queue} ${state}`)
  const known = new Set(queues.map(({ name }) => name))
  const unlisted = jobs
    .filter(({ queue }) => !known.has(queue))
    .map(({ id, queue }) => `${id} is in ${queue}, unlisted`)
  const wrong = queues.flatMap((queue) =>
    states.flatMap((state) => {
      const counted = recount.get(`${queue.name} ${state}`)?.length ?? 0
      if (queue[state] === counted) return []
      return [`${when} ${queue.name} says ${queue[state]} ${state} and has ${counted}`]
    }),
  )
  return [...unlisted, ...wrong]
}

export function judgeEnd({ left }: Evidence): string[] {
  return left.queues
    .filter((queue) => !isAtItsEnd(queue))
    .map(
      ({ name, held, scheduled, ready, running }) => `${name}: ${JSON.stringify({ held, scheduled, ready, running })}`,
    )
}
