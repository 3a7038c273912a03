// Schedules that nobody fires, and those whose code is gone: they fire on, in whichever process, until somebody removes them.

import { entriesIn } from '../../kv/entries.ts'
import { span } from '../../runtime/duration.ts'
import { toScheduleInfo } from '../../schedule/info.ts'
import { declareEveryMs } from '../../schedule/schedules.ts'
import { type ReadSchedule, readSchedule, scheduleKeyPrefix } from '../../schedule/stored-schedule.ts'
import { counted, fine, warning, wrong } from '../../store/findings.ts'
import type { Finding } from '../../store/store.ts'
import type { Patient } from './doctor.ts'

/** Its code says so once an hour; a deployment may come in between. */
const undeclaredMs = 3 * declareEveryMs

export async function neglectedSchedules({ store, request }: Patient): Promise<Finding[]> {
  const entries = await entriesIn(store, scheduleKeyPrefix)
  if (entries.length === 0) return []
  const now = await store.time()
  const found = entries.flatMap((entry) => findingOf(readSchedule(entry.key, entry), now, request.patienceMs) ?? [])
  if (found.length > 0) return found
  return [fine('schedules', `${counted(entries.length, 'schedule')}, and no slot has been due for long.`)]
}

function findingOf({ name, schedule }: ReadSchedule, now: number, patienceMs: number): Finding | null {
  if (schedule === null)
    return wrong(
      'schedule-unreadable',
      `What is stored as schedule ${name} is none, and never fires.`,
      `Start the program that declares it, or holdfast schedule remove ${name}.`,
      { schedule: name },
    )
  const { overdueSince, paused } = toScheduleInfo(name, schedule, { now, drift: null })
  const overdueMs = overdueSince === null ? 0 : now - overdueSince.getTime()
  if (overdueMs > patienceMs)
    return wrong(
      'schedule-overdue',
      `A slot of schedule ${name} has been due for ${span(overdueMs)}, and nobody fires it: no worker runs, or HOLDFAST_DISABLE=schedule is set.`,
      'Start a worker: every worker fires schedules. holdfast sweep does it once.',
      { schedule: name, overdueMs },
    )
  const undeclaredForMs = now - schedule.declaredAt
  if (undeclaredForMs <= undeclaredMs + patienceMs) return null
  const meanwhile = paused ? 'it is paused' : 'it fires all the same'
  return warning(
    'schedule-undeclared',
    `No program has declared schedule ${name} for ${span(undeclaredForMs)}: its code may be gone, and ${meanwhile}.`,
    `holdfast schedule remove ${name}, if it is not wanted any more.`,
    { schedule: name, undeclaredForMs },
  )
}
