// A queue's row: its settings, and the counts of its jobs.

import { decodeJson } from '../../job/codec.ts'
import { areLabelRules, type LabelRules } from '../../job/labels.ts'
import type { KeyRule } from '../../job/limit-key.ts'
import type { Limit } from '../../job/record.ts'

export interface QueueRow {
  readonly no: number
  readonly name: string
  paused_at: number | null
  paused_by: string | null
  paused_until: number | null
  /** null: forever. */
  retain_done_ms: number | null
  retain_dead_ms: number | null
  on_dead: string | null
  on_end: string | null
  /** Of its definition; 0: it was never defined. */
  version: number
  attempts: number
  priority: number
  key_path: string | null
  key_by_code: number
  max_running: number | null
  max_starts: number | null
  starts_ms: number | null
  key_max_running: number | null
  key_max_starts: number | null
  key_starts_ms: number | null
  key_review: string | null
  /** How far the walk over ready jobs has come after the limit of keys was lowered (`limits/lower.ts`); null: there is none. */
  lowering: string | null
  /** JSON: labels that are found in the payload; null: none. */
  labels: string | null
  held: number
  scheduled: number
  ready: number
  running: number
  done: number
  dead: number
  cancelled: number
}

type Nullable = number | null
type Text = string | null
export type QueueTuple = readonly [
  no: number,
  name: string,
  paused_at: Nullable,
  paused_by: Text,
  paused_until: Nullable,
  retain_done_ms: Nullable,
  retain_dead_ms: Nullable,
  on_dead: Text,
  on_end: Text,
  version: number,
  attempts: number,
  priority: number,
  key_path: Text,
  key_by_code: number,
  max_running: Nullable,
  max_starts: Nullable,
  starts_ms: Nullable,
  key_max_running: Nullable,
  key_max_starts: Nullable,
  key_starts_ms: Nullable,
  key_review: Text,
  lowering: Text,
  labels: Text,
  held: number,
  scheduled: number,
  ready: number,
  running: number,
  done: number,
  dead: number,
  cancelled: number,
]

export const selectQueue = `select no, name, paused_at, paused_by, paused_until, retain_done_ms, retain_dead_ms, on_dead, on_end,
    version, attempts, priority, key_path, key_by_code, max_running, max_starts, starts_ms, key_max_running, key_max_starts, key_starts_ms, key_review, lowering, labels,
    held, scheduled, ready, running, done, dead, cancelled from holdfast_queue`

export function toQueueRow(tuple: QueueTuple | undefined): QueueRow | undefined {
  if (!tuple) return undefined
  const [
    no,
    name,
    paused_at,
    paused_by,
    paused_until,
    retain_done_ms,
    retain_dead_ms,
    on_dead,
    on_end,
    version,
    attempts,
    priority,
    key_path,
    key_by_code,
    max_running,
    max_starts,
    starts_ms,
    key_max_running,
    key_max_starts,
    key_starts_ms,
    key_review,
    lowering,
    labels,
    held,
    scheduled,
    ready,
    running,
    done,
    dead,
    cancelled,
  ] = tuple
  return {
    no,
    name,
    paused_at,
    paused_by,
    paused_until,
    retain_done_ms,
    retain_dead_ms,
    on_dead,
    on_end,
    version,
    attempts,
    priority,
    key_path,
    key_by_code,
    max_running,
    max_starts,
    starts_ms,
    key_max_running,
    key_max_starts,
    key_starts_ms,
    key_review,
    lowering,
    labels,
    held,
    scheduled,
    ready,
    running,
    done,
    dead,
    cancelled,
  }
}

/** The labels that its jobs get from their payloads; null: none. */
export function labelRulesOf({ labels }: QueueRow): LabelRules | null {
  if (labels === null) return null
  if (lastRules.text !== labels) {
    const rules = decodeJson(labels)
    lastRules = { text: labels, rules: areLabelRules(rules) ? rules : null }
  }
  return lastRules.rules
}

/** Jobs of one queue come together, so its rules are decoded once. */
let lastRules: { readonly text: string; readonly rules: LabelRules | null } = { text: '', rules: null }

/** How the limit key of its jobs is found. */
export function keyRuleOf({ key_path, key_by_code }: QueueRow): KeyRule {
  if (key_by_code !== 0) return 'code'
  return key_path === null ? null : { path: key_path }
}

/** Of the whole queue. */
export function limitOf({ max_running, max_starts, starts_ms }: QueueRow): Limit | null {
  return toLimit(max_running, max_starts, starts_ms)
}

/** Of the jobs that share a key. */
export function keyLimitOf({ key_max_running, key_max_starts, key_starts_ms }: QueueRow): Limit | null {
  return toLimit(key_max_running, key_max_starts, key_starts_ms)
}

function toLimit(concurrency: number | null, count: number | null, windowMs: number | null): Limit | null {
  const rate = count === null || windowMs === null ? null : { count, windowMs }
  return concurrency === null && rate === null ? null : { concurrency, rate }
}
