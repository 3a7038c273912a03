// `holdfast migrate` on PostgreSQL: upgrades the schema or prints its SQL, and grants rights to roles.

import { postgresAddress } from '../store/postgres/connection/address.ts'
import { withClient } from '../store/postgres/connection/one-off-client.ts'
import { grantRoles } from '../store/postgres/schema/grant.ts'
import { migrate as bringUp } from '../store/postgres/schema/migrate.ts'
import { migrationScript, steps } from '../store/postgres/schema/migrations.ts'
import { isUse, type Roles, type RoleUses, usesByRole } from '../store/postgres/schema/roles.ts'
import { Schema } from '../store/postgres/schema/schema.ts'
import { type Answer, type Call, UsageError } from './command.ts'

export async function migratePostgres(call: Call, url: string): Promise<Answer> {
  const address = postgresAddress(url)
  const schema = new Schema(call.options.text('schema') ?? address.schema ?? 'holdfast')
  const uses = usesByRole(rolesOf(call.options.texts('grant')))
  return call.options.isSet('print') ? print(schema, fromOf(call), uses) : bringUpAt(address.url, schema, uses)
}

function rolesOf(grants: readonly string[]): Roles {
  const roles: Record<string, string[]> = {}
  for (const grant of grants.flatMap((text) => text.split(','))) {
    const [, use, role] = /^(\w+)=(.+)$/.exec(grant.trim()) ?? []
    if (use === undefined || role === undefined || !(isUse(use) || use === 'none'))
      throw new UsageError(`--grant must be as in producer=app_web,worker=app_worker,reader=app_bi; got "${grant}".`)
    roles[use] = [...(roles[use] ?? []), role]
  }
  return roles
}

function fromOf({ options }: Call): number {
  const from = options.number('from') ?? 0
  if (Number.isInteger(from) && from >= 0 && from <= steps.length) return from
  throw new UsageError(`--from must be a version of the schema, up to ${steps.length}; got "${options.text('from')}".`)
}

function print(schema: Schema, from: number, uses: RoleUses): Answer {
  const sql = migrationScript(schema, { from, uses }).trimEnd()
  return { data: { schema: schema.name, from, to: steps.length, sql }, text: sql, isVerbatim: true }
}

async function bringUpAt(url: string, schema: Schema, uses: RoleUses): Promise<Answer> {
  const { from, to } = await withClient(url, async (client) => {
    const brought = await bringUp(client, schema)
    await grantRoles(client, schema, uses)
    return brought
  })
  const granted = [...uses].map(([role, of]) => `Role ${role}: ${of.join(', ') || 'no rights any more'}.`)
  return {
    data: { schema: schema.name, from, to, granted: Object.fromEntries(uses) },
    text: [textOf(schema.name, from, to), ...granted].join('\n'),
  }
}

function textOf(schema: string, from: number, to: number): string {
  if (from > steps.length)
    return `Schema ${schema} is at version ${to}, which is newer than this Holdfast (${steps.length}) and compatible with it.`
  if (from === to) return `Schema ${schema} is already at version ${to}.`
  if (from === 0) return `Created schema ${schema} at version ${to}.`
  return `Upgraded schema ${schema} from version ${from} to version ${to}.`
}
