// Connections, transactions, and what to do when they fail.
//
// A call whose connection broke may have landed or not. So every durable call carries a number of its own, a flush, that it
// records in the transaction; sent again under the same number it either lands now, or is told (HF004) that it has landed,
// and reads what was answered then. Where the caller gave the number it may do so itself, after this gave up: numbers are
// kept for an hour (`schema/functions/prune.ts`), one row a call, whatever it carried. Calls that write nothing durable are
// simply made again (`failures.ts`).
//
// The second send of a call may fail before it has looked at its flush: a queue was defined anew in between, say. The caller of
// `land` or `transact` then starts over, under another flush. So the flush of the failed call is withdrawn first: if the first
// send has landed, its answer counts; else it never will land (`schema/functions/flush.ts`). A flush that the caller gave stays
// the same when the caller starts over, and is not withdrawn.
//
// Timeouts that a role or a database sets are meant for its statements, not for a queue's: a transaction of ours lifts them
// for itself. A single statement cannot, so where one was cut short by them, all bring a transaction along from then on.
// Statements of the application, in a settlement, run with the timeouts that the session came with.
//
// A COMMIT that the server refuses. Deferred constraints and deferred triggers of the application's tables are checked by the
// COMMIT, behind every savepoint. Where the server answers COMMIT with an error and the session goes on, the transaction was
// rolled back: nothing has landed, and that is certain. A server that goes away instead ends the session, and then the fate of
// the transaction is unknown. So the session is asked to roll back: if it answers, the COMMIT was refused (`CommitRefused`).
// This is thrown only where statements of the application ran: without them a refused COMMIT is a failure like any other.
//
// A transaction with statements of the application that fails in another way. A statement may end its own session, or leave the
// session so that no statement of ours succeeds. From here that looks like a server that is away. So after a few tries the
// server is asked for something else:
//
//   - it does not answer: the store is away, nothing is blamed on the statements;
//   - it answers: the statements are to blame (`CommitRefused`), and `alone.ts` finds out which.
//
// A durable call whose session ended may still be committed by a server process that does not know yet that its client is gone.
// So what the server is asked for is to land the number of that call, with the answer "abandoned". The insert waits for that
// other transaction. If it had landed, the insert is refused and the kept answer is read. If not, the number is used up, and the
// call cannot land later. A crash behind the insert leaves nothing but this row; a call that is sent again under the number
// reads "abandoned", and goes on where this one ended. A light call needs none of this, because it may land twice.

import { createHash, randomUUID } from 'node:crypto'
import type { ClientBase, Pool, PoolClient } from 'pg'
import type { Refused } from '../../../errors.ts'
import { type Clock, systemClock } from '../../../runtime/clock.ts'
import { Refusal } from '../../refusals.ts'
import type { Schema } from '../schema/schema.ts'
import { type Leaves, Setters } from '../setters.ts'
import { call, type Row, type Statement, type Value } from './call.ts'
import { Connections } from './connections.ts'
import {
  alreadyCommitted,
  CommitRefused,
  EffectsSuspected,
  isAlreadyCommitted,
  isBroken,
  isCancelled,
  isFromServer,
  isUnprepared,
  markAfterEffects,
  type StatementFault,
  suspectUnanswered,
  withRetry,
} from './failures.ts'
import type { Purpose } from './reserve.ts'
import { ResponseWatchdog } from './response-watchdog.ts'

/**
 * A process that stops between two statements of a transaction (suspended, cut off, its event loop busy) holds its locks for
 * no longer: the server ends its connection, and it makes the call again when it gets to run.
 */
const idleMaxMs = 2_000

const liftTimeouts = 'set local statement_timeout = 0; set local lock_timeout = 0'
const restoreTimeouts = 'set local statement_timeout to default; set local lock_timeout to default'

export const beginOurs = `begin isolation level read committed; set local idle_in_transaction_session_timeout = ${idleMaxMs}; ${liftTimeouts}`

export interface DatabaseOptions {
  readonly schema: Schema
  readonly clock: Clock
  /** The pool is the store's alone. */
  readonly isOwn?: boolean
  /** How many connections of the pool may be in use at once. */
  readonly connections: number
  /** How long a call may go unanswered before it is looked whether the server is still there. */
  readonly answerMs: number
}

const sessionSettings = `select current_setting('default_transaction_isolation'), current_setting('statement_timeout'),
  current_setting('lock_timeout'), current_setting('transaction_timeout', true)`

/** What is known of the sessions of a pool. */
class Sessions {
  /** Even single statements bring a transaction along, because sessions start with settings that do not suit them. */
  wraps = false
  /** Sessions start with timeouts. */
  hasTimeouts = false
  begin = beginOurs
  prepares = true
  readonly names = new Map<string, string>()
}

export class Database {
  readonly schema: Schema
  readonly #connections: Connections
  readonly #clock: Clock
  readonly #isOwn: boolean
  readonly #setters: Setters
  readonly #watchdog: ResponseWatchdog
  readonly #sessions: Sessions
  readonly #pool: Pool
  readonly #options: DatabaseOptions
  readonly #purpose: Purpose

  constructor(
    pool: Pool,
    options: DatabaseOptions,
    of: { readonly db: Database; readonly purpose: Purpose } | null = null,
  ) {
    const { schema, clock, isOwn = false, connections, answerMs } = options
    this.schema = schema
    this.#clock = clock
    this.#isOwn = isOwn
    this.#pool = pool
    this.#options = options
    this.#connections = of ? of.db.#connections : new Connections({ pool, isOwn, most: connections })
    this.#watchdog = of ? of.db.#watchdog : new ResponseWatchdog(pool, answerMs)
    this.#sessions = of ? of.db.#sessions : new Sessions()
    this.#setters = of ? of.db.#setters : new Setters()
    this.#purpose = of?.purpose ?? 'any'
  }

  /** The same database for calls that must not wait until an application leaves them a connection (`reserve.ts`). */
  for(purpose: Purpose): Database {
    return new Database(this.#pool, this.#options, { db: this, purpose })
  }

  /** For the `p_now` of every function: null lets the database's own clock decide. */
  get now(): number | null {
    return this.#clock === systemClock ? null : this.#clock.now()
  }

  /** A session turned out not to be read committed although it was when the store was opened. */
  wrapFromNowOn(): void {
    this.#sessions.wraps = true
  }

  /** What was kept goes back to the pool. */
  close(): void {
    this.#connections.close()
  }

  /** What sessions start with. A timeout of statements matters once it strikes, the rest from the start. */
  async learnSession({ struck = false } = {}): Promise<void> {
    const [row] = await this.#rows({ text: sessionSettings, values: [] })
    const [isolation, statementTimeout, lockTimeout, transactionTimeout = null] = row ?? []
    const isTimed = lockTimeout !== '0' || !(transactionTimeout === null || transactionTimeout === '0')
    this.#sessions.hasTimeouts = statementTimeout !== '0' || lockTimeout !== '0'
    this.#sessions.wraps ||= isolation !== 'read committed' || isTimed || (struck && statementTimeout !== '0')
    if (transactionTimeout !== null) this.#sessions.begin = `${beginOurs}; set local transaction_timeout = 0`
  }

  /** One statement, committed when it is answered. Made again if the connection breaks. */
  query(text: string, values: readonly Value[]): Promise<Row[]> {
    return withRetry(() => this.once(text, values))
  }

  /** The same, made once. */
  once(text: string, values: readonly Value[]): Promise<Row[]> {
    if (this.#sessions.wraps) return this.#transactOnce((tx) => tx.query(text, values), { durable: true })
    return this.#rows({ text: this.schema.sql(text), values })
  }

  async #rows(statement: Statement, client?: ClientBase): Promise<Row[]> {
    try {
      if (client) return await this.#sessionOf(client).query(statement)
      return await this.lend((client) => this.#sessionOf(client).query(statement))
    } catch (error) {
      if (isCancelled(error) && statement.text !== sessionSettings) await this.learnSession({ struck: true })
      throw error
    }
  }

  /**
   * The same for a statement that is made again and again: each connection keeps it prepared, which saves 0.1 ms. Where
   * somebody lets go of what was prepared, as a pooler does that hands out another connection for every transaction,
   * statements are sent whole from then on; none of these refusals comes after something was done. It goes over the
   * connection that is given, where one is and it needs no transaction.
   */
  async hot(text: string, values: readonly Value[], client?: ClientBase): Promise<Row[]> {
    if (this.#sessions.wraps || !this.#sessions.prepares) return this.once(text, values)
    const sql = this.schema.sql(text)
    try {
      return await this.#rows({ text: sql, values, name: this.#nameOf(sql) }, client)
    } catch (error) {
      if (!isUnprepared(error)) throw error
      this.#sessions.prepares = false
      return this.once(text, values)
    }
  }

  #nameOf(sql: string): string {
    const known = this.#sessions.names.get(sql)
    if (known !== undefined) return known
    const verb = /\.(\w+)\(/.exec(sql)?.[1] ?? 'notify'
    const name = `holdfast.${verb}(...) ${createHash('sha256').update(sql).digest('hex').slice(0, 16)}`
    this.#sessions.names.set(sql, name)
    return name
  }

  /** A durable call that is one statement; `flush` is its first parameter. */
  async commitOnce<T>(
    call: { readonly text: string; readonly values: readonly Value[] },
    read: (rows: Row[]) => T,
    readKept: (answer: string | null) => T,
    { failFast = false, flush: given }: { readonly failFast?: boolean; readonly flush?: string | undefined } = {},
  ): Promise<T> {
    const flush = given ?? randomUUID()
    const ifMayHaveLanded = given === undefined ? (error: unknown) => this.#withdraw(flush, error) : undefined
    try {
      return read(await withRetry(() => this.hot(call.text, [flush, ...call.values]), { failFast, ifMayHaveLanded }))
    } catch (error) {
      if (!isAlreadyCommitted(error)) throw error
      return readKept(await this.#answerOf(flush))
    }
  }

  /** A durable call of several statements; its answer is kept as JSON. */
  async transact<T>(work: (tx: PgTransaction) => Promise<T>, given?: string): Promise<T> {
    const flush = given ?? randomUUID()
    const ifMayHaveLanded = given === undefined ? (error: unknown) => this.#withdraw(flush, error) : undefined
    const once = () =>
      this.#transactOnce(
        async (tx) => {
          const answer = await work(tx)
          const now = tx.knowsTime ? tx.now : await tx.readClock()
          await tx.query('select holdfast.record_flush($1, $2, $3)', [flush, now, JSON.stringify(answer)])
          return answer
        },
        { durable: true },
      )
    try {
      return await withRetry(once, { ifMayHaveLanded })
    } catch (error) {
      if (error instanceof EffectsSuspected) await this.#abandon(flush, error)
      else if (!isAlreadyCommitted(error)) throw error
      const answer: unknown = JSON.parse((await this.#answerOf(flush)) ?? 'null')
      if (isAbandoned(answer)) throw new CommitRefused(answer.abandoned)
      return answer as T
    }
  }

  /** Several statements that need not wait for the disk, and may be made again. */
  async transactLightly<T>(work: (tx: PgTransaction) => Promise<T>, { failFast = false } = {}): Promise<T> {
    try {
      return await withRetry(() => this.#transactOnce(work, { durable: false }), { failFast })
    } catch (error) {
      if (!(error instanceof EffectsSuspected)) throw error
      await this.#elsewhere(error, () => this.query('select 1', []))
      throw new CommitRefused(error.fault)
    }
  }

  /** After this the call has landed, or never will. Throws where the server does not answer. */
  async #abandon(flush: string, suspected: EffectsSuspected): Promise<void> {
    const values = [flush, this.now, JSON.stringify({ abandoned: suspected.fault } satisfies Abandoned)]
    await this.#elsewhere(suspected, async () => {
      try {
        await this.query('select holdfast.record_flush($1, holdfast.now_ms($2), $3)', values)
      } catch (error) {
        if (!isAlreadyCommitted(error)) throw error
      }
    })
  }

  /** Asks the server for something without statements of the application. */
  async #elsewhere(suspected: EffectsSuspected, ask: () => Promise<unknown>): Promise<void> {
    try {
      await ask()
    } catch {
      throw suspectUnanswered(suspected)
    }
  }

  /** What a statement of the application may leave for the statements behind it. */
  leaves(text: string): Promise<Leaves> {
    return this.#setters.leaves(text, (statement, values) => this.query(statement, values))
  }

  #transactOnce<T>(work: (tx: PgTransaction) => Promise<T>, { durable }: { durable: boolean }): Promise<T> {
    let isLeftChanged = false
    const run = async (client: PoolClient) => {
      const session = this.#sessionOf(client)
      await session.run(durable ? this.#sessions.begin : `${this.#sessions.begin}; set local synchronous_commit = off`)
      const { schema, now } = this
      const { hasTimeouts } = this.#sessions
      const tx = new PgTransaction(session, { schema, now, hasTimeouts, setters: this.#setters })
      try {
        const answer = await work(tx)
        await tx.commit()
        if (tx.mayHaveChangedSession) isLeftChanged = !(this.#isOwn && (await restored(session)))
        return answer
      } catch (error) {
        if (tx.ranEffects) markAfterEffects(error, tx.faultOf(error))
        throw error
      }
    }
    return this.lend(run, { rollsBack: true, ends: () => isLeftChanged })
  }

  /**
   * A connection for as long as `work` takes, once there is a place. One that broke, or cannot be rolled back, is not used
   * again.
   */
  lend<T>(work: (client: PoolClient) => Promise<T>, { rollsBack = false, ends = false }: LendOptions = {}): Promise<T> {
    const isFit = async (client: PoolClient, error: unknown) =>
      !isBroken(error) && (!rollsBack || (await rolledBack(this.#sessionOf(client))))
    return this.#connections.use(work, { ends, isFit, purpose: this.#purpose })
  }

  #sessionOf(client: ClientBase): Session {
    return {
      query: (statement) => this.#watchdog.over(client, call(client, statement)),
      run: (statement) => this.#watchdog.over(client, client.query(statement as string)),
    }
  }

  /** Throws this error if no send of the call has landed, and none will; else says that it has (HF004). */
  async #withdraw(flush: string, error: unknown): Promise<never> {
    if (isAlreadyCommitted(error)) throw error
    const [row] = await this.query('select holdfast.withdraw($1, $2)', [flush, this.now])
    throw row?.[0] === 't' ? alreadyCommitted() : error
  }

  async #answerOf(flush: string): Promise<string | null> {
    const [row] = await this.query('select holdfast.answer_of($1)', [flush])
    return row?.[0] ?? null
  }
}

/** A connection that is lent; it does not wait for ever. */
interface Session {
  /** One statement of ours, with its values. */
  query(statement: Statement): Promise<Row[]>
  /** Statements without values, or one of the application's. */
  run(statement: string | object): Promise<unknown>
}

interface LendOptions {
  /** What fails is rolled back. */
  readonly rollsBack?: boolean
  /** The connection is of no use to anybody afterwards. */
  readonly ends?: boolean | (() => boolean)
}

interface TransactionOptions {
  readonly schema: Schema
  readonly now: number | null
  readonly hasTimeouts: boolean
  readonly setters: Setters
}

/** Settings that decide how statements of ours run. The role comes first: it decides which of the others may be set. */
const ourSettings = [
  'role',
  'search_path',
  'row_security',
  'session_replication_role',
  'statement_timeout',
  'lock_timeout',
  'transaction_timeout',
  'idle_in_transaction_session_timeout',
]

export class PgTransaction {
  readonly #session: Session
  readonly #schema: Schema
  readonly #hasTimeouts: boolean
  readonly #setters: Setters
  #mayHaveChangedSession = false
  /** The statement of the application that ran last, and what it failed with. */
  #lastEffect: string | null = null
  #effectError: string | null = null
  /** What goes for the time as long as nobody has read it: null is the clock of the database. */
  readonly clock: number | null
  #now: number | null

  constructor(session: Session, { schema, now, hasTimeouts, setters }: TransactionOptions) {
    this.clock = now
    this.#session = session
    this.#schema = schema
    this.#now = now
    this.#hasTimeouts = hasTimeouts
    this.#setters = setters
  }

  query(text: string, values: readonly Value[]): Promise<Row[]> {
    return this.#session.query({ text: this.#schema.sql(text), values })
  }

  get ranEffects(): boolean {
    return this.#lastEffect !== null
  }

  /** What is said of the statement of the application that ran last, where the transaction fails with this. */
  faultOf(error: unknown): StatementFault {
    return { text: this.#lastEffect, why: this.#effectError ?? (error as Error).message }
  }

  /** A statement of the application, which keeps the timeouts that the session came with. One statement, and never two. */
  async foreign(text: string, values: readonly unknown[]): Promise<void> {
    this.#lastEffect = text
    await this.#runForeign({ text, values: [...values], queryMode: 'extended' })
  }

  async #runForeign(statement: string | object): Promise<void> {
    this.#effectError = null
    if (this.#hasTimeouts) await this.#session.run(restoreTimeouts)
    try {
      await this.#session.run(statement)
    } catch (error) {
      this.#effectError = (error as Error).message
      throw error
    }
    if (this.#hasTimeouts) await this.#session.run(liftTimeouts)
  }

  /** What a statement of the application may leave for the statements behind it. */
  leaves(text: string): Promise<Leaves> {
    return this.#setters.leaves(text, (statement, values) => this.query(statement, values))
  }

  /** A statement of the application may have changed more than this transaction: its session. */
  get mayHaveChangedSession(): boolean {
    return this.#mayHaveChangedSession
  }

  /**
   * Runs statements of the application that may set something, of one job and no other. What statements of ours depend on is as
   * before afterwards. Where one of them fails, its savepoint is undone, and with it whatever was set.
   */
  async whileSetting(leaves: Leaves, work: () => Promise<void>): Promise<void> {
    const current = `select s.name, pg_catalog.current_setting(s.name, true)
      from pg_catalog.jsonb_array_elements_text($1::jsonb) with ordinality s(name, turn) order by s.turn`
    const before = await this.query(current, [JSON.stringify(ourSettings)])
    await work()
    if (leaves === 'anything') this.#mayHaveChangedSession = true
    const set = 'select pg_catalog.set_config($1, $2, true)'
    const [role, ...others] = before
    await this.query(set, role as Row)
    const now = new Map(
      (await this.query(current, [JSON.stringify(ourSettings)])).map(([name, value]) => [name, value]),
    )
    for (const [name, value] of others)
      if (value != null && now.get(name as string) !== value) await this.query(set, [name as string, value])
  }

  /** The time of everything this transaction does; read it after the locks were taken. */
  async readClock(): Promise<number> {
    const [row] = await this.query('select holdfast.now_ms($1)', [this.#now])
    this.#now = Number(row?.[0])
    return this.#now
  }

  get knowsTime(): boolean {
    return this.#now !== null
  }

  get now(): number {
    if (this.#now === null) throw new Error('readClock was not called.')
    return this.#now
  }

  /**
   * Checks the deferred constraints now and runs the deferred triggers, with the timeouts of the session. From here on this
   * transaction checks every constraint at once, so it must run no statement of another job after this.
   */
  checkDeferred(): Promise<void> {
    return this.#runForeign('set constraints all immediate')
  }

  /** Deferred triggers of the application run here: with its statements, a COMMIT has the timeouts of the session. */
  async commit(): Promise<void> {
    if (this.#lastEffect !== null && this.#hasTimeouts) await this.#session.run(restoreTimeouts)
    try {
      await this.#session.run('commit')
    } catch (error) {
      const isRefused = this.#lastEffect !== null && isFromServer(error) && (await rolledBack(this.#session))
      if (isRefused) throw new CommitRefused({ text: null, why: (error as Error).message })
      throw error
    }
  }

  /** Runs `work`; a Refusal undoes all of it and becomes the answer. */
  async attempt<T>(work: () => Promise<T>): Promise<T | Refused> {
    await this.#session.run('savepoint attempt')
    try {
      const answer = await work()
      await this.#session.run('release savepoint attempt')
      return answer
    } catch (error) {
      if (!(error instanceof Refusal)) throw error
      await this.#session.run('rollback to savepoint attempt; release savepoint attempt')
      return error.refused
    }
  }
}

/** The answer that is kept for a call that did not land and never will. */
interface Abandoned {
  readonly abandoned: StatementFault
}

export function isAbandoned(answer: unknown): answer is Abandoned {
  return typeof answer === 'object' && answer !== null && 'abandoned' in answer
}

/** Makes a session as it was when it began, but for its prepared statements. False: it could not be done. */
async function restored(session: Session): Promise<boolean> {
  try {
    await session.run('discard temp')
    await session.run('reset session authorization; reset role; reset all')
    return true
  } catch {
    return false
  }
}

async function rolledBack(session: Session): Promise<boolean> {
  return session.run('rollback').then(
    () => true,
    () => false,
  )
}
