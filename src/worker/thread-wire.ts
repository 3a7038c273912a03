// What goes to and fro between a handler in a thread and the worker that owns its job.

import type { Duration } from '../duration.ts'
import type { DeliveryFacts } from '../events.ts'
import type { EffectSet } from '../job/record.ts'
import type { ClaimedJob } from '../store/store.ts'

export interface ThreadData {
  readonly module: string
}

export interface Start {
  readonly claimed: ClaimedJob
  readonly timeoutMs: number
  readonly payload: unknown
}

export type ToHandler =
  | { readonly start: Start }
  | { readonly abort: SentError }
  | { readonly extended: number; readonly error: SentError | null }

export type HandlerEnd =
  | { readonly returned: unknown; readonly isFate: boolean; readonly effects: EffectSet | null }
  | { readonly threw: SentError }

export type FromHandler =
  | { readonly progress: number; readonly message: string | null }
  | { readonly log: string; readonly facts: Readonly<Record<string, unknown>> }
  | { readonly delivered: DeliveryFacts }
  | { readonly extend: Duration; readonly no: number }
  | HandlerEnd

/** An error as plain data. */
export interface SentError {
  readonly name: string
  readonly message: string
  readonly stack?: string | undefined
  readonly code?: string | undefined
  readonly isPermanent?: boolean
  /** Of a `Permanent`. */
  readonly effects?: EffectSet | null
  /** Of a `RetryLater`. */
  readonly delayMs?: number
  /** Of a `GateClosed`. */
  readonly reason?: string
}
