// Batches: opened, filled and read. How they are stored, and which locks are taken in which order, is in
// `schema/functions/batch-counts.ts`.

import { isRefused, type Refused, toError } from '../../../errors.ts'
import type { BatchRecord, BatchSettings } from '../../../job/batch.ts'
import type { NewJob } from '../../../job/record.ts'
import { Page } from '../../page.ts'
import { atIndex, batchNotFound, cannotAddItems, itemsMissing, unknownPage } from '../../refusals.ts'
import type {
  BatchesPage,
  BatchesQuery,
  BatchName,
  Enqueued,
  ItemsAnswer,
  ItemsRequest,
  OpenedBatch,
} from '../../store.ts'
import { isStored } from '../../stored-jobs.ts'
import type { PgTransaction } from '../connection/database.ts'
import {
  type AfterCommit,
  addChecked,
  addPlain,
  areFilledIn,
  comesReady,
  countReady,
  created,
  definitionEpochsOf,
  isPlain,
  labelColumns,
  plainColumns,
  type StoreContext,
} from '../enqueue.ts'
import { whenLocksAreFree } from '../lock-polls.ts'
import { findNo, readNos, readWithin } from './batch-row.ts'

export async function openBatch(context: StoreContext, settings: BatchSettings): Promise<OpenedBatch | Refused> {
  const { id, name, key, concurrency, failShare, onComplete, retainMs } = settings
  const values = [id, name, key, concurrency, failShare, onComplete && JSON.stringify(onComplete)]
  const text = 'select * from holdfast.open_batch($1, $2, $3, $4, $5, $6, $7, $8)'
  const [opened] = await context.db.query(text, [
    ...values,
    Number.isFinite(retainMs) ? retainMs : null,
    context.db.now,
  ])
  const [batch] = await readNos(context.db, [Number(opened?.[0])])
  if (!batch) return batchNotFound(id) // deleted at this very moment
  return { batch: batch.record, created: opened?.[1] === 't' }
}

export async function addItems(context: StoreContext, request: ItemsRequest): Promise<ItemsAnswer> {
  return (isPlain(request) && (await addAtOnce(context, request))) || addInTurn(context, request)
}

const insertItems =
  'select holdfast.add_items($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)'

/** Adds the items in one call. Null: nothing was done, and `addInTurn` finds out why. */
async function addAtOnce(context: StoreContext, { batch: id, at, jobs }: ItemsRequest): Promise<ItemsAnswer | null> {
  const answer = await context.lanes.withLanes(async () => {
    await context.lanes.open(jobs, id)
    if (!context.lanes.knows(jobs, id)) return null // there is no such batch
    if (!areFilledIn(context.lanes, jobs)) return null
    const columns = [
      ...plainColumns(context.lanes, jobs, id),
      context.db.now,
      definitionEpochsOf(context.lanes, jobs, id),
      ...labelColumns(context.lanes, jobs),
    ]
    const call = { text: insertItems, values: [id, at, ...columns] }
    const read = (json: string | null | undefined) => JSON.parse(json ?? 'null') as AddedAtOnce | null
    return context.db.commitOnce(call, ([row]) => read(row?.[0]), read)
  })
  if (answer === null) return null
  context.announce(countReady(jobs.filter((job) => comesReady(context.lanes, job))))
  await context.afterCommit({ lists: answer.lists ?? [] })
  return { submitted: answer.submitted, enqueued: jobs.map(created) }
}

/** What `holdfast.add_items` answers; see there. */
interface AddedAtOnce {
  readonly submitted: number
  readonly lists: readonly number[] | null
}

async function addInTurn(context: StoreContext, { batch: id, at, jobs }: ItemsRequest): Promise<ItemsAnswer> {
  let added: readonly NewJob[] = []
  let afterCommit: AfterCommit = {}
  const add = async (tx: PgTransaction, lockMaxMs: number | null): Promise<ItemsAnswer> => {
    const [row] = await tx.query('select * from holdfast.begin_items($1)', [id])
    if (!row) return batchNotFound(id)
    const [no, submitted] = [Number(row[0]), Number(row[1])]
    const first = at ?? submitted
    if (first > submitted) return itemsMissing(id, first, submitted)
    added = jobs.slice(submitted - first)
    if (added.length === 0) return { submitted, enqueued: [] }
    if (row[2] === 't' || row[3] === 't') return cannotAddItems(id, row[3] === 't' ? 'cancelled' : 'queued')
    await tx.readClock()
    const addAll = async () => {
      const { enqueued, ...touched } = await addTo(tx, context, id, added)
      afterCommit = touched
      const created = enqueued.filter(({ status }) => status === 'created').length
      const after = at === null ? submitted : submitted + added.length
      await tx.query('select holdfast.end_items($1, $2, $3)', [no, after, created])
      return { submitted: after, enqueued }
    }
    const answer = await tx.attempt(addAll, { lockMaxMs })
    const index = isRefused(answer) ? answer.facts['index'] : undefined
    return isRefused(answer) && typeof index === 'number' ? atIndex(answer, submitted - first + index) : answer
  }
  const answer = await context.lanes.withLanes(async () => {
    await context.lanes.open(jobs, id)
    return whenLocksAreFree(context, { runsStatements: false }, (lockMaxMs) =>
      context.db.transact((tx) => add(tx, lockMaxMs)),
    )
  })
  if (isRefused(answer) || answer.enqueued.length === 0) return answer
  context.announce(
    countReady(added.filter((job, i) => isStored(answer.enqueued[i] as Enqueued) && comesReady(context.lanes, job))),
  )
  await context.afterCommit(afterCommit)
  return answer
}

interface Added extends AfterCommit {
  readonly enqueued: readonly Enqueued[]
}

async function addTo(tx: PgTransaction, { lanes }: StoreContext, id: string, jobs: readonly NewJob[]): Promise<Added> {
  if (!isPlain({ jobs }) || !areFilledIn(lanes, jobs)) return addChecked(tx, lanes, jobs, id)
  const lists = await addPlain(tx, lanes, jobs, id)
  return { enqueued: jobs.map(created), lists }
}

export async function readBatch(context: StoreContext, name: BatchName): Promise<BatchRecord | null> {
  const no = await findNo(context, name)
  const [batch] = no === null ? [] : await readNos(context.db, [no])
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

/** A mark is the number of a batch. */
function isMark(text: string): boolean {
  return /^\d{1,10}$/.test(text) && Number(text) <= lastNo
}

export async function readBatches(context: StoreContext, { state, limit, after }: BatchesQuery): Promise<BatchesPage> {
  if (after !== null && !isMark(after)) throw toError(unknownPage())
  const rows = await context.db.query(
    `select no from holdfast.batch
      where no < $1 and not is_deleted and ${state === null ? 'true' : `(${conditions[state]})`}
      order by no desc limit $2`,
    [after ?? lastNo, limit + 1],
  )
  const nos = rows.map(([no]) => Number(no))
  const page = new Page<BatchRecord>(limit)
  let last: number | undefined
  for (const { no, record, bytes } of await readWithin(context.db, nos, page.bytesLeft)) {
    if (!page.add(record, bytes)) return { batches: page.entries, next: String(last) }
    last = no
  }
  const isShort = nos.length > limit // a batch was deleted meanwhile
  return { batches: page.entries, next: isShort ? String(nos.at(-1)) : null }
}
