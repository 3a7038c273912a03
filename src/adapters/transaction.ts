// What every adapter returns, and its error for an object that it does not support. An adapter recognises its library by the
// shape of objects alone. No library is imported, so none has to be installed, and versions that keep the shape keep working.

import { HoldfastError } from '../errors.ts'
import { show } from '../runtime/duration.ts'

/** The rows, or a result with rows, as the library returns it. */
export type Rows = { readonly rows: readonly unknown[] } | readonly unknown[]

/** Your transaction, in the form that the `tx` of an enqueue takes. */
export interface CallerTransaction {
  query(text: string, values: unknown[]): PromiseLike<Rows>
  /**
   * On SQLite: the connection of the transaction. The statements of an enqueue run on it, with no other statement between them.
   * It is a function if the library returns its connection asynchronously.
   */
  readonly connection?: object | (() => Promise<object>)
}

/** The function that asks an adapter's library for its connection; null: the connection is known, or `tx` is of no adapter. */
export function connectionLater(tx: unknown): (() => Promise<object>) | null {
  const isAdapters = hasMethod(tx, 'query') && hasMethod(tx, 'connection')
  return isAdapters ? (memberOf(tx, 'connection') as () => Promise<object>) : null
}

/** The connection of an adapter's transaction. A `tx` that was not made by an adapter is taken as the connection itself. */
export function connectionOf(tx: unknown): unknown {
  const isAdapters = hasMethod(tx, 'query') && typeof memberOf(tx, 'connection') === 'object'
  return isAdapters ? memberOf(tx, 'connection') : tx
}

/** A connection of a synchronous SQLite library: `node:sqlite` or better-sqlite3. */
export function isSyncConnection(value: unknown): value is object {
  const state = memberOf(value, 'isTransaction') ?? memberOf(value, 'inTransaction')
  return typeof state === 'boolean' && hasMethod(value, 'prepare') && hasMethod(value, 'exec')
}

/** For a library whose driver does not expose the connection of its transaction. */
export function connectionUnknown(adapter: string, advice: string): HoldfastError {
  const message = `On SQLite, ${adapter} needs the connection of the transaction, and this driver does not expose it: ${advice}`
  return new HoldfastError('INVALID_OPTION', message, { option: 'tx', adapter })
}

export function hasMethod(value: unknown, name: string): boolean {
  return typeof memberOf(value, name) === 'function'
}

export function memberOf(value: unknown, name: string): unknown {
  const hasMembers = (typeof value === 'object' && value !== null) || typeof value === 'function'
  return hasMembers ? (value as Record<string, unknown>)[name] : undefined
}

/** A connection is refused: a job that is enqueued outside of the transaction would stay after its rollback. */
export function notItsTransaction(adapter: string, wanted: string, got: unknown): HoldfastError {
  return new HoldfastError('INVALID_OPTION', `${adapter} takes ${wanted}; got ${show(got)} that is not one.`, {
    option: 'tx',
    adapter,
  })
}
