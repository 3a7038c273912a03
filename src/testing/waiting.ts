// The waiting jobs of a store, and how failure messages of tests describe them.

import { inspect } from 'node:util'
import { includedParts } from '../client/filter.ts'
import type { JobInfo } from '../client/job-info.ts'
import type { QueueInfo } from '../client/queues.ts'
import { type Holdfast, internalsOf } from '../holdfast.ts'
import { bounds } from '../job/bounds.ts'

/** The most jobs that are read. */
const jobsMax = 100_000
const shownMax = 10

/** Jobs of a queue, or of all, that are ready, held by a limit or scheduled, in the order in which they will run. */
export async function waitingJobs(holdfast: Holdfast, queue?: string): Promise<JobInfo[]> {
  const jobs: JobInfo[] = []
  for (const state of ['ready', 'held', 'scheduled'] as const) {
    let after: string | undefined
    do {
      const page = await holdfast.jobs({
        ...{ state, limit: bounds.pageMax, include: includedParts },
        ...(queue !== undefined && { queue }),
        ...(after && { after }),
      })
      jobs.push(...page.jobs)
      after = page.next ?? undefined
    } while (after && jobs.length < jobsMax)
  }
  return jobs
}

/**
 * When a claim from these queues could next take a job: the first scheduled job is due, or a used-up rate allows another start.
 * To be called when nothing can be claimed now.
 */
export async function nextDue(holdfast: Holdfast, queues: readonly string[] | null): Promise<Date | null> {
  const infos = (await holdfast.queues()).filter(({ name, paused }) => (queues?.includes(name) ?? true) && !paused)
  const times = await Promise.all(
    infos.flatMap(({ name, scheduled, ready, held }) => [
      scheduled > 0 ? dueIn(holdfast, name) : null,
      ready > 0 ? nextStartOfQueue(holdfast, name) : null,
      held > 0 ? nextStartOfKeys(holdfast, name) : null,
    ]),
  )
  const [first] = times.filter((time) => time !== null).sort((a, b) => a.getTime() - b.getTime())
  return first ?? null
}

/** The next slot of any schedule. */
export async function nextSlot(holdfast: Holdfast): Promise<Date | null> {
  const slots = (await holdfast.schedules()).flatMap(({ nextAt }) => nextAt ?? [])
  const [first] = slots.sort((a, b) => a.getTime() - b.getTime())
  return first ?? null
}

/** One line each, the first ones only. */
export function listed(jobs: readonly JobInfo[], now: number): string {
  const lines = jobs.slice(0, shownMax).map((job) => `  ${lineOf(job, now)}`)
  if (jobs.length > shownMax) lines.push(`  … and ${jobs.length - shownMax} more`)
  return lines.join('\n')
}

/** Describes a queue from which nothing could be claimed: `2 are scheduled, the next is due in 5m.` */
export async function whyNothing(holdfast: Holdfast, queue: string): Promise<string> {
  const info = (await holdfast.queues()).find(({ name }) => name === queue)
  if (!info) return 'it has never held a job.'
  const said = [info.paused && 'it is paused', ...(await Promise.all(countsOf(holdfast, info)))].filter(Boolean)
  return said.length === 0 ? 'it is empty.' : `${said.join('; ')}.`
}

/** The store's time. */
export async function storeTime(holdfast: Holdfast): Promise<number> {
  return (await internalsOf(holdfast).store.sweep({ max: 1 })).now
}

async function dueIn(holdfast: Holdfast, queue: string): Promise<Date | null> {
  const { jobs } = await holdfast.jobs({ queue, state: 'scheduled', limit: 1 })
  return jobs[0]?.runAt ?? null
}

/** When the rate of the queue allows its next start; null: no rate is used up. */
async function nextStartOfQueue(holdfast: Holdfast, queue: string): Promise<Date | null> {
  const { jobs } = await holdfast.jobs({ queue, state: 'ready', limit: 1 })
  const blockers = jobs[0] && (await internalsOf(holdfast).store.blockers(jobs[0].id))
  return toDate(blockers?.queue.nextStartAt)
}

/** The same for the limit keys of held jobs, page by page until there is one that waits for its rate. */
async function nextStartOfKeys(holdfast: Holdfast, queue: string): Promise<Date | null> {
  const { store } = internalsOf(holdfast)
  const asked = new Set<string | null>()
  let after: string | undefined
  do {
    const { jobs, next } = await holdfast.jobs({ queue, state: 'held', limit: bounds.pageMax, ...(after && { after }) })
    let first: number | null = null
    for (const { id, limitKey } of jobs) {
      if (asked.has(limitKey)) continue
      asked.add(limitKey)
      const startAt = (await store.blockers(id))?.key?.nextStartAt ?? null
      if (startAt !== null && (first === null || startAt < first)) first = startAt
    }
    if (first !== null) return new Date(first)
    after = next ?? undefined
  } while (after)
  return null
}

function toDate(time: number | null | undefined): Date | null {
  return time == null ? null : new Date(time)
}

function countsOf(holdfast: Holdfast, info: QueueInfo): (string | Promise<string>)[] {
  const { ready, held, scheduled, running, done, dead, cancelled } = info
  const said: (string | Promise<string>)[] = []
  if (ready > 0) said.push(count(ready, 'ready'))
  if (held > 0) said.push(`${count(held, 'held')} by a limit`)
  if (scheduled > 0) said.push(scheduledIn(holdfast, info))
  if (running > 0) said.push(`${count(running, 'running')}, leased elsewhere`)
  const ended = Object.entries({ done, dead, cancelled }).filter(([, many]) => many > 0)
  said.push(...ended.map(([state, many]) => count(many, state)))
  return said
}

async function scheduledIn(holdfast: Holdfast, { name, scheduled }: QueueInfo): Promise<string> {
  const [due, now] = await Promise.all([dueIn(holdfast, name), storeTime(holdfast)])
  const when = due ? `, ${scheduled === 1 ? '' : 'the next '}due in ${span(due.getTime() - now)}` : ''
  return `${count(scheduled, 'scheduled')}${when}`
}

function count(many: number, state: string): string {
  return `${many} ${many === 1 ? 'is' : 'are'} ${state}`
}

function lineOf({ queue, state, runAt, priority, payload }: JobInfo, now: number): string {
  const when = state === 'scheduled' ? `due in ${span(runAt.getTime() - now)}` : state
  return `${queue}, ${when}, priority ${priority}: ${inspect(payload, { depth: 4, breakLength: Number.POSITIVE_INFINITY })}`
}

const units = { d: 86_400_000, h: 3_600_000, m: 60_000, s: 1_000 } as const

/** As a duration is written: `5m`, `1.5h`, `20ms`. */
function span(ms: number): string {
  for (const [unit, unitMs] of Object.entries(units))
    if (ms >= unitMs) return `${Number((ms / unitMs).toFixed(2))}${unit}`
  return `${Math.max(0, ms)}ms`
}
