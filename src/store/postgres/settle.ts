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
// BUSY LANES. A settlement may need a busy lane (`lanes.ts`) for its follow-ups or its death notice. Then it is left out of its
// flush, and is made afterwards in a transaction of its own. It waits without a connection, its job stays leased meanwhile, and
// the other settlements are answered at once. So its answer is a promise:
//
//   the flush         commits without it, and keeps the answer `later` for it. A caller that asks again with the same token reads
//                     `later` again
//   own transaction   commits under a flush number of its own, which is derived from the same token. A crash in between leaves
//                     the settlement undone, as if it had never been sent: the lease expires, and the job is rescued
//
// BLOCKED EFFECTS. Effects may wait for a row that another transaction has locked, for as long as that transaction is open:
// statements of the application, key-value entries, keys of jobs. Behind it the other settlements of the flush would wait, and
// the next flush of the worker. So an effect waits for 100 ms. Then its settlement is undone to its savepoint, and is made
// later, as with a busy lane. After three of them, all others of the flush with effects are left for later at once. Settlements
// that only put and delete entries are written as one set: those that would wait are left out of it
// (`schema/functions/kv-write.ts`). What is left for later is tried again and again, and holds no connection and no lock in
// between (`lock-polls.ts`). Its job stays leased meanwhile, for 5 s after the last time that this process has asked for it
// (`keep_leased`), also if the lease itself is over. If sessions have timeouts of their own, these decide how long a statement of
// the application waits; then it waits on the server, with a few others at a time.

import { createHash } from 'node:crypto'
import { type HoldfastError, isHoldfastError, type Refused, refuse } from '../../errors.ts'
import type { NewJob, SqlEffect } from '../../job/record.ts'
import { annotationsOf, effectsIn, resultOf } from '../../job/settlement.ts'
import { encodeAnnotations } from '../../job/stored.ts'
import type { Settlement } from '../../job/transition.ts'
import type { SettleAnswer, SettleRequest } from '../store.ts'
import { list, optionalTexts, texts } from './connection/columns.ts'
import { isDataError } from './connection/data-error.ts'
import type { PgTransaction } from './connection/database.ts'
import { afterAnotherPart, CommitRefused, isDiskFull, LockNotFree } from './connection/failures.ts'
import type { AfterCommit, StoreContext } from './enqueue.ts'
import { type LeaseColumns, leaseColumns } from './fence.ts'
import type { AskForLanes } from './lanes.ts'
import { type LeasedJob, toLeasedJob } from './leased-job.ts'
import { noLongerHeld } from './limits/admit.ts'
import { refusedValues } from './refused-values.ts'
import { lanesToSettle, SettlementWriter } from './settlement-writer.ts'
import { mostOf } from './sql-leftovers.ts'
import { afterOthers, inOwnTransaction, type StatementPolicy, sharedTransaction } from './statement-policy.ts'

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
  if (requests.some(({ settlement }) => hasEffects(settlement))) return settleInTurn(context, requests, token)
  const leases = leaseColumns(requests)
  if (leases.haveDuplicates) return settleInTurn(context, requests, token)
  if (requests.every(isPlainlyDone)) return settleDone(context, requests, { token, haveLimitKeys }, leases)
  // Without effects, and with each lease once, the order in which jobs are settled makes no difference.
  const done = requests.filter(isPlainlyDone)
  const rest = requests.filter((request) => !isPlainlyDone(request))
  const answers = new Map<SettleRequest, AnswerOrPromise>()
  const answered: AnswerOrPromise[][] = [
    await settleInTurn(context, rest, token),
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

type Part =
  | 'done'
  | 'first half'
  | 'second half'
  | 'in turn'
  | `in turn ${string}`
  | `alone ${string}`
  | `refused ${string}`

/** The flush number of a part of a call. With the caller's token it is the same each time the caller asks. */
function flushOf(token: string | undefined, part: Part): string | undefined {
  if (token === undefined) return undefined
  return createHash('sha256').update(`${part} ${token}`).digest('hex').slice(0, 32)
}

function hasEffects(settlement: Settlement): boolean {
  return effectsIn(settlement) !== null
}

function isPlainlyDone({ settlement }: SettleRequest): boolean {
  return settlement.as === 'done' && settlement.effects === null
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
  const half = (part: readonly SettleRequest[], name: Part) =>
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
    if (requests.length === 1) return [refusedByData((first as SettleRequest).id, error)]
  }
  const middle = requests.length >> 1
  const half = (part: readonly SettleRequest[], name: Part) =>
    settleAtOnce(context, part, leaseColumns(part), flushOf(flush, name))
  const answers = await half(requests.slice(0, middle), 'first half')
  answers.push(...(await afterOthers(answers, half(requests.slice(middle), 'second half'))))
  return answers
}

function refusedByData(id: string, error: HoldfastError): Refused {
  return refusedValues(`the settlement of job ${id}`, error, { id })
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
  await context.afterCommit({ lists: done.lists ?? [], batches: done.batches ?? [] })
  return answers
}

/** What `holdfast.settle_done` answers; see there. */
interface DoneAnswer extends AfterCommit {
  readonly lost?: readonly number[] | null
  readonly limited?: readonly string[] | null
  readonly ready?: Readonly<Record<string, number>> | null
}

const nothingDone: DoneAnswer = {}

/**
 * Settles all in one transaction or, if the server refuses to commit that, each in a transaction of its own
 * (`statement-policy.ts`).
 *
 * Each of those has a flush number of its own, and another one with its statements refused, because the first may have been
 * abandoned (`database.ts`). If the connection breaks in between, the caller may ask again for the whole flush. Then jobs that
 * were settled in their own transactions look `lost`, and their kept answers are looked up.
 */
async function settleInTurn(
  context: StoreContext,
  requests: readonly SettleRequest[],
  token?: string,
): Promise<AnswerOrPromise[]> {
  const flushes = ownFlushes(requests, token)
  const answers = new Map<number, AnswerOrLater>()
  try {
    const sharing = await sharingOf(context, requests)
    const some = sharing.map((i) => requests[i] as SettleRequest)
    const part: Part = some.length === requests.length ? 'in turn' : `in turn ${sharing.join()}`
    const answered =
      some.length === 0
        ? []
        : await settleWithoutWait(context, some, flushOf(token, part), {
            ...sharedTransaction,
            leavesBlocked: true,
          })
    const kept = await withKeptAnswers(
      context,
      answered,
      sharing.map((i) => flushes[i]),
    )
    for (const [at, i] of sharing.entries()) answers.set(i, kept[at] as AnswerOrLater)
  } catch (error) {
    if (!(error instanceof CommitRefused) && !isDataError(error)) throw error
  }
  for (const [i, request] of requests.entries())
    if (!answers.has(i))
      answers.set(i, await afterOthers([...answers], settleInOwnTransaction(context, request, flushes[i])))
  return requests.map((request, i) => {
    const answer = answers.get(i) as AnswerOrLater
    return answer === 'later' ? settleLater(context, request, flushes[i]) : answer
  })
}

/** Settles once the lanes are open. If the promise fails, the caller may ask again for the whole flush, with its token. */
function settleLater(
  context: StoreContext,
  request: SettleRequest,
  flushes: OwnFlushes | undefined,
): Promise<SettleAnswer> {
  const settled = settleInOwnTransaction(context, request, flushes, { waits: true })
  settled.catch(() => undefined) // it may fail before the caller has the answers of the flush
  return settled as Promise<SettleAnswer>
}

/**
 * The indexes of requests that share a transaction: all whose statements set nothing (`sql-leftovers.ts`). A lease that is given
 * twice must be settled by the first request that names it. So if a lease is given twice and some request cannot share, none
 * shares, and all are made in their order.
 */
async function sharingOf({ db }: StoreContext, requests: readonly SettleRequest[]): Promise<number[]> {
  const sharing: number[] = []
  for (const [i, { settlement }] of requests.entries())
    if ((await mostOf(sqlOf(settlement), (text) => db.leaves(text))) === 'nothing') sharing.push(i)
  const areAll = sharing.length === requests.length
  return !areAll && leaseColumns(requests).haveDuplicates ? [] : sharing
}

function sqlOf(settlement: Settlement): readonly SqlEffect[] {
  return effectsIn(settlement)?.sql ?? []
}

/**
 * A full disk fails neither the job nor other requests: only this request is answered that nothing was carried out. A data error
 * fails this request alone.
 */
async function settleInOwnTransaction(
  context: StoreContext,
  request: SettleRequest,
  flushes: OwnFlushes | undefined,
  { waits = false } = {},
): Promise<AnswerOrLater> {
  try {
    const settleOne = waits ? settleWaiting : settleWithoutWait
    const once = (leavesBlocked: boolean) =>
      inOwnTransaction((policy) => {
        const flush = policy.refusal === null ? flushes?.own : flushes?.refused
        return settleOne(context, [request], flush, { ...policy, leavesBlocked })
      })
    const answers = await (waits ? whenFree(context, request, once) : once(true))
    const [answer] = await withKeptAnswers(context, answers, [flushes])
    return answer as AnswerOrLater
  } catch (error) {
    if (error instanceof EffectBlocked) return 'later'
    if (isDataError(error)) return refusedByData(request.id, error)
    if (!isHoldfastError(error, 'STORE_UNAVAILABLE') || !isDiskFull(error.cause)) throw error
    return refuse(error.code, error.message, error.facts)
  }
}

/** How long a job whose settlement waits stays leased after this process has asked for it, and how often it asks. */
const keepLeasedMs = 5_000
const keepEveryMs = 1_000

/** A lock that an effect of this job needs was not free. */
class EffectBlocked extends Error {
  readonly job: LeasedJob

  constructor(job: LeasedJob, { cause }: LockNotFree) {
    super('An effect waits for a lock.', { cause })
    this.job = job
  }
}

/**
 * Repeats `once` until no effect is blocked. If sessions have timeouts, and there may be statements of the application, the
 * second try waits on the server until a timeout strikes.
 */
async function whenFree<T>(
  context: StoreContext,
  { settlement }: SettleRequest,
  once: (leavesBlocked: boolean) => Promise<T>,
): Promise<T> {
  const { db, polls } = context
  try {
    return await once(true)
  } catch (error) {
    if (!(error instanceof EffectBlocked)) throw error
    const mayRunStatements = sqlOf(settlement).length > 0 || error.job.cancel !== null
    const waiting =
      db.hasTimeouts && mayRunStatements
        ? polls.onServer(() => once(false))
        : polls.until(() => orCollision(once(true)))
    return await whileLeased(context, error.job, waiting)
  }
}

/** If the store is away, the job may be rescued. Its settlement is lost then, as with any lease that ends. */
async function whileLeased<T>({ db }: StoreContext, job: LeasedJob, waiting: Promise<T>): Promise<T> {
  const keep = () => void db.transactLightly((tx) => keepLeased(tx, [job])).catch(() => undefined)
  keep()
  const timer = setInterval(keep, keepEveryMs).unref()
  try {
    return await waiting
  } finally {
    clearInterval(timer)
  }
}

async function keepLeased(tx: PgTransaction, jobs: readonly LeasedJob[]): Promise<void> {
  if (jobs.length === 0) return
  await tx.query('select holdfast.keep_leased($1, $2, $3, $4, $5, $6)', [
    list(jobs.map(({ id }) => id)),
    list(jobs.map(({ token }) => token)),
    texts(jobs.map(({ worker }) => worker)),
    list(jobs.map(({ startedAt }) => startedAt)),
    tx.clock,
    keepLeasedMs,
  ])
}

/** A lock that is not free is a collision, which `LockPolls` waits out. */
function orCollision<T>(settling: Promise<T>): Promise<T> {
  return settling.catch((error) => {
    throw error instanceof EffectBlocked ? error.cause : error
  })
}

/** The flush numbers of one request that is made in its own transaction: with its statements, and with them refused. */
interface OwnFlushes {
  readonly own: string
  readonly refused: string
}

/** If a lease is given twice, the first request settles it and the second is lost. So each of them has its own numbers. */
function ownFlushes(requests: readonly SettleRequest[], token: string | undefined): (OwnFlushes | undefined)[] {
  const times = new Map<string, number>()
  return requests.map(({ id, fence }) => {
    const lease = `${id} ${fence}`
    const time = (times.get(lease) ?? 0) + 1
    times.set(lease, time)
    const [own, refused] = (['alone', 'refused'] as const).map((how) => flushOf(token, `${how} ${time} ${lease}`))
    return own === undefined || refused === undefined ? undefined : { own, refused }
  })
}

/**
 * Replaces `lost` by the answer that was kept when the request was settled in its own transaction, once that answer is proven to
 * be safe (`schema/functions/flush.ts`).
 */
async function withKeptAnswers(
  { db }: StoreContext,
  answers: readonly AnswerOrLater[],
  flushes: readonly (OwnFlushes | undefined)[],
): Promise<AnswerOrLater[]> {
  const lost = flushes.flatMap((flush, i) => (flush && answers[i] === 'lost' ? [flush.own, flush.refused] : []))
  if (lost.length === 0) return [...answers]
  const rows = await db.query(
    `select replace(f.id::text, '-', ''), f.answer from holdfast.flush f where f.id = any ($1::uuid[])`,
    [list(lost)],
  )
  const kept = new Map(rows.map(([flush, answer]) => [flush, JSON.parse(answer as string) as unknown]))
  const keptFlushes: string[] = []
  const keptAnswer = (flush: string | undefined) => {
    const answer = kept.get(flush ?? null)
    if (flush === undefined || !Array.isArray(answer) || answer[0] === 'lost') return undefined
    keptFlushes.push(flush)
    return answer[0] as SettleAnswer
  }
  const found = answers.map((answer, i) => keptAnswer(flushes[i]?.own) ?? keptAnswer(flushes[i]?.refused) ?? answer)
  await db.proveStored(keptFlushes)
  return found
}

/** `later`: the settlement needs a busy lane, or an effect of it is blocked, and it was left out. */
type AnswerOrLater = SettleAnswer | 'later'

/** Never waits for a lane. If all requests are left out, nothing is committed, so the flush number is still free for them. */
async function settleWithoutWait(
  context: StoreContext,
  requests: readonly SettleRequest[],
  flush: string | undefined,
  policy: StatementPolicy,
): Promise<AnswerOrLater[]> {
  try {
    return await context.lanes.withLanesNow((ask) =>
      new SettleTransaction(context, requests, { policy, ask }).run(flush),
    )
  } catch (error) {
    if (!(error instanceof AllLeftOut)) throw error
    return requests.map(() => 'later')
  }
}

/** The same for one request that waits for its lanes, as long as other transactions keep them busy. */
function settleWaiting(
  context: StoreContext,
  requests: readonly SettleRequest[],
  flush: string | undefined,
  policy: StatementPolicy,
): Promise<AnswerOrLater[]> {
  const ask: AskForLanes = (wanted) => context.lanes.require(wanted)
  return context.lanes.withLanes(() => new SettleTransaction(context, requests, { policy, ask }).run(flush))
}

/** How many settlements of a flush may find an effect blocked, before all others with effects are left for later. */
const blockedMax = 3

class AllLeftOut extends Error {}

interface SettleTransactionOptions {
  readonly policy: StatementPolicy
  readonly ask: AskForLanes
}

/** Requests that are settled one after the other, in one transaction. */
class SettleTransaction {
  readonly #context: StoreContext
  readonly #requests: readonly SettleRequest[]
  readonly #policy: StatementPolicy
  readonly #ask: AskForLanes
  readonly #leases: LeaseColumns
  #ready: ReadonlyMap<string, number> = new Map()
  #afterCommit: AfterCommit = {}

  constructor(context: StoreContext, requests: readonly SettleRequest[], { policy, ask }: SettleTransactionOptions) {
    this.#context = context
    this.#requests = requests
    this.#policy = policy
    this.#ask = ask
    this.#leases = leaseColumns(requests)
  }

  async run(flush: string | undefined): Promise<AnswerOrLater[]> {
    this.#ask(this.#requests.flatMap(({ settlement }) => followUpsOf(settlement))) // so that most find their lanes open
    const answers = await this.#context.db.transact((tx) => this.#settle(tx), flush)
    this.#context.announce(this.#ready)
    await this.#context.afterCommit(this.#afterCommit)
    return this.#withAdmitted(answers)
  }

  /** Of jobs that wait again for a slot of their limit key, some have one by now. */
  async #withAdmitted(answers: readonly AnswerOrLater[]): Promise<AnswerOrLater[]> {
    const idOf = (i: number) => (this.#requests[i] as SettleRequest).id
    const held = answers.flatMap((answer, i) => (isHeld(answer) ? [idOf(i)] : []))
    const admitted = await noLongerHeld(this.#context.db, held)
    return answers.map((answer, i) =>
      isHeld(answer) && admitted.has(idOf(i)) ? { ...answer, state: 'ready' } : answer,
    )
  }

  async #settle(tx: PgTransaction): Promise<AnswerOrLater[]> {
    const { lanes } = this.#context
    const leased = await this.#lockJobs(tx)
    const now = await tx.readClock()
    const wanted = new Map([...leased].map(([request, job]) => [request, lanesToSettle(job, request, now)]))
    this.#ask([...wanted.values()].flat())
    const isLeftOut = (request: SettleRequest) => !lanes.knows(wanted.get(request) ?? [])
    if (this.#requests.length > 0 && this.#requests.every(isLeftOut)) throw new AllLeftOut()
    const writer = new SettlementWriter(tx, lanes, this.#policy)
    const answers: AnswerOrLater[] = []
    const blocked: LeasedJob[] = []
    const taken = new Map<LeasedJob, number>()
    let blockedTries = 0
    for (const request of this.#requests) {
      const job = leased.get(request)
      if (isLeftOut(request)) answers.push('later')
      else if (!job || !writer.takes(job)) answers.push('lost')
      else {
        taken.set(job, answers.length)
        const isTried = blockedTries < blockedMax || !hasEffects(request.settlement)
        const answer = isTried ? await this.#settleUnlessBlocked(writer, job, request) : 'later'
        if (answer === 'later') blocked.push(job)
        if (answer === 'later' && isTried) blockedTries += 1
        answers.push(answer)
      }
    }
    await writer.write()
    for (const job of writer.blocked) {
      answers[taken.get(job) as number] = 'later'
      blocked.push(job)
    }
    await keepLeased(tx, blocked)
    this.#ready = writer.becameReady
    this.#afterCommit = writer.afterCommit
    return answers
  }

  /** A request in a transaction of its own is not answered `later`: that would use up its flush number. */
  async #settleUnlessBlocked(writer: SettlementWriter, job: LeasedJob, request: SettleRequest): Promise<AnswerOrLater> {
    try {
      return await writer.settle(job, request)
    } catch (error) {
      if (!(error instanceof LockNotFree)) throw error
      if (this.#policy.isOwnTransaction) throw new EffectBlocked(job, error)
      return 'later'
    }
  }

  async #lockJobs(tx: PgTransaction): Promise<Map<SettleRequest, LeasedJob>> {
    const { columns, order } = this.#leases
    const leased = new Map<SettleRequest, LeasedJob>()
    for (const row of await tx.query('select * from holdfast.leased($1, $2, $3, $4, $5, $6, $7)', columns)) {
      const job = toLeasedJob(row)
      const request = this.#requests[order[job.turn - 1] as number]
      if (request?.id === job.id) leased.set(request, job)
    }
    return leased
  }
}

function isHeld(answer: AnswerOrLater): answer is Extract<SettleAnswer, { state: unknown }> {
  return typeof answer === 'object' && 'state' in answer && answer.state === 'held'
}

function followUpsOf(settlement: Settlement): readonly NewJob[] {
  return effectsIn(settlement)?.enqueue ?? []
}
