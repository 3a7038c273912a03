// The SQLite library that a store and its callers use: `node:sqlite`, or better-sqlite3.
//
// ONE LIBRARY A PROCESS. All connections of a process to a file must use the same library. SQLite locks a file with POSIX locks,
// which belong to the process: a second library in the process is granted every lock that the first one holds. Measured: while
// `node:sqlite` had a write transaction open, better-sqlite3 began another one on the same file and committed it, and its row was
// lost. (sqlite.org/howtocorrupt.html, "Multiple copies of SQLite linked into the same application".)
//
// So if an application opens the file with better-sqlite3, mostly through an ORM, the store must use better-sqlite3 too. A
// caller's connection of another library is refused.
//
// Both libraries are synchronous. The store is written for the interface of `node:sqlite`; `better-sqlite3.ts` adapts the other.

import type { SQLInputValue, SQLOutputValue } from 'node:sqlite'
import { HoldfastError } from '../../../errors.ts'
import { show } from '../../../runtime/duration.ts'
import { host } from '../../../runtime/host.ts'
import { BetterSqlite3, type BetterSqlite3Class, isBetterSqlite3, requireBetterSqlite3 } from './better-sqlite3.ts'

export type SqliteDriver = 'node:sqlite' | 'better-sqlite3'

/** The part of a connection that the store uses, with the names of `node:sqlite`. */
export interface SyncDatabase {
  readonly isOpen: boolean
  readonly isTransaction: boolean
  prepare(sql: string): SyncStatement
  exec(sql: string): void
  /** The file; null: in memory. */
  location(): string | null
  close(): void
}

export interface SyncStatement {
  readonly sourceSQL: string
  run(...values: SQLInputValue[]): { readonly changes: number | bigint }
  run(numbered: Record<string, SQLInputValue>): { readonly changes: number | bigint }
  get(...values: SQLInputValue[]): Record<string, SQLOutputValue> | undefined
  all(...values: SQLInputValue[]): Record<string, SQLOutputValue>[]
  iterate(...values: SQLInputValue[]): Iterable<Record<string, SQLOutputValue>>
  setReadBigInts(enabled: boolean): void
  setReturnArrays(enabled: boolean): void
}

export interface FileToOpen {
  readonly driver: SqliteDriver
  /** The file of better-sqlite3, if it is known: the store's thread in a bundle could not find it. */
  readonly library?: string | undefined
  readonly path: string
  readonly readOnly?: boolean
}

/** Opens a connection that fails at once where a lock is taken. */
export function openWith({ driver, library, path, readOnly = false }: FileToOpen): SyncDatabase {
  if (driver === 'better-sqlite3') {
    const Library: BetterSqlite3Class = requireBetterSqlite3(library)
    return new BetterSqlite3(new Library(path, { readonly: readOnly, timeout: 0 }))
  }
  const builtIn = nodeSqlite()
  if (!builtIn) throw noNodeSqlite()
  return new builtIn.DatabaseSync(path, { readOnly, timeout: 0 })
}

/** Undefined: this runtime does not have it. */
function nodeSqlite(): typeof import('node:sqlite') | undefined {
  return process.getBuiltinModule('node:sqlite') as typeof import('node:sqlite') | undefined
}

function noNodeSqlite(): HoldfastError {
  const message = `This ${host} has no node:sqlite. Use a newer version of it, or install better-sqlite3 and open sqlite({ path, driver: 'better-sqlite3' }).`
  return new HoldfastError('UNSUPPORTED', message, { option: 'driver', runtime: host })
}

/** The library of a caller's connection; null: the value is not a connection. */
export function driverOf(value: unknown): SqliteDriver | null {
  const builtIn = nodeSqlite()
  if (builtIn && value instanceof builtIn.DatabaseSync) return 'node:sqlite'
  return isBetterSqlite3(value) ? 'better-sqlite3' : null
}

export function checkDriver(driver: unknown): SqliteDriver {
  if (driver === 'better-sqlite3') requireBetterSqlite3()
  if (driver === 'node:sqlite' || driver === 'better-sqlite3') return driver
  throw new HoldfastError('INVALID_OPTION', `driver is 'node:sqlite' or 'better-sqlite3'; got ${show(driver)}.`, {
    option: 'driver',
  })
}
