// Reads of batches. Both kinds of page read a bounded number of rows. So a page may hold fewer entries than requested, together
// with a mark to continue from.

import { type BatchRecord, batchState } from '../../../job/batch.ts'
import { byteLength } from '../../../job/codec.ts'
import type { JobState } from '../../../job/record.ts'
import { decodeAnnotations } from '../../../job/stored.ts'
import { Page } from '../../page.ts'
import { decodeCursor, encodeCursor } from '../../page-cursor.ts'
import type { BatchesPage, BatchesQuery, BatchName, ItemsQuery, JobsPage } from '../../store.ts'
import { addRecord, type Listed, toJobsPage } from '../read.ts'
import type { SqliteTransaction } from '../transaction.ts'
import { type BatchRow, flagsOf, toBatch } from './batches.ts'

const looksMax = 5_000

export function readBatch(tx: SqliteTransaction, name: BatchName): BatchRecord | null {
  const row = 'id' in name ? tx.batches.find(name.id) : tx.batches.findByKey(name.key)
  return row ? toBatch(row) : null
}

export function readBatches(tx: SqliteTransaction, { state, limit, after }: BatchesQuery): BatchesPage {
  const [from] =
    after === null ? [Number.MAX_SAFE_INTEGER] : decodeCursor<[no: number]>(after, (value) => isIntegers(value, 1))
  const page = new Page<BatchRow>(limit)
  const numbers = tx.db.all<{ no: number }>(
    'select no from holdfast_batch where no < ? and is_deleted = 0 order by no desc limit +?',
    from,
    state === null ? page.rowsLeft : looksMax,
  )
  let last: number | undefined
  for (const { no } of numbers) {
    const row = tx.db.get<BatchRow>('select * from holdfast_batch where no = ?', no) as BatchRow
    if ((state === null || batchState(flagsOf(row)) === state) && !page.add(row, bytesOf(row))) break
    last = no
  }
  const isMore = page.isCut || (state !== null && numbers.length === looksMax)
  return { batches: page.entries.map(toBatch), next: isMore && last !== undefined ? encodeCursor([last]) : null }
}

function bytesOf({ on_complete, outcomes, warnings, costs }: BatchRow): number {
  return [on_complete, outcomes, warnings, costs].reduce((sum, text) => sum + (text === null ? 0 : byteLength(text)), 0)
}

interface ItemRow {
  readonly seq: number
  readonly state: JobState | null
  readonly annotations: string | null
}

/** Items that have ended, in the order of submission, then those that have not. */
export function readItems(tx: SqliteTransaction, query: ItemsQuery): JobsPage {
  const { limit, after } = query
  const batch = tx.batches.find(query.batch)
  const page = new Page<Listed<Place>>(limit)
  let place: Place | null = after === null ? [0, 0] : decodeCursor<Place>(after, isPlace)
  for (let looks = looksMax; batch && place && looks > 0 && !page.hasAll && !page.isCut; ) {
    const rows: ItemRow[] = tx.db.all(
      place[0] === 0 ? selectEnded : selectLive,
      batch.no,
      place[1],
      Math.min(looks, step),
    )
    looks -= rows.length
    for (const row of rows) {
      const at: Place = [place[0], row.seq]
      if (isAskedFor(row, query) && !addRecord(tx, page, row.seq, at)) break
      place = at
      if (page.hasAll) break
    }
    if (!page.hasAll && !page.isCut && rows.length < step && looks > 0) place = place[0] === 0 ? [1, 0] : null
  }
  return {
    jobs: toJobsPage(page).jobs,
    next: batch && place && hasMore(tx, batch.no, place) ? encodeCursor(place) : null,
  }
}

/** Phase 0 reads items that have ended, phase 1 those that have not; `seq` is the last one read in that phase. */
type Place = readonly [phase: number, seq: number]

function isPlace(value: readonly unknown[]): boolean {
  return isIntegers(value, 2) && (value[0] === 0 || value[0] === 1)
}

const step = 500

const selectEnded = `select j.seq, s.state, e.annotations
    from holdfast_job j join holdfast_ended e on e.seq = j.seq join holdfast_retention_class s on s.no = e.retention_class
   where j.batch = ? and j.batch > 0 and j.seq > ? order by j.seq limit +?`
const selectLive = `select j.seq, case when l.seq is not null then 'running'
                                       when j.held = 1 then 'held'
                                       when j.ord is not null then 'ready'
                                       else 'scheduled' end as state, null as annotations
    from holdfast_job j left join holdfast_lease l on l.seq = j.seq
   where j.batch = ? and j.batch > 0 and j.seq > ? and not exists (select 1 from holdfast_ended e where e.seq = j.seq)
   order by j.seq limit +?`

function isAskedFor(row: ItemRow, { state, outcome, warning }: ItemsQuery): boolean {
  if (state !== null && row.state !== state) return false
  if (outcome === null && warning === null) return true
  const annotations = decodeAnnotations(row.annotations)
  return (
    (outcome === null || annotations?.outcome === outcome) && (warning === null || annotations?.warning === warning)
  )
}

/** Whether rows follow. The next page may still be empty, because its filter may match none of them. */
function hasMore(tx: SqliteTransaction, no: number, [phase, seq]: Place): boolean {
  const isThere = (sql: string, from: number) => tx.db.all(sql, no, from, 1).length > 0
  return phase === 0 ? isThere(selectEnded, seq) || isThere(selectLive, 0) : isThere(selectLive, seq)
}

function isIntegers(value: readonly unknown[], length: number): boolean {
  return value.length === length && value.every(Number.isSafeInteger)
}
