// Every sentence that Holdfast writes into a log. An event without an entry here does not compile; `null` logs nothing.
//
// - `warn`, `error`: an operator should act. Without a logger these go to stderr.
// - `info`: the normal course of work.
// - `debug`: single jobs.
//
// A sentence names job, queue and worker. It never contains a payload or a result.
//
// FIELDS. No fact has a name that a logger uses for itself: `level`, `time`, `msg`, `pid`, `hostname`, `name` and `id` of pino
// and bunyan, `message` and `timestamp` of winston. A second field of that name in one line of JSON hides the first. So the id
// of a job is `job`, the name of a batch is `batchName`, and what a handler logs is inside `facts`.

import { isHoldfastError } from '../errors.ts'
import type { EventName, HoldfastEvents, JobFacts } from '../events.ts'
import { messageWithCauses } from '../job/error.ts'
import type { JobError } from '../job/record.ts'
import type { LogFacts, LogLevel } from './logger.ts'

export interface LogLine {
  readonly message: string
  readonly facts: LogFacts
  /** The name for many such lines together: "… and 57 more dead jobs in queue mail". Null: every line is written. */
  readonly kind: string | null
}

interface Words<Name extends EventName> {
  readonly level: LogLevel
  /** Null: this event is not logged. */
  readonly say: (event: HoldfastEvents[Name]) => LogLine | null
}

type BatchControlName =
  | 'batch.closed'
  | 'batch.paused'
  | 'batch.resumed'
  | 'batch.cancelled'
  | 'batch.retried'
  | 'batch.deleted'

export type Wording = { readonly [Name in EventName]: Words<Name> | null }

export const wording: Wording = {
  'job.enqueued': null,
  'job.progress': null,
  'claim.ended': null,
  'settle.ended': null,

  'job.started': {
    level: 'debug',
    say: (event) =>
      ofJob(event, `${theJob(event)} started, attempt ${tries(event)}.`, 'started jobs', { waitedMs: event.waitedMs }),
  },
  'job.log': {
    level: 'info',
    say: (event) => ({ message: event.message, facts: { ...jobFacts(event), facts: event.facts }, kind: null }),
  },
  'job.done': {
    level: 'debug',
    say: (event) => {
      const { outcome, warning, durationMs } = event
      const as = outcome === null ? '' : ` as ${outcome}`
      const though = warning === null ? '' : ` (${warning})`
      const message = `${theJob(event)} is done${as}${though} after ${time(durationMs)}.`
      return ofJob(event, message, 'jobs done', { outcome, warning, durationMs })
    },
  },
  'job.retrying': {
    level: 'info',
    say: (event) => {
      const { error, ending, runAt, durationMs } = event
      const next = runAt === null ? '' : ` The next attempt is scheduled for ${runAt.toISOString()}.`
      const message = `Attempt ${tries(event)} of ${theJob(event, 'job')} ${failed[ending]}: ${saying(error)}${next}`
      return ofJob(event, message, 'failed attempts', { error: errorFacts(error), ending, runAt, durationMs })
    },
  },
  'job.dead': {
    level: 'error',
    say: (event) => {
      const { error, ending, durationMs } = event
      const how =
        ending === 'expired' ? leaseExpired(event) : `${failed[ending]}${permanently(event)}: ${saying(error)}`
      const message = `${theJob(event)} is dead: attempt ${tries(event)} ${how}`
      return ofJob(event, message, 'dead jobs', { error: errorFacts(error), ending, durationMs })
    },
  },
  'job.snoozed': {
    level: 'debug',
    say: (event) => {
      const until = event.runAt === null ? '' : ` until ${event.runAt.toISOString()}`
      return ofJob(event, `${theJob(event)} was snoozed${until}.`, 'snoozed jobs', { runAt: event.runAt })
    },
  },
  'job.released': {
    level: 'debug',
    say: (event) =>
      ofJob(event, `${theJob(event)} was released: ${event.reason}.`, 'released jobs', { reason: event.reason }),
  },
  'job.cancelled': {
    level: 'info',
    say: (event) => ofJob(event, `${theJob(event)} was cancelled while it ran.`, 'cancelled jobs', {}),
  },
  'flow.step.ended': {
    level: 'debug',
    say: ({ id, queue, worker, step, state, attempt, durationMs, error }) => {
      const how = state === 'done' ? 'is done' : state === 'failed' ? 'has failed' : 'will be repeated'
      const why = error === null ? '.' : `: ${saying(error)}`
      const message = `Step ${step} of run ${id} of flow ${queue} ${how} after ${time(durationMs)}${why}`
      const facts = { job: id, queue, worker, step, state, attempt, durationMs, error: error && errorFacts(error) }
      return { message, facts, kind: `steps of flow ${queue}` }
    },
  },
  'flow.parked': null, // `job.snoozed` says it
  'flow.ended': {
    level: 'info',
    say: (event) => {
      const { state, error } = event
      if (state !== 'failed') return null // the end of the job says it
      const why = error === null ? '.' : `: ${saying(error)}`
      return ofJob(event, `Run ${event.id} of flow ${event.queue} has failed${why}`, 'failed runs', { state })
    },
  },
  'lease.lost': {
    level: 'info',
    say: (event) => {
      const when = event.during === 'run' ? 'while it ran' : 'before it was settled'
      const message = `Worker ${event.worker} lost the lease of ${theJob(event, 'job')} ${when}; the outcome of this run is discarded.`
      return ofJob(event, message, 'lost leases', { during: event.during })
    },
  },
  'lease.expired': {
    level: 'warn',
    say: (event) => {
      const { worker, startedAt, state, releasedBy } = event
      const how =
        releasedBy === undefined
          ? `expired in attempt ${tries(event)}, because the worker did not renew it`
          : `was ended in attempt ${tries(event)} by ${releasedBy ?? 'an operator'}`
      const message = `The lease of worker ${worker} on ${theJob(event, 'job')} ${how}. The job is ${state} now.`
      const facts = { startedAt, state, ...(releasedBy !== undefined && { releasedBy }) }
      return ofJob(event, message, 'expired leases', facts)
    },
  },
  'settle.failed': {
    level: 'error',
    say: (event) => {
      const { error, state } = event
      const now = state === null ? '' : ` The job is ${state} now.`
      const message = `${theJob(event)} ran, but its settlement failed: ${saying(error)}${now}`
      return ofJob(event, message, 'failed settlements', { error: errorFacts(error), state })
    },
  },
  'handler.abandoned': {
    level: 'warn',
    say: (event) => {
      const { reason, abandoned, worker } = event
      const count = abandoned === 1 ? 'It still runs' : `${abandoned} such handlers still run`
      const message = `The handler of ${theJob(event, 'job')} ignored its signal (${reason}) and was abandoned. ${count} in worker ${worker}.`
      return ofJob(event, message, 'abandoned handlers', { reason, abandoned })
    },
  },
  'thread.stuck': {
    level: 'warn',
    say: (event) => {
      const { thread, reason, stuck, worker } = event
      const many = stuck === 1 ? '' : ` ${stuck} threads of worker ${worker} are stuck.`
      const message = `Thread ${thread}, which ran ${theJob(event, 'job')}, was terminated (${reason}) but does not end: it is blocked in native code. The job is settled without it.${many}`
      return ofJob(event, message, 'stuck threads', { thread, reason, stuck })
    },
  },
  'thread.freed': {
    level: 'info',
    say: (event) => {
      const { thread, stuckMs, stuck } = event
      const message = `Thread ${thread}, which ran ${theJob(event, 'job')}, has ended; it was stuck for ${time(stuckMs)}.`
      return ofJob(event, message, 'stuck threads that ended', { thread, stuckMs, stuck })
    },
  },
  'thread.leftover': {
    level: 'warn',
    say: ({ worker, queue, thread, kind, job, current, error }) => {
      const from = job === null ? 'code that belongs to no job' : `job ${job}, which had ended,`
      const what = kind === 'exit' ? 'ended the thread' : 'threw an error that no code caught'
      const fate = kind === 'exit' ? 'is released' : 'continues'
      const now = current === null ? '' : ` Job ${current} ${fate}.`
      const message = `In thread ${thread} of queue ${queue}, ${from} ${what}: ${saying(error)}${now} The thread is not used again.`
      const facts = { worker, queue, thread, kind, job, current, error: errorFacts(error) }
      return { message, facts, kind: `leftovers in threads of ${queue}` }
    },
  },
  'module.failed': {
    level: 'error',
    say: ({ worker, queue, module, error }) => ({
      message: `Worker ${worker} does not serve queue ${queue}: ${saying(error)} No job is claimed, and loading is tried again.`,
      // the cause says where the module is wrong
      facts: { worker, queue, module, error: errorFacts(error.cause instanceof Error ? error.cause : error) },
      kind: 'handler modules that do not load',
    }),
  },
  'module.loaded': {
    level: 'info',
    say: ({ worker, queue, module, failedMs }) => ({
      message: `Worker ${worker} serves queue ${queue}: its module ${module} has loaded, after ${time(failedMs)}.`,
      facts: { worker, queue, module, failedMs },
      kind: null,
    }),
  },

  'batch.submitted': {
    level: 'info',
    say: ({ batch, name, added, duplicates, durationMs }) => {
      const skipped = duplicates === 0 ? '' : `, ${count(duplicates, 'duplicate')} skipped`
      const message = `Batch ${name} (${batch}) was submitted: ${count(added, 'item')} added${skipped}, in ${time(durationMs)}.`
      return { message, facts: { batch, batchName: name, added, duplicates, durationMs }, kind: null }
    },
  },
  'batch.closed': batchControl('closed'),
  'batch.paused': batchControl('paused'),
  'batch.resumed': batchControl('resumed'),
  'batch.cancelled': batchControl('cancelled'),
  'batch.retried': batchControl('retried (its failed items run again)'),
  'batch.deleted': batchControl('deleted'),
  'batch.finished': {
    level: 'info',
    say: ({ batch, name, state, round }) => {
      const again = round === 1 ? '' : ` in round ${round}`
      const how = state === 'done' ? 'is done' : 'was cancelled, and its last item has ended'
      const facts = { batch, batchName: name, state, round }
      return { message: `Batch ${name} (${batch}) ${how}${again}.`, facts, kind: null }
    },
  },

  'notice.dropped': {
    level: 'warn',
    say: ({ id, queue, onDead, reason }) => ({
      message: `No death notice for job ${id} of queue ${queue} was enqueued in queue ${onDead}: ${reason}`,
      facts: { job: id, queue, onDead, reason },
      kind: `dropped notices of queue ${queue}`,
    }),
  },

  'heartbeat.late': {
    level: 'warn',
    say: ({ worker, jobs, leftMs }) => ({
      message: `Worker ${worker} has not renewed the leases of ${count(jobs, 'job')} in time; the first runs out in ${time(leftMs)}. The store does not answer soon enough, or this process was busy.`,
      facts: { worker, jobs, leftMs },
      kind: `late heartbeats of worker ${worker}`,
    }),
  },
  'heartbeat.failed': {
    level: 'warn',
    say: ({ worker, jobs, error }) => ({
      message: `Worker ${worker} could not renew its leases (${count(jobs, 'job')}): ${saying(error)}`,
      facts: { worker, jobs, error: errorFacts(error) },
      kind: `failed heartbeats of worker ${worker}`,
    }),
  },
  'sweep.ended': {
    level: 'info',
    say: ({ durationMs, ...counts }) => {
      const { rescued, dead } = counts
      if (rescued === 0) return null
      const whose = rescued === 1 ? 'lease' : 'leases'
      const message =
        dead === 0
          ? `The sweep rescued ${count(rescued, 'job')} whose ${whose} had expired.`
          : `The sweep found ${count(rescued, 'job')} whose ${whose} had expired: ${rescued - dead} rescued, ${dead} dead after the last attempt.`
      return { message, facts: { ...counts, durationMs }, kind: 'sweeps' }
    },
  },
  'upkeep.failed': {
    level: 'warn',
    say: ({ error }) => ({
      message: `The upkeep of a sweep failed, and everything else was swept: ${saying(error)}`,
      facts: { error: errorFacts(error) },
      kind: 'failed upkeep',
    }),
  },
  'store.down': {
    level: 'error',
    say: ({ by, error }) => ({
      message: outageSentence(by, error),
      facts: { by, error: errorFacts(error) },
      kind: 'outages of the store',
    }),
  },
  // A warning, so that it is written wherever the outage itself was.
  'store.up': {
    level: 'warn',
    say: ({ by, awayMs }) => ({
      message: `The store answers again after ${time(awayMs)} (${by}).`,
      facts: { by, awayMs },
      kind: 'ends of outages',
    }),
  },
  'worker.started': {
    level: 'info',
    say: ({ worker, queues, concurrency }) => ({
      message: `Worker ${worker} started on ${queues === null ? 'all queues' : queues.join(', ')}, with up to ${count(concurrency, 'job')} at a time.`,
      facts: { worker, queues, concurrency },
      kind: 'workers started',
    }),
  },
  'worker.stopping': {
    level: 'info',
    say: ({ worker, running, graceMs }) => ({
      message: `Worker ${worker} is stopping: ${count(running, 'job')} may run for another ${time(graceMs)}.`,
      facts: { worker, running, graceMs },
      kind: 'workers stopping',
    }),
  },
  'worker.stopped': {
    level: 'info',
    say: ({ worker }) => ({ message: `Worker ${worker} has stopped.`, facts: { worker }, kind: 'workers stopped' }),
  },
  'worker.failed': {
    level: 'error',
    say: ({ worker, error }) => ({
      message: `Worker ${worker} failed and has stopped: ${saying(error)}`,
      facts: { worker, error: errorFacts(error) },
      kind: 'failed workers',
    }),
  },
  'gate.closed': {
    level: 'info',
    say: ({ gate, reason }) => ({
      message: `Gate ${gate} is closed: ${reason}.`,
      facts: { gate, reason },
      kind: `closings of gate ${gate}`,
    }),
  },
  'gate.opened': {
    level: 'info',
    say: ({ gate, closedMs }) => ({
      message: `Gate ${gate} is open again after ${time(closedMs)}.`,
      facts: { gate, closedMs },
      kind: `openings of gate ${gate}`,
    }),
  },
  'schedule.fired': {
    level: 'debug',
    say: ({ schedule, queue, id, slot, lateMs }) => ({
      message: `Schedule ${schedule} fired its slot of ${slot.toISOString()}, ${time(lateMs)} late, and enqueued job ${id} of queue ${queue}.`,
      facts: { schedule, queue, job: id, slot, lateMs },
      kind: `firings of schedule ${schedule}`,
    }),
  },
  'schedule.skipped': {
    level: 'info',
    say: ({ schedule, slots, reason }) => ({
      message: `Schedule ${schedule} skipped ${count(slots, 'slot')}: ${skippedFor[reason]}.`,
      facts: { schedule, slots, reason },
      kind: `skipped slots of schedule ${schedule}`,
    }),
  },
  'queue.redefined': {
    level: 'warn',
    say: ({ queue, from, to, changes }) => ({
      message: `Queue ${queue} was redefined (${changes.join(', ')}): version ${to} of its definition replaces version ${from}.`,
      facts: { queue, from, to, changes },
      kind: `changes of queue ${queue}`,
    }),
  },
  'job.undeliverable': {
    level: 'error',
    say: ({ id, queue, enqueuedFor, error }) => ({
      message: `Job ${id} (${enqueuedFor}) was enqueued as dead in queue ${queue}, because it cannot run: ${error.message}`,
      facts: { job: id, queue, enqueuedFor, error: errorFacts(error) },
      kind: `undeliverable jobs of queue ${queue}`,
    }),
  },
  'schedule.changed': {
    level: 'info',
    say: ({ schedule, changes }) => ({
      message: `Schedule ${schedule} was changed by its declaration (${changes.join(', ')}).`,
      facts: { schedule, changes },
      kind: `changes of schedule ${schedule}`,
    }),
  },
  'schedule.failed': {
    level: 'error',
    say: ({ schedule, error }) => ({
      message: `Schedule ${schedule} cannot be fired: ${saying(error)}`,
      facts: { schedule, error: errorFacts(error) },
      kind: `failures of schedule ${schedule}`,
    }),
  },
  'firing.failed': {
    level: 'error',
    say: ({ error }) => ({
      message: `Schedules cannot be read, and this process fires none until they can: ${saying(error)}`,
      facts: { error: errorFacts(error) },
      kind: 'failed reads of schedules',
    }),
  },
  // A warning, so that it is written wherever the failure itself was.
  'firing.resumed': {
    level: 'warn',
    say: ({ failedMs }) => ({
      message: `Schedules can be read again after ${time(failedMs)}, and this process fires them.`,
      facts: { failedMs },
      kind: 'resumed reads of schedules',
    }),
  },
  'delivery.ended': {
    level: 'debug',
    say: (event) => {
      const { host, status, outcome, durationMs } = event
      const answer = status === null ? 'gave no usable answer to' : `answered ${status} to`
      const message = `${host} ${answer} webhook ${event.id} after ${time(durationMs)}: ${outcome}.`
      return ofJob(event, message, 'deliveries', { host, status, outcome, durationMs })
    },
  },
  // A warning, because work was lost somewhere: it must be written without a logger too.
  'reaper.ran': {
    level: 'warn',
    say: ({ reaper, found, revived, duplicates, failed, durationMs }) => {
      if (revived === 0) return null
      const message = `Reaper ${reaper} found ${count(found, 'row')} left behind and revived ${revived}.`
      return {
        message,
        facts: { reaper, found, revived, duplicates, failed, durationMs },
        kind: `runs of reaper ${reaper}`,
      }
    },
  },
  'reaper.failed': {
    level: 'error',
    say: ({ reaper, error }) => ({
      message: `Reaper ${reaper} failed, and searches again at its next turn: ${saying(error)}`,
      facts: { reaper, error: errorFacts(error) },
      kind: `failures of reaper ${reaper}`,
    }),
  },
}

export function sayMore(kind: string, held: number): LogLine {
  return { message: `… and ${held} more ${kind} in the last second`, facts: { kind, held }, kind: null }
}

const failed = { failed: 'failed', timeout: 'timed out', crashed: 'crashed its thread' } as const

/** The job had attempts left. */
function permanently({ attempt, maxAttempts }: JobFacts): string {
  return attempt < maxAttempts ? ' permanently' : ''
}

function leaseExpired({ worker }: JobFacts): string {
  return `ended when the lease of worker ${worker} expired.`
}

function batchControl(done: string): Words<BatchControlName> {
  return {
    level: 'info',
    say: ({ batch, name, by, reason, state }) => {
      const caller = by === null ? '' : ` by ${by}`
      const why = reason === null ? '' : ` (${reason})`
      const message = `Batch ${name} (${batch}) was ${done}${caller}${why}.`
      return { message, facts: { batch, batchName: name, by, reason, state }, kind: null }
    },
  }
}

const skippedFor = {
  missed: 'no process ran to fire them in time',
  duplicate: 'the job of an earlier slot has not ended yet',
} as const

function ofJob(event: JobFacts, message: string, plural: string, facts: LogFacts): LogLine {
  return { message, facts: { ...jobFacts(event), ...facts }, kind: `${plural} in queue ${event.queue}` }
}

function jobFacts({ id, queue, attempt, maxAttempts, worker, labels }: JobFacts): LogFacts {
  return { job: id, queue, attempt, maxAttempts, worker, ...(labels && { labels }) }
}

function theJob({ id, queue }: JobFacts, noun: 'Job' | 'job' = 'Job'): string {
  return `${noun} ${id} of queue ${queue}`
}

function tries({ attempt, maxAttempts }: JobFacts): string {
  return `${attempt} of ${maxAttempts}`
}

/** Plain data, because each logger writes an Error in its own way. */
function errorFacts({ name, message, stack, causes, ...rest }: JobError): LogFacts {
  const { code } = rest as { code?: unknown }
  return { name, message, ...(code !== undefined && { code }), stack, ...(causes !== undefined && { causes }) }
}

/** The message, with a full stop if it does not end like a sentence. */
function saying(error: JobError): string {
  const message = messageWithCauses(error)
  return /[.!?…]$/.test(message) ? message : `${message}.`
}

function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? '' : 's'}`
}

function time(ms: number): string {
  return ms < 1_000 ? `${Math.round(ms)} ms` : `${(ms / 1_000).toFixed(ms < 10_000 ? 1 : 0)} s`
}

function outageSentence(by: string, error: Error): string {
  const refuses = isHoldfastError(error) ? error.facts['refuses'] : undefined
  if (refuses === 'commits') return `The store does not answer commits (${by}): ${saying(error)}`
  const how = refuses === undefined ? 'does not answer' : 'refuses to write'
  return `The store ${how} (${by}): ${saying(error)} The call is repeated until it succeeds.`
}
