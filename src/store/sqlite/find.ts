// Finds jobs by a filter. A step looks at a bounded number of jobs, so that other calls run between two steps of one call.
//
// Which jobs are looked at: those with the ids, or else the items of the batch, or else the jobs that have a label, or else the
// holder of a key and then the lists by queue and state. Lists use only indexes that the hot path needs anyway. Conditions on
// columns are one statement for many jobs; conditions on texts (an error, a payload, the last of the past
// attempts) are compared here, as `matches` does.

import { bounds } from '../../job/bounds.ts'
import { byteLength } from '../../job/codec.ts'
import { hasError, hasPayload, hasRun, isOfLists, type JobFilter, possibleStates } from '../../job/filter.ts'
import type { Labels } from '../../job/labels.ts'
import type { EndState, FoundJob, JobState } from '../../job/record.ts'
import { decodeError, decodePast } from '../../job/stored.ts'
import { Page } from '../page.ts'
import { decodeCursor, encodeCursor } from '../page-cursor.ts'
import type { FindQuery } from '../store.ts'
import { type EndedPlace, findById, isEnded, newestFirst } from './job.ts'
import type { QueueRow } from './queue.ts'
import { readFound } from './read.ts'
import type { SqliteTransaction } from './transaction.ts'

/** One step of a call. */
export interface FindStep extends FindQuery {
  /** Jobs are only counted. */
  readonly isCount: boolean
  /** Bytes of the page that earlier steps have filled. */
  readonly bytes: number
  readonly lookMax: number
  /** Bytes of texts that may be compared. */
  readonly compareMax: number
}

interface Looked {
  readonly looked: number
  readonly compared: number
  /** The page takes no more. */
  readonly isFull: boolean
  readonly next: string | null
}

export interface FoundStep extends Looked {
  readonly jobs: readonly FoundJob[]
  readonly count: number
  readonly bytes: number
}

/** One step of a change of many jobs: it looks for the numbers of jobs. */
export interface FindSeqsStep extends Pick<FindStep, 'filter' | 'after' | 'limit' | 'lookMax' | 'compareMax'> {
  /** Jobs with higher numbers are left out. */
  readonly until: number
}

export interface FoundSeqs extends Looked {
  readonly seqs: readonly number[]
}

/** The order of lists in a listing. */
const listed: readonly JobState[] = ['running', 'ready', 'held', 'scheduled', 'dead', 'cancelled', 'done']
/** The direction in which jobs move, for a change of them. */
const flow: readonly JobState[] = ['scheduled', 'held', 'ready', 'running', 'dead', 'cancelled', 'done']

/**
 * Where a page ended:
 *
 * - `ids`: how many ids were looked at;
 * - `items`: the number of the last item;
 * - `labels`: the number of the last job that has one of the labels, newest first;
 * - `lists`: the holder of the key, which comes first and not again in its list (0: none); then queue, state, and the last job's
 *   place in that list. Without a queue: only the holder was looked at.
 */
type Mark = IdsMark | ItemsMark | LabelsMark | ListsMark
type IdsMark = readonly ['ids', number]
type ItemsMark = readonly ['items', number]
type LabelsMark = readonly ['labels', number]
type ListsMark = readonly ['lists', number] | readonly ['lists', number, string, number, ...Place]

/** Rising. Lists of finished jobs are read backwards, so their places are negated. */
type Place = readonly [x: number | string, y: number, z: number]

interface ListedRow {
  /** 0: there is no such job. */
  readonly seq: number
  readonly place: Place
}

export function findJobs(tx: SqliteTransaction, step: FindStep): FoundStep {
  const { isCount, include } = step
  const read = (seq: number) => (isCount ? { job: null, bytes: 0 } : readFound(tx, seq, include))
  const scan = new Scan<FoundJob | null>(tx, { ...step, states: listed }, read)
  walk(scan, step)
  const { entries, bytes, answer } = scan
  return { jobs: entries.filter((job) => job !== null), count: entries.length, bytes, ...answer }
}

export function findSeqs(tx: SqliteTransaction, step: FindSeqsStep): FoundSeqs {
  const scan = new Scan<number>(tx, { ...step, bytes: 0, states: flow }, (seq) => ({ job: seq, bytes: 0 }))
  walk(scan, step)
  return { seqs: scan.entries, ...scan.answer }
}

function walk<Found>(scan: Scan<Found>, { filter, after }: Pick<FindStep, 'filter' | 'after'>): void {
  const isOurs = (value: readonly unknown[]) => value[0] === wayOf(filter) && isMark(value, scan.states)
  const mark = after === null ? null : decodeCursor<Mark>(after, isOurs)
  if (filter.ids !== undefined) walkIds(scan, filter.ids, mark as IdsMark | null)
  else if (filter.batch !== undefined) walkItems(scan, filter.batch, mark as ItemsMark | null)
  else if (filter.labels !== undefined) walkLabels(scan, filter.labels, mark as LabelsMark | null)
  else walkLists(scan, filter, mark as ListsMark | null)
}

function wayOf({ ids, batch, labels }: JobFilter): Mark[0] {
  if (ids !== undefined) return 'ids'
  if (batch !== undefined) return 'items'
  return labels === undefined ? 'lists' : 'labels'
}

function walkIds<Found>(scan: Scan<Found>, ids: readonly string[], mark: IdsMark | null): void {
  const { tx } = scan
  scan.walk({
    from: [mark?.[1] ?? 0, 0, 0],
    read: ([from], max) =>
      ids
        .slice(from as number, (from as number) + max)
        .map((id, i) => ({ seq: findById(tx, id)?.seq ?? 0, place: [(from as number) + i + 1, 0, 0] })),
    markAt: ([at]) => ['ids', at as number],
  })
}

export const selectItems =
  'select seq from holdfast_job where batch = ? and batch > 0 and seq > ? order by seq limit +?'

/** In the order of their submission, in whatever state they are. */
function walkItems<Found>(scan: Scan<Found>, id: string, mark: ItemsMark | null): void {
  const { tx } = scan
  const batch = tx.batches.find(id)
  if (!batch) return
  scan.walk({
    from: [mark?.[1] ?? 0, 0, 0],
    read: ([from], max) =>
      tx.db.all<{ seq: number }>(selectItems, batch.no, from, max).map(({ seq }) => ({ seq, place: [seq, 0, 0] })),
    markAt: ([seq]) => ['items', seq as number],
  })
}

export const selectLabelled =
  'select seq from holdfast_label where name = ? and value = ? and seq < ? order by seq desc limit +?'

/**
 * Newest first, by the rarest label. The others are compared job by job. A mark is a job's number, so the next page may go by
 * another label.
 */
function walkLabels<Found>(scan: Scan<Found>, labels: Labels, mark: LabelsMark | null): void {
  const { tx } = scan
  const before = mark?.[1] ?? Number.MAX_SAFE_INTEGER
  const [name, value] = rarestOf(tx, labels, before)
  scan.walk({
    from: [before, 0, 0],
    read: ([from], max) =>
      tx.db
        .all<{ seq: number }>(selectLabelled, name, value, from, max)
        .map(({ seq }) => ({ seq, place: [seq, 0, 0] })),
    markAt: ([seq]) => ['labels', seq as number],
  })
}

/** The label with the fewest jobs before this number, as far as they are counted; the first of several. */
function rarestOf(tx: SqliteTransaction, labels: Labels, before: number): readonly [name: string, value: string] {
  const all = Object.entries(labels)
  const [only] = all as [[string, string]]
  if (all.length < 2) return only
  const jobsOf = ([name, value]: readonly [string, string]) =>
    tx.db.all(selectLabelled, name, value, before, bounds.labelledCountMax).length
  const counts = all.map(jobsOf)
  return all[counts.indexOf(Math.min(...counts))] ?? only
}

interface List {
  readonly queue: QueueRow
  readonly state: JobState
  /** Ended jobs that ended before this are not listed. */
  readonly since: number
  /** Only dead jobs of this error group are listed; undefined: all. */
  readonly group: string | undefined
}

function walkLists<Found>(scan: Scan<Found>, filter: JobFilter, mark: ListsMark | null): void {
  const { tx, states } = scan
  const holder = mark === null ? lookAtHolder(scan, filter) : mark[1]
  const [, , name, index, ...place] = mark ?? []
  for (const queue of queuesOf(tx, filter)) {
    if (name !== undefined && queue.name < name) continue
    for (const state of possibleStates(filter, states)) {
      const at = states.indexOf(state)
      const isBefore = queue.name === name && at < (index as number)
      if (isBefore || queue[state] === 0) continue
      const group = filter.errorGroup || undefined // jobs that died before errors were grouped are in no index
      const list = { queue, state, group, since: filter.ended?.since ?? Number.MIN_SAFE_INTEGER }
      const isInside = queue.name === name && at === index
      const isGoingOn = scan.walk({
        from: isInside ? (place as unknown as Place) : startOf(state, filter),
        read: (from, max) => readList(tx, list, from, max),
        markAt: (to) => ['lists', holder, queue.name, at, ...to],
        skip: holder,
      })
      if (!isGoingOn) return
    }
  }
}

export function queuesOf(tx: SqliteTransaction, { queues }: JobFilter): QueueRow[] {
  return queues === undefined ? tx.queues() : tx.queues().filter(({ name }) => queues.includes(name))
}

/** The job that has the key now is found through the table of keys. Other jobs that had it are found in their lists. */
function lookAtHolder<Found>(scan: Scan<Found>, filter: JobFilter): number {
  const { queues, dedupKey, idempotencyKey } = filter
  const queue = queues?.length === 1 ? scan.tx.findQueue(queues[0] as string) : undefined
  const key = dedupKey ?? idempotencyKey
  if (!queue || key === undefined) return 0
  const table = dedupKey === undefined ? 'holdfast_idempotency' : 'holdfast_dedup'
  const row = scan.tx.db.get<{ seq: number }>(`select seq from ${table} where queue = ? and key = ?`, queue.no, key)
  if (!row) return 0
  return scan.lookAtHolder(row.seq)
}

/** In the list of held jobs the first value is a limit key, in all others a number. */
function startOf(state: JobState, { ended }: JobFilter): Place {
  const least = Number.MIN_SAFE_INTEGER
  if (ended?.before !== undefined) return [-ended.before, Number.MAX_SAFE_INTEGER, least]
  return [state === 'held' ? '' : least, least, least]
}

interface Walk {
  readonly from: Place
  read(from: Place, max: number): readonly ListedRow[]
  markAt(place: Place): Mark
  /** A job that was looked at before. */
  readonly skip?: number
}

interface ScanStep extends Pick<FindStep, 'filter' | 'after' | 'limit' | 'bytes' | 'lookMax' | 'compareMax'> {
  readonly states: readonly JobState[]
  readonly until?: number
}

class Scan<Found> {
  readonly tx: SqliteTransaction
  readonly states: readonly JobState[]
  readonly #step: ScanStep
  readonly #read: (seq: number) => { readonly job: Found; readonly bytes: number } | undefined
  readonly #page: Page<Found>
  readonly #until: number
  readonly #isPlain: boolean
  readonly #conditions: Conditions
  #looked = 0
  #compared = 0
  #mark: Mark | null = null
  #isMore = false

  constructor(
    tx: SqliteTransaction,
    step: ScanStep,
    read: (seq: number) => { readonly job: Found; readonly bytes: number } | undefined,
  ) {
    this.tx = tx
    this.states = step.states
    this.#step = step
    this.#read = read
    this.#page = new Page(step.limit, step.bytes)
    this.#until = step.until ?? Number.POSITIVE_INFINITY
    this.#isPlain = isOfLists(step.filter) && step.until === undefined // else not every job that is looked at is found
    this.#conditions = new Conditions(tx, step.filter)
  }

  /** Looks at one list, from a place on. False: the step ends here. */
  walk({ from, read, markAt, skip = 0 }: Walk): boolean {
    for (let at = from; ; ) {
      const max = this.#isPlain ? this.#page.rowsLeft : Math.min(rowsMax, this.#step.lookMax - this.#looked + 1)
      const rows = read(at, max)
      const fitting = this.#isPlain ? null : this.#conditions.fitting(rows.map(({ seq }) => seq))
      for (const { seq, place } of rows) {
        if (seq !== 0 && seq !== skip && !this.#look(seq, fitting)) return false
        this.#mark = markAt(place)
        at = place
      }
      if (rows.length < max) return true
    }
  }

  /** Answers the holder if it was looked at, and 0 if it is gone. */
  lookAtHolder(seq: number): number {
    if (!this.tx.db.get('select 1 from holdfast_job where seq = ?', seq)) return 0
    this.#look(seq, this.#conditions.fitting([seq]))
    this.#mark = ['lists', seq]
    return seq
  }

  get entries(): readonly Found[] {
    return this.#page.entries
  }

  get bytes(): number {
    return this.#page.bytes
  }

  get answer(): Looked {
    const { hasAll, isCut } = this.#page
    const at = this.#mark === null ? this.#step.after : encodeCursor(this.#mark)
    return {
      looked: this.#looked,
      compared: this.#compared,
      isFull: hasAll || isCut,
      next: this.#isMore ? at : null,
    }
  }

  /** False: the step ends before this job. */
  #look(seq: number, fitting: ReadonlySet<number> | null): boolean {
    const { lookMax, compareMax } = this.#step
    const isUsedUp = !this.#isPlain && (this.#looked >= lookMax || this.#compared >= compareMax)
    this.#isMore = isUsedUp || this.#page.hasAll
    if (this.#isMore) return false
    if (fitting === null || (seq <= this.#until && fitting.has(seq) && this.#hasTexts(seq))) {
      const found = this.#read(seq)
      this.#isMore = found !== undefined && !this.#page.add(found.job, found.bytes)
      if (this.#isMore) return false
    }
    this.#looked += 1
    return true
  }

  #hasTexts(seq: number): boolean {
    const { isTrue, bytes } = this.#conditions.compareTexts(seq)
    this.#compared += bytes
    return isTrue
  }
}

/** Rows of a list that are read at once. */
const rowsMax = 500

const selectFitting = `select j.seq from json_each(?1) s cross join holdfast_job j on j.seq = s.value
    left join holdfast_lease l on l.seq = j.seq
    left join holdfast_claim c on c.no = l.claim
    left join holdfast_ended e on e.seq = j.seq
    left join holdfast_retention_class r on r.no = e.retention_class
   where (?2 is null or j.queue in (select value from json_each(?2)))
     and (?3 is null or case when r.no is not null then r.state when l.seq is not null then 'running'
                             when j.held = 1 then 'held' when j.ord is not null then 'ready'
                             else 'scheduled' end in (select value from json_each(?3)))
     and (?4 is null or j.batch = ?4)
     and (?5 is null or j.limit_key = ?5)
     and (?6 is null or j.dedup_key = ?6)
     and (?7 is null or j.idempotency_key = ?7)
     and j.created_at >= ?8 and j.created_at < ?9
     and (?10 is null or (e.finished_at >= ?10 and e.finished_at < ?11))
     and case when e.seq is null then coalesce(l.attempt, j.attempts) else e.attempts end between ?12 and ?13
     and (?14 = 0 or e.error is not null)
     and (?15 = 0 or c.no is not null or e.attempt is not null or j.past is not null)
     and (?16 is null or (r.state = 'dead' and coalesce(e.error_group, '') = ?16))
     and (?17 is null or not exists (
           select 1 from json_each(?17) w
            where not exists (select 1 from holdfast_label b where b.name = w.key and b.value = w.value and b.seq = j.seq)))`

const selectTexts = `select iif(?2, j.payload, null) as payload, iif(?3, e.error, null) as error, iif(?4, j.past, null) as past,
       coalesce(c.worker, e.worker) as worker, coalesce(c.started_at, e.started_at) as started_at
  from holdfast_job j left join holdfast_lease l on l.seq = j.seq left join holdfast_claim c on c.no = l.claim
  left join holdfast_ended e on e.seq = j.seq
 where j.seq = ?1`

interface Texts {
  readonly payload: string | null
  readonly error: string | null
  readonly past: string | null
  readonly worker: string | null
  readonly started_at: number | null
}

/** Of these jobs, those that match now. */
export function stillMatching(tx: SqliteTransaction, filter: JobFilter, seqs: readonly number[]): number[] {
  const conditions = new Conditions(tx, filter)
  const fitting = conditions.fitting(seqs)
  return seqs.filter((seq) => fitting.has(seq) && conditions.compareTexts(seq).isTrue)
}

class Conditions {
  readonly #tx: SqliteTransaction
  readonly #filter: JobFilter
  readonly #values: readonly (string | number | null)[]
  readonly #asksRun: boolean

  constructor(tx: SqliteTransaction, filter: JobFilter) {
    const { queues, states, batch, enqueued, ended, attempts } = filter
    this.#tx = tx
    this.#filter = filter
    this.#asksRun = filter.started !== undefined || filter.worker !== undefined
    this.#values = [
      queues === undefined ? null : JSON.stringify(queuesOf(tx, filter).map(({ no }) => no)),
      states === undefined ? null : JSON.stringify(states),
      batch === undefined ? null : (tx.batches.find(batch)?.no ?? -1),
      ...[filter.limitKey ?? null, filter.dedupKey ?? null, filter.idempotencyKey ?? null],
      ...[enqueued?.since ?? Number.MIN_SAFE_INTEGER, enqueued?.before ?? Number.MAX_SAFE_INTEGER],
      ...(ended === undefined ? [null, null] : [ended.since ?? 0, ended.before ?? Number.MAX_SAFE_INTEGER]),
      ...[attempts?.min ?? 0, attempts?.max ?? Number.MAX_SAFE_INTEGER],
      ...[filter.error === undefined ? 0 : 1, this.#asksRun ? 1 : 0],
      ...[filter.errorGroup ?? null, filter.labels === undefined ? null : JSON.stringify(filter.labels)],
    ]
  }

  /** Of these jobs, those for which the conditions on columns hold. */
  fitting(seqs: readonly number[]): Set<number> {
    const rows = this.#tx.db.allTuples<[number]>(selectFitting, JSON.stringify(seqs), ...this.#values)
    return new Set(rows.map(([seq]) => seq))
  }

  /** Whether the conditions on texts hold as well, and the bytes that were compared. */
  compareTexts(seq: number): { readonly isTrue: boolean; readonly bytes: number } {
    const { payload, error, started, worker } = this.#filter
    const asked = [payload !== undefined, error !== undefined, this.#asksRun]
    if (!asked.includes(true)) return { isTrue: true, bytes: 0 }
    const texts = this.#tx.db.get<Texts>(selectTexts, seq, ...asked.map(Number))
    if (!texts) return { isTrue: false, bytes: 0 }
    return {
      bytes: bytesOf(texts),
      isTrue:
        (error === undefined || hasError(error, decodeError(texts.error))) &&
        hasRun({ ...(started && { started }), ...(worker !== undefined && { worker }) }, lastRun(texts)) &&
        (payload === undefined || hasPayload(payload, texts.payload ?? '')),
    }
  }
}

function lastRun({ worker, started_at, past }: Texts) {
  return worker !== null && started_at !== null ? { worker, startedAt: started_at } : decodePast(past).at(-1)
}

function bytesOf({ payload, error, past }: Texts): number {
  return [payload, error, past].reduce((sum, text) => sum + (text === null ? 0 : byteLength(text)), 0)
}

/** The lists of live jobs, from a place on. */
export const selectOfList: Readonly<Record<Exclude<JobState, EndState>, string>> = {
  running: `select l.seq, l.seq as x, 0 as y, 0 as z from holdfast_lease l join holdfast_job j on j.seq = l.seq
     where j.queue = ? and (l.seq, 0, 0) > (?, ?, ?) order by l.seq limit +?`,
  ready: `select seq, batch as x, priority as y, ord as z from holdfast_ready
     where queue = ? and (batch, priority, ord) > (?, ?, ?) order by batch, priority, ord limit +?`,
  held: `select seq, key as x, (batch << 4) + priority as y, ord as z from holdfast_held
     where queue = ?1 and (key, batch, priority, ord) > (?2, ?3 >> 4, ?3 & 15, ?4)
     order by key, batch, priority, ord limit +?5`,
  scheduled: `select seq, run_at as x, seq as y, 0 as z from holdfast_scheduled
     where queue = ? and (run_at, seq, 0) > (?, ?, ?) order by run_at, seq limit +?`,
}

function readList(tx: SqliteTransaction, { queue, state, since, group }: List, from: Place, max: number): ListedRow[] {
  if (isEnded(state)) {
    const place = { finishedAt: -Number(from[0]), seq: -from[1] }
    return listEnded(tx, queue, state, { from: place, since, max, group })
  }
  return tx.db
    .all<{ seq: number; x: number | string; y: number; z: number }>(selectOfList[state], queue.no, ...from, max)
    .map(({ seq, x, y, z }) => ({ seq, place: [x, y, z] as const }))
}

export const selectEnded = `select seq, finished_at from holdfast_ended
   where retention_class = ? and (finished_at, seq) < (?, ?) and finished_at >= ? order by finished_at desc, seq desc limit +?`
export const selectGroup = selectEnded.replace('where', 'where error_group = ? and')

interface EndedRange {
  readonly from: EndedPlace
  readonly since: number
  readonly max: number
  readonly group: string | undefined
}

function listEnded(tx: SqliteTransaction, queue: QueueRow, state: EndState, range: EndedRange) {
  const { from, since, max, group } = range
  const read = (no: number) => {
    const values = [no, from.finishedAt, from.seq, since, max]
    return group === undefined
      ? tx.db.all<{ seq: number; finished_at: number }>(selectEnded, ...values)
      : tx.db.all<{ seq: number; finished_at: number }>(selectGroup, group, ...values)
  }
  return tx
    .retentionClasses(queue, state)
    .flatMap(({ no }) => read(no))
    .sort(newestFirst)
    .slice(0, max)
    .map(({ seq, finished_at }) => ({ seq, place: [-finished_at, -seq, 0] as const }))
}

function isMark([way, ...rest]: readonly unknown[], states: readonly JobState[]): boolean {
  if (way !== 'lists') return rest.length === 1 && isCount(rest[0])
  const [holder, queue, state, first, ...place] = rest
  if (!isCount(holder) || rest.length === 1) return isCount(holder)
  const list = states[state as number]
  if (rest.length !== 6 || typeof queue !== 'string' || list === undefined) return false
  const isPlace = list === 'held' ? typeof first === 'string' : Number.isSafeInteger(first)
  return isPlace && place.every(Number.isSafeInteger)
}

function isCount(value: unknown): boolean {
  return Number.isSafeInteger(value) && Number(value) >= 0
}

/** Jobs, and bytes of compared texts, of one step: a claim that waits for it waits some milliseconds. */
const stepLooks = 2_000
const stepBytes = 2 * 1024 * 1024

/** Looks until the page is full, or the bound of looking for one call is reached. */
export async function lookOn<Found extends Looked>(
  run: (step: Pick<FindStep, 'after' | 'lookMax' | 'compareMax'>) => Promise<Found>,
  start: string | null,
): Promise<{ readonly looked: number; readonly next: string | null }> {
  const sums = { looked: 0, compared: 0 }
  for (let after = start; ; ) {
    const step = await run({
      after,
      lookMax: Math.min(stepLooks, bounds.lookMax - sums.looked),
      compareMax: Math.min(stepBytes, bounds.lookBytes - sums.compared),
    })
    sums.looked += step.looked
    sums.compared += step.compared
    const isUsedUp = sums.looked >= bounds.lookMax || sums.compared >= bounds.lookBytes
    if (step.next === null || step.isFull || isUsedUp) return { looked: sums.looked, next: step.next }
    after = step.next
  }
}

/** All steps of one call. */
export async function inSteps(
  run: (step: FindStep) => Promise<FoundStep>,
  query: FindQuery,
  { isCount }: { readonly isCount: boolean },
): Promise<{ jobs: FoundJob[]; count: number; looked: number; next: string | null }> {
  const jobs: FoundJob[] = []
  const sums = { count: 0, bytes: 0 }
  const found = await lookOn(async (look) => {
    const step = await run({ ...query, ...look, isCount, bytes: sums.bytes, limit: query.limit - sums.count })
    for (const job of step.jobs) jobs.push(job)
    sums.count += step.count
    sums.bytes = step.bytes
    return step
  }, query.after)
  return { jobs, count: sums.count, ...found }
}
