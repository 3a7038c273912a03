// A batch as the database has it.

import { actorsOf, type BatchRecord, batchState, type CompletionTarget } from '../../../job/batch.ts'
import type { BatchName } from '../../store.ts'
import type { Row } from '../connection/call.ts'
import { list } from '../connection/columns.ts'
import type { Database } from '../connection/database.ts'
import type { StoreContext } from '../enqueue.ts'

/** A batch: its row and its counts. */
export interface Batch {
  readonly no: number
  readonly record: BatchRecord
  readonly isCancelled: boolean
  /** How many changes of its counts are not folded yet. */
  readonly changes: number
  /** Dead items that ended until this time are to be retried. */
  readonly retryUntil: number | null
}

const read = 'select * from holdfast.read_batches($1)'

function toBatch(row: Row): Batch {
  const [no, id, name, key, concurrency, failShare, onComplete, retainMs, createdAt, submitted, round] = row
  const [closed, cancelled, pausedAt, by, pausedMs, startedAt, finishedAt, retryUntil, reason] = row.slice(11)
  const [waiting, running, done, dead, ended, changes, notes] = row.slice(20)
  const flags = {
    isClosed: closed === 't',
    isCancelled: cancelled === 't',
    pausedAt: numberOrNull(pausedAt),
    startedAt: numberOrNull(startedAt),
    finishedAt: numberOrNull(finishedAt),
  }
  const noted = JSON.parse(notes ?? '[]') as [kind: string, label: string, amount: number][]
  const amounts = (wanted: string) =>
    Object.fromEntries(noted.filter(([kind]) => kind === wanted).map(([, label, amount]) => [label, amount]))
  const { isCancelled, ...shown } = flags
  return {
    no: Number(no),
    isCancelled,
    changes: Number(changes),
    retryUntil: numberOrNull(retryUntil),
    record: {
      id: id as string,
      name: name as string,
      key: key ?? null,
      concurrency: numberOrNull(concurrency),
      failShare: numberOrNull(failShare),
      onComplete: onComplete == null ? null : (JSON.parse(onComplete) as CompletionTarget),
      retainMs: retainMs == null ? Number.POSITIVE_INFINITY : Number(retainMs),
      state: batchState(flags),
      ...shown,
      round: Number(round),
      submitted: Number(submitted),
      waiting: Number(waiting),
      running: Number(running),
      done: Number(done),
      dead: Number(dead),
      cancelled: Number(ended),
      outcomes: amounts('outcome'),
      warnings: amounts('warning'),
      costs: amounts('cost'),
      createdAt: Number(createdAt),
      ...actorsOf(isCancelled, by ?? null),
      pausedMs: Number(pausedMs),
      reason: reason ?? null,
    },
  }
}

function numberOrNull(text: string | null | undefined): number | null {
  return text == null ? null : Number(text)
}

export async function readNos(db: Pick<Database, 'query'>, nos: readonly number[]): Promise<Batch[]> {
  return nos.length === 0 ? [] : (await db.query(read, [list(nos)])).map(toBatch)
}

/** The first of these batches, up to the first one that exceeds the bytes, each with its bytes. */
export async function readWithin(
  db: Pick<Database, 'query'>,
  nos: readonly number[],
  bytesMax: number,
): Promise<(Batch & { readonly bytes: number })[]> {
  if (nos.length === 0) return []
  const rows = await db.query(
    `select * from (
       select *, sum(bytes) over w - bytes as before, row_number() over w as turn from (
         select *, coalesce(octet_length(on_complete), 0) + coalesce(octet_length(notes), 0) as bytes
           from holdfast.read_batches($1)) measured
             window w as (rows unbounded preceding)) summed
      where before <= $2 or turn <= 2`,
    [list(nos), bytesMax],
  )
  return rows.map((row) => ({ ...toBatch(row), bytes: Number(row.at(-3)) }))
}

export async function findNo(context: StoreContext, name: BatchName): Promise<number | null> {
  const [column, value] = 'id' in name ? ['id', name.id] : ['key', name.key]
  const text = `select no from holdfast.batch where ${column} = $1 and not is_deleted`
  const [row] = await context.db.query(text, [value])
  return row ? Number(row[0]) : null
}
