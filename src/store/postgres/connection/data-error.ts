// Which errors of the server refuse one request, and which concern every request alike.
//
// A request that is refused is divided from the others of its call, and fails alone (`refused-values.ts`). In a worker it costs
// its job an attempt. So an error that would meet every other request as well must not count as a refusal: it stays
// STORE_UNAVAILABLE, and the call is made again.
//
// ALWAYS THE STORE. The call may succeed later as it is, also if a trigger raises the error:
//
//   08         the connection
//   25         the state of the transaction: read-only (25006), ended by a timeout (25P03, 25P04)
//   40         a deadlock, a serialization failure
//   53         a full disk, no memory, too many connections
//   57, 58     a shutdown, a cancelled statement; an error of the operating system
//   72, F0, XX a snapshot that is too old, a bad configuration file, a damaged table or index
//   55P03      a lock that is not free; and every other collision (`isCollision`)
//
// THE STATEMENT. The server refuses it whatever its values are, unless the code of a trigger raises the error:
//
//   0A         a plan or a feature that does not fit; a cached plan after a migration
//   0P, 28     the role
//   26, 34, 3B a prepared statement, a portal or a savepoint that is gone, as behind a pooler
//   3D, 3F, 42 a function, table, column or schema that is missing or has changed; a right that was not granted (42501)
//   55         a table in use, or in a publication without a replica identity
//   HV         a foreign server behind a trigger
//
// THE REQUEST. Everything else:
//
//   22, 23     a value that does not fit its column, a constraint
//   44, 42501  a row that a view's check option or row security refuses
//   54         a row that is too large for an index
//   P0         an exception or an assertion of a trigger
//   any other  a code that the application made up ('APP01')
//
// An error after a broken connection is no refusal either: the same call may have been committed before.

import { type HoldfastError, isHoldfastError } from '../../../errors.ts'
import { isDenied, isRaised } from '../schema/roles.ts'
import { isBroken, isCollision, isFromServer } from './failures.ts'

const ofTheStore = /^(08|25|40|53|57|58|72|F0|XX)/
const ofTheStatement = /^(0A|0P|26|28|34|3B|3D|3F|42|55|HV)/

/**
 * The server refused a request because of its values. It has undone the call, and would refuse it again. A statement of the
 * application that fails so is answered inside its savepoint, and never gets here.
 */
export function isDataError(error: unknown): error is HoldfastError {
  if (!isHoldfastError(error, 'STORE_UNAVAILABLE') || error.facts['mayHaveLanded'] === true) return false
  return isFromServer(error.cause) && refusesValues(error.cause as ServerError)
}

/** An error that came from the server. */
export type ServerError = Error & { readonly code: string }

export function refusesValues(error: ServerError): boolean {
  const { code } = error
  if (ofTheStore.test(code) || isBroken(error) || isCollision(error)) return false
  if (code === '42501') return !isDenied(error)
  return isRaised(error) || !ofTheStatement.test(code)
}
