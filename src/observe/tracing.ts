// OpenTelemetry spans, with names and attributes of its messaging conventions. Only the OpenTelemetry API is used: without a
// tracer provider in the application no span is recorded, and the cost is close to nothing.
//
//   send <queue>      around an enqueue inside a span; its context is stored in the job's headers
//   process <queue>   around a handler, in a worker that has `tracing()` among its middleware
//   settle            around a settlement by hand inside a span

import {
  type Attributes,
  type Context,
  context,
  type Span,
  SpanKind,
  type SpanOptions,
  SpanStatusCode,
  type Tracer,
  trace,
} from '@opentelemetry/api'
import { isRefused, toError } from '../errors.ts'
import { jobError } from '../job/error.ts'
import type { Labels } from '../job/labels.ts'
import { checkOptions } from '../job/names.ts'
import type { EffectSet, NewJob } from '../job/record.ts'
import type { Settlement } from '../job/transition.ts'
import type { SettleAnswer, SettleRequest } from '../store/store.ts'
import { isFate } from '../worker/fate.ts'
import { Job } from '../worker/job.ts'
import { effectsOf } from '../worker/staged-effects.ts'
import { extractTrace, injectTrace, type JobHeaders, traceJob } from './trace-context.ts'

/** The part of a job that the middleware reads. */
export interface TracedJob {
  readonly id: string
  readonly queue: string
  readonly attempt: number
  readonly maxAttempts?: number
  readonly headers: JobHeaders
  readonly labels?: Labels
  readonly signal?: AbortSignal
}

export interface TracingOptions {
  /** The tracer that makes the spans; the tracer `holdfast` of the global provider unless given. */
  readonly tracer?: Tracer
  /**
   * How the span of a run relates to that of the enqueue. `child` (default): in the same trace. `link`: in a new trace with a
   * link, for jobs that run days later or fan out by the thousand.
   */
  readonly relation?: 'child' | 'link'
}

export type TracingMiddleware = (job: TracedJob, next: () => Promise<unknown>) => Promise<unknown>

/** Middleware for a worker: a span around each run, active while the handler runs. */
export function tracing(options: TracingOptions = {}): TracingMiddleware {
  checkOptions(options, 'tracing options', ['tracer', 'relation'])
  const { tracer, relation = 'child' } = options
  return (job, next) => {
    const { parent, links } = relationOf(job, relation)
    const span = { kind: SpanKind.CONSUMER, attributes: processAttributes(job), links }
    return within(tracer ?? globalTracer(), `process ${job.queue}`, span, parent, async (run) => {
      try {
        const answer = await next()
        run.setAttributes(fateAttributes(answer))
        const staged = job instanceof Job ? Job.stagedIn(job) : null
        if (staged) effectsOf.takeAlong(staged, injectTrace) // staged effects are written after this span ends
        takeAlongIfDead(job)
        return answer
      } catch (error) {
        takeAlongIfDead(job)
        run.setAttribute('holdfast.run', job.signal?.aborted ? 'aborted' : 'failed')
        throw error
      }
    })
  }
}

/** An answer that cannot be stored is a failure too. */
function takeAlongIfDead(job: TracedJob): void {
  const staged = job instanceof Job ? Job.stagedIfDeadIn(job) : null
  if (staged) effectsOf.takeAlong(staged, injectTrace)
}

/** Enqueues jobs of one queue. If a span is active: in a span, with its context in the headers of the jobs. */
export function traceSend<Answer>(
  jobs: readonly NewJob[],
  send: (jobs: readonly NewJob[]) => Promise<Answer>,
): Promise<Answer> {
  const [first] = jobs
  if (first === undefined || !isTraced()) return send(jobs)
  const attributes = {
    ...attributesOf('send', first.queue),
    ...(jobs.length === 1 ? { 'messaging.message.id': first.id } : { 'messaging.batch.message_count': jobs.length }),
  }
  const span = { kind: SpanKind.PRODUCER, attributes }
  return within(globalTracer(), `send ${first.queue}`, span, context.active(), () => send(jobs.map(traceJob)))
}

/** Settles. If a span is active: in a span, with its context in the headers of the follow-up jobs. */
export function traceSettle(
  request: SettleRequest,
  settle: (request: SettleRequest) => Promise<SettleAnswer>,
): Promise<SettleAnswer> {
  if (!isTraced()) return settle(request)
  const { id, settlement } = request
  const attributes = {
    ...attributesOf('settle'),
    'messaging.message.id': id,
    'holdfast.settlement': settlement.as,
  }
  const span = { kind: SpanKind.CLIENT, attributes }
  return within(globalTracer(), 'settle', span, context.active(), async (settling) => {
    const answer = await settle({ ...request, settlement: withTracedEffects(settlement) })
    const refusal = refusalIn(answer)
    if (refusal !== null) settling.setStatus({ code: SpanStatusCode.ERROR, message: refusal })
    return answer
  })
}

/** Follow-up jobs belong to the trace of the code that stages them. */
export function traceEffects(effects: EffectSet | null): EffectSet | null {
  if (effects === null || effects.enqueue.length === 0 || !isTraced()) return effects
  return { ...effects, enqueue: effects.enqueue.map(traceJob) }
}

function withTracedEffects(settlement: Settlement): Settlement {
  if (settlement.as === 'retry')
    return settlement.ifDead ? { ...settlement, ifDead: traceEffects(settlement.ifDead) } : settlement
  return 'effects' in settlement ? { ...settlement, effects: traceEffects(settlement.effects ?? null) } : settlement
}

function refusalIn(answer: SettleAnswer): string | null {
  if (answer === 'lost') return 'The lease was lost.'
  if (isRefused(answer)) return toError(answer).message
  return 'failed' in answer ? toError(answer.failed).message : null
}

function isTraced(): boolean {
  return trace.getActiveSpan() !== undefined
}

function globalTracer(): Tracer {
  return trace.getTracer('holdfast')
}

function within<Answer>(
  tracer: Tracer,
  name: string,
  options: SpanOptions,
  parent: Context,
  act: (span: Span) => Promise<Answer>,
): Promise<Answer> {
  return tracer.startActiveSpan(name, options, parent, async (span) => {
    try {
      return await act(span)
    } catch (error) {
      recordFailure(span, error)
      throw error
    } finally {
      span.end()
    }
  })
}

/** A loop inherits the span that was active when it began. No job belongs to that span, so a run starts without it. */
function relationOf(job: TracedJob, relation: 'child' | 'link') {
  const origin = extractTrace(job.headers)
  const none = trace.deleteSpan(context.active())
  if (origin === undefined) return { parent: none, links: [] }
  if (relation === 'link') return { parent: none, links: [{ context: origin }] }
  return { parent: trace.setSpanContext(none, origin), links: [] }
}

function attributesOf(operation: 'send' | 'process' | 'settle', queue?: string): Attributes {
  return {
    'messaging.system': 'holdfast',
    'messaging.operation.name': operation,
    'messaging.operation.type': operation,
    ...(queue !== undefined && { 'messaging.destination.name': queue }),
  }
}

function processAttributes({ id, queue, attempt, maxAttempts, labels = {} }: TracedJob): Attributes {
  return {
    ...attributesOf('process', queue),
    'messaging.message.id': id,
    'holdfast.attempt': attempt,
    ...(maxAttempts !== undefined && { 'holdfast.max_attempts': maxAttempts }),
    ...Object.fromEntries(Object.entries(labels).map(([name, value]) => [`holdfast.label.${name}`, value])),
  }
}

/** How a run ended, as attributes. A result is never among them. */
function fateAttributes(answer: unknown): Attributes {
  if (!isFate(answer)) return { 'holdfast.run': 'returned' }
  if (answer.fate !== 'outcome') return { 'holdfast.run': answer.fate }
  const { outcome, warning } = answer
  return {
    'holdfast.run': 'returned',
    'holdfast.outcome': outcome,
    ...(warning !== null && { 'holdfast.warning': warning }),
  }
}

function recordFailure(span: Span, thrown: unknown): void {
  const error = jobError(thrown)
  span.setAttribute('error.type', error.code ?? error.name ?? 'unknown')
  span.recordException(error)
  span.setStatus({ code: SpanStatusCode.ERROR, message: error.message })
}
