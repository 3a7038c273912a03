// What every adapter returns, and its error for an object that it does not support. An adapter recognises its library by the
// shape of objects alone. No library is imported, so none has to be installed, and versions that keep the shape keep working.

import { HoldfastError } from '../errors.ts'
import { show } from '../runtime/duration.ts'

/** The rows, or a result with rows, as the library returns it. */
export type Rows = { readonly rows: readonly unknown[] } | readonly unknown[]

/** Your transaction, in the form that the `tx` of an enqueue takes. */
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

/** A connection is refused: a job that is enqueued outside of the transaction would stay after its rollback. */
export function notItsTransaction(adapter: string, wanted: string, got: unknown): HoldfastError {
  return new HoldfastError('INVALID_OPTION', `${adapter} takes ${wanted}; got ${show(got)} that is not one.`, {
    option: 'tx',
    adapter,
  })
}
