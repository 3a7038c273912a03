// Finds jobs by a filter. A statement reads a bounded number of jobs of one list, compares the conditions, and answers the jobs
// for which they hold, and the last job that it looked at. Conditions are columns of the answer and never restrict the scan, so
// no value of a filter changes the plan.
//
// Which jobs are looked at: those with the ids, or else the items of the batch, or else the jobs that have the rarest label, or
// else the holder of a key and then the lists by queue and state.

import { bounds } from '../../job/bounds.ts'
import { summaryOf } from '../../job/error.ts'
import { countOf, isOfLists, type JobFilter, possibleStates } from '../../job/filter.ts'
import type { Labels } from '../../job/labels.ts'
import type { FoundJob, IncludedPart, JobState } from '../../job/record.ts'
import { Page } from '../page.ts'
import { decodeCursor, encodeCursor } from '../page-cursor.ts'
import type { CountedJobs, CountQuery, FindQuery, FoundPage } from '../store.ts'
import type { Row, Value } from './connection/call.ts'
import { texts, list as toList } from './connection/columns.ts'
import type { Queryable } from './connection/database.ts'
import { jobsOfLists, type ListPart, placeIn } from './many-lists.ts'
import {
  endedColumnsWith,
  halves,
  joinLease,
  joinNoLease,
  joinPlace,
  joinProgress,
  liveColumnsWith,
  liveState,
  longColumns,
  readCounts,
  recordWidth,
  toRecord,
} from './read.ts'
import { labelHash } from './schema/hash.ts'

export async function findJobs(db: Queryable, query: FindQuery): Promise<FoundPage> {
  const { entries, looked, next } = await scanJobs(db, query, recordsWith(query.include))
  return { jobs: entries, looked, next }
}

export async function countJobs(db: Queryable, { filter, after }: CountQuery): Promise<CountedJobs> {
  if (isOfLists(filter)) {
    const stats = (await readCounts(db)).map(({ name, counts }) => ({ queue: name, counts }))
    return { count: countOf(filter, stats), looked: 0, next: null }
  }
  const { entries, looked, next } = await scanJobs(db, { filter, after, limit: bounds.lookMax }, counted)
  return { count: entries.length, looked, next }
}

export type ScanQuery = Omit<FindQuery, 'include'>

/** What is read of each job. */
export interface Reads<Entry> {
  /** For jobs of each kind, as many columns. */
  columnsOf(kind: Kind, given: (value: Value) => string): readonly string[]
  readonly width: number
  /** How many bytes of a page a job takes: SQL, by the columns c1, c2, … */
  readonly bytes: string
  toEntry(columns: Row, found: Found): Entry
  /** Conditions beside those of the filter. */
  conditionsOn?(kind: Kind, given: (value: Value) => string): readonly string[]
  /** Lists and parts in the direction in which jobs move, for changes of all jobs that match. */
  readonly isInFlow?: boolean
  /** Of a job with a label, the highest number to look at. */
  readonly until?: number
}

/** Where a job was found. */
export interface Found {
  /** The cursor that goes on after it. */
  readonly next: () => string
  /** How many jobs were looked at up to it. */
  readonly looked: number
}

export interface Scanned<Entry> {
  readonly entries: readonly Entry[]
  readonly looked: number
  readonly next: string | null
}

export async function scanJobs<Entry>(db: Queryable, query: ScanQuery, reads: Reads<Entry>): Promise<Scanned<Entry>> {
  const { filter, after } = query
  const way = wayOf(filter)
  const mark =
    after === null
      ? null
      : decodeCursor<Mark>(after, (value) => value[0] === way && isMark(value, reads.isInFlow ? flow : listed))
  const scan = new Scan(db, query, reads)
  if (way === 'ids') await walkIds(scan, filter.ids ?? [], mark)
  else if (way === 'items') await walkItems(scan, mark)
  else if (way === 'labels') await walkLabels(scan, filter.labels ?? {}, mark)
  else await walkLists(scan, mark)
  return scan.answer
}

/** Of the jobs of a source, those that match the whole filter, in the order of the source. However many bytes that compares. */
export function matchesOf<Entry>(
  db: Queryable,
  filter: JobFilter,
  source: Source,
  reads: Reads<Entry>,
): Promise<readonly Entry[]> {
  return new Scan(db, { filter, after: null, limit: Number.MAX_SAFE_INTEGER }, reads).allOf(source)
}

/** The order of lists in a listing, on every store. */
const listed: readonly JobState[] = ['running', 'ready', 'held', 'scheduled', 'dead', 'cancelled', 'done']
const flow: readonly JobState[] = ['scheduled', 'held', 'ready', 'running', 'dead', 'cancelled', 'done']

type Way = 'ids' | 'items' | 'labels' | 'lists'

/**
 * Where a page ended:
 *
 * - `ids`: 0 while live jobs are read, then 1; how many ids were looked at;
 * - `items`: 0 for ended items, by number; 1 for ready and running items, by lane; 2 for all others, by lane;
 * - `labels`: the number of the last job that has one of the labels, newest first;
 * - `lists`: the holder of the key, which comes first and not again in its list (0: none); then queue, state, and the last job's
 *   place in that list. Without a queue: only the holder was looked at.
 */
type Mark = readonly [Way, ...(string | number)[]]

/** The last job's place in a list: the last columns of a row. */
export type Place = readonly number[]

function wayOf({ ids, batch, labels }: JobFilter): Way {
  if (ids !== undefined) return 'ids'
  if (batch !== undefined) return 'items'
  return labels === undefined ? 'lists' : 'labels'
}

async function walkIds<Entry>(scan: Scan<Entry>, ids: readonly string[], mark: Mark | null): Promise<void> {
  for (const phase of [0, 1] as const) {
    const [, at = 0, from = 0] = (mark ?? []) as readonly number[]
    if (phase < at) continue
    const read = (place: Place | null, max: number) =>
      jobsWithIds(phase, ids, place ?? [phase === at ? from : 0, 0], max)
    const isGoingOn = await scan.walk({
      ...{ from: null, read, end: ['ids', phase + 1, 0] },
      markAt: ([turn = 0]) => ['ids', phase, turn],
    })
    if (!isGoingOn) return
  }
}

/** Places: the position among the ids, the job's number. */
function jobsWithIds(phase: 0 | 1, ids: readonly string[], [from = 0]: Place, max: number): Source {
  const left = ids.slice(from)
  const values = [toList(left), from, max]
  if (phase === 0)
    return {
      ...{ kind: 'live', places: 2, values },
      text: (columns) => `select ${columns}, u.at + $2::bigint, j.seq
        from unnest($1::uuid[]) with ordinality u(id, at) join holdfast.job j on j.id = u.id
        join holdfast.lane l on l.no = j.lane & ~1 join holdfast.queue q on q.no = l.queue ${joinLease} ${joinProgress}
       order by u.at limit $3`,
    }
  return {
    ...{ kind: 'ended', places: 2, values },
    text: (columns) => `select ${columns}, u.at + $2::bigint, e.seq
      from unnest($1::uuid[]) with ordinality u(id, at) join holdfast.newest_of($1::uuid[]) e on e.id = u.id
      join holdfast.queue q on q.no = e.queue
     where not exists (select from holdfast.job j where j.id = u.id)
     order by u.at limit $3`,
  }
}

async function walkItems<Entry>(scan: Scan<Entry>, mark: Mark | null): Promise<void> {
  const no = await scan.batchNo()
  if (no === null) return
  const parts: readonly (0 | 1 | 2)[] = scan.isInFlow ? [2, 1, 0] : [0, 1, 2]
  const [, from = parts[0], ...position] = (mark ?? []) as readonly number[]
  const at = from === allParts ? parts.length : parts.indexOf(from as 0 | 1 | 2)
  for (const [i, part] of parts.entries()) {
    if (i < at || possibleStates(scan.filter, part === 0 ? endedStates : liveStates).length === 0) continue
    const isGoingOn = await scan.walk({
      from: i === at && position.length > 0 ? position : null,
      read: (place, max) => itemsOf(part, no, place, max),
      markAt: (place) => ['items', part, ...place],
      end: ['items', parts[i + 1] ?? allParts],
    })
    if (!isGoingOn) return
  }
}

const liveStates: readonly JobState[] = ['running', 'ready', 'scheduled', 'held']
const endedStates: readonly JobState[] = ['dead', 'cancelled', 'done']

/** Stands for the part after the last one. */
const allParts = 3

/** The same order as `readItems` has. */
function itemsOf(part: 0 | 1 | 2, no: number, place: Place | null, max: number): Source {
  const [a = 0, b = -1, c = -1] = place ?? []
  if (part === 0)
    return {
      ...{ kind: 'ended', places: 1, values: [no, a, max] },
      text: (columns) => `select ${columns}, e.seq
        from holdfast.list_ended_items($1, $2, $3) e join holdfast.queue q on q.no = e.queue order by e.seq`,
    }
  // The place counts in the lane where the page before has ended. As a value of its own it is a condition of the index.
  const isThere = 'l.no + f.front = $2::int'
  const listed =
    part === 1
      ? `k.ready_xid is not null and (k.ready_xid, k.ord) > (case when ${isThere} then $3::text::xid8 else '0' end,
           case when ${isThere} then $4::bigint else 0 end)`
      : `k.ready_xid is null and k.ord > case when ${isThere} then $3::text::bigint << 32 | $4::bigint else -1 end`
  const [first, second] = part === 1 ? ['j.ready_xid', 'j.ord'] : halves('j.ord')
  return {
    ...{ kind: 'live', places: 3, values: [no, a, String(Math.max(0, b)), c, max] },
    text: (columns) => `select ${columns}, j.lane, ${first}, ${second}
         from holdfast.lane l cross join (values (0), (1)) f(front) cross join lateral (
           select k.* from holdfast.job k where k.lane = l.no + f.front and ${listed}
            order by k.ready_xid, k.ord limit $5) j
         join holdfast.queue q on q.no = l.queue ${joinLease} ${joinProgress}
        where l.batch = $1 and l.no + f.front >= $2
        order by j.lane, ${part === 1 ? 'j.ready_xid, j.ord' : 'j.ord'} limit $5`,
  }
}

/**
 * Newest first, by the rarest label. The others are compared job by job, and so is this one: two labels may have the same hash. A
 * mark is a job's number, so the next page may go by another label.
 */
async function walkLabels<Entry>(scan: Scan<Entry>, labels: Labels, mark: Mark | null): Promise<void> {
  const from = mark === null ? null : Number(mark[1])
  const [name, value] = await rarestOf(scan.db, labels, from ?? scan.until + 1)
  await scan.walk({
    from: from === null ? null : [from],
    read: (place, max) => jobsWithLabel(name, value, place?.[0] ?? scan.until + 1, max),
    markAt: ([seq = 0]) => ['labels', seq],
    end: ['labels', 0],
  })
}

/** The label with the fewest jobs before this number, as far as they are counted; the first of several. */
async function rarestOf(
  db: Queryable,
  labels: Labels,
  before: number,
): Promise<readonly [name: string, value: string]> {
  const all = Object.entries(labels)
  const [only = ['', '']] = all
  if (all.length < 2) return only
  const rows = await db.query(countLabelled, [
    ...[texts(all.map(([name]) => name)), texts(all.map(([, value]) => value))],
    ...[before, bounds.labelledCountMax],
  ])
  const counts = rows.map(([jobs]) => Number(jobs))
  return all[counts.indexOf(Math.min(...counts))] ?? only
}

const countLabelled = `select n.jobs from unnest($1::text[], $2::text[]) with ordinality u(name, value, turn)
   cross join lateral (select count(*) as jobs from (
     select from holdfast.label k where k.hash = ${labelHash('u.name', 'u.value')} and k.seq < $3 order by k.seq desc limit $4) s) n
  order by u.turn`

/** A label has one row for each of its jobs, whether the job is live or has ended. */
function jobsWithLabel(name: string, value: string, before: number, max: number): Source {
  return {
    ...{ kind: 'both', places: 1, values: [name, value, before, max] },
    text: (live, ended = '') => `with labelled as materialized (
         select k.seq, k.id from holdfast.label k
          where k.hash = ${labelHash('$1::text', '$2::text')} and k.seq < $3 order by k.seq desc limit $4
       )
       (select ${live}, k.seq as place
          from labelled k join holdfast.job j on j.id = k.id and j.seq = k.seq
          join holdfast.lane l on l.no = j.lane & ~1 join holdfast.queue q on q.no = l.queue ${joinLease} ${joinProgress})
        union all
       (select ${ended}, k.seq
          from labelled k
          join holdfast.ended_of((select array_agg(id) from labelled), (select array_agg(seq) from labelled)) e
            on e.id = k.id and e.seq = k.seq
          join holdfast.queue q on q.no = e.queue)
       order by place desc`,
  }
}

async function walkLists<Entry>(scan: Scan<Entry>, mark: Mark | null): Promise<void> {
  const counted = await readCounts(scan.db)
  if (mark === null) await lookAtHolder(scan, counted)
  const [, holder = 0] = (mark ?? ['lists', scan.holder]) as readonly ['lists', number?]
  scan.holder = holder
  const lists = listsOf(scan, counted, mark)
  for (let i = 0; i < lists.length; ) {
    const some = together(lists, i, scan.wanted)
    const [list] = some as readonly [NamedList]
    const { name, at } = some.at(-1) as NamedList
    const isGoingOn = await scan.walk({
      ...(some.length === 1
        ? {
            from: list.from,
            read: (from, max) => jobsOfList(list, from, max),
            markAt: (to) => ['lists', holder, list.name, list.at, ...to],
          }
        : {
            from: null,
            read: (from, max) => jobsOfLists(some, from, max),
            markAt: ([turn = 0, ...to]) => {
              const { state, ...of } = some[turn] as NamedList
              return ['lists', holder, of.name, of.at, ...placeIn(state, to)]
            },
          }),
      ...{ lists: some.length, end: ['lists', holder, name, at + 1] },
    })
    if (!isGoingOn) return
    i += some.length
  }
}

interface NamedList extends ListPart {
  /** Of its queue. */
  readonly name: string
  /** The position of its state. */
  readonly at: number
  readonly jobs: number
}

type CountedQueue = Awaited<ReturnType<typeof readCounts>>[number]

/** The lists that have jobs, from the one on in which the page before has ended. */
function listsOf<Entry>(scan: Scan<Entry>, counted: readonly CountedQueue[], mark: Mark | null): readonly NamedList[] {
  const { filter } = scan
  const [, , name, index = 0, ...place] = mark ?? []
  const order = scan.isInFlow ? flow : listed
  const states = possibleStates(filter, order).map((state) => ({ state, at: order.indexOf(state) }))
  const { queues, ended = {}, errorGroup: group = '' } = filter
  const wanted = queues && new Set(queues)
  return counted.flatMap((queue) => {
    if (!(wanted?.has(queue.name) ?? true) || (name !== undefined && queue.name < (name as string))) return []
    const isCut = queue.name === name
    return states.flatMap(({ state, at }) => {
      if ((isCut && at < Number(index)) || queue.counts[state] === 0) return []
      const from = isCut && at === index && place.length > 0 ? (place as number[]) : null
      return [{ queue: queue.no, name: queue.name, state, at, jobs: queue.counts[state], ended, group, from }]
    })
  })
}

/** So many of the lists, from this one on, that one statement finds the jobs that are wanted; at least one. */
function together(lists: readonly NamedList[], from: number, wanted: number): readonly NamedList[] {
  let jobs = 0
  let to = from
  while (to < lists.length && jobs < wanted) jobs += lists[to++]?.jobs ?? 0
  return lists.slice(from, Math.max(to, from + 1))
}

/** The job that has the key now is found through the table of keys. Other jobs that had it are found in their lists. */
async function lookAtHolder<Entry>(
  scan: Scan<Entry>,
  counted: readonly { readonly name: string; readonly no: number }[],
): Promise<void> {
  const { queues, dedupKey, idempotencyKey } = scan.filter
  const queue = queues?.length === 1 ? counted.find(({ name }) => name === queues[0]) : undefined
  const key = dedupKey ?? idempotencyKey
  if (!queue || key === undefined) return
  const table = dedupKey === undefined ? 'idempotency' : 'dedup'
  const select = `select id, seq from holdfast.${table} where queue = $1 and key = $2`
  const [id, seq] = (await scan.db.query(select, [queue.no, key]))[0] ?? []
  if (id == null) return
  for (const phase of [0, 1] as const)
    if (await scan.takeHolder(jobsWithIds(phase, [id], [0, 0], 1), Number(seq))) return
}

export interface List {
  readonly queue: number
  readonly state: JobState
  readonly ended: NonNullable<JobFilter['ended']>
  /** Only dead jobs of this error group are listed; empty: all. */
  readonly group: string
}

const first = [-1, -1, -1, -1] as const

function jobsOfList({ queue: no, state, ended, group }: List, place: Place | null, max: number): Source {
  const [a = 0, b = 0, c = 0, d = 0] = place ?? first
  switch (state) {
    case 'running':
      return {
        ...{ kind: 'live', places: 1, values: [no, a, max] },
        text: (columns) => `select ${columns}, j.seq
           from holdfast.list_running($1, $2, $3) h ${joinPlace}
           join holdfast.lane l on l.no = j.lane & ~1 join holdfast.queue q on q.no = l.queue ${joinProgress}
          order by j.seq`,
      }
    case 'ready':
      return {
        ...{ kind: 'live', places: 4, values: [no, a, b, String(Math.max(0, c)), d, max] },
        text: (columns) => `select ${columns}, l.priority, 1 - (j.lane & 1), j.ready_xid, j.ord
           from holdfast.list_ready($1, $2, $3, $4::text::xid8, $5, $6) j
           join holdfast.lane l on l.no = j.lane & ~1 join holdfast.queue q on q.no = l.queue ${joinNoLease}
          order by l.priority, 1 - (j.lane & 1), j.ready_xid, j.ord`,
      }
    case 'scheduled':
      return {
        ...{ kind: 'live', places: 2, values: [no, a, b, max] },
        text: (columns) => waitingOf(columns, 'list_scheduled($1, $2, $3, $4)', ['j.run_at', 'j.seq']),
      }
    case 'held':
      return {
        ...{ kind: 'live', places: 2, values: [no, ...heldFrom(place), max] },
        text: (columns) =>
          waitingOf(columns, 'list_held($1, $2::bigint << 32 | $3::bigint, $4)', halves('j.ord'), 'j.ord'),
      }
    default: {
      const { since = Number.MIN_SAFE_INTEGER, before = Number.MAX_SAFE_INTEGER } = ended
      const isGroup = group !== '' && state === 'dead'
      const list = isGroup ? 'list_group' : 'list_ended'
      return {
        ...{
          kind: 'ended',
          places: 2,
          values: [no, isGroup ? group : state, ...(place ? [a, b] : [before, 0]), since, max],
        },
        text: (columns) => `select ${columns}, e.finished_at, e.seq
           from holdfast.${list}($1, $2, $3, $4, $5, $6) e join holdfast.queue q on q.no = e.queue
          order by e.finished_at desc, e.seq desc`,
      }
    }
  }
}

function waitingOf(columns: string, listed: string, places: readonly string[], order = places.join(', ')): string {
  return `select ${columns}, ${places.join(', ')}
       from holdfast.${listed} j join holdfast.lane l on l.no = j.lane & ~1 join holdfast.queue q on q.no = l.queue ${joinNoLease}
      order by ${order}`
}

/** The `ord` of jobs that are not held is below 2^56, which is where the first page begins. */
export function heldFrom(place: Place | null): readonly [high: number, low: number] {
  const [high = 0, low = 0] = place ?? [2 ** 24]
  return [high, low]
}

/** A statement that reads jobs of one list from a place on, in its order. */
export interface Source {
  /** Rows of `job` (j, l, q, h, p), of `ended` (e, q), or of both: then the columns of each are given. */
  readonly kind: Kind | 'both'
  readonly values: readonly Value[]
  /** How many columns of the place follow the given columns. */
  readonly places: number
  text(columns: string, endedColumns?: string): string
}

export type Kind = 'live' | 'ended'

interface Walk {
  readonly from: Place | null
  read(from: Place | null, max: number): Source
  markAt(place: Place): Mark
  /** Where the list has ended. */
  readonly end: Mark
  /** How many lists are read together. */
  readonly lists?: number
}

class Scan<Entry> {
  readonly db: Queryable
  readonly filter: JobFilter
  /** The job that is found through a table of keys and not again in its list. */
  holder = 0
  readonly #query: ScanQuery
  readonly #reads: Reads<Entry>
  readonly #page: Page<Entry>
  readonly #isPlain: boolean
  #batchNo: number | null | undefined
  #looked = 0
  #compared = 0
  #statements = 0
  #lists = 0
  #mark: Mark | null = null
  #isMore = false

  constructor(db: Queryable, query: ScanQuery, reads: Reads<Entry>) {
    this.db = db
    this.filter = query.filter
    this.#query = query
    this.#reads = reads
    this.#page = new Page(query.limit)
    this.#isPlain = isOfLists(query.filter) && reads.conditionsOn === undefined
  }

  get isInFlow(): boolean {
    return this.#reads.isInFlow ?? false
  }

  get until(): number {
    return this.#reads.until ?? Number.MAX_SAFE_INTEGER - 1
  }

  get answer(): Scanned<Entry> {
    const next = this.#isMore ? (this.#mark ? encodeCursor(this.#mark) : this.#query.after) : null
    return { entries: this.#page.entries, looked: this.#looked, next }
  }

  /** Null: there is no such batch. */
  async batchNo(): Promise<number | null> {
    if (this.#batchNo !== undefined) return this.#batchNo
    const select = 'select no from holdfast.batch where id = $1 and not is_deleted'
    const [no] = (await this.db.query(select, [this.filter.batch ?? null]))[0] ?? []
    this.#batchNo = no == null ? null : Number(no)
    return this.#batchNo
  }

  /** How many jobs the next statement should find, whichever lists they are in. */
  get wanted(): number {
    return this.#isPlain ? this.#page.rowsLeft : this.#least
  }

  get #least(): number {
    return this.isInFlow ? Math.max(rowsMin, this.#query.limit) : rowsMin
  }

  /** Looks at one list, or at several, from a place on. False: the call ends here. */
  async walk({ from, read, markAt, end, lists = 1 }: Walk): Promise<boolean> {
    for (let at = from, rows = this.#least; ; rows = Math.min(rowsMax, rows * 2)) {
      this.#isMore = this.#page.hasAll || this.#isUsedUp
      if (this.#isMore) return false
      const max = this.#isPlain ? this.#page.rowsLeft : Math.min(rows, bounds.lookMax - this.#looked)
      const looks = await this.#look(read(at, max))
      this.#lists += at === from ? lists : 0
      const before = this.#looked
      for (const { isMatch, columns, bytes, place, turn } of looks) {
        const mark = markAt(place)
        const found = { next: () => encodeCursor(mark), looked: before + turn }
        this.#isMore = isMatch && !this.#page.add(this.#reads.toEntry(columns, found), bytes)
        if (this.#isMore) return false
        this.#mark = mark
        at = place
        this.#looked = before + turn
      }
      const last = looks.at(-1)
      this.#compared += last?.compared ?? 0
      if (last === undefined || (last.total < max && last.turn === last.total)) {
        this.#mark = end
        return true
      }
    }
  }

  /** Takes the holder of a key, if the source has it. A job that has its id now, but another number, is not the holder. */
  async takeHolder(source: Source, seq: number): Promise<boolean> {
    const [look] = await this.#look(source, { checksAll: true }) // it need not be in the lists of the filter
    if (look === undefined || look.place[1] !== seq) return false
    const mark: Mark = ['lists', seq]
    this.#looked += 1
    if (look.isMatch) {
      const found = { next: () => encodeCursor(mark), looked: this.#looked }
      this.#page.add(this.#reads.toEntry(look.columns, found), look.bytes)
    }
    this.#mark = mark
    this.holder = seq
    return true
  }

  /** For a source that is no list: everything that matches. */
  async allOf(source: Source): Promise<readonly Entry[]> {
    const looks = await this.#look(source, { checksAll: true })
    const found = { next: () => '', looked: 0 }
    return looks.filter(({ isMatch }) => isMatch).map(({ columns }) => this.#reads.toEntry(columns, found))
  }

  get #isUsedUp(): boolean {
    if (this.#isPlain) return false
    const isCostly = this.#looked >= bounds.lookMax || this.#compared >= bounds.lookBytes
    return isCostly || this.#statements >= statementsMax || this.#lists >= listsMax
  }

  async #look(source: Source, { checksAll = false } = {}): Promise<Look[]> {
    this.#statements += 1
    const { width, bytes } = this.#reads
    const values: Value[] = [...source.values]
    const given = (value: Value) => `$${values.push(value)}`
    const kinds: readonly Kind[] = source.kind === 'both' ? ['live', 'ended'] : [source.kind]
    const rows: RowsToRead[] = []
    for (const kind of kinds) {
      const comparesTexts = kind === kinds.at(-1) // texts of both kinds are compared by the conditions of the last one
      const conditions = await this.#conditionsOn(kind, given, { comparesTexts, checksAll })
      rows.push({ columns: this.#reads.columnsOf(kind, given), conditions })
    }
    const most = Number.MAX_SAFE_INTEGER
    const text = lookText(source, {
      ...{ rows, width, bytes },
      rowsLeft: given(checksAll ? most : this.#page.rowsLeft),
      bytesLeft: given(checksAll ? most : this.#page.bytesLeft),
      compareLeft: given(checksAll ? most : bounds.lookBytes - this.#compared),
    })
    return (await this.db.query(text, values)).map((row) => toLook(row, width))
  }

  /** Conditions that every job of a list fulfils are compared only if `checksAll`. */
  async #conditionsOn(
    kind: Kind,
    given: (value: Value) => string,
    { comparesTexts, checksAll }: { readonly comparesTexts: boolean; readonly checksAll: boolean },
  ): Promise<Conditions> {
    const { queues, states, enqueued, ended, started, worker, attempts, batch, error, payload } = this.filter
    const { labels, errorGroup } = this.filter
    const way = checksAll ? 'ids' : wayOf(this.filter)
    const job = kind === 'live' ? 'j' : 'e'
    const run = kind === 'live' ? 'h' : 'e'
    const fits: string[] = [...(this.#reads.conditionsOn?.(kind, given) ?? [])]
    const costly: string[] = []
    const compare = (condition: () => string) => comparesTexts && costly.push(condition())
    const within = (column: string, { since, before }: NonNullable<JobFilter['ended']>) => [
      ...(since === undefined ? [] : [`${column} >= ${given(since)}::bigint`]),
      ...(before === undefined ? [] : [`${column} < ${given(before)}::bigint`]),
    ]
    if (queues && way !== 'lists') fits.push(`q.name = any (${given(texts(queues))}::text[])`)
    if (states && way !== 'lists')
      fits.push(`${kind === 'live' ? `(${liveState})` : 'e.state'} = any (${given(toList(states))}::text[])`)
    if (batch !== undefined && way === 'ids')
      fits.push(`${kind === 'live' ? 'l' : 'e'}.batch = ${given((await this.batchNo()) ?? -1)}::int`)
    if (enqueued) fits.push(...within(`${job}.created_at`, enqueued))
    if ((ended || error !== undefined) && kind === 'live') fits.push('false')
    if (ended && kind === 'ended') fits.push(...within('e.finished_at', ended))
    for (const [key, column] of keyColumns) {
      const wanted = this.filter[key]
      if (wanted !== undefined) fits.push(`${column(job)} = ${given(wanted)}::text`)
    }
    if (labels) fits.push(`${job}.labels @> ${given(JSON.stringify(labels))}::jsonb`)
    if (errorGroup !== undefined) {
      fits.push(
        kind === 'live' ? 'false' : `e.state = 'dead' and coalesce(e.error_group, '') = ${given(errorGroup)}::text`,
      )
    }
    if (attempts) {
      const many = kind === 'live' ? 'j.attempts + (h.worker is not null)::int' : 'e.attempts'
      if (attempts.min !== undefined) fits.push(`${many} >= ${given(attempts.min)}::int`)
      if (attempts.max !== undefined) fits.push(`${many} <= ${given(attempts.max)}::int`)
    }
    if (this.holder > 0) fits.push(`${job}.seq <> ${given(this.holder)}::bigint`)
    const asksRun = started !== undefined || worker !== undefined
    if (asksRun) {
      const conditions = (of: string) => [
        ...within(`${of}.started_at`, started ?? {}),
        ...(worker === undefined ? [] : [`${of}.worker = ${given(worker)}::text`]),
      ]
      fits.push(
        `case when ${run}.worker is not null then ${conditions(run).join(' and ')} else ${job}.past is not null end`,
      )
      compare(
        () => `(past is null or exists (select from holdfast.last_run(past) r where ${conditions('r').join(' and ')}))`,
      )
    }
    if (error !== undefined && kind === 'ended') {
      fits.push('e.error is not null')
      compare(() => `strpos(holdfast.error_text(error), ${given(error)}::text) > 0`)
    }
    if (payload) {
      const { path, equals } = payload
      const kindOf = equals === null ? 'null' : typeof equals
      compare(
        () =>
          `holdfast.payload_has(payload, ${given(path)}::text, ${given(kindOf)}::text, ${given(String(equals))}::text)`,
      )
    }
    return {
      fits: fits.length === 0 ? 'true' : fits.join(' and '),
      costly: costly.length === 0 ? 'true' : costly.join(' and '),
      texts: {
        payload: payload ? `${job}.payload` : 'null::text',
        error: error !== undefined && kind === 'ended' ? 'e.error' : 'null::text',
        past: asksRun ? `case when ${run}.worker is null then ${job}.past end` : 'null::text',
      },
    }
  }
}

/** Jobs that one statement looks at: few at first, because the page may be full soon. */
const rowsMin = 500
const rowsMax = 4_000

/** A call ends after so many statements or lists: a store may have thousands of lists with hardly a job. */
const statementsMax = 200
const listsMax = 2_000

const keyColumns = [
  ['dedupKey', (job: string) => `${job}.dedup_key`],
  ['idempotencyKey', (job: string) => `${job}.idempotency_key`],
  ['limitKey', (job: string) => `substr(${job}.limit_key, strpos(${job}.limit_key, ':') + 1)`],
] as const

interface Conditions {
  /** On columns. */
  readonly fits: string
  /** On texts, which are compared only where the others hold. */
  readonly costly: string
  readonly texts: { readonly payload: string; readonly error: string; readonly past: string }
}

const counted: Reads<null> = { columnsOf: () => ['null::text'], width: 1, bytes: '0', toEntry: () => null }

const sizes = ['payload', 'headers', 'result', 'past'] as const

function recordsWith(include: readonly IncludedPart[]): Reads<FoundJob> {
  return {
    columnsOf: (kind) => columnsOf(kind, include),
    width: recordWidth + sizes.length,
    bytes: longColumns.map((no) => `coalesce(octet_length(c${no}), 0)`).join(' + '),
    toEntry: (columns) => toFound(columns, include),
  }
}

function columnsOf(kind: Kind, include: readonly IncludedPart[]): string[] {
  const job = kind === 'live' ? 'j' : 'e'
  const bytes = sizes.map((column) =>
    column === 'result' && kind === 'live' ? '0' : `coalesce(octet_length(${job}.${column}), 0)`,
  )
  return [kind === 'live' ? liveColumnsWith(include) : endedColumnsWith(include), ...bytes]
}

/** Columns and conditions of the rows of one kind. */
interface RowsToRead {
  readonly columns: readonly string[]
  readonly conditions: Conditions
}

interface LookParts extends Pick<Reads<unknown>, 'width' | 'bytes'> {
  /** For each kind of the source. */
  readonly rows: readonly RowsToRead[]
  readonly rowsLeft: string
  readonly bytesLeft: string
  readonly compareLeft: string
}

/**
 * The jobs of a source for which the conditions hold, as many as the page takes and one more, and the last job that it looked
 * at. It looks at no more jobs once it has compared so many bytes. `octet_length` reads no text that is stored out of line.
 */
function lookText(source: Source, parts: LookParts): string {
  const { rows, width, bytes, rowsLeft, bytesLeft, compareLeft } = parts
  const costly = rows.at(-1)?.conditions.costly // live jobs have no error: for them the conditions on columns do not hold
  const answered = Array.from({ length: width }, (_, i) => `c${i + 1}`)
  const places = Array.from({ length: source.places }, (_, i) => `p${i + 1}`)
  const read = rows.map(({ columns, conditions: { fits, texts: compared } }) =>
    [...columns, fits, compared.payload, compared.error, compared.past].join(', '),
  )
  return `select ${[...answered, ...places]}, is_match, bytes, turn, total, compared
    from (select *, count(*) filter (where is_match) over w as hits,
                 coalesce(sum(bytes) filter (where is_match) over w, 0) as until, max(turn) over () as last
            from (select *, case when fits then ${costly} else false end as is_match,
                         ${bytes} as bytes
                    from (select *, row_number() over w as turn, count(*) over () as total,
                                 sum(weight) over w as compared
                            from (select *, case when fits then coalesce(octet_length(payload), 0)
                                              + coalesce(octet_length(error), 0) + coalesce(octet_length(past), 0)
                                              else 0 end as weight
                                    from (${source.text(read[0] ?? '', read[1])}) read(${[...answered, 'fits', 'payload', 'error', 'past', ...places]})
                                 ) weighed
                          window w as (rows unbounded preceding)) numbered
                   where compared - weight <= ${compareLeft}::bigint) compared
          window w as (rows unbounded preceding)) found
   where (is_match and hits <= ${rowsLeft}::bigint and (until - bytes <= ${bytesLeft}::bigint or hits <= 2)) or turn = last`
}

/** A job that matches, or the last one that was looked at. */
interface Look {
  readonly columns: Row
  readonly place: Place
  readonly isMatch: boolean
  readonly bytes: number
  /** Its position among the jobs that the statement has read. */
  readonly turn: number
  /** How many the statement has read. */
  readonly total: number
  readonly compared: number
}

function toLook(row: Row, width: number): Look {
  const [isMatch, ...numbers] = row.slice(-5)
  const [bytes = 0, turn = 0, total = 0, compared = 0] = numbers.map(Number)
  const columns = row.slice(0, width)
  return { columns, place: row.slice(width, -5).map(Number), isMatch: isMatch === 't', bytes, turn, total, compared }
}

function toFound(row: Row, include: readonly IncludedPart[]): FoundJob {
  const { payload, headers, result, history, changes, error, ...rest } = toRecord(row.slice(0, recordWidth))
  const [payloadBytes = 0, headersBytes = 0, resultBytes = 0, historyBytes = 0] = row.slice(recordWidth).map(Number)
  return {
    ...rest,
    error: error && (include.includes('error') ? error : summaryOf(error)),
    ...{ payloadBytes, headersBytes, resultBytes, historyBytes },
    ...(include.includes('payload') && { payload }),
    ...(include.includes('headers') && { headers }),
    ...(include.includes('result') && { result }),
    ...(include.includes('history') && { history, changes }),
  }
}

/** `order`: of the states. */
function isMark([way, ...rest]: readonly unknown[], order: readonly JobState[]): boolean {
  if (way !== 'lists') return isItemsOrIds(way, rest)
  const [holder, queue, state, ...place] = rest
  if (!isNumber(holder, Number.MAX_SAFE_INTEGER)) return false
  if (rest.length === 1) return true
  if (typeof queue !== 'string' || !isNumber(state, order.length)) return false
  return place.length === 0 || isPlace(place, order[state as number])
}

function isItemsOrIds(way: unknown, [part, ...place]: readonly unknown[]): boolean {
  if (!isNumber(part, way === 'labels' ? Number.MAX_SAFE_INTEGER : 3)) return false
  if (way === 'labels') return place.length === 0
  if (way === 'ids') return place.length === 1 && isNumber(place[0], bounds.filterListMax)
  if (place.length === 0) return true
  const [lane, second, third] = place
  if (part === 0) return place.length === 1 && isNumber(lane, Number.MAX_SAFE_INTEGER)
  const [most, least] = part === 1 ? [Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER] : [0x7fffffff, 0xffffffff]
  return place.length === 3 && isNumber(lane, 0x7fffffff) && isNumber(second, most) && isNumber(third, least)
}

/** Checks a place of `jobsOfList`. That of a ready job begins with its priority, and 0 if it was released or rescued. */
function isPlace([a, b, ...rest]: readonly unknown[], state: JobState | undefined): boolean {
  if (![a, b, ...rest].filter((each) => each !== undefined).every(Number.isSafeInteger)) return false
  if (state === 'running') return b === undefined
  if (state !== 'ready') return b !== undefined && rest.length === 0
  return Number(a) >= 0 && Number(a) <= bounds.priorityMax && (b === 0 || b === 1) && rest.length === 2
}

function isNumber(value: unknown, max: number): boolean {
  return Number.isSafeInteger(value) && Number(value) >= 0 && Number(value) <= max
}
