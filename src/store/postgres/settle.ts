// Settle.
//
// PLAINLY DONE. Jobs that are done, without effects, are settled as one set in one statement.
//
// EVERYTHING ELSE. The rows are read and locked, `src/job/transition.ts` decides what becomes of each job, and the changes are
// written back as sets. Settlements with effects that may fail are made one after the other, each behind a savepoint. If one
// fails, it is undone to its savepoint, and the settlements beside it are not affected.
//
// DATA ERRORS. A row of one job may be refused by the database itself: a value that does not fit its column, a constraint or a
// trigger of an operator (`connection/data-error.ts`). The server has undone the whole statement or transaction then, and would
// do so each time it is sent. So its jobs are divided until the one that causes the error is alone:
//
//   plainly done      the set is settled in two halves, one after the other, and those in halves again: about 2 log₂ n statements
//                     for one bad row. The flush number of each half is derived from that of the whole. So a caller that asks
//                     again under its token reads the answers of the halves that were committed
//   everything else   each request in a transaction of its own, as after a refused COMMIT
//
// The request that fails alone is refused. Its worker then settles the attempt as failed. A crash between two halves leaves some
// jobs settled and some leased, as a crash between two calls does.
//
// How requests are made one after the other, busy lanes and blocked effects are in `in-turn.ts`.

import type { Refused } from '../../errors.ts'
import { hasWrites } from '../../job/journal.ts'
import { annotationsOf, effectsIn, resultOf } from '../../job/settlement.ts'
import { encodeAnnotations } from '../../job/stored.ts'
import type { Settlement } from '../../job/transition.ts'
import type { SettleAnswer, SettleRequest } from '../store.ts'
import { optionalTexts } from './connection/columns.ts'
import { isDataError } from './connection/data-error.ts'
import { afterAnotherPart } from './connection/failures.ts'
import type { AfterCommit, StoreContext } from './enqueue.ts'
import { type LeaseColumns, leaseColumns } from './fence.ts'
import { type Answered, flushOf, type LeasedVerb, makeInTurn, refusedByData } from './in-turn.ts'
import { noLongerHeld } from './limits/admit.ts'
import { lanesToSettle } from './settlement-writer.ts'
import { afterOthers } from './statement-policy.ts'

export interface SettleOptions {
  /** The caller's token, under which it may ask again. */
  readonly token: string | undefined
  /** Some of these jobs have limit keys, so they pass their slots on to held jobs. */
  readonly haveLimitKeys: boolean
}

export async function settle(
  context: StoreContext,
  requests: readonly SettleRequest[],
  { token, haveLimitKeys }: SettleOptions,
): Promise<AnswerOrPromise[]> {
  if (requests.some(({ settlement }) => hasEffects(settlement))) return makeInTurn(settling, context, requests, token)
  const leases = leaseColumns(requests)
  if (leases.haveDuplicates) return makeInTurn(settling, context, requests, token)
  if (requests.every(isPlainlyDone)) return settleDone(context, requests, { token, haveLimitKeys }, leases)
  // Without effects, and with each lease once, the order in which jobs are settled makes no difference.
  const done = requests.filter(isPlainlyDone)
  const rest = requests.filter((request) => !isPlainlyDone(request))
  const answers = new Map<SettleRequest, AnswerOrPromise>()
  const answered: AnswerOrPromise[][] = [
    await makeInTurn(settling, context, rest, token),
    done.length > 0 ? await settleDone(context, done, { token, haveLimitKeys }, leaseColumns(done)) : [],
  ]
  for (const [i, part] of [rest, done].entries()) {
    part.forEach((request, j) => {
      answers.set(request, answered[i]?.[j] as AnswerOrPromise)
    })
  }
  return requests.map((request) => answers.get(request) as AnswerOrPromise)
}

/** A promise: the settlement waits for a busy lane, or for a row that another transaction has locked. */
type AnswerOrPromise = SettleAnswer | Promise<SettleAnswer>

function hasEffects(settlement: Settlement): boolean {
  return effectsIn(settlement) !== null
}

function isPlainlyDone({ settlement }: SettleRequest): boolean {
  return settlement.as === 'done' && settlement.effects === null && !settlement.error && !hasWrites(settlement.journal)
}

const plainlyDone: SettleAnswer = { state: 'done', runAt: null, enqueued: [] }

/**
 * From so many jobs on, jobs with limit keys are settled by two calls at the same time, because passing slots on costs the
 * server twice as much as the rest of a settlement. Jobs of 1,000 keys were drained in 30 µs each instead of 34. Jobs without
 * keys would take 14 µs instead of 13, so they stay one call.
 */
const halvesFrom = 500

/**
 * If all are lost, they may have been committed in the other way by an earlier call with this token: a repeated call no longer
 * knows that the jobs had limit keys. So the other way is tried too.
 */
async function settleDone(
  context: StoreContext,
  requests: readonly SettleRequest[],
  { token, haveLimitKeys }: SettleOptions,
  leases: LeaseColumns,
): Promise<SettleAnswer[]> {
  const atOnce = () => settleAtOnce(context, requests, leases, flushOf(token, 'done'))
  if (requests.length < halvesFrom) return atOnce()
  const inHalves = () => settleInHalves(context, requests, token)
  const [way, other] = haveLimitKeys ? [inHalves, atOnce] : [atOnce, inHalves]
  const answers = await way()
  const mayHaveLanded = token !== undefined && answers.every((answer) => answer === 'lost')
  return mayHaveLanded ? other() : answers
}

/** If one half fails and the other does not, the error of the whole call says that it may have been carried out. */
async function settleInHalves(
  context: StoreContext,
  requests: readonly SettleRequest[],
  token?: string,
): Promise<SettleAnswer[]> {
  const middle = requests.length >> 1
  const half = (part: readonly SettleRequest[], name: 'first half' | 'second half') =>
    settleAtOnce(context, part, leaseColumns(part), flushOf(token, name))
  const halves = await Promise.allSettled([
    half(requests.slice(0, middle), 'first half'),
    half(requests.slice(middle), 'second half'),
  ])
  const isHalfDone = halves.some(({ status }) => status === 'fulfilled')
  return halves.flatMap((half) => {
    if (half.status === 'rejected') throw isHalfDone ? afterAnotherPart(half.reason) : half.reason
    return half.value
  })
}

async function settleAtOnce(
  context: StoreContext,
  requests: readonly SettleRequest[],
  leases: LeaseColumns,
  flush: string | undefined,
): Promise<SettleAnswer[]> {
  try {
    return await settleAsOne(context, requests, leases, flush)
  } catch (error) {
    if (!isDataError(error)) throw error
    const [first] = requests
    if (requests.length === 1) return [refusedByData('settlement', (first as SettleRequest).id, error)]
  }
  const middle = requests.length >> 1
  const half = (part: readonly SettleRequest[], name: 'first half' | 'second half') =>
    settleAtOnce(context, part, leaseColumns(part), flushOf(flush, name))
  const answers = await half(requests.slice(0, middle), 'first half')
  answers.push(...(await afterOthers(answers, half(requests.slice(middle), 'second half'))))
  return answers
}

async function settleAsOne(
  context: StoreContext,
  requests: readonly SettleRequest[],
  { columns, order }: LeaseColumns,
  flush: string | undefined,
): Promise<SettleAnswer[]> {
  const results = order.map((i) => resultOf((requests[i] as SettleRequest).settlement))
  const annotations = order.map((i) => encodeAnnotations(annotationsOf((requests[i] as SettleRequest).settlement)))
  const call = {
    text: 'select holdfast.settle_done($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)',
    values: [...columns, optionalTexts(results), optionalTexts(annotations), context.db.now],
  }
  const read = (json: string | null | undefined) => (json == null ? nothingDone : JSON.parse(json)) as DoneAnswer
  const done = await context.db.commitOnce(call, ([row]) => read(row?.[0]), read, { flush })
  const answers: SettleAnswer[] = requests.map(() => plainlyDone)
  for (const turn of done.lost ?? []) answers[order[turn - 1] as number] = 'lost'
  if (done.limited) context.announce(new Map(done.limited.map((queue) => [queue, requests.length])))
  if (done.ready) context.announce(new Map(Object.entries(done.ready)))
  const { lists, batches, wakes, notices } = done
  await context.afterCommit({
    lists: lists ?? [],
    batches: batches ?? [],
    wakes: wakes ?? [],
    notices: notices ?? [],
  })
  return answers
}

/** What `holdfast.settle_done` answers; see there. */
interface DoneAnswer extends AfterCommit {
  readonly lost?: readonly number[] | null
  readonly limited?: readonly string[] | null
  readonly ready?: Readonly<Record<string, number>> | null
}

const nothingDone: DoneAnswer = {}

type Settled = Exclude<SettleAnswer, 'lost' | Refused>

const settling: LeasedVerb<SettleRequest, Settled> = {
  name: 'settlement',
  keepsLease: false,
  effectsOf: ({ settlement }) => effectsIn(settlement),
  lanesOf: lanesToSettle,
  make: async (writer, job, request) => (await writer.settle(job, request)) as Settled | Refused,
  committed: withAdmitted,
}

/** Of jobs that wait again for a slot of their limit key, some have one by now. */
async function withAdmitted(
  { db }: StoreContext,
  requests: readonly SettleRequest[],
  answers: readonly Answered<Settled>[],
): Promise<Answered<Settled>[]> {
  const idOf = (i: number) => (requests[i] as SettleRequest).id
  const held = answers.flatMap((answer, i) => (isHeld(answer) ? [idOf(i)] : []))
  const admitted = await noLongerHeld(db, held)
  return answers.map((answer, i) => (isHeld(answer) && admitted.has(idOf(i)) ? { ...answer, state: 'ready' } : answer))
}

function isHeld(answer: Answered<Settled>): answer is Settled {
  return typeof answer === 'object' && 'state' in answer && answer.state === 'held'
}
