// For tests of applications that use Holdfast: a clock that the test moves, an in-memory store that runs on it, and functions to
// run and to inspect enqueued jobs.

export { type DrainOptions, type DrainReport, drain, type RunOnceOptions, runOnce } from './drain.ts'
export {
  type DeepPartial,
  type ExpectedJob,
  expectEnqueued,
  expectNothingEnqueued,
  type WaitingJob,
} from './expect-enqueued.ts'
export { type AbortCode, type HandlerJob, type HandlerJobOptions, handlerJob } from './handler-job.ts'
export { type InMemoryOptions, openInMemory } from './in-memory.ts'
export { type FlowRun, type RunFlowOptions, runFlow } from './run-flow.ts'
export type { RunOutcome, RunRecord } from './run-records.ts'
export { VirtualClock, type VirtualClockOptions } from './virtual-clock.ts'
export type { VirtualTimers } from './virtual-timers.ts'
