// A gate as it lies in the key-value store, under `holdfast.gate.<name>`. Where nothing lies, nobody ever closed it, and it
// is open. What opened it last stays there as `{ open: true }`: the version of that entry is the generation it is open in,
// and closing compares and sets on it. So of all who want to close the same generation one does, and whoever still holds
// an old one closes nothing.

import { HoldfastError } from '../../errors.ts'
import { bounds } from '../../job/bounds.ts'
import { clip } from '../../job/error.ts'
import type { KvValue } from '../../kv/kv.ts'

export const gateKeyPrefix = 'holdfast.gate.'

export type GateState = OpenGateState | ClosedGateState

export interface OpenGateState {
  readonly open: true
  /** Differs after every opening; 0 where nobody ever closed it. */
  readonly generation: number
}

export interface ClosedGateState {
  readonly open: false
  readonly reason: string
  /** By the clock of whoever closed it. */
  readonly closedAt: Date
  readonly by: string | null
  /** The one that was closed. */
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

/** Somebody else may have written there: whatever does not say that it is closed is open. */
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

/** Any text is a reason: it may be an error's message, and must not keep the gate from being closed. */
export function toReason(reason: unknown): string {
  if (typeof reason === 'string') return clip(reason, bounds.errorTextBytes) || noReason
  throw new HoldfastError('INVALID_OPTION', 'Say why the gate is closed: reason is text.', { option: 'reason' })
}

const noReason = 'no reason given'

function toDate(ms: unknown): Date {
  const date = new Date(typeof ms === 'number' ? ms : 0)
  return Number.isNaN(date.getTime()) ? new Date(0) : date
}
