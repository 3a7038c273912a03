// Statements of the application, in the transaction that settles a job. If a statement fails, the settlement is rolled back to
// its savepoint and the job fails. Three kinds of failure need more: the engine repeats the request without its statements.
//
// - A statement that rolls back the whole transaction (`insert or rollback`, `raise(rollback)`).
// - A statement whose error SQLite reports only at the commit (a deferred foreign key).
// - An error that may be the store's: a full disk, a damaged page, no memory. It may also be the statement's own: a full-text
//   index that disagrees with its table has the result code of a damaged file. If the repeated request commits, the statements
//   were the cause. If not, the store has failed, and the job does not.
//
// Values are converted to types that can be bound before they cross to the store's thread, because a value that cannot be cloned
// would fail the whole group. For a value that cannot be converted the reason crosses instead, and fails only its own job.

import type { SQLInputValue } from 'node:sqlite'
import { encodeJson } from '../../job/codec.ts'
import type { EffectSet, SqlEffect } from '../../job/record.ts'
import { changesTransaction, Refusal, sqlRefused } from '../refusals.ts'
import { primaryCode } from './connection/database.ts'
import type { Connection } from './connection/statements.ts'
import { firstWord, isBlank, parametersOf } from './statement.ts'
import type { SqliteTransaction } from './transaction.ts'

/** Why the statements of a request cannot be committed; `text` is the statement that caused it, if known. */
export interface SqlFault {
  readonly text: string | null
  readonly why: string
}

/** A statement of the application has rolled back the whole transaction. */
export class TransactionRolledBack extends Error {
  readonly fault: SqlFault

  constructor(fault: SqlFault) {
    super(fault.why)
    this.fault = fault
  }
}

/** These statements would end the transaction, or change the connection for later statements. So would temporary objects. */
const changing = /^(attach|begin|commit|detach|end|pragma|release|rollback|savepoint|vacuum)$/

/** Throws a Refusal when it cannot be run. */
export function runSql(tx: SqliteTransaction, { text, values }: SqlEffect): void {
  if (tx.sqlFault) throw new Refusal(sqlRefused(tx.sqlFault.text ?? text, tx.sqlFault.why))
  if (changing.test(firstWord(text))) throw new Refusal(sqlRefused(text, changesTransaction))
  tx.lastSql = text
  try {
    run(tx.db, text, values as readonly Bindable[])
  } catch (error) {
    if (error instanceof Refusal || isTheStores(error)) throw error
    const why = sentenceOf(error)
    if (!tx.bare.isInTransaction) throw new TransactionRolledBack({ text, why })
    throw new Refusal(sqlRefused(text, why))
  }
}

function run(db: Connection, text: string, values: readonly Bindable[]): void {
  const fit = checked(text, values)
  const numbered = numberedParameters(text, fit.length)
  const statement = db.prepareOnce(text)
  if (!isBlank(text.slice(statement.sourceSQL.length)))
    throw new Refusal(sqlRefused(text, 'it is more than one statement'))
  // To `node:sqlite` only a bare `?` has a position; `$1` and `?1` are bound by name.
  const execute = () => {
    if (numbered.size === 0) statement.run(...fit)
    else statement.run(Object.fromEntries([...numbered].map(([name, no]) => [name, fit[no - 1] as SQLInputValue])))
  }
  if (firstWord(text) === 'create') refuseTemporary(db, text, execute)
  else execute()
}

/**
 * A temporary object would stay on the connection, and one that is named like a table of the store would be used in its place.
 * The savepoint of the settlement removes it again.
 */
function refuseTemporary(db: Connection, text: string, execute: () => void): void {
  const count = () => db.get<{ objects: number }>('select count(*) as objects from sqlite_temp_schema')?.objects ?? 0
  const before = count()
  execute()
  if (count() > before) throw new Refusal(sqlRefused(text, changesTransaction))
}

function checked(text: string, values: readonly Bindable[]): readonly SQLInputValue[] {
  const unfit = values.find(isUnfit)
  if (unfit) throw new Refusal(sqlRefused(text, unfit.unfit))
  return values as readonly SQLInputValue[]
}

/** SQLite itself takes a value that is missing for null. */
function numberedParameters(text: string, values: number): ReadonlyMap<string, number> {
  const { bare, numbered, named } = parametersOf(text)
  if (named.length > 0 || (bare > 0 && numbered.size > 0)) {
    throw new Refusal(sqlRefused(text, 'its parameters are $1, $2, … or ?, not both, and have no names'))
  }
  const count = Math.max(bare, ...numbered.values())
  if (count === values) return numbered
  const wanted = count === 1 ? '1 value' : `${count} values`
  throw new Refusal(sqlRefused(text, `its parameters ask for ${wanted}, and it came with ${values}`))
}

/** The error may be one of the disk or the file: BUSY, NOMEM, READONLY, IOERR, CORRUPT, FULL, CANTOPEN, NOTADB. */
function isTheStores(error: unknown): boolean {
  return [5, 7, 8, 10, 11, 13, 14, 26].includes(primaryCode(error) ?? 0)
}

/** The message without its full stop, for use inside another sentence. */
export function sentenceOf(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).replace(/\.$/, '')
}

interface Unfit {
  readonly unfit: string
}

type Bindable = SQLInputValue | Unfit

function isUnfit(value: Bindable): value is Unfit {
  return typeof value === 'object' && value !== null && 'unfit' in value
}

/** The same effects, with values that can cross to another thread and be bound. Objects become JSON. */
export function withBindables(effects: EffectSet): EffectSet {
  if (effects.sql.length === 0) return effects
  return { ...effects, sql: effects.sql.map(({ text, values }) => ({ text, values: values.map(toBindable) })) }
}

function toBindable(value: unknown): Bindable {
  if (typeof value === 'string') return value
  if (typeof value === 'bigint')
    return BigInt.asIntN(64, value) === value ? value : { unfit: 'a bigint is too large: SQLite has 64 bits' }
  if (value === null) return null
  if (typeof value === 'boolean') return value ? 1 : 0
  if (typeof value === 'number') return Number.isNaN(value) ? { unfit: 'a value is NaN' } : value
  // A copy of its own bytes: most Buffers are views of a shared pool.
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength).slice()
  try {
    return value instanceof Date ? value.toISOString() : encodeJson(value, valueRule)
  } catch (error) {
    return { unfit: sentenceOf(error) }
  }
}

const valueRule = { what: 'value', maxBytes: Number.MAX_SAFE_INTEGER, tooLarge: 'INVALID_OPTION' } as const
