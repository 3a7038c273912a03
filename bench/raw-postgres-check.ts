// Checks whether the bare cursor is a valid reference: see raw-postgres-exact.ts.

import pg from 'pg'
import { makeIds } from './ids.ts'
import { dropSchema } from './postgres-contenders.ts'
import { rawQueues } from './raw-postgres.ts'
import { exactness, jobsMax } from './raw-postgres-exact.ts'

const schema = 'raw_check'
const connections = 14
const transactions = 300

/** Throws unless both settlements of the bare cursor pass the randomised run. */
export async function checkBareCursor(url: string, seed: number): Promise<void> {
  for (const name of ['bare cursor', 'bare cursor, by place'] as const) {
    await dropSchema(url, schema)
    const clients = Array.from(
      { length: connections },
      () => new pg.Client({ connectionString: url, options: `-c search_path=${schema}` }),
    )
    await Promise.all(clients.map((client) => client.connect()))
    await clients[0]?.query(`create schema ${schema}`)
    await clients[0]?.query(rawQueues[name].schema)
    const ids = makeIds(transactions * jobsMax)
    const found = await exactness(rawQueues[name], { clients, claimers: 2, transactions, seed, ids })
    await Promise.all(clients.map((client) => client.end()))
    await dropSchema(url, schema)
    if (found.hidden + found.twice + found.invented > 0)
      throw new Error(`The ${name} is wrong, seed ${seed}: ${JSON.stringify(found)}`)
  }
}
