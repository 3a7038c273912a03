// A connection of better-sqlite3, in the shapes of `node:sqlite` that the store is written for. What differs by necessity:
//
// - `run` refuses a statement that returns rows, and `get` one that returns none; in `node:sqlite` each takes both.
// - `?1` has a name there and no position, so its values are bound by name. A name is bound without its first character.
// - While rows are iterated, the connection runs nothing else. So `iterate` reads all rows first; its statements have a limit.
// - The path of an open file is asked of SQLite: `name` is the path as it was given, in the working directory of that time.
// - An error has SQLite's code as a word; `primaryCode` reads both forms.
//
// The library is known by its shape, and loaded only where it is the store's driver. It is no dependency of ours: an application
// that uses it has it installed.

import { createRequire } from 'node:module'
import type { SQLInputValue, SQLOutputValue } from 'node:sqlite'
import { HoldfastError } from '../../../errors.ts'
import { parametersOf } from '../statement.ts'
import type { SyncDatabase, SyncStatement } from './driver.ts'

/** As far as it is used here. */
export interface BetterSqlite3Database {
  readonly open: boolean
  readonly inTransaction: boolean
  prepare(sql: string): BetterSqlite3Statement
  exec(sql: string): unknown
  close(): unknown
}

interface BetterSqlite3Statement {
  readonly reader: boolean
  run(...values: unknown[]): { readonly changes: number }
  get(...values: unknown[]): unknown
  all(...values: unknown[]): unknown[]
  raw(enabled: boolean): unknown
  safeIntegers(enabled: boolean): unknown
}

export type BetterSqlite3Class = new (
  path: string,
  options: { readonly readonly: boolean; readonly timeout: number },
) => BetterSqlite3Database

export function requireBetterSqlite3(): BetterSqlite3Class {
  try {
    return createRequire(import.meta.url)('better-sqlite3') as BetterSqlite3Class
  } catch (cause) {
    throw new HoldfastError(
      'INVALID_OPTION',
      "driver is 'better-sqlite3', and that package cannot be loaded: npm install better-sqlite3, or leave out driver.",
      { option: 'driver' },
      { cause },
    )
  }
}

export function isBetterSqlite3(value: unknown): value is BetterSqlite3Database {
  if (typeof value !== 'object' || value === null) return false
  const { open, inTransaction, prepare, exec } = value as Partial<Record<keyof BetterSqlite3Database, unknown>>
  const hasState = typeof open === 'boolean' && typeof inTransaction === 'boolean'
  return hasState && typeof prepare === 'function' && typeof exec === 'function'
}

export class BetterSqlite3 implements SyncDatabase {
  readonly #db: BetterSqlite3Database

  constructor(db: BetterSqlite3Database) {
    this.#db = db
  }

  get isOpen(): boolean {
    return this.#db.open
  }

  get isTransaction(): boolean {
    return this.#db.inTransaction
  }

  prepare(sql: string): SyncStatement {
    return new Statement(this.#db.prepare(sql), sql)
  }

  exec(sql: string): void {
    this.#db.exec(sql)
  }

  /**
   * By the pragma itself. Its table, `pragma_database_list`, would begin to read. A transaction that has read does not wait while
   * another connection writes: SQLITE_BUSY at once, in 14 of 60 runs of a producer beside two waiting claims.
   */
  location(): string | null {
    const main = this.prepare('pragma database_list').all()[0] // the first is `main`
    return (main?.['file'] as string | null | undefined) || null
  }

  close(): void {
    this.#db.close()
  }
}

class Statement implements SyncStatement {
  readonly sourceSQL: string
  readonly #statement: BetterSqlite3Statement
  /** The numbers of `?1`, in order; empty: parameters have positions. */
  readonly #numbers: readonly number[]

  constructor(statement: BetterSqlite3Statement, sql: string) {
    this.sourceSQL = sql.split('\0', 1)[0] as string // where SQLite stops to read
    this.#statement = statement
    this.#numbers = [...parametersOf(sql).numbered.values()]
    if (statement.reader) statement.safeIntegers(false)
  }

  run(...values: SQLInputValue[] | [Record<string, SQLInputValue>]): { readonly changes: number } {
    if (!this.#statement.reader) return this.#statement.run(...this.#bound(values))
    this.#statement.all(...this.#bound(values))
    return { changes: 0 }
  }

  get(...values: SQLInputValue[]): Record<string, SQLOutputValue> | undefined {
    return this.#statement.get(...this.#bound(values)) as Record<string, SQLOutputValue> | undefined
  }

  all(...values: SQLInputValue[]): Record<string, SQLOutputValue>[] {
    return this.#statement.all(...this.#bound(values)) as Record<string, SQLOutputValue>[]
  }

  iterate(...values: SQLInputValue[]): Iterable<Record<string, SQLOutputValue>> {
    return this.all(...values)
  }

  setReadBigInts(enabled: boolean): void {
    if (this.#statement.reader) this.#statement.safeIntegers(enabled)
  }

  setReturnArrays(enabled: boolean): void {
    if (this.#statement.reader) this.#statement.raw(enabled)
  }

  #bound(values: SQLInputValue[] | [Record<string, SQLInputValue>]): unknown[] {
    if (this.#numbers.length === 0) return values.map(toBytes)
    const [first] = values
    const named =
      typeof first === 'object' && first !== null && !ArrayBuffer.isView(first)
        ? Object.entries(first).map(([name, value]) => [name.slice(1), value] as const)
        : this.#numbers.map((no) => [`${no}`, values[no - 1]] as const)
    return [Object.fromEntries(named.map(([name, value]) => [name, toBytes(value)]))]
  }
}

/** It takes a Buffer, and no other view of bytes. */
function toBytes(value: unknown): unknown {
  if (!ArrayBuffer.isView(value) || Buffer.isBuffer(value)) return value
  return Buffer.from(value.buffer, value.byteOffset, value.byteLength)
}
