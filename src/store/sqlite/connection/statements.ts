// Statements on one connection: the store's own, or the caller's for the length of a call. Each text is prepared once.

import type { SQLInputValue } from 'node:sqlite'
import type { SyncDatabase, SyncStatement } from './driver.ts'

export class Connection {
  readonly #db: SyncDatabase
  readonly #statements = new Map<string, SyncStatement>()

  constructor(db: SyncDatabase) {
    this.#db = db
  }

  get isInTransaction(): boolean {
    return this.#db.isTransaction
  }

  // Statements use `limit +?`, not `limit ?`. SQLite reads the value of a bare `?` when it plans, so it plans again each time a
  // value is bound: 20 against 2.5 µs for a claim of one job.

  run(sql: string, ...values: SQLInputValue[]): number {
    return Number(this.#statement(sql).run(...values).changes)
  }

  get<Row>(sql: string, ...values: SQLInputValue[]): Row | undefined {
    return this.#statement(sql).get(...values) as Row | undefined
  }

  /** Like `get` and `all`, but rows are tuples. Wide rows cost a third: 1.3 against 4.0 µs for 15 columns. */
  getTuple<Tuple extends readonly unknown[]>(sql: string, ...values: SQLInputValue[]): Tuple | undefined {
    return this.#tuples(sql).get(...values) as Tuple | undefined
  }

  allTuples<Tuple extends readonly unknown[]>(sql: string, ...values: SQLInputValue[]): Tuple[] {
    return this.#tuples(sql).all(...values) as unknown as Tuple[]
  }

  /** One row at a time, for a caller that may stop early. */
  eachTuple<Tuple extends readonly unknown[]>(sql: string, ...values: SQLInputValue[]): Iterable<Tuple> {
    return this.#tuples(sql).iterate(...values) as unknown as Iterable<Tuple>
  }

  all<Row>(sql: string, ...values: SQLInputValue[]): Row[] {
    return this.#statement(sql).all(...values) as Row[]
  }

  exec(sql: string): void {
    this.#statement(sql).run()
  }

  /** For statements of the application. There may be any number of them, so they are not cached: 12 µs each. */
  prepareOnce(sql: string): SyncStatement {
    return this.#db.prepare(sql)
  }

  /** Runs `work`. If it throws, all its writes are rolled back, and no others. */
  savepoint<T>(work: () => T): T {
    this.exec('savepoint one')
    try {
      const answer = work()
      this.exec('release one')
      return answer
    } catch (error) {
      if (this.isInTransaction) {
        // SQLite may have rolled back the whole transaction: disk full, raise(rollback)
        this.exec('rollback to one')
        this.exec('release one')
      }
      throw error
    }
  }

  #statement(sql: string): SyncStatement {
    let statement = this.#statements.get(sql)
    if (!statement) {
      statement = this.#db.prepare(sql)
      // A caller's connection may have been opened with other defaults for rows.
      statement.setReadBigInts(false)
      statement.setReturnArrays(false)
      this.#statements.set(sql, statement)
    }
    return statement
  }

  #tuples(sql: string): SyncStatement {
    const known = this.#statements.get(sql)
    if (known) return known
    const statement = this.#statement(sql)
    statement.setReturnArrays(true)
    return statement
  }
}
