// The references: queues in bare SQL over `pg`, one statement a verb, prepared, in batches; ids are made beforehand.
//
// textbook       the claim that most queues make: mark rows as running with `skip locked`, delete them when done.
// reference      the snapshot cursor that the design started from; it reads payload rows twice.
// bare cursor    the same idea as fast as we could make it, in bare-cursor.sql. `bare cursor, by place` is the same with
//                jobs settled each by its place instead of a whole claim by its token.
//
// LEFT OUT: validation and encoding of payloads, queues, priorities, attempts, retries, dedup keys, history, counters,
// wake-ups. A claim reads the payloads that it answers; they are not parsed.
//
// Measured with these statements, batches of 500 on 2 connections, 200k jobs a round, 5 rounds, jobs/s:
//                            drain   full cycle   WAL bytes a job, drain / cycle
//   textbook                   54k        41k        471 / 833
//   reference                 107k        64k         61 / 427
//   bare cursor               278k       104k         58 / 452
//   bare cursor, by place     171k        89k         58 / 452
//
// VARIANTS THAT LOST, and by how much. Two cores shared by client and server, PostgreSQL 18, Node 24, medians of 4 to 7
// interleaved rounds; µs of processor time a job on the client + in the server's connections.
//
// Claim and settle by 500 on 2 connections, 200k jobs waiting (other work on the machine now and then):
//   textbook                                                                            61k jobs/s   1.8 + 17.9
//   reference                                                                          162k          1.7 +  7.9
//   rows from one data-modifying CTE, lease lists places                               144k          1.9 +  9.2
//   rows from arrays by unnest, lease lists places                                     141k          1.8 +  9.4
//   one line of text a job, lease lists places, settled by a join with them            156k          1.6 +  9.2
//   one line of text a job, lease lists places, settled by a lateral look-up           188k          1.4 +  7.4
//   one line of text a job, lease names stretches, settled by token                    299k          1.2 +  3.5
// Columns as arrays instead of lines: 184k against 170k in a run with more noise, 1.8 + 4.0 against 1.4 + 4.6.
//
// How 500 rows travel, of a query that only reads (client + server):
//   objects 1.75 + 0.99 · rowMode array 1.85 + 0.92 · without type parsers 1.46 + 1.04 · one text column a row 1.01 + 1.48
//   json_agg 1.13 + 2.69 · string_agg into JSON 1.34 + 1.37 (parsed) · one string_agg of lines 0.58 + 1.18
//   a string_agg of lines for each column 0.60 + 0.99 · array_agg(text) through the parser of pg 6.18 + 2.05
// Binary results are not possible: pg reads every field as UTF-8 text before a caller can ask for bytes.
//
// How 500 inserted jobs travel, with two indexes (client + server):
//   arrays by pg 2.04 + 6.17 · binary arrays 1.59 + 5.23 · ids as a literal, payloads as a binary array 0.86 + 5.49
//   ids as a literal, payloads as lines 0.91 + 5.69 · json_to_recordset 1.78 + 7.29
// In a run of its own, server only: an order by `with ordinality` from one number a statement 4.86, by an identity column
// 5.25, that by copy 5.51. Without the index on ids 3.72, without any 2.20; `on conflict (id) do nothing` 6.83.
//
// How 500 places travel (client + server): arrays by pg 0.79 + 4.39 · as literals 0.42 + 3.68 · binary 0.61 + 3.69
//   json 0.52 + 4.58 · by id, as a literal 0.41 + 3.34 · the two ends of a stretch 0.30 + 1.52
//
// Plans made while the tables were empty, then 300k jobs: 142 ms a claim and 98 ms a settlement of 500 without
// `enable_seqscan = off`, 2 ms each with it. The setting does not help a settlement that joins the table with an array inside a
// function: 350 and 1,370 ms with only 20k jobs, because the plan began with the table; a lateral look-up took 3 to 4.

import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type pg from 'pg'
import { payload } from './load.ts'

const payloadText = JSON.stringify(payload)

/** What a claim got: column by column, `ids` in the order of the claim. */
export interface RawClaim {
  readonly token: string
  readonly ids: readonly string[]
  /** The place of each job, if its queue settles by place. */
  readonly places: readonly (readonly string[])[]
  readonly payloads: readonly string[]
}

export interface RawQueue {
  readonly schema: string
  enqueue(client: pg.ClientBase, ids: readonly string[]): Promise<void>
  claim(client: pg.ClientBase, max: number): Promise<RawClaim>
  /** Answers how many jobs it found. */
  settle(client: pg.ClientBase, claim: RawClaim): Promise<number>
  /** Selects how many jobs and leases there are. */
  readonly contents: string
}

const textbook: RawQueue = {
  schema: `
    create table job (
      id uuid constraint job_id primary key, seq bigint generated always as identity,
      state text not null default 'ready', lease_until timestamptz, payload text not null
    );
    create index job_ready on job (seq) where state = 'ready'`,
  enqueue: (client, ids) =>
    insert(client, ids, 'insert into job (id, payload) select * from unnest($1::uuid[], $2::text[])'),
  async claim(client, max) {
    const rows = await prepared(client, textbookClaim, [max])
    return { token: '', ids: column(rows, 0), places: [], payloads: column(rows, 1) }
  },
  async settle(client, { ids }) {
    const rows = await prepared(client, textbookSettle, [literal(ids)])
    return Number(rows[0]?.[0])
  },
  contents: 'select (select count(*) from job) as jobs, 0 as leases',
}

const textbookClaim = `
  with taken as materialized (
    select id from job where state = 'ready' order by seq limit $1 for update skip locked
  )
  update job j set state = 'running', lease_until = clock_timestamp() + interval '30 s'
    from taken where j.id = taken.id returning j.id, j.payload`

const textbookSettle = `
  with settled as (
    delete from job j using unnest($1::uuid[]) u (id) where j.id = u.id and j.state = 'running' returning 1
  )
  select count(*) from settled`

const reference: RawQueue = {
  schema: sqlFile('reference-claim.sql'),
  enqueue: (client, ids) =>
    insert(client, ids, 'insert into job (ref, payload) select * from unnest($1::uuid[], $2::text[])'),
  async claim(client, max) {
    const token = randomUUID()
    const rows = await prepared(client, `select * from claim_jobs(1, $1, '30 s', 'process-12345', $2)`, [max, token])
    const ids = column(rows, 1)
    return { token, ids, places: [ids, column(rows, 2)], payloads: column(rows, 4) }
  },
  async settle(client, { token, places: [ids = [], xids = []] }) {
    const rows = await prepared(client, referenceSettle, [token, literal(ids), literal(xids)])
    return Number(rows[0]?.[0])
  },
  contents: 'select (select count(*) from job) as jobs, (select count(*) from claim) as leases',
}

const referenceSettle = `
  with held as materialized (select cardinality(job_ids) as jobs from claim where token = $1),
  settled as (
    delete from job j using unnest($2::bigint[], $3::xid8[]) u (id, xid)
     where j.id = u.id and j.ready_xid = u.xid and exists (select from held) returning 1
  ),
  counted as (select count(*) as n from settled),
  over as (delete from claim using held, counted where token = $1 and jobs = n)
  select n from counted`

const bareCursor: RawQueue = {
  schema: sqlFile('bare-cursor.sql'),
  enqueue: (client, ids) => insert(client, ids, bareInsert),
  async claim(client, max) {
    const token = randomUUID()
    const [row] = await prepared(client, `select * from claim_jobs(1, $1, '30 s', 'process-12345', $2)`, [max, token])
    if (!row) return { token, ids: [], places: [], payloads: [] }
    const [xids, ords, ids, payloads] = row as [string, string, string, string]
    const claim = {
      token,
      ids: elements(ids),
      places: [elements(xids), elements(ords)],
      payloads: payloads.split('\n'),
    }
    if (claim.payloads.length !== claim.ids.length)
      throw new Error('A payload contains a line break: this run is invalid.')
    return claim
  },
  async settle(client, { token }) {
    const rows = await prepared(client, 'select settle_claim($1)', [token])
    return Number(rows[0]?.[0])
  },
  contents: 'select (select count(*) from job) as jobs, (select count(*) from lease) as leases',
}

const bareInsert = `
  insert into job (lane, ord, id, payload)
  select 1, (first.no << 20) + n, id, payload
    from (select nextval('job_ord') as no offset 0) first, unnest($1::uuid[], $2::text[]) with ordinality u (id, payload, n)`

const bareCursorByPlace: RawQueue = {
  ...bareCursor,
  async settle(client, { token, places: [xids = [], ords = []] }) {
    const rows = await prepared(client, 'select settle_jobs($1, $2, $3)', [token, literal(xids), literal(ords)])
    return Number(rows[0]?.[0])
  },
}

export const rawQueues = {
  textbook,
  reference,
  'bare cursor': bareCursor,
  'bare cursor, by place': bareCursorByPlace,
} as const satisfies Record<string, RawQueue>

async function insert(client: pg.ClientBase, ids: readonly string[], text: string): Promise<void> {
  await prepared(client, text, [literal(ids), textArray(ids.map(() => payloadText))])
}

// The text is also the name of the statement: a connection serves one queue only.
async function prepared(client: pg.ClientBase, text: string, values: unknown[]): Promise<(string | null)[][]> {
  const name = text.length < 60 ? text : text.trim().slice(0, 60)
  const { rows } = await client.query({ name, text, values, rowMode: 'array', types: asText })
  return rows
}

const asText = { getTypeParser: () => (value: string) => value } as unknown as pg.CustomTypesConfig

function column(rows: readonly (readonly (string | null)[])[], at: number): string[] {
  return rows.map((row) => row[at] as string)
}

/** An array literal of values that need no quotes: numbers and uuids. */
function literal(values: readonly string[]): string {
  return `{${values.join(',')}}`
}

function elements(text: string): string[] {
  return text.slice(1, -1).split(',')
}

const textOid = 25

/** A text[] as PostgreSQL sends and receives it in binary; pg passes a Buffer on as it is. */
function textArray(values: readonly string[]): Buffer {
  let size = 20
  const lengths = values.map((value) => Buffer.byteLength(value))
  for (const length of lengths) size += 4 + length
  const bytes = Buffer.allocUnsafe(size)
  const header = [1, 0, textOid, values.length, 1] // dimensions, no nulls, type, length, lower bound
  for (const [i, value] of header.entries()) bytes.writeInt32BE(value, i * 4)
  let at = 20
  for (const [i, value] of values.entries()) {
    at = bytes.writeInt32BE(lengths[i] as number, at)
    at += bytes.write(value, at)
  }
  return bytes
}

function sqlFile(name: string): string {
  return readFileSync(new URL(name, import.meta.url), 'utf8')
}
