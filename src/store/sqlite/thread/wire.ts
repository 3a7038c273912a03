// What crosses between the threads. Structured clone writes every property name of every object, so the verbs that
// carry thousands of jobs go as columns: one list a property, or a single value where all jobs share it, as they mostly
// do. The two answers that nearly always say the same say it in one digit. Everything else crosses as it is.
//
// Packing, cloning and unpacking a thousand, µs a job, as objects and as columns: enqueue 2.0 and 0.6, a claim's answer
// 3.5 and 0.5, settle 1.3 and 0.5.

import type { NewJob } from '../../../job/record.ts'
import type { Settlement } from '../../../job/transition.ts'
import type { ClaimedJob, Enqueued, EnqueueRequest, ItemsRequest, SettleAnswer, SettleRequest } from '../../store.ts'
import type { VerbName } from '../engine.ts'

/** The first column tells how many rows there are. In any other a list of one is the value that all rows share. */
type Columns = readonly (readonly unknown[])[]

export function packItems(verb: VerbName, items: readonly unknown[]): unknown {
  if (verb === 'enqueue') return packEnqueues(items as EnqueueRequest[])
  if (verb === 'addItems') return (items as ItemsRequest[]).map(packItemsRequest)
  if (verb === 'settle') return packSettles(items as SettleRequest[])
  return items
}

export function unpackItems(verb: VerbName, wire: unknown): readonly unknown[] {
  if (verb === 'enqueue') return unpackEnqueues(wire as PackedEnqueues)
  if (verb === 'addItems') return (wire as PackedItems[]).map(unpackItemsRequest)
  if (verb === 'settle') return unpackSettles(wire as Columns)
  return wire as unknown[]
}

export function packAnswers(verb: VerbName, answers: readonly unknown[]): unknown {
  if (verb === 'claim')
    return answers.map((answer) => (Array.isArray(answer) ? pack(answer as ClaimedJob[], claimedKeys) : answer))
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

function pack<Row>(rows: readonly Row[], keys: readonly (keyof Row)[]): Columns {
  if (rows.length === 0) return []
  return keys.map((key, column) => {
    const first = rows[0]?.[key]
    const isShared = column > 0 && rows.every((row) => row[key] === first)
    return isShared ? [first] : rows.map((row) => row[key])
  })
}

/** Makes each row from a reader of its columns. */
function unpack<Row>(columns: Columns, make: (at: (column: number) => never) => Row): Row[] {
  const count = columns[0]?.length ?? 0
  let index = 0
  const at = (column: number) => {
    const values = columns[column] as unknown[]
    return (values.length === 1 ? values[0] : values[index]) as never
  }
  const rows: Row[] = []
  for (; index < count; index++) rows.push(make(at))
  return rows
}

/** How many jobs each request has, and the jobs of all of them. */
type PackedEnqueues = readonly [sizes: readonly number[], jobs: Columns]

const jobKeys: readonly (keyof NewJob)[] = [
  'id',
  'payload',
  'queue',
  'idGiven',
  'headers',
  'priority',
  'maxAttempts',
  'timeoutMs',
  'delayMs',
  'runAt',
  'startBefore',
  'dedup',
  'idempotency',
  'limitKey',
]

function packEnqueues(requests: readonly EnqueueRequest[]): PackedEnqueues {
  return [
    requests.map(({ jobs }) => jobs.length),
    pack(requests.length === 1 ? (requests[0]?.jobs ?? []) : requests.flatMap(({ jobs }) => jobs), jobKeys),
  ]
}

function unpackEnqueues([sizes, columns]: PackedEnqueues): EnqueueRequest[] {
  const jobs = unpack(columns, toNewJob)
  let from = 0
  return sizes.map((size) => {
    from += size
    return { jobs: jobs.slice(from - size, from) }
  })
}

type PackedItems = readonly [batch: string, at: number | null, jobs: Columns]

function packItemsRequest({ batch, at, jobs }: ItemsRequest): PackedItems {
  return [batch, at, pack(jobs, jobKeys)]
}

function unpackItemsRequest([batch, at, columns]: PackedItems): ItemsRequest {
  return { batch, at, jobs: unpack(columns, toNewJob) }
}

function toNewJob(at: (column: number) => never): NewJob {
  return {
    id: at(0),
    payload: at(1),
    queue: at(2),
    idGiven: at(3),
    headers: at(4),
    priority: at(5),
    maxAttempts: at(6),
    timeoutMs: at(7),
    delayMs: at(8),
    runAt: at(9),
    startBefore: at(10),
    dedup: at(11),
    idempotency: at(12),
    limitKey: at(13),
  }
}

/** One that is done without effects is only its result. */
function packSettles(requests: readonly SettleRequest[]): Columns {
  const rows = requests.map(({ id, fence, retryDelayMs, settlement }) => {
    const isPlain = settlement.as === 'done' && settlement.effects === null && !settlement.annotations
    return { id, fence, retryDelayMs, what: isPlain ? settlement.result : settlement }
  })
  return pack(rows, ['id', 'fence', 'retryDelayMs', 'what'])
}

function unpackSettles(columns: Columns): SettleRequest[] {
  return unpack(columns, (at) => ({ id: at(0), fence: at(1), retryDelayMs: at(2), settlement: toSettlement(at(3)) }))
}

function toSettlement(what: Settlement | string | null): Settlement {
  return typeof what === 'object' && what !== null ? what : { as: 'done', result: what, effects: null }
}

const claimedKeys: readonly (keyof ClaimedJob)[] = [
  'id',
  'queue',
  'fence',
  'attempt',
  'maxAttempts',
  'priority',
  'timeoutMs',
  'createdAt',
  'startedAt',
  'expiresAt',
  'headers',
  'payload',
  'cameBack',
  'batch',
]

function unpackClaimed(columns: Columns): ClaimedJob[] {
  return unpack(columns, (at) => ({
    id: at(0),
    queue: at(1),
    fence: at(2),
    attempt: at(3),
    maxAttempts: at(4),
    priority: at(5),
    timeoutMs: at(6),
    createdAt: at(7),
    startedAt: at(8),
    expiresAt: at(9),
    headers: at(10),
    payload: at(11),
    cameBack: at(12),
    batch: at(13),
  }))
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
