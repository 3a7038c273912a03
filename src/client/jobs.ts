// What a client does with stored jobs: it reads them, waits for their ends, and changes them.

import { HoldfastError, isHoldfastError, isRefused, toError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { checkBy, checkInteger, checkJobId, checkOptions, checkTime } from '../job/names.ts'
import type { IncludedPart, JobState, NewJob } from '../job/record.ts'
import type { Effects, FollowUp } from '../queue/effects.ts'
import type { AlterRequest, CancelRequest, CountedJobs, DeadGroup, Enqueued, Store } from '../store/store.ts'
import type { Calls } from './calls.ts'
import { type CountFilter, type JobsFilter, toCountQuery, toFindQuery } from './filter.ts'
import { type JobInfo, type ListedJob, toJobInfo, toListedJob } from './job-info.ts'
import {
  type ByOption,
  type DeadGroupsFilter,
  encodeWakeData,
  type JobChanges,
  type ResultOptions,
  resultOf,
  toBy,
  toChange,
  toDeadGroupsQuery,
  toResultRequest,
} from './requests.ts'
import type { Results } from './results.ts'
import { type RunTime, toRunTime } from './run-time.ts'

export interface CancelOptions<Item extends FollowUp = FollowUp> {
  readonly effects?: Effects<Item>
  /** Your name, or that of your program, for the history of the job. */
  readonly by?: string
}

/** A page of a listing. It may be short, or empty, and have a `next`: one call looks at a bounded number of jobs. */
export interface JobsPage<Part extends IncludedPart = never> {
  readonly jobs: ListedJob<Part>[]
  /** How many jobs the page has looked at. */
  readonly looked: number
  /** The `after` of the next page; null: no more jobs match. */
  readonly next: string | null
}

/** What this needs of the client. */
export interface JobsContext {
  readonly store: Store
  readonly calls: Calls
  readonly results: Results
  prepareEffects(effects: Effects | undefined): Promise<CancelRequest['effects']>
  /** These jobs were stored with a cancel. */
  enqueued(jobs: readonly NewJob[], enqueued: readonly Enqueued[]): void
  /** A job becomes due after so long: the sweep must look then. */
  expectDue(delayMs: number): void
}

/** Dead jobs of one queue whose errors are alike. */
export interface DeadGroupInfo extends Omit<DeadGroup, 'lastDiedAt'> {
  readonly lastDiedAt: Date
}

export class Jobs {
  readonly #context: JobsContext

  constructor(context: JobsContext) {
    this.#context = context
  }

  async get(id: string): Promise<JobInfo | null> {
    const { calls, store } = this.#context
    const record = await calls.run(() => store.job(checkJobId(id)))
    return record && toJobInfo(record)
  }

  async list(filter: JobsFilter): Promise<JobsPage> {
    const { calls, store } = this.#context
    const query = toFindQuery(filter)
    const page = await calls.run(() => store.find(query))
    return { ...page, jobs: page.jobs.map(toListedJob) }
  }

  async count(filter: CountFilter): Promise<CountedJobs> {
    const { calls, store } = this.#context
    const query = toCountQuery(filter)
    return calls.run(() => store.count(query))
  }

  async deadGroups(filter: DeadGroupsFilter): Promise<{ groups: DeadGroupInfo[]; next: string | null }> {
    const { calls, store } = this.#context
    const query = toDeadGroupsQuery(filter)
    const { groups, next } = await calls.run(() => store.deadGroups(query))
    return { groups: groups.map((group) => ({ ...group, lastDiedAt: new Date(group.lastDiedAt) })), next }
  }

  async result(id: string, options: ResultOptions): Promise<unknown> {
    const { calls, results } = this.#context
    const request = toResultRequest(id, options)
    const wait = () => results.wait(request.id, request.timeoutMs, request.signal)
    const outcome = await calls.run(wait).catch((error) => this.#explainTimeout(request.id, error))
    return resultOf(request.id, outcome)
  }

  /** Adds the state of the job and its last error, if the store answers. Any other error is thrown as it is. */
  async #explainTimeout(id: string, error: unknown): Promise<never> {
    if (!isHoldfastError(error, 'WAIT_TIMEOUT')) throw error
    const job = await this.get(id).catch(() => null)
    if (job === null) throw error
    const last = job.history.findLast((attempt) => attempt.error !== null)?.error ?? null
    const why = last === null ? '' : `; its last attempt failed: ${last.message.replace(/\.$/, '')}`
    const facts = { ...error.facts, state: job.state, error: last }
    throw new HoldfastError('WAIT_TIMEOUT', `${error.message} It is ${job.state}${why}.`, facts)
  }

  async cancel(id: string, options: CancelOptions): Promise<'cancelled' | 'requested'> {
    const { calls, store, prepareEffects } = this.#context
    checkOptions(options, 'cancel options', ['effects', 'by'])
    const by = checkBy(options.by)
    const effects = await prepareEffects(options.effects)
    const [answer] = await calls.run(() => store.cancel([{ id: checkJobId(id), effects, by }]))
    if (isRefused(answer)) throw toError(answer)
    if (effects && answer) this.#context.enqueued(effects.enqueue, answer.enqueued)
    return answer?.status as 'cancelled' | 'requested'
  }

  wake(id: string, data: unknown): Promise<JobState> {
    return this.#alter(() => ({ as: 'wake', id: checkJobId(id), data: encodeWakeData(data) }))
  }

  reschedule(id: string, when: Date | number | RunTime, options: ByOption): Promise<JobState> {
    const { calls, store, expectDue } = this.#context
    return calls.run(async () => {
      const checked = checkJobId(id)
      const isTime = typeof when === 'number' || when instanceof Date
      const given = isTime ? { runAt: checkTime(when, 'runAt') } : toRunTime(when, 'reschedule')
      const by = toBy(options, 'reschedule options')
      const now = await store.time()
      const runAt = 'runAt' in given ? given.runAt : now + given.delayMs
      const state = await this.#alterOne({ as: 'reschedule', id: checked, runAt, by })
      expectDue(Math.max(0, runAt - now))
      return state
    })
  }

  reprioritise(id: string, priority: number, options: ByOption): Promise<JobState> {
    return this.#alter(() => ({
      ...{ as: 'reprioritise', id: checkJobId(id) },
      priority: checkInteger(priority, 'priority', 0, bounds.priorityMax),
      by: toBy(options, 'reprioritise options'),
    }))
  }

  change(id: string, changes: JobChanges, options: ByOption): Promise<JobState> {
    return this.#alter(() => toChange(checkJobId(id), changes, toBy(options, 'change options')))
  }

  async delete(id: string): Promise<void> {
    await this.#alter(() => ({ as: 'delete', id: checkJobId(id) }))
  }

  async requeue(id: string, options: ByOption): Promise<void> {
    const { calls, store } = this.#context
    const [answer] = await calls.run(async () => store.requeue([checkJobId(id)], toBy(options, 'requeue options')))
    if (isRefused(answer)) throw toError(answer)
  }

  #alter(toRequest: () => AlterRequest): Promise<JobState> {
    return this.#context.calls.run(async () => this.#alterOne(toRequest()))
  }

  async #alterOne(request: AlterRequest): Promise<JobState> {
    const [answer] = await this.#context.store.alter([request])
    if (isRefused(answer)) throw toError(answer)
    return answer?.state as JobState
  }
}
