// `holdfast/adapters`: your library's transaction as the `tx` of an enqueue.

export { type DrizzleTransaction, fromDrizzle } from './drizzle.ts'
export { fromKnex, type KnexTransaction } from './knex.ts'
export { fromKysely, type KyselyTransaction } from './kysely.ts'
export { fromPostgresJs, type PostgresJsTransaction } from './postgres-js.ts'
export { fromPrisma, type PrismaTransaction } from './prisma.ts'
export type { CallerTransaction, Rows } from './transaction.ts'
