// Parts of a job that stores keep as JSON text. What was corrupted behind our back must not keep its neighbours from being
// swept, so it reads as nothing.

import type { Attempt, EffectSet, JobError } from './record.ts'
import { remember } from './transition.ts'

export function encodePast(past: string | null, attempt: Attempt): string {
  return JSON.stringify(remember(decodePast(past), attempt))
}

export function decodePast(past: string | null): Attempt[] {
  return decode<Attempt[]>(past) ?? []
}

/** The effects of every cancel that was requested. */
export function decodeCancel(cancel: string | null): EffectSet[] {
  return decode<EffectSet[]>(cancel) ?? []
}

export function encodeError(error: JobError | null): string | null {
  return error && JSON.stringify(error)
}

export function decodeError(error: string | null): JobError | null {
  if (error === null) return null
  return decode<JobError>(error) ?? { message: error }
}

/** Headers, and what the last wake brought. Headers alone are an object; both together are an array of the two. */
export interface Extras {
  readonly headers: Readonly<Record<string, string>>
  readonly wake: unknown
}

export function decodeExtras(text: string | null): Extras {
  const extras = decode<Extras['headers'] | readonly [Extras['headers'] | null, unknown]>(text) ?? {}
  return Array.isArray(extras)
    ? { headers: extras[0] ?? {}, wake: extras[1] }
    : { headers: extras as Extras['headers'], wake: undefined }
}

/** The same headers with what a wake brings: JSON text, null for nothing. */
export function encodeWake(text: string | null, data: string | null): string | null {
  const headers = JSON.stringify(decodeExtras(text).headers)
  if (data !== null) return `[${headers},${data}]`
  return headers === '{}' ? null : headers
}

function decode<T>(text: string | null): T | undefined {
  try {
    return text === null ? undefined : JSON.parse(text)
  } catch {
    return undefined
  }
}
