// Settle. Jobs that are plainly done go as one set in one statement. Everything else is read with its rows locked, decided by
// the same pure functions that decide it elsewhere, and written back as sets; what comes with effects that may fail goes
// one after the other, each undone to a savepoint where it fails, so that the settlements beside it never notice.

import { createHash } from 'node:crypto'
import { isRefused } from '../../errors.ts'
import { newId } from '../../id.ts'
import { defaults } from '../../job/bounds.ts'
import { deathNotice, effectError } from '../../job/death.ts'
import type { Attempt, Costs, EffectSet, JobState, NewJob, Remarks, SqlEffect } from '../../job/record.ts'
import { decodeCancel, encodeError, encodePast, encodeRemarks } from '../../job/stored.ts'
import { expired, type Settlement, settled, type Verdict } from '../../job/transition.ts'
import { changesTransaction, Refusal, sqlRefused } from '../refusals.ts'
import type { Enqueued, LapsedHold, SettleAnswer, SettleRequest } from '../store.ts'
import type { Row } from './call.ts'
import { optionalTexts } from './columns.ts'
import type { Transaction } from './database.ts'
import { addCarefully, addPlain, type Desk, isPlain, type Knocks } from './enqueue.ts'
import { afterAnotherPart, isDiskFull } from './failures.ts'
import { type Holds, holdColumns } from './fence.ts'
import type { Lanes } from './lanes.ts'
import { changesSession } from './statement.ts'

export interface SettleOptions {
  /** Of the caller, who may ask again. */
  readonly token: string | undefined
  /** Some of these jobs hand over to others. */
  readonly haveGates: boolean
}

export async function settle(
  desk: Desk,
  requests: readonly SettleRequest[],
  { token, haveGates }: SettleOptions,
): Promise<SettleAnswer[]> {
  if (requests.some(({ settlement }) => hasEffects(settlement))) return settleInTurn(desk, requests, token)
  const holds = holdColumns(requests)
  if (holds.haveTwins) return settleInTurn(desk, requests, token)
  if (requests.every(isPlainlyDone)) return settleDone(desk, requests, { token, haveGates }, holds)
  // Without effects, and each hold once: nothing tells in which order jobs were settled.
  const done = requests.filter(isPlainlyDone)
  const rest = requests.filter((request) => !isPlainlyDone(request))
  const answers = new Map<SettleRequest, SettleAnswer>()
  const answered = [
    await settleInTurn(desk, rest, token),
    done.length > 0 ? await settleDone(desk, done, { token, haveGates }, holdColumns(done)) : [],
  ]
  for (const [i, part] of [rest, done].entries()) {
    part.forEach((request, j) => {
      answers.set(request, answered[i]?.[j] as SettleAnswer)
    })
  }
  return requests.map((request) => answers.get(request) as SettleAnswer)
}

type Part = 'done' | 'first half' | 'second half' | 'in turn'

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

function remarksOf(settlement: Settlement): Remarks | null {
  if (settlement.as === 'done') return settlement.remarks ?? null
  const costs = costsOf(settlement)
  return costs && onlyCosts(costs)
}

function onlyCosts(costs: Costs): Remarks {
  return { outcome: null, warning: null, costs }
}

function costsOf(settlement: Settlement): Costs | null {
  return ('costs' in settlement && settlement.costs) || null
}

const plainlyDone: SettleAnswer = { state: 'done', runAt: null, enqueued: [] }

/**
 * So many jobs, if they hand over to others, go as two calls at the same time: to hand over costs the server twice as much as
 * the rest of a settlement. Jobs of 1,000 keys were drained in 30 µs each instead of 34; jobs without keys, so, in 14 instead of 13.
 */
const halvesFrom = 500

/** Where all are lost, they may have landed the other way: whoever asks again does so when it is forgotten that they had gates. */
async function settleDone(
  desk: Desk,
  requests: readonly SettleRequest[],
  { token, haveGates }: SettleOptions,
  holds: Holds,
): Promise<SettleAnswer[]> {
  const atOnce = () => settleAtOnce(desk, requests, holds, flushOf(token, 'done'))
  if (requests.length < halvesFrom) return atOnce()
  const inHalves = () => settleInHalves(desk, requests, token)
  const [way, other] = haveGates ? [inHalves, atOnce] : [atOnce, inHalves]
  const answers = await way()
  const mayHaveLanded = token !== undefined && answers.every((answer) => answer === 'lost')
  return mayHaveLanded ? other() : answers
}

/** Where one half fails, all are told that they may have landed. */
async function settleInHalves(desk: Desk, requests: readonly SettleRequest[], token?: string): Promise<SettleAnswer[]> {
  const middle = requests.length >> 1
  const half = (part: readonly SettleRequest[], name: Part) =>
    settleAtOnce(desk, part, holdColumns(part), flushOf(token, name))
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
  desk: Desk,
  requests: readonly SettleRequest[],
  { columns, order }: Holds,
  flush: string | undefined,
): Promise<SettleAnswer[]> {
  const results = order.map((i) => resultOf((requests[i] as SettleRequest).settlement))
  const remarks = order.map((i) => encodeRemarks(remarksOf((requests[i] as SettleRequest).settlement)))
  const call = {
    text: 'select holdfast.settle_done($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)',
    values: [...columns, optionalTexts(results), optionalTexts(remarks), desk.db.now],
  }
  const read = (json: string | null | undefined) => (json == null ? nothingTold : JSON.parse(json)) as DoneAnswer
  const told = await desk.db.land(call, ([row]) => read(row?.[0]), read, { flush })
  const answers: SettleAnswer[] = requests.map(() => plainlyDone)
  for (const turn of told.lost ?? []) answers[order[turn - 1] as number] = 'lost'
  if (told.limited) desk.announce(new Map(told.limited.map((queue) => [queue, requests.length])))
  if (told.ready) desk.announce(new Map(Object.entries(told.ready)))
  await desk.attend({ lists: told.lists ?? [], batches: told.batches ?? [] })
  return answers
}

/** What `holdfast.settle_done` tells; see there. */
interface DoneAnswer extends Knocks {
  readonly lost?: readonly number[] | null
  readonly limited?: readonly string[] | null
  readonly ready?: Readonly<Record<string, number>> | null
}

const nothingTold: DoneAnswer = {}

function resultOf(settlement: Settlement): string | null {
  return settlement.as === 'done' ? settlement.result : null
}

async function settleInTurn(desk: Desk, requests: readonly SettleRequest[], token?: string): Promise<SettleAnswer[]> {
  let ready = new Map<string, number>()
  let knocks: Knocks = {}
  const { columns, order } = holdColumns(requests)
  const answers = await desk.lanes.withLanes(async () => {
    await desk.lanes.open(requests.flatMap(({ settlement }) => followUps(settlement)))
    return desk.db.transact(
      async (tx) => {
        const rows = await tx.query('select * from holdfast.held($1, $2, $3, $4, $5, $6, $7)', columns)
        const held = new Map(rows.map(toHeld).map((job) => [order[job.turn - 1] as number, job]))
        requireLanes(desk.lanes, [...held.values()])
        await tx.readClock()
        const clerk = new Clerk(tx, desk.lanes)
        const answered: SettleAnswer[] = []
        for (const [i, request] of requests.entries()) {
          const job = held.get(i)
          answered.push(job && job.id === request.id && clerk.takes(job) ? await clerk.settle(job, request) : 'lost')
        }
        await clerk.write()
        ready = clerk.becameReady
        knocks = clerk.knocks
        return answered
      },
      flushOf(token, 'in turn'),
    )
  })
  desk.announce(ready)
  await desk.attend(knocks)
  return answers
}

function followUps(settlement: Settlement): readonly NewJob[] {
  return ('effects' in settlement && settlement.effects?.enqueue) || []
}

/** What may be enqueued when these jobs end: death notices, and follow-ups that came with a request to cancel. */
export function requireLanes(lanes: Lanes, held: readonly HeldJob[]): void {
  lanes.require(
    held.flatMap((job) => [
      ...(job.onDead === null ? [] : [{ queue: job.onDead, priority: defaults.priority }]),
      ...decodeCancel(job.cancel).flatMap((effects) => effects.enqueue),
    ]),
  )
}

/** A job that is held or was, its row locked. */
export interface HeldJob {
  readonly turn: number
  readonly id: string
  readonly lane: number
  readonly queue: string
  readonly priority: number
  readonly attempt: number
  readonly maxAttempts: number
  readonly freed: number
  readonly cancel: string | null
  readonly past: string | null
  readonly worker: string
  readonly startedAt: number
  readonly onDead: string | null
  readonly payload: string | null
  readonly woken: boolean
  readonly batch: number
  readonly gate: string | null
  /** Its queue or its batch has a limit. */
  readonly isLimited: boolean
}

export function toHeld(row: Row): HeldJob {
  const [turn, id, , lane, , name, priority, attempt, maxAttempts, freed, cancel, past, worker, startedAt] = row
  return {
    turn: Number(turn),
    id: id as string,
    lane: Number(lane),
    queue: name as string,
    priority: Number(priority),
    attempt: Number(attempt),
    maxAttempts: Number(maxAttempts),
    freed: Number(freed),
    cancel: cancel ?? null,
    past: past ?? null,
    worker: worker as string,
    startedAt: Number(startedAt),
    onDead: row[14] ?? null,
    payload: row[15] ?? null,
    woken: row[16] === 't',
    batch: Number(row[17]),
    gate: row[18] ?? null,
    isLimited: row[19] === 't',
  }
}

type Landed = Extract<SettleAnswer, { enqueued: unknown }>

interface Landing {
  readonly job: HeldJob
  readonly verdict: Verdict
  readonly result: string | null
  readonly effects: readonly EffectSet[]
  readonly remarks?: Remarks | null
}

/** Settles jobs of one transaction: gathers what cannot fail and writes it as sets. */
export class Clerk {
  readonly becameReady = new Map<string, number>()
  readonly #tx: Transaction
  readonly #lanes: Lanes
  readonly #taken = new Set<string>()
  readonly #gates = new Set<string>()
  readonly #lists: number[] = []
  readonly #batches = new Set<number>()
  #gathered: Landing[] = []

  constructor(tx: Transaction, lanes: Lanes) {
    this.#tx = tx
    this.#lanes = lanes
  }

  /** What is to be attended to once this has committed. */
  get knocks(): Knocks {
    return { gates: [...this.#gates], lists: this.#lists, batches: [...this.#batches] }
  }

  /** A job of this gate and batch has come, gone or moved. */
  touch({ gate, batch }: Pick<HeldJob, 'gate' | 'batch'>): void {
    if (gate !== null) this.#gates.add(gate)
    if (batch > 0) this.#batches.add(batch)
  }

  /** False for a job that was settled by an earlier request of this transaction. */
  takes({ id }: HeldJob): boolean {
    if (this.#taken.has(id)) return false
    this.#taken.add(id)
    return true
  }

  /** Answers at once, or once everything gathered was written. */
  async settle(job: HeldJob, { settlement, retryDelayMs }: SettleRequest): Promise<SettleAnswer> {
    const verdict = settled(core(job), settlement, this.#tx.now)
    const result = resultOf(settlement)
    const remarks = remarksOf(settlement)
    const effects = [...stagedEffects(settlement, verdict), ...requestedEffects(job, verdict)]
    if (effects.every(cannotFail)) return await this.#gather({ job, verdict, result, effects, remarks })
    await this.write()
    const answer = await this.#tx.attempt(() => this.#land({ job, verdict, result, effects, remarks }))
    if (!isRefused(answer)) return answer
    const failure = { as: 'retry', error: effectError(answer), delayMs: retryDelayMs, ending: 'failed' } as const
    const costs = remarks?.costs ?? null
    return { failed: answer, state: await this.#landAnyway(job, settled(core(job), failure, this.#tx.now), costs) }
  }

  /** A lease ran out: the sweep settles in the place of a worker that is gone. */
  async rescue(job: HeldJob): Promise<LapsedHold> {
    const verdict = expired(core(job), job.worker)
    const effects = requestedEffects(job, verdict)
    if (effects.every(cannotFail)) await this.#gather({ job, verdict, result: null, effects })
    else await this.#landAnyway(job, verdict, null)
    const { id, queue, attempt, maxAttempts, worker, startedAt } = job
    return { id, queue, attempt, maxAttempts, worker, startedAt, state: verdict.to }
  }

  async write(): Promise<void> {
    const landings = this.#gathered
    this.#gathered = []
    if (landings.length > 0) await this.#write(landings)
  }

  /** What waits again is written before what others enqueue, so one that comes behind such a one starts a new set. */
  async #gather(landing: Landing): Promise<Landed> {
    if (waits(landing.verdict) && this.#gathered.some(enqueues)) await this.write()
    this.#gathered.push(landing)
    const enqueued = landing.effects.flatMap((set) => set.enqueue).map(({ id }) => ({ id, status: 'created' }) as const)
    return answerOf(landing.verdict, enqueued)
  }

  /** For a verdict that must land: where the effects of a cancel request fail, it lands without them and says why. */
  async #landAnyway(job: HeldJob, verdict: Verdict, costs: Costs | null): Promise<JobState> {
    await this.write()
    const effects = requestedEffects(job, verdict)
    const remarks = costs && onlyCosts(costs)
    const answer = await this.#tx.attempt(() => this.#land({ job, verdict, result: null, effects, remarks }))
    if (!isRefused(answer)) return answer.state
    const without = { ...verdict, error: effectError(answer) }
    return (await this.#land({ job, verdict: without, result: null, effects: [], remarks })).state
  }

  async #land(landing: Landing): Promise<Landed> {
    await this.#write([{ ...landing, effects: [] }])
    const enqueued: Enqueued[] = []
    for (const effects of landing.effects) enqueued.push(...(await this.apply(effects)))
    return answerOf(landing.verdict, enqueued)
  }

  /** Throws a Refusal when one cannot be applied. */
  async apply(effects: EffectSet): Promise<readonly Enqueued[]> {
    await this.#writeKv([effects])
    for (const sql of effects.sql) await this.#run(sql)
    const { enqueued, gates } = await addCarefully(this.#tx, this.#lanes, effects.enqueue)
    this.#wakeFor(effects.enqueue)
    for (const gate of gates) this.#gates.add(gate)
    return enqueued
  }

  /** First the jobs themselves, then what follows from their end, each as one set. */
  async #write(landings: readonly Landing[]): Promise<void> {
    const { now } = this.#tx
    for (const { job } of landings) this.touch(job)
    this.#wakeForRoom(landings)
    const waiting = landings.filter(({ verdict }) => waits(verdict))
    const ended = landings.filter(({ verdict }) => !waits(verdict))
    if (waiting.length > 0) {
      const json = JSON.stringify(waiting.map((landing) => this.#waitingJson(landing)))
      await this.#tx.query('select holdfast.wait_again($1::jsonb, $2)', [json, now])
    }
    if (ended.length > 0) {
      await this.#tx.query('select holdfast.finish($1::jsonb, $2)', [JSON.stringify(ended.map(endedJson)), now])
    }
    await this.#writeKv(landings.flatMap(({ effects }) => effects))
    const follow = landings.flatMap((landing) => [
      ...this.#noticeOf(landing),
      ...landing.effects.flatMap((set) => set.enqueue),
    ])
    this.#lists.push(...(await addPlain(this.#tx, this.#lanes, follow)))
    this.#wakeFor(follow)
  }

  /** Where a queue or a batch has a limit, others may start in place of these. */
  #wakeForRoom(landings: readonly Landing[]): void {
    for (const { job } of landings) if (job.isLimited) this.wake(job.queue, 1)
  }

  #waitingJson({ job, verdict, remarks }: Landing): Record<string, unknown> {
    if (!waits(verdict)) throw new Error('Only a job that waits is put back.')
    const isReady = verdict.to === 'ready'
    if (isReady) this.wake(job.queue, 1)
    const lane = job.lane & ~1
    return {
      id: job.id,
      lane: isReady && verdict.front ? lane + 1 : lane,
      ready: isReady,
      runAt: isReady ? this.#tx.now : verdict.runAt,
      attempts: verdict.attempts,
      freed: verdict.freed,
      past: encodePast(job.past, attemptOf(job, verdict, this.#tx.now, remarks?.costs)),
      ...(remarks?.costs && { batch: job.batch, costs: remarks.costs }),
    }
  }

  #noticeOf({ job, verdict }: Landing): NewJob[] {
    if (verdict.to !== 'dead' || job.onDead === null) return []
    const { id, queue, onDead: told, payload } = job
    const { attempts, error } = verdict
    const death = { id, queue, attempts, error, diedAt: this.#tx.now, told, payload: payload ?? 'null' }
    return [deathNotice(death, newId())]
  }

  async #writeKv(sets: readonly EffectSet[]): Promise<void> {
    const writes = sets.flatMap((set) => [
      ...set.put.map((put) => ({ as: 'put', ...put })),
      ...set.delete.map((key) => ({ as: 'delete', key })),
    ])
    if (writes.length === 0) return
    await this.#tx.query('select holdfast.kv_write($1::jsonb, null, $2)', [JSON.stringify(writes), this.#tx.now])
  }

  /**
   * Whatever it fails with is the job's failure; where the connection itself has gone, undoing it says so. A disk that is
   * full is nobody's failure: it all waits.
   */
  async #run({ text, values }: SqlEffect): Promise<void> {
    if (changesSession(text)) throw new Refusal(sqlRefused(text, changesTransaction))
    try {
      await this.#tx.foreign(text, values)
    } catch (error) {
      if (isDiskFull(error)) throw error
      throw new Refusal(sqlRefused(text, (error as Error).message))
    }
  }

  wake(queue: string, count: number): void {
    this.becameReady.set(queue, (this.becameReady.get(queue) ?? 0) + count)
  }

  #wakeFor(jobs: readonly NewJob[]): void {
    for (const { queue, delayMs } of jobs) if (delayMs === 0) this.wake(queue, 1)
  }
}

/** Puts, deletes and follow-ups that nothing can refuse and that meet no key. */
function cannotFail({ sql, enqueue }: EffectSet): boolean {
  return sql.length === 0 && isPlain({ jobs: enqueue })
}

function answerOf(verdict: Verdict, enqueued: readonly Enqueued[]): Landed {
  return { state: verdict.to, runAt: verdict.to === 'scheduled' ? verdict.runAt : null, enqueued }
}

/** Other jobs follow from its end. */
function enqueues({ job, verdict, effects }: Landing): boolean {
  return (verdict.to === 'dead' && job.onDead !== null) || effects.some((set) => set.enqueue.length > 0)
}

function waits(verdict: Verdict): verdict is Extract<Verdict, { freed: number }> {
  return verdict.to === 'ready' || verdict.to === 'scheduled'
}

function endedJson({ job, verdict, result, remarks }: Landing): Record<string, unknown> {
  return {
    id: job.id,
    was: 'running',
    state: verdict.to,
    attempts: verdict.attempts,
    attempt: job.attempt,
    worker: job.worker,
    startedAt: job.startedAt,
    ending: verdict.ending,
    result,
    error: encodeError(verdict.error),
    ...(remarks && { batch: job.batch, remarks: encodeRemarks(remarks) }),
  }
}

function core(job: HeldJob) {
  const { attempt: attempts, maxAttempts, freed, woken } = job
  return { attempts, maxAttempts, freed, cancelRequested: job.cancel !== null, woken }
}

function attemptOf(job: HeldJob, { ending, error }: Verdict, now: number, costs?: Costs | null): Attempt {
  const { attempt, worker, startedAt } = job
  return { attempt, worker, startedAt, endedAt: now, ending, ...(error && { error }), ...(costs && { costs }) }
}

/** What comes with a snooze lands only if the job is put off indeed. */
function stagedEffects(settlement: Settlement, verdict: Verdict): EffectSet[] {
  const isOff = settlement.as === 'snooze' && !waits(verdict)
  return !isOff && 'effects' in settlement && settlement.effects ? [settlement.effects] : []
}

/** What was handed over with a cancel request lands when the job becomes cancelled. */
function requestedEffects(job: HeldJob, verdict: Verdict): EffectSet[] {
  return verdict.to === 'cancelled' ? decodeCancel(job.cancel) : []
}
