// What a call does when a transaction with statements of the application cannot be committed. It tries three steps:
//
//   shared     all requests of the call are in one transaction, each behind a savepoint
//      │ COMMIT is refused, the disk is full, or the session ended several times while the server answers other calls:
//      │ nothing was committed, and the statements of one request are the cause. Or a statement is the victim of a deadlock
//      │ (or of a serialization failure): nothing was committed, and the locks of the other requests may be the cause
//      ▼
//   own        each request is in a transaction of its own. Deferred constraints are checked inside its savepoint, so a bad
//      │       statement is undone and answered there, and the rest of the transaction commits. After a deadlock the whole
//      │       transaction is made again, up to five times in all
//      │ the same again, by something that no savepoint undoes (a full NOTIFY queue, ON COMMIT, a session that ends)
//      ▼
//   refused    the same request is made with its statements refused, for the reason that the server gave
//
// REJECTED: to undo the victim of a deadlock to its savepoint alone. The transaction keeps the locks of its other requests, so
// the same two transactions meet again. Two workers, whose 600 jobs each updated one row of 50, with a `deadlock_timeout` of 20
// ms: all were done after 12.4 s, and 3 attempts were lost; so, after 6.1 s, and none was.
//
// So a bad statement costs its own job one attempt, and the other jobs of the call nothing. If the store itself is in trouble,
// such as by a full disk, the last step fails too, and the failure is not counted against the job.
//
// A crash between two of these transactions leaves some requests carried out and some not, as a crash between two calls does.
//
// REJECTED: to check deferred constraints behind every savepoint from the start.
// - `set constraints all immediate` holds for the rest of the transaction, so also for the statements of the next job.
// - `set constraints all deferred` would also defer constraints that are initially immediate.
// - If it is undone to an inner savepoint, everything before it is checked again: n² checks for n jobs.
// - Each job would cost one more round trip even if nothing is wrong.

import { afterAnotherPart, CommitRefused, pauseAfter, type StatementFault } from './connection/failures.ts'

/** How the statements of the application are treated in a transaction. */
export interface StatementPolicy {
  /** No other request is in this transaction, so deferred constraints are checked before it ends. */
  readonly isOwnTransaction: boolean
  /** Not null: statements are refused, for this reason. */
  readonly refusal: StatementFault | null
  /** The transaction waits for locks for a moment only. A statement that waits longer is not refused: it is left for later. */
  readonly leavesBlocked?: boolean
}

export const sharedTransaction: StatementPolicy = { isOwnTransaction: false, refusal: null }

/** A transaction of one request whose statements collide each time is made so often. Then its statements are refused. */
const collisionsMax = 5

/** Makes one request of a call whose shared transaction was refused. */
export async function inOwnTransaction<T>(transact: (policy: StatementPolicy) => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await transact({ isOwnTransaction: true, refusal: null })
    } catch (error) {
      if (!(error instanceof CommitRefused)) throw error
      if (!error.collided || tries >= collisionsMax) return transact({ isOwnTransaction: true, refusal: error.fault })
    }
    await pauseAfter(tries)
  }
}

/** Makes a call that is one request. If its commit is refused, makes it again with deferred constraints checked first. */
export async function orInOwnTransaction<T>(transact: (policy: StatementPolicy) => Promise<T>): Promise<T> {
  try {
    return await transact(sharedTransaction)
  } catch (error) {
    if (!(error instanceof CommitRefused)) throw error
    return inOwnTransaction(transact)
  }
}

/** Makes the requests of a call in one transaction. If its commit is refused, makes each in a transaction of its own. */
export async function orEachInOwnTransaction<R, A>(
  requests: readonly R[],
  transact: (requests: readonly R[], policy: StatementPolicy) => Promise<A[]>,
): Promise<A[]> {
  try {
    return await transact(requests, sharedTransaction)
  } catch (error) {
    if (!(error instanceof CommitRefused)) throw error
  }
  const answers: A[] = []
  for (const request of requests)
    answers.push(
      ...(await afterOthers(
        answers,
        inOwnTransaction((policy) => transact([request], policy)),
      )),
    )
  return answers
}

/** If `next` fails after other requests were answered, its error must not say that nothing was carried out. */
export async function afterOthers<T>(answered: readonly unknown[], next: Promise<T>): Promise<T> {
  try {
    return await next
  } catch (error) {
    throw answered.length > 0 ? afterAnotherPart(error) : error
  }
}
