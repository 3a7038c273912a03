// A queue's definition as it is stored: everything that a producer or a worker needs if it has no code of the definition. Pure.

import type { Backoff } from './backoff.ts'
import { bounds, defaults } from './bounds.ts'
import { decodeJson, isPlainObject } from './codec.ts'
import { areLabelRules, type LabelRules } from './labels.ts'
import { isKeyPath, type KeyRule, type LimitOverride, type LimitPair } from './limit-key.ts'
import { isQueueName } from './names.ts'
import type { Limit, QueueSettings } from './record.ts'

export interface StoredDefinition extends LimitPair {
  readonly attempts: number
  readonly priority: number
  readonly backoff: Backoff
  readonly leaseMs: number
  readonly timeoutMs: number
  /** Infinity: never pruned. */
  readonly retainDoneMs: number
  readonly retainDeadMs: number
  readonly onDead: string | null
  /** Absent: no queue gets notices of ends. */
  readonly onEnd?: string
  /** Its jobs are runs of a flow: the version of its code. */
  readonly flow?: number
  /** How the limit key of a job is found. */
  readonly key: KeyRule
  /** Labels that the store finds in the payload; absent: none. */
  readonly labels?: LabelRules
}

/** The definition that applies to a queue that was never defined. */
export const undefinedQueue: StoredDefinition = {
  attempts: defaults.attempts,
  priority: defaults.priority,
  backoff: defaults.backoff,
  leaseMs: defaults.leaseMs,
  timeoutMs: defaults.timeoutMs,
  retainDoneMs: defaults.retainDoneMs,
  retainDeadMs: defaults.retainDeadMs,
  onDead: null,
  limit: null,
  keyLimit: null,
  key: null,
}

/** The stored definition after these settings are applied. Limits that the settings do not state stay as they are. */
export function redefined(before: StoredDefinition | null, settings: QueueSettings): StoredDefinition {
  const { name: _name, limits, ...rest } = settings
  const { limit, keyLimit, key } = limits ?? before ?? undefinedQueue
  return { ...rest, limit, keyLimit, key }
}

/** The names of the options of `defineQueue` in which two definitions differ. */
export function changesOf(before: StoredDefinition, after: StoredDefinition): string[] {
  const [old, now] = [optionsOf(before), optionsOf(after)]
  const names = new Set([...Object.keys(now), ...Object.keys(old)])
  return [...names].filter((name) => JSON.stringify(old[name]) !== JSON.stringify(now[name]))
}

function optionsOf(definition: StoredDefinition): Record<string, unknown> {
  const { attempts, backoff, leaseMs, timeoutMs, priority, onDead } = definition
  const { baseMs, factor, maxMs, jitter } = backoff
  return {
    ...{ attempts, backoff: [baseMs, factor, maxMs, jitter], lease: leaseMs, timeout: timeoutMs, priority },
    retain: [finite(definition.retainDoneMs), finite(definition.retainDeadMs)],
    onDead,
    ...(definition.onEnd !== undefined && { onEnd: definition.onEnd }),
    ...(definition.flow !== undefined && { flow: definition.flow }),
    ...(definition.labels && { labels: Object.entries(definition.labels).sort() }),
    limit: [limitOf(definition.limit), limitOf(definition.keyLimit), ruleOf(definition.key)],
  }
}

function limitOf(limit: Limit | null): unknown {
  return limit && [limit.concurrency, limit.rate && [limit.rate.count, limit.rate.windowMs]]
}

function ruleOf(key: KeyRule): unknown {
  return typeof key === 'object' ? key?.path : [key]
}

function finite(ms: number): number | null {
  return Number.isFinite(ms) ? ms : null
}

/** The same text for the same definition, with or without its limits. */
export function definitionText(definition: StoredDefinition, { withLimits }: { readonly withLimits: boolean }): string {
  const { limit, ...rest } = optionsOf(definition)
  return JSON.stringify(withLimits ? { ...rest, limit } : rest)
}

/** The same text for the same settings, to detect a repeated definition. */
export function settingsText(settings: QueueSettings): string {
  const isInfinite = (value: unknown) => value === Number.POSITIVE_INFINITY
  return JSON.stringify(settings, (_, value: unknown) => (isInfinite(value) ? 'Infinity' : value))
}

/** JSON has no Infinity: an infinite retention is null. */
export function encodeDefinition({ retainDoneMs, retainDeadMs, ...definition }: StoredDefinition): string {
  return JSON.stringify({ ...definition, retainDoneMs: finite(retainDoneMs), retainDeadMs: finite(retainDeadMs) })
}

/** Null: there is no definition, or its text is damaged. */
export function decodeDefinition(text: string | null): StoredDefinition | null {
  const stored = text === null ? null : decodeJson(text)
  if (!isPlainObject(stored)) return null
  const { retainDoneMs, retainDeadMs, ...rest } = stored as Fields
  const definition = { ...rest, retainDoneMs: kept(retainDoneMs), retainDeadMs: kept(retainDeadMs) }
  return isWhole(definition) ? definition : null
}

function kept(ms: unknown): unknown {
  return ms === null ? Number.POSITIVE_INFINITY : ms
}

function isWhole(value: Fields): value is Fields & StoredDefinition {
  const { attempts, priority, leaseMs, timeoutMs, onDead, key, limit, keyLimit } = value
  return (
    isWithin(attempts, 1, bounds.attemptsMax) &&
    isWithin(priority, 0, bounds.priorityMax) &&
    isWithin(leaseMs, bounds.leaseMinMs, bounds.leaseMaxMs) &&
    isWithin(timeoutMs, 1, Number.MAX_SAFE_INTEGER) &&
    isBackoff(value.backoff) &&
    [value.retainDoneMs, value.retainDeadMs].every((ms) => typeof ms === 'number' && ms >= 0) &&
    (onDead === null || isQueueName(onDead)) &&
    isRule(key) &&
    [limit, keyLimit].every(isLimitOrNull) &&
    (value.onEnd === undefined || isQueueName(value.onEnd)) &&
    (value.flow === undefined || isWithin(value.flow, 1, Number.MAX_SAFE_INTEGER)) &&
    (value.labels === undefined || areLabelRules(value.labels))
  )
}

type Fields = { readonly [Name in keyof StoredDefinition]: unknown }

function isRule(key: unknown): boolean {
  return key === null || key === 'code' || (isPlainObject(key) && isKeyPath((key as { path?: unknown }).path))
}

function isBackoff(value: unknown): boolean {
  if (!isPlainObject(value)) return false
  const { baseMs, factor, maxMs, jitter } = value as Readonly<Record<keyof Backoff, unknown>>
  return [baseMs, factor, maxMs, jitter].every((each) => typeof each === 'number' && Number.isFinite(each) && each >= 0)
}

export function decodeOverride(text: string | null): LimitOverride | null {
  const stored = text === null ? null : decodeJson(text)
  if (!isPlainObject(stored)) return null
  const { limit, keyLimit } = stored as LimitOverride
  if (![limit, keyLimit].every((each) => each === undefined || isFields(each))) return null
  return { ...(limit !== undefined && { limit }), ...(keyLimit !== undefined && { keyLimit }) }
}

function isFields(value: unknown): boolean {
  return (
    value !== null && isPlainObject(value) && isLimitOrNull({ concurrency: null, rate: null, ...(value as object) })
  )
}

function isLimitOrNull(value: unknown): boolean {
  if (value === null) return true
  if (!isPlainObject(value)) return false
  const { concurrency, rate } = value as Readonly<Record<keyof Limit, unknown>>
  return (concurrency === null || isWithin(concurrency, 1, bounds.limitConcurrencyMax)) && isRateOrNull(rate)
}

function isRateOrNull(value: unknown): boolean {
  if (value === null) return true
  if (!isPlainObject(value)) return false
  const { count, windowMs } = value as { readonly count?: unknown; readonly windowMs?: unknown }
  return isWithin(count, 1, bounds.rateCountMax) && isWithin(windowMs, 1, bounds.rateWindowMaxMs)
}

function isWithin(value: unknown, min: number, max: number): boolean {
  return Number.isInteger(value) && Number(value) >= min && Number(value) <= max
}
