// Which adapter something needs that was given as `tx` as it is. Only for what is said about it: what an object looks like is
// reason enough for a hint, and not for running statements on it.

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

/** A sentence, or nothing where the library is none that is known. */
export function adapterHint(tx: unknown): string {
  const [adapter, library] = adapters.find(([, , knows]) => knows(tx)) ?? []
  if (adapter === undefined) return ''
  return ` This one is of ${library}: pass ${adapter}(tx), which comes from holdfast/adapters.`
}
