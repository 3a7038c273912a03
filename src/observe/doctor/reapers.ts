// Reapers that fail, and reapers that no process runs any more. Until they run, rows that were left behind get no job.

import { entriesIn } from '../../kv/entries.ts'
import { span } from '../../runtime/duration.ts'
import { counted, fine, warning, wrong } from '../../store/findings.ts'
import type { Finding } from '../../store/store.ts'
import { type ReaperTurn, readTurn, reaperKeyPrefix } from '../../sweep/reaper-turn.ts'
import type { Patient } from './doctor.ts'

export async function neglectedReapers({ store, request }: Patient): Promise<Finding[]> {
  const entries = await entriesIn(store, reaperKeyPrefix)
  if (entries.length === 0) return []
  const now = await store.time()
  const found = entries.flatMap(({ key, value }) => {
    const name = key.slice(reaperKeyPrefix.length)
    return findingOf(name, readTurn(value), now, request.patienceMs) ?? []
  })
  if (found.length > 0) return found
  return [fine('reapers', `${counted(entries.length, 'reaper')} ran on time, and none failed.`)]
}

function findingOf(name: string, turn: ReaperTurn | null, now: number, patienceMs: number): Finding | null {
  if (turn === null) return null // the next turn of the reaper replaces an unreadable entry
  const { turnAt, everyMs, failure } = turn
  if (failure !== null) {
    const failingMs = now - failure.since
    const find = failingMs > patienceMs ? wrong : warning
    return find(
      'reaper-failing',
      `Reaper ${name} has failed for ${span(failingMs)}: ${failure.error}`,
      'Fix the cause: until then, rows that were left behind are not revived.',
      { reaper: name, failingMs, error: failure.error },
    )
  }
  const silentMs = now - turnAt
  if (silentMs <= everyMs + patienceMs) return null
  return warning(
    'reaper-silent',
    `Reaper ${name} should run every ${span(everyMs)}, but has not run for ${span(silentMs)}.`,
    `Start a process that runs it, without HOLDFAST_DISABLE=reap. If the reaper was removed: holdfast kv delete ${reaperKeyPrefix}${name}.`,
    { reaper: name, everyMs, silentMs },
  )
}
