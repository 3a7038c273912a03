// Reads of single jobs, of the items of a batch and of counts. Listings are in `find.ts`. A job is running if a lease lists its
// place.

import { bounds } from '../../job/bounds.ts'
import type { Parent } from '../../job/journal.ts'
import { decodeLabels } from '../../job/labels.ts'
import type { LimitOverride } from '../../job/limit-key.ts'
import type { Attempt, EndState, IncludedPart, JobOutcome, JobRecord, JobState, Limit } from '../../job/record.ts'
import { decodeAnnotations, decodeChanges, decodeError, decodePast } from '../../job/stored.ts'
import { decodeOverride } from '../../job/stored-definition.ts'
import { remember } from '../../job/transition.ts'
import { Page } from '../page.ts'
import { decodeCursor, encodeCursor } from '../page-cursor.ts'
import type { ItemsQuery, JobsPage, QueueStats } from '../store.ts'
import type { Row } from './connection/call.ts'
import { list } from './connection/columns.ts'
import type { Database, Queryable } from './connection/database.ts'
import { limitOf } from './define.ts'
import { limitKeyIn } from './enqueue.ts'

/** The state of a live job whose lease was joined. */
export const liveState = `case when j.is_held then 'held' when j.ready_xid is null then 'scheduled' when h.worker is null then 'ready'
       else 'running' end`

export const allParts: readonly IncludedPart[] = ['payload', 'headers', 'result', 'history', 'error']

/** The columns of a record, with only these of its long texts. */
export const liveColumnsWith = (
  parts: readonly IncludedPart[],
) => `j.id, q.name, l.priority, j.attempts, j.max_attempts, j.timeout_ms, j.created_at, j.run_at,
  j.start_before, j.dedup_key, j.idempotency_key, ${parts.includes('payload') ? 'j.payload' : "''::text"},
  ${parts.includes('headers') ? 'j.headers' : 'null::text'}, case when j.cancel is not null then '' end,
  ${parts.includes('history') ? 'j.past' : 'null::text'}, ${liveState},
  null::bigint, null::text, null::text, null::smallint, h.worker, h.started_at, null::text, h.expires_at,
  p.value, p.message, p.at, j.limit_key, null::text,
  (select b.id from holdfast.batch b where b.no = l.batch and not b.is_deleted), null::text, j.labels::text, j.parent, j.has_journal`

const liveColumns = liveColumnsWith(allParts)

/** The lease of the job: the newest one that lists its place. */
export const joinLease = `left join lateral (
    select s.token, s.worker, s.started_at, s.expires_at
      from holdfast.lease s
     where s.lane = j.lane and j.ord = any (s.ords)
     order by s.no desc limit 1
  ) h on j.ready_xid is not null`

/** The job `j` at the place of a lease, looked up for each of them whatever the statistics say. */
export const joinPlace = `cross join lateral (
    select * from holdfast.job k where k.lane = h.lane and k.ready_xid = h.xid and k.ord = h.ord offset 0) j`

/** The progress that was reported under that lease. */
export const joinProgress = `left join holdfast.progress p
    on p.lane = j.lane and p.xid = j.ready_xid and p.ord = j.ord and p.token = h.token`

/** For jobs without a lease. */
export const joinNoLease = `left join lateral (select null::uuid as token, null::text as worker, null::bigint as started_at,
    null::bigint as expires_at) h on true
  left join lateral (select null::float8 as value, null::text as message, null::bigint as at) p on true`

export const endedColumnsWith = (
  parts: readonly IncludedPart[],
) => `e.id, q.name, e.priority, e.attempts, e.max_attempts, e.timeout_ms, e.created_at, e.run_at,
  e.start_before, e.dedup_key, e.idempotency_key, ${parts.includes('payload') ? 'e.payload' : "''::text"},
  ${parts.includes('headers') ? 'e.headers' : 'null::text'}, case when e.cancel is not null then '' end,
  ${parts.includes('history') ? 'e.past' : 'null::text'}, e.state,
  e.finished_at, ${parts.includes('result') ? 'e.result' : 'null::text'}, e.error, e.attempt, e.worker, e.started_at, e.ending, null::bigint,
  null::float8, null::text, null::bigint, e.limit_key, e.annotations,
  (select b.id from holdfast.batch b where b.no = e.batch and not b.is_deleted), e.error_group, e.labels::text, e.parent, e.has_journal`

const endedColumns = endedColumnsWith(allParts)

const fromLive = `from holdfast.job j
  join holdfast.lane l on l.no = j.lane & ~1 join holdfast.queue q on q.no = l.queue ${joinLease} ${joinProgress}`
const fromEnded = 'from holdfast.ended e join holdfast.queue q on q.no = e.queue'

export async function readJob(db: Database, id: string): Promise<JobRecord | null> {
  const newest = `select ${endedColumns} from holdfast.newest_ended($1) e join holdfast.queue q on q.no = e.queue`
  const [row] = await liveOrEnded(
    () => db.query(`select ${liveColumns} ${fromLive} where j.id = $1`, [id]),
    () => db.query(newest, [id]),
  )
  return row ? toRecord(row) : null
}

export async function readOutcomes(db: Database, ids: readonly string[]): Promise<(JobOutcome | 'live' | null)[]> {
  const rows = await db.query('select * from holdfast.outcomes($1, $2)', [list(ids), bounds.pageBytes])
  return rows.map(([, isLive, state, attempts, result, error]) => {
    if (isLive === 't') return 'live'
    if (state == null) return null
    const outcome = { attempts: Number(attempts), result: result ?? null, error: decodeError(error ?? null) }
    return { state: state as EndState, ...outcome }
  })
}

/** A job that is requeued between the two reads is found by neither. So both are made a second time. */
export async function liveOrEnded<T>(
  lookAlive: () => Promise<readonly T[]>,
  lookEnded: () => Promise<readonly T[]>,
): Promise<readonly T[]> {
  for (const look of [lookAlive, lookEnded, lookAlive, lookEnded]) {
    const found = await look()
    if (found.length > 0) return found
  }
  return []
}

export function toRecord(row: Row): JobRecord {
  const [id, queue, priority, attempts, maxAttempts, timeoutMs, createdAt, runAt, startBefore, dedupKey] = row
  const [idempotencyKey, payload, headers, cancel, past, state, finishedAt, result, error] = row.slice(10)
  const [
    attempt,
    worker,
    startedAt,
    ending,
    expiresAt,
    value,
    message,
    at,
    keyRef,
    annotations,
    batch,
    errorGroup,
    labels,
    parent,
    hasJournal,
  ] = row.slice(19)
  const isRunning = state === 'running'
  const jobError = decodeError(error ?? null)
  const decoded = decodeAnnotations(annotations ?? null)
  return {
    id: id as string,
    queue: queue as string,
    state: state as JobState,
    priority: Number(priority),
    attempts: Number(attempts) + (isRunning ? 1 : 0),
    maxAttempts: Number(maxAttempts),
    timeoutMs: numberOrNull(timeoutMs),
    createdAt: Number(createdAt),
    runAt: Number(runAt),
    startBefore: numberOrNull(startBefore),
    dedupKey: dedupKey ?? null,
    idempotencyKey: idempotencyKey ?? null,
    payload: payload as string,
    headers: headers ?? null,
    hold: isRunning ? { worker: worker as string, startedAt: Number(startedAt), expiresAt: Number(expiresAt) } : null,
    progress: value == null ? null : { value: Number(value), message: message ?? null, at: Number(at) },
    cancelRequested: cancel != null,
    finishedAt: numberOrNull(finishedAt),
    result: result ?? null,
    error: jobError,
    annotations: decoded,
    errorGroup: errorGroup ?? null,
    limitKey: limitKeyIn(keyRef),
    labels: decodeLabels(labels ?? null),
    batch: batch ?? null,
    parent: toParent(parent ?? null),
    hasJournal: hasJournal === 't',
    history: attempt == null ? decodePast(past ?? null) : remember(decodePast(past ?? null), lastAttempt()),
    changes: decodeChanges(past ?? null),
  }

  function lastAttempt(): Attempt {
    return {
      attempt: Number(attempt),
      worker: worker as string,
      startedAt: Number(startedAt),
      endedAt: Number(finishedAt),
      ending: ending as Attempt['ending'],
      ...(jobError && { error: jobError }),
      ...(decoded?.costs && { costs: decoded.costs }),
    }
  }
}

/** The id of the parent, a slash, the step. */
export function toParent(parent: string | null): Parent | null {
  return parent === null ? null : { id: parent.slice(0, 36), step: parent.slice(37) }
}

function numberOrNull(text: string | null | undefined): number | null {
  return text == null ? null : Number(text)
}

/** A job of a page, and the mark of the page that ends with it. */
interface Listed<M> {
  readonly record: JobRecord
  readonly mark: M
}

function toJobsPage<M extends readonly (string | number)[]>({ entries, isCut }: Page<Listed<M>>): JobsPage {
  const last = entries.at(-1)
  return { jobs: entries.map(({ record }) => record), next: isCut && last ? encodeCursor(last.mark) : null }
}

export const recordWidth = 34

/** The columns of a record that may be long: payload, headers, cancel, past, result, error, annotations, labels. */
export const longColumns = [12, 13, 14, 15, 18, 19, 29, 32] as const

/**
 * The rows of a listing up to the first one that exceeds the bytes left in the page, each with its bytes. That row shows
 * that more follow. If it is the first, it comes alone on its page, and the second shows that more follow. `octet_length`
 * reads no text that is stored out of line, and rows are cut before any such text is read.
 */
function withinBytes(select: string, places: number, bytesLeft: string): string {
  const columns = Array.from({ length: recordWidth + places }, (_, i) => `c${i + 1}`)
  const bytes = longColumns.map((no) => `coalesce(octet_length(c${no}), 0)`).join(' + ')
  return `select ${columns}, bytes
    from (select *, sum(bytes) over w - bytes as before, row_number() over w as turn
            from (select *, ${bytes} as bytes from (${select}) listed(${columns})) measured
             window w as (rows unbounded preceding)) summed
   where before <= ${bytesLeft} or turn <= 2`
}

/** A row of `withinBytes`. */
function toListed(row: Row) {
  return {
    columns: row.slice(0, recordWidth),
    place: row.slice(recordWidth, -1).map(Number),
    bytes: Number(row.at(-1)),
  }
}

/** Part 0: ended items, in the order of submission. Part 1: ready and running items, by lane. Part 2: all others, by lane. */
type ItemMark = readonly [part: 0 | 1 | 2, ...position: number[]]

export async function readItems(db: Database, query: ItemsQuery): Promise<JobsPage> {
  const [no] =
    (await db.query('select no from holdfast.batch where id = $1 and not is_deleted', [query.batch]))[0] ?? []
  if (no == null) return { jobs: [], next: null }
  const mark = query.after === null ? null : decodeCursor<ItemMark>(query.after, isItemPosition)
  const page = new Page<Listed<ItemMark>>(query.limit)
  let looks = itemLooks
  for (const part of [0, 1, 2] as const) {
    if (page.isCut || part < (mark?.[0] ?? 0) || (part > 0 && isOfEnded(query))) continue
    let position = mark?.[0] === part ? (mark.slice(1) as number[]) : null
    for (let isMore = true; isMore && !page.isCut; ) {
      const isFiltered = part > 0 && query.state !== null
      const max = Math.max(page.rowsLeft, isFiltered ? itemsALook : 0)
      const { bytesLeft } = page
      const rows = (await readPart(db, Number(no), { part, position, query, max, bytesLeft })).map(toListed)
      for (const { columns, place, bytes } of rows) {
        const listed = { record: toRecord(columns), mark: [part, ...place] as unknown as ItemMark }
        if ((!isFiltered || listed.record.state === query.state) && !page.add(listed, bytes)) break
      }
      const last = rows.at(-1)?.place
      const bytes = rows.reduce((sum, row) => sum + row.bytes, 0)
      isMore = last !== undefined && (rows.length >= max || bytes > bytesLeft)
      if (isMore && last && --looks === 0 && !page.isCut)
        return { jobs: page.entries.map(({ record }) => record), next: encodeCursor([part, ...last]) }
      position = last ?? null
    }
  }
  return toJobsPage(page)
}

/**
 * Whether an item is ready or runs is known only once it is read. So a listing by state reads some items at a time, and a page
 * ends after so many looks, however few it has found.
 */
const itemsALook = 500
const itemLooks = 10

/** The query asks only for ended items. */
function isOfEnded({ state, outcome, warning }: ItemsQuery): boolean {
  return outcome !== null || warning !== null || state === 'done' || state === 'dead' || state === 'cancelled'
}

interface Part {
  readonly part: 0 | 1 | 2
  readonly position: readonly number[] | null
  readonly query: ItemsQuery
  readonly max: number
  readonly bytesLeft: number
}

function readPart(db: Database, no: number, { part, position, query, max, bytesLeft }: Part): Promise<Row[]> {
  const [a = 0, b = -1, c = -1] = position ?? []
  const { state, outcome, warning } = query
  if (part === 0) {
    if (state !== null && !isOfEnded(query)) return Promise.resolve([])
    const ended = `select ${endedColumns}, e.seq ${fromEnded}
        where e.batch = $1 and e.seq > $2 and ($3::text is null or e.state = $3)
          and ($4::text is null or e.annotations::jsonb ->> 'outcome' = $4)
          and ($5::text is null or e.annotations::jsonb ->> 'warning' = $5)
        order by e.seq limit $6`
    return db.query(withinBytes(ended, 1, '$7'), [no, a, state, outcome, warning, max, bytesLeft])
  }
  const listed =
    part === 1
      ? `k.ready_xid is not null and (l.no + f.front, k.ready_xid, k.ord) > ($2::int, $3::text::xid8, $4::bigint)
         order by k.ready_xid, k.ord`
      : `k.ready_xid is null and (l.no + f.front, k.ord) > ($2::int, $3::text::bigint << 32 | $4::bigint)
         order by k.ord`
  const [first, second] = part === 1 ? ['j.ready_xid', 'j.ord'] : halves('j.ord')
  const live = `select ${liveColumns}, j.lane, ${first}, ${second}
         from holdfast.lane l cross join (values (0), (1)) f(front) cross join lateral (
           select k.* from holdfast.job k where k.lane = l.no + f.front and ${listed} limit $5) j
         join holdfast.queue q on q.no = l.queue ${joinLease} ${joinProgress}
        where l.batch = $1 and l.no + 1 >= $2
        order by j.lane, ${part === 1 ? 'j.ready_xid, j.ord' : 'j.ord'} limit $5`
  return db.query(withinBytes(live, 3, '$6'), [no, a, String(Math.max(0, b)), c, max, bytesLeft])
}

/** The two halves of a number that is too large for JavaScript. */
export function halves(column: string): readonly [high: string, low: string] {
  return [`${column} >> 32`, `${column} & 4294967295`]
}

function isItemPosition(value: readonly unknown[]): boolean {
  const [part] = value
  if (part !== 0 && part !== 1 && part !== 2) return false
  if (value.length !== (part === 0 ? 2 : 4) || !value.every(Number.isSafeInteger)) return false
  const [, first, second, third] = value as number[]
  if (part === 0) return true
  const isLane = Number(first) >= 0 && Number(first) <= 0x7fffffff
  return (
    isLane &&
    Number(second) >= 0 &&
    Number(third) >= 0 &&
    (part === 1 || (Number(second) <= 0x7fffffff && Number(third) <= 0xffffffff))
  )
}

interface Counted {
  readonly name: string
  readonly no: number
  readonly paused: boolean
  readonly pausedAt: number | null
  readonly pausedBy: string | null
  readonly pausedUntil: number | null
  readonly limit: Limit | null
  readonly keyLimit: Limit | null
  readonly override: LimitOverride | null
  readonly counts: Record<JobState, number>
}

const selectCounts = `
  select q.name, q.no, q.paused, coalesce(sum(t.scheduled), 0), coalesce(sum(t.ready), 0), coalesce(sum(t.running), 0),
         coalesce(sum(t.done), 0), coalesce(sum(t.dead), 0), coalesce(sum(t.cancelled), 0), coalesce(sum(t.held), 0),
         q.paused_at, q.paused_by, q.max_running, q.max_starts, q.window_ms, q.key_max_running, q.key_max_starts,
         q.key_window_ms, q.limit_override::text, e.until
    from holdfast.queue q
    left join holdfast.pause_end e on e.queue = q.no
    left join holdfast.tally t on t.queue = q.no and t.xid >= holdfast.low_tally()
   group by q.no, e.until having q.is_named or count(t.xid) > 0 order by q.name`

export async function readCounts(db: Queryable): Promise<Counted[]> {
  return (await db.query(selectCounts, [])).map(toCounted)
}

function toCounted(row: Row): Counted {
  const [name, no, paused, scheduled, ready, running, done, dead, cancelled, held, pausedAt, pausedBy] = row
  const counts = { held, scheduled, ready, running, done, dead, cancelled }
  return {
    name: name as string,
    no: Number(no),
    paused: paused === 't',
    pausedAt: numberOrNull(pausedAt),
    pausedBy: pausedBy ?? null,
    pausedUntil: numberOrNull(row[19]),
    limit: limitOf(row, 12),
    keyLimit: limitOf(row, 15),
    override: decodeOverride(row[18] ?? null),
    counts: Object.fromEntries(Object.entries(counts).map(([state, n]) => [state, Number(n)])) as Record<
      JobState,
      number
    >,
  }
}

/** Queues that are not paused and have ready jobs. */
export async function readReady(db: Database): Promise<Map<string, number>> {
  const counted = await readCounts(db)
  return new Map(
    counted.filter(({ paused, counts }) => !paused && counts.ready > 0).map(({ name, counts }) => [name, counts.ready]),
  )
}

/** The first waiting job of each lane is its oldest. So this takes a few seeks, whatever the backlog. */
const selectOldest = `
  select l.queue, min(w.run_at), holdfast.now_ms($1)
    from holdfast.lane l cross join (values (0), (1)) f(front)
   cross join lateral (select * from holdfast.lane_cursor where lane = l.no + f.front order by no desc limit 1) c
   cross join lateral (
     (select j.run_at from holdfast.job j
       where j.lane = l.no + f.front and (j.ready_xid, j.ord) > (c.xid, c.ord) order by j.ready_xid, j.ord limit 1)
     union all
     select j.run_at from unnest(c.gap_xids, c.gap_ords) g(xid, ord) cross join lateral (
       select run_at from holdfast.job
        where lane = l.no + f.front and ready_xid = g.xid and ord > g.ord order by ord limit 1) j
     union all
     select j.run_at from holdfast.overdue o join holdfast.job j on j.id = o.id where o.lane = l.no + f.front and o.passed
   ) w
   where l.queue = any ($2::bigint[])
   group by l.queue`

export async function readStats(db: Database): Promise<QueueStats[]> {
  const counted = await readCounts(db)
  const waiting = counted.filter(({ counts }) => counts.ready > 0).map(({ no }) => no)
  const oldest = new Map<number, number>()
  if (waiting.length > 0) {
    for (const [no, runAt, now] of await db.query(selectOldest, [db.now, list(waiting)]))
      oldest.set(Number(no), Math.max(0, Number(now) - Number(runAt)))
  }
  return counted.map(({ name, no, counts, ...rest }) => ({
    queue: name,
    ...rest,
    counts,
    oldestWaitingMs: counts.ready > 0 ? (oldest.get(no) ?? 0) : null,
  }))
}
