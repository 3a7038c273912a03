// A connection of better-sqlite3 with the interface of `node:sqlite`, for which the store is written. The libraries differ:
//
// - `run` refuses a statement that returns rows, and `get` refuses one that returns none. In `node:sqlite` both are allowed.
// - `?1` is a named parameter and has no position, so its values are bound by name, without the question mark.
// - While rows are iterated, the connection can run no other statement. So `iterate` reads all rows first. All statements of the
//   store that are iterated have a limit.
// - `name` is the path as it was given, relative to the working directory of that time. So SQLite is asked for the path.
// - An error has the result code of SQLite as a word. `primaryCode` reads both forms.
//
// Connections are recognised by their methods. The library is loaded only if it is the driver of the store: it is an optional
// peer dependency, which the application installs.

import { join } from 'node:path'
import type { SQLInputValue, SQLOutputValue } from 'node:sqlite'
import { HoldfastError } from '../../../errors.ts'
import { parametersOf } from '../statement.ts'
import type { SyncDatabase, SyncStatement } from './driver.ts'

/** The part of a connection that is used here. */
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

/** No name `createRequire` at the top level: the banner of a bundle that contains pg declares that name. */
function requireFrom(place: string): NodeJS.Require {
  return process.getBuiltinModule('node:module').createRequire(place)
}

/** Loads the library, from `file` if that is given. */
export function requireBetterSqlite3(file: string = findBetterSqlite3()): BetterSqlite3Class {
  try {
    return requireFrom(file)(file) as BetterSqlite3Class
  } catch (cause) {
    throw notLoaded(cause)
  }
}

/**
 * The file of the library, as seen from this module. A CommonJS bundle has no `import.meta.url`: there it is looked for from the
 * file of the program, then from the working directory.
 */
export function findBetterSqlite3(): string {
  const places = [import.meta.url as string | undefined, process.argv[1], join(process.cwd(), 'program.js')]
  const failures: unknown[] = []
  for (const place of places) {
    try {
      if (place !== undefined) return requireFrom(place).resolve('better-sqlite3')
    } catch (error) {
      failures.push(error)
    }
  }
  throw notLoaded(failures[0])
}

function notLoaded(cause: unknown): HoldfastError {
  return new HoldfastError(
    'INVALID_OPTION',
    "driver is 'better-sqlite3', and that package cannot be loaded: npm install better-sqlite3, or leave out driver.",
    { option: 'driver' },
    { cause },
  )
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
   * Uses the pragma itself, because a query on `pragma_database_list` starts a read. If a transaction has read and another
   * connection writes, its first write fails at once with SQLITE_BUSY: in 14 of 60 runs of a producer beside two waiting claims.
   */
  location(): string | null {
    const main = this.prepare('pragma database_list').all()[0] // the first row is `main`
    return (main?.['file'] as string | null | undefined) || null
  }

  close(): void {
    this.#db.close()
  }
}

class Statement implements SyncStatement {
  readonly sourceSQL: string
  readonly #statement: BetterSqlite3Statement
  /** The numbers of parameters like `?1`, in order; empty: parameters have positions. */
  readonly #numbers: readonly number[]

  constructor(statement: BetterSqlite3Statement, sql: string) {
    this.sourceSQL = sql.split('\0', 1)[0] as string // SQLite stops reading at a NUL
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

/** better-sqlite3 binds a Buffer, and refuses other views of bytes. */
function toBytes(value: unknown): unknown {
  if (!ArrayBuffer.isView(value) || Buffer.isBuffer(value)) return value
  return Buffer.from(value.buffer, value.byteOffset, value.byteLength)
}
