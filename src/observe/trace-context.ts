// The trace that a job belongs to, in its headers, as defined by W3C Trace Context: `traceparent` and `tracestate`. The format
// does not depend on the propagators of the application, because a stored job may be run by another program, in another
// language, much later. An application's own `traceparent` header is never changed. An enqueue never fails because of a trace:
// if the headers would become too large, they stay as they are.

import { createTraceState, isSpanContextValid, type SpanContext, trace } from '@opentelemetry/api'
import { bounds } from '../job/bounds.ts'
import { byteLength, isPlainObject } from '../job/codec.ts'
import type { NewJob } from '../job/record.ts'
import { decodeExtras } from '../job/stored.ts'

export type JobHeaders = Readonly<Record<string, string>>

const traceparent = /^(?!ff)[\da-f]{2}-([\da-f]{32})-([\da-f]{16})-([\da-f]{2})(?:$|-)/

/** These headers with the trace of the active span; unchanged if there is no span. */
export function injectTrace<Headers extends JobHeaders | undefined>(headers: Headers): Headers | JobHeaders {
  const active = trace.getActiveSpan()?.spanContext()
  if (active === undefined || !isSpanContextValid(active)) return headers
  if (headers !== undefined && !isPlainObject(headers)) return headers // the check of the enqueue refuses them
  if (headerOf(headers, 'traceparent') !== undefined) return headers
  const traced = { ...headers, ...toHeaders(active) }
  return byteLength(JSON.stringify(traced)) <= bounds.headersBytes ? traced : headers
}

/** The same for a job whose headers are already encoded. */
export function traceJob(job: NewJob): NewJob {
  const headers = decodeExtras(job.headers).headers
  const traced = injectTrace(headers)
  return traced === headers ? job : { ...job, headers: JSON.stringify(traced) }
}

/** Undefined if the headers name no trace, or an invalid one. */
export function extractTrace(headers: JobHeaders): SpanContext | undefined {
  const [, traceId, spanId, flags] = traceparent.exec(headerOf(headers, 'traceparent') ?? '') ?? []
  if (traceId === undefined || spanId === undefined || flags === undefined) return undefined
  const state = headerOf(headers, 'tracestate')
  const found: SpanContext = {
    ...{ traceId, spanId, traceFlags: Number.parseInt(flags, 16), isRemote: true },
    ...(state !== undefined && { traceState: createTraceState(state) }),
  }
  return isSpanContextValid(found) ? found : undefined
}

function toHeaders({ traceId, spanId, traceFlags, traceState }: SpanContext): JobHeaders {
  const flags = (traceFlags & 0xff).toString(16).padStart(2, '0')
  const state = traceState?.serialize() ?? ''
  return { traceparent: `00-${traceId}-${spanId}-${flags}`, ...(state !== '' && { tracestate: state }) }
}

/** Header names are not case-sensitive. */
function headerOf(headers: JobHeaders | undefined, name: string): string | undefined {
  if (headers === undefined) return undefined
  return headers[name] ?? Object.entries(headers).find(([each]) => each.toLowerCase() === name)?.[1]
}
