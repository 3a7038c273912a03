// Runs jobs in a test with the code of a worker: they are decoded, validated, wrapped in middleware, timed and settled with their
// effects. Only the claim loop differs (`drain-loop.ts`), so that runs have a known order and a test knows when all are done.

import { AssertionError } from 'node:assert'
import { HoldfastError } from '../errors.ts'
import { type Holdfast, internalsOf } from '../holdfast.ts'
import { checkInteger, checkOptions, checkTime } from '../job/names.ts'
import type { OutOf, QueueReference, ResultOf, Stated } from '../queue/reference.ts'
import { type Duration, toMs } from '../runtime/duration.ts'
import { isDisabled } from '../runtime/kill-switch.ts'
import type { Gate } from '../worker/gate/gate.ts'
import {
  type Handler,
  type HandlerModule,
  type HandlerOf,
  type Pairs,
  type Plan,
  toPlan,
  type WorkOptions,
} from '../worker/options.ts'
import type { FlowTime } from '../worker/worker.ts'
import { DrainLoop, type DrainLoopOptions } from './drain-loop.ts'
import { type RunOutcome, type RunRecord, RunRecords } from './run-records.ts'
import type { VirtualClock } from './virtual-clock.ts'
import { nextDue, nextSlot, storeTime, waitingJobs, whyNothing } from './waiting.ts'

/** The options of a worker that also apply in a test. */
export interface RunOnceOptions extends Pick<WorkOptions, 'lease' | 'middleware' | 'unwind' | 'threads'> {
  /** While it is closed, no job is run. */
  readonly gate?: Gate
}

export interface DrainOptions extends RunOnceOptions {
  /**
   * The clock of the store. If given, time moves to the next due job until nothing is due. With `until` it also moves to every
   * slot of a schedule until then.
   */
  readonly clock?: VirtualClock
  /** How far the clock may move: a duration, or a time. The clock has this time in the end. */
  readonly until?: Duration | Date
  /** The most runs; default 10 000. If there is more to do, `drain` rejects. */
  readonly maxJobs?: number
  /** How many jobs run at a time; default 1, so they run one after the other in the order of claiming. */
  readonly concurrency?: number
}

/** The number of runs by outcome, and all runs. */
export interface DrainReport extends Readonly<Record<RunOutcome, number>> {
  /** In the order in which they were claimed. */
  readonly runs: readonly RunRecord[]
}

const maxJobsDefault = 10_000
/** The middle of a backoff's jitter: the next attempt comes after exactly the delay, in every run of a test. */
const noJitter = 0.5

/**
 * Runs all jobs that are ready in these queues, and those that become ready meanwhile, until nothing is left to do. Without
 * `clock`, scheduled jobs stay scheduled. Schedules whose slot is due fire.
 */
export async function drain<const Queues extends readonly QueueReference[]>(
  holdfast: Holdfast,
  pairs: Pairs<Queues>,
  options: DrainOptions = {},
): Promise<DrainReport> {
  checkOptions(options, 'drain options', [...runOptionNames, 'clock', 'until', 'maxJobs', 'concurrency'])
  const { clock, until, maxJobs = maxJobsDefault, concurrency = 1, ...runOptions } = options
  const runsMax = checkInteger(maxJobs, 'maxJobs', 1, Number.MAX_SAFE_INTEGER)
  const plan = toPlan(pairs as readonly (readonly unknown[])[], { ...runOptions, concurrency, sweep: false })
  const queues = plan.all ? null : [...plan.queues.keys()]
  const untilAt = toTime(until, clock)
  const moreReady = async () => {
    const { promoted, rescued, admitted, fired } = await holdfast.sweep()
    return (
      promoted + rescued + admitted + fired > 0 ||
      (clock !== undefined && (await moveOn(holdfast, clock, queues, untilAt)))
    )
  }
  await options.gate?.watch()
  const runs = await runAll(holdfast, plan, { concurrency, runsMax, moreReady }, clock && timeOf(clock))
  if (runs.length >= runsMax) await refuseMore(holdfast, queues, runs)
  return { ...countOutcomes(runs), runs }
}

/** Runs the one job that a claim takes now, and returns its record. Fails if none is ready. */
export async function runOnce<Payload = unknown, Result = unknown, const Q extends QueueReference = QueueReference>(
  holdfast: Holdfast,
  queue: Q,
  handler: Stated<Q, Handler<Payload, Result>, HandlerOf<Q>> | HandlerModule,
  options: RunOnceOptions = {},
): Promise<RunRecord<Stated<Q, Payload, OutOf<Q>>, Stated<Q, Result, ResultOf<Q>>>> {
  checkOptions(options, 'runOnce options', runOptionNames)
  const plan = toPlan([[queue, handler]], { ...options, concurrency: 1, sweep: false })
  await options.gate?.watch()
  const [run] = await runAll(holdfast, plan, { concurrency: 1, runsMax: 1, moreReady: async () => false })
  if (run) return run as RunRecord<Stated<Q, Payload, OutOf<Q>>, Stated<Q, Result, ResultOf<Q>>>
  const [name] = plan.queues.keys()
  if (options.gate && !(await options.gate.state()).open)
    throw new AssertionError({ message: `Nothing runs: gate ${options.gate.name} is closed.`, stackStartFn: runOnce })
  const why = name === undefined ? 'no queue has a job that is ready.' : await whyNothing(holdfast, name)
  const message = `Nothing is ready in ${name === undefined ? 'any queue' : `queue ${name}`}: ${why}`
  throw new AssertionError({ message, stackStartFn: runOnce })
}

/** Every wait of a flow is given to the clock, however short it is. */
function timeOf(clock: VirtualClock): FlowTime {
  return { keptWaits: { sleepMs: 0, retryMs: 0 }, storeNow: () => clock.now() }
}

const runOptionNames: readonly (keyof RunOnceOptions)[] = ['lease', 'middleware', 'unwind', 'gate', 'threads']

async function runAll(
  holdfast: Holdfast,
  plan: Plan,
  options: Omit<DrainLoopOptions, 'onClaimed'>,
  flowTime?: FlowTime,
): Promise<RunRecord[]> {
  if (isDisabled('work')) {
    const message = 'HOLDFAST_DISABLE=work switches off the running of jobs; unset it for this test.'
    throw new HoldfastError('INVALID_STATE', message, {})
  }
  await holdfast.sweep() // makes due jobs ready
  const records = new RunRecords(holdfast, plan.name)
  const recorded = { ...plan, middleware: [records.middleware, ...plan.middleware] }
  const loopOptions = { ...options, onClaimed: records.claimed.bind(records) }
  const worker = internalsOf(holdfast).startWorker(recorded, {
    makeLoop: (context, halt) => new DrainLoop(context, halt, loopOptions),
    random: () => noJitter,
    ...(flowTime && { flowTime }),
  })
  try {
    await worker.finished
  } finally {
    records.close()
  }
  return records.all()
}

/** A flow run that waits for a signal without a timeout is due in ten years. No test means that. */
const endlessMs = 5 * 365 * 86_400_000

/**
 * Moves time to the next due job, or to the next slot of a schedule if that comes first; false if there is none, or it is due
 * after `untilAt`. Schedules have no end, so their slots count only if `untilAt` is one. A slot of a queue that is not served
 * counts too: at a later time it would have been missed.
 */
async function moveOn(
  holdfast: Holdfast,
  clock: VirtualClock,
  queues: readonly string[] | null,
  untilAt: number,
): Promise<boolean> {
  const due = await nextDue(holdfast, queues)
  const slot = Number.isFinite(untilAt) ? await nextSlot(holdfast) : null
  if (due && !Number.isFinite(untilAt) && due.getTime() > (await storeTime(holdfast)) + endlessMs) return false
  const next = Math.min(due?.getTime() ?? Number.POSITIVE_INFINITY, slot?.getTime() ?? Number.POSITIVE_INFINITY)
  if (next === Number.POSITIVE_INFINITY || next > untilAt) {
    if (Number.isFinite(untilAt)) clock.advanceTo(untilAt)
    return false
  }
  clock.advanceTo(next)
  await holdfast.sweep()
  const stillDue = await nextDue(holdfast, queues)
  if (stillDue && stillDue.getTime() <= next && next === due?.getTime())
    throw new HoldfastError(
      'INVALID_OPTION',
      'This Holdfast runs on another clock; give drain the one it was opened on.',
      {
        option: 'clock',
      },
    )
  return true
}

async function refuseMore(
  holdfast: Holdfast,
  queues: readonly string[] | null,
  runs: readonly RunRecord[],
): Promise<void> {
  const left = (await waitingJobs(holdfast)).filter(({ queue }) => queues === null || queues.includes(queue))
  if (left.length === 0) return
  const last = runs.slice(-3).map(({ queue, attempt, outcome }) => `${queue} (attempt ${attempt}, ${outcome})`)
  const message =
    `drain ran ${runs.length} jobs, its maxJobs, and ${left.length} more wait. Do jobs enqueue each other without end? ` +
    `If not, raise maxJobs. The last that ran: ${last.join(', ')}.`
  throw new AssertionError({ message, stackStartFn: drain })
}

function toTime(until: Duration | Date | undefined, clock: VirtualClock | undefined): number {
  if (until === undefined) return Number.POSITIVE_INFINITY
  if (!clock) throw new HoldfastError('INVALID_OPTION', 'until is how far the clock may move: give clock too.', {})
  return until instanceof Date ? checkTime(until, 'until') : clock.now() + toMs(until, 'until')
}

function countOutcomes(runs: readonly RunRecord[]): Record<RunOutcome, number> {
  const counts = { done: 0, dead: 0, retried: 0, snoozed: 0, released: 0, cancelled: 0, lost: 0 }
  for (const { outcome } of runs) counts[outcome] += 1
  return counts
}
