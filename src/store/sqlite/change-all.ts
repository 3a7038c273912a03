// One step of a change of all jobs that match a filter:
//
// 1. It looks for jobs as `find` does, in reads that block no writer, until it has `stepMax` jobs or has looked at enough.
// 2. One transaction compares the filter again, because other calls ran in between. It then judges each job, and changes it as
//    the verb for a single job does.
//
// A dry run judges the same jobs in a read, and changes none.
//
// UNTIL. The first step notes the last number that was used, and the time. Every job with a higher number was enqueued later. A
// job that ended later is not requeued: this step, or another call, has requeued it since. If the clock was set back, jobs may
// have ended "later" than now, so the end of the newest of them counts.

import { bounds } from '../../job/bounds.ts'
import type { JobFilter } from '../../job/filter.ts'
import { decodePast } from '../../job/stored.ts'
import { decodeCursor, encodeCursor } from '../page-cursor.ts'
import type { BulkChange, ChangeAllRequest, ChangedStep, SkippedJobs, SkipReason } from '../store.ts'
import { deleteJob, isTooLate, reprioritise, reschedule } from './alter.ts'
import { cancelledBatchOf, cancelRun, cancelWaiting, keyHolder, namesakeOf, requestCancel, revive } from './control.ts'
import { keyToRevive } from './enqueue.ts'
import { type FindSeqsStep, type FoundSeqs, lookOn, queuesOf, stillMatching } from './find.ts'
import { type FoundRow, findAll, findById, findBySeq, isEnded, isWaiting, numberOf } from './job.ts'
import { hasJournal } from './journal.ts'
import { sentenceOf } from './sql-effect.ts'
import type { SqliteTransaction } from './transaction.ts'

/** Jobs of one step: other calls wait some ten milliseconds for it. */
const stepMax = 500
/** When the first step began. */
interface Beginning {
  readonly seq: number
  readonly at: number
}

type JobsToChange = Pick<ChangeAllRequest, 'filter' | 'change' | 'by'> & {
  readonly seqs: readonly number[]
  readonly began: Beginning
}

type ChangedJobs = Pick<ChangedStep, 'changed' | 'requested' | 'skipped' | 'keyed'>

/** The verbs of the engine. */
interface EngineCalls {
  begin(request: Pick<ChangeAllRequest, 'filter' | 'change'>): Promise<Beginning>
  find(step: FindSeqsStep): Promise<FoundSeqs>
  judge(jobs: JobsToChange): Promise<ChangedJobs>
  change(jobs: JobsToChange): Promise<ChangedJobs>
}

export async function changeAll(engine: EngineCalls, request: ChangeAllRequest): Promise<ChangedStep> {
  const { change, dryRun, by, after, until } = request
  const began = until === null ? await engine.begin({ filter: request.filter, change }) : decodeBeginning(until)
  const filter = change.as === 'requeue' ? endedBefore(request.filter, began.at + 1) : request.filter
  const seqs: number[] = []
  const { looked, next } = await lookOn(async (look) => {
    const found = await engine.find({ ...look, filter, until: began.seq, limit: stepMax - seqs.length })
    seqs.push(...found.seqs)
    return found
  }, after)
  const jobs = { filter, change, by, seqs, began }
  const changed = seqs.length === 0 ? none : await (dryRun ? engine.judge(jobs) : engine.change(jobs))
  return { ...changed, looked, next, until: encodeCursor([began.seq, began.at]) }
}

const none: ChangedJobs = { changed: 0, requested: 0, skipped: [], keyed: [] }

function decodeBeginning(until: string): Beginning {
  const isBeginning = (value: readonly unknown[]) => value.length === 2 && value.every(Number.isSafeInteger)
  const [seq, at] = decodeCursor<[number, number]>(until, isBeginning)
  return { seq, at }
}

function endedBefore(filter: JobFilter, time: number): JobFilter {
  const { before = time, ...ended } = filter.ended ?? {}
  return { ...filter, ended: { ...ended, before: Math.min(before, time) } }
}

export function beginChange(
  tx: SqliteTransaction,
  { filter, change }: Pick<ChangeAllRequest, 'filter' | 'change'>,
): Beginning {
  const newest = change.as === 'requeue' ? newestEnd(tx, filter) : newestStart(tx)
  return { seq: tx.lastNumber, at: Math.max(tx.now, newest) } // later than now, if the clock was set back
}

function newestStart(tx: SqliteTransaction): number {
  return tx.db.get<{ at: number | null }>('select max(started_at) as at from holdfast_claim')?.at ?? 0
}

export const selectNewestEnd = 'select max(finished_at) as at from holdfast_ended where retention_class = ?'

function newestEnd(tx: SqliteTransaction, filter: JobFilter): number {
  const states = (filter.states ?? []).filter(isEnded)
  const classes = queuesOf(tx, filter).flatMap((queue) => states.flatMap((state) => tx.retentionClasses(queue, state)))
  const ends = classes.map(({ no }) => tx.db.get<{ at: number | null }>(selectNewestEnd, no)?.at ?? 0)
  return ends.reduce((newest, at) => Math.max(newest, at), 0)
}

/** What a dry run answers. */
export function judgeJobs(tx: SqliteTransaction, jobs: JobsToChange): ChangedJobs {
  const judged = matching(tx, jobs).map((job) => judge(tx, job, jobs))
  return sumOf(judged, { isDryRun: true })
}

export function changeJobs(tx: SqliteTransaction, jobs: JobsToChange): ChangedJobs {
  const { change, by } = jobs
  tx.applyConsequences() // of earlier requests: they may admit jobs
  const work = (found: FoundRow): Judged => {
    // A change of another job may have admitted it. The end of a child may have woken it.
    const mayHaveMoved = found.limit_key !== null || tx.hasChildren
    const job = mayHaveMoved ? (findBySeq(tx, found.seq) as FoundRow) : found
    const judged = judge(tx, job, jobs)
    if (judged.verdict === 'change') apply(tx, judged.job, change, by)
    else if (judged.verdict === 'ask') askToEnd(tx, judged.job, by)
    return judged
  }
  const refused = (job: FoundRow, error: unknown): Judged => ({ job, verdict: 'refused', message: sentenceOf(error) })
  return sumOf(tx.eachAnswered(matching(tx, jobs), work, refused), { isDryRun: false })
}

function askToEnd(tx: SqliteTransaction, job: FoundRow, by: string | null): void {
  if (job.state === 'running') requestCancel(tx, job, null, by)
  else cancelRun(tx, job, null, by)
}

/** The jobs for which the filter holds now. */
function matching(tx: SqliteTransaction, { filter, seqs, began }: JobsToChange): FoundRow[] {
  const isNewest = (job: FoundRow) => filter.ids === undefined || findById(tx, job.id)?.seq === job.seq
  return findAll(tx, stillMatching(tx, filter, seqs)).filter((job) => isNewest(job) && wasThere(tx, job, filter, began))
}

/**
 * False for a job that became ready, or started, after the first step. It may be there only because the verb has freed a slot. If
 * the filter is also about jobs in the state before, it matched there.
 */
function wasThere(tx: SqliteTransaction, job: FoundRow, { states = [] }: JobFilter, began: Beginning): boolean {
  if (job.state === 'ready' && !states.includes('held')) {
    const isAdmittedItem = job.batch > 0 && job.limit_key !== null // it keeps the place that it had while it was held
    return numberOf(job.ord as number) <= began.seq && !(isAdmittedItem && job.run_at > began.at)
  }
  if (job.state === 'running' && !states.includes('ready')) return (startOf(tx, job) ?? 0) <= began.at
  return true
}

function startOf(tx: SqliteTransaction, { seq }: FoundRow): number | undefined {
  const select = 'select c.started_at from holdfast_lease l join holdfast_claim c on c.no = l.claim where l.seq = ?'
  return tx.db.get<{ started_at: number }>(select, seq)?.started_at
}

/** `ask`: it runs, or is a flow run that has begun, and is asked to end itself. `leave`: it is as wanted. */
type Verdict = 'change' | 'ask' | 'leave' | SkipReason

interface Judged {
  readonly job: FoundRow
  readonly verdict: Verdict
  /** Its dedup key, if it would take one. */
  readonly key?: string
  readonly message?: string
}

function judge(tx: SqliteTransaction, job: FoundRow, { change, began }: JobsToChange): Judged {
  const isKeyed = change.as === 'requeue' && job.dedup_scope === 'live'
  return { job, verdict: verdictOn(tx, job, change, began), ...(isKeyed && { key: `${job.queue} ${job.dedup_key}` }) }
}

function verdictOn(tx: SqliteTransaction, job: FoundRow, change: BulkChange, began: Beginning): Verdict {
  switch (change.as) {
    case 'cancel':
      if (isWaiting(job) && !hasJournal(tx, job.seq)) return 'change'
      return job.cancel === null ? 'ask' : 'leave'
    case 'requeue':
      return verdictOnRequeue(tx, job)
    case 'delete':
      return job.state === 'running' ? 'running' : 'change'
    case 'reschedule': {
      const isAsWanted = job.state === 'scheduled' ? job.run_at === change.runAt : change.runAt <= tx.now
      if (isAsWanted || (job.state === 'scheduled' && hasRunSince(job, began))) return 'leave'
      return isTooLate(job, change.runAt) ? 'startBefore' : 'change'
    }
    case 'reprioritise':
      return job.priority === change.priority ? 'leave' : 'change'
  }
}

/**
 * Whether it waits because it was retried or snoozed after the first step. One that the verb had moved before would be moved
 * again, as often as it fails.
 */
function hasRunSince({ past }: FoundRow, { at }: Beginning): boolean {
  return (decodePast(past).at(-1)?.endedAt ?? 0) > at
}

function verdictOnRequeue(tx: SqliteTransaction, job: FoundRow): Verdict {
  if (namesakeOf(tx, job) !== undefined) return 'idTaken'
  if (cancelledBatchOf(tx, job) !== undefined) return 'batchCancelled'
  if (keyHolder(tx, job) !== undefined) return 'dedupKeyHeld'
  return keyToRevive(tx, job) === undefined ? 'limitKeyUnknown' : 'change'
}

function apply(tx: SqliteTransaction, job: FoundRow, change: BulkChange, by: string | null): void {
  if (change.as === 'cancel') cancelWaiting(tx, job, by)
  else if (change.as === 'requeue') revive(tx, { ...job, limit_key: keyToRevive(tx, job) ?? null }, by)
  else if (change.as === 'delete') deleteJob(tx, job)
  else if (change.as === 'reschedule') reschedule(tx, job, change.runAt, by)
  else reprioritise(tx, job, change.priority, by)
}

function sumOf(judged: readonly Judged[], { isDryRun }: { readonly isDryRun: boolean }): ChangedJobs {
  const keyed: { id: string; key: string }[] = []
  const skipped = new Map<SkipReason, SkippedJobs>()
  let changed = 0
  let requested = 0
  for (const { job, verdict, key, message } of judged) {
    if (verdict === 'leave') continue
    if (verdict === 'ask') requested += 1
    if (verdict === 'ask' || verdict === 'change') {
      if (isDryRun && key !== undefined) keyed.push({ id: job.id, key })
      else changed += 1
      continue
    }
    const { count, ids, ...first } = skipped.get(verdict) ?? {
      count: 0,
      ids: [],
      ...(message !== undefined && { message }),
    }
    const named = ids.length < bounds.skippedIdsMax ? [...ids, job.id] : ids
    skipped.set(verdict, { ...first, reason: verdict, count: count + 1, ids: named })
  }
  return { changed, requested, skipped: [...skipped.values()], keyed }
}
