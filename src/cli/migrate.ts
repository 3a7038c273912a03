// Opening a store upgrades its schema. This command does it beforehand, as a role with the rights, or prints the SQL to run.
// The code for PostgreSQL is loaded only when it is needed.

import { isPostgresUrl } from '../store/postgres/connection/address.ts'
import { type Answer, type Call, type Command, UsageError } from './command.ts'
import { requireUrl } from './store.ts'

export const migrate: Command = {
  name: 'migrate',
  operands: '',
  says: 'upgrade the schema of a store to this version, or print the SQL that does',
  options: {
    schema: { value: 'name', says: "PostgreSQL: the schema, if not the URL's ?schema=; holdfast unless given" },
    print: { says: 'PostgreSQL: only print the SQL for a new schema; needs no connection' },
    from: { value: 'version', says: 'with --print: only the steps after this version, for a schema that has it' },
    grant: {
      value: 'use=role,…',
      multiple: true,
      says: 'PostgreSQL: rights of roles: producer, worker or reader; none revokes them',
    },
  },
  examples: [
    'holdfast migrate --store postgres://admin@db.example/app',
    'holdfast migrate --print --schema jobs > holdfast.sql',
    'holdfast migrate --print --from 11 > upgrade.sql',
    'holdfast migrate --grant producer=app_web,worker=app_worker,reader=app_bi',
  ],
  mayCreate: () => true,

  async run(call) {
    if (call.options.isSet('from') && !call.options.isSet('print'))
      throw new UsageError('--from goes with --print; without --print the database itself has the version.')
    const url = call.options.isSet('print') ? call.url || 'postgres://' : requireUrl(call.url)
    if (!isPostgresUrl(url)) return openSqlite(call)
    const { migratePostgres } = await import('./migrate-postgres.ts')
    return migratePostgres(call, url)
  },
}

async function openSqlite({ open, options }: Call): Promise<Answer> {
  const alien = ['schema', 'print', 'grant'].find((name) => options.isSet(name))
  if (alien !== undefined)
    throw new UsageError(`--${alien} is for PostgreSQL; a SQLite file is upgraded when it is opened.`)
  await open()
  return { data: { upToDate: true }, text: 'Up to date: a SQLite file is upgraded whenever it is opened.' }
}
