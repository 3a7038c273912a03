// The least work that passes a job from one process to another through a PostgreSQL server: a row and a notification in one
// commit that waits for the disk, and one statement that deletes the rows when the notification arrives. No lease is held,
// nothing is counted, and a worker that dies loses its jobs.

import pg from 'pg'
import { orderOf, type Peer, type PeerPayload, type Place } from './peer.ts'

export async function openRawListener({ postgres: url, schema }: Place): Promise<Peer> {
  await using stack = new AsyncDisposableStack()
  const connect = async () => {
    const client = new pg.Client({ connectionString: url })
    await client.connect()
    stack.defer(() => client.end())
    return client
  }
  const client = await connect()
  const listener = await connect()
  await client.query(`create schema if not exists ${schema}`)
  await client.query(`create table if not exists ${schema}.job (id bigserial primary key, payload jsonb not null)`)
  const insert = `with added as (insert into ${schema}.job (payload) select * from jsonb_array_elements($1))
    select pg_notify('${schema}', '')`
  const take = `with taken as (
      delete from ${schema}.job where id = any (array(
        select id from ${schema}.job order by id limit 500 for update skip locked))
      returning payload)
    select payload from taken cross join (select set_config('synchronous_commit', 'off', true)) as quick`
  const add = (jobs: readonly PeerPayload[]) =>
    client.query({ name: 'insert', text: insert, values: [JSON.stringify(jobs)] })
  const ends = stack.move()
  return {
    enqueue: (job) => add([job]),
    enqueueMany: add,
    work: async (handler) => {
      const takeJobs = async () => {
        const { rows } = await client.query<{ payload: PeerPayload }>({ name: 'take', text: take })
        for (const { payload } of rows) void handler(orderOf(payload), payload)
      }
      listener.on('notification', takeJobs)
      await listener.query(`listen ${schema}`)
      await takeJobs()
      return { stop: async () => void (await listener.query(`unlisten ${schema}`)) }
    },
    contents: async () => {
      const { rows } = await client.query<{ n: number }>(`select count(*)::int as n from ${schema}.job`)
      return { waiting: rows[0]?.n ?? 0, running: 0, kept: 0 }
    },
    [Symbol.asyncDispose]: () => ends.disposeAsync(),
  }
}
