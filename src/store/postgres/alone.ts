// What a call does when a transaction with statements of the application cannot be committed.
//
//   together   every request of the call in one transaction, each behind a savepoint
//      │ COMMIT refused, disk full, or the session ended several times while the server answers other calls: nothing landed,
//      │ and one of them is to blame
//      ▼
//   alone      each request in a transaction of its own; deferred constraints are checked inside its savepoint, so that a bad
//      │       statement is undone and answered there, and the rest of the transaction lands
//      │ the same again: by something that no savepoint undoes (a full NOTIFY queue, ON COMMIT, a session that ends)
//      ▼
//   refused    the same request with its statements refused, for the reason that the server gave
//
// Where the store itself is in trouble, as with a disk that is full for everybody, the last step fails, too, and nothing is
// blamed on the job.
//
// So a bad statement costs its own job one attempt, and its neighbours nothing. A crash between two of these transactions
// leaves some requests landed and some not, as a crash between two calls does.
//
// (Lost: to check deferred constraints behind every savepoint from the start. `set constraints all immediate` holds for the rest
// of the transaction, also for the statements of the next job, and `set constraints all deferred` would defer constraints
// that are initially immediate. Undone to an inner savepoint it would check everything before it again: with n jobs n² checks.
// And each job would cost one more round trip where nothing is wrong.)

import { afterAnotherPart, CommitRefused, type StatementFault } from './connection/failures.ts'

/** How the statements of the application are treated in a transaction. */
export interface Care {
  /** Nothing else is in this transaction: deferred constraints are checked before it ends. */
  readonly isAlone: boolean
  /** Statements are refused, for this reason. */
  readonly refusal: StatementFault | null
}

export const together: Care = { isAlone: false, refusal: null }

/** Makes one request of a call that was refused as a whole. */
export async function alone<T>(transact: (care: Care) => Promise<T>): Promise<T> {
  try {
    return await transact({ isAlone: true, refusal: null })
  } catch (error) {
    if (!(error instanceof CommitRefused)) throw error
    return transact({ isAlone: true, refusal: error.fault })
  }
}

/** Makes a call that is one request: together with nothing, and then alone. */
export async function orAlone<T>(transact: (care: Care) => Promise<T>): Promise<T> {
  try {
    return await transact(together)
  } catch (error) {
    if (!(error instanceof CommitRefused)) throw error
    return alone(transact)
  }
}

/** Makes the requests of a call, together if the server commits that, else each alone. */
export async function eachAlone<R, A>(
  requests: readonly R[],
  transact: (requests: readonly R[], care: Care) => Promise<A[]>,
): Promise<A[]> {
  try {
    return await transact(requests, together)
  } catch (error) {
    if (!(error instanceof CommitRefused)) throw error
  }
  const answers: A[] = []
  for (const request of requests)
    answers.push(
      ...(await afterOthers(
        answers,
        alone((care) => transact([request], care)),
      )),
    )
  return answers
}

/** One that fails after others have landed must not say that nothing was carried out. */
export async function afterOthers<T>(landed: readonly unknown[], next: Promise<T>): Promise<T> {
  try {
    return await next
  } catch (error) {
    throw landed.length > 0 ? afterAnotherPart(error) : error
  }
}
