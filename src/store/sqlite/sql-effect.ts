// Statements of the application's own, in the transaction that settles a job. One that fails is the job's failure and is
// undone to the savepoint of its settlement. Two kinds of failure undo more than that, and the engine makes the request
// again without them: a statement that rolls everything back (`insert or rollback`, `raise(rollback)`), and one that
// SQLite minds only at the commit (a deferred foreign key).
//
// A third kind may be the store's: a full disk, a damaged page, no memory. It may also be the statement's own: a full-text index
// that disagrees with its table has the result code of a damaged file. So the engine makes the request again without its
// statements. If that lands, they were to blame; if not, the store is in trouble, and nothing is blamed on the job.
//
// Values are made fit to be bound before they cross to the store's thread, where what cannot be cloned would fail the
// whole group. One that does not fit crosses as the reason why, and fails its own job there.

import type { SQLInputValue } from 'node:sqlite'
import { encodeJson } from '../../job/codec.ts'
import type { EffectSet, SqlEffect } from '../../job/record.ts'
import { changesTransaction, Refusal, sqlRefused } from '../refusals.ts'
import type { Connection } from './connection/connection.ts'
import { primaryCode } from './connection/database.ts'
import { firstWord, isBlank, parametersOf } from './statement.ts'
import type { SqliteTransaction } from './transaction.ts'

/** Why the statements of a request cannot land; `text` is the one to blame, where that is known. */
export interface SqlFault {
  readonly text: string | null
  readonly why: string
}

/** A statement of the application's rolled back the transaction that it was part of. */
export class EverythingUndone extends Error {
  readonly fault: SqlFault

  constructor(fault: SqlFault) {
    super(fault.why)
    this.fault = fault
  }
}

/** They would end the transaction that they are part of, or leave the connection different for who comes next. */
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
    if (!tx.bare.isInTransaction) throw new EverythingUndone({ text, why })
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
  if (numbered.size === 0) statement.run(...fit)
  else statement.run(Object.fromEntries([...numbered].map(([name, no]) => [name, fit[no - 1] as SQLInputValue])))
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
  throw new Refusal(sqlRefused(text, `its parameters ask for ${count} values, and it came with ${values}`))
}

/** The disk or the file may be in trouble, whichever statement met it: BUSY, NOMEM, READONLY, IOERR, CORRUPT, FULL, CANTOPEN, NOTADB. */
function isTheStores(error: unknown): boolean {
  return [5, 7, 8, 10, 11, 13, 14, 26].includes(primaryCode(error) ?? 0)
}

/** Without its full stop: it becomes part of another sentence. */
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

/** The same effects, whose values may cross to another thread, be kept as JSON where they were JSON, and be bound. */
export function withBindables(effects: EffectSet): EffectSet {
  if (effects.sql.length === 0) return effects
  return { ...effects, sql: effects.sql.map(({ text, values }) => ({ text, values: values.map(toBindable) })) }
}

function toBindable(value: unknown): Bindable {
  if (typeof value === 'string') return value
  if (typeof value === 'bigint')
    return BigInt.asIntN(64, value) === value ? value : { unfit: 'a bigint is too large: SQLite has 64 bits' }
  if (value === null || value === undefined) return null
  if (typeof value === 'boolean') return value ? 1 : 0
  if (typeof value === 'number') return Number.isNaN(value) ? { unfit: 'a value is NaN' } : value
  // Alone, without the pool that a Buffer is mostly a part of.
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength).slice()
  try {
    return value instanceof Date ? value.toISOString() : encodeJson(value, valueRule)
  } catch (error) {
    return { unfit: sentenceOf(error) }
  }
}

const valueRule = { what: 'value', maxBytes: Number.MAX_SAFE_INTEGER, tooLarge: 'INVALID_OPTION' } as const
