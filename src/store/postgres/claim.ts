// Claim. The statement, and the proof that no job is missed, are in `schema/functions/claim.ts`.
//
// IN FLIGHT. One claim at a time for each store and list of queues. Claims of one lane wait for each other on the server, and
// each of them would hold a connection meanwhile.
//
// FINISHED CLAIMS. When all jobs of a claim are settled, its leases are removed by a later claim, many at a time.
//
// SINGLE JOBS. If the last claim of a queue brought one job, the next one probably brings one job too. So a cheaper statement is
// tried first (`schema/functions/claim-one.ts`). If it does not fit, the full claim follows.
//
// CONNECTION. While the connection that listens is free, a claim goes over it. Its session has just received the notification,
// so it is awake, and the claim does not wait for a connection of the pool.

import { newToken } from '../../runtime/id.ts'
import type { ClaimedJob, ClaimRequest } from '../store.ts'
import type { Row, Value } from './connection/call.ts'
import { list, parseList, texts } from './connection/columns.ts'
import type { Database } from './connection/database.ts'
import { withRetry } from './connection/failures.ts'
import { toFences, tokenOf } from './fence.ts'
import { readJournals } from './journal.ts'
import type { Lane, LaneName, Lanes } from './lanes.ts'
import { repairRestored } from './schema/check-restored.ts'
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
  /** By the name of a queue: its only lane, if the last claim brought one job. */
  readonly #singleJobLanes = new Map<string, LaneName>()
  /** Queues for which the single-job claim did not fit, and until when it is not tried there. */
  readonly #notSingleUntil = new Map<string, number>()
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
      this.#withRepair(async () => {
        const isAgain = isSent
        isSent = true
        const single = isAgain ? null : await this.#claimOne(request, token, finished)
        return single ?? this.#claimAny(request, token, finished, isAgain)
      }),
    )
    const jobs: ClaimedJob[] = []
    for (const row of rows) jobs.push(...(await this.#toClaimed(token, row)))
    if (jobs.length === 0) return jobs
    this.#open.set(token, { left: jobs.length, haveLimitKeys: rows.some((row) => row[12] === 't') })
    this.#learn(jobs, rows)
    const haveJournals = request.journals === true && rows.some((row) => row[15] === 't')
    return haveJournals ? this.#withJournals(jobs) : jobs
  }

  /** Null: the single-job claim does not fit, and has done nothing. */
  async #claimOne(
    { queues, max, leaseMs, worker }: ClaimRequest,
    token: string,
    finished: readonly string[],
  ): Promise<Row[] | null> {
    const queue = queues?.length === 1 ? (queues[0] as string) : null
    const lane = queue === null ? undefined : this.#singleJobLanes.get(queue)
    if (queue === null || lane === undefined) return null
    const { no, epoch } = lane
    const values = [token, worker, leaseMs, max, queue, no, epoch, list(finished), this.#db.now]
    const rows = await this.#ask(selectOne, values)
    if (rows.length === 0) this.#finished.push(...finished) // it wrote nothing, so it removed no leases
    if (rows[0]?.[0] !== null) return rows
    this.#singleJobLanes.delete(queue)
    if (this.#notSingleUntil.size >= singleJobLanesMax) this.#notSingleUntil.clear()
    this.#notSingleUntil.set(queue, performance.now() + notSingleMs)
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

  /** One more statement, only if some of the jobs have a journal. */
  async #withJournals(jobs: readonly ClaimedJob[]): Promise<ClaimedJob[]> {
    const journals = await readJournals(
      this.#db,
      jobs.map(({ id }) => id),
    )
    return jobs.map((job, i) => {
      const journal = journals.get(i)
      return journal ? { ...job, journal } : job
    })
  }

  #learn([job, ...others]: readonly ClaimedJob[], [row]: readonly Row[]): void {
    if (!job) return
    const isPlain =
      others.length === 0 && row?.[16] === 't' && (this.#notSingleUntil.get(job.queue) ?? 0) < performance.now()
    if (!isPlain) this.#singleJobLanes.delete(job.queue)
    else if (this.#singleJobLanes.size < singleJobLanesMax) this.#singleJobLanes.set(job.queue, laneNameOf(row))
  }

  /** HF001: the session is not read committed. HF003: a cursor is ahead of this cluster, so it was restored from another one. */
  async #withRepair<T>(action: () => Promise<T>): Promise<T> {
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
   * These leases were ended by settlements. A lease ends in this way at most once. So when as many leases of a claim have ended
   * as it had, the claim is finished. A claim with a lost lease is left to the sweep.
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
    if (!lane) return [] // a failover lost the claim
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

/** Payloads and headers by job. Null: a row that Holdfast did not write contains the separator, so they must be read singly. */
function textsOf(row: Row, count: number): Texts | null {
  const headers = row[10] == null ? null : row[10].split(separator)
  const payloads = (row[11] as string).split(separator)
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
  const labels = row[14] == null ? null : row[14].split(separator)
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
    labels: labels?.[i] || null,
    batch: lane.batchId,
  }))
}

function laneNameOf(row: Row): LaneName {
  return { no: Number(row[0]) & ~1, epoch: row[13] as string }
}

function column(row: Row, at: number): string[] {
  return parseList(row[at] as string)
}

/** A column of numbers. A column with one number has the same one for all jobs. */
function numbers(row: Row, at: number): (i: number) => number {
  const values = column(row, at)
  const [first] = values.map(Number)
  return values.length === 1 ? () => first as number : (i) => Number(values[i])
}

const separator = '\x1e'
const selectTexts = 'select id, headers, payload from holdfast.job where id = any ($1::uuid[])'
const select = 'select * from holdfast.claim($1, $2, $3, $4, $5, $6, $7, $8)'
const selectOne = 'select * from holdfast.claim_one($1, $2, $3, $4, $5, $6, $7, $8, $9)'
/** A claim removes leases of finished claims only if there are so many. The others are removed when they expire. */
const finishedMin = 8
const finishedMax = 1_000
/** How many queues are remembered. */
const singleJobLanesMax = 1_000
/** A single-job claim that does not fit costs one statement, so it is not tried again for this time. */
const notSingleMs = 1_000
