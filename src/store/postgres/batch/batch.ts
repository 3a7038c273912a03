// Batches: opened, filled and read. How they lie in the database, and which locks are taken in which order, is in
// `schema/functions/batch-counts.ts`.

import { isRefused, type Refused, toError } from '../../../errors.ts'
import type { BatchRecord, BatchSettings } from '../../../job/batch.ts'
import type { NewJob } from '../../../job/record.ts'
import { batchNotFound, cannotAddItems, itemsMissing, unknownMark } from '../../refusals.ts'
import type {
  BatchesPage,
  BatchesQuery,
  BatchName,
  Enqueued,
  ItemsAnswer,
  ItemsRequest,
  OpenedBatch,
} from '../../store.ts'
import type { Transaction } from '../connection/database.ts'
import {
  addCarefully,
  addPlain,
  areKeysKnown,
  comesReady,
  countReady,
  created,
  type Desk,
  isPlain,
  type Knocks,
  plainColumns,
  versionsOf,
} from '../enqueue.ts'
import { findNo, readNos } from './batch-row.ts'

export async function openBatch(desk: Desk, settings: BatchSettings): Promise<OpenedBatch | Refused> {
  const { id, name, key, concurrency, failShare, onComplete, retainMs } = settings
  const values = [id, name, key, concurrency, failShare, onComplete && JSON.stringify(onComplete)]
  const text = 'select * from holdfast.open_batch($1, $2, $3, $4, $5, $6, $7, $8)'
  const [opened] = await desk.db.query(text, [...values, Number.isFinite(retainMs) ? retainMs : null, desk.db.now])
  const [batch] = await readNos(desk.db, [Number(opened?.[0])])
  if (!batch) return batchNotFound(id) // deleted at this very moment
  return { batch: batch.record, created: opened?.[1] === 't' }
}

export async function addItems(desk: Desk, request: ItemsRequest): Promise<ItemsAnswer> {
  return (isPlain(request) && (await addAtOnce(desk, request))) || addInTurn(desk, request)
}

const insertItems = 'select holdfast.add_items($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)'

/** In one call; null: nothing was done, and why is found out in turn. */
async function addAtOnce(desk: Desk, { batch: id, at, jobs }: ItemsRequest): Promise<ItemsAnswer | null> {
  const answer = await desk.lanes.withLanes(async () => {
    await desk.lanes.open(jobs, id)
    if (!desk.lanes.knows(jobs, id)) return null // there is no such batch
    if (!areKeysKnown(desk.lanes, jobs)) return null
    const columns = [...plainColumns(desk.lanes, jobs, id), desk.db.now, versionsOf(desk.lanes, jobs, id)]
    const call = { text: insertItems, values: [id, at, ...columns] }
    const read = (json: string | null | undefined) => JSON.parse(json ?? 'null') as AddedAtOnce | null
    return desk.db.land(call, ([row]) => read(row?.[0]), read)
  })
  if (answer === null) return null
  desk.announce(countReady(jobs.filter((job) => comesReady(desk.lanes, job))))
  await desk.attend({ lists: answer.lists ?? [] })
  return { submitted: answer.submitted, enqueued: jobs.map(created) }
}

/** What `holdfast.add_items` tells; see there. */
interface AddedAtOnce {
  readonly submitted: number
  readonly lists: readonly number[] | null
}

async function addInTurn(desk: Desk, { batch: id, at, jobs }: ItemsRequest): Promise<ItemsAnswer> {
  let added: readonly NewJob[] = []
  let knocks: Knocks = {}
  const add = async (tx: Transaction): Promise<ItemsAnswer> => {
    const [row] = await tx.query('select * from holdfast.begin_items($1)', [id])
    if (!row) return batchNotFound(id)
    const [no, submitted] = [Number(row[0]), Number(row[1])]
    const first = at ?? submitted
    if (first > submitted) return itemsMissing(id, first, submitted)
    added = jobs.slice(submitted - first)
    if (added.length === 0) return { submitted, enqueued: [] }
    if (row[2] === 't' || row[3] === 't') return cannotAddItems(id, row[3] === 't' ? 'cancelled' : 'queued')
    await tx.readClock()
    return tx.attempt(async () => {
      const { enqueued, ...touched } = await addTo(tx, desk, id, added)
      knocks = touched
      const created = enqueued.filter(({ status }) => status === 'created').length
      const after = at === null ? submitted : submitted + added.length
      await tx.query('select holdfast.end_items($1, $2, $3)', [no, after, created])
      return { submitted: after, enqueued }
    })
  }
  const answer = await desk.lanes.withLanes(async () => {
    await desk.lanes.open(jobs, id)
    return desk.db.transact(add)
  })
  if (isRefused(answer) || answer.enqueued.length === 0) return answer
  desk.announce(
    countReady(added.filter((job, i) => answer.enqueued[i]?.status === 'created' && comesReady(desk.lanes, job))),
  )
  await desk.attend(knocks)
  return answer
}

interface Added extends Knocks {
  readonly enqueued: readonly Enqueued[]
}

async function addTo(tx: Transaction, { lanes }: Desk, id: string, jobs: readonly NewJob[]): Promise<Added> {
  if (!isPlain({ jobs }) || !areKeysKnown(lanes, jobs)) return addCarefully(tx, lanes, jobs, id)
  const lists = await addPlain(tx, lanes, jobs, id)
  return { enqueued: jobs.map(created), lists }
}

export async function readBatch(desk: Desk, name: BatchName): Promise<BatchRecord | null> {
  const no = await findNo(desk, name)
  const [batch] = no === null ? [] : await readNos(desk.db, [no])
  return batch?.record ?? null
}

const conditions = {
  open: 'not is_closed and paused_at is null and not is_cancelled',
  queued: 'is_closed and started_at is null and paused_at is null and finished_at is null and not is_cancelled',
  running: 'is_closed and started_at is not null and paused_at is null and finished_at is null and not is_cancelled',
  paused: 'paused_at is not null and finished_at is null and not is_cancelled',
  done: 'finished_at is not null and not is_cancelled',
  cancelled: 'is_cancelled',
} as const

const lastNo = 0x7fffffff

/** The number of a batch. */
function isMark(text: string): boolean {
  return /^\d{1,10}$/.test(text) && Number(text) <= lastNo
}

export async function readBatches(desk: Desk, { state, limit, after }: BatchesQuery): Promise<BatchesPage> {
  if (after !== null && !isMark(after)) throw toError(unknownMark())
  const rows = await desk.db.query(
    `select no from holdfast.batch
      where no < $1 and not is_deleted and ${state === null ? 'true' : `(${conditions[state]})`}
      order by no desc limit $2`,
    [after ?? lastNo, limit + 1],
  )
  const nos = rows.map(([no]) => Number(no))
  const found = await readNos(desk.db, nos.slice(0, limit))
  return {
    batches: found.map(({ record }) => record),
    next: nos.length > limit ? String(nos[limit - 1]) : null,
  }
}
