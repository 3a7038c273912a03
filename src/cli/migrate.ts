// Opening a store brings its schema up. This command does it beforehand, by a role that may, or prints what to run.
// What is PostgreSQL's is loaded when it is asked for.

import { isPostgresUrl } from '../store/postgres/connection/address.ts'
import { type Answer, type Call, type Command, UsageError } from './command.ts'
import { requireUrl } from './store.ts'

export const migrate: Command = {
  name: 'migrate',
  operands: '',
  says: 'brings the schema of a store up to this version, or prints the SQL that does',
  options: {
    schema: { value: 'name', says: "PostgreSQL: the schema, if not the URL's ?schema=; holdfast unless given" },
    print: { says: 'PostgreSQL: only print the SQL for a new schema; needs no connection' },
    from: { value: 'version', says: 'with --print: only the steps from this version on, for a schema that is at it' },
    grant: {
      value: 'use=role,…',
      multiple: true,
      says: 'PostgreSQL: what roles may do: producer, worker or reader; none takes it back',
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
      throw new UsageError('--from goes with --print; without it the database itself says where it is.')
    const url = call.options.isSet('print') ? call.url || 'postgres://' : requireUrl(call.url)
    if (!isPostgresUrl(url)) return openSqlite(call)
    const { migratePostgres } = await import('./migrate-postgres.ts')
    return migratePostgres(call, url)
  },
}

async function openSqlite({ open, options }: Call): Promise<Answer> {
  const alien = ['schema', 'print', 'grant'].find((name) => options.isSet(name))
  if (alien !== undefined)
    throw new UsageError(`--${alien} is for PostgreSQL; a SQLite file is brought up by opening it.`)
  await open()
  return { data: { upToDate: true }, text: 'Up to date: a SQLite file is brought up whenever it is opened.' }
}
