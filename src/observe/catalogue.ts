// Every metric, without the prefix. docs/reference/metrics.md is this list; a test keeps them equal.

export interface MetricEntry {
  readonly type: 'counter' | 'gauge' | 'histogram'
  readonly labels: readonly string[]
  readonly help: string
  /** Read from the store when the metrics are read, and left out while the store does not answer. */
  readonly fromStore?: true
}

export const catalogue = {
  queue_jobs: { type: 'gauge', labels: ['queue', 'state'], help: 'Jobs in the store, by state.', fromStore: true },
  waiting_age_seconds: {
    type: 'gauge',
    labels: ['queue'],
    help: 'How long the longest-waiting ready job has been ready.',
    fromStore: true,
  },
  queue_paused: { type: 'gauge', labels: ['queue'], help: '1 while the queue is paused.', fromStore: true },
  store_up: {
    type: 'gauge',
    labels: [],
    help: '1 if the store answered when these metrics were read.',
    fromStore: true,
  },

  schedule_overdue_seconds: {
    type: 'gauge',
    labels: ['schedule'],
    help: 'How long the oldest slot that was not fired has been due; 0 if none is due.',
    fromStore: true,
  },

  enqueued_total: {
    type: 'counter',
    labels: ['queue', 'status'],
    help: 'Enqueues outside of transactions of callers, by status: created, duplicate, replaced or notReplaced.',
  },
  jobs_total: { type: 'counter', labels: ['queue', 'outcome'], help: 'Runs that ended, by how they ended.' },
  outcomes_total: {
    type: 'counter',
    labels: ['queue', 'outcome', 'warning'],
    help: 'Done jobs to which the handler gave an outcome or a warning.',
  },
  wait_duration_seconds: {
    type: 'histogram',
    labels: ['queue'],
    help: 'From the enqueue to the start of a run, including delays and earlier attempts.',
  },
  run_duration_seconds: { type: 'histogram', labels: ['queue'], help: 'From the call of the handler to its end.' },
  claim_duration_seconds: { type: 'histogram', labels: [], help: 'Calls to the store that claim jobs.' },
  settle_duration_seconds: { type: 'histogram', labels: [], help: 'Calls to the store that settle jobs.' },
  leases_lost_total: { type: 'counter', labels: ['queue', 'during'], help: 'Leases lost while a worker held them.' },
  settle_failures_total: {
    type: 'counter',
    labels: ['queue'],
    help: 'Settlements that failed for another reason than a lost lease.',
  },
  handlers_abandoned_total: {
    type: 'counter',
    labels: ['queue'],
    help: 'Handlers that ignored their signal and were abandoned.',
  },
  threads_stuck_total: {
    type: 'counter',
    labels: ['queue'],
    help: 'Handler threads that did not end because they were blocked in native code.',
  },
  thread_leftovers_total: {
    type: 'counter',
    labels: ['queue', 'kind'],
    help: 'Handler threads that were replaced because leftover work of an ended job threw or exited.',
  },
  heartbeat_failures_total: { type: 'counter', labels: [], help: 'Rounds of renewals that failed.' },
  rescued_total: { type: 'counter', labels: [], help: 'Jobs rescued by sweeps because their lease had expired.' },
  promoted_total: { type: 'counter', labels: [], help: 'Scheduled jobs made ready by sweeps.' },
  overdue_total: {
    type: 'counter',
    labels: [],
    help: 'Jobs cancelled by sweeps because they had not started in time.',
  },
  admitted_total: {
    type: 'counter',
    labels: [],
    help: 'Held jobs admitted by sweeps because a slot of their limit key was free.',
  },
  pruned_total: { type: 'counter', labels: [], help: 'Finished jobs removed by sweeps when their retention was over.' },
  batch_items_total: {
    type: 'counter',
    labels: ['status'],
    help: 'Items of complete submissions, created or duplicate.',
  },
  batches_finished_total: {
    type: 'counter',
    labels: ['state'],
    help: 'Batches that this process found finished, done or cancelled; once for each round.',
  },
  running: { type: 'gauge', labels: ['worker'], help: 'Jobs that a worker runs now.' },
  capacity: { type: 'gauge', labels: ['worker'], help: 'The most jobs that a worker runs at a time.' },

  schedule_fired_total: { type: 'counter', labels: ['schedule'], help: 'Slots that this process fired.' },
  schedule_skipped_total: {
    type: 'counter',
    labels: ['schedule', 'reason'],
    help: 'Slots that made no job: missed, or the job of an earlier slot held their dedup key.',
  },
  schedule_lag_seconds: {
    type: 'histogram',
    labels: ['schedule'],
    help: 'From the time of a slot until it was fired.',
  },
  schedule_failures_total: { type: 'counter', labels: ['schedule'], help: 'Schedules that could not be fired.' },
  firing_failures_total: { type: 'counter', labels: [], help: 'Times when schedules could no longer be read.' },
  webhook_deliveries_total: {
    type: 'counter',
    labels: ['queue', 'outcome', 'status'],
    help: 'Calls of webhooks, by outcome and status of the answer.',
  },
  webhook_duration_seconds: { type: 'histogram', labels: ['queue'], help: 'Calls of webhooks, redirects included.' },
  reaper_runs_total: { type: 'counter', labels: ['reaper'], help: 'Searches for rows left behind that succeeded.' },
  reaper_revived_total: { type: 'counter', labels: ['reaper'], help: 'Rows left behind that got a job.' },
  reaper_failures_total: {
    type: 'counter',
    labels: ['reaper'],
    help: 'Searches that failed, and rows that could not be enqueued.',
  },
  reaper_duration_seconds: {
    type: 'histogram',
    labels: ['reaper'],
    help: 'Searches that succeeded, including their enqueues.',
  },
} as const satisfies Readonly<Record<string, MetricEntry>>

export type MetricName = keyof typeof catalogue
