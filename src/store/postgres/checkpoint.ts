// Checkpoint.
//
// WITHOUT EFFECTS. The journals of all jobs of a call are written by one statement (`schema/functions/checkpoint.ts`). A
// write that is refused leaves the others as they are. If the database refuses a row, the jobs are divided, as those of a
// settlement are.
//
// EVERYTHING ELSE, and calls that name a lease twice: one request after the other, each behind a savepoint (`in-turn.ts`).
// Then the leases of those that were carried out are kept, as one set.
//
// SENT AGAIN. Every call has a token, its own unless the caller gave one. All flush numbers are derived from it. A job keeps
// its lease, so a request could be carried out twice: its records would be refused, but not its effects. The flush number is
// taken in the transaction that carries the request out. A second send finds it, and answers what was kept.

import { randomUUID } from 'node:crypto'
import { isRefused, type Refused } from '../../errors.ts'
import { hasWrites } from '../../job/journal.ts'
import type { CheckpointAnswer, CheckpointRequest, Enqueued } from '../store.ts'
import { list } from './connection/columns.ts'
import { isDataError } from './connection/data-error.ts'
import type { PgTransaction } from './connection/database.ts'
import type { StoreContext } from './enqueue.ts'
import { leaseColumns } from './fence.ts'
import { flushOf, type LeasedVerb, type Made, makeInTurn, refusedByData } from './in-turn.ts'
import { type RefusedWrites, refusalOf, writesJson } from './journal.ts'
import { afterOthers } from './statement-policy.ts'

type AnswerOrPromise = CheckpointAnswer | Promise<CheckpointAnswer>

export async function checkpoint(
  context: StoreContext,
  requests: readonly CheckpointRequest[],
  token: string = randomUUID(),
): Promise<AnswerOrPromise[]> {
  const areDistinct = requests.length < 2 || !leaseColumns(requests).haveDuplicates
  const isPlain = ({ effects, journal }: CheckpointRequest) => effects === null && hasWrites(journal) && areDistinct
  const plain = requests.filter(isPlain)
  const rest = requests.filter((request) => !isPlain(request))
  const made: AnswerOrPromise[] = rest.length > 0 ? await makeInTurn(checking, context, rest, token) : []
  const written = plain.length > 0 ? await afterOthers(made, writeAll(context, plain, flushOf(token, 'journals'))) : []
  const [fromMade, fromWritten] = [made.map(asFailed).values(), written.values()]
  return requests.map((request) => (isPlain(request) ? fromWritten : fromMade).next().value as AnswerOrPromise)
}

/** A request that the database refused, in its own transaction, was not carried out: the job goes on under its lease. */
function asFailed(answer: AnswerOrPromise): AnswerOrPromise {
  if (answer instanceof Promise) return answer.then(asFailed)
  return isRefused(answer) && answer.refused === 'INVALID_OPTION' ? { failed: answer } : answer
}

async function writeAll(
  context: StoreContext,
  requests: readonly CheckpointRequest[],
  flush: string | undefined,
): Promise<CheckpointAnswer[]> {
  try {
    return await writeAsOne(context, requests, flush)
  } catch (error) {
    if (!isDataError(error)) throw error
    const [first] = requests
    if (requests.length === 1) return [{ failed: refusedByData('checkpoint', (first as CheckpointRequest).id, error) }]
  }
  const middle = requests.length >> 1
  const answers = await writeAll(context, requests.slice(0, middle), flushOf(flush, 'first half'))
  const second = writeAll(context, requests.slice(middle), flushOf(flush, 'second half'))
  answers.push(...(await afterOthers(answers, second)))
  return answers
}

/** What `holdfast.checkpoint` answers. */
interface WrittenJson {
  readonly held: readonly (readonly [turn: number, expiresAt: number, cancelRequested: boolean])[] | null
  readonly refused: RefusedWrites | null
}

const select = 'select holdfast.checkpoint($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::jsonb, $11)'

async function writeAsOne(
  { db }: StoreContext,
  requests: readonly CheckpointRequest[],
  flush: string | undefined,
): Promise<CheckpointAnswer[]> {
  const { columns, order } = leaseColumns(requests)
  const inOrder = order.map((i) => requests[i] as CheckpointRequest)
  const leases = list(inOrder.map(({ leaseMs }) => leaseMs))
  const writes = JSON.stringify(inOrder.map(({ journal, startsOver }) => writesJson(journal, startsOver)))
  const read = (json: string | null | undefined) => JSON.parse(json ?? '{}') as WrittenJson
  const call = { text: select, values: [...columns, leases, writes, db.now] }
  const { held, refused } = await db.commitOnce(call, ([row]) => read(row?.[0]), read, { flush })
  const answers: CheckpointAnswer[] = requests.map(() => 'lost')
  for (const [turn, expiresAt, cancelRequested] of held ?? [])
    answers[order[turn - 1] as number] = { expiresAt, cancelRequested, enqueued: [] }
  for (const [at, i] of order.entries()) {
    const failed = refusalOf(refused ?? {}, at)
    if (failed) answers[i] = { failed }
  }
  return answers
}

type Checked = Exclude<CheckpointAnswer, 'lost' | Refused>

const checking: LeasedVerb<CheckpointRequest, Checked> = {
  name: 'checkpoint',
  keepsLease: true,
  effectsOf: ({ effects }) => effects,
  lanesOf: (_job, { effects }) => [...(effects?.enqueue ?? [])],
  make: async (writer, job, request) => {
    const enqueued = await writer.checkpoint(job, request)
    return isRefused(enqueued) ? { failed: enqueued } : heldLater(enqueued)
  },
  conclude: holdOn,
}

/** The lease is looked at when all requests are made. */
function heldLater(enqueued: readonly Enqueued[]): Checked {
  return { expiresAt: 0, cancelRequested: false, enqueued }
}

/** Keeps the leases of the requests that were carried out. */
async function holdOn(
  tx: PgTransaction,
  made: readonly Made<CheckpointRequest, Checked>[],
): Promise<readonly (Checked | Refused)[]> {
  const answers = made.map(({ answer }) => answer)
  const done = made.flatMap(({ answer }, i) => (isRefused(answer) || 'failed' in answer ? [] : [i]))
  if (done.length === 0) return answers
  const requests = done.map((i) => (made[i] as Made<CheckpointRequest, Checked>).request)
  const { columns, order } = leaseColumns(requests)
  const leases = list(order.map((i) => (requests[i] as CheckpointRequest).leaseMs))
  const text = 'select * from holdfast.hold_on($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)'
  for (const [turn, expiresAt, cancel] of await tx.query(text, [...columns, leases, '{}', tx.now])) {
    const i = done[order[Number(turn) - 1] as number] as number
    answers[i] = { ...(answers[i] as Checked), expiresAt: Number(expiresAt), cancelRequested: cancel === 't' }
  }
  return answers
}
