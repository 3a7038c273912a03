// Effects as a caller writes them, and how they become what a store applies.

import type { AnyDefinition } from './definition.ts'
import { defineQueue } from './definition.ts'
import { type Duration, toMs } from './duration.ts'
import { HoldfastError } from './errors.ts'
import { bounds } from './job/bounds.ts'
import { encodeJson, kvRule, payloadRule } from './job/codec.ts'
import { checkKey } from './job/names.ts'
import type { EffectSet, NewJob, SqlEffect } from './job/record.ts'
import { type EnqueueOptions, prepareJob } from './prepare.ts'
import type { Capabilities } from './store/store.ts'

export interface FollowUp extends Omit<EnqueueOptions, 'tx'> {
  readonly queue: string | AnyDefinition
  readonly payload?: unknown
}

export interface Effects {
  /** Follow-up jobs, with every enqueue option. */
  readonly enqueue?: readonly FollowUp[]
  readonly put?: readonly { readonly key: string; readonly value: unknown; readonly ttl?: Duration }[]
  readonly delete?: readonly string[]
  /** Statements in your own tables, on SQL stores. */
  readonly sql?: readonly { readonly text: string; readonly values?: readonly unknown[] }[]
}

export async function prepareEffects(
  effects: Effects | undefined,
  capabilities: Capabilities,
): Promise<EffectSet | null> {
  if (effects === undefined) return null
  const { enqueue = [], put = [], delete: remove = [], sql = [] } = effects
  const count = enqueue.length + put.length + remove.length + sql.length
  if (count > bounds.effectsMax) {
    throw new HoldfastError(
      'INVALID_OPTION',
      `A settlement carries at most ${bounds.effectsMax} effects; got ${count}.`,
      { count },
    )
  }
  if (sql.length > 0 && !capabilities.sqlEffects) {
    throw new HoldfastError('UNSUPPORTED', 'This store cannot run SQL effects; use kv effects or follow-up jobs.', {
      capability: 'sqlEffects',
    })
  }
  return {
    put: put.map(({ key, value, ttl }) => ({
      key: checkKey(key, 'effects.put.key'),
      value: encodeJson(value, kvRule),
      ttlMs: ttl === undefined ? null : toMs(ttl, 'effects.put.ttl', { min: 1 }),
    })),
    delete: remove.map((key) => checkKey(key, 'effects.delete')),
    sql: sql.map(checkSql),
    enqueue: await Promise.all(enqueue.map(toNewJob)),
  }
}

function checkSql({ text, values = [] }: NonNullable<Effects['sql']>[number]): SqlEffect {
  if (typeof text === 'string' && text.trim() !== '' && Array.isArray(values)) return { text, values }
  throw new HoldfastError('INVALID_OPTION', 'A SQL effect is { text, values }: one statement and an array.', {
    option: 'effects.sql',
  })
}

/** Effects of a cancel may have to be kept until the job ends, so their SQL values must survive as JSON. */
export function keepable(effects: EffectSet | null): EffectSet | null {
  if (effects === null || effects.sql.length === 0) return effects
  return { ...effects, sql: effects.sql.map(({ text, values }) => ({ text, values: values.map(keepableValue) })) }
}

function keepableValue(value: unknown): unknown {
  if (value instanceof Date) return value.toISOString()
  try {
    return value === undefined ? null : JSON.parse(encodeJson(value, payloadRule))
  } catch (cause) {
    throw new HoldfastError(
      'INVALID_OPTION',
      'A value of a SQL effect cannot be kept until the job ends. Pass dates and plain JSON data to cancel.',
      { option: 'effects.sql' },
      { cause },
    )
  }
}

async function toNewJob({ queue, payload, ...options }: FollowUp): Promise<NewJob> {
  return prepareJob(typeof queue === 'string' ? defineQueue(queue) : queue, payload, options)
}
