// What may go wrong between here and the server, and when it is worth another try.
//
// A connection that breaks leaves open whether the call has landed; whoever gives up after that says so. One that could not
// be made has carried nothing. What collided with somebody, or was cancelled, has been undone by the server.

import { setTimeout as sleep } from 'node:timers/promises'
import { HoldfastError, isHoldfastError } from '../../../errors.ts'
import { isDenied, lacksGrant } from '../schema/roles.ts'

const triesMax = 9
const firstPauseMs = 20
/** How long a call goes on trying while connections break, or cannot be made. */
const brokenMaxMs = 10_000
/** After so many broken sessions of one call that runs statements of the application, those statements are suspected. */
const effectBreaksMax = 3

/** Failures to get a connection: nothing was sent. */
const unsent = new WeakSet<object>()

/** Marks what `connecting` fails with as something that happened before anything was sent. */
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
 * A transaction with statements of the application failed for good, or its session ended several times. Either the store is
 * away, or the statements are to blame. `Database` finds out: it asks the server for something else.
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
  /** Called instead of throwing an error of a later try when an earlier try may have landed. */
  readonly ifMayHaveLanded?: ((error: unknown) => Promise<T>) | undefined
}

/** Tries again while the connection breaks or, unless in haste, transactions get in each other's way. */
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
      mayHaveLanded ||= isBroken(error) && !unsent.has(error as object)
      if (failFast && isCollision(error) && !mayHaveLanded) throw error
      if (isBroken(error)) brokenAt ??= performance.now()
      const isTooLong = brokenAt !== null && performance.now() - brokenAt > brokenMaxMs
      const ranEffects = afterEffects.has(error as object)
      if (ranEffects && isBroken(error)) effectBreaks += 1
      if (effectBreaks >= effectBreaksMax) throw new EffectsSuspected(error, mayHaveLanded)
      const isWorthATry = tries < triesMax && !isTooLong && (isBroken(error) || isCollision(error))
      if (!isWorthATry)
        throw ranEffects ? new EffectsSuspected(error, mayHaveLanded) : unavailable(error, mayHaveLanded)
      await sleep(Math.random() * firstPauseMs * 2 ** Math.min(tries, 6))
    }
  }
}

/**
 * A transaction in which statements of the application ran cannot be committed, and nothing of it has landed or will land:
 *
 * - the server refused the COMMIT; or
 * - a statement failed with an error that may be the server's (a full disk); or
 * - the transaction failed, again and again, while the server answered other calls.
 */
export class CommitRefused extends Error {
  readonly fault: StatementFault

  constructor(fault: StatementFault) {
    super(`The server refused to commit: ${fault.why}`)
    this.fault = fault
  }
}

/** Why statements of the application cannot land. */
export interface StatementFault {
  /** The statement to blame, where that is known. */
  readonly text: string | null
  /** What the server said. */
  readonly why: string
}

/** As opposed to the driver and the network. */
export function isFromServer(error: unknown): boolean {
  return /^[0-9A-Z]{5}$/.test(codeOf(error)) && (error as { severity?: unknown }).severity !== undefined
}

function codeOf(error: unknown): string {
  return String((error as { code?: unknown } | null)?.code ?? '')
}

/** What the server, the driver or the network said; anything else thrown in a transaction is its author's. */
export function isForeign(error: unknown): boolean {
  return codeOf(error) !== '' || isBroken(error)
}

function isOurs(error: unknown): boolean {
  return /^HF\d\d\d$/.test(codeOf(error))
}

export function hasLanded(error: unknown): boolean {
  return codeOf(error) === 'HF004'
}

/** What a call that has landed before fails with, where the server has said so in another way. */
export function landedBefore(): Error {
  return Object.assign(new Error('This call has landed before.'), { code: 'HF004' })
}

/** By a timeout of the session, or by hand. */
export function isCancelled(error: unknown): boolean {
  return codeOf(error) === '57014'
}

export function isDiskFull(error: unknown): boolean {
  return codeOf(error) === '53100'
}

/** A prepared statement that is not there, or is there already, or whose answer has changed its type. */
export function isUnprepared(error: unknown): boolean {
  const isStale = codeOf(error) === '0A000' && /cached plan/.test((error as Error).message)
  return isStale || ['26000', '42P05'].includes(codeOf(error))
}

/**
 * The server or the way to it is gone: the outcome is unknown. So is a server that only reads: a standby, or what was the
 * primary. PgBouncer says a protocol violation, fatally, where the server behind it is gone.
 */
export function isBroken(error: unknown): boolean {
  const code = codeOf(error)
  if (/^(57P0[1-5]|08(?!P01)...|53300|25P0[34]|25006)$|^E[A-Z_]+$/.test(code)) return true
  if (code === '08P01') return (error as { severity?: unknown }).severity === 'FATAL'
  const message = error instanceof Error ? error.message : ''
  return code === '' && /connection|timeout|terminat|not queryable/i.test(message)
}

/**
 * Deadlock, serialization failure, lock timeout, a statement that was cancelled: nothing landed. So is a finished job that was on its way into the partition
 * for the rest when the one it belongs to was made.
 */
export function isCollision(error: unknown): boolean {
  const code = codeOf(error)
  return ['40001', '40P01', '55P03', '57014'].includes(code) || (code === '23514' && tableOf(error) === 'ended_rest')
}

function tableOf(error: unknown): unknown {
  return (error as { table?: unknown }).table
}

/** The same where another part of the call has landed. */
export function afterAnotherPart(error: unknown): unknown {
  return isHoldfastError(error) && error.code === 'STORE_UNAVAILABLE' ? unavailable(error.cause, true) : error
}

export function suspectUnanswered({ cause, mayHaveLanded }: EffectsSuspected): HoldfastError {
  return unavailable(cause, mayHaveLanded)
}

/** A publication covers a table whose rows the server could not name in it; said whatever the server's language. */
function isPublishedInVain(error: unknown): boolean {
  return (error as { routine?: unknown } | null)?.routine === 'CheckCmdReplicaIdentity'
}

/**
 * The server is there and answers, and refuses to change a table. The fact `refuses` tells a worker that other answers do not
 * mean that it is over.
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
  // Where a host has several addresses, what was wrong with each of them is inside.
  const said = cause instanceof AggregateError ? cause.errors[0] : cause
  const message = said instanceof Error ? said.message : String(said)
  const outcome = mayHaveLanded
    ? 'The connection broke while the call was under way: it was carried out or not, and nobody was told.'
    : 'Nothing was carried out.'
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `The PostgreSQL store could not be used: ${message}. Check that the server runs and can be reached. ${outcome}`,
    { code: codeOf(cause), mayHaveLanded },
    { cause },
  )
}
