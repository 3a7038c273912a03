// `holdfast/adapters`: your library's transaction as the `tx` of an enqueue.

export { type DrizzleSqliteTransaction, type DrizzleTransaction, fromDrizzle } from './drizzle.ts'
export { fromKnex, type KnexTransaction } from './knex.ts'
export {
  fromKysely,
  type KyselyDatabase,
  type KyselyStatement,
  type KyselyTransaction,
  kyselyDatabase,
  type SyncConnection,
} from './kysely.ts'
export { fromPostgresJs, type PostgresJsTransaction } from './postgres-js.ts'
export { fromPrisma, type PrismaTransaction } from './prisma.ts'
export type { CallerTransaction, Rows } from './transaction.ts'
