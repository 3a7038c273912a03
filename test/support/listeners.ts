// Which sessions listen for the stores of this process. Their last statement does not show it, because claims use the same
// connection. So every `listen` is recorded with its connection.
import { Client } from 'pg'

interface Listener {
  readonly client: Client & { readonly processID?: number }
  readonly channel: string
}

const listening: Listener[] = []
const query = Client.prototype.query

Client.prototype.query = function (this: Client, ...args: unknown[]) {
  const channel = typeof args[0] === 'string' ? /^listen (.*)$/s.exec(args[0])?.[1] : undefined
  if (channel !== undefined) listening.push({ client: this, channel })
  return Reflect.apply(query, this, args)
} as typeof query

/** As SQL: the sessions of this database that listen and whose programs have no name. */
export function fromListeningSessions(): string {
  const pids = listening.map(({ client }) => client.processID ?? 0).join(', ')
  return `from pg_stat_activity where datname = current_database() and application_name = ''
    and pid = any (array[${pids}]::int[])`
}

export function channelsOf(pids: readonly number[]): string[] {
  return listening.filter(({ client }) => pids.includes(client.processID ?? 0)).map(({ channel }) => channel)
}

/** The connection that began to listen last. */
export function lastListener(): Client | undefined {
  return listening.at(-1)?.client
}
