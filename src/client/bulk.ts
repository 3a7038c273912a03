// Verbs that change all jobs of a filter. The store makes one bounded step after the other; here is the loop over them.
//
// WHICH JOBS. Those that match, were enqueued before the verb began and, for a requeue, had ended before. So a verb ends, however
// many jobs come in beside it, and never meets a job a second time that it requeued and that died again. The time of the
// beginning is the store's, and is part of `next`.
//
// JOBS THAT MOVE. A step goes over lists in the direction in which jobs move: scheduled, held, ready, running, ended. So a job
// that moves on is met later. A job that is retried or released meanwhile moves back, and could be missed. Therefore a verb for
// live jobs that ends them (cancel, delete) goes over them again, until a pass has changed nothing. Later passes count what they
// change and not what they skip: that was counted before. A dry run makes one pass.
//
// The other verbs make one pass. A job that was retried meanwhile keeps the time of its retry: otherwise a reschedule to now
// would go on until every job that fails has used up its attempts. And two calls that want the opposite would go on against each
// other.
//
// Beside a caller that requeues the same jobs again and again, no pass would be the last. So a call makes 10 passes at most.
// Its `next` is set then, and the call that goes on makes 10 more.
//
// WHAT REMAINS. A job that dies while it is to be deleted leaves a death notice, which is newer than the beginning. So a delete
// counts at its end which jobs match now, whenever they were enqueued: `remaining`.
//
// A filter that names some live states, or ids, gets one pass. Otherwise a cancel of running jobs would also cancel the jobs that
// start in their place, and so a whole queue; and a delete by id would go on with an older job of that id.
//
// STOPS. After `signal`, an error of the store or `close`, the steps that were answered are carried out and nothing else is.
// `next` says where to go on: in the answer, or in the facts of the error.

import { createHash } from 'node:crypto'
import { HoldfastError, isHoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { type JobFilter, possibleStates } from '../job/filter.ts'
import { checkBoolean, checkBy, checkInteger, checkOptions, checkSignal, isTime } from '../job/names.ts'
import type { JobState } from '../job/record.ts'
import { decodeCursor, encodeCursor } from '../store/page-cursor.ts'
import type { BulkChange, ChangeAllRequest, ChangedStep, SkippedJobs, SkipReason, Store } from '../store/store.ts'
import type { Calls } from './calls.ts'
import { type JobConditions, jobConditions, toCursor, toJobFilter } from './filter.ts'
import { type GivenTime, type RunTime, toRunTime } from './run-time.ts'

export interface BulkOptions {
  /** Changes nothing, and counts what would be changed and what would be skipped. */
  readonly dryRun?: boolean
  /**
   * Called after each step, with the sums so far, and awaited. If it throws, the verb ends after this step: its error has the
   * thrown one as `cause`, and `changed` and `next` in its facts.
   */
  readonly onProgress?: (progress: BulkProgress) => unknown
  /** Ends the verb after the step that is under way. The answer has a `next` then. */
  readonly signal?: AbortSignal
  /** `next` of a call that was stopped: of the same verb, filter and argument, and also a dry run if this is one. */
  readonly after?: string
  /** The name of the operator or program that asks. It is only shown. */
  readonly by?: string
}

export interface BulkProgress {
  readonly changed: number
  readonly looked: number
  readonly skipped: number
}

export interface BulkAnswer {
  /** How many jobs were changed; in a dry run, how many would be. */
  readonly changed: number
  /** How many jobs were looked at to find them. */
  readonly looked: number
  /** Jobs that match and were not changed, by reason. */
  readonly skipped: readonly SkippedJobs[]
  /** The `after` of the call that goes on; null: all jobs were gone over. */
  readonly next: string | null
}

export interface DeleteAllAnswer extends BulkAnswer {
  /**
   * How many jobs match now: those that run, and those that were enqueued after the call began, such as the notice of a job that
   * died meanwhile. Null: nothing was deleted, or not all jobs were gone over (`next`).
   */
  readonly remaining: number | null
}

export interface CancelAllAnswer extends BulkAnswer {
  /** Of the changed jobs, those that run: their workers are asked to stop. The others have ended. */
  readonly requested: number
}

const waiting: readonly JobState[] = ['scheduled', 'held', 'ready']
const live: readonly JobState[] = [...waiting, 'running']
const ended: readonly JobState[] = ['dead', 'cancelled', 'done']

/** The states that each verb can change, and those that it takes unless the filter names states. */
const statesOf: Readonly<Record<BulkChange['as'], { can: readonly JobState[]; takes: readonly JobState[] }>> = {
  cancel: { can: live, takes: live },
  requeue: { can: ended, takes: ['dead'] },
  delete: { can: [...live, ...ended], takes: [...live, ...ended] },
  reschedule: { can: waiting, takes: waiting },
  reprioritise: { can: waiting, takes: waiting },
}

/** What this needs of the client. */
export interface BulkContext {
  readonly store: Store
  readonly calls: Calls
  /** Jobs become due after so long: the sweep must look then. */
  expectDue(delayMs: number): void
}

export class Bulk {
  readonly #context: BulkContext

  constructor(context: BulkContext) {
    this.#context = context
  }

  async cancelAll(conditions: JobConditions, options: BulkOptions): Promise<CancelAllAnswer> {
    const request = toBulkRequest('cancelAll', { as: 'cancel' }, conditions, options)
    const { requested, ...answer } = await this.#run(request, { as: 'cancel' })
    return { ...answer, requested }
  }

  requeueAll(conditions: JobConditions, options: BulkOptions): Promise<BulkAnswer> {
    return this.#change('requeueAll', { as: 'requeue' }, conditions, options)
  }

  async deleteAll(conditions: JobConditions, options: BulkOptions): Promise<DeleteAllAnswer> {
    const request = toBulkRequest('deleteAll', { as: 'delete' }, conditions, options)
    const { requested: _, ...answer } = await this.#run(request, { as: 'delete' })
    const isOver = answer.next === null && !request.dryRun
    return { ...answer, remaining: isOver ? await this.#remaining(request.filter) : null }
  }

  /** How many jobs match, by a dry run. */
  async #remaining(filter: JobFilter): Promise<number> {
    const { calls, store } = this.#context
    let remaining = 0
    let from: { readonly after: string | null; readonly until: string | null } = { after: null, until: null }
    do {
      const step: ChangeAllRequest = { filter, change: { as: 'delete' }, dryRun: true, by: null, ...from }
      const { changed, skipped, next, until } = await calls.run(() => store.changeAll(step))
      remaining += skipped.reduce((sum, { count }) => sum + count, changed)
      from = { after: next, until }
    } while (from.after !== null)
    return remaining
  }

  async reprioritiseAll(conditions: JobConditions, priority: number, options: BulkOptions): Promise<BulkAnswer> {
    checkInteger(priority, 'priority', 0, bounds.priorityMax)
    return this.#change('reprioritiseAll', { as: 'reprioritise', priority }, conditions, options)
  }

  /** A delay counts from the first call: `next` has the time. */
  async rescheduleAll(conditions: JobConditions, when: RunTime, options: BulkOptions): Promise<BulkAnswer> {
    const given = toRunTime(when, 'rescheduleAll')
    const request = toBulkRequest('rescheduleAll', { as: 'reschedule', ...given }, conditions, options)
    const { calls, store } = this.#context
    const now = await calls.run(() => store.time())
    const runAt = request.from?.runAt ?? ('runAt' in given ? given.runAt : now + given.delayMs)
    this.#context.expectDue(Math.max(0, runAt - now)) // also before the last step: the first jobs may be due before
    const { requested: _, ...answer } = await this.#run(request, { as: 'reschedule', runAt })
    this.#context.expectDue(Math.max(0, runAt - now))
    return answer
  }

  async #change(
    verb: string,
    change: BulkChange,
    conditions: JobConditions,
    options: BulkOptions,
  ): Promise<BulkAnswer> {
    const { requested: _, ...answer } = await this.#run(toBulkRequest(verb, change, conditions, options), change)
    return answer
  }

  async #run(request: BulkRequest, change: BulkChange): Promise<CancelAllAnswer> {
    const { filter, dryRun, by, signal, onProgress, call } = request
    const { calls, store } = this.#context
    const runAt = change.as === 'reschedule' ? change.runAt : null
    const sums = new Sums()
    let mark: Mark = request.from ?? { until: null, after: null, pass: 1, runAt, call, dryRun }
    let passes = 0
    let isChanged = request.from !== null // a call that goes on does not know what the call before has changed in this pass
    while (!signal?.aborted) {
      const { until, after } = mark
      const step: ChangeAllRequest = { filter, change, dryRun, by, after, until }
      const answer = await calls
        .run(() => store.changeAll(step))
        .catch((error) => {
          throw withProgress(error, sums.answer(encodeMark(mark)))
        })
      const changed = sums.add(answer, mark.pass === 1)
      isChanged ||= changed > 0
      const isPassOver = answer.next === null
      const isOver = isPassOver && (dryRun || !isChanged || !isRepeated(filter, change))
      mark = { ...mark, until: answer.until, after: answer.next, pass: isPassOver ? mark.pass + 1 : mark.pass }
      await report(onProgress, sums, isOver ? null : encodeMark(mark))
      if (isOver) return sums.answer(null)
      if (!isPassOver) continue
      isChanged = false
      passes += 1
      if (passes >= passesMax) break
    }
    return sums.answer(encodeMark(mark))
  }
}

/** How often one call goes over all jobs: see JOBS THAT MOVE. */
const passesMax = 10

/** A call as it is given to the loop. */
interface BulkRequest {
  readonly filter: JobFilter
  readonly dryRun: boolean
  readonly by: string | null
  readonly signal: AbortSignal | undefined
  readonly onProgress: BulkOptions['onProgress']
  readonly from: Mark | null
  readonly call: string
}

/** Where a call stopped. */
interface Mark {
  /** The newest job that the verb is about, as the store names it; null: no step was made. */
  readonly until: string | null
  readonly after: string | null
  readonly pass: number
  /** For a reschedule. */
  readonly runAt: number | null
  /** Names the verb, its filter and its argument: with another, jobs would be left out without a word. */
  readonly call: string
  /** A dry run has changed nothing of what it went over. */
  readonly dryRun: boolean
}

/** What is asked for, as the caller gave it. */
type AskedChange = Exclude<BulkChange, { as: 'reschedule' }> | ({ readonly as: 'reschedule' } & GivenTime)

function toBulkRequest(
  verb: string,
  change: AskedChange,
  conditions: JobConditions,
  options: BulkOptions,
): BulkRequest {
  checkOptions(conditions, 'the filter', jobConditions)
  checkNoneIsUndefined(verb, conditions)
  checkOptions(options, `${verb} options`, ['dryRun', 'onProgress', 'signal', 'after', 'by'])
  const { by, onProgress } = options
  const dryRun = options.dryRun === undefined ? false : checkBoolean(options.dryRun, 'dryRun')
  if (onProgress !== undefined && typeof onProgress !== 'function') {
    throw new HoldfastError('INVALID_OPTION', 'onProgress must be a function.', { option: 'onProgress' })
  }
  const after = toCursor(options.after)
  const filter = withStates(verb, change.as, toJobFilter(conditions))
  const call = createHash('sha256')
    .update(JSON.stringify([change, filter]))
    .digest('base64url')
    .slice(0, 16)
  return {
    ...{ filter, call, dryRun },
    by: checkBy(by),
    signal: checkSignal(options.signal),
    onProgress,
    from: after === null ? null : decodeMark(after, { call, dryRun }),
  }
}

/** Conditions with parts that can be left out. */
const rangeConditions = ['enqueued', 'started', 'ended', 'attempts'] as const

/** A condition, or one bound of a range, that got lost on its way would change more jobs than the caller meant. */
function checkNoneIsUndefined(verb: string, conditions: JobConditions): void {
  const parts = rangeConditions.flatMap((condition) =>
    Object.entries(conditions[condition] ?? {}).map(([part, value]) => [`${condition}.${part}`, value] as const),
  )
  const lost = [...Object.entries(conditions), ...parts].find(([, value]) => value === undefined)?.[0]
  if (lost === undefined) return
  const sentence = `${lost} is undefined, and ${verb} would change more jobs than with it. Give a value, or leave the condition out.`
  throw new HoldfastError('INVALID_OPTION', sentence, { option: lost })
}

/** The filter with the states that the verb takes. */
function withStates(verb: string, as: BulkChange['as'], filter: JobFilter): JobFilter {
  const { can, takes } = statesOf[as]
  if (Object.keys(filter).length === 0) {
    const sentence = `${verb} needs at least one condition, such as { queue: 'welcome' }.`
    throw new HoldfastError('INVALID_OPTION', sentence, { option: 'the filter' })
  }
  const wrong = filter.states?.find((state) => !can.includes(state))
  if (wrong !== undefined) {
    const sentence = `${verb} takes jobs that are ${can.join(', ')}; got the state ${wrong}.`
    throw new HoldfastError('INVALID_OPTION', sentence, { option: 'state', value: wrong })
  }
  const states = possibleStates(filter, filter.states ?? takes)
  if (states.length === 0) {
    const { sentence, conditions } = collisionOf(filter, `${verb} takes jobs that are ${takes.join(', ')}`)
    throw new HoldfastError('INVALID_OPTION', sentence, { option: 'the filter', conditions })
  }
  return { ...filter, states }
}

/** Which conditions leave no state that a job could be in. */
function collisionOf(filter: JobFilter, takes: string): { readonly sentence: string; readonly conditions: string[] } {
  const { states, ended: end, error, errorGroup } = filter
  const said: Readonly<Record<string, string | false>> = {
    state: states !== undefined && `state names ${states.join(', ')}`,
    ended: end !== undefined && 'ended is only for jobs that have ended',
    error: error !== undefined && 'error is only for jobs that have ended',
    errorGroup: errorGroup !== undefined && 'errorGroup is only for jobs that are dead',
  }
  const given = Object.entries(said).filter(([, what]) => what !== false)
  const parts = [...(states === undefined ? [takes] : []), ...given.map(([, what]) => what)]
  const sentence = `No job can match this filter: ${parts.join(', and ')}.`
  return { sentence, conditions: given.map(([condition]) => condition) }
}

/** Whether jobs that have moved back are looked for in another pass. */
function isRepeated({ ids, states = [] }: JobFilter, { as }: BulkChange): boolean {
  if (as !== 'cancel' && as !== 'delete') return false
  const changeable = statesOf[as].can.filter((state) => live.includes(state))
  return ids === undefined && changeable.length > 0 && changeable.every((state) => states.includes(state))
}

function encodeMark({ until, after, pass, runAt, call, dryRun }: Mark): string {
  return encodeCursor([until ?? '', after ?? '', pass, runAt ?? -1, call, dryRun ? 1 : 0])
}

type MarkFields = [until: string, after: string, pass: number, runAt: number, call: string, dryRun: 0 | 1]

function decodeMark(text: string, { call, dryRun }: Pick<Mark, 'call' | 'dryRun'>): Mark {
  const [until, after, pass, runAt, of, wasDryRun] = decodeCursor<MarkFields>(text, isMark)
  if (of !== call)
    throw foreignMark('is the `next` of another verb, filter or argument. Give those of the call that was stopped.')
  if (dryRun && !wasDryRun) throw foreignMark('is the `next` of a call that is no dry run. Leave it out.')
  if (!dryRun && wasDryRun) {
    throw foreignMark(
      'is the `next` of a dry run, which has changed nothing so far. Leave it out: the call begins with the first job.',
    )
  }
  return { until: until || null, after: after || null, pass, runAt: runAt === -1 ? null : runAt, call, dryRun }
}

function foreignMark(why: string): HoldfastError {
  return new HoldfastError('INVALID_OPTION', `after ${why}`, { option: 'after' })
}

function isMark([until, after, pass, runAt, call, dryRun, ...rest]: readonly unknown[]): boolean {
  const areTexts = [until, after, call].every((each) => typeof each === 'string')
  const areNumbers = Number.isSafeInteger(pass) && (runAt === -1 || isTime(runAt)) && (dryRun === 0 || dryRun === 1)
  return areTexts && areNumbers && rest.length === 0
}

/** The step was made, whatever `onProgress` does. So its error says where to go on. */
async function report(onProgress: BulkOptions['onProgress'], sums: Sums, next: string | null): Promise<void> {
  try {
    await onProgress?.(sums.progress)
  } catch (cause) {
    const { changed } = sums.progress
    const rest = next === null ? 'All jobs were gone over.' : 'The same call with after: error.facts.next goes on.'
    const message = `onProgress has thrown, so the verb has ended. ${jobsWere(changed)} changed. ${rest}`
    throw new HoldfastError('INVALID_OPTION', message, { option: 'onProgress', changed, next }, { cause })
  }
}

function jobsWere(count: number): string {
  return `${count} ${count === 1 ? 'job was' : 'jobs were'}`
}

/** An error of the store, with what was done before it and where to go on. What is refused for good is no such error. */
function withProgress(error: unknown, { changed, next }: BulkAnswer): unknown {
  if (!isHoldfastError(error) || error.code === 'INVALID_OPTION' || error.code === 'UNSUPPORTED') return error
  const done = `${jobsWere(changed)} changed before. The same call with after: error.facts.next goes on.`
  return new HoldfastError(error.code, `${error.message} ${done}`, { ...error.facts, changed, next }, { cause: error })
}

/** What all steps of a call have done. */
class Sums {
  #changed = 0
  #requested = 0
  #looked = 0
  readonly #skipped = new Map<SkipReason, { count: number; readonly ids: string[]; readonly message?: string }>()
  /** Dedup keys that a dry run would have taken. */
  readonly #taken = new Set<string>()

  /** Answers how many jobs the step has changed. */
  add({ changed, requested, looked, skipped, keyed }: ChangedStep, countsSkipped: boolean): number {
    this.#requested += requested
    this.#looked += looked
    let free = 0
    for (const { id, key } of keyed) {
      if (this.#taken.has(key)) this.#skip({ reason: 'dedupKeyHeld', count: 1, ids: [id] })
      else free += 1
      this.#taken.add(key)
    }
    this.#changed += changed + free
    if (countsSkipped) for (const each of skipped) this.#skip(each)
    return changed + free
  }

  get progress(): BulkProgress {
    const skipped = [...this.#skipped.values()].reduce((sum, { count }) => sum + count, 0)
    return { changed: this.#changed, looked: this.#looked, skipped }
  }

  answer(next: string | null): CancelAllAnswer {
    const skipped = [...this.#skipped].map(([reason, rest]) => ({ reason, ...rest }))
    return { changed: this.#changed, requested: this.#requested, looked: this.#looked, skipped, next }
  }

  #skip({ reason, count, ids, message }: SkippedJobs): void {
    const known = this.#skipped.get(reason)
    if (known === undefined) {
      const first = { count, ids: ids.slice(0, bounds.skippedIdsMax), ...(message !== undefined && { message }) }
      this.#skipped.set(reason, first)
      return
    }
    known.count += count
    known.ids.push(...ids.slice(0, bounds.skippedIdsMax - known.ids.length))
  }
}
