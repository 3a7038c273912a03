import './runtime/node-version.ts'

export type {
  Batch,
  BatchActionOptions,
  CancelBatchOptions,
  FinishedOptions,
  ItemsFilter,
  ItemsPageFilter,
} from './batch/batch.ts'
export type { BatchesFilter } from './batch/batches.ts'
export type { AcceptOptions, Inbox, InboxPageFilter, Pickup } from './batch/inbox.ts'
export { jsonLines, type LineSource, toJsonLines } from './batch/json-lines.ts'
export type { BatchItem, BatchOptions, CompletionOptions } from './batch/options.ts'
export type { BatchProgress } from './batch/progress.ts'
export type { ItemResult } from './batch/result.ts'
export type { Items, Submitted } from './batch/submission.ts'
export type { BulkAnswer, BulkOptions, BulkProgress, CancelAllAnswer, DeleteAllAnswer } from './client/bulk.ts'
export type { DeletedQueue, DeleteQueueOptions } from './client/delete-queue.ts'
export type { CountFilter, JobConditions, JobsFilter, TimeRangeOption } from './client/filter.ts'
export type { AttemptInfo, ChangeInfo, JobInfo, ListedJob, ProgressInfo } from './client/job-info.ts'
export type { CancelOptions, DeadGroupInfo, JobsPage } from './client/jobs.ts'
export type { PauseOptions, QueueInfo, Stats } from './client/queues.ts'
export type { ByOption, DeadGroupsFilter, JobChanges, ResultOptions } from './client/requests.ts'
export type { RunTime } from './client/run-time.ts'
export type { JobChange, Watch, WatchFilter } from './client/watch.ts'
export { type ErrorCode, HoldfastError, isHoldfastError } from './errors.ts'
export type {
  AnyListener,
  BatchControlFacts,
  EventName,
  HoldfastEvents,
  JobFacts,
  Listener,
  RunFacts,
} from './events.ts'
export {
  type AnyFlow,
  type AnySignals,
  defineFlow,
  type FlowDefinition,
  type FlowFunction,
  type FlowOptions,
  type FlowSchemaOptions,
  type SignalIn,
  type SignalName,
  type SignalOut,
  type SignalSchemas,
} from './flow/definition.ts'
export type { AwaitOptions, ChildOptions, Flow, PublishOptions, Step } from './flow/flow.ts'
export type { FlowInfo, FollowOptions, SendOptions } from './flow/flows.ts'
export type { ChildStatus, FlowState, FlowStatus, StepState, StepStatus } from './flow/status.ts'
export type { StepDefaults, StepOptions } from './flow/step-options.ts'
export type { DoneOptions, EndOptions, EndWebhook, FlowVerdict } from './flow/verdict.ts'
export type { Holdfast } from './holdfast.ts'
export type { BatchState, Completion } from './job/batch.ts'
export type { EndNotice } from './job/end-notice.ts'
export type { PayloadCondition } from './job/filter.ts'
export type { Costs, Ending, ErrorCause, IncludedPart, JobError, JobState, PartSizes } from './job/record.ts'
export type { DeathNotice } from './job/transition.ts'
export type { Kv, KvValue } from './kv/kv.ts'
export type { AnnotationOptions } from './lease/annotations.ts'
export type { Checkpointed, Lease, LeasedJob, Settled } from './lease/lease.ts'
export { Permanent } from './lease/permanent.ts'
export { RetryLater } from './lease/retry-later.ts'
export type { DoctorOptions } from './observe/doctor/doctor.ts'
export type { Explanation, ExplanationFacts, Why } from './observe/explain.ts'
export { type HealthParts, healthHandler, type PartCheck, type PartHealth, storeHealth } from './observe/health.ts'
export type { LogFacts, Logger, LogLevel } from './observe/logger.ts'
export { injectTrace, type JobHeaders } from './observe/trace-context.ts'
export { type TracedJob, type TracingMiddleware, type TracingOptions, tracing } from './observe/tracing.ts'
export { type OpenOptions, open, type StoreOpener } from './open.ts'
export {
  type AnyDefinition,
  type BackoffOptions,
  type BehaviourOptions,
  defineQueue,
  type QueueDefinition,
  type SchemaOptions,
} from './queue/definition.ts'
export type { Effects, FollowUp } from './queue/effects.ts'
export type { KvWrites } from './queue/kv-writes.ts'
export type {
  KeyOption,
  LimitKey,
  LimitOption,
  LimitOptions,
  LimitOverrideFields,
  LimitOverrideOptions,
  RateOptions,
} from './queue/limit.ts'
export type { DedupOptions, EnqueueOptions } from './queue/prepare.ts'
export type { ClaimOptions, Entry, Queue } from './queue/queue.ts'
export type { QueueHandle, QueueReference } from './queue/reference.ts'
export type { SqlStatement } from './queue/sql-statement.ts'
export type { Clock } from './runtime/clock.ts'
export type { Duration } from './runtime/duration.ts'
export type { ScheduleInfo } from './schedule/info.ts'
export type { ScheduleOptions } from './schedule/options.ts'
export type { MissedPolicy } from './schedule/stored-schedule.ts'
export { grants, type PostgresOptions, postgres } from './store/postgres/index.ts'
export type { Roles, RoleUse } from './store/postgres/schema/roles.ts'
export type { SqliteDriver } from './store/sqlite/connection/driver.ts'
export { type SqliteOptions, sqlite } from './store/sqlite/index.ts'
export type {
  Capabilities,
  ChangedState,
  CountedJobs,
  DeadGroup,
  Enqueued,
  EnqueueStatus,
  Finding,
  Severity,
  SkippedJobs,
  SkipReason,
  Store,
} from './store/store.ts'
export type { Reaper, ReaperReport } from './sweep/reaper.ts'
export type { FindContext, ReaperOptions, Revival } from './sweep/reaper-options.ts'
export type { ReleaseWorkerOptions } from './sweep/release.ts'
export type { Released, SweepTotals } from './sweep/sweeper.ts'
export type { CallOptions, SecretFor, WebhookCall, WebhooksOptions } from './webhook/options.ts'
export { type Secrets, type VerifiedWebhook, type VerifyOptions, verifyWebhook } from './webhook/signature.ts'
export {
  defineWebhooks,
  type WebhookAnswer,
  type WebhookClient,
  type WebhookOptions,
  type WebhookQueue,
  type Webhooks,
} from './webhook/webhooks.ts'
export { Breaker, type BreakerOptions, BreakerTripped } from './worker/breaker.ts'
export type { CloseGate, Fate, Offer, OfferOptions, Outcome, OutcomeOptions, Release, Snooze } from './worker/fate.ts'
export type { Gate, GateCloseOptions, GateOptions, Pass } from './worker/gate/gate.ts'
export { GateClosed } from './worker/gate/gate-closed.ts'
export type { ClosedGateState, GateState, OpenGateState } from './worker/gate/gate-state.ts'
export type { GateInfo } from './worker/gate/gates.ts'
export type { Job } from './worker/job.ts'
export type {
  FlowAlone,
  Handler,
  HandlerModule,
  HandlerOf,
  Middleware,
  Pair,
  QueueWorkOptions,
  ThreadsOption,
  WorkerGate,
  WorkOptions,
} from './worker/options.ts'
export type { WorkerInfo } from './worker/presence.ts'
export {
  type Resource,
  type ResourceHealth,
  ResourceRestarted,
  type ResourceState,
  resource,
} from './worker/resource/resource.ts'
export type { ResourceOptions } from './worker/resource/resource-options.ts'
export type { Holder } from './worker/resource/session.ts'
export type { SignalOptions } from './worker/signals.ts'
export type { StagedEffects } from './worker/staged-effects.ts'
export type { StopOptions, Worker } from './worker/worker.ts'
export type { StuckThreadHealth, WorkerHealth, WorkerState } from './worker/worker-health.ts'
