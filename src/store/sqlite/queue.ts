// A queue's row: what was asked of it, and the counts of its jobs.

import type { KeyRule } from '../../job/limit-key.ts'
import type { Limit } from '../../job/record.ts'

export interface QueueRow {
  readonly no: number
  readonly name: string
  paused_at: number | null
  paused_by: string | null
  /** null: for ever. */
  retain_done_ms: number | null
  retain_dead_ms: number | null
  on_dead: string | null
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
  /** Where the walk over ready jobs stands that a lower limit of keys needs (`limits/lower.ts`); null: there is none. */
  lowering: string | null
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
type Settings = [
  ...retention: [Nullable, Nullable, Text],
  ...defaults: [number, number, number, Text, number],
  ...limit: [Nullable, Nullable, Nullable],
  ...keyLimit: [Nullable, Nullable, Nullable, Text, Text],
]
export type QueueTuple = readonly [
  no: number,
  name: string,
  paused_at: Nullable,
  paused_by: Text,
  ...Settings,
  ...number[],
]

export const selectQueue = `select no, name, paused_at, paused_by, retain_done_ms, retain_dead_ms, on_dead,
    version, attempts, priority, key_path, key_by_code, max_running, max_starts, starts_ms, key_max_running, key_max_starts, key_starts_ms, key_review, lowering,
    held, scheduled, ready, running, done, dead, cancelled from holdfast_queue`

export function toQueueRow(tuple: QueueTuple | undefined): QueueRow | undefined {
  if (!tuple) return undefined
  const count = (column: number) => tuple[column] as number
  return {
    no: tuple[0],
    name: tuple[1],
    paused_at: tuple[2],
    paused_by: tuple[3],
    retain_done_ms: tuple[4],
    retain_dead_ms: tuple[5],
    on_dead: tuple[6],
    version: tuple[7],
    attempts: tuple[8],
    priority: tuple[9],
    key_path: tuple[10],
    key_by_code: tuple[11],
    max_running: tuple[12],
    max_starts: tuple[13],
    starts_ms: tuple[14],
    key_max_running: tuple[15],
    key_max_starts: tuple[16],
    key_starts_ms: tuple[17],
    key_review: tuple[18],
    lowering: tuple[19],
    held: count(20),
    scheduled: count(21),
    ready: count(22),
    running: count(23),
    done: count(24),
    dead: count(25),
    cancelled: count(26),
  }
}

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
