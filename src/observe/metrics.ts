// Prometheus metrics of one Holdfast: counters and durations from the events of this process, and the state of the queues
// from the store. It is a separate entry point, because prom-client takes 40 ms to load and most programs do not need it.

import { Registry } from 'prom-client'
import type { EventName, Events, HoldfastEvents, RunFacts } from '../events.ts'
import { checkOptions } from '../job/names.ts'
import { Bounded, other } from './bounded.ts'
import { type AnyRegistry, defaultBuckets, type Instruments, instrumentsIn, removeFrom } from './instruments.ts'
import { type AskedStore, StoreGauges } from './store-gauges.ts'
import { WorkerGauges } from './worker-gauges.ts'

/** The part of a Holdfast that the metrics need. */
export interface Measured extends Pick<Events, 'on'>, AskedStore {}

export interface MetricsOptions {
  /** Where the metrics are registered, such as prom-client's own `register`; a new registry unless given. */
  readonly registry?: AnyRegistry
  /** The prefix of every name; `holdfast_` unless given. */
  readonly prefix?: string
  /** Upper bounds of the histograms, in seconds. */
  readonly buckets?: readonly number[]
}

export interface Metrics {
  readonly registry: AnyRegistry
  /** For the `content-type` of the answer. */
  readonly contentType: string
  /** All metrics of the registry, in the text format of Prometheus. */
  text(): Promise<string>
  /** Stops listening and removes its metrics from the registry. */
  stop(): void
}

const queuesMax = 1_000
const workersMax = 1_000
const schedulesMax = 1_000
const reapersMax = 1_000
/** The most pairs of outcome and warning for each queue. */
const outcomesMax = 100

export function metrics(holdfast: Measured, options: MetricsOptions = {}): Metrics {
  checkOptions(options, 'metrics options', ['registry', 'prefix', 'buckets'])
  const { registry = new Registry(), prefix = 'holdfast_', buckets = defaultBuckets } = options
  const instruments = instrumentsIn({ registry, prefix, buckets, refresh: () => fromStore.refresh() })
  const names = { queues: new Bounded(queuesMax), schedules: new Bounded(schedulesMax) }
  const fromStore = new StoreGauges(instruments, holdfast, names)
  const stops = [
    ...listen(holdfast, listenersOf(instruments, names.queues)),
    ...listen(holdfast, sideListenersOf(instruments, names)),
  ]
  return {
    registry,
    contentType: registry.contentType,
    text: () => registry.metrics(),
    stop: () => {
      for (const stop of stops) stop()
      removeFrom(registry, prefix)
    },
  }
}

type Listeners = { readonly [Name in EventName]?: (event: HoldfastEvents[Name]) => void }

function listen(holdfast: Pick<Events, 'on'>, listeners: Listeners): (() => void)[] {
  const names = Object.keys(listeners) as EventName[]
  const listenTo = <Name extends EventName>(name: Name) => holdfast.on(name, listeners[name] ?? (() => undefined))
  return names.map((name) => listenTo(name))
}

function listenersOf(instruments: Instruments, queueNames: Bounded): Listeners {
  const workers = new WorkerGauges(instruments, new Bounded(workersMax))
  const outcomes = new Map<string, Bounded>()
  const queueOf = ({ queue }: { readonly queue: string }) => queueNames.of(queue)

  const runEnded = (outcome: string) => (event: RunFacts) => {
    const queue = queueOf(event)
    workers.runEnded(event)
    instruments.jobs_total.inc({ queue, outcome })
    instruments.run_duration_seconds.observe({ queue }, event.durationMs / 1_000)
  }
  const countDone = runEnded('done')
  const countDead = runEnded('dead')
  const countOutcome = (event: HoldfastEvents['job.done']) => {
    const queue = queueOf(event)
    const known = outcomes.get(queue) ?? new Bounded(outcomesMax)
    outcomes.set(queue, known)
    const { outcome, warning } = event
    const isKnown = known.has(JSON.stringify([outcome, warning]))
    const labelOf = (label: string | null) => (label === null ? '' : isKnown ? label : other)
    instruments.outcomes_total.inc({ queue, outcome: labelOf(outcome), warning: labelOf(warning) })
  }

  return {
    'job.enqueued': (event) => instruments.enqueued_total.inc({ queue: queueOf(event), status: event.status }),
    'job.started': (event) => {
      workers.runStarted(event)
      instruments.wait_duration_seconds.observe({ queue: queueOf(event) }, event.waitedMs / 1_000)
    },
    'job.done': (event) => {
      countDone(event)
      if (event.outcome !== null || event.warning !== null) countOutcome(event)
    },
    'job.retrying': runEnded('retrying'),
    'job.dead': (event) => {
      if (event.ending !== 'expired') countDead(event)
      else instruments.jobs_total.inc({ queue: queueOf(event), outcome: 'dead' }) // the worker that ran it is gone
    },
    'job.snoozed': runEnded('snoozed'),
    'job.released': runEnded('released'),
    'job.cancelled': runEnded('cancelled'),
    'lease.lost': (event) => {
      workers.runEnded(event)
      instruments.jobs_total.inc({ queue: queueOf(event), outcome: 'lost' })
      instruments.leases_lost_total.inc({ queue: queueOf(event), during: event.during })
    },
    'settle.failed': (event) => {
      if (event.state === null) workers.runEnded(event) // otherwise an event of the job's new state follows
      instruments.settle_failures_total.inc({ queue: queueOf(event) })
    },
    'handler.abandoned': (event) => instruments.handlers_abandoned_total.inc({ queue: queueOf(event) }),
    'thread.stuck': (event) => instruments.threads_stuck_total.inc({ queue: queueOf(event) }),
    'thread.leftover': (event) => instruments.thread_leftovers_total.inc({ queue: queueOf(event), kind: event.kind }),
    'heartbeat.failed': () => instruments.heartbeat_failures_total.inc(),
    'claim.ended': ({ durationMs }) => instruments.claim_duration_seconds.observe(durationMs / 1_000),
    'settle.ended': ({ durationMs }) => instruments.settle_duration_seconds.observe(durationMs / 1_000),
    'sweep.ended': ({ rescued, promoted, overdue, admitted, pruned }) => {
      instruments.rescued_total.inc(rescued)
      instruments.promoted_total.inc(promoted)
      instruments.overdue_total.inc(overdue)
      instruments.admitted_total.inc(admitted)
      instruments.pruned_total.inc(pruned)
    },
    'batch.submitted': ({ added, duplicates }) => {
      instruments.batch_items_total.inc({ status: 'created' }, added)
      instruments.batch_items_total.inc({ status: 'duplicate' }, duplicates)
    },
    'batch.finished': ({ state }) => instruments.batches_finished_total.inc({ state }),
    'worker.started': ({ worker, concurrency }) => workers.started(worker, concurrency),
    'worker.stopped': ({ worker }) => workers.stopped(worker),
    'worker.failed': ({ worker }) => workers.stopped(worker),
  }
}

/** Events of what runs beside the workers, and of webhooks. */
function sideListenersOf(
  instruments: Instruments,
  names: { readonly queues: Bounded; readonly schedules: Bounded },
): Listeners {
  const reaperNames = new Bounded(reapersMax)
  return {
    'schedule.fired': (event) => {
      const schedule = names.schedules.of(event.schedule)
      instruments.schedule_fired_total.inc({ schedule })
      instruments.schedule_lag_seconds.observe({ schedule }, event.lateMs / 1_000)
    },
    'schedule.skipped': ({ schedule, slots, reason }) =>
      instruments.schedule_skipped_total.inc({ schedule: names.schedules.of(schedule), reason }, slots),
    'schedule.failed': ({ schedule }) =>
      instruments.schedule_failures_total.inc({ schedule: names.schedules.of(schedule) }),
    'firing.failed': () => instruments.firing_failures_total.inc(),
    'delivery.ended': (event) => {
      const queue = names.queues.of(event.queue)
      const status = event.status === null ? 'none' : `${Math.floor(event.status / 100)}xx`
      instruments.webhook_deliveries_total.inc({ queue, outcome: event.outcome, status })
      instruments.webhook_duration_seconds.observe({ queue }, event.durationMs / 1_000)
    },
    'reaper.ran': (event) => {
      const reaper = reaperNames.of(event.reaper)
      instruments.reaper_runs_total.inc({ reaper })
      instruments.reaper_revived_total.inc({ reaper }, event.revived)
      instruments.reaper_duration_seconds.observe({ reaper }, event.durationMs / 1_000)
    },
    'reaper.failed': (event) => instruments.reaper_failures_total.inc({ reaper: reaperNames.of(event.reaper) }),
  }
}
