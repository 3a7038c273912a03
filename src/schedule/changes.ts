// The names of the options in which two definitions of a schedule differ.

import { canonicalJson } from '../job/codec.ts'
import type { ScheduleDefinition } from './stored-schedule.ts'

export function changedOptions(before: ScheduleDefinition, after: ScheduleDefinition): string[] {
  const [old, now] = [optionsOf(before), optionsOf(after)]
  return Object.keys(now).filter((name) => JSON.stringify(old[name]) !== JSON.stringify(now[name]))
}

/** Whether these changes move the slots. */
export function movesSlots(changes: readonly string[]): boolean {
  return changes.includes('cron') || changes.includes('timeZone')
}

function optionsOf({ cron, timeZone, missed, job }: ScheduleDefinition): Record<string, unknown> {
  return {
    cron,
    timeZone,
    missed,
    queue: job.queue,
    payload: canonicalJson(job.payload),
    headers: job.headers && canonicalJson(job.headers),
    priority: job.priority,
    attempts: job.maxAttempts,
    timeout: job.timeoutMs,
    delay: job.delayMs,
    limitKey: job.limitKey === undefined ? 'not stated' : [job.limitKey],
    labels: job.labels && canonicalJson(job.labels),
    dedup: job.dedup && [job.dedup.key, job.dedup.scope, job.dedup.replace],
  }
}
