// Which adapter a `tx` needs that was passed without one. Only for the error message: the shape of an object is enough for a
// hint, but not for running statements on it.

import { isDrizzle } from './drizzle.ts'
import { isKnex } from './knex.ts'
import { isKysely } from './kysely.ts'
import { isPostgresJs } from './postgres-js.ts'
import { isPrisma } from './prisma.ts'

const adapters: readonly (readonly [name: string, library: string, knows: (value: unknown) => boolean])[] = [
  ['fromDrizzle', 'Drizzle', isDrizzle],
  ['fromKysely', 'Kysely', isKysely],
  ['fromKnex', 'Knex', isKnex],
  ['fromPrisma', 'Prisma', isPrisma],
  ['fromPostgresJs', 'postgres.js', isPostgresJs],
]

/** A sentence, or '' if no known library matches. */
export function adapterHint(tx: unknown): string {
  const [adapter, library] = adapters.find(([, , knows]) => knows(tx)) ?? []
  if (adapter === undefined) return ''
  return ` This is a transaction of ${library}: pass ${adapter}(tx) from holdfast/adapters.`
}
