// A queue's definition and an operator's override of its limits. The queue's row has what is read often: defaults of jobs, how
// their limit key is found, and the limits in force, which are the override's if there is one.

import type { Refused } from '../../errors.ts'
import { changedOverride, type LimitOverride, type LimitPair, limitsKeys, overridden } from '../../job/limit-key.ts'
import { isLowered } from '../../job/limits.ts'
import type { Limit, QueueSettings } from '../../job/record.ts'
import {
  changesOf,
  decodeDefinition,
  decodeOverride,
  encodeDefinition,
  redefined,
  type StoredDefinition,
  undefinedQueue,
} from '../../job/stored-definition.ts'
import { cycleFrom } from '../notice-cycle.ts'
import { noKeyToLimit, noQueueToLimit, onDeadCycle } from '../refusals.ts'
import type { DefinedQueue, DefinitionRecord } from '../store.ts'
import { fromTheEnd, lowerLimits } from './limits/lower.ts'
import { keyLimitOf, keyRuleOf, type QueueRow } from './queue.ts'
import type { SqliteTransaction } from './transaction.ts'

export function define(tx: SqliteTransaction, settings: QueueSettings): DefinedQueue | Refused {
  const cycle = cycleOf(tx, settings)
  if (cycle !== null) return onDeadCycle(cycle)
  const queue = tx.queue(settings.name)
  const { definition: before, override } = readStored(tx, queue)
  const after = redefined(before, settings)
  const versionBefore = queue.version
  const changes = before === null ? [] : changesOf(before, after)
  if (before !== null && changes.length === 0) {
    return { queue: queue.name, version: versionBefore, versionBefore, changes }
  }
  queue.version += 1
  write(tx, queue, after, override)
  const keep = `insert into holdfast_definition (queue, definition) values (?, ?)
    on conflict (queue) do update set definition = excluded.definition`
  tx.db.run(keep, queue.no, encodeDefinition(after))
  lowerLimits(tx, queue.name)
  return { queue: queue.name, version: queue.version, versionBefore, changes }
}

/** The cycle of `onDead` and `onEnd` queues that these settings would close, from this queue back to it; null: there is none. */
function cycleOf(tx: SqliteTransaction, { name, onDead, onEnd }: QueueSettings): string[] | null {
  const nextOf = (queue: string): readonly (string | null)[] => {
    if (queue === name) return [onDead, onEnd ?? null]
    const row = tx.findQueue(queue)
    return row ? [row.on_dead, row.on_end] : []
  }
  return cycleFrom(name, nextOf)
}

export interface Override {
  readonly name: string
  readonly override: LimitOverride | null
}

/** Fields that are not named keep their values; null removes the override. */
export function overrideLimit(tx: SqliteTransaction, { name, override: change }: Override): true | Refused {
  const queue = tx.findQueue(name)
  if (!queue) return noQueueToLimit(name)
  if (limitsKeys(change) && keyRuleOf(queue) === null) return noKeyToLimit(name)
  const stored = readStored(tx, queue)
  const definition = stored.definition ?? { ...undefinedQueue, ...retentionOf(queue) }
  const override = changedOverride(stored.override, change)
  write(tx, queue, definition, override)
  const keep = `insert into holdfast_definition (queue, override) values (?, ?)
    on conflict (queue) do update set override = excluded.override`
  tx.db.run(keep, queue.no, override && JSON.stringify(override))
  lowerLimits(tx, queue.name)
  return true
}

function retentionOf({ retain_done_ms, retain_dead_ms }: QueueRow) {
  return {
    retainDoneMs: retain_done_ms ?? Number.POSITIVE_INFINITY,
    retainDeadMs: retain_dead_ms ?? Number.POSITIVE_INFINITY,
  }
}

/** For a damaged definition the defaults apply. */
export function readDefinitions(tx: SqliteTransaction, names: readonly string[] | null): DefinitionRecord[] {
  const queues = names === null ? tx.queues() : names.map((name) => tx.findQueue(name))
  return queues.flatMap((queue) => {
    if (queue === undefined) return []
    const definition = queue.version > 0 ? readStored(tx, queue).definition : null
    return [{ queue: queue.name, version: queue.version, definition: definition ?? undefinedQueue }]
  })
}

export function readOverrides(tx: SqliteTransaction): Map<number, LimitOverride | null> {
  const select = 'select queue, override from holdfast_definition where override is not null'
  const rows = tx.db.all<{ queue: number; override: string }>(select)
  return new Map(rows.map(({ queue, override }) => [queue, decodeOverride(override)]))
}

interface Stored {
  readonly definition: StoredDefinition | null
  readonly override: LimitOverride | null
}

function readStored(tx: SqliteTransaction, { no }: QueueRow): Stored {
  const select = 'select definition, override from holdfast_definition where queue = ?'
  const row = tx.db.get<{ definition: string | null; override: string | null }>(select, no)
  return { definition: decodeDefinition(row?.definition ?? null), override: decodeOverride(row?.override ?? null) }
}

function write(
  tx: SqliteTransaction,
  queue: QueueRow,
  definition: StoredDefinition,
  override: LimitOverride | null,
): void {
  const { limit, keyLimit } = overridden(definition, override)
  const asked = columnsOf(definition, { limit, keyLimit })
  const isSame = (column: keyof typeof asked) => queue[column] === asked[column]
  const isKeyLimitSame = isSame('key_max_running') && isSame('key_max_starts') && isSame('key_starts_ms')
  if (!isKeyLimitSame) queue.key_review = '' // sweeps review every key
  if (isLowered(keyLimitOf(queue), keyLimit)) queue.lowering = fromTheEnd
  const hasRate = asked.key_max_starts !== null
  if (hasRate !== (queue.key_max_starts !== null)) tx.keys.countRunning(queue, hasRate)
  if (!isSame('max_running') || !isSame('max_starts')) tx.wake(queue.name, queue.ready)
  Object.assign(queue, asked)
  tx.db.run(
    `update holdfast_queue
        set version = ?, attempts = ?, priority = ?, key_path = ?, key_by_code = ?, retain_done_ms = ?, retain_dead_ms = ?,
            on_dead = ?, on_end = ?, max_running = ?, max_starts = ?, starts_ms = ?, key_max_running = ?, key_max_starts = ?,
            key_starts_ms = ?, key_review = ?, lowering = ?, labels = ?
      where no = ?`,
    queue.version,
    queue.attempts,
    queue.priority,
    queue.key_path,
    queue.key_by_code,
    queue.retain_done_ms,
    queue.retain_dead_ms,
    queue.on_dead,
    queue.on_end,
    queue.max_running,
    queue.max_starts,
    queue.starts_ms,
    queue.key_max_running,
    queue.key_max_starts,
    queue.key_starts_ms,
    queue.key_review,
    queue.lowering,
    queue.labels,
    queue.no,
  )
}

function columnsOf(definition: StoredDefinition, { limit, keyLimit }: LimitPair) {
  const { attempts, priority, retainDoneMs, retainDeadMs, onDead, onEnd, key, labels } = definition
  const [max_running, max_starts, starts_ms] = limitColumns(limit)
  const [key_max_running, key_max_starts, key_starts_ms] = limitColumns(keyLimit)
  return {
    ...{ attempts, priority, key_path: typeof key === 'object' ? (key?.path ?? null) : null },
    key_by_code: key === 'code' ? 1 : 0,
    labels: labels === undefined ? null : JSON.stringify(labels),
    ...{
      retain_done_ms: finite(retainDoneMs),
      retain_dead_ms: finite(retainDeadMs),
      on_dead: onDead,
      on_end: onEnd ?? null,
    },
    ...{ max_running, max_starts, starts_ms, key_max_running, key_max_starts, key_starts_ms },
  }
}

function limitColumns(limit: Limit | null): [number | null, number | null, number | null] {
  return [limit?.concurrency ?? null, limit?.rate?.count ?? null, limit?.rate?.windowMs ?? null]
}

function finite(ms: number): number | null {
  return Number.isFinite(ms) ? ms : null
}
