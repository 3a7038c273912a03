// Connections, transactions, and what to do when they fail.
//
// A call whose connection broke may have landed or not. So every durable call carries a number of its own, a flush, that it
// records in the transaction; sent again under the same number it either lands now, or is told (HF004) that it has landed,
// and reads what was answered then. Where the caller gave the number it may do so itself, after this gave up: numbers are
// kept for an hour (`migrations/0006-sweep.ts`), one row a call, whatever it carried. Calls that write nothing durable are
// simply made again.

import { createHash, randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Pool, PoolClient, QueryResult } from 'pg'
import { type Clock, systemClock } from '../../clock.ts'
import { HoldfastError, isHoldfastError, type Refused } from '../../errors.ts'
import { Refusal } from '../refusals.ts'
import type { Schema } from './migrations.ts'
import { isDenied, lacksGrant } from './roles.ts'

/** A row as text, column by column, whatever types the application has registered with the driver. */
export type Row = readonly (string | null)[]

export type Value = string | number | boolean | Buffer | null

const asText = { getTypeParser: () => (text: string) => text }
const triesMax = 9
const firstPauseMs = 20
/**
 * A process that stops between two statements of a transaction (suspended, cut off, its event loop busy) holds its locks for
 * no longer: the server ends its connection, and it makes the call again when it gets to run.
 */
const idleMaxMs = 2_000

const begin = `begin isolation level read committed; set local idle_in_transaction_session_timeout = ${idleMaxMs}`

export class Database {
  readonly pool: Pool
  readonly schema: Schema
  readonly #clock: Clock
  /** Set where sessions do not start as read committed: then even single statements bring a transaction along. */
  #wraps = false
  #prepares = true
  readonly #names = new Map<string, string>()

  constructor(pool: Pool, schema: Schema, clock: Clock) {
    this.pool = pool
    this.schema = schema
    this.#clock = clock
  }

  /** For the `p_now` of every function: null lets the database's own clock decide. */
  get now(): number | null {
    return this.#clock === systemClock ? null : this.#clock.now()
  }

  /** A session turned out not to be read committed although it was when the store was opened. */
  wrapFromNowOn(): void {
    this.#wraps = true
  }

  async learnIsolation(): Promise<void> {
    const [row] = await this.query(`select current_setting('default_transaction_isolation')`, [])
    this.#wraps = row?.[0] !== 'read committed'
  }

  /** One statement, committed when it is answered. Made again if the connection breaks. */
  query(text: string, values: readonly Value[]): Promise<Row[]> {
    return patiently(() => this.once(text, values))
  }

  /** The same, made once. */
  once(text: string, values: readonly Value[]): Promise<Row[]> {
    if (this.#wraps) return this.#transactOnce((tx) => tx.query(text, values), { durable: true })
    return rowsOf(this.pool, this.schema.sql(text), values)
  }

  /**
   * The same for a statement that is made again and again: each connection keeps it prepared, which saves 0.1 ms. Where
   * somebody lets go of what was prepared, as a pooler does that hands out another connection for every transaction,
   * statements are sent whole from then on; none of these refusals comes after something was done.
   */
  async hot(text: string, values: readonly Value[]): Promise<Row[]> {
    if (this.#wraps || !this.#prepares) return this.once(text, values)
    const sql = this.schema.sql(text)
    try {
      return await rowsOf(this.pool, sql, values, this.#nameOf(sql))
    } catch (error) {
      if (!isUnprepared(error)) throw error
      this.#prepares = false
      return this.once(text, values)
    }
  }

  #nameOf(sql: string): string {
    const known = this.#names.get(sql)
    if (known !== undefined) return known
    const verb = /\.(\w+)\(/.exec(sql)?.[1] ?? 'notify'
    const name = `holdfast.${verb}(...) ${createHash('sha256').update(sql).digest('hex').slice(0, 16)}`
    this.#names.set(sql, name)
    return name
  }

  /** A durable call that is one statement; `flush` is its first parameter. */
  async land<T>(
    call: { readonly text: string; readonly values: readonly Value[] },
    read: (rows: Row[]) => T,
    readKept: (answer: string | null) => T,
    { isHasty = false, flush = randomUUID() }: { readonly isHasty?: boolean; readonly flush?: string | undefined } = {},
  ): Promise<T> {
    try {
      return read(await patiently(() => this.hot(call.text, [flush, ...call.values]), { isHasty }))
    } catch (error) {
      if (!hasLanded(error)) throw error
      return readKept(await this.#answerOf(flush))
    }
  }

  /** A durable call of several statements; its answer is kept as JSON. */
  async transact<T>(work: (tx: Transaction) => Promise<T>, flush: string = randomUUID()): Promise<T> {
    try {
      return await patiently(() =>
        this.#transactOnce(
          async (tx) => {
            const answer = await work(tx)
            await tx.query('select holdfast.land($1, $2, $3)', [flush, tx.now, JSON.stringify(answer)])
            return answer
          },
          { durable: true },
        ),
      )
    } catch (error) {
      if (!hasLanded(error)) throw error
      return JSON.parse((await this.#answerOf(flush)) ?? 'null')
    }
  }

  /** Several statements that need not wait for the disk, and may be made again. */
  transactLightly<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return patiently(() => this.#transactOnce(work, { durable: false }))
  }

  async #transactOnce<T>(work: (tx: Transaction) => Promise<T>, { durable }: { durable: boolean }): Promise<T> {
    const client = await this.checkOut()
    try {
      await client.query(durable ? begin : `${begin}; set local synchronous_commit = off`)
      const answer = await work(new Transaction(client, this.schema, this.now))
      await client.query('commit')
      client.release()
      return answer
    } catch (error) {
      await abandon(client, error)
      throw error
    }
  }

  /** A connection that breaks between two statements says so at the next one; it must not end the process. */
  async checkOut(): Promise<PoolClient> {
    const client = await this.pool.connect()
    if (client.listenerCount('error', ignore) === 0) client.on('error', ignore)
    return client
  }

  async #answerOf(flush: string): Promise<string | null> {
    const [row] = await this.query('select holdfast.answer_of($1)', [flush])
    return row?.[0] ?? null
  }
}

export class Transaction {
  readonly client: PoolClient
  readonly #schema: Schema
  #now: number | null

  constructor(client: PoolClient, schema: Schema, now: number | null) {
    this.client = client
    this.#schema = schema
    this.#now = now
  }

  query(text: string, values: readonly Value[]): Promise<Row[]> {
    return rowsOf(this.client, this.#schema.sql(text), values)
  }

  /** The time of everything this transaction does; read it after the locks were taken. */
  async readClock(): Promise<number> {
    const [row] = await this.query('select holdfast.now_ms($1)', [this.#now])
    this.#now = Number(row?.[0])
    return this.#now
  }

  get now(): number {
    if (this.#now === null) throw new Error('readClock was not called.')
    return this.#now
  }

  /** Runs `work`; a Refusal undoes all of it and becomes the answer. */
  async attempt<T>(work: () => Promise<T>): Promise<T | Refused> {
    await this.client.query('savepoint attempt')
    try {
      const answer = await work()
      await this.client.query('release savepoint attempt')
      return answer
    } catch (error) {
      if (!(error instanceof Refusal)) throw error
      await this.client.query('rollback to savepoint attempt; release savepoint attempt')
      return error.refused
    }
  }
}

function ignore(): void {}

async function rowsOf(on: Pool | PoolClient, text: string, values: readonly Value[], name?: string): Promise<Row[]> {
  const result: QueryResult = await on.query({
    name,
    text,
    values: values as Value[],
    rowMode: 'array',
    types: asText,
  } as never)
  return result.rows as unknown as Row[]
}

async function abandon(client: PoolClient, error: unknown): Promise<void> {
  try {
    if (isBroken(error)) throw error
    await client.query('rollback')
    client.release()
  } catch {
    client.release(true) // what cannot be rolled back ends with its connection
  }
}

/** Tries again while the connection breaks or, unless in haste, transactions get in each other's way. */
export async function patiently<T>(
  action: () => Promise<T>,
  { isHasty = false }: { readonly isHasty?: boolean } = {},
): Promise<T> {
  let mayHaveLanded = false
  for (let tries = 1; ; tries++) {
    try {
      return await action()
    } catch (error) {
      if (isHoldfastError(error) || isOurs(error) || !isForeign(error)) throw error
      mayHaveLanded ||= isBroken(error)
      if (isHasty && isCollision(error) && !mayHaveLanded) throw error
      if (tries >= triesMax || !(isBroken(error) || isCollision(error))) throw unavailable(error)
      await sleep(Math.random() * firstPauseMs * 2 ** Math.min(tries, 6))
    }
  }
}

function codeOf(error: unknown): string {
  return String((error as { code?: unknown } | null)?.code ?? '')
}

/** What the server, the driver or the network said; anything else thrown in a transaction is its author's. */
function isForeign(error: unknown): boolean {
  return codeOf(error) !== '' || isBroken(error)
}

function isOurs(error: unknown): boolean {
  return /^HF\d\d\d$/.test(codeOf(error))
}

export function hasLanded(error: unknown): boolean {
  return codeOf(error) === 'HF004'
}

/** A prepared statement that is not there, or is there already, or whose answer has changed its type. */
function isUnprepared(error: unknown): boolean {
  const isStale = codeOf(error) === '0A000' && /cached plan/.test((error as Error).message)
  return isStale || ['26000', '42P05'].includes(codeOf(error))
}

/** The server or the way to it is gone: the outcome is unknown. */
export function isBroken(error: unknown): boolean {
  const code = codeOf(error)
  if (/^(57P0[1-5]|08(?!P01)...|53300|25P0[34])$|^E[A-Z_]+$/.test(code)) return true
  const message = error instanceof Error ? error.message : ''
  return code === '' && /connection|timeout|terminat|not queryable/i.test(message)
}

/**
 * Deadlock, serialization failure, lock timeout: nothing landed. So is a finished job that was on its way into the partition
 * for the rest when the one it belongs to was made.
 */
export function isCollision(error: unknown): boolean {
  const code = codeOf(error)
  return ['40001', '40P01', '55P03'].includes(code) || (code === '23514' && tableOf(error) === 'ended_rest')
}

function tableOf(error: unknown): unknown {
  return (error as { table?: unknown }).table
}

function unavailable(cause: unknown): HoldfastError {
  if (isDenied(cause)) return lacksGrant(cause)
  // Where a host has several addresses, what was wrong with each of them is inside.
  const said = cause instanceof AggregateError ? cause.errors[0] : cause
  const message = said instanceof Error ? said.message : String(said)
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `The PostgreSQL store could not be used: ${message}. Check that the server runs and can be reached; nothing was acknowledged.`,
    { code: codeOf(cause) },
    { cause },
  )
}
