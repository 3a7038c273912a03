// Promise: within a queue and priority, jobs are claimed in the order in which they became ready.
//
// Only what is certain counts: a job that was answered before another was asked for was ready before it, and so was one
// that comes earlier in the same call. It must not have been asked for by its first claim only after the other's was
// answered.

import { type Evidence, isPossible } from './evidence.ts'
import { check, type Ruling, together } from './ruling.ts'

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
  return together(...lanes.map(overtaken), ...lanes.map(swapped))
}

/** The first claim of each, by the history: a claim whose answer nobody has seen counts, too. */
function placesOf(evidence: Evidence): Place[] {
  const claims = new Map(evidence.of('claim').map((note) => [note.asked.worker, note]))
  const moved = new Set(
    (['reprioritise', 'reschedule', 'wake'] as const)
      .flatMap((verb) => evidence.of(verb).filter(isPossible))
      .map(({ asked }) => asked.id),
  )
  return evidence.wishes.flatMap(({ entry, note, answer }, call) => {
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

/** Who was ready later, for certain, and claimed earlier, for certain. */
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
    return first && first.claimedBy < place.claimedFrom ? [told(place, first)] : []
  })
}

/** Jobs of one call, in their order. */
function swapped(places: readonly Place[]): Ruling {
  const calls = [...Map.groupBy(places, ({ readyFrom, readyBy }) => `${readyFrom} ${readyBy}`).values()]
  return check(calls, (together) => {
    const inOrder = together.toSorted((a, b) => a.call - b.call)
    return inOrder.flatMap((place, n) => {
      const next = inOrder[n + 1]
      return next && next.claimedBy < place.claimedFrom ? [told(place, next)] : []
    })
  })
}

function told(place: Place, other: Place): string {
  return `${place.id} was ready before ${other.id} in lane ${place.lane} and was claimed behind it`
}
