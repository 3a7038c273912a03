// Promise: within a queue and priority, jobs are claimed in the order in which they became ready.
//
// Only a certain order counts. A job was certainly ready before another if its enqueue was answered before the other's was made,
// or if it comes earlier in the same call. Such a job must not have its first claim made after the first claim of the other was
// answered.

import { type Evidence, isPossible } from './evidence.ts'
import { check, combine, type Ruling } from './ruling.ts'

interface Place {
  readonly id: string
  readonly lane: string
  readonly call: number
  readonly readyFrom: number
  readonly readyBy: number
  readonly claimedFrom: number
  readonly claimedBy: number
}

export function judgeOrder(evidence: Evidence): Ruling {
  const lanes = [...Map.groupBy(placesOf(evidence), ({ lane }) => lane).values()]
  return combine(...lanes.map(overtaken), ...lanes.map(swapped))
}

/** The first claim of each job, by its history. A claim whose answer was lost counts too. */
function placesOf(evidence: Evidence): Place[] {
  const claims = new Map(evidence.of('claim').map((note) => [note.asked.worker, note]))
  const moved = new Set(
    (['reprioritise', 'reschedule', 'wake'] as const)
      .flatMap((verb) => evidence.of(verb).filter(isPossible))
      .map(({ asked }) => asked.id),
  )
  return evidence.requestedJobs.flatMap(({ entry, note, answer }, call) => {
    if (!entry.atOnce || answer?.status !== 'created' || moved.has(answer.id)) return []
    const [job] = evidence.jobs.get(answer.id) ?? []
    const claim = claims.get(job?.history[0]?.worker ?? '')
    if (!job || !claim || job.history.length >= 50) return []
    return [
      {
        ...{ id: job.id, lane: `${entry.queue} ${entry.priority}`, call },
        ...{ readyFrom: note.at, readyBy: note.answeredAt ?? Infinity },
        ...{ claimedFrom: claim.at, claimedBy: claim.answeredAt ?? Infinity },
      },
    ]
  })
}

/** A job that was certainly ready later, and certainly claimed earlier. */
function overtaken(places: readonly Place[]): Ruling {
  const byReady = places.toSorted((a, b) => b.readyFrom - a.readyFrom)
  const byEnd = places.toSorted((a, b) => b.readyBy - a.readyBy)
  let first: Place | undefined
  let n = 0
  return check(byEnd, (place) => {
    for (; (byReady[n]?.readyFrom ?? -Infinity) > place.readyBy; n++) {
      const later = byReady[n] as Place
      if (later.claimedBy < (first?.claimedBy ?? Infinity)) first = later
    }
    return first && first.claimedBy < place.claimedFrom ? [describe(place, first)] : []
  })
}

/** Jobs of one call are claimed in their order. */
function swapped(places: readonly Place[]): Ruling {
  const calls = [...Map.groupBy(places, ({ readyFrom, readyBy }) => `${readyFrom} ${readyBy}`).values()]
  return check(calls, (together) => {
    const inOrder = together.toSorted((a, b) => a.call - b.call)
    return inOrder.flatMap((place, n) => {
      const next = inOrder[n + 1]
      return next && next.claimedBy < place.claimedFrom ? [describe(place, next)] : []
    })
  })
}

function describe(place: Place, other: Place): string {
  return `${place.id} was ready before ${other.id} in lane ${place.lane} and was claimed after it`
}
