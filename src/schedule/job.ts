// The job of a slot. Its headers say which schedule and which slot it comes from; the payload is the schedule's own.

import type { NewJob } from '../job/record.ts'
import { decodeExtras } from '../job/stored.ts'
import { newId } from '../runtime/id.ts'
import type { ScheduleDefinition } from './stored-schedule.ts'

/** Without a slot it was asked for by hand. */
export function toSlotJob(name: string, { job }: ScheduleDefinition, slot: number | null): NewJob {
  const headers = {
    ...decodeExtras(job.headers).headers,
    'holdfast-schedule': name,
    ...(slot !== null && { 'holdfast-slot': new Date(slot).toISOString() }),
  }
  return {
    ...job,
    headers: JSON.stringify(headers),
    id: newId(),
    idGiven: false,
    runAt: null,
    startBefore: null,
    idempotency: null,
  }
}
