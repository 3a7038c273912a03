// The job of a slot. Its headers name the schedule and the slot; its payload is the schedule's.

import type { NewJob } from '../job/record.ts'
import { decodeExtras } from '../job/stored.ts'
import { newId } from '../runtime/id.ts'
import type { ScheduleDefinition } from './stored-schedule.ts'

/** Slot null: the job was requested by hand. */
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
    madeByStore: true,
  }
}
