// Which sessions listen for the stores of this process: what they were asked last does not tell, because claims go over the
// same connection. So it is noted who sent a `listen`.
import { Client } from 'pg'

interface Listener {
  readonly client: Client & { readonly processID?: number }
  readonly channel: string
}

const noted: Listener[] = []
const query = Client.prototype.query

Client.prototype.query = function (this: Client, ...args: unknown[]) {
  const channel = typeof args[0] === 'string' ? /^listen (.*)$/s.exec(args[0])?.[1] : undefined
  if (channel !== undefined) noted.push({ client: this, channel })
  return Reflect.apply(query, this, args)
} as typeof query

/** As SQL: of this database, those that are there and whose programs have no name. */
export function whoListens(): string {
  const pids = noted.map(({ client }) => client.processID ?? 0).join(', ')
  return `from pg_stat_activity where datname = current_database() and application_name = ''
    and pid = any (array[${pids}]::int[])`
}

export function channelsHeard(pids: readonly number[]): string[] {
  return noted.filter(({ client }) => pids.includes(client.processID ?? 0)).map(({ channel }) => channel)
}

/** The connection that began to listen last. */
export function lastListener(): Client | undefined {
  return noted.at(-1)?.client
}
