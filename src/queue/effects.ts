// Effects as the caller writes them, and their conversion to the `EffectSet` that a store applies.

import { HoldfastError, toError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { encodeJson, kvRule, payloadRule } from '../job/codec.ts'
import { parseJson } from '../job/json.ts'
import { isUnfit, resolveLabels } from '../job/labels.ts'
import { resolveKey } from '../job/limit-key.ts'
import { checkOptions, checkOwnKey } from '../job/names.ts'
import type { EffectSet, KvPut, NewJob } from '../job/record.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'
import { unfitLabel } from '../store/refusals.ts'
import type { Capabilities } from '../store/store.ts'
import type { AnyDefinition } from './definition.ts'
import { checkChars, type EnqueueOptions, prepareJob } from './prepare.ts'
import { type PayloadField, type PayloadOf, type QueueReference, toDefinition } from './reference.ts'
import { type SqlStatement, toSqlEffect } from './sql-statement.ts'

export interface FollowUp extends Omit<EnqueueOptions, 'tx'> {
  readonly queue: QueueReference
  readonly payload?: unknown
}

/** What `Item` must be: its payload is one of the queue that it names, and it has no option that does not exist. */
export type Fitting<Item> = Item extends { readonly queue: infer Q }
  ? { readonly queue: Q } & PayloadField<PayloadOf<Q>> & {
        readonly [Name in Exclude<keyof Item, keyof FollowUp>]?: never
      }
  : never

export interface Effects<Item extends FollowUp = FollowUp> {
  /** Follow-up jobs, with every enqueue option. */
  readonly enqueue?: readonly (Item & Fitting<Item>)[]
  readonly put?: readonly { readonly key: string; readonly value: unknown; readonly ttl?: Duration }[]
  readonly delete?: readonly string[]
  /** Statements in your own tables, on SQL stores: written out, or as a query builder gives them. */
  readonly sql?: readonly SqlStatement[]
}

/** Stores the definition of a follow-up's queue; undefined: there is nothing to store, or it is stored. */
export type Define = (definition: AnyDefinition) => Promise<unknown> | undefined

/** Without `define` the store may not know the queues of follow-ups yet. */
export async function prepareEffects(
  effects: Effects | undefined,
  capabilities: Capabilities,
  define?: Define,
): Promise<EffectSet | null> {
  if (effects === undefined) return null
  checkOptions(effects, 'effects', ['enqueue', 'put', 'delete', 'sql'])
  const enqueue = listOf(effects, 'enqueue')
  const put = listOf(effects, 'put')
  const remove = listOf(effects, 'delete')
  const sql = listOf(effects, 'sql')
  const count = enqueue.length + put.length + remove.length + sql.length
  if (count > bounds.effectsMax) {
    throw new HoldfastError(
      'INVALID_OPTION',
      `A settlement carries at most ${bounds.effectsMax} effects; got ${count}.`,
      { count },
    )
  }
  if (sql.length > 0) requireSql(capabilities)
  const set: EffectSet = {
    put: put.map(toPut),
    delete: remove.map((key) => checkOwnKey(key, 'effects.delete')),
    sql: sql.map(toSqlEffect),
    enqueue: await Promise.all(enqueue.map((followUp) => toNewJob(followUp, define))),
  }
  checkChars(charsOf(set), 'Effects')
  return set
}

/** For effects that were prepared without knowledge of the store. */
export function requireCapable(effects: EffectSet, capabilities: Capabilities): EffectSet {
  if (effects.sql.length > 0) requireSql(capabilities)
  return effects
}

export function together(first: EffectSet, then: EffectSet | null): EffectSet {
  if (then === null) return first
  return {
    put: [...first.put, ...then.put],
    delete: [...first.delete, ...then.delete],
    sql: [...first.sql, ...then.sql],
    enqueue: [...first.enqueue, ...then.enqueue],
  }
}

function requireSql(capabilities: Capabilities): void {
  if (capabilities.sqlEffects) return
  throw new HoldfastError('UNSUPPORTED', 'This store cannot run SQL effects; use kv effects or follow-up jobs.', {
    capability: 'sqlEffects',
  })
}

function charsOf({ put, enqueue }: EffectSet): number {
  return [...put.map(({ value }) => value), ...enqueue.map(({ payload }) => payload)].reduce(
    (sum, text) => sum + text.length,
    0,
  )
}

/** Holes included, so that they are refused like undefined. */
function listOf<Name extends keyof Effects>(effects: Effects, name: Name): NonNullable<Effects[Name]>[number][] {
  const list: readonly unknown[] = effects[name] ?? []
  if (Array.isArray(list)) return Array.from(list)
  throw new HoldfastError('INVALID_OPTION', `effects.${name} must be an array; got ${show(list)}.`, {
    option: `effects.${name}`,
  })
}

function toPut(put: NonNullable<Effects['put']>[number]): KvPut {
  checkOptions(put, 'effects.put', ['key', 'value', 'ttl'])
  const { key, value, ttl } = put
  return {
    key: checkOwnKey(key, 'effects.put.key'),
    value: encodeJson(value, kvRule),
    ttlMs: ttl === undefined ? null : toMs(ttl, 'effects.put.ttl', { min: 1 }),
  }
}

/** Effects of a cancel may have to be kept until the job ends, so their SQL values must survive as JSON. */
export function keepable(effects: EffectSet | null): EffectSet | null {
  if (effects === null || effects.sql.length === 0) return effects
  return { ...effects, sql: effects.sql.map(({ text, values }) => ({ text, values: values.map(keepableValue) })) }
}

function keepableValue(value: unknown): unknown {
  try {
    if (value instanceof Date) return value.toISOString()
    return parseJson(encodeJson(value, payloadRule))
  } catch (cause) {
    throw new HoldfastError(
      'INVALID_OPTION',
      'A value of a SQL effect cannot be kept until the job ends. Pass dates and plain JSON data to cancel.',
      { option: 'effects.sql' },
      { cause },
    )
  }
}

async function toNewJob(followUp: FollowUp, define: Define | undefined): Promise<NewJob> {
  if (typeof followUp !== 'object' || followUp === null) {
    const wanted = `effects.enqueue takes { queue, payload, …options } for each job; got ${show(followUp)}.`
    throw new HoldfastError('INVALID_OPTION', wanted, { option: 'effects.enqueue' })
  }
  const { queue, payload, ...options } = followUp
  const definition = toDefinition(queue)
  const job = await prepareJob(definition, payload, options)
  return (await isStored(definition, define)) ? job : asDefined(job, definition)
}

/** A job is settled even if the definition of a follow-up's queue cannot be stored now. */
async function isStored(definition: AnyDefinition, define: Define | undefined): Promise<boolean> {
  if (definition.settings === null) return true
  if (!define) return false
  try {
    await define(definition)
    return true
  } catch {
    return false
  }
}

/** Fills in the options that the follow-up does not set, because the store may not have the definition. */
function asDefined(job: NewJob, { priority, attempts, settings }: AnyDefinition): NewJob {
  const labels = resolveLabels(settings?.labels ?? null, job)
  if (isUnfit(labels)) throw toError(unfitLabel(job.queue, labels))
  return {
    ...job,
    priority: job.priority ?? priority,
    maxAttempts: job.maxAttempts ?? attempts,
    limitKey: resolveKey(settings?.limits?.key ?? null, job),
    labels,
  }
}
