// A statement as the caller writes it, or as a query builder returns it: each builder has its own names for text and values.

import { HoldfastError, toError } from '../errors.ts'
import { checkOptions } from '../job/names.ts'
import type { SqlEffect } from '../job/record.ts'
import { sqlRefused } from '../store/refusals.ts'

/** Written out, or as given by `toSQL()` of Drizzle, by `compile()` of Kysely, and by `toSQL()` of Knex or its `toNative()`. */
export type SqlStatement =
  | { readonly text: string; readonly values?: readonly unknown[] }
  | { readonly sql: string; readonly params: readonly unknown[] }
  | { readonly sql: string; readonly parameters: readonly unknown[] }
  | { readonly sql: string; readonly bindings: readonly unknown[] }

export function toSqlEffect(statement: SqlStatement): SqlEffect {
  if (isUncompiled(statement)) throw notOne()
  const { text, values } = isBuilt(statement) ? wordsOf(statement) : written(statement)
  if (typeof text !== 'string' || text.trim() === '' || !Array.isArray(values)) throw notOne()
  // biome-ignore lint/complexity/useIndexOf: indexOf does not find holes
  const missing = values.findIndex((value) => value === undefined)
  if (missing === -1) return { text, values }
  throw toError(sqlRefused(text, `values[${missing}] is undefined; pass null to write NULL`))
}

function notOne(): HoldfastError {
  return new HoldfastError(
    'INVALID_OPTION',
    'A SQL effect is { text, values }, one statement and an array, or what a query builder gives: toSQL() of Drizzle and Knex, compile() of Kysely.',
    { option: 'effects.sql' },
  )
}

interface Words {
  readonly text: unknown
  readonly values: unknown
}

interface Built {
  readonly sql: unknown
  readonly params?: unknown
  readonly parameters?: unknown
  readonly bindings?: unknown
  readonly toNative?: unknown
}

/** Builders add other fields, which are ignored. */
function isBuilt(statement: SqlStatement): statement is SqlStatement & Built {
  return typeof statement === 'object' && statement !== null && 'sql' in statement && !('text' in statement)
}

/** The builder itself. What it gives has a text. */
function isUncompiled(statement: unknown): boolean {
  if (typeof statement !== 'object' || statement === null || 'sql' in statement || 'text' in statement) return false
  return ['toSQL', 'compile', 'getSQL'].some((name) => typeof Reflect.get(statement, name) === 'function')
}

function wordsOf(statement: Built): Words {
  // Knex uses its own placeholders; `toNative()` returns those of the database.
  const { sql, params, parameters, bindings } =
    typeof statement.toNative === 'function' ? (statement.toNative() as Built) : statement
  return { text: sql, values: params ?? parameters ?? bindings }
}

function written(statement: SqlStatement): Words {
  checkOptions(statement, 'effects.sql', ['text', 'values'])
  const { text, values = [] } = statement as Partial<Words>
  return { text, values }
}
