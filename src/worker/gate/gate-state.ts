// The stored form of a gate: one entry of the key-value store, under `holdfast.gate.<name>`.
//
//   no entry               the gate was never closed: it is open, in generation 0
//   { open: true }         it is open; the generation is the version of this entry
//   { open: false, … }     it is closed
//
// Closing compares and sets on the version. So of all callers that close the same generation one succeeds, and a caller with
// the pass of an older generation closes nothing.

import { HoldfastError } from '../../errors.ts'
import { bounds } from '../../job/bounds.ts'
import { clip } from '../../job/error.ts'
import type { KvValue } from '../../kv/kv.ts'

export const gateKeyPrefix = 'holdfast.gate.'

export type GateState = OpenGateState | ClosedGateState

export interface OpenGateState {
  readonly open: true
  /** Differs after every opening; 0 if the gate was never closed. */
  readonly generation: number
}

export interface ClosedGateState {
  readonly open: false
  readonly reason: string
  /** By the clock of the process that closed it. */
  readonly closedAt: Date
  readonly by: string | null
  /** The generation that was closed. */
  readonly generation: number
}

/** What was read, and the version to compare with when it is changed. */
export interface ReadGate {
  readonly state: GateState
  readonly version: number | null
}

export interface StoredClosing {
  readonly open: false
  readonly reason: string
  readonly closedAt: number
  readonly by: string
  readonly generation: number
}

/** Another program may have written the entry: any value that does not say closed means open. */
export function readGate(entry: Pick<KvValue, 'value' | 'version'> | null): ReadGate {
  if (entry === null) return { version: null, state: { open: true, generation: 0 } }
  const { version } = entry
  const { open, reason, closedAt, by, generation } = Object(entry.value) as Partial<StoredClosing>
  if (open !== false) return { version, state: { open: true, generation: version } }
  return {
    version,
    state: {
      open: false,
      reason: typeof reason === 'string' ? reason : noReason,
      closedAt: toDate(closedAt),
      by: typeof by === 'string' ? by : null,
      generation: Number.isSafeInteger(generation) ? Number(generation) : 0,
    },
  }
}

/** Any text is a reason: it may be the message of an error, and must not prevent the gate from closing. */
export function toReason(reason: unknown): string {
  if (typeof reason === 'string') return clip(reason, bounds.errorTextBytes) || noReason
  throw new HoldfastError('INVALID_OPTION', 'reason must be text that says why the gate is closed.', {
    option: 'reason',
  })
}

const noReason = 'no reason given'

function toDate(ms: unknown): Date {
  const date = new Date(typeof ms === 'number' ? ms : 0)
  return Number.isNaN(date.getTime()) ? new Date(0) : date
}
