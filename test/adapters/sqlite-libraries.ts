// Each library that has an adapter, on SQLite, as an application uses it.
import { DatabaseSync } from 'node:sqlite'
import BetterSqlite3 from 'better-sqlite3'
import knex, { type Knex } from 'knex'
import { CamelCasePlugin, Kysely, sql as kyselySql, ParseJSONResultsPlugin, SqliteDialect } from 'kysely'
import { fromKnex, fromKysely, kyselyDatabase, type SyncConnection } from '../../src/adapters/index.ts'
import type { SqliteDriver } from '../../src/store/sqlite/connection/driver.ts'
import type { Library, LibraryUnderTest, Own } from './libraries.ts'

export interface SqliteLibraryUnderTest extends LibraryUnderTest {
  readonly driver: SqliteDriver
  open(path: string): Library
}

const timeout = 5_000

export const sqliteLibraries: readonly SqliteLibraryUnderTest[] = [
  {
    name: 'Kysely',
    driver: 'better-sqlite3',
    adapter: fromKysely,
    open: (path) => kyselyOn(new BetterSqlite3(path, { timeout })),
    codeIn: (error) => (error as { code?: unknown }).code,
  },
  {
    name: 'Kysely',
    driver: 'node:sqlite',
    adapter: fromKysely,
    open: (path) => kyselyOn(new DatabaseSync(path, { timeout })),
    codeIn: (error) => ((error as { errcode?: unknown }).errcode === 5 ? 'SQLITE_BUSY' : error),
  },
  {
    name: 'Knex',
    driver: 'better-sqlite3',
    adapter: fromKnex,
    open(path) {
      const db = knex({ client: 'better-sqlite3', connection: { filename: path }, useNullAsDefault: true })
      return {
        database: db,
        transact: (work) => db.transaction((trx) => work(ownKnex(trx))),
        [Symbol.asyncDispose]: () => db.destroy(),
      }
    },
    codeIn: (error) => (error as { code?: unknown }).code,
  },
]

function kyselyOn(database: SyncConnection): Library {
  const dialect = new SqliteDialect({ database: kyselyDatabase(database) })
  // These plugins change the rows of results.
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
}

function ownKnex(trx: Knex.Transaction): Own {
  return {
    itself: trx,
    tx: fromKnex(trx),
    run: async (text) => trx.raw(text),
    nest: (work) => trx.transaction((inner) => work(ownKnex(inner))).catch(() => undefined),
  }
}
