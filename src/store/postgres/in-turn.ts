// Settlements and checkpoints with effects: requests that are made one after the other, in one transaction, each behind a
// savepoint.
//
// BUSY LANES. A request may need a busy lane (`lanes.ts`) for its follow-ups or its death notice. Then it is left out of its
// flush, and is made afterwards in a transaction of its own. It waits without a connection, its job stays leased meanwhile, and
// the other requests are answered at once. So its answer is a promise:
//
//   the flush         commits without it, and keeps the answer `later` for it. A caller that asks again with the same token reads
//                     `later` again
//   own transaction   commits under a flush number of its own, which is derived from the same token. A crash in between leaves
//                     the request undone, as if it had never been sent: the lease expires, and the job is rescued
//
// BLOCKED EFFECTS. Effects may wait for a row that another transaction has locked, for as long as that transaction is open:
// statements of the application, key-value entries, keys of jobs. Behind it the other requests of the flush would wait, and
// the next flush of the worker. So an effect waits for 100 ms. Then its request is undone to its savepoint, and is made
// later, as with a busy lane. After three of them, all others of the flush with effects are left for later at once. Settlements
// that only put and delete entries are written as one set: those that would wait are left out of it
// (`schema/functions/kv-write.ts`). What is left for later is tried again and again, and holds no connection and no lock in
// between (`lock-polls.ts`). Its job stays leased meanwhile, for 5 s after the last time that this process has asked for it
// (`keep_leased`), also if the lease itself is over. If sessions have timeouts of their own, these decide how long a statement of
// the application waits; then it waits on the server, with a few others at a time.
//
// SENT AGAIN. A request that was made in its own transaction has its own flush number. If the caller asks again for the whole
// flush, it must not be made a second time:
//
//   a settlement   ends its lease, so it looks `lost`. Then its kept answer is looked up
//   a checkpoint   keeps its lease. So kept answers are looked up first, once the rows of the jobs are locked: another send of
//                  the same request has then ended, or has not begun and will find the number taken

import { createHash } from 'node:crypto'
import { type HoldfastError, isHoldfastError, type Refused, refuse } from '../../errors.ts'
import type { EffectSet } from '../../job/record.ts'
import type { LeaseRef } from '../store.ts'
import { list, texts } from './connection/columns.ts'
import { isDataError } from './connection/data-error.ts'
import type { PgTransaction } from './connection/database.ts'
import { alreadyCommitted, CommitRefused, isDiskFull, LockNotFree } from './connection/failures.ts'
import type { AfterCommit, StoreContext } from './enqueue.ts'
import { type LeaseColumns, leaseColumns } from './fence.ts'
import type { AskForLanes, Wanted } from './lanes.ts'
import { type LeasedJob, toLeasedJob } from './leased-job.ts'
import { refusedValues } from './refused-values.ts'
import { SettlementWriter } from './settlement-writer.ts'
import { mostOf } from './sql-leftovers.ts'
import { afterOthers, inOwnTransaction, type StatementPolicy, sharedTransaction } from './statement-policy.ts'

/** What is done to leased jobs. */
export interface LeasedVerb<R extends LeaseRef, A> {
  readonly name: 'settlement' | 'checkpoint'
  /** The job keeps its lease, so the same request could be made a second time. */
  readonly keepsLease: boolean
  effectsOf(request: R): EffectSet | null
  lanesOf(job: LeasedJob, request: R, now: number): Wanted[]
  make(writer: SettlementWriter, job: LeasedJob, request: R): Promise<A | Refused>
  /** Called when all are written, with the requests that were made. */
  conclude?(tx: PgTransaction, made: readonly Made<R, A>[]): Promise<readonly (A | Refused)[]>
  /** Called after the commit. */
  committed?(context: StoreContext, requests: readonly R[], answers: readonly Answered<A>[]): Promise<Answered<A>[]>
}

export interface Made<R, A> {
  readonly request: R
  readonly answer: A | Refused
}

/** `later`: the request needs a busy lane, or an effect of it is blocked, and it was left out. */
export type Answered<A> = A | Refused | 'lost' | 'later'

type Final<A> = A | Refused | 'lost'

/** The flush number of a part of a call. With the caller's token it is the same each time the caller asks. */
export function flushOf(token: string | undefined, part: string): string | undefined {
  if (token === undefined) return undefined
  return createHash('sha256').update(`${part} ${token}`).digest('hex').slice(0, 32)
}

export function refusedByData(verb: string, id: string, error: HoldfastError): Refused {
  return refusedValues(`the ${verb} of job ${id}`, error, { id })
}

/**
 * Makes all in one transaction or, if the server refuses to commit that, each in a transaction of its own
 * (`statement-policy.ts`).
 *
 * Each of those has a flush number of its own, and another one with its statements refused, because the first may have been
 * abandoned (`database.ts`). If the connection breaks in between, the caller may ask again for the whole flush.
 */
export async function makeInTurn<R extends LeaseRef, A>(
  verb: LeasedVerb<R, A>,
  context: StoreContext,
  requests: readonly R[],
  token?: string,
): Promise<(Final<A> | Promise<Final<A>>)[]> {
  const calls = new Calls(verb, context)
  const flushes = ownFlushes(requests, token)
  const answers = new Map<number, Answered<A>>()
  try {
    const sharing = await calls.sharingOf(requests)
    const some = sharing.map((i) => requests[i] as R)
    const own = sharing.map((i) => flushes[i])
    const part = some.length === requests.length ? 'in turn' : `in turn ${sharing.join()}`
    const policy = { ...sharedTransaction, leavesBlocked: true }
    const answered = some.length === 0 ? [] : await calls.withoutWait(some, flushOf(token, part), own, policy)
    const kept = await calls.withKeptAnswers(answered, own)
    for (const [at, i] of sharing.entries()) answers.set(i, kept[at] as Answered<A>)
  } catch (error) {
    if (!(error instanceof CommitRefused) && !isDataError(error)) throw error
  }
  for (const [i, request] of requests.entries())
    if (!answers.has(i)) answers.set(i, await afterOthers([...answers], calls.inOwnTransaction(request, flushes[i])))
  return requests.map((request, i) => {
    const answer = answers.get(i) as Answered<A>
    return answer === 'later' ? calls.later(request, flushes[i]) : answer
  })
}

/** How long a job whose request waits stays leased after this process has asked for it, and how often it asks. */
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

/** The flush numbers of one request that is made in its own transaction: with its statements, and with them refused. */
interface OwnFlushes {
  readonly own: string
  readonly refused: string
}

/** If a lease is given twice, each of its requests has its own numbers. */
function ownFlushes(requests: readonly LeaseRef[], token: string | undefined): (OwnFlushes | undefined)[] {
  const times = new Map<string, number>()
  return requests.map(({ id, fence }) => {
    const lease = `${id} ${fence}`
    const time = (times.get(lease) ?? 0) + 1
    times.set(lease, time)
    const [own, refused] = (['alone', 'refused'] as const).map((how) => flushOf(token, `${how} ${time} ${lease}`))
    return own === undefined || refused === undefined ? undefined : { own, refused }
  })
}

class Calls<R extends LeaseRef, A> {
  readonly #verb: LeasedVerb<R, A>
  readonly #context: StoreContext

  constructor(verb: LeasedVerb<R, A>, context: StoreContext) {
    this.#verb = verb
    this.#context = context
  }

  /** Once the lanes are open. If the promise fails, the caller may ask again for the whole flush, with its token. */
  later(request: R, flushes: OwnFlushes | undefined): Promise<Final<A>> {
    const made = this.inOwnTransaction(request, flushes, { waits: true })
    made.catch(() => undefined) // it may fail before the caller has the answers of the flush
    return made as Promise<Final<A>>
  }

  /**
   * The indexes of requests that share a transaction: all whose statements set nothing (`sql-leftovers.ts`). A lease that is
   * given twice must be used in the order of its requests. So if a lease is given twice and some request cannot share, none
   * shares, and all are made in their order.
   */
  async sharingOf(requests: readonly R[]): Promise<number[]> {
    const { db } = this.#context
    const sharing: number[] = []
    for (const [i, request] of requests.entries())
      if ((await mostOf(this.#verb.effectsOf(request)?.sql ?? [], (text) => db.leaves(text))) === 'nothing')
        sharing.push(i)
    const areAll = sharing.length === requests.length
    return !areAll && leaseColumns(requests).haveDuplicates ? [] : sharing
  }

  /**
   * A full disk fails neither the job nor other requests: only this request is answered that nothing was carried out. A data
   * error fails this request alone.
   */
  async inOwnTransaction(request: R, flushes: OwnFlushes | undefined, { waits = false } = {}): Promise<Answered<A>> {
    try {
      const once = (leavesBlocked: boolean) =>
        inOwnTransaction((policy) => {
          const flush = policy.refusal === null ? flushes?.own : flushes?.refused
          const own = { ...policy, leavesBlocked }
          return waits
            ? this.#waiting(request, flush, flushes, own)
            : this.withoutWait([request], flush, [flushes], own)
        })
      const answers = await (waits ? this.#whenFree(request, once) : once(true))
      const [answer] = await this.withKeptAnswers(answers, [flushes])
      return answer as Answered<A>
    } catch (error) {
      if (error instanceof EffectBlocked) return 'later'
      if (isDataError(error)) return refusedByData(this.#verb.name, request.id, error)
      if (!isHoldfastError(error, 'STORE_UNAVAILABLE') || !isDiskFull(error.cause)) throw error
      return refuse(error.code, error.message, error.facts)
    }
  }

  /**
   * Repeats `once` until no effect is blocked. If sessions have timeouts, and there may be statements of the application, the
   * second try waits on the server until a timeout strikes.
   */
  async #whenFree<T>(request: R, once: (leavesBlocked: boolean) => Promise<T>): Promise<T> {
    const { db, polls } = this.#context
    try {
      return await once(true)
    } catch (error) {
      if (!(error instanceof EffectBlocked)) throw error
      const mayRunStatements = (this.#verb.effectsOf(request)?.sql.length ?? 0) > 0 || error.job.cancel !== null
      const waiting =
        db.hasTimeouts && mayRunStatements
          ? polls.onServer(() => once(false))
          : polls.until(() => orCollision(once(true)))
      return await this.#whileLeased(error.job, waiting)
    }
  }

  /** If the store is away, the job may be rescued. Its request is lost then, as with any lease that ends. */
  async #whileLeased<T>(job: LeasedJob, waiting: Promise<T>): Promise<T> {
    const { db } = this.#context
    const keep = () => void db.transactLightly((tx) => keepLeased(tx, [job])).catch(() => undefined)
    keep()
    const timer = setInterval(keep, keepEveryMs).unref()
    try {
      return await waiting
    } finally {
      clearInterval(timer)
    }
  }

  /**
   * Replaces `lost` by the answer that was kept when the request was made in its own transaction, once that answer is proven to
   * be safe (`schema/functions/flush.ts`).
   */
  async withKeptAnswers(
    answers: readonly Answered<A>[],
    flushes: readonly (OwnFlushes | undefined)[],
  ): Promise<Answered<A>[]> {
    const { db } = this.#context
    const lost = flushes.filter((_, i) => answers[i] === 'lost')
    const kept = await keptAnswers<A>((text, values) => db.query(text, values), lost)
    const keptFlushes: string[] = []
    const found = answers.map((answer, i) => {
      const of = answer === 'lost' ? kept(flushes[i]) : undefined
      if (of === undefined) return answer
      keptFlushes.push(of.flush)
      return of.answer
    })
    await db.proveStored(keptFlushes)
    return found
  }

  /** Never waits for a lane. If all requests are left out, nothing is committed, so the flush number is still free for them. */
  async withoutWait(
    requests: readonly R[],
    flush: string | undefined,
    own: readonly (OwnFlushes | undefined)[],
    policy: StatementPolicy,
  ): Promise<Answered<A>[]> {
    try {
      return await this.#context.lanes.withLanesNow((ask) => this.#transact({ requests, own, policy, ask }, flush))
    } catch (error) {
      if (!(error instanceof AllLeftOut)) throw error
      return requests.map(() => 'later')
    }
  }

  /** The same for one request that waits for its lanes, as long as other transactions keep them busy. */
  #waiting(
    request: R,
    flush: string | undefined,
    own: OwnFlushes | undefined,
    policy: StatementPolicy,
  ): Promise<Answered<A>[]> {
    const ask: AskForLanes = (wanted) => this.#context.lanes.require(wanted)
    return this.#context.lanes.withLanes(() => this.#transact({ requests: [request], own: [own], policy, ask }, flush))
  }

  #transact(requested: Requested<R>, flush: string | undefined): Promise<Answered<A>[]> {
    return new TransactionInTurn(this.#verb, this.#context, requested).run(flush)
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
function orCollision<T>(making: Promise<T>): Promise<T> {
  return making.catch((error) => {
    throw error instanceof EffectBlocked ? error.cause : error
  })
}

interface Kept<A> {
  readonly flush: string
  readonly answer: Final<A>
}

/** The kept answers of requests that were made in their own transactions. */
async function keptAnswers<A>(
  query: PgTransaction['query'],
  flushes: readonly (OwnFlushes | undefined)[],
): Promise<(flushes: OwnFlushes | undefined) => Kept<A> | undefined> {
  const all = flushes.flatMap((flush) => (flush ? [flush.own, flush.refused] : []))
  const rows = all.length === 0 ? [] : await query(selectKept, [list(all)])
  const kept = new Map(rows.map(([flush, answer]) => [flush, JSON.parse(answer ?? 'null') as unknown]))
  const of = (flush: string): Kept<A> | undefined => {
    const answer = kept.get(flush)
    return Array.isArray(answer) && answer[0] !== 'lost' ? { flush, answer: answer[0] as Final<A> } : undefined
  }
  return (own) => own && (of(own.own) ?? of(own.refused))
}

const selectKept = `select replace(f.id::text, '-', ''), case when f.answer <> 'withdrawn' then f.answer end
  from holdfast.flush f where f.id = any ($1::uuid[])`

/** How many requests of a flush may find an effect blocked, before all others with effects are left for later. */
const blockedMax = 3

class AllLeftOut extends Error {}

interface Requested<R> {
  readonly requests: readonly R[]
  /** The numbers under which each of them may have been made alone. */
  readonly own: readonly (OwnFlushes | undefined)[]
  readonly policy: StatementPolicy
  readonly ask: AskForLanes
}

/** Requests that are made one after the other, in one transaction. */
class TransactionInTurn<R extends LeaseRef, A> {
  readonly #verb: LeasedVerb<R, A>
  readonly #context: StoreContext
  readonly #requested: Requested<R>
  readonly #leases: LeaseColumns
  #ready: ReadonlyMap<string, number> = new Map()
  #afterCommit: AfterCommit = {}
  #keptFlushes: readonly string[] = []

  constructor(verb: LeasedVerb<R, A>, context: StoreContext, requested: Requested<R>) {
    this.#verb = verb
    this.#context = context
    this.#requested = requested
    this.#leases = leaseColumns(requested.requests)
  }

  async run(flush: string | undefined): Promise<Answered<A>[]> {
    const { requests, ask } = this.#requested
    ask(requests.flatMap((request) => this.#verb.effectsOf(request)?.enqueue ?? [])) // so that most find their lanes open
    const answers = await this.#context.db.transact((tx) => this.#make(tx, flush), flush)
    await this.#context.db.proveStored(this.#keptFlushes)
    this.#context.announce(this.#ready)
    await this.#context.afterCommit(this.#afterCommit)
    return (await this.#verb.committed?.(this.#context, requests, answers)) ?? answers
  }

  async #make(tx: PgTransaction, flush: string | undefined): Promise<Answered<A>[]> {
    const { requests, own, ask, policy } = this.#requested
    const { lanes } = this.#context
    const leased = await this.#lockJobs(tx)
    const kept = await this.#keptOf(tx, flush, own)
    const now = await tx.readClock()
    const wanted = new Map([...leased].map(([request, job]) => [request, this.#verb.lanesOf(job, request, now)]))
    ask([...wanted.values()].flat())
    const isLeftOut = (request: R) => !lanes.knows(wanted.get(request) ?? [])
    if (requests.length > 0 && requests.every((request, i) => kept[i] === undefined && isLeftOut(request)))
      throw new AllLeftOut()
    const writer = new SettlementWriter(tx, lanes, policy)
    const answers: Answered<A>[] = []
    const blocked: LeasedJob[] = []
    const made = new Map<LeasedJob, number>()
    let blockedTries = 0
    for (const [i, request] of requests.entries()) {
      const job = leased.get(request)
      const keptAnswer = kept[i]?.answer
      if (keptAnswer !== undefined) answers.push(keptAnswer)
      else if (isLeftOut(request)) answers.push('later')
      else if (!job || !(this.#verb.keepsLease || writer.takes(job))) answers.push('lost')
      else {
        const isTried = blockedTries < blockedMax || this.#verb.effectsOf(request) === null
        const answer = isTried ? await this.#makeUnlessBlocked(writer, job, request) : 'later'
        if (answer === 'later') blocked.push(job)
        else made.set(job, i)
        if (answer === 'later' && isTried) blockedTries += 1
        answers.push(answer)
      }
    }
    await writer.write()
    for (const job of writer.blocked) {
      answers[made.get(job) as number] = 'later'
      made.delete(job)
      blocked.push(job)
    }
    for (const [job, answer] of writer.refusedJournals) answers[made.get(job) as number] = answer as A
    await this.#conclude(tx, [...made.values()], answers)
    await keepLeased(tx, blocked)
    this.#ready = writer.becameReady
    this.#afterCommit = writer.afterCommit
    return answers
  }

  async #conclude(tx: PgTransaction, made: readonly number[], answers: Answered<A>[]): Promise<void> {
    const { requests } = this.#requested
    const all = made.map((i) => ({ request: requests[i] as R, answer: answers[i] as A | Refused }))
    const concluded = (await this.#verb.conclude?.(tx, all)) ?? []
    for (const [at, answer] of concluded.entries()) answers[made[at] as number] = answer
  }

  /** For a verb that could be carried out twice. Throws if this very call was committed before. */
  async #keptOf(
    tx: PgTransaction,
    flush: string | undefined,
    own: readonly (OwnFlushes | undefined)[],
  ): Promise<readonly (Kept<A> | undefined)[]> {
    if (!this.#verb.keepsLease || flush === undefined) return []
    const [committed] = await tx.query('select from holdfast.flush f where f.id = $1', [flush])
    if (committed !== undefined) throw alreadyCommitted()
    const kept = await keptAnswers<A>((text, values) => tx.query(text, values), own)
    const found = own.map((flushes) => kept(flushes))
    this.#keptFlushes = found.flatMap((each) => (each ? [each.flush] : []))
    return found
  }

  /** A request in a transaction of its own is not answered `later`: that would use up its flush number. */
  async #makeUnlessBlocked(writer: SettlementWriter, job: LeasedJob, request: R): Promise<A | Refused | 'later'> {
    try {
      return await this.#verb.make(writer, job, request)
    } catch (error) {
      if (!(error instanceof LockNotFree)) throw error
      if (this.#requested.policy.isOwnTransaction) throw new EffectBlocked(job, error)
      return 'later'
    }
  }

  async #lockJobs(tx: PgTransaction): Promise<Map<R, LeasedJob>> {
    const { columns, order } = this.#leases
    const leased = new Map<R, LeasedJob>()
    for (const row of await tx.query('select * from holdfast.leased($1, $2, $3, $4, $5, $6, $7)', columns)) {
      const job = toLeasedJob(row)
      const request = this.#requested.requests[order[job.turn - 1] as number]
      if (request?.id === job.id) leased.set(request, job)
    }
    return leased
  }
}
