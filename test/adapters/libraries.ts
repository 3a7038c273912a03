// Each library with an adapter, as an application would use it: its own transactions, in its own syntax.
import { sql as drizzleSql } from 'drizzle-orm'
import { drizzle } from 'drizzle-orm/node-postgres'
import { drizzle as drizzleOverPostgresJs } from 'drizzle-orm/postgres-js'
import knex, { type Knex } from 'knex'
import { CamelCasePlugin, Kysely, sql as kyselySql, ParseJSONResultsPlugin, PostgresDialect } from 'kysely'
import { Pool } from 'pg'
import postgresJs from 'postgres'
import {
  type CallerTransaction,
  fromDrizzle,
  fromKnex,
  fromKysely,
  fromPostgresJs,
  fromPrisma,
} from '../../src/adapters/index.ts'
import { type PrismaTx, prismaClient } from './prisma-client.ts'

/** A transaction in progress. */
export interface Own {
  /** The library's object, and the transaction that its adapter returns. */
  readonly itself: unknown
  readonly tx: CallerTransaction
  /** Runs a statement without parameters by the library. */
  run(text: string): Promise<unknown>
  /** A nested transaction. If `work` throws, only this one is rolled back. */
  nest(work: (inner: Own) => Promise<void>): Promise<void>
}

export interface Library extends AsyncDisposable {
  /** If `work` throws, the transaction is rolled back and the error is thrown. */
  transact(work: (own: Own) => Promise<void>): Promise<void>
  /** The database, outside of a transaction. */
  readonly database: unknown
}

export interface LibraryUnderTest {
  readonly name: string
  readonly adapter: (tx: never) => CallerTransaction
  open(url: string): Library
  /** The server's code in an error of the library. */
  codeIn(error: unknown): unknown
}

type DrizzleTx = Parameters<Parameters<ReturnType<typeof drizzle>['transaction']>[0]>[0]

export const libraries: readonly LibraryUnderTest[] = [
  {
    name: 'Drizzle',
    adapter: fromDrizzle,
    open(url) {
      const pool = new Pool({ connectionString: url })
      const db = drizzle(pool)
      return {
        database: db,
        transact: (work) => db.transaction((tx) => work(ownDrizzle(tx))),
        [Symbol.asyncDispose]: () => pool.end(),
      }
    },
    codeIn: causeCode,
  },
  {
    name: 'Drizzle over postgres.js',
    adapter: fromDrizzle,
    open(url) {
      const client = postgresJs(url, { onnotice: () => undefined })
      const db = drizzleOverPostgresJs(client)
      return {
        database: db,
        transact: (work) => db.transaction((tx) => work(ownDrizzle(tx as unknown as DrizzleTx))),
        [Symbol.asyncDispose]: () => client.end(),
      }
    },
    codeIn: causeCode,
  },
  {
    name: 'Kysely',
    adapter: fromKysely,
    open(url) {
      const dialect = new PostgresDialect({ pool: new Pool({ connectionString: url }) })
      // Plugins that would change returned rows.
      const db = new Kysely({ dialect, plugins: [new CamelCasePlugin(), new ParseJSONResultsPlugin()] })
      return {
        database: db,
        async transact(work) {
          const trx = await db.startTransaction().execute()
          let savepoints = 0
          const own: Own = {
            itself: trx,
            tx: fromKysely(trx),
            run: (text) => kyselySql.raw(text).execute(trx),
            async nest(inner) {
              const name = `s${savepoints++}`
              const within = await trx.savepoint(name).execute()
              try {
                await inner({ ...own, itself: within, tx: fromKysely(within) })
              } catch {
                await within.rollbackToSavepoint(name).execute()
              }
            },
          }
          try {
            await work(own)
          } catch (error) {
            await trx.rollback().execute()
            throw error
          }
          await trx.commit().execute()
        },
        [Symbol.asyncDispose]: () => db.destroy(),
      }
    },
    codeIn: ownCode,
  },
  {
    name: 'Kysely, by callback',
    adapter: fromKysely,
    open(url) {
      const db = new Kysely({ dialect: new PostgresDialect({ pool: new Pool({ connectionString: url }) }) })
      return {
        database: db,
        transact: (work) =>
          db.transaction().execute((trx) => {
            const run = (text: string) => kyselySql.raw(text).execute(trx)
            const own: Own = {
              itself: trx,
              tx: fromKysely(trx),
              run,
              async nest(inner) {
                await run('savepoint here')
                await inner(own).catch(() => run('rollback to savepoint here'))
              },
            }
            return work(own)
          }),
        [Symbol.asyncDispose]: () => db.destroy(),
      }
    },
    codeIn: ownCode,
  },
  {
    name: 'Knex',
    adapter: fromKnex,
    open(url) {
      const db = knex({ client: 'pg', connection: url })
      return {
        database: db,
        transact: (work) => db.transaction((trx) => work(ownKnex(trx))),
        [Symbol.asyncDispose]: () => db.destroy(),
      }
    },
    codeIn: ownCode,
  },
  {
    name: 'Prisma',
    adapter: fromPrisma,
    open(url) {
      const prisma = prismaClient(url)
      return {
        database: prisma,
        transact: (work) => prisma.$transaction((tx) => work(ownPrisma(tx))),
        [Symbol.asyncDispose]: () => prisma.$disconnect(),
      }
    },
    codeIn: (error) =>
      (error as { meta: { driverAdapterError: { cause: { originalCode: string } } } }).meta.driverAdapterError.cause
        .originalCode,
  },
  {
    name: 'postgres.js',
    adapter: fromPostgresJs,
    open(url) {
      const sql = postgresJs(url, { onnotice: () => undefined })
      return {
        database: sql,
        transact: (work) => sql.begin((tx) => work(ownPostgresJs(tx))) as Promise<void>,
        [Symbol.asyncDispose]: () => sql.end(),
      }
    },
    codeIn: ownCode,
  },
]

function ownDrizzle(tx: DrizzleTx): Own {
  return {
    itself: tx,
    tx: fromDrizzle(tx),
    run: async (text) => tx.execute(drizzleSql.raw(text)),
    nest: (work) => tx.transaction((inner) => work(ownDrizzle(inner))).catch(() => undefined),
  }
}

function ownKnex(trx: Knex.Transaction): Own {
  return {
    itself: trx,
    tx: fromKnex(trx),
    run: async (text) => trx.raw(text),
    nest: (work) => trx.transaction((inner) => work(ownKnex(inner))).catch(() => undefined),
  }
}

function ownPrisma(tx: PrismaTx): Own {
  return {
    itself: tx,
    tx: fromPrisma(tx),
    run: (text) => tx.$executeRawUnsafe(text),
    nest: (work) => tx.$transaction((inner) => work(ownPrisma(inner))).catch(() => undefined),
  }
}

function ownPostgresJs(sql: postgresJs.TransactionSql): Own {
  return {
    itself: sql,
    tx: fromPostgresJs(sql),
    run: async (text) => sql.unsafe(text),
    nest: (work) => (sql.savepoint((inner) => work(ownPostgresJs(inner))) as Promise<void>).catch(() => undefined),
  }
}

function ownCode(error: unknown): unknown {
  return (error as { code?: unknown }).code
}

function causeCode(error: unknown): unknown {
  return ownCode((error as Error).cause)
}
