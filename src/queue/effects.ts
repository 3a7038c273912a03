// Effects as the caller writes them, and their conversion to the `EffectSet` that a store applies.

import { HoldfastError, toError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { encodeJson, payloadRule } from '../job/codec.ts'
import { parseJson } from '../job/json.ts'
import { isUnfit, resolveLabels } from '../job/labels.ts'
import { resolveKey } from '../job/limit-key.ts'
import { checkOptions } from '../job/names.ts'
import type { EffectSet, NewJob } from '../job/record.ts'
import { comparesOf } from '../job/settlement.ts'
import { show } from '../runtime/duration.ts'
import { unfitLabel } from '../store/refusals.ts'
import type { Capabilities } from '../store/store.ts'
import type { AnyDefinition } from './definition.ts'
import { charsOfWrites, checkWrites, type KvWrites, kvWriteNames, listOf } from './kv-writes.ts'
import { charsOfJob, checkChars, type EnqueueOptions, prepareJob } from './prepare.ts'
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

export interface Effects<Item extends FollowUp = FollowUp> extends KvWrites {
  /** Follow-up jobs, with every enqueue option. */
  readonly enqueue?: readonly (Item & Fitting<Item>)[]
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
  checkOptions(effects, 'effects', ['enqueue', 'sql', ...kvWriteNames])
  const enqueue = listOf(effects, 'enqueue', 'effects')
  const sql = listOf(effects, 'sql', 'effects')
  const writes = kvWriteNames.map((name) => listOf(effects, name, 'effects').length)
  const count = writes.reduce((sum, each) => sum + each, enqueue.length + sql.length)
  if (count > bounds.effectsMax) {
    throw new HoldfastError(
      'INVALID_OPTION',
      `A settlement carries at most ${bounds.effectsMax} effects; got ${count}.`,
      { count },
    )
  }
  if (sql.length > 0) requireSql(capabilities)
  const { compare, ...plain } = checkWrites(effects, 'effects')
  const set: EffectSet = {
    ...(compare.length > 0 && { compare }),
    ...plain,
    sql: sql.map(toSqlEffect),
    enqueue: await Promise.all(enqueue.map((followUp) => toNewJob(followUp, define))),
  }
  checkChars(charsOf(set), 'Effects')
  return set
}

/** For preparing effects in a thread. The worker checks again with the capabilities of its store. */
export const anyStore: Capabilities = {
  manyWriters: true,
  callerTransaction: true,
  sqlEffects: true,
  survivesPowerLoss: true,
}

/** For effects that were prepared without knowledge of the store. */
export function requireCapable(effects: EffectSet, capabilities: Capabilities): EffectSet {
  if (effects.sql.length > 0) requireSql(capabilities)
  return effects
}

export function together(first: EffectSet | null, then: EffectSet | null): EffectSet | null {
  if (first === null || then === null) return first ?? then
  const compare = [...comparesOf(first), ...comparesOf(then)]
  return {
    ...(compare.length > 0 && { compare }),
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

function charsOf(set: EffectSet): number {
  const puts = set.put.reduce((sum, { value }) => sum + value.length, charsOfWrites(comparesOf(set)))
  return set.enqueue.reduce((sum, job) => sum + charsOfJob(job), puts)
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
