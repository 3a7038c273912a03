// Promise: effects are applied all or not at all. All, if the settlement was answered; none, if it was refused.

import type { JobInfo } from '../../../src/client/job-info.ts'
import type { Note } from '../journal.ts'
import { after, beforeKey, calls, deaths, effectKey, tasks, taskTag, work } from '../world.ts'
import { type Evidence, isUnknown, labelOf, type Payload } from './evidence.ts'
import { isFree } from './fences.ts'
import { check, combine, type Ruling } from './ruling.ts'

export function judgeEffects(evidence: Evidence): Ruling {
  const traces = tracesOf(evidence)
  const rivals = Map.groupBy(evidence.of('settle'), ({ asked }) => asked.fence)
  return combine(
    check(evidence.of('settle').filter(isTagged), (note) => {
      const { tag, deletes, id, as, fence } = note.asked
      const isAlone = rivals.get(fence)?.length === 1
      return judge(`${as} of ${id}`, traces(tag ?? '', { deletes }), dueOfSettlement(evidence, note, isAlone))
    }),
    check(evidence.of('cancel').filter(isTagged), (note) => {
      const { tag, id } = note.asked
      return judge(`cancel of ${id}`, traces(tag ?? ''), dueOfCancel(evidence, note))
    }),
    check(evidence.left.jobs.filter(isTaskWithEffects), (job) => {
      const tag = taskTag(labelOf(job) ?? '')
      const due = job.state === 'done' ? 'all' : 'none'
      return judge(`task ${job.id} (${job.state})`, traces(tag, { announces: true }), due)
    }),
  )
}

const isTagged = ({ asked }: { readonly asked: { readonly tag: string | null } }) => asked.tag !== null

function isTaskWithEffects({ queue, payload }: JobInfo): boolean {
  return queue === tasks.name && (payload as Payload).behaviour === 'effects'
}

/** Which effects must exist. Undefined: all or none, because the result of the call is unknown. */
type Due = 'all' | 'none' | undefined

interface Traces {
  readonly tag: string
  readonly jobs: number
  readonly entries: number
  readonly rows: number | null
  /** Keys that an effect deleted, as it should. Null: it deletes none. */
  readonly deleted: number | null
  /** Webhook jobs with this tag. Null: it enqueues none. */
  readonly calls: number | null
}

function judge(what: string, { tag, ...traces }: Traces, due: Due): string[] {
  const counts = Object.values(traces).filter((count) => count !== null)
  const isAll = counts.every((count) => count === 1)
  const isNone = counts.every((count) => count === 0)
  if ((isAll && due !== 'none') || (isNone && due !== 'all')) return []
  return [`${what} left of its effects ${tag} ${JSON.stringify(traces)}, where ${due ?? 'all or none'} should be`]
}

type Rest = { readonly deletes?: boolean; readonly announces?: boolean }

function tracesOf(evidence: Evidence): (tag: string, rest?: Rest) => Traces {
  const { left } = evidence
  const followUps = Map.groupBy(
    left.jobs.filter(({ queue }) => queue === after.name),
    labelOf,
  )
  const rows = left.rows && Map.groupBy(left.rows, (tag) => tag)
  const announced = Map.groupBy(
    left.jobs.filter(({ queue }) => queue === calls.queue.name),
    ({ payload }) => evidence.bodyOf(payload).tag,
  )
  return (tag, { deletes = false, announces = false } = {}) => ({
    tag,
    jobs: followUps.get(tag)?.length ?? 0,
    entries: left.kv.has(effectKey(tag)) ? 1 : 0,
    rows: rows && (rows.get(tag)?.length ?? 0),
    deleted: deletes ? (left.kv.has(beforeKey(tag)) ? 0 : 1) : null,
    calls: announces ? (announced.get(tag)?.length ?? 0) : null,
  })
}

function dueOfSettlement(evidence: Evidence, { asked, answer, refused }: Note<'settle'>, isAlone: boolean): Due {
  if (asked.hasBadEffect || refused !== null) return 'none'
  if (answer !== null) return 'all'
  const [recorded] = evidence.attemptsOf(asked.id, asked.worker)
  if (!isAlone || !recorded) return undefined
  // This is the only settlement with this fence, so the ending of the attempt in the history decides.
  const ending = asked.as === 'dead' ? 'failed' : asked.as
  return recorded.attempt.ending === ending ? 'all' : 'none'
}

function dueOfCancel(evidence: Evidence, { asked, answer, refused }: Note<'cancel'>): Due {
  if (refused !== null) return 'none'
  if (answer === 'cancelled') return 'all'
  const jobs = evidence.jobs.get(asked.id) ?? []
  const [job] = jobs
  if (answer === null || !job || jobs.length > 1 || evidence.mayBeRequeued(job)) return undefined
  return job.state === 'cancelled' ? 'all' : 'none'
}

/** Promise: every death enqueues one notice. */
export function judgeDeaths(evidence: Evidence): Ruling {
  const notices = Map.groupBy(
    evidence.left.jobs.filter(({ queue }) => queue === deaths.name),
    ({ payload }) => (payload as Payload).id,
  )
  return check([...evidence.jobs], ([id, jobs]) => {
    const [first] = jobs
    if (first === undefined || ![work.name, tasks.name].includes(first.queue) || evidence.mayBeGone(id, first.queue))
      return []
    if (jobs.some(({ history }) => history.length >= 50)) return []
    const died = jobs.reduce((sum, job) => sum + deathsOf(job), 0)
    const noticed = notices.get(id)?.length ?? 0
    const isRight = noticed <= died && noticed >= died - replacementsOf(evidence, first) - cancelsOf(evidence, id)
    return isRight ? [] : [`${id} died ${died} times, and has ${noticed} death notices`]
  })
}

/** Enqueues that may have replaced the job: its attempts start again then, as after a requeue, and it has not died. */
export function replacementsOf({ requestedJobs }: Evidence, { id, dedupKey }: JobInfo): number {
  if (dedupKey === null) return 0
  return requestedJobs.filter(
    ({ entry, note, answer }) =>
      entry.key === dedupKey && (isUnknown(note) || (answer?.id === id && answer.status === 'replaced')),
  ).length
}

/** Cancels of a job that was requeued by its id: it starts again then, and has not died. */
function cancelsOf(evidence: Evidence, id: string): number {
  if (!evidence.mayBeRequeuedById(id)) return 0
  return evidence.of('cancel').filter(({ asked }) => asked.id === id).length
}

/** One death for each new start after a failed attempt, by a requeue or a replacement, and one if the job is dead now. */
function deathsOf({ history, state, attempts: spent }: JobInfo): number {
  const anew = history.filter(({ attempt }, n) => {
    const before = history[n - 1]
    const isEnded = before?.ending === 'done' || before?.ending === 'cancelled'
    return attempt === 1 && before !== undefined && !isFree(before.ending) && !isEnded
  })
  const last = history.at(-1)
  // Requeued, and either still waiting or ended without another claim.
  const isAnewUnclaimed = state !== 'dead' && spent === 0 && last !== undefined && !isFree(last.ending)
  return anew.length + (isAnewUnclaimed ? 1 : 0) + (state === 'dead' ? 1 : 0)
}
