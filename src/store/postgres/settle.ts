// Settle. A settlement whose follow-ups or notice of death need a busy lane (`lanes.ts`) is left out of its flush and goes alone, behind
// it. It waits without a connection, its job stays leased meanwhile, and its neighbours are answered at once. So its answer is a promise.
//
//   the flush   lands without it, and keeps `later` in its place: asked again with the same token, that answer is read again
//   alone       lands under a number of its own, which that answer leads to. A crash in between leaves the settlement undone, as if it
//               had never been sent: the lease runs out, and the job comes back
//
// Jobs that are plainly done go as one set in one statement. Everything else is read with its rows locked, decided by
// the same pure functions that decide it elsewhere, and written back as sets; what comes with effects that may fail goes
// one after the other, each undone to a savepoint where it fails, so that the settlements beside it never notice.

import { createHash } from 'node:crypto'
import { isHoldfastError, refuse } from '../../errors.ts'
import type { NewJob, SqlEffect } from '../../job/record.ts'
import { encodeAnnotations } from '../../job/stored.ts'
import type { Settlement } from '../../job/transition.ts'
import type { SettleAnswer, SettleRequest } from '../store.ts'
import { afterOthers, alone, type Care, together } from './alone.ts'
import { list, optionalTexts } from './connection/columns.ts'
import type { PgTransaction } from './connection/database.ts'
import { afterAnotherPart, CommitRefused, isDiskFull } from './connection/failures.ts'
import type { FollowUps, StoreContext } from './enqueue.ts'
import { type Holds, holdColumns } from './fence.ts'
import type { AskForLanes } from './lanes.ts'
import { type LeasedJob, toLeasedJob } from './leased-job.ts'
import { mostOf } from './setters.ts'
import { annotationsOf, lanesToSettle, resultOf, SettlementWriter } from './settlement-writer.ts'

export interface SettleOptions {
  /** Of the caller, who may ask again. */
  readonly token: string | undefined
  /** Some of these jobs hand over to others. */
  readonly haveLimitKeys: boolean
}

export async function settle(
  context: StoreContext,
  requests: readonly SettleRequest[],
  { token, haveLimitKeys }: SettleOptions,
): Promise<SoonOrLater[]> {
  if (requests.some(({ settlement }) => hasEffects(settlement))) return settleInTurn(context, requests, token)
  const holds = holdColumns(requests)
  if (holds.haveTwins) return settleInTurn(context, requests, token)
  if (requests.every(isPlainlyDone)) return settleDone(context, requests, { token, haveLimitKeys }, holds)
  // Without effects, and each hold once: nothing tells in which order jobs were settled.
  const done = requests.filter(isPlainlyDone)
  const rest = requests.filter((request) => !isPlainlyDone(request))
  const answers = new Map<SettleRequest, SoonOrLater>()
  const answered: SoonOrLater[][] = [
    await settleInTurn(context, rest, token),
    done.length > 0 ? await settleDone(context, done, { token, haveLimitKeys }, holdColumns(done)) : [],
  ]
  for (const [i, part] of [rest, done].entries()) {
    part.forEach((request, j) => {
      answers.set(request, answered[i]?.[j] as SoonOrLater)
    })
  }
  return requests.map((request) => answers.get(request) as SoonOrLater)
}

/** Later: of a settlement that waits for a busy lane. */
type SoonOrLater = SettleAnswer | Promise<SettleAnswer>

type Part =
  | 'done'
  | 'first half'
  | 'second half'
  | 'in turn'
  | `in turn ${string}`
  | `alone ${string}`
  | `refused ${string}`

/** The number under which a part of a settlement lands: with a token of the caller the same every time it is asked. */
function flushOf(token: string | undefined, part: Part): string | undefined {
  if (token === undefined) return undefined
  return createHash('sha256').update(`${part} ${token}`).digest('hex').slice(0, 32)
}

function hasEffects(settlement: Settlement): boolean {
  return 'effects' in settlement && settlement.effects != null
}

function isPlainlyDone({ settlement }: SettleRequest): boolean {
  return settlement.as === 'done' && settlement.effects === null
}

const plainlyDone: SettleAnswer = { state: 'done', runAt: null, enqueued: [] }

/**
 * So many jobs, if they hand over to others, go as two calls at the same time: to hand over costs the server twice as much as
 * the rest of a settlement. Jobs of 1,000 keys were drained in 30 µs each instead of 34; jobs without keys, so, in 14 instead of 13.
 */
const halvesFrom = 500

/** Where all are lost, they may have landed the other way: a call that is repeated no longer knows that the jobs had limit keys. */
async function settleDone(
  context: StoreContext,
  requests: readonly SettleRequest[],
  { token, haveLimitKeys }: SettleOptions,
  holds: Holds,
): Promise<SettleAnswer[]> {
  const atOnce = () => settleAtOnce(context, requests, holds, flushOf(token, 'done'))
  if (requests.length < halvesFrom) return atOnce()
  const inHalves = () => settleInHalves(context, requests, token)
  const [way, other] = haveLimitKeys ? [inHalves, atOnce] : [atOnce, inHalves]
  const answers = await way()
  const mayHaveLanded = token !== undefined && answers.every((answer) => answer === 'lost')
  return mayHaveLanded ? other() : answers
}

/** Where one half fails, all are told that they may have landed. */
async function settleInHalves(
  context: StoreContext,
  requests: readonly SettleRequest[],
  token?: string,
): Promise<SettleAnswer[]> {
  const middle = requests.length >> 1
  const half = (part: readonly SettleRequest[], name: Part) =>
    settleAtOnce(context, part, holdColumns(part), flushOf(token, name))
  const halves = await Promise.allSettled([
    half(requests.slice(0, middle), 'first half'),
    half(requests.slice(middle), 'second half'),
  ])
  const hasLanded = halves.some(({ status }) => status === 'fulfilled')
  return halves.flatMap((half) => {
    if (half.status === 'rejected') throw hasLanded ? afterAnotherPart(half.reason) : half.reason
    return half.value
  })
}

async function settleAtOnce(
  context: StoreContext,
  requests: readonly SettleRequest[],
  { columns, order }: Holds,
  flush: string | undefined,
): Promise<SettleAnswer[]> {
  const results = order.map((i) => resultOf((requests[i] as SettleRequest).settlement))
  const annotations = order.map((i) => encodeAnnotations(annotationsOf((requests[i] as SettleRequest).settlement)))
  const call = {
    text: 'select holdfast.settle_done($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)',
    values: [...columns, optionalTexts(results), optionalTexts(annotations), context.db.now],
  }
  const read = (json: string | null | undefined) => (json == null ? nothingTold : JSON.parse(json)) as DoneAnswer
  const told = await context.db.land(call, ([row]) => read(row?.[0]), read, { flush })
  const answers: SettleAnswer[] = requests.map(() => plainlyDone)
  for (const turn of told.lost ?? []) answers[order[turn - 1] as number] = 'lost'
  if (told.limited) context.announce(new Map(told.limited.map((queue) => [queue, requests.length])))
  if (told.ready) context.announce(new Map(Object.entries(told.ready)))
  await context.followUp({ lists: told.lists ?? [], batches: told.batches ?? [] })
  return answers
}

/** What `holdfast.settle_done` tells; see there. */
interface DoneAnswer extends FollowUps {
  readonly lost?: readonly number[] | null
  readonly limited?: readonly string[] | null
  readonly ready?: Readonly<Record<string, number>> | null
}

const nothingTold: DoneAnswer = {}

/**
 * Together, and each alone where the server refuses to commit that (`alone.ts`). Each lands under a number of its own then, and
 * under another one with its statements refused: the first may have been abandoned (`database.ts`). If the way to the server is
 * lost in between and the caller asks again, those that landed alone are lost to the flush as a whole: what was answered to
 * them is looked up.
 */
async function settleInTurn(
  context: StoreContext,
  requests: readonly SettleRequest[],
  token?: string,
): Promise<SoonOrLater[]> {
  const flushes = aloneFlushes(requests, token)
  const answers = new Map<number, TurnAnswer>()
  try {
    const joining = await joiningOf(context, requests)
    const some = joining.map((i) => requests[i] as SettleRequest)
    const part: Part = some.length === requests.length ? 'in turn' : `in turn ${joining.join()}`
    const landed = some.length === 0 ? [] : await landInTurn(context, some, flushOf(token, part), together)
    const kept = await withLandedAlone(
      context,
      landed,
      joining.map((i) => flushes[i]),
    )
    for (const [at, i] of joining.entries()) answers.set(i, kept[at] as TurnAnswer)
  } catch (error) {
    if (!(error instanceof CommitRefused)) throw error
  }
  for (const [i, request] of requests.entries())
    if (!answers.has(i)) answers.set(i, await afterOthers([...answers], settleAlone(context, request, flushes[i])))
  return requests.map((request, i) => {
    const answer = answers.get(i) as TurnAnswer
    return answer === 'later' ? settleLater(context, request, flushes[i]) : answer
  })
}

/** As soon as its lanes are open. Where its promise fails, it may be asked for again with the whole flush, under the same token. */
function settleLater(
  context: StoreContext,
  request: SettleRequest,
  flushes: AloneFlushes | undefined,
): Promise<SettleAnswer> {
  const settled = settleAlone(context, request, flushes, { waits: true })
  settled.catch(() => undefined) // its caller may still wait for the rest of the flush
  return settled as Promise<SettleAnswer>
}

/**
 * Which of them share a transaction: all whose statements set nothing (`setters.ts`). A hold that is given twice is settled by the
 * first request that names it, so where one of its requests goes alone, all go alone, in their order.
 */
async function joiningOf({ db }: StoreContext, requests: readonly SettleRequest[]): Promise<number[]> {
  const joining: number[] = []
  for (const [i, { settlement }] of requests.entries())
    if ((await mostOf(sqlOf(settlement), (text) => db.leaves(text))) === 'nothing') joining.push(i)
  const areAll = joining.length === requests.length
  return !areAll && holdColumns(requests).haveTwins ? [] : joining
}

function sqlOf(settlement: Settlement): readonly SqlEffect[] {
  return ('effects' in settlement && settlement.effects?.sql) || []
}

/** A full disk fails no job and no neighbour: only this request is told that nothing was carried out. */
async function settleAlone(
  context: StoreContext,
  request: SettleRequest,
  flushes: AloneFlushes | undefined,
  { waits = false } = {},
): Promise<TurnAnswer> {
  try {
    const land = waits ? landWaiting : landInTurn
    const answers = await alone((care) => {
      const flush = care.refusal === null ? flushes?.alone : flushes?.refused
      return land(context, [request], flush, care)
    })
    const [answer] = await withLandedAlone(context, answers, [flushes])
    return answer as TurnAnswer
  } catch (error) {
    if (!isHoldfastError(error, 'STORE_UNAVAILABLE') || !isDiskFull(error.cause)) throw error
    return refuse(error.code, error.message, error.facts)
  }
}

/** The numbers under which one request lands alone. */
interface AloneFlushes {
  readonly alone: string
  readonly refused: string
}

/** A hold that is given twice lands once, and the second is lost: so they have two numbers. */
function aloneFlushes(requests: readonly SettleRequest[], token: string | undefined): (AloneFlushes | undefined)[] {
  const times = new Map<string, number>()
  return requests.map(({ id, fence }) => {
    const hold = `${id} ${fence}`
    const time = (times.get(hold) ?? 0) + 1
    times.set(hold, time)
    const [alone, refused] = (['alone', 'refused'] as const).map((how) => flushOf(token, `${how} ${time} ${hold}`))
    return alone === undefined || refused === undefined ? undefined : { alone, refused }
  })
}

async function withLandedAlone(
  { db }: StoreContext,
  answers: readonly TurnAnswer[],
  flushes: readonly (AloneFlushes | undefined)[],
): Promise<TurnAnswer[]> {
  const lost = flushes.flatMap((flush, i) => (flush && answers[i] === 'lost' ? [flush.alone, flush.refused] : []))
  if (lost.length === 0) return [...answers]
  const rows = await db.query(
    `select replace(f.id::text, '-', ''), f.answer from holdfast.flush f where f.id = any ($1::uuid[])`,
    [list(lost)],
  )
  const kept = new Map(rows.map(([flush, answer]) => [flush, JSON.parse(answer as string) as unknown]))
  const landed = (flush: string | undefined) => {
    const answer = kept.get(flush ?? null)
    return Array.isArray(answer) && answer[0] !== 'lost' ? (answer[0] as SettleAnswer) : undefined
  }
  return answers.map((answer, i) => landed(flushes[i]?.alone) ?? landed(flushes[i]?.refused) ?? answer)
}

/** `later`: it needs a busy lane, and was left out. */
type TurnAnswer = SettleAnswer | 'later'

/** Never waits for a lane. Where all are left out, nothing lands: the flush may still be used for them. */
async function landInTurn(
  context: StoreContext,
  requests: readonly SettleRequest[],
  flush: string | undefined,
  care: Care,
): Promise<TurnAnswer[]> {
  try {
    return await context.lanes.withLanesNow((ask) => new Turn(context, requests, { care, ask }).land(flush))
  } catch (error) {
    if (!(error instanceof AllLeftOut)) throw error
    return requests.map(() => 'later')
  }
}

/** The same for one request that waits for its lanes, however long other transactions keep them busy. */
function landWaiting(
  context: StoreContext,
  requests: readonly SettleRequest[],
  flush: string | undefined,
  care: Care,
): Promise<TurnAnswer[]> {
  const ask: AskForLanes = (wanted) => context.lanes.require(wanted)
  return context.lanes.withLanes(() => new Turn(context, requests, { care, ask }).land(flush))
}

class AllLeftOut extends Error {}

interface TurnOptions {
  readonly care: Care
  readonly ask: AskForLanes
}

/** Requests that are settled one after the other, in one transaction. */
class Turn {
  readonly #context: StoreContext
  readonly #requests: readonly SettleRequest[]
  readonly #care: Care
  readonly #ask: AskForLanes
  readonly #holds: Holds
  #ready: ReadonlyMap<string, number> = new Map()
  #followUps: FollowUps = {}

  constructor(context: StoreContext, requests: readonly SettleRequest[], { care, ask }: TurnOptions) {
    this.#context = context
    this.#requests = requests
    this.#care = care
    this.#ask = ask
    this.#holds = holdColumns(requests)
  }

  async land(flush: string | undefined): Promise<TurnAnswer[]> {
    this.#ask(this.#requests.flatMap(({ settlement }) => followUpsOf(settlement))) // so that most find their lanes open
    const answers = await this.#context.db.transact((tx) => this.#settle(tx), flush)
    this.#context.announce(this.#ready)
    await this.#context.followUp(this.#followUps)
    return answers
  }

  async #settle(tx: PgTransaction): Promise<TurnAnswer[]> {
    const { lanes } = this.#context
    const held = await this.#lockJobs(tx)
    const now = await tx.readClock()
    const wanted = new Map([...held].map(([request, job]) => [request, lanesToSettle(job, request, now)]))
    this.#ask([...wanted.values()].flat())
    const isLeftOut = (request: SettleRequest) => !lanes.knows(wanted.get(request) ?? [])
    if (this.#requests.length > 0 && this.#requests.every(isLeftOut)) throw new AllLeftOut()
    const writer = new SettlementWriter(tx, lanes, this.#care)
    const answers: TurnAnswer[] = []
    for (const request of this.#requests) {
      const job = held.get(request)
      if (isLeftOut(request)) answers.push('later')
      else answers.push(job && writer.takes(job) ? await writer.settle(job, request) : 'lost')
    }
    await writer.write()
    this.#ready = writer.becameReady
    this.#followUps = writer.followUps
    return answers
  }

  async #lockJobs(tx: PgTransaction): Promise<Map<SettleRequest, LeasedJob>> {
    const { columns, order } = this.#holds
    const held = new Map<SettleRequest, LeasedJob>()
    for (const row of await tx.query('select * from holdfast.leased($1, $2, $3, $4, $5, $6, $7)', columns)) {
      const job = toLeasedJob(row)
      const request = this.#requests[order[job.turn - 1] as number]
      if (request?.id === job.id) held.set(request, job)
    }
    return held
  }
}

function followUpsOf(settlement: Settlement): readonly NewJob[] {
  return ('effects' in settlement && settlement.effects?.enqueue) || []
}
