// What crosses between the threads. Structured clone writes every property name of every object, so the three verbs that
// carry thousands of jobs go as one flat list of values, and the two answers that nearly always say the same say it in
// one digit. Everything else crosses as it is. (See bench/sqlite.ts for what this is worth.)

import type { NewJob } from '../../job/record.ts'
import type { Settlement } from '../../job/transition.ts'
import type { ClaimedJob, Enqueued, EnqueueRequest, SettleAnswer, SettleRequest } from '../store.ts'
import type { VerbName } from './engine.ts'

type Flat = unknown[]

export function packItems(verb: VerbName, items: readonly unknown[]): unknown {
  if (verb === 'enqueue') return packEnqueues(items as EnqueueRequest[])
  if (verb === 'settle') return packSettles(items as SettleRequest[])
  return items
}

export function unpackItems(verb: VerbName, wire: unknown): readonly unknown[] {
  if (verb === 'enqueue') return unpackEnqueues(wire as Flat)
  if (verb === 'settle') return unpackSettles(wire as Flat)
  return wire as unknown[]
}

export function packAnswers(verb: VerbName, answers: readonly unknown[]): unknown {
  if (verb === 'claim') return answers.map((answer) => (Array.isArray(answer) ? packClaimed(answer) : answer))
  if (verb === 'enqueue') return answers.map((answer) => (isAllCreated(answer) ? 0 : answer))
  if (verb === 'settle') return answers.map((answer) => (isPlainDone(answer as SettleAnswer) ? 0 : answer))
  return answers
}

export function unpackAnswers(verb: VerbName, wire: unknown, items: readonly unknown[]): unknown[] {
  const answers = wire as unknown[]
  if (verb === 'claim') return answers.map((answer) => (Array.isArray(answer) ? unpackClaimed(answer) : answer))
  if (verb === 'enqueue')
    return answers.map((answer, i) => (answer === 0 ? allCreated(items[i] as EnqueueRequest) : answer))
  if (verb === 'settle') return answers.map((answer) => (answer === 0 ? plainDone : answer))
  return answers
}

/** A request is its number of jobs, then thirteen values a job. */
function packEnqueues(requests: readonly EnqueueRequest[]): Flat {
  const flat: Flat = []
  for (const { jobs } of requests) {
    flat.push(jobs.length)
    for (const j of jobs) {
      flat.push(j.id, j.idGiven, j.queue, j.payload, j.headers, j.priority, j.maxAttempts)
      flat.push(j.timeoutMs, j.delayMs, j.runAt, j.startBefore, j.dedup, j.idempotency)
    }
  }
  return flat
}

function unpackEnqueues(flat: Flat): EnqueueRequest[] {
  const requests: EnqueueRequest[] = []
  for (let at = 0; at < flat.length; ) {
    const jobs: NewJob[] = []
    const end = at + 1 + 13 * (flat[at] as number)
    for (at += 1; at < end; at += 13) {
      jobs.push({
        id: flat[at],
        idGiven: flat[at + 1],
        queue: flat[at + 2],
        payload: flat[at + 3],
        headers: flat[at + 4],
        priority: flat[at + 5],
        maxAttempts: flat[at + 6],
        timeoutMs: flat[at + 7],
        delayMs: flat[at + 8],
        runAt: flat[at + 9],
        startBefore: flat[at + 10],
        dedup: flat[at + 11],
        idempotency: flat[at + 12],
      } as NewJob)
    }
    requests.push({ jobs })
  }
  return requests
}

/** Four values a settlement; one that is done without effects is only its result. */
function packSettles(requests: readonly SettleRequest[]): Flat {
  const flat: Flat = []
  for (const { id, fence, retryDelayMs, settlement } of requests) {
    const isPlain = settlement.as === 'done' && settlement.effects === null
    flat.push(id, fence, retryDelayMs, isPlain ? settlement.result : settlement)
  }
  return flat
}

function unpackSettles(flat: Flat): SettleRequest[] {
  const requests: SettleRequest[] = []
  for (let at = 0; at < flat.length; at += 4) {
    const last = flat[at + 3] as Settlement | string | null
    const settlement: Settlement =
      typeof last === 'object' && last !== null ? last : { as: 'done', result: last, effects: null }
    requests.push({
      id: flat[at] as string,
      fence: flat[at + 1] as string,
      retryDelayMs: flat[at + 2] as number,
      settlement,
    })
  }
  return requests
}

function packClaimed(jobs: readonly ClaimedJob[]): Flat {
  const flat: Flat = []
  for (const j of jobs) {
    flat.push(j.id, j.queue, j.fence, j.attempt, j.maxAttempts, j.priority)
    flat.push(j.timeoutMs, j.createdAt, j.startedAt, j.expiresAt, j.headers, j.payload)
  }
  return flat
}

function unpackClaimed(flat: Flat): ClaimedJob[] {
  const jobs: ClaimedJob[] = []
  for (let at = 0; at < flat.length; at += 12) {
    jobs.push({
      id: flat[at],
      queue: flat[at + 1],
      fence: flat[at + 2],
      attempt: flat[at + 3],
      maxAttempts: flat[at + 4],
      priority: flat[at + 5],
      timeoutMs: flat[at + 6],
      createdAt: flat[at + 7],
      startedAt: flat[at + 8],
      expiresAt: flat[at + 9],
      headers: flat[at + 10],
      payload: flat[at + 11],
    } as ClaimedJob)
  }
  return jobs
}

function isAllCreated(answer: unknown): boolean {
  return Array.isArray(answer) && answer.every(({ status }: Enqueued) => status === 'created')
}

function allCreated({ jobs }: EnqueueRequest): Enqueued[] {
  return jobs.map(({ id }) => ({ id, status: 'created' }))
}

const plainDone: SettleAnswer = Object.freeze({ state: 'done', runAt: null, enqueued: Object.freeze([]) })

function isPlainDone(answer: SettleAnswer): boolean {
  return typeof answer === 'object' && 'enqueued' in answer && answer.state === 'done' && answer.enqueued.length === 0
}
