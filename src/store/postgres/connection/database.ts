// Connections, transactions, and what to do when they fail.
//
// FLUSH NUMBERS. A call whose connection broke may have been committed or not. So every durable call has a number of its own,
// its flush, and records it in the transaction. If the call is sent again under the same number, it is carried out now, or it
// fails with HF004 because it was committed before; then the answer that was kept is read, by a statement whose commit waits for
// the same standbys (`schema/functions/flush.ts`). If the caller gave the number, it may ask again itself after this has given
// up: numbers are kept for an hour (`schema/functions/prune.ts`), one row for each call, however many requests it had. Calls that
// write nothing durable are made again without a number (`failures.ts`).
//
// WITHDRAWN FLUSHES. The second send of a call may fail before it has checked its flush, for example because a queue was
// redefined in between. The caller of `commitOnce` or `transact` then starts over, under another flush. So the flush of the
// failed call is withdrawn first: if the first send was committed, its answer counts; if not, it never will be
// (`schema/functions/flush.ts`). A flush that the caller gave stays the same when the caller starts over, and is not withdrawn.
//
// TIMEOUTS. Timeouts that a role or a database sets are meant for the application's statements, not for the store's. A
// transaction of the store lifts them for itself. A single statement cannot, so if a timeout cancelled one, all statements are
// sent in transactions from then on. Statements of the application, in a settlement, run with the timeouts that the session
// came with.
//
// A COMMIT THAT THE SERVER REFUSES. Deferred constraints and deferred triggers of the application's tables are checked by the
// COMMIT, after every savepoint. If the server answers COMMIT with an error and the session goes on, the transaction was
// certainly rolled back. If the server goes away instead, the session ends, and the outcome is unknown. So the session is asked
// to roll back: if it answers, the COMMIT was refused (`CommitRefused`). This is thrown only if statements of the application
// ran. Without them, a refused COMMIT is a failure like any other.
//
// OTHER FAILURES OF A TRANSACTION WITH STATEMENTS OF THE APPLICATION. A statement may end its own session, or change the
// session so that no statement of the store succeeds. That looks like a server that is away. So after a few tries another call
// is made to the server:
//
//   - it does not answer: the server is away, and the statements are not the cause;
//   - it answers: the statements are the cause (`CommitRefused`), and `statement-policy.ts` finds out which.
//
// ABANDONED FLUSHES. After a session of a durable call has ended, a server process that does not know yet that its client is
// gone may still commit the call. So the other call inserts the flush number, with the answer "abandoned". The insert waits for
// that transaction. If it commits, the insert is refused, and the kept answer is read. If not, the number is used up, and the
// call cannot be committed later. A crash after the insert leaves nothing but this row. A call that is sent again under the
// number reads "abandoned", and goes on where this one ended. A light call needs none of this, because it may be carried out
// twice.

import { createHash, randomUUID } from 'node:crypto'
import type { ClientBase, Pool, PoolClient } from 'pg'
import { HoldfastError, type Refused } from '../../../errors.ts'
import { type Clock, systemClock } from '../../../runtime/clock.ts'
import { Refusal } from '../../refusals.ts'
import type { Schema } from '../schema/schema.ts'
import { type Leaves, Setters } from '../sql-leftovers.ts'
import { call, type Row, type Statement, type Value } from './call.ts'
import { list } from './columns.ts'
import { Connections } from './connections.ts'
import { refusesValues, type ServerError } from './data-error.ts'
import {
  alreadyCommitted,
  answerUnread,
  behindStalled,
  CommitRefused,
  EffectsSuspected,
  isAlreadyCommitted,
  isBroken,
  isCancelled,
  isDeadlock,
  isForeign,
  isFromServer,
  isLockTimeout,
  isNotStored,
  isUnprepared,
  LockNotFree,
  markAfterEffects,
  type StatementFault,
  suspectUnanswered,
  withRetry,
} from './failures.ts'
import type { Purpose } from './reserve.ts'
import { ResponseWatchdog } from './response-watchdog.ts'

/**
 * If a process stops between two statements of a transaction (suspended, cut off, its event loop busy), it keeps its locks for
 * at most this time. Then the server ends its connection, and the process makes the call again when it runs again.
 */
const idleMaxMs = 2_000

/** How often a call is sent that one server has committed, and the server that took over does not have. */
const sendsMax = 3

const liftTimeouts = 'set local statement_timeout = 0; set local lock_timeout = 0'

export const beginOurs = `begin isolation level read committed; set local idle_in_transaction_session_timeout = ${idleMaxMs}; ${liftTimeouts}`

/** The database, or a transaction in it. */
export interface Queryable {
  query(text: string, values: readonly Value[]): Promise<Row[]>
}

export interface DatabaseOptions {
  readonly schema: Schema
  readonly clock: Clock
  /** Only the store uses the pool. */
  readonly isOwn?: boolean
  /** How many connections of the pool may be in use at once. */
  readonly connections: number
  /** After this time without an answer, the watchdog checks whether the server is still there. */
  readonly answerMs: number
}

const sessionSettings = `select current_setting('default_transaction_isolation'), current_setting('statement_timeout'),
  current_setting('lock_timeout'), current_setting('transaction_timeout', true)`

/** The database that this one is the same as, and what its calls do otherwise. */
interface DerivedFrom {
  readonly db: Database
  readonly purpose: Purpose
  readonly lockMaxMs: number | null
}

/** Connections that are lent now. When the store closes and does not wait for its calls any longer, they are cut. */
class LentConnections {
  readonly #clients = new Set<ClientBase>()
  #isCut = false

  get isCut(): boolean {
    return this.#isCut
  }

  async during<T>(client: ClientBase, work: Promise<T>): Promise<T> {
    this.#clients.add(client)
    try {
      return await work
    } finally {
      this.#clients.delete(client)
    }
  }

  /** The server undoes an open transaction once it notices. A single statement under way may still be carried out. */
  cut(): void {
    this.#isCut = true
    for (const client of this.#clients) streamOf(client)?.destroy?.()
  }
}

/** Undefined for the driver's native variant. */
function streamOf(client: ClientBase): { destroy?(): void } | undefined {
  return (client as unknown as { readonly connection?: { readonly stream?: { destroy?(): void } } }).connection?.stream
}

/** What this process knows of the sessions of a pool. */
class Sessions {
  /** Even single statements are sent in transactions, because sessions start with settings that do not suit them. */
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
  readonly #lent: LentConnections
  readonly #pool: Pool
  readonly #options: DatabaseOptions
  readonly #purpose: Purpose
  /** How long each statement waits for a lock; null: as long as another transaction has it. */
  readonly #lockMaxMs: number | null

  constructor(pool: Pool, options: DatabaseOptions, of: DerivedFrom | null = null) {
    const { schema, clock, isOwn = false, connections, answerMs } = options
    this.schema = schema
    this.#clock = clock
    this.#isOwn = isOwn
    this.#pool = pool
    this.#options = options
    this.#connections = of ? of.db.#connections : new Connections({ pool, isOwn, most: connections })
    this.#watchdog = of ? of.db.#watchdog : new ResponseWatchdog(pool, answerMs)
    this.#sessions = of ? of.db.#sessions : new Sessions()
    this.#lent = of ? of.db.#lent : new LentConnections()
    this.#setters = of ? of.db.#setters : new Setters()
    this.#purpose = of?.purpose ?? 'any'
    this.#lockMaxMs = of?.lockMaxMs ?? null
  }

  /** The same database, for calls that must not wait until an application frees a connection (`reserve.ts`). */
  for(purpose: Purpose): Database {
    return new Database(this.#pool, this.#options, { db: this, purpose, lockMaxMs: this.#lockMaxMs })
  }

  /**
   * The same database, for calls that give up where a lock is not free within this time. Such a call has changed nothing. Its
   * collision is thrown (`isBusy`), and not tried again.
   */
  impatient(lockMaxMs: number): Database {
    return new Database(this.#pool, this.#options, { db: this, purpose: this.#purpose, lockMaxMs })
  }

  /** For what must be known of a call whose answer was lost: this waits as long as it takes. */
  get #patient(): Database {
    return this.failsFast
      ? new Database(this.#pool, this.#options, { db: this, purpose: this.#purpose, lockMaxMs: null })
      : this
  }

  /** Collisions are thrown: see `impatient`. */
  get failsFast(): boolean {
    return this.#lockMaxMs !== null
  }

  /** The `p_now` of every function; null: the database's own clock counts. */
  get now(): number | null {
    return this.#clock === systemClock ? null : this.#clock.now()
  }

  /** Called when a session turns out not to be read committed, although it was when the store was opened. */
  wrapFromNowOn(): void {
    this.#sessions.wraps = true
  }

  /** Why commits wait on the server; null: none is known to (`response-watchdog.ts`). */
  get stall(): HoldfastError | null {
    return this.#watchdog.stall
  }

  onStall(listener: (stall: HoldfastError | null) => void): void {
    this.#watchdog.onStall(listener)
  }

  /** Sessions start with timeouts, which count for statements of the application. */
  get hasTimeouts(): boolean {
    return this.#sessions.hasTimeouts
  }

  /** Gives kept connections back to the pool. */
  close(): void {
    this.#connections.close()
  }

  /** Ends every call under way, and every later one, with CLOSED. */
  cut(): void {
    this.#lent.cut()
  }

  /** Reads the settings that sessions start with. A statement timeout counts once it has struck, the others at once. */
  async learnSession({ struck = false } = {}): Promise<void> {
    const [row] = await this.#rows({ text: sessionSettings, values: [] })
    const [isolation, statementTimeout, lockTimeout, transactionTimeout = null] = row ?? []
    const isTimed = lockTimeout !== '0' || !(transactionTimeout === null || transactionTimeout === '0')
    this.#sessions.hasTimeouts = statementTimeout !== '0' || lockTimeout !== '0'
    this.#sessions.wraps ||= isolation !== 'read committed' || isTimed || (struck && statementTimeout !== '0')
    if (transactionTimeout !== null) this.#sessions.begin = `${beginOurs}; set local transaction_timeout = 0`
  }

  /** One statement, which is committed when it is answered. It is made again if the connection breaks. */
  query(text: string, values: readonly Value[]): Promise<Row[]> {
    return withRetry(() => this.once(text, values), { failFast: this.failsFast })
  }

  /** The same without another try. */
  once(text: string, values: readonly Value[]): Promise<Row[]> {
    if (this.#sessions.wraps || this.failsFast)
      return this.#transactOnce((tx) => tx.query(text, values), { durable: true, lockMaxMs: this.#lockMaxMs })
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
   * The same for a frequent statement: each connection keeps it prepared, which saves 0.1 ms. A pooler that gives each
   * transaction another connection loses prepared statements. Then statements are sent with their text from then on. The server
   * refuses a missing statement before it does anything, so nothing is done twice. If `client` is given, and no transaction is
   * needed, the statement is sent over it.
   */
  async hot(text: string, values: readonly Value[], client?: ClientBase): Promise<Row[]> {
    if (this.#sessions.wraps || !this.#sessions.prepares || this.failsFast) return this.once(text, values)
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

  /** A durable call that is one statement, and is carried out once however often it is sent; `flush` is its first parameter. */
  async commitOnce<T>(
    call: { readonly text: string; readonly values: readonly Value[] },
    read: (rows: Row[]) => T,
    readKept: (answer: string | null) => T,
    { failFast = false, flush: given }: { readonly failFast?: boolean; readonly flush?: string | undefined } = {},
  ): Promise<T> {
    const flush = given ?? randomUUID()
    const ifMayHaveLanded = given === undefined ? (error: unknown) => this.#withdraw(flush, error) : undefined
    const once = () => this.hot(call.text, [flush, ...call.values])
    return this.#orKept(
      flush,
      async () => read(await withRetry(once, { failFast, ifMayHaveLanded })),
      (answer) => readKept(answer),
    )
  }

  /**
   * If the call was committed before, its kept answer counts. A server that took over may not have the call: then it is sent
   * again.
   */
  async #orKept<T>(flush: string, send: () => Promise<T>, readKept: (answer: string | null) => T): Promise<T> {
    for (let sends = 1; ; sends++) {
      try {
        return await send()
      } catch (error) {
        if (!isAlreadyCommitted(error)) throw error
      }
      try {
        return readKept(await this.#answerOf(flush))
      } catch (error) {
        if (!isNotStored(error) || sends >= sendsMax) throw answerUnread(error)
      }
    }
  }

  /** A durable call of several statements, carried out once. Its answer is kept as JSON. */
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
        { durable: true, lockMaxMs: this.#lockMaxMs },
      )
    const send = async () => {
      try {
        return await withRetry(once, { failFast: this.failsFast, ifMayHaveLanded })
      } catch (error) {
        if (!(error instanceof EffectsSuspected)) throw error
        await this.#abandon(flush, error)
        throw alreadyCommitted() // or abandoned, which the kept answer says
      }
    }
    return this.#orKept(flush, send, (json) => {
      const answer: unknown = JSON.parse(json ?? 'null')
      if (isAbandoned(answer)) throw new CommitRefused(answer.abandoned)
      return answer as T
    })
  }

  /** Several statements whose commit need not wait for the disk, and which may be carried out twice. */
  async transactLightly<T>(
    work: (tx: PgTransaction) => Promise<T>,
    { failFast = this.failsFast, lockMaxMs = this.#lockMaxMs }: LightOptions = {},
  ): Promise<T> {
    try {
      return await withRetry(() => this.#transactOnce(work, { durable: false, lockMaxMs }), { failFast })
    } catch (error) {
      if (!(error instanceof EffectsSuspected)) throw error
      await this.#elsewhere(error, () => this.query('select 1', []))
      throw new CommitRefused(error.fault)
    }
  }

  /** After this the call has been committed, or never will be. Throws if the server does not answer. */
  async #abandon(flush: string, suspected: EffectsSuspected): Promise<void> {
    const values = [flush, this.now, JSON.stringify({ abandoned: suspected.fault } satisfies Abandoned)]
    await this.#elsewhere(suspected, async () => {
      try {
        await this.#patient.query('select holdfast.record_flush($1, holdfast.now_ms($2), $3)', values)
      } catch (error) {
        if (!isAlreadyCommitted(error)) throw error
      }
    })
  }

  /** Makes a call without statements of the application, to find out whether the server answers. */
  async #elsewhere(suspected: EffectsSuspected, ask: () => Promise<unknown>): Promise<void> {
    try {
      await ask()
    } catch {
      throw suspectUnanswered(suspected)
    }
  }

  /** What a statement of the application may leave for later statements. */
  leaves(text: string): Promise<Leaves> {
    return this.#setters.leaves(text, (statement, values) => this.query(statement, values))
  }

  #transactOnce<T>(
    work: (tx: PgTransaction) => Promise<T>,
    { durable, lockMaxMs = null }: { readonly durable: boolean; readonly lockMaxMs?: number | null },
  ): Promise<T> {
    let isLeftChanged = false
    const run = async (client: PoolClient) => {
      const session = this.#sessionOf(client)
      const { hasTimeouts, begin } = this.#sessions
      const settings = [
        ...(durable ? [] : ['set local synchronous_commit = off']),
        ...(lockMaxMs === null ? [] : [`set local lock_timeout = ${lockMaxMs}`]),
      ]
      await session.run([begin, ...settings].join('; '))
      const { schema, now } = this
      const tx = new PgTransaction(session, { schema, now, hasTimeouts, lockMaxMs, setters: this.#setters })
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
   * Lends a connection for as long as `work` takes, once a slot is free. A connection that broke, or cannot be rolled back, is
   * not used again.
   */
  async lend<T>(
    work: (client: PoolClient) => Promise<T>,
    { rollsBack = false, ends = false }: LendOptions = {},
  ): Promise<T> {
    const isFit = async (client: PoolClient, error: unknown) =>
      !isBroken(error) && (!rollsBack || (await rolledBack(this.#sessionOf(client))))
    const lent = this.#lent
    let isSent = false
    let stall: HoldfastError | null = null
    const run = (client: PoolClient) => {
      if (lent.isCut) throw closedBefore()
      if (stall) throw stall
      isSent = true
      return lent.during(client, work(client))
    }
    try {
      if (lent.isCut) throw closedBefore()
      const lending = this.#connections.use(run, { ends, isFit, purpose: this.#purpose })
      if (isSent || this.#connections.hasFreeSlot || this.#purpose === 'renewals') return await lending
      const giveUp = () => {
        if (isSent || !this.stall) return null
        stall = behindStalled(this.stall)
        return stall
      }
      return await orGivenUp(lending, giveUp)
    } catch (error) {
      if (lent.isCut && isForeign(error)) throw isSent ? closedDuring(error) : closedBefore()
      throw error
    }
  }

  #sessionOf(client: ClientBase): Session {
    return {
      query: (statement) => this.#watchdog.over(client, call(client, statement)),
      run: (statement) => this.#watchdog.over(client, client.query(statement as string)),
    }
  }

  /** Throws `error` if no send of the call was committed, and none will be. If one was, throws HF004. */
  async #withdraw(flush: string, error: unknown): Promise<never> {
    if (isAlreadyCommitted(error)) throw error
    const [row] = await this.#patient.query('select holdfast.withdraw($1, $2)', [flush, this.now])
    throw row?.[0] === 't' ? alreadyCommitted() : error
  }

  /** Waits until the standbys that a commit waits for have these calls. They were found to be committed. */
  async proveStored(flushes: readonly string[]): Promise<void> {
    if (flushes.length === 0) return
    try {
      await this.#patient.query('select holdfast.answer_of(f.id) from unnest($1::uuid[]) f(id)', [list(flushes)])
    } catch (error) {
      throw answerUnread(error)
    }
  }

  async #answerOf(flush: string): Promise<string | null> {
    const [row] = await this.#patient.query('select holdfast.answer_of($1)', [flush])
    return row?.[0] ?? null
  }
}

/** A call that has waited for a connection for so long is given up, if connections wait for a standby. */
const behindStalledMs = 250

/** Waits for `lending` until `giveUp` answers an error. A call that was sent is not given up. */
async function orGivenUp<T>(lending: Promise<T>, giveUp: () => HoldfastError | null): Promise<T> {
  const { promise: givenUp, reject } = Promise.withResolvers<never>()
  const look = () => {
    const error = giveUp()
    if (error) reject(error)
  }
  const timer = setInterval(look, behindStalledMs).unref()
  try {
    return await Promise.race([lending, givenUp])
  } finally {
    clearInterval(timer)
    lending.catch(() => undefined) // it may fail once it has a connection
  }
}

function closedBefore(): HoldfastError {
  return new HoldfastError('CLOSED', 'This Holdfast was closed before the call was sent. Nothing was carried out.')
}

function closedDuring(cause: unknown): HoldfastError {
  const sentence = 'This Holdfast was closed while the call was under way: it may have been carried out or not.'
  return new HoldfastError('CLOSED', sentence, { mayHaveLanded: true }, { cause })
}

/** A connection that is lent. The watchdog bounds its waits for a server that is gone. */
interface Session {
  /** One statement of the store, with its values. */
  query(statement: Statement): Promise<Row[]>
  /** Statements without values, or one of the application's. */
  run(statement: string | object): Promise<unknown>
}

interface LendOptions {
  /** If `work` fails, the connection rolls back. */
  readonly rollsBack?: boolean
  /** The connection cannot be used again afterwards. */
  readonly ends?: boolean | (() => boolean)
}

interface AttemptOptions {
  /** How long each statement of the attempt waits for a lock; null: as long as another transaction has it. */
  readonly lockMaxMs?: number | null
}

interface LightOptions {
  /** A collision is thrown, and not tried again. */
  readonly failFast?: boolean
  /** How long each statement waits for a lock, those of the application included; null: as long as another transaction has it. */
  readonly lockMaxMs?: number | null
}

interface TransactionOptions {
  readonly schema: Schema
  readonly now: number | null
  readonly hasTimeouts: boolean
  readonly lockMaxMs: number | null
  readonly setters: Setters
}

/** Settings that decide how statements of the store run. The role comes first: it decides which of the others may be set. */
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
  #lockMaxMs: number | null
  readonly #setters: Setters
  #mayHaveChangedSession = false
  /** The statement of the application that ran last, and what it failed with. */
  #lastEffect: string | null = null
  #effectError: string | null = null
  /** The time before `readClock` was called; null: the clock of the database. */
  readonly clock: number | null
  #now: number | null

  constructor(session: Session, { schema, now, hasTimeouts, lockMaxMs, setters }: TransactionOptions) {
    this.clock = now
    this.#session = session
    this.#schema = schema
    this.#now = now
    this.#hasTimeouts = hasTimeouts
    this.#lockMaxMs = lockMaxMs
    this.#setters = setters
  }

  query(text: string, values: readonly Value[]): Promise<Row[]> {
    return this.#session.query({ text: this.#schema.sql(text), values })
  }

  get ranEffects(): boolean {
    return this.#lastEffect !== null
  }

  /** The fault of the application's last statement, if the transaction fails with this error. */
  faultOf(error: unknown): StatementFault {
    return { text: this.#lastEffect, why: this.#effectError ?? (error as Error).message }
  }

  /** Runs one statement of the application (never two), with the timeouts that the session came with. */
  async foreign(text: string, values: readonly unknown[]): Promise<void> {
    this.#lastEffect = text
    await this.#runForeign({ text, values: [...values], queryMode: 'extended' })
  }

  async #runForeign(statement: string | object): Promise<void> {
    this.#effectError = null
    if (this.#hasTimeouts) await this.#session.run(this.#restoreTimeouts)
    try {
      await this.#session.run(statement)
    } catch (error) {
      this.#effectError = (error as Error).message
      throw error
    }
    if (this.#hasTimeouts) await this.#session.run(this.#liftTimeouts)
  }

  get #liftTimeouts(): string {
    return `set local statement_timeout = 0; set local lock_timeout = ${this.#lockMaxMs ?? 0}`
  }

  /** The timeouts that the session came with. If this transaction has a lock timeout of its own, that one counts instead. */
  get #restoreTimeouts(): string {
    return `set local statement_timeout to default; set local lock_timeout to ${this.#lockMaxMs ?? 'default'}`
  }

  /** What a statement of the application may leave for later statements. */
  leaves(text: string): Promise<Leaves> {
    return this.#setters.leaves(text, (statement, values) => this.query(statement, values))
  }

  /** A statement of the application may have changed more than this transaction: its session. */
  get mayHaveChangedSession(): boolean {
    return this.#mayHaveChangedSession
  }

  /**
   * Runs statements of one job that may set something. Afterwards, the settings that statements of the store depend on are as
   * before. If a statement fails, its savepoint is undone, and everything that was set with it.
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

  /** Reads the time of everything that this transaction does. Call it after the locks were taken. */
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
   * Checks the deferred constraints now and runs the deferred triggers, with the timeouts of the session. After this, the
   * transaction checks every constraint at once. So it must run no statement of another job.
   */
  checkDeferred(): Promise<void> {
    return this.#runForeign('set constraints all immediate')
  }

  /** Deferred triggers of the application run here. So after its statements, the COMMIT has the timeouts of the session. */
  async commit(): Promise<void> {
    if (this.#lastEffect !== null && this.#hasTimeouts) await this.#session.run(this.#restoreTimeouts)
    try {
      await this.#session.run('commit')
    } catch (error) {
      const isRefused = this.#lastEffect !== null && isFromServer(error) && (await rolledBack(this.#session))
      if (isRefused)
        throw new CommitRefused({ text: null, why: (error as Error).message }, { collided: isDeadlock(error) })
      throw error
    }
  }

  /**
   * Runs `work` behind a savepoint. If the server refuses the values of a row, all of it is undone, and the error is the answer.
   */
  async orRefused<T>(work: () => Promise<T>): Promise<{ readonly answer: T } | { readonly refused: Error }> {
    await this.#session.run('savepoint attempt')
    try {
      const answer = await work()
      await this.#session.run('release savepoint attempt')
      return { answer }
    } catch (error) {
      if (!isFromServer(error) || !refusesValues(error as ServerError)) throw error
      await this.#session.run('rollback to savepoint attempt; release savepoint attempt')
      return { refused: error as Error }
    }
  }

  /**
   * Runs `work` behind a savepoint. A Refusal undoes all of it and becomes the answer. If there is a lock timeout, of this
   * transaction or else of this attempt alone, a lock that is not free in time undoes all of it too, and is thrown: the
   * transaction can go on.
   */
  async attempt<T>(work: () => Promise<T>, options: AttemptOptions = {}): Promise<T | Refused> {
    const before = this.#lockMaxMs
    const lockMaxMs = before ?? options.lockMaxMs ?? null
    const isOther = lockMaxMs !== before
    this.#lockMaxMs = lockMaxMs
    await this.#session.run(`savepoint attempt${isOther ? `; set local lock_timeout = ${lockMaxMs ?? 0}` : ''}`)
    try {
      const answer = await work()
      const back = isOther ? `; set local lock_timeout = ${before ?? 0}` : ''
      await this.#session.run(`release savepoint attempt${back}`)
      return answer
    } catch (error) {
      const isBlocked = this.#lockMaxMs !== null && isLockTimeout(error)
      if (!(error instanceof Refusal) && !isBlocked) throw error
      await this.#session.run('rollback to savepoint attempt; release savepoint attempt')
      if (error instanceof Refusal) return error.refused
      throw new LockNotFree(error)
    } finally {
      this.#lockMaxMs = before
    }
  }
}

/** The answer that is kept for a call that was not committed and never will be. */
interface Abandoned {
  readonly abandoned: StatementFault
}

export function isAbandoned(answer: unknown): answer is Abandoned {
  return typeof answer === 'object' && answer !== null && 'abandoned' in answer
}

/** Resets a session to how it began, except for its prepared statements. False: it could not be done. */
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
