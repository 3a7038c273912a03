// What every adapter gives, and what it says to something it is not for. An adapter knows its library by shape alone: none
// is imported, so none has to be installed, and versions that keep the shape keep working.

import { HoldfastError } from '../errors.ts'
import { show } from '../runtime/duration.ts'

/** The rows, or a result that has them, as the library answers. */
export type Rows = { readonly rows: readonly unknown[] } | readonly unknown[]

/** A transaction of yours, as `tx` of an enqueue takes it. */
export interface CallerTransaction {
  query(text: string, values: unknown[]): PromiseLike<Rows>
}

export function hasMethod(value: unknown, name: string): boolean {
  return typeof memberOf(value, name) === 'function'
}

export function memberOf(value: unknown, name: string): unknown {
  const hasMembers = (typeof value === 'object' && value !== null) || typeof value === 'function'
  return hasMembers ? (value as Record<string, unknown>)[name] : undefined
}

/** What is enqueued outside of a transaction stays when that is rolled back, so a connection will not do for one. */
export function notItsTransaction(adapter: string, wanted: string, got: unknown): HoldfastError {
  return new HoldfastError('INVALID_OPTION', `${adapter} takes ${wanted}; got ${show(got)} that is none.`, {
    option: 'tx',
    adapter,
  })
}
