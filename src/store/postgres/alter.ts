// Verbs for operators, for single jobs that wait or have ended: wake, reschedule, reprioritise, change, delete.

import { isRefused } from '../../errors.ts'
import { decodeJson } from '../../job/codec.ts'
import { areLabelRules, type LabelRules } from '../../job/labels.ts'
import type { JobState } from '../../job/record.ts'
import { encodeWake } from '../../job/stored.ts'
import { type ChangeableJob, changeJob } from '../changed-job.ts'
import { cannotAlter, notFound, rescheduledTooLate } from '../refusals.ts'
import type { AlterAnswer, AlterRequest, ChangeRequest } from '../store.ts'
import type { Row } from './connection/call.ts'
import type { PgTransaction } from './connection/database.ts'
import { type LockedJob, leaving, lockJobs, recordByHand, selectLiveState, selectNewestEnded } from './control.ts'
import { deleteWaiting, type Followed, sumOfFollowed } from './ends.ts'
import { limitKeyIn, limitKeyRef, type StoreContext } from './enqueue.ts'
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
  let followed: Followed[] = []
  const together = async (tx: PgTransaction) => {
    ready = new Map()
    touched = []
    followed = []
    const ids = requests.map(({ id }) => id)
    await lockJobs(tx, ids)
    await tx.readClock()
    const answered: AlterAnswer[] = []
    for (const request of requests) answered.push(await new Alteration(tx, { ready, touched, followed }).make(request))
    return answered
  }
  const { db, lanes, polls } = context
  const answers = await lanes.withLanes(() => polls.until(() => db.transact(together)))
  context.announce(ready)
  await context.afterCommit({
    keyRefs: touched.flatMap(({ keyRef }) => keyRef ?? []),
    batches: touched.flatMap(({ batch }) => (batch > 0 ? [batch] : [])),
    ...sumOfFollowed(followed),
  })
  return Promise.all(answers.map((answer, i) => admittedNow(context, requests[i] as AlterRequest, answer)))
}

/** A job that was moved to a limit key is held first. By now it may have got a slot. */
async function admittedNow({ db }: StoreContext, { as, id }: AlterRequest, answer: AlterAnswer): Promise<AlterAnswer> {
  if (as === 'delete' || isRefused(answer) || answer.state !== 'held') return answer
  const [row] = await db.query(selectLiveState, [id])
  return row?.[0] === 'held' ? answer : { state: 'ready' }
}

interface Altered {
  /** Queues with jobs that became ready. */
  readonly ready: Map<string, number>
  /** Jobs that were changed. */
  readonly touched: Pick<LockedJob, 'batch' | 'keyRef'>[]
  /** What follows from the ends of deleted jobs. */
  readonly followed: Followed[]
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
        this.#altered.followed.push(await deleteWaiting(this.#tx, [id]))
        await this.#tx.query('select holdfast.delete_ended($1, $2)', [id, this.#tx.now])
        return { state: job.state }
      case 'wake':
        return this.#wake(id, job, request.data)
      case 'reschedule':
        if (job.state === 'running') return cannotAlter(id, job.state, request.as)
        if (job.startBefore !== null && job.startBefore <= request.runAt) {
          return rescheduledTooLate(id, job.startBefore, request.runAt)
        }
        await recordByHand(this.#tx, [id], { as: 'rescheduled', by: request.by, at: this.#tx.now })
        return this.#move(id, job, request.runAt)
      case 'reprioritise':
        if (job.state === 'running') return cannotAlter(id, job.state, request.as)
        return this.#reprioritise(id, job, request)
      case 'change':
        if (job.state === 'running') return cannotAlter(id, job.state, request.as)
        return this.#change(job, request)
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
  async #reprioritise(
    id: string,
    job: LockedJob,
    { priority, by }: { readonly priority: number; readonly by: string | null },
  ): Promise<AlterAnswer> {
    const { state, queue, runAt } = job
    if (priority === job.priority) return { state }
    const [row] = await this.#tx.query(selectNeighbour, [job.lane & ~1, priority])
    if (row?.[0] == null) throw new LanesMissing([{ queue, priority }], row?.[1] ?? null)
    await recordByHand(this.#tx, [id], { as: 'reprioritised', by, at: this.#tx.now })
    return this.#move(id, { ...job, lane: Number(row[0]) }, state === 'scheduled' ? runAt : this.#tx.now)
  }

  /** A ready job keeps its place, unless its limit key changes: claims read the row at its place under the lane's lock. */
  async #change(job: LockedJob, request: ChangeRequest): Promise<AlterAnswer> {
    const { id } = request
    const [row = []] = await this.#tx.query(selectChangeable, [id])
    const { seq, queueNo, stored } = toChangeable(id, job, row)
    const changed = changeJob(stored, request, this.#tx.now)
    if (isRefused(changed)) return changed
    const { payload, headers, maxAttempts, past, labels, limitKey } = changed
    await this.#tx.query(
      'update holdfast.job set payload = $2, headers = $3, max_attempts = $4, past = $5, labels = $6::jsonb where id = $1',
      [id, payload, headers, maxAttempts, past, labels],
    )
    if (request.payload !== undefined) await this.#tx.query(dropOffer, [id, stored.past]) // it is about the payload before
    if (labels !== stored.labels) await this.#tx.query(replaceLabels, [id, seq, stored.labels, labels])
    if (limitKey === stored.limitKey) return { state: job.state }
    const keyRef = limitKey === null ? null : limitKeyRef(queueNo, limitKey)
    if (job.state !== 'scheduled') return this.#move(id, job, this.#tx.now, keyRef)
    const isItem = keyRef !== null && job.batch > 0
    await this.#tx.query('update holdfast.job set limit_key = $2, is_item = $3 where id = $1', [id, keyRef, isItem])
    return { state: job.state }
  }

  /** `lane & ~1`: a job that was released or rescued loses its precedence. */
  async #move(id: string, job: LockedJob, runAt: number, keyRef = job.keyRef): Promise<AlterAnswer> {
    const { queue, lane, batch } = job
    const { now } = this.#tx
    this.#altered.touched.push(job, { batch, keyRef })
    const text = 'select holdfast.move_waiting($1, $2, $3, $5, $4)'
    const [row] = await this.#tx.query(text, [id, runAt, lane & ~1, now, keyRef])
    const { ready } = this.#altered
    if (row?.[0] === 'ready') ready.set(queue, (ready.get(queue) ?? 0) + 1)
    return { state: row?.[0] as JobState }
  }
}

/** The lane of the same queue and batch with another priority, and the batch's id. */
const selectNeighbour = `select t.no, b.id from holdfast.lane l
  left join holdfast.lane t on t.queue = l.queue and t.batch = l.batch and t.priority = $2
  left join holdfast.batch b on b.no = l.batch where l.no = $1`

const selectChangeable = `select j.seq, q.no, j.max_attempts, j.payload, j.labels::text, j.past, q.key_path, q.key_by_code, q.labels::text
  from holdfast.job j join holdfast.lane l on l.no = j.lane & ~1 join holdfast.queue q on q.no = l.queue where j.id = $1`

const dropOffer = 'select holdfast.drop_offers(array[holdfast.offer_key($1::uuid, $2::text)])'

const replaceLabels = `select holdfast.drop_labels(array[$2::bigint], array[$3::jsonb]), case when $4::jsonb is not null
  then holdfast.add_labels($1, $2, $4::jsonb) end`

interface Changeable {
  readonly seq: string
  readonly queueNo: number
  readonly stored: ChangeableJob
}

function toChangeable(id: string, { queue, attempts, headers, keyRef }: LockedJob, row: Row): Changeable {
  const [seq, no, maxAttempts, payload, labels, past, keyPath, keyByCode, rules] = row
  const keyRule = keyByCode === 't' ? 'code' : keyPath == null ? null : { path: keyPath }
  return {
    ...{ seq: seq as string, queueNo: Number(no) },
    stored: {
      ...{ id, queue, keyRule, labelRules: toLabelRules(rules ?? null), attempts, maxAttempts: Number(maxAttempts) },
      ...{
        payload: payload as string,
        headers,
        labels: labels ?? null,
        limitKey: limitKeyIn(keyRef),
        past: past ?? null,
      },
    },
  }
}

function toLabelRules(text: string | null): LabelRules | null {
  const rules = text === null ? null : decodeJson(text)
  return areLabelRules(rules) ? rules : null
}

function isLocked(job: LockedJob | AlterAnswer): job is LockedJob {
  return 'lane' in job
}
