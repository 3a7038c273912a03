// The next step of a schedule. Pure: the stored schedule and the time in, a step out.
//
// The cursor is the last slot that was handled. Slots between it and now are due. Mostly there is none, or one that is some
// milliseconds old. Several of them, or an old one, were missed: no process ran, the store was unavailable, the machine slept, or
// its clock was set forward. If the clock was set back, the cursor is ahead of it, and nothing is due until the clock reaches the
// cursor again. So no slot fires twice.

import type { SlotTimes } from './cron.ts'
import type { StoredSchedule } from './stored-schedule.ts'

export interface Step {
  /** Slots to fire, in their order. */
  readonly fire: readonly number[]
  /** How many slots are skipped; not exact above `catchUpMax`, where it means "many". */
  readonly skipped: number
  /** The cursor after this step. */
  readonly cursor: number
}

/** How late a slot may be and still count as on time under `skip`. */
export const onTimeMs = 60_000
/** The most missed slots that `all` fires, the latest ones; older ones are skipped. */
export const catchUpMax = 1_000
/** How much payload is written in one transaction; the rest is written by the next step. */
const stepChars = 8 * 1024 * 1024

/** Null: nothing is due. */
export function stepOf({ cursor, missed, job }: StoredSchedule, times: SlotTimes, now: number): Step | null {
  const due = dueSlots(times, cursor, now)
  const newest = due.slots.at(-1)
  if (newest === undefined) return null
  const others = due.passed + due.slots.length - 1
  if (missed === 'once') return { fire: [newest], skipped: others, cursor: newest }
  if (missed === 'all') {
    const most = job.dedup === null ? Math.ceil(stepChars / job.payload.length) : 1 // whether a duplicate was skipped is counted
    const fire = due.slots.slice(0, most)
    return { fire, skipped: due.passed, cursor: fire.at(-1) as number }
  }
  const isOnTime = now - newest <= onTimeMs
  return { fire: isOnTime ? [newest] : [], skipped: isOnTime ? others : others + 1, cursor: newest }
}

function dueSlots(
  times: SlotTimes,
  cursor: number,
  now: number,
): { readonly slots: number[]; readonly passed: number } {
  const slots: number[] = []
  let slot = times.next(cursor)
  while (slot !== null && slot <= now && slots.length <= catchUpMax) {
    slots.push(slot)
    slot = times.next(slot)
  }
  if (slots.length <= catchUpMax) return { slots, passed: 0 }
  const latest = times.latest(catchUpMax, now)
  return { slots: latest, passed: slots.filter((each) => each < (latest[0] as number)).length }
}
