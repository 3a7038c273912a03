// Sees every call when it commits. So it knows at every moment which process holds which job, until when, and which queues are
// paused. A contradiction is a broken promise. So is a healthy worker that lets a lease run out, or goes on with a job that it
// has lost or that was cancelled.

import { isRefused, type Refused } from '../../src/errors.ts'
import type { BatchRecord } from '../../src/job/batch.ts'
import type {
  CancelAnswer,
  CancelRequest,
  CheckpointAnswer,
  CheckpointRequest,
  ClaimedJob,
  ClaimRequest,
  RenewAnswer,
  RenewRequest,
  SettleAnswer,
  SettleRequest,
  SweepReport,
} from '../../src/store/store.ts'
import { batchLimit, guarded, queueLimit, tenantLimit, tenants } from './guarded.ts'
import type { Call, Caller, Observer } from './network.ts'
import { leaseMs } from './plan.ts'
import type { Timeline } from './timeline.ts'

/** A run of a handler, as the handler records it. */
export interface Running {
  readonly id: string
  readonly startedAt: number
  endedAt: number | null
  /** Its signal aborted, or it was abandoned. */
  abortedAt: number | null
}

/** A process that the checker watches. */
export interface Watched extends Caller {
  /** No fault has affected it since this time. */
  readonly calmSince: number
  readonly isEnding: boolean
  readonly runs: readonly Running[]
}

interface Hold {
  readonly id: string
  readonly fence: string
  readonly holder: Watched
  readonly queue: string
  readonly batch: string | null
  readonly tenant: string | null
  /** A worker claimed it, and renews it; otherwise it was claimed by hand. */
  readonly isWorkers: boolean
  grantedAt: number
  expiresAt: number
}

/** The time for calls and their answers, in addition to the pauses of a worker. */
const slackMs = 400
const cancelCheckMs = 1_000

export class LeaseChecker implements Observer {
  readonly #timeline: Timeline
  readonly #accuse: (promise: string, what: string) => void
  readonly #holds = new Map<string, Hold>()
  readonly #fences = new Set<string>()
  readonly #paused = new Set<string>()
  /** Batches that are paused or cancelled. */
  readonly #stopped = new Set<string>()
  /** When jobs of the queue with a rate have started, by the store's clock. */
  readonly #starts: number[] = []
  /** How often each job was settled, minus how often an event said so. */
  readonly #unreported = new Map<string, number>()

  constructor(timeline: Timeline, accuse: (promise: string, what: string) => void) {
    this.#timeline = timeline
    this.#accuse = accuse
  }

  sent(): void {}

  answered(): void {}

  committed({ caller, verb, args }: Call, answer: unknown): void {
    const [requests] = args
    if (verb === 'claim') this.#claimed(caller as Watched, requests as ClaimRequest, answer as ClaimedJob[])
    else if (verb === 'renew') this.#renewed(requests as RenewRequest[], answer as RenewAnswer[])
    else if (verb === 'settle') this.#settled(caller, requests as SettleRequest[], answer as SettleAnswer[])
    else if (verb === 'checkpoint')
      this.#checkpointed(caller, requests as CheckpointRequest[], answer as CheckpointAnswer[])
    else if (verb === 'sweep') this.#swept(answer as SweepReport)
    else if (verb === 'cancel') this.#cancelled(requests as CancelRequest[], answer as CancelAnswer[])
    else if (verb === 'controlBatch') this.#controlled(answer as BatchRecord | Refused)
    else if (verb === 'pause') this.pause(args[0] as string, args[1] as boolean)
  }

  pause(queue: string, paused: boolean): void {
    if (paused) this.#paused.add(queue)
    else this.#paused.delete(queue)
  }

  /** A process has emitted how a job was settled. */
  reported(process: string, id: string): void {
    const left = (this.#unreported.get(id) ?? 0) - 1
    if (left < 0) this.#accuse('every event has happened', `${process} emits the end of ${id}, which was not settled`)
    this.#unreported.set(id, left)
  }

  #claimed(holder: Watched, { worker }: ClaimRequest, jobs: readonly ClaimedJob[]): void {
    for (const job of jobs) {
      const { id, fence, queue, attempt, maxAttempts, expiresAt, batch } = job
      const before = this.#holds.get(id)
      if (before)
        this.#accuse('a job has one holder at a time', `${id} is claimed while ${before.holder.name} holds it`)
      if (this.#fences.has(fence)) this.#accuse('a fence names one claim', `the fence of ${id} was used before`)
      if (this.#paused.has(queue)) this.#accuse('a claim gets nothing from a paused queue', `${id} of ${queue}`)
      if (attempt > maxAttempts)
        this.#accuse('attempts stay below the cap', `${id} is claimed for the ${attempt}th time`)
      this.#fences.add(fence)
      const isWorkers = worker.startsWith(`${holder.name}#`)
      const tenant = queue === tenants.name ? (JSON.parse(job.payload) as { tenant: string }).tenant : null
      const place = { queue, batch, tenant }
      this.#holds.set(id, { id, fence, holder, isWorkers, grantedAt: this.#timeline.now, expiresAt, ...place })
      this.#checkLimits(job)
    }
  }

  #controlled(batch: BatchRecord | Refused): void {
    if (isRefused(batch)) return
    if (batch.state === 'paused' || batch.state === 'cancelled') this.#stopped.add(batch.id)
    else this.#stopped.delete(batch.id)
  }

  /** No more jobs run than each limit allows, and no more have started than a rate allows. */
  #checkLimits({ queue, payload, batch }: ClaimedJob): void {
    const holds = [...this.#holds.values()]
    const accuse = (what: string) => this.#accuse('limits hold at every moment', what)
    if (batch !== null) {
      if (this.#stopped.has(batch)) this.#accuse('a paused batch starts nothing', `an item of ${batch} starts`)
      const running = holds.filter((hold) => hold.batch === batch).length
      if (running > batchLimit) accuse(`${running} items of ${batch} run`)
    }
    if (queue === guarded.name) {
      const running = holds.filter((hold) => hold.queue === queue).length
      if (running > queueLimit.concurrency) accuse(`${running} jobs of ${queue} run`)
      this.#starts.push(this.#timeline.clock)
      const started = this.#starts.filter((at) => at > this.#timeline.clock - queueLimit.windowMs).length
      if (started > queueLimit.count) accuse(`${started} jobs of ${queue} have started within its window`)
    }
    if (queue === tenants.name) {
      const { tenant } = JSON.parse(payload)
      const running = holds.filter((hold) => hold.queue === queue && hold.tenant === tenant).length
      if (running > tenantLimit.concurrency) accuse(`${running} jobs of ${tenant} run`)
    }
  }

  #renewed(requests: readonly RenewRequest[], answers: readonly RenewAnswer[]): void {
    requests.forEach(({ id, fence }, i) => {
      const answer = answers[i] as RenewAnswer
      const hold = this.#current(id, fence)
      if (isRefused(answer)) return
      if ((answer === 'lost') === (hold !== null))
        this.#accuse(
          'only the holder of a job renews it',
          `the renewal of ${id} is ${answer === 'lost' ? 'lost' : 'accepted'}`,
        )
      if (hold && answer !== 'lost') {
        hold.grantedAt = this.#timeline.now
        hold.expiresAt = answer.expiresAt
      }
    })
  }

  #settled(caller: Caller, requests: readonly SettleRequest[], answers: readonly SettleAnswer[]): void {
    requests.forEach(({ id, fence, settlement }, i) => {
      const answer = answers[i] as SettleAnswer
      if (isRefused(answer)) return
      const hold = this.#current(id, fence)
      if (answer === 'lost') {
        if (hold)
          this.#accuse('the holder of a job can settle it', `${caller.name} holds ${id} and gets the answer lost`)
        return
      }
      if (!hold) this.#accuse('only the holder of a job settles it', `${caller.name} settled ${id} as ${settlement.as}`)
      this.#holds.delete(id)
      this.#unreported.set(id, (this.#unreported.get(id) ?? 0) + 1)
    })
  }

  #checkpointed(caller: Caller, requests: readonly CheckpointRequest[], answers: readonly CheckpointAnswer[]): void {
    requests.forEach(({ id, fence }, i) => {
      const answer = answers[i] as CheckpointAnswer
      if (isRefused(answer)) return
      const hold = this.#current(id, fence)
      if ((answer === 'lost') === (hold !== null)) {
        const what = answer === 'lost' ? 'gets the answer lost' : 'writes'
        this.#accuse('only the holder of a run writes its journal', `${caller.name} ${what} a checkpoint of ${id}`)
      }
      if (hold && answer !== 'lost' && 'expiresAt' in answer) {
        hold.grantedAt = this.#timeline.now
        hold.expiresAt = answer.expiresAt
      }
    })
  }

  #swept({ expired }: SweepReport): void {
    for (const { id } of expired) {
      const hold = this.#holds.get(id)
      this.#holds.delete(id)
      if (!hold) {
        this.#accuse('only jobs with expired leases are rescued', `${id} is rescued although it was not held`)
        continue
      }
      if (hold.expiresAt > this.#timeline.clock)
        this.#accuse(
          'only jobs with expired leases are rescued',
          `${id} is rescued ${hold.expiresAt - this.#timeline.clock} ms early`,
        )
      if (hold.isWorkers) this.#lost(hold)
    }
  }

  /** Its worker should have renewed it. If a fault prevented that, the run must be aborted soon after. */
  #lost({ id, holder, grantedAt }: Hold): void {
    if (!holder.isDead && !holder.isEnding && holder.calmSince <= grantedAt)
      this.#accuse('a healthy worker keeps its leases', `${holder.name} let the lease of ${id} run out`)
    this.#expectAbort('a run whose lease is lost is aborted', id, holder, leaseMs / 3 + slackMs)
  }

  #cancelled(requests: readonly CancelRequest[], answers: readonly CancelAnswer[]): void {
    requests.forEach(({ id }, i) => {
      const answer = answers[i] as CancelAnswer
      const hold = this.#holds.get(id)
      if (isRefused(answer) || answer.status !== 'requested' || !hold?.isWorkers) return
      this.#expectAbort('a run of a cancelled job is aborted', id, hold.holder, cancelCheckMs + slackMs)
    })
  }

  /** The handler must have ended or been aborted once its process has run without a fault for this time. */
  #expectAbort(promise: string, id: string, holder: Watched, withinMs: number): void {
    const since = this.#timeline.now
    const check = () => {
      const dueAt = Math.max(since, holder.calmSince) + withinMs
      if (dueAt > this.#timeline.now) return void this.#timeline.after(dueAt - this.#timeline.now, holder, check)
      const missed = holder.runs.find(
        (run) => run.id === id && run.startedAt <= since && run.endedAt === null && run.abortedAt === null,
      )
      if (missed)
        this.#accuse(promise, `${holder.name} runs ${id} since ${missed.startedAt.toFixed(0)} without an abort`)
    }
    this.#timeline.after(withinMs, holder, check)
  }

  #current(id: string, fence: string): Hold | null {
    const hold = this.#holds.get(id)
    return hold?.fence === fence ? hold : null
  }
}
