// A database with roles for one test. Roles belong to the whole server, so their names contain the name of the database.
import { type TestDatabase, setup as testDatabase } from './exactness-database.ts'

export interface RoleDatabase extends TestDatabase {
  /** Creates a role without any rights and returns its name. */
  role(name: string): Promise<string>
  /** The database as that role sees it. */
  urlOf(role: string): string
}

export async function setup(): Promise<RoleDatabase> {
  const base = await testDatabase()
  const made: string[] = []
  return {
    ...base,
    async role(name) {
      const role = `${name}_${base.name}`.slice(0, 63)
      await base.rows(`create role ${quoted(role)} login`)
      made.push(role)
      return role
    },
    urlOf(role) {
      const url = new URL(base.url)
      url.username = encodeURIComponent(role)
      return url.href
    },
    async [Symbol.asyncDispose]() {
      for (const role of made) await base.rows(`drop owned by ${quoted(role)} cascade`)
      for (const role of made) await base.rows(`drop role ${quoted(role)}`)
      await base[Symbol.asyncDispose]()
    },
  }
}

function quoted(role: string): string {
  return `"${role.replaceAll('"', '""')}"`
}
