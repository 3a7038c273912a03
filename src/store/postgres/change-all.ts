// Changes all jobs that match a filter: one bounded step. Which rows and locks that takes, in which order, and what happens
// beside it, is in `schema/functions/lock-found.ts`.
//
//   1. Look, without locks: up to 1,000 jobs that match, each with its place in the walk (`find.ts`).
//   2. A dry run counts them, and ends here.
//   3. In one transaction: lock them, compare the filter again, and change those that still match, as sets.
//   4. After the commit: held jobs are admitted, batches are checked, workers of cancelled jobs are notified.
//
// BUSY JOBS. What a requeue needs besides the row of a job, such as its dedup key, an open transaction of an application may have
// (`schema/functions/requeue.ts`). Then the transaction is undone, and the step is made in parts: each half as large as the one
// before, until a job is alone and still busy. It is left, the parts become larger again, and in the end the jobs that were left
// are tried twice more. Those that are still busy are skipped, for the reason `busy`. So
//
// - one open transaction delays a step by a second or two at most, and no other job;
// - no key that one part has taken is kept while another part waits: each part commits, or is undone, before the next one;
// - after 20 busy jobs the step ends early, and the next one goes on behind them. So a step is bounded, however many are busy;
// - a crash between two parts leaves the jobs of the first part requeued, as a crash between two steps does.
//
// WHICH JOBS. `until` has the newest job number and the time at the first step. Numbers are drawn in the order of enqueues, so
// jobs that were enqueued later have higher ones. A transaction that drew its numbers before and commits later counts as
// earlier. A requeue leaves jobs alone that ended after that time: a job that this walk has requeued, and that has ended again,
// is not requeued twice.

import { setTimeout as sleep } from 'node:timers/promises'
import { toError } from '../../errors.ts'
import { bounds } from '../../job/bounds.ts'
import type { JobFilter } from '../../job/filter.ts'
import type { ChangeByHand, JobState } from '../../job/record.ts'
import { unknownPage } from '../refusals.ts'
import type { BulkChange, ChangeAllRequest, ChangedStep, SkippedJobs, SkipReason } from '../store.ts'
import type { Row, Value } from './connection/call.ts'
import { list, texts } from './connection/columns.ts'
import { isDataError } from './connection/data-error.ts'
import type { Database, PgTransaction } from './connection/database.ts'
import { isBusy } from './connection/failures.ts'
import { type RequeueBlock, recordByHand, revive } from './control.ts'
import { deleteWaiting, type Followed, finishJobs, makeFirst } from './ends.ts'
import type { StoreContext } from './enqueue.ts'
import { type Found, type Kind, matchesOf, type Reads, type Scanned, type Source, scanJobs } from './find.ts'
import { joinProgress, liveState } from './read.ts'
import { endedColumns } from './schema/functions/requeue.ts'

/** Jobs that one step changes. */
const stepMax = 1_000

export async function changeAll(context: StoreContext, request: ChangeAllRequest): Promise<ChangedStep> {
  const { change, dryRun, after } = request
  const scope = await scopeOf(context.db, request)
  const filter = filterOf(request, scope)
  const reads = refsFor(change, filter, scope)
  const look = withoutRepeats(await scanJobs(context.db, { filter, after, limit: stepMax }, reads))
  const made = {
    ...(await (dryRun ? count(context.db, change, look) : make(context, request, { filter, reads, look }))),
  }
  return { ...made, until: encodeUntil(scope) }
}

/** A look is several statements. A job that moves to another list in between is found in both. */
function withoutRepeats(look: Scanned<Ref>): Scanned<Ref> {
  const bySeq = new Map<string, Ref>()
  for (const ref of look.entries) if (!bySeq.has(ref.seq)) bySeq.set(ref.seq, ref)
  return { ...look, entries: [...bySeq.values()] }
}

/** The jobs that existed when the first step began, and the time of this step. */
interface Scope {
  readonly newest: number
  readonly begunAt: number
  readonly now: number
}

async function scopeOf(db: Database, { until, change, filter }: ChangeAllRequest): Promise<Scope> {
  const text = `select holdfast.now_ms($1), coalesce(pg_sequence_last_value('holdfast.number'::regclass), 0),
      case when not $2 then null when $3 then holdfast.newest_end($4, $5) else (select max(l.started_at) from holdfast.lease l) end`
  const { queues = null, states = [] } = filter
  const ended = [queues && texts(queues), list(states)]
  const [row] = await db.query(text, [db.now, until === null, change.as === 'requeue', ...ended])
  const [now, newest] = [Number(row?.[0]), Number(row?.[1])]
  const begunAt = Math.max(now, Number(row?.[2] ?? 0)) // later than now, if the clock was set back
  return { ...(until === null ? { newest, begunAt } : decodeUntil(until)), now }
}

function encodeUntil({ newest, begunAt }: Scope): string {
  return `${newest}.${begunAt}`
}

function decodeUntil(until: string): Pick<Scope, 'newest' | 'begunAt'> {
  const [, newest, begunAt] = /^(\d{1,15})\.(\d{1,15})$/.exec(until) ?? []
  if (newest === undefined || begunAt === undefined) throw toError(unknownPage())
  return { newest: Number(newest), begunAt: Number(begunAt) }
}

function filterOf({ filter, change }: ChangeAllRequest, { begunAt }: Scope): JobFilter {
  if (change.as !== 'requeue') return filter
  const before = Math.min(filter.ended?.before ?? Number.MAX_SAFE_INTEGER, begunAt + 1)
  return { ...filter, ended: { ...filter.ended, before } }
}

/** A job that matches. */
interface Ref {
  readonly id: string
  readonly seq: string
  readonly state: JobState
  readonly queue: string
  /** The number of its batch; 0: of none. */
  readonly batch: number
  readonly keyRef: string | null
  readonly attempts: number
  /** Why it cannot be changed. */
  readonly reason: SkipReason | null
  /** It is a flow run that has begun. */
  readonly hasJournal: boolean
  /** The lane of a live job. */
  readonly lane: string | null
  /** The columns by which the partition of an ended job is found. */
  readonly retentionClass: string | null
  readonly keepUntil: string | null
  readonly found: Found
}

const width = 13

function refsFor(change: BulkChange, filter: JobFilter, scope: Scope): Reads<Ref> {
  return {
    ...{ width, bytes: `c${width}::int`, isInFlow: true, until: scope.newest },
    columnsOf: (kind, given) => (kind === 'live' ? liveRef(change, given) : endedRef(change)),
    conditionsOn: (kind, given) => [
      `${kind === 'live' ? 'j' : 'e'}.seq <= ${given(scope.newest)}::bigint`,
      ...(kind === 'live' ? [...asWanted(change, scope, given), ...fromBeginning(filter, scope, given)] : []),
    ],
    toEntry: toRef,
  }
}

function liveRef(change: BulkChange, given: (value: Value) => string): string[] {
  const isTooLate = (runAt: number) => `j.attempts + j.free_releases = 0 and j.start_before <= ${given(runAt)}::bigint`
  const reason =
    change.as === 'delete'
      ? `case when ${liveState} = 'running' then 'running' end`
      : change.as === 'reschedule'
        ? `case when ${isTooLate(change.runAt)} then 'startBefore' end`
        : 'null::text'
  const named = ['j.id', 'j.seq', liveState, 'q.name', 'l.batch', 'j.limit_key', 'j.attempts', reason]
  return [...named, 'j.lane', 'null::smallint', 'null::bigint', 'j.has_journal', '0']
}

/** A requeue reads the histories and errors of its jobs, so these count as bytes of its page. */
function endedRef({ as }: BulkChange): string[] {
  const texts = ['e.past', 'e.error', 'e.annotations'].map((column) => `coalesce(octet_length(${column}), 0)`)
  const named = [
    'e.id',
    'e.seq',
    'e.state',
    'q.name',
    'coalesce(e.batch, 0)',
    'e.limit_key',
    'e.attempts',
    'null::text',
  ]
  return [
    ...named,
    'null::int',
    'e.retention_class',
    'e.keep_until',
    'false',
    as === 'requeue' ? texts.join(' + ') : '0',
  ]
}

function toRef(row: Row, found: Found): Ref {
  const [id, seq, state, queue, batch, keyRef, attempts, reason, lane, retentionClass, keepUntil, hasJournal] = row
  return {
    ...{ id: id as string, seq: seq as string, state: state as JobState, queue: queue as string },
    ...{ batch: Number(batch), keyRef: keyRef ?? null, attempts: Number(attempts) },
    ...{ reason: (reason ?? null) as SkipReason | null, hasJournal: hasJournal === 't', lane: lane ?? null },
    ...{ retentionClass: retentionClass ?? null, keepUntil: keepUntil ?? null, found },
  }
}

/**
 * Leaves out jobs that are already as wanted. A reschedule also leaves out jobs that were scheduled since the first step, because
 * they were retried or snoozed: one that it had moved before would be moved again, as often as it fails.
 */
function asWanted(change: BulkChange, { now, newest }: Scope, given: (value: Value) => string): string[] {
  switch (change.as) {
    case 'cancel':
      return [`(j.cancel is null or ${liveState} <> 'running' and not j.has_journal)`]
    case 'reschedule': {
      const runAt = `${given(change.runAt)}::bigint`
      return [
        `case when j.ready_xid is null and not j.is_held then j.run_at <> ${runAt} and j.ord <= ${given(newest)}::bigint
              else ${runAt} > ${given(now)}::bigint end`,
      ]
    }
    case 'reprioritise':
      return [`l.priority <> ${given(change.priority)}::int`]
    default:
      return []
  }
}

/**
 * A filter of ready jobs, and not of held ones, is about jobs that were ready when the first step began: `ord` is drawn from the
 * same numbers when a job becomes ready. The same for running jobs without ready ones, by their start.
 */
function fromBeginning({ states = [] }: JobFilter, scope: Scope, given: (value: Value) => string): string[] {
  if (states.includes('held')) return []
  if (states.includes('ready')) return [`(j.ready_xid is null or j.ord <= ${given(scope.newest)}::bigint)`]
  return states.includes('running') ? [`(h.worker is null or h.started_at <= ${given(scope.begunAt)}::bigint)`] : []
}

/** A job that is not cancelled at once: it is asked to end itself. */
function isAsked({ state, hasJournal }: Ref): boolean {
  return state === 'running' || hasJournal
}

type Counted = Omit<ChangedStep, 'until'>

async function count(db: Database, change: BulkChange, look: Scanned<Ref>): Promise<Counted> {
  const skips = new Skips()
  const { entries, looked, next } = look
  const free = entries.filter(({ id, reason }) => !skips.add(reason, id))
  const requested = change.as === 'cancel' ? free.filter(isAsked).length : 0
  const answer = { changed: free.length, requested, looked, skipped: skips.all, keyed: [], next }
  if (change.as !== 'requeue' || free.length === 0) return answer
  const text = `select b.reason, b.queue, b.live_key from holdfast.requeue_blocks($1, $2, holdfast.now_ms($3)) b order by b.turn`
  const rows = await db.query(text, [list(free.map(({ id }) => id)), list(free.map(({ seq }) => seq)), db.now])
  const keyed: { readonly id: string; readonly key: string }[] = []
  let changed = 0
  for (const [i, { id }] of free.entries()) {
    const [reason = null, queue, key = null] = rows[i] ?? []
    if (skips.add(reason as SkipReason | null, id)) continue
    if (key === null) changed += 1
    else keyed.push({ id, key: `${queue} ${key}` })
  }
  return { ...answer, changed, skipped: skips.all, keyed }
}

interface Step {
  readonly filter: JobFilter
  readonly reads: Reads<Ref>
  readonly look: Scanned<Ref>
}

/** Makes the change of these jobs in one transaction. Null: a job is busy, and nothing was changed. */
type Send = (refs: readonly Ref[]) => Promise<Made | null>

async function make(context: StoreContext, request: ChangeAllRequest, step: Step): Promise<Counted> {
  const { entries, looked, next } = step.look
  if (entries.length === 0) return { changed: 0, requested: 0, looked, skipped: [], keyed: [], next }
  const { parts, jobs } = await makeInParts(entries, (refs) => send(context, request, { ...step, refs }))
  context.announceCancels(parts.flatMap(({ cancelled }) => cancelled))
  context.announce(sumOf(parts.flatMap(({ ready }) => ready)))
  await context.afterCommit({
    keyRefs: [...new Set(parts.flatMap(({ keyRefs }) => keyRefs))],
    batches: [...new Set(parts.flatMap(({ batches }) => batches))],
    wakes: parts.flatMap(({ wakes }) => wakes),
    notices: parts.flatMap(({ notices }) => notices),
  })
  const skips = new Skips()
  for (const { skipped } of parts) skips.addAll(skipped)
  const sum = (count: (made: Made) => number) => parts.reduce((total, made) => total + count(made), 0)
  const changed = sum((made) => made.changed)
  const requested = sum((made) => made.cancelled.length)
  const last = entries[jobs - 1] as Ref
  const at = jobs < entries.length ? { looked: last.found.looked, next: last.found.next() } : { looked, next }
  return { changed, requested, skipped: skips.all, keyed: [], ...at }
}

function sumOf(counts: Made['ready']): Map<string, number> {
  const sum = new Map<string, number>()
  for (const [queue, jobs] of counts) sum.set(queue, (sum.get(queue) ?? 0) + jobs)
  return sum
}

/** Busy jobs after which a step ends. Each takes 20 ms. */
const busyMax = 20
/** How often the busy jobs of a step are tried, and the longest pause before they are tried again. */
const busyTriesMax = 3
const busyPauseMs = 100

interface Parts {
  readonly parts: readonly Made[]
  /** How many of the jobs that were found the step was about. */
  readonly jobs: number
}

/** Makes a step: see BUSY JOBS. */
async function makeInParts(refs: readonly Ref[], send: Send): Promise<Parts> {
  const first = await makeFree(refs, send)
  const parts = [...first.parts]
  const { busy } = first
  for (let tries = 1; busy.length > 0 && tries < busyTriesMax; tries++) {
    await sleep(Math.random() * busyPauseMs)
    for (let left = busy.splice(0); left.length > 0; ) {
      const again = await makeFree(left, send)
      parts.push(...again.parts)
      busy.push(...again.busy)
      left = left.slice(again.jobs)
    }
  }
  if (busy.length > 0) parts.push({ ...nothing, skipped: [{ reason: 'busy', count: busy.length, ids: namesOf(busy) }] })
  return { parts, jobs: first.jobs }
}

const nothing: Made = {
  ...{ jobs: 0, changed: 0, skipped: [], cancelled: [], ready: [], keyRefs: [], batches: [] },
  ...{ wakes: [], notices: [] },
}

function namesOf(refs: readonly Ref[]): string[] {
  return refs.slice(0, bounds.skippedIdsMax).map(({ id }) => id)
}

/** Makes the change of the jobs that are not busy, in their order. */
async function makeFree(refs: readonly Ref[], send: Send): Promise<Parts & { readonly busy: Ref[] }> {
  const parts: Made[] = []
  const busy: Ref[] = []
  let jobs = 0
  for (let max = refs.length; jobs < refs.length && busy.length < busyMax; ) {
    const some = refs.slice(jobs, jobs + max)
    const made = await send(some)
    if (made === null && some.length > 1) {
      max = some.length >> 1
    } else if (made === null) {
      busy.push(...some)
      jobs += 1
    } else {
      parts.push(made)
      jobs += made.jobs
      if (made.jobs < some.length) break
      max *= 2
    }
  }
  return { parts, jobs, busy }
}

/**
 * How long a transaction waits for each lock that other calls of the store have, such as the lock of a lane that a claim has for
 * a few milliseconds. Then it gives everything back and begins again (`lock-polls.ts`).
 */
const lockMaxMs = 1_000

/** Waits without a connection and without locks if the first of the jobs is locked. */
async function send(context: StoreContext, request: ChangeAllRequest, part: Part): Promise<Made | null> {
  const { db, lanes, polls } = context
  const { as } = request.change
  const once = async (isCareful: boolean): Promise<Made | null> => {
    let areLocked = false
    const onLocked = () => {
      areLocked = true
    }
    try {
      return await db
        .impatient(lockMaxMs)
        .transact((tx) => changeTogether(tx, request, { ...part, isCareful, onLocked }))
    } catch (error) {
      if (as === 'requeue' && areLocked && isBusy(error)) return null
      throw error
    }
  }
  return lanes.withLanes(async () => {
    if (request.change.as === 'reprioritise') await openLanes(context, part.refs, request.change.priority)
    try {
      return await polls.until(() => once(false))
    } catch (error) {
      if (!isDataError(error)) throw error
    }
    return polls.until(() => once(true))
  })
}

/** Opens the lanes that jobs will be moved to. Waits for lanes that another open transaction keeps busy, and holds no lock. */
async function openLanes({ db, lanes }: StoreContext, refs: readonly Ref[], priority: number): Promise<void> {
  const from = [...new Set(refs.flatMap(({ lane }) => (lane === null ? [] : [Number(lane) & ~1])))]
  const rows = await db.query(selectMissing, [list(from), priority])
  const queuesOf = Map.groupBy(rows, ([, batch]) => batch ?? null)
  for (const [batch, queues] of queuesOf) {
    const wanted = queues.map(([queue]) => ({ queue: queue as string, priority }))
    await lanes.open(wanted, batch)
  }
}

const selectMissing = `select distinct q.name, b.id from holdfast.lane l join holdfast.queue q on q.no = l.queue
  left join holdfast.batch b on b.no = l.batch
 where l.no = any ($1::int[]) and not exists (
   select from holdfast.lane t where t.queue = l.queue and t.batch = l.batch and t.priority = $2::int)`

/** What a step has done. It is kept as the answer of the call, so that it is known if the answer to COMMIT is lost. */
interface Made extends Followed {
  /** How many of the jobs the transaction was about: the first ones. */
  readonly jobs: number
  readonly changed: number
  readonly skipped: readonly SkippedJobs[]
  /** Jobs that run and are asked to cancel. */
  readonly cancelled: readonly string[]
  readonly ready: readonly (readonly [queue: string, jobs: number])[]
  readonly keyRefs: readonly string[]
  readonly batches: readonly number[]
}

interface Part extends Omit<Step, 'look'> {
  readonly refs: readonly Ref[]
}

interface Attempt extends Part {
  /** Constraints are checked at once, and a job that is refused is skipped. */
  readonly isCareful: boolean
  onLocked(): void
}

async function changeTogether(
  tx: PgTransaction,
  { change, by }: ChangeAllRequest,
  { filter, reads, refs, isCareful, onLocked }: Attempt,
): Promise<Made> {
  const { jobs, states } = await lock(tx, refs, change.as)
  onLocked()
  await tx.readClock()
  if (isCareful) await tx.checkDeferred()
  const locked = refs.slice(0, jobs).flatMap((ref, i) => {
    const state = states[i] ?? null
    return state === null ? [] : [{ ref, state }]
  })
  const stateOf = new Map(locked.map(({ ref, state }) => [ref.seq, state]))
  const matching = await compareAgain(
    tx,
    filter,
    locked.map(({ ref }) => ref),
    reads,
  )
  const changes = new Changes(tx, change, by)
  const changeable = matching.filter(({ id, seq, state, reason, lane }) => {
    const isSame = stateOf.get(seq) === (lane === null ? 'ended' : state)
    return isSame && !changes.skips.add(reason, id)
  })
  if (isCareful) await changes.makeInHalves(changeable)
  else await changes.make(changeable)
  return { jobs, ...changes.made }
}

async function lock(tx: PgTransaction, refs: readonly Ref[], as: BulkChange['as']) {
  const text = 'select jobs, array_to_json(states)::text from holdfast.lock_found($1, $2, $3, $4, $5)'
  const [row] = await tx.query(text, [...columnsOf(refs), as])
  return { jobs: Number(row?.[0]), states: JSON.parse(row?.[1] ?? '[]') as readonly (string | null)[] }
}

function columnsOf(refs: readonly Ref[]): Value[] {
  return [
    list(refs.map(({ id }) => id)),
    list(refs.map(({ seq }) => seq)),
    list(refs.map(({ retentionClass }) => retentionClass ?? 'NULL')),
    list(refs.map(({ keepUntil }) => keepUntil ?? 'NULL')),
  ]
}

/** Those of the jobs that match under the locks, in the order of the walk. */
async function compareAgain(
  tx: PgTransaction,
  filter: JobFilter,
  refs: readonly Ref[],
  reads: Reads<Ref>,
): Promise<Ref[]> {
  const matching = new Map<string, Ref>()
  for (const kind of ['live', 'ended'] as const) {
    const some = refs.filter(({ lane }) => (lane === null) === (kind === 'ended'))
    if (some.length === 0) continue
    for (const ref of await matchesOf(tx, filter, sourceOf(kind, some), reads)) matching.set(ref.seq, ref)
  }
  const isNewest = await newestOf(tx, filter, [...matching.values()])
  return refs.flatMap(({ seq }) => matching.get(seq) ?? []).filter(({ seq }) => isNewest(seq))
}

/** A condition on ids is about the newest job with each id. Another may have been enqueued since the look. */
async function newestOf(
  tx: PgTransaction,
  { ids }: JobFilter,
  refs: readonly Ref[],
): Promise<(seq: string) => boolean> {
  if (ids === undefined || refs.length === 0) return () => true
  const rows = await tx.query('select holdfast.newest_of($1, $2)::text', columnsOf(refs).slice(0, 2))
  const newest = new Set(rows.map(([seq]) => seq))
  return (seq) => newest.has(seq)
}

function sourceOf(kind: Kind, refs: readonly Ref[]): Source {
  const values = columnsOf(refs)
  if (kind === 'ended')
    return {
      ...{ kind, places: 1, values },
      text: (columns) => `select ${columns}, e.seq
        from holdfast.ended_found($1, $2, $3, $4) e join holdfast.queue q on q.no = e.queue`,
    }
  return {
    ...{ kind, places: 1, values: values.slice(0, 2) },
    text: (columns) => `with jobs as materialized (select * from holdfast.jobs_of($1, $2)),
       holds as materialized (
         select distinct on (s.lane, u.xid, u.ord) s.lane, u.xid, u.ord, s.token, s.worker, s.started_at, s.expires_at
           from holdfast.lease s cross join lateral unnest(s.xids, s.ords) u(xid, ord)
          where s.lane in (select j.lane from jobs j where j.ready_xid is not null)
          order by s.lane, u.xid, u.ord, s.no desc
       )
       select ${columns}, j.seq
         from jobs j
         left join holds h on h.lane = j.lane and h.xid = j.ready_xid and h.ord = j.ord ${joinProgress}
         join holdfast.lane l on l.no = j.lane & ~1 join holdfast.queue q on q.no = l.queue`,
  }
}

/** Makes the changes of one step, in one transaction. */
class Changes {
  readonly skips = new Skips()
  readonly #tx: PgTransaction
  readonly #change: BulkChange
  readonly #by: string | null
  #changed = 0
  readonly #cancelled: string[] = []
  readonly #ready = new Map<string, number>()
  readonly #keyRefs = new Set<string>()
  readonly #batches = new Set<number>()
  readonly #wakes: string[] = []
  readonly #notices: number[] = []

  constructor(tx: PgTransaction, change: BulkChange, by: string | null) {
    this.#tx = tx
    this.#change = change
    this.#by = by
  }

  get made(): Omit<Made, 'jobs'> {
    return {
      ...{ changed: this.#changed, skipped: this.skips.all, cancelled: this.#cancelled, ready: [...this.#ready] },
      ...{ keyRefs: [...this.#keyRefs], batches: [...this.#batches], wakes: this.#wakes, notices: this.#notices },
    }
  }

  /** If the database refuses a job, the others are changed: all jobs behind a savepoint, or else each half of them. */
  async makeInHalves(refs: readonly Ref[]): Promise<void> {
    const tried = new Changes(this.#tx, this.#change, this.#by)
    const made = await this.#tx.orRefused(() => tried.make(refs))
    if ('answer' in made) return this.#add(tried.made)
    const [only] = refs
    if (only && refs.length === 1) {
      this.skips.add('refused', only.id, made.refused.message)
      return
    }
    const middle = refs.length >> 1
    await this.makeInHalves(refs.slice(0, middle))
    await this.makeInHalves(refs.slice(middle))
  }

  #add({ changed, skipped, cancelled, ready, keyRefs, batches, ...followed }: Omit<Made, 'jobs'>): void {
    this.#follow(followed)
    this.#changed += changed
    this.#cancelled.push(...cancelled)
    this.skips.addAll(skipped)
    for (const [queue, jobs] of ready) this.#wake(queue, jobs)
    for (const keyRef of keyRefs) this.#keyRefs.add(keyRef)
    for (const batch of batches) this.#batches.add(batch)
  }

  async make(refs: readonly Ref[]): Promise<void> {
    if (refs.length === 0) return
    switch (this.#change.as) {
      case 'cancel':
        return this.#cancel(refs)
      case 'requeue':
        return this.#requeue(refs)
      case 'delete':
        return this.#delete(refs)
      case 'reschedule':
        return this.#move(refs, this.#change.runAt, null)
      case 'reprioritise':
        return this.#move(refs, null, this.#change.priority)
    }
  }

  async #cancel(refs: readonly Ref[]): Promise<void> {
    const waiting = refs.filter((ref) => !isAsked(ref))
    const asked = refs.filter(isAsked).map(({ id }) => id)
    if (this.#by !== null) await this.#record(refs, 'cancelled')
    if (waiting.length > 0) {
      const ended = waiting.map(({ id, state, attempts }) => ({ id, was: state, state: 'cancelled', attempts }))
      this.#follow(await finishJobs(this.#tx, ended))
      this.#leave(waiting)
    }
    if (asked.length > 0) {
      await this.#tx.query(`update holdfast.job set cancel = '[]' where id = any ($1::uuid[])`, [list(asked)])
      this.#cancelled.push(...asked)
      await this.#wakeToEnd(refs.filter(({ state, hasJournal }) => state === 'scheduled' && hasJournal))
    }
    this.#changed += refs.length
  }

  /** Flow runs that wait for a time end themselves now. */
  async #wakeToEnd(refs: readonly Ref[]): Promise<void> {
    if (refs.length === 0) return
    const { ready, keyRefs } = await makeFirst(
      this.#tx,
      refs.map(({ id }) => id),
    )
    for (const [queue, jobs] of ready) this.#wake(queue, jobs)
    for (const keyRef of keyRefs) this.#keyRefs.add(keyRef)
  }

  #follow({ wakes, notices }: Followed): void {
    this.#wakes.push(...wakes)
    this.#notices.push(...notices)
  }

  async #requeue(refs: readonly Ref[]): Promise<void> {
    const text = `select ${endedColumns} from holdfast.ended_found($1, $2, $3, $4) e join holdfast.queue q on q.no = e.queue`
    const rows = new Map((await this.#tx.query(text, columnsOf(refs))).map((row) => [row[1], row]))
    const ended = refs.map(({ seq }) => rows.get(seq) as Row)
    const { blocked, keyRefs } = await revive(this.#tx, ended, this.#by)
    for (const [i, row] of ended.entries()) {
      const block: RequeueBlock | null = blocked[i] ?? null
      if (this.skips.add(block?.reason ?? null, row[0] as string)) continue
      this.#changed += 1
      this.#wake(row[9] as string, 1)
    }
    for (const keyRef of keyRefs) this.#keyRefs.add(keyRef)
  }

  async #delete(refs: readonly Ref[]): Promise<void> {
    const { now } = this.#tx
    const ended = refs.filter(({ lane }) => lane === null)
    const waiting = refs.filter(({ lane }) => lane !== null)
    if (waiting.length > 0) {
      const ids = waiting.map(({ id }) => id)
      this.#follow(await deleteWaiting(this.#tx, ids))
    }
    if (ended.length > 0) {
      await this.#tx.query('select holdfast.delete_ended($1, $2, $3, $4, $5)', [...columnsOf(ended), now])
    }
    this.#leave(refs)
    this.#changed += refs.length
  }

  async #move(refs: readonly Ref[], runAt: number | null, priority: number | null): Promise<void> {
    await this.#record(refs, runAt === null ? 'reprioritised' : 'rescheduled')
    const text = 'select ready::text, limit_keys::text, batches::text from holdfast.move_all($1, $2, $3, $4)'
    const [row] = await this.#tx.query(text, [list(refs.map(({ id }) => id)), runAt, priority, this.#tx.now])
    const ready = JSON.parse(row?.[0] ?? '{}') as Readonly<Record<string, number>>
    for (const [queue, jobs] of Object.entries(ready)) this.#wake(queue, jobs)
    for (const keyRef of JSON.parse(row?.[1] ?? '[]') as string[]) this.#keyRefs.add(keyRef)
    for (const batch of JSON.parse(row?.[2] ?? '[]') as number[]) this.#batches.add(batch)
    this.#changed += refs.length
  }

  /** Adds the change to the histories of the jobs. */
  #record(refs: readonly Ref[], as: ChangeByHand['as']): Promise<void> {
    const ids = refs.map(({ id }) => id)
    return recordByHand(this.#tx, ids, { as, by: this.#by, at: this.#tx.now })
  }

  /** These jobs are gone: those that had a slot of a limit key have freed it, and their batches may be finished. */
  #leave(refs: readonly Ref[]): void {
    for (const { state, keyRef, batch } of refs) {
      if (keyRef !== null && state === 'ready') this.#keyRefs.add(keyRef)
      if (batch > 0) this.#batches.add(batch)
    }
  }

  #wake(queue: string, jobs: number): void {
    this.#ready.set(queue, (this.#ready.get(queue) ?? 0) + jobs)
  }
}

/** Jobs that were skipped, by reason. */
class Skips {
  readonly #all = new Map<SkipReason, { count: number; readonly ids: string[]; readonly message?: string }>()

  get all(): SkippedJobs[] {
    return [...this.#all].map(([reason, rest]) => ({ reason, ...rest }))
  }

  /** False: there is no reason to skip the job. */
  add(reason: SkipReason | null, id: string, message?: string): boolean {
    if (reason === null) return false
    this.addAll([{ reason, count: 1, ids: [id], ...(message !== undefined && { message }) }])
    return true
  }

  addAll(skipped: readonly SkippedJobs[]): void {
    for (const { reason, count, ids, message } of skipped) {
      const known = this.#all.get(reason) ?? { count: 0, ids: [], ...(message !== undefined && { message }) }
      this.#all.set(reason, known)
      known.count += count
      known.ids.push(...ids.slice(0, bounds.skippedIdsMax - known.ids.length))
    }
  }
}
