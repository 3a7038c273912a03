// Failures of calls to the server, and which of them are tried again.
//
// - If a connection breaks, the call may have been committed or not. If the call is then given up, its error says so.
// - If a connection could not be made, nothing was sent.
// - If a statement collided with another transaction, or was cancelled, the server has undone it.

import { setTimeout as sleep } from 'node:timers/promises'
import { HoldfastError, isHoldfastError } from '../../../errors.ts'
import { isDenied, lacksGrant } from '../schema/roles.ts'

const triesMax = 9
const firstPauseMs = 20
/** How long a call is tried again while connections break, or cannot be made. */
const brokenMaxMs = 10_000
/** After so many broken sessions of one call that runs statements of the application, those statements may be the cause. */
const effectBreaksMax = 3

/** Failures to get a connection: nothing was sent. */
const unsent = new WeakSet<object>()

/** Marks the error of `connecting` as one that happened before anything was sent. */
export async function beforeSending<T>(connecting: Promise<T>): Promise<T> {
  try {
    return await connecting
  } catch (error) {
    if (typeof error === 'object' && error !== null) unsent.add(error)
    throw error
  }
}

/** Failures of transactions in which statements of the application had run. */
const afterEffects = new WeakMap<object, StatementFault>()

/** Marks an error of a transaction in which statements of the application had run. */
export function markAfterEffects(error: unknown, fault: StatementFault): void {
  if (typeof error === 'object' && error !== null) afterEffects.set(error, fault)
}

/**
 * A transaction with statements of the application failed for good, or its session ended several times. Either the server is
 * away, or the statements are the cause. `Database` finds out: it makes another call to the server.
 */
export class EffectsSuspected extends Error {
  readonly mayHaveLanded: boolean
  readonly fault: StatementFault

  constructor(cause: unknown, mayHaveLanded: boolean) {
    super('A transaction with statements of the application failed.', { cause })
    this.mayHaveLanded = mayHaveLanded
    this.fault = afterEffects.get(cause as object) ?? { text: null, why: (cause as Error).message }
  }
}

export interface RetryOptions<T> {
  readonly failFast?: boolean
  /** Called instead of throwing the error of a later try, if an earlier try may have been committed. */
  readonly ifMayHaveLanded?: ((error: unknown) => Promise<T>) | undefined
}

/** Tries again while the connection breaks or, unless `failFast`, transactions collide. */
export async function withRetry<T>(
  action: () => Promise<T>,
  { failFast = false, ifMayHaveLanded }: RetryOptions<T> = {},
): Promise<T> {
  let mayHaveLanded = false
  let brokenAt: number | null = null
  let effectBreaks = 0
  for (let tries = 1; ; tries++) {
    try {
      return await action()
    } catch (error) {
      if (error instanceof CommitRefused || isHoldfastError(error) || isOurs(error) || !isForeign(error)) {
        if (!mayHaveLanded || ifMayHaveLanded === undefined) throw error
        return ifMayHaveLanded(error)
      }
      mayHaveLanded ||= isBroken(error) && !unsent.has(error as object) && !isRefusedUnrun(error)
      if (failFast && isCollision(error) && !mayHaveLanded) throw error
      if (isBroken(error)) brokenAt ??= performance.now()
      const isTooLong = brokenAt !== null && performance.now() - brokenAt > brokenMaxMs
      const ranEffects = afterEffects.has(error as object)
      if (ranEffects && isBroken(error)) effectBreaks += 1
      if (effectBreaks >= effectBreaksMax) throw new EffectsSuspected(error, mayHaveLanded)
      const isWorthATry = tries < triesMax && !isTooLong && (isBroken(error) || isCollision(error))
      if (!isWorthATry)
        throw ranEffects ? new EffectsSuspected(error, mayHaveLanded) : unavailable(error, mayHaveLanded)
      await pauseAfter(tries)
    }
  }
}

/** The pause before a call is made again, after so many tries. It is random, so that two calls do not collide again. */
export async function pauseAfter(tries: number): Promise<void> {
  await sleep(Math.random() * firstPauseMs * 2 ** Math.min(tries, 6))
}

/**
 * A transaction in which statements of the application ran was not committed and never will be, because
 *
 * - the server refused the COMMIT; or
 * - a statement failed with an error that may be the server's (a full disk); or
 * - a statement collided with another transaction (`collided`), so that the same transaction may be committed another time; or
 * - the transaction failed, again and again, while the server answered other calls.
 */
export class CommitRefused extends Error {
  readonly fault: StatementFault
  readonly collided: boolean

  constructor(fault: StatementFault, { collided = false } = {}) {
    super(`The server refused to commit: ${fault.why}`)
    this.fault = fault
    this.collided = collided
  }
}

/** Why a transaction with statements of the application cannot be committed. */
export interface StatementFault {
  /** The statement that is the cause, if that is known. */
  readonly text: string | null
  /** What the server said. */
  readonly why: string
}

/** An error of the server, not of the driver or the network. */
export function isFromServer(error: unknown): boolean {
  return /^[0-9A-Z]{5}$/.test(codeOf(error)) && (error as { severity?: unknown }).severity !== undefined
}

function codeOf(error: unknown): string {
  return String((error as { code?: unknown } | null)?.code ?? '')
}

/** An error of the server, the driver or the network. Any other error in a transaction comes from the code that runs in it. */
export function isForeign(error: unknown): boolean {
  return codeOf(error) !== '' || isBroken(error)
}

function isOurs(error: unknown): boolean {
  return /^HF\d\d\d$/.test(codeOf(error))
}

/** HF004: an earlier send of the same call has been committed. */
export function isAlreadyCommitted(error: unknown): boolean {
  return codeOf(error) === 'HF004'
}

/** HF012: the server does not have a call that was committed before. It is another server now, one that took over. */
export function isNotStored(error: unknown): boolean {
  return codeOf(error) === 'HF012'
}

/** The same error as HF004, for a server that has answered so in another way. */
export function alreadyCommitted(): Error {
  return Object.assign(new Error('This call was committed before.'), { code: 'HF004' })
}

/** Cancelled by a timeout of the session, or by an operator. */
export function isCancelled(error: unknown): boolean {
  return codeOf(error) === '57014'
}

/** A lock was not free within the transaction's `lock_timeout`, or at once (`nowait`). */
export function isLockTimeout(error: unknown): boolean {
  return codeOf(error) === '55P03'
}

/**
 * The wait for a lock was ended by `lock_timeout`. A statement with `nowait`, or one that raises this error, did not wait. The
 * routine's name is the same in every language.
 */
export function isLockWaitEnded(error: unknown): boolean {
  return isLockTimeout(error) && (error as { routine?: unknown }).routine === 'ProcessInterrupts'
}

/** A lock was not free in time. Everything behind the savepoint is undone, and the transaction goes on. */
export class LockNotFree extends Error {
  constructor(cause: unknown) {
    super('A lock was not free in time.', { cause })
  }
}

/** The row of a job is locked, and nothing waited for it. The transaction is to be made again. */
export class RowLocked extends LockNotFree {}

/** A call that does not wait was undone, because another transaction has what it needs. */
export function isBusy(error: unknown): boolean {
  return isCollision(error) || error instanceof LockNotFree
}

/** The server ended a transaction in favour of another one: a deadlock, or a serialization failure. */
export function isDeadlock(error: unknown): boolean {
  return ['40P01', '40001'].includes(codeOf(error))
}

export function isDiskFull(error: unknown): boolean {
  return codeOf(error) === '53100'
}

/** The server answers, and refuses the call, whatever the reason. */
export function isServerRefusal(error: unknown): error is HoldfastError {
  return isHoldfastError(error, 'STORE_UNAVAILABLE') && isFromServer(error.cause) && !isBroken(error.cause)
}

/** A prepared statement does not exist, exists already, or its result has changed its type. */
export function isUnprepared(error: unknown): boolean {
  const isStale = codeOf(error) === '0A000' && /cached plan/.test((error as Error).message)
  return isStale || ['26000', '42P05'].includes(codeOf(error))
}

/**
 * The server or the network is gone: the outcome is unknown. A server that is read-only counts too: it is a standby, or was the
 * primary. If the server behind PgBouncer is gone, PgBouncer answers with a fatal protocol violation.
 */
export function isBroken(error: unknown): boolean {
  const code = codeOf(error)
  if (/^(57P0[1-5]|08(?!P01)...|53300|25P0[34]|25006)$/.test(code)) return true
  if (/^E[A-Z_]+$/.test(code)) return !isFromServer(error) // ECONNRESET, not a code that a trigger raises
  if (code === '08P01') return (error as { severity?: unknown }).severity === 'FATAL'
  const message = error instanceof Error ? error.message : ''
  return code === '' && /connection|timeout|terminat|not queryable/i.test(message)
}

/**
 * The server or PgBouncer refused to run the statement, so nothing was committed: the server is read-only (a standby, or
 * `default_transaction_read_only`), or PgBouncer is in statement mode, where it refuses every transaction.
 */
function isRefusedUnrun(error: unknown): boolean {
  const isStatementMode = /statement pooling mode/.test((error as { message?: string } | null)?.message ?? '')
  return codeOf(error) === '25006' || (codeOf(error) === '08P01' && isStatementMode)
}

/**
 * A deadlock, a serialization failure, a lock timeout, or a statement that was cancelled: nothing was committed. Also a
 * finished job that was being inserted into `ended_rest` while its own partition was made. That error names no constraint. A
 * check constraint of an operator has a name, and would refuse the row again.
 */
export function isCollision(error: unknown): boolean {
  const code = codeOf(error)
  return isDeadlock(error) || ['55P03', '57014'].includes(code) || (code === '23514' && isMadePartition(error))
}

/** The bounds of a partition have no name. A constraint of an operator has one. */
function isMadePartition(error: unknown): boolean {
  const { table, constraint } = error as { readonly table?: unknown; readonly constraint?: unknown }
  return table === 'ended_rest' && constraint === undefined
}

/** The error of one part of a call, after another part was carried out. */
export function afterAnotherPart(error: unknown): unknown {
  return isHoldfastError(error) && error.code === 'STORE_UNAVAILABLE' ? unavailable(error.cause, true) : error
}

/** The error of a call that was committed, whose answer could not be read afterwards. */
export function answerUnread(error: unknown): unknown {
  return isNotStored(error) ? unavailable(error, true) : afterAnotherPart(error)
}

export function suspectUnanswered({ cause, mayHaveLanded }: EffectsSuspected): HoldfastError {
  return unavailable(cause, mayHaveLanded)
}

/** Commits wait for a synchronous standby, while the server answers everything else. The waiting calls have not failed. */
export function standbyAway(facts: { readonly standbys: string; readonly waitedMs: number }): HoldfastError {
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `PostgreSQL keeps commits waiting for a synchronous standby (synchronous_standby_names = '${facts.standbys}'): ${standbyFix} Calls that wait go on by themselves then.`,
    { ...facts, mayHaveLanded: true, refuses: 'commits' },
  )
}

export const standbyFix =
  'Bring the standby back, or take it out of synchronous_standby_names and reload the server (select pg_reload_conf()). Do not cancel what waits: it is committed on this server, and on no standby.'

/** Every connection of the store is used by calls that wait for a standby, so this one was not sent. */
export function behindStalled(stall: HoldfastError): HoldfastError {
  const sentence = `${stall.message} All connections of the store wait so. Nothing was carried out.`
  return new HoldfastError(stall.code, sentence, { ...stall.facts, mayHaveLanded: false }, { cause: stall })
}

/** A publication covers a table without a usable replica identity. The routine's name is the same in every language. */
function isPublishedInVain(error: unknown): boolean {
  return (error as { routine?: unknown } | null)?.routine === 'CheckCmdReplicaIdentity'
}

/**
 * The server answers, and refuses to change a table. By the fact `refuses`, a worker knows that answers to other calls do not
 * mean that this has ended.
 */
function publishedInVain(cause: unknown): HoldfastError {
  const { message, detail } = cause as { readonly message: string; readonly detail?: string }
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `PostgreSQL refuses to change a table of the store that a publication covers: ${message}${detail ? ` (${detail})` : ''}. Nothing was carried out. Run "holdfast doctor": it names the table and the publication; --fix, as the owner of the schema, gives the table its replica identity.`,
    { code: codeOf(cause), mayHaveLanded: false, refuses: 'writes' },
    { cause },
  )
}

function unavailable(cause: unknown, mayHaveLanded: boolean): HoldfastError {
  if (isDenied(cause)) return lacksGrant(cause)
  if (isPublishedInVain(cause)) return publishedInVain(cause)
  // If a host has several addresses, the error contains one error for each of them.
  const said = cause instanceof AggregateError ? cause.errors[0] : cause
  const message = said instanceof Error ? said.message : String(said)
  const outcome = mayHaveLanded
    ? 'The connection broke while the call was under way: it may have been carried out or not.'
    : 'Nothing was carried out.'
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `The PostgreSQL store could not be used: ${message}. Check that the server runs and can be reached. ${outcome}`,
    { code: codeOf(cause), mayHaveLanded },
    { cause },
  )
}
