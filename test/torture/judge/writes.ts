// Promises about values that are written repeatedly: counters, keys, priorities, data of a wake, pauses.

import type { Note } from '../journal.ts'
import { counters } from '../world.ts'
import { type Evidence, isPossible, isUnknown, labelOf, possibleValues, type Write } from './evidence.ts'
import { check, combine, type Ruling } from './ruling.ts'

/** Promise: a counter equals the answered increments, plus at most those with an unknown result. */
export function judgeCounters(evidence: Evidence): Ruling {
  const perKey = counters.map((key) => {
    const tried = evidence.of('increment').filter(({ asked }) => asked.key === key)
    const applied = tried.filter(({ answer }) => answer?.applied)
    const unknown = tried.filter(isUnknown).length
    const value = (evidence.left.kv.get(key) as number | undefined) ?? 0
    const values = new Set(applied.map(({ asked }) => asked.value))
    const overwritten =
      values.size === applied.length ? [] : [`${key} went to ${applied.length - values.size} values more than once`]
    const isRight = value >= applied.length && value <= applied.length + unknown
    const sum = `${key} is ${value} after ${applied.length} increments and ${unknown} unknown ones`
    return { checks: tried.length, faults: isRight ? overwritten : [...overwritten, sum] }
  })
  return combine(...perKey)
}

/** Promise: the last write wins. */
export function judgeLastWrites(evidence: Evidence): Ruling {
  return combine(ownKeys(evidence), priorities(evidence), wakeData(evidence), pauses(evidence))
}

/** The value before every write. */
const initial = <T>(value: T): Write<T> => ({ at: -1, answeredAt: -1, value })

const toWrite = <T>({ at, answeredAt }: Note, value: T): Write<T> => ({ at, answeredAt, value })

function ownKeys(evidence: Evidence): Ruling {
  const puts = evidence.of('put').filter(({ asked }) => asked.key.startsWith('own '))
  return check([...Map.groupBy(puts, ({ asked }) => asked.key)], ([key, notes]) => {
    const allowed = possibleValues([initial(null), ...notes.map((note) => toWrite(note, note.asked.value))])
    const value = evidence.left.kv.get(key) ?? null
    return allowed.some((each) => each === value)
      ? []
      : [`${key} is ${value}, where ${allowed.join(' or ')} was put last`]
  })
}

function priorities(evidence: Evidence): Ruling {
  return changes(evidence, 'reprioritise', {
    first: (priority) => priority,
    changed: ({ asked }) => asked.priority,
    isNow: ({ priority }) => priority,
  })
}

function wakeData(evidence: Evidence): Ruling {
  return changes(evidence, 'wake', {
    first: () => null,
    changed: ({ asked }) => asked.data,
    isNow: ({ wake }) => (wake as string | undefined) ?? null,
  })
}

type Job = Evidence['left']['jobs'][number]

/** A snooze uses up the data that its run has read, so after one there may be none. */
function isUsedUp({ history }: Job): boolean {
  return history.some(({ ending }) => ending === 'snoozed')
}

/** Only of plain jobs: their payload is never replaced, and their id is never used again. */
function changes<V extends 'reprioritise' | 'wake', T>(
  evidence: Evidence,
  verb: V,
  how: { first: (priority: number) => T; changed: (note: Note<V>) => T; isNow: (job: Job) => T },
): Ruling {
  const changed = Map.groupBy(evidence.of(verb).filter(isPossible), ({ asked }) => asked.id)
  const plain = evidence.requestedJobs.filter(
    ({ entry, answer }) => answer?.status === 'created' && entry.kind === 'plain',
  )
  return check(plain, ({ entry, answer }) => {
    const job = evidence.jobs.get(answer?.id ?? '')?.[0]
    if (!job) return []
    const writes = (changed.get(job.id) ?? []).map((note) => toWrite(note, how.changed(note)))
    const allowed = possibleValues([initial(how.first(entry.priority)), ...writes])
    const value = how.isNow(job)
    if (allowed.includes(value) || (verb === 'wake' && value === null && isUsedUp(job))) return []
    return [`${labelOf(job)}: ${verb} left ${value}, where ${allowed.join(' or ')} was last`]
  })
}

function pauses(evidence: Evidence): Ruling {
  const turns = Map.groupBy(evidence.of('pause'), ({ asked }) => asked.queue)
  return check(evidence.left.queues, ({ name, paused }) => {
    const writes = (turns.get(name) ?? []).map((note) => toWrite(note, note.asked.paused))
    return possibleValues([initial(false), ...writes]).includes(paused)
      ? []
      : [`${name} is ${paused ? '' : 'not '}paused`]
  })
}

/** Promise: a claim gets nothing from a paused queue. Only the process it belongs to pauses it; later the drain resumes it. */
export function judgePauses(evidence: Evidence): Ruling {
  const turns = Map.groupBy(evidence.of('pause'), ({ asked }) => asked.queue)
  const pauseCheck = check(evidence.of('pauseCheck'), ({ asked, answer }) =>
    answer && answer.after > answer.before
      ? [`${answer.after - answer.before} jobs of ${asked.queue} started after its pause was answered`]
      : [],
  )
  const claims = check(evidence.of('claim'), ({ asked, at, answer, answeredAt }) => {
    if (!answer?.length || asked.queues === '*' || answeredAt === null) return []
    const [queue = '', another] = asked.queues
    if (another !== undefined) return []
    const before = turns.get(queue)?.findLast((turn) => turn.answeredAt !== null && turn.answeredAt <= at)
    const meanwhile = turns.get(queue)?.some((turn) => turn.at <= answeredAt && (turn.answeredAt ?? Infinity) >= at)
    return before?.asked.paused && !meanwhile
      ? [`${asked.worker} got ${answer.length} jobs of ${queue} while it was paused`]
      : []
  })
  return combine(pauseCheck, claims)
}
