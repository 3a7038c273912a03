// Claim. The statement and why it hides nothing are in `migrations/0002-claim.ts`.
//
// One claim in flight per store and list of queues: claims of one lane wait for each other on the server, where each of them
// would keep a connection. Leases of claims that were settled to the last job are removed some at a time, with a claim.

import { randomBytes } from 'node:crypto'
import type { ClaimedJob, ClaimRequest } from '../store.ts'
import type { BatchNames } from './batch-names.ts'
import type { Row } from './call.ts'
import { list, parseList, texts } from './columns.ts'
import type { Database } from './database.ts'
import { patiently } from './failures.ts'
import { toFences, tokenOf } from './fence.ts'
import { heal } from './heal.ts'
import type { Lanes } from './lanes.ts'

interface OpenClaim {
  /** How many of its jobs are not settled yet. */
  left: number
  readonly haveGates: boolean
}

export class Claims {
  readonly #db: Database
  readonly #lanes: Lanes
  readonly #batches: BatchNames
  readonly #inFlight = new Map<string, Promise<unknown>>()
  /** Claims made here that are not settled yet. */
  readonly #open = new Map<string, OpenClaim>()
  #finished: string[] = []

  constructor(db: Database, lanes: Lanes, batches: BatchNames) {
    this.#db = db
    this.#lanes = lanes
    this.#batches = batches
  }

  claim(request: ClaimRequest): Promise<ClaimedJob[]> {
    const key = request.queues?.toSorted().join(' ') ?? '*'
    const claimed = (this.#inFlight.get(key) ?? Promise.resolve()).then(() => this.#claim(request))
    const ended: Promise<void> = claimed.then(
      () => this.#leave(key, ended),
      () => this.#leave(key, ended),
    )
    this.#inFlight.set(key, ended)
    return claimed
  }

  #leave(key: string, ended: Promise<unknown>): void {
    if (this.#inFlight.get(key) === ended) this.#inFlight.delete(key)
  }

  async #claim({ queues, max, leaseMs, worker }: ClaimRequest): Promise<ClaimedJob[]> {
    const token = randomBytes(16).toString('hex')
    const finished = this.#finished.length < finishedMin ? [] : this.#finished.splice(0, finishedMax)
    const values = [token, worker, leaseMs, max, queues && texts(queues), list(finished), this.#db.now]
    let isAgain = false
    const rows = await patiently(() =>
      this.#healing(() => {
        const sent = this.#db.hot(select, [...values, isAgain])
        isAgain = true
        return sent
      }),
    )
    const jobs: ClaimedJob[] = []
    for (const row of rows) jobs.push(...(await this.#toClaimed(token, row)))
    if (jobs.length > 0) this.#open.set(token, { left: jobs.length, haveGates: rows.some((row) => row[12] === 't') })
    return jobs
  }

  /** A cursor ahead of the cluster's own numbers was restored from another one; a session may have been set otherwise. */
  async #healing<T>(action: () => Promise<T>): Promise<T> {
    try {
      return await action()
    } catch (error) {
      const { code } = error as { code?: unknown }
      if (code === 'HF001') this.#db.wrapFromNowOn()
      else if (code === 'HF003') await heal(this.#db)
      else throw error
      return action()
    }
  }

  /**
   * These holds have ended by a settlement that landed. A hold ends so at most once, so a claim all of whose holds have
   * ended holds nothing; one of which some were lost is left to the sweep.
   */
  forget(fences: readonly string[]): void {
    for (let at = 0; at < fences.length; ) {
      const token = tokenOf(fences[at] as string)
      const from = at
      while (fences[at]?.startsWith(token)) at++
      const open = this.#open.get(token)
      if (!open) continue
      open.left -= at - from
      if (open.left > 0) continue
      this.#open.delete(token)
      this.#finished.push(token)
    }
  }

  /** Whether some who were claimed with this one, here, have to pass a gate: the same until it is forgotten. */
  haveGates(fence: string): boolean {
    return this.#open.get(tokenOf(fence))?.haveGates === true
  }

  async #toClaimed(token: string, row: Row): Promise<ClaimedJob[]> {
    const lane = Number(row[0])
    const { name: queue, priority, batch } = this.#lanes.known(lane) ?? (await this.#lanes.byNo(lane))
    const batchId = batch > 0 ? await this.#batches.idOf(batch) : null
    const [startedAt, expiresAt] = [Number(row[1]), Number(row[2])]
    const [xids, ords, ids] = [column(row, 3), column(row, 4), column(row, 5)]
    const [attempts, maxAttempts, createdAts] = [numbers(row, 6), numbers(row, 7), numbers(row, 8)]
    const timeouts = row[9] == null ? null : column(row, 9)
    const fences = toFences({ token, lane, xids, ords, ids })
    const { headers, payloads } = await this.#textsOf(row, ids.length)
    return ids.map((id, i) => ({
      id,
      queue,
      fence: fences[i] as string,
      attempt: attempts(i) + 1,
      maxAttempts: maxAttempts(i),
      cameBack: lane % 2 === 1,
      priority,
      timeoutMs: timeouts === null || timeouts[i] === 'NULL' ? null : Number(timeouts[i]),
      createdAt: createdAts(i),
      startedAt,
      expiresAt,
      headers: headers?.[i] || null,
      payload: payloads[i] as string,
      batch: batchId,
    }))
  }

  /** Payloads and headers by job. One that was written behind our back may hold what joins them: then they are read singly. */
  async #textsOf(row: Row, count: number): Promise<{ headers: string[] | null; payloads: string[] }> {
    const headers = row[10] == null ? null : row[10].split(joint)
    const payloads = (row[11] as string).split(joint)
    if (payloads.length === count && (headers === null || headers.length === count)) return { headers, payloads }
    const rows = await this.#db.query(selectTexts, [row[5] as string])
    const byId = new Map(rows.map(([id, ...texts]) => [id, texts]))
    const ids = parseList(row[5] as string)
    return {
      headers: ids.map((id) => byId.get(id)?.[0] ?? ''),
      payloads: ids.map((id) => byId.get(id)?.[1] ?? ''),
    }
  }
}

function column(row: Row, at: number): string[] {
  return parseList(row[at] as string)
}

/** A column of numbers, where one may stand for all. */
function numbers(row: Row, at: number): (i: number) => number {
  const values = column(row, at)
  const [first] = values.map(Number)
  return values.length === 1 ? () => first as number : (i) => Number(values[i])
}

const joint = '\x1e'
const selectTexts = 'select id, headers, payload from holdfast.job where id = any ($1::uuid[])'
const select = 'select * from holdfast.claim($1, $2, $3, $4, $5, $6, $7, $8)'
/** Fewer are not worth a claim's time: what is left of them goes when it expires. */
const finishedMin = 8
const finishedMax = 1_000
