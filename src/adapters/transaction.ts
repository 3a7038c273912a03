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
   * On SQLite: the connection that has the transaction, which the statements of an enqueue run on without a pause between them.
   * A function, where the library tells only later.
   */
  readonly connection?: object | (() => Promise<object>)
}

/** How the library of an adapter is asked for the connection; null: there is nothing to ask. */
export function connectionLater(tx: unknown): (() => Promise<object>) | null {
  const isAdapters = hasMethod(tx, 'query') && hasMethod(tx, 'connection')
  return isAdapters ? (memberOf(tx, 'connection') as () => Promise<object>) : null
}

/** The connection of an adapter's transaction; what no adapter made is taken for the connection itself. */
export function connectionOf(tx: unknown): unknown {
  const isAdapters = hasMethod(tx, 'query') && typeof memberOf(tx, 'connection') === 'object'
  return isAdapters ? memberOf(tx, 'connection') : tx
}

/** A connection of a synchronous SQLite library: `node:sqlite` or better-sqlite3. */
export function isSyncConnection(value: unknown): value is object {
  const state = memberOf(value, 'isTransaction') ?? memberOf(value, 'inTransaction')
  return typeof state === 'boolean' && hasMethod(value, 'prepare') && hasMethod(value, 'exec')
}

/** What to do where the library does not give the connection of its transaction. */
export function connectionUnknown(adapter: string, advice: string): HoldfastError {
  const message = `On SQLite, ${adapter} needs the connection of the transaction, and this driver does not give it: ${advice}`
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
