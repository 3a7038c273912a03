// Grants roles their uses of the schema, in one transaction: all of them, or none.

import type { ClientBase } from 'pg'
import { HoldfastError } from '../../../errors.ts'
import { steps } from './migrations.ts'
import { ownObjects } from './own-objects.ts'
import { grantScript, type RoleUses } from './roles.ts'
import type { Schema } from './schema.ts'

export async function grantRoles(client: ClientBase, schema: Schema, uses: RoleUses): Promise<void> {
  if (uses.size === 0) return
  await client.query('begin')
  try {
    await client.query(schema.sql('select pg_advisory_xact_lock(SCHEMA_LOCKS, 0)'))
    for (const [role, granted] of uses) await grantRole(client, schema, role, new Map([[role, granted]]))
    await client.query('commit')
  } catch (error) {
    await client.query('rollback').catch(() => undefined) // the connection is gone, and with it the transaction
    throw error
  }
}

async function grantRole(client: ClientBase, schema: Schema, role: string, uses: RoleUses): Promise<void> {
  try {
    await client.query(grantScript(schema, uses, ownObjects(steps)))
  } catch (error) {
    const { code } = error as { code?: unknown }
    if (code === '42704') throw notGrantable(role, 'there is no such role', 'Make it first (create role)', error)
    if (code === 'HF011') throw notGrantable(role, 'it owns the schema', 'An owner may do everything as it is', error)
    if (code === '42501') throw notGrantable(role, 'only the owner of the schema may', 'Do it as its owner', error)
    throw error
  }
}

function notGrantable(role: string, why: string, advice: string, cause: unknown): HoldfastError {
  const message = `Role ${role} cannot be granted anything: ${why}. ${advice}; nothing was changed.`
  return new HoldfastError('INVALID_OPTION', message, { option: 'grant', role }, { cause })
}
