// Schedules that no process fires, and schedules whose code is gone: these still fire, in any process, until they are removed.

import { entriesIn } from '../../kv/entries.ts'
import { span } from '../../runtime/duration.ts'
import { toScheduleInfo } from '../../schedule/info.ts'
import { declareEveryMs } from '../../schedule/schedules.ts'
import { type ReadSchedule, readSchedule, scheduleKeyPrefix } from '../../schedule/stored-schedule.ts'
import { counted, fine, warning, wrong } from '../../store/findings.ts'
import type { Finding } from '../../store/store.ts'
import type { Patient } from './doctor.ts'

/** A process declares its schedules once an hour; a deployment may delay that. */
const undeclaredMs = 3 * declareEveryMs

export async function neglectedSchedules({ store, request }: Patient): Promise<Finding[]> {
  const entries = await entriesIn(store, scheduleKeyPrefix)
  if (entries.length === 0) return []
  const now = await store.time()
  const found = entries.flatMap((entry) => findingOf(readSchedule(entry.key, entry), now, request.patienceMs) ?? [])
  if (found.length > 0) return found
  return [fine('schedules', `${counted(entries.length, 'schedule')}, and no slot is overdue.`)]
}

function findingOf({ name, schedule }: ReadSchedule, now: number, patienceMs: number): Finding | null {
  if (schedule === null)
    return wrong(
      'schedule-unreadable',
      `The stored entry of schedule ${name} cannot be read, so it never fires.`,
      `Start the program that declares it, or remove it: holdfast schedule remove ${name}.`,
      { schedule: name },
    )
  const { overdueSince, paused } = toScheduleInfo(name, schedule, { now, drift: null })
  const overdueMs = overdueSince === null ? 0 : now - overdueSince.getTime()
  if (overdueMs > patienceMs)
    return wrong(
      'schedule-overdue',
      `A slot of schedule ${name} has been due for ${span(overdueMs)} and was not fired: no worker runs, or HOLDFAST_DISABLE=schedule is set.`,
      'Start a worker: every worker fires schedules. holdfast sweep fires them once.',
      { schedule: name, overdueMs },
    )
  const undeclaredForMs = now - schedule.declaredAt
  if (undeclaredForMs <= undeclaredMs + patienceMs) return null
  const meanwhile = paused ? 'it is paused' : 'it still fires'
  return warning(
    'schedule-undeclared',
    `No program has declared schedule ${name} for ${span(undeclaredForMs)}: its code may be gone, and ${meanwhile}.`,
    `If it is not needed any more: holdfast schedule remove ${name}.`,
    { schedule: name, undeclaredForMs },
  )
}
