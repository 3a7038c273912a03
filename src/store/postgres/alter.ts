// Verbs for operators. For single jobs that wait or have ended: wake, reschedule, reprioritise, delete. For many jobs: purge.

import type { JobState } from '../../job/record.ts'
import { encodeWake } from '../../job/stored.ts'
import { cannotAlter, notFound, rescheduledTooLate } from '../refusals.ts'
import type { AlterAnswer, AlterRequest, PurgeAnswer, PurgeRequest } from '../store.ts'
import type { PgTransaction } from './connection/database.ts'
import { type LockedJob, leaving, lockJobs, selectNewestEnded } from './control.ts'
import type { StoreContext } from './enqueue.ts'
import { LanesMissing } from './lanes.ts'
import { liveOrEnded } from './read.ts'
import { orRefuseValues } from './refused-values.ts'

export function alter(context: StoreContext, requests: readonly AlterRequest[]): Promise<AlterAnswer[]> {
  return orRefuseValues(
    requests,
    (some) => alterTogether(context, some),
    ({ as, id }) => `the ${as} of job ${id}`,
    ({ id }) => ({ id }),
  )
}

async function alterTogether(context: StoreContext, requests: readonly AlterRequest[]): Promise<AlterAnswer[]> {
  let ready = new Map<string, number>()
  let touched: Altered['touched'] = []
  const answers = await context.lanes.withLanes(() =>
    context.db.transact(async (tx) => {
      ready = new Map()
      touched = []
      const ids = requests.map(({ id }) => id)
      await lockJobs(tx, ids, { waits: true })
      await tx.readClock()
      const answered: AlterAnswer[] = []
      for (const request of requests) answered.push(await new Alteration(tx, { ready, touched }).make(request))
      return answered
    }),
  )
  context.announce(ready)
  await context.afterCommit({
    keyRefs: touched.flatMap(({ keyRef }) => keyRef ?? []),
    batches: touched.flatMap(({ batch }) => (batch > 0 ? [batch] : [])),
  })
  return answers
}

interface Altered {
  /** Queues with jobs that became ready. */
  readonly ready: Map<string, number>
  /** Jobs that were changed. */
  readonly touched: Pick<LockedJob, 'batch' | 'keyRef'>[]
}

class Alteration {
  readonly #tx: PgTransaction
  readonly #altered: Altered

  constructor(tx: PgTransaction, altered: Altered) {
    this.#tx = tx
    this.#altered = altered
  }

  async make(request: AlterRequest): Promise<AlterAnswer> {
    const { id } = request
    const [job = notFound(id)] = await liveOrEnded<LockedJob | AlterAnswer>(
      async () => [...(await lockJobs(this.#tx, [id])).values()],
      () => this.#ended(request),
    )
    if (!isLocked(job)) return job
    switch (request.as) {
      case 'delete':
        if (job.state === 'running') return cannotAlter(id, job.state, request.as)
        this.#altered.touched.push(leaving(job))
        await this.#tx.query('select holdfast.delete_waiting($1, $2)', [`{${id}}`, this.#tx.now])
        await this.#tx.query('select holdfast.delete_ended($1, $2)', [id, this.#tx.now])
        return { state: job.state }
      case 'wake':
        return this.#wake(id, job, request.data)
      case 'reschedule':
        if (job.state === 'running') return cannotAlter(id, job.state, request.as)
        if (job.startBefore !== null && job.startBefore <= request.runAt) {
          return rescheduledTooLate(id, job.startBefore, request.runAt)
        }
        return this.#move(id, job, request.runAt)
      case 'reprioritise':
        if (job.state === 'running') return cannotAlter(id, job.state, request.as)
        return this.#reprioritise(id, job, request.priority)
    }
  }

  async #ended({ as, id }: AlterRequest): Promise<AlterAnswer[]> {
    const [ended] = await this.#tx.query(selectNewestEnded, [id])
    if (!ended) return []
    const state = ended[0] as JobState
    if (as !== 'delete') return [cannotAlter(id, state, as)]
    const [row] = await this.#tx.query('select holdfast.delete_ended($1, $2)', [id, this.#tx.now])
    return row?.[0] === '0' ? [] : [{ state }] // gone: another call has requeued it meanwhile
  }

  async #wake(id: string, job: LockedJob, data: string | null): Promise<AlterAnswer> {
    const { state, headers } = job
    const values = [id, encodeWake(headers, data), state === 'running']
    await this.#tx.query('update holdfast.job set headers = $2, woken = $3 where id = $1', values)
    return state === 'scheduled' ? this.#move(id, job, this.#tx.now) : { state }
  }

  /** A ready job stays ready, also if the clock was set back. */
  async #reprioritise(id: string, job: LockedJob, priority: number): Promise<AlterAnswer> {
    const { state, queue, runAt } = job
    if (priority === job.priority) return { state }
    const [row] = await this.#tx.query(selectNeighbour, [job.lane & ~1, priority])
    if (row?.[0] == null) throw new LanesMissing([{ queue, priority }], row?.[1] ?? null)
    return this.#move(id, { ...job, lane: Number(row[0]) }, state === 'scheduled' ? runAt : this.#tx.now)
  }

  /** `lane & ~1`: a job that was released or rescued loses its precedence. */
  async #move(id: string, job: LockedJob, runAt: number): Promise<AlterAnswer> {
    const { queue, lane } = job
    const { now } = this.#tx
    this.#altered.touched.push(job)
    const text = 'select holdfast.move_waiting(j.id, $2, $3, j.limit_key, $4) from holdfast.job j where j.id = $1'
    const [row] = await this.#tx.query(text, [id, runAt, lane & ~1, now])
    const { ready } = this.#altered
    if (row?.[0] === 'ready') ready.set(queue, (ready.get(queue) ?? 0) + 1)
    return { state: row?.[0] as JobState }
  }
}

/** The lane of the same queue and batch with another priority, and the batch's id. */
const selectNeighbour = `select t.no, b.id from holdfast.lane l
  left join holdfast.lane t on t.queue = l.queue and t.batch = l.batch and t.priority = $2
  left join holdfast.batch b on b.no = l.batch where l.no = $1`

function isLocked(job: LockedJob | AlterAnswer): job is LockedJob {
  return 'lane' in job
}

const chunkMax = 1_000

export async function purge(context: StoreContext, { queue, states }: PurgeRequest): Promise<PurgeAnswer> {
  let deleted = 0
  const keyRefs = new Set<string>()
  const batches = new Set<number>()
  for (const state of states) {
    for (let mark: string | null = null, more = true; more; more = mark !== null) {
      const step: PurgeStep = await context.db.transact((tx) => purgeSome(tx, { queue, state, mark }))
      deleted += step.deleted
      mark = step.mark
      for (const keyRef of step.keyRefs) keyRefs.add(keyRef)
      for (const batch of step.batches) batches.add(batch)
    }
  }
  // At the end: jobs that are admitted earlier would be purged too.
  await context.afterCommit({ keyRefs: [...keyRefs], batches: [...batches] })
  return { deleted }
}

interface PurgeStep {
  readonly deleted: number
  readonly keyRefs: readonly string[]
  readonly batches: readonly number[]
  /** Where the next step goes on; null: this was the last one. */
  readonly mark: string | null
}

interface PurgeStepRequest {
  readonly queue: string
  readonly state: string
  readonly mark: string | null
}

async function purgeSome(tx: PgTransaction, { queue, state, mark }: PurgeStepRequest): Promise<PurgeStep> {
  await tx.readClock()
  const values = [queue, state, mark, chunkMax, tx.now]
  const [row] = await tx.query('select * from holdfast.purge($1, $2, $3::jsonb, $4, $5)', values)
  const keyRefs = JSON.parse(row?.[1] ?? '[]') as string[]
  const batches = JSON.parse(row?.[2] ?? '[]') as number[]
  return { deleted: Number(row?.[0]), keyRefs, batches, mark: row?.[3] ?? null }
}
