// Claim. The statement and why it hides nothing are in `schema/functions/claim.ts`.
//
// One claim in flight per store and list of queues: claims of one lane wait for each other on the server, where each of them
// would keep a connection. Leases of claims that were settled to the last job are removed some at a time, with a claim.
//
// Where the last claim of a queue brought one job, the next may be for one that is alone, too: a cheaper claim looks for that
// (`schema/functions/claim-one.ts`), and where it does not fit, the one for everything follows. And a claim goes over the
// connection that listens while nobody else asks there: what a job now and then is told by is awake, and needs no turn in
// the pool.

import { newToken } from '../../runtime/id.ts'
import type { ClaimedJob, ClaimRequest } from '../store.ts'
import type { Row, Value } from './connection/call.ts'
import { list, parseList, texts } from './connection/columns.ts'
import type { Database } from './connection/database.ts'
import { withRetry } from './connection/failures.ts'
import { toFences, tokenOf } from './fence.ts'
import type { Lane, LaneName, Lanes } from './lanes.ts'
import { repairRestored } from './schema/repair-restored.ts'
import type { Wakes } from './wake.ts'

interface OpenClaim {
  /** How many of its jobs are not settled yet. */
  left: number
  readonly haveLimitKeys: boolean
}

export class Claimer {
  readonly #db: Database
  readonly #lanes: Lanes
  readonly #wakes: Wakes
  /** Lanes of queues that have no other, by the queue's name, whose last claim brought one job. */
  readonly #alone = new Map<string, LaneName>()
  /** Until when a queue is not thought of so again, where it did not fit. */
  readonly #misfits = new Map<string, number>()
  readonly #inFlight = new Map<string, Promise<unknown>>()
  /** Claims of this process that are not settled yet. */
  readonly #open = new Map<string, OpenClaim>()
  #finished: string[] = []

  constructor(db: Database, lanes: Lanes, wakes: Wakes) {
    this.#db = db
    this.#lanes = lanes
    this.#wakes = wakes
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

  async #claim(request: ClaimRequest): Promise<ClaimedJob[]> {
    const token = newToken()
    const finished = this.#finished.length < finishedMin ? [] : this.#finished.splice(0, finishedMax)
    let isSent = false
    const rows = await withRetry(() =>
      this.#healing(async () => {
        const isAgain = isSent
        isSent = true
        const alone = isAgain ? null : await this.#claimOne(request, token, finished)
        return alone ?? this.#claimAny(request, token, finished, isAgain)
      }),
    )
    const jobs: ClaimedJob[] = []
    for (const row of rows) jobs.push(...(await this.#toClaimed(token, row)))
    if (jobs.length === 0) return jobs
    this.#open.set(token, { left: jobs.length, haveLimitKeys: rows.some((row) => row[12] === 't') })
    this.#learn(jobs, rows)
    return jobs
  }

  /** Null: there is more to it than one job at most. */
  async #claimOne(
    { queues, max, leaseMs, worker }: ClaimRequest,
    token: string,
    finished: readonly string[],
  ): Promise<Row[] | null> {
    const queue = queues?.length === 1 ? (queues[0] as string) : null
    const lane = queue === null ? undefined : this.#alone.get(queue)
    if (queue === null || lane === undefined) return null
    const { no, epoch } = lane
    const values = [token, worker, leaseMs, max, queue, no, epoch, list(finished), this.#db.now]
    const rows = await this.#ask(selectOne, values)
    if (rows.length === 0) this.#finished.push(...finished) // it wrote nothing
    if (rows[0]?.[0] !== null) return rows
    this.#alone.delete(queue)
    if (this.#misfits.size >= aloneMax) this.#misfits.clear()
    this.#misfits.set(queue, performance.now() + misfitMs)
    return null
  }

  #claimAny(
    { queues, max, leaseMs, worker }: ClaimRequest,
    token: string,
    finished: readonly string[],
    isAgain: boolean,
  ): Promise<Row[]> {
    const wanted = queues && texts(queues)
    return this.#ask(select, [token, worker, leaseMs, max, wanted, list(finished), this.#db.now, isAgain])
  }

  #ask(text: string, values: readonly Value[]): Promise<Row[]> {
    return this.#wakes.lend((client) => this.#db.hot(text, values, client)) ?? this.#db.hot(text, values)
  }

  #learn([job, ...others]: readonly ClaimedJob[], [row]: readonly Row[]): void {
    if (!job) return
    const isPlain = others.length === 0 && row?.[14] === 't' && (this.#misfits.get(job.queue) ?? 0) < performance.now()
    if (!isPlain) this.#alone.delete(job.queue)
    else if (this.#alone.size < aloneMax) this.#alone.set(job.queue, laneNameOf(row))
  }

  /** A cursor ahead of the cluster's own numbers was restored from another one; a session may have been set otherwise. */
  async #healing<T>(action: () => Promise<T>): Promise<T> {
    try {
      return await action()
    } catch (error) {
      const { code } = error as { code?: unknown }
      if (code === 'HF001') this.#db.wrapFromNowOn()
      else if (code === 'HF003') await repairRestored(this.#db)
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

  /** Whether some jobs of the same claim have limit keys; the same answer until the claim is forgotten. */
  haveLimitKeys(fence: string): boolean {
    return this.#open.get(tokenOf(fence))?.haveLimitKeys === true
  }

  async #toClaimed(token: string, row: Row): Promise<ClaimedJob[]> {
    const lane = await this.#lanes.named(laneNameOf(row))
    if (!lane) return [] // the server that answered is gone, and the claim with it
    const ids = column(row, 5)
    const texts = textsOf(row, ids.length) ?? (await this.#textsOneByOne(ids))
    return toClaimed(row, { token, lane, ids, texts })
  }

  async #textsOneByOne(ids: readonly string[]): Promise<Texts> {
    const rows = await this.#db.query(selectTexts, [list(ids)])
    const byId = new Map(rows.map(([id, ...texts]) => [id, texts]))
    return {
      headers: ids.map((id) => byId.get(id)?.[0] ?? ''),
      payloads: ids.map((id) => byId.get(id)?.[1] ?? ''),
    }
  }
}

interface Texts {
  readonly headers: readonly string[] | null
  readonly payloads: readonly string[]
}

/** Payloads and headers by job. One that was written behind our back may hold what joins them: then they are read singly. */
function textsOf(row: Row, count: number): Texts | null {
  const headers = row[10] == null ? null : row[10].split(joint)
  const payloads = (row[11] as string).split(joint)
  return payloads.length === count && (headers === null || headers.length === count) ? { headers, payloads } : null
}

interface Known {
  readonly token: string
  readonly lane: Lane
  readonly ids: readonly string[]
  readonly texts: Texts
}

function toClaimed(row: Row, { token, lane, ids, texts: { headers, payloads } }: Known): ClaimedJob[] {
  const no = Number(row[0])
  const [startedAt, expiresAt] = [Number(row[1]), Number(row[2])]
  const [xids, ords] = [column(row, 3), column(row, 4)]
  const [attempts, maxAttempts, createdAts] = [numbers(row, 6), numbers(row, 7), numbers(row, 8)]
  const timeouts = row[9] == null ? null : column(row, 9)
  const fences = toFences({ token, lane: no, xids, ords, ids })
  return ids.map((id, i) => ({
    id,
    queue: lane.name,
    fence: fences[i] as string,
    attempt: attempts(i) + 1,
    maxAttempts: maxAttempts(i),
    cameBack: no % 2 === 1,
    priority: lane.priority,
    timeoutMs: timeouts === null || timeouts[i] === 'NULL' ? null : Number(timeouts[i]),
    createdAt: createdAts(i),
    startedAt,
    expiresAt,
    headers: headers?.[i] || null,
    payload: payloads[i] as string,
    batch: lane.batchId,
  }))
}

function laneNameOf(row: Row): LaneName {
  return { no: Number(row[0]) & ~1, epoch: row[13] as string }
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
const selectOne = 'select * from holdfast.claim_one($1, $2, $3, $4, $5, $6, $7, $8, $9)'
/** Fewer are not worth a claim's time: what is left of them goes when it expires. */
const finishedMin = 8
const finishedMax = 1_000
/** Queues that are remembered. */
const aloneMax = 1_000
/** A claim that does not fit costs a statement. */
const misfitMs = 1_000
