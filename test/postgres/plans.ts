// Blocks that the hot statements touch. Each is run as a session of the store would run it, and the server reports how many
// blocks it read. A session keeps its plans, so one that planned for an empty table uses the same plan for a full one.
import { randomBytes, randomUUID } from 'node:crypto'
import pg from 'pg'
import { open } from '../../src/open.ts'
import type { Database, Server } from '../support/postgres.ts'
import { databaseOn } from './exactness-database.ts'

/** Settled one by one: more stretches than are deleted range by range. */
const batch = 24
const few = 5

/** Blocks touched by each verb. */
export type Costs = Record<string, number>

export class TestDatabase implements AsyncDisposable {
  readonly #database: Database
  readonly #sessions: pg.Client[] = []

  /** Autovacuum is off: statistics stay as wrong as the test makes them. */
  static async make(server: Server): Promise<TestDatabase> {
    const database = new TestDatabase(await databaseOn(server))
    const holdfast = await open(database.#database.url)
    await holdfast.queue('mail').enqueue(0)
    await holdfast.queue('bulk').enqueue(0)
    await (await holdfast.claim(['mail', 'bulk'], { max: 2, lease: '1h' })).at(0)?.done()
    await holdfast.close()
    const session = await database.session()
    const { rows } = await session.query(`select oid::regclass as name from pg_class
      where relnamespace = 'holdfast'::regnamespace and relkind = 'r'`)
    for (const { name } of rows) await session.query(`alter table ${name} set (autovacuum_enabled = off)`)
    await session.query('truncate holdfast.job, holdfast.lease, holdfast.tally')
    await session.query('alter table holdfast.job set unlogged') // for speed: plans and blocks are the same
    await session.query('vacuum analyze')
    return database
  }

  private constructor(database: Database) {
    this.#database = database
  }

  async session(): Promise<pg.Client> {
    const client = new pg.Client({ connectionString: this.#database.url })
    await client.connect()
    this.#sessions.push(client)
    return client
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const client of this.#sessions) await client.end()
    await this.#database[Symbol.asyncDispose]()
  }
}

/** Runs every verb twice and returns the blocks of the second time: the first also reads the catalogs. */
export async function costs(session: pg.Client, queue = 'mail'): Promise<Costs> {
  await cycle(session, queue)
  return cycle(session, queue)
}

async function cycle(session: pg.Client, queue: string): Promise<Costs> {
  const { lane, epoch } = await laneOf(session, queue)
  const known = `array[${lane}], array['${epoch}'::uuid]`
  const enqueue = await touched(
    session,
    `select holdfast.enqueue_plain('${randomUUID()}', ${ids()}, ${list(lane, 'int')},
    ${list(25, 'smallint')}, ${list("'{}'", 'text')}, null, null, null, null, null, ${known}, null)`,
  )
  const enqueueOne = await touched(
    session,
    `select holdfast.enqueue_one('${randomUUID()}', '${randomUUID()}', ${lane}, '${epoch}', 25::smallint, '{}', null, null, null, null)`,
  )
  const claimOne = await touched(
    session,
    `select * from holdfast.claim_one('${randomUUID()}', 'worker', 3600000, 1, '${queue}', ${lane}, '${epoch}', '{}', null)`,
  )
  const key = randomUUID()
  const job = () =>
    JSON.stringify([
      [
        {
          id: randomUUID(),
          name: queue,
          lane,
          epoch,
          payload: '1',
          maxAttempts: 25,
          dedupKey: key,
          dedupScope: 'live',
        },
      ],
    ])
  const dedup = await touched(session, `select holdfast.enqueue('${job()}', null, null, false)`)
  const duplicate = await touched(session, `select holdfast.enqueue('${job()}', null, null, false)`)
  const first = await claim(session, queue, batch)
  const second = await claim(session, queue, batch)
  const renew = await touched(
    session,
    `select * from holdfast.renew(${first.holds}, array_fill(60000::bigint, array[${first.count}]), null)`,
  )
  const cancelled = await touched(session, `select holdfast.cancel_requested(${first.holds})`)
  const shares = `array_fill(0.5::float8, array[${first.count}]), null, null`
  const progress = await touched(session, `select holdfast.progress(${first.holds}, ${shares})`)
  const held = await touched(session, `select * from holdfast.leased(${first.holds})`)
  const settleFew = await touched(session, settled(first.few))
  const settle = await touched(session, settled(first.rest))
  await session.query(settled(second.holds))
  const now = Date.now()
  await delayed(session, { lane, known }, now - 5_000)
  const promote = await touched(session, `select * from holdfast.promote(${batch}, ${now})`)
  const third = await claim(session, queue, batch, 1)
  const expired = await touched(session, `select * from holdfast.expired_leases(1, ${now + 3_000}, 0, null, ${now})`)
  await session.query(settled(third.holds))
  const due = await touched(session, 'select holdfast.next_due()')
  const prune = await touched(session, `select holdfast.prune(100, ${now})`)
  const pruneProgress = await touched(session, 'select holdfast.prune_progress(1000)')
  return {
    ...{
      enqueue,
      enqueueOne,
      claimOne,
      dedup,
      duplicate,
      claim: first.cost,
      renew,
      cancelled,
      progress,
      held,
      settleFew,
      settle,
    },
    ...{ promote, expired, due, prune, pruneProgress },
  }
}

async function laneOf(session: pg.Client, queue: string): Promise<{ lane: number; epoch: string }> {
  const { rows } = await session.query(
    'select l.no as lane, l.epoch from holdfast.lane l join holdfast.queue q on q.no = l.queue where q.name = $1',
    [queue],
  )
  return rows[0]
}

/** Scheduled jobs whose time has come. */
async function delayed(
  session: pg.Client,
  { lane, known }: { readonly lane: number; readonly known: string },
  runAt: number,
): Promise<void> {
  await session.query(`select holdfast.enqueue_plain('${randomUUID()}', ${ids()}, ${list(lane, 'int')}, ${list(25, 'smallint')},
    ${list("'{}'", 'text')}, null, null, null, ${list(runAt, 'bigint')}, null, ${known}, ${runAt - 1})`)
}

interface Claimed {
  readonly cost: number
  readonly count: number
  /** As SQL: the parameters that name the holds: all, a few, the rest. */
  readonly holds: string
  readonly few: string
  readonly rest: string
}

export async function claim(
  session: pg.Client,
  queue: string | null,
  max: number,
  leaseMs = 3_600_000,
): Promise<Claimed> {
  const token = randomBytes(16).toString('hex')
  const queues = queue === null ? 'null' : `'{${queue}}'`
  const cost = await touched(
    session,
    `select * from holdfast.claim('${token}', 'w', ${leaseMs}, ${max}, ${queues}, '{}', null)`,
  )
  const { rows } = await session.query(
    `select l.lane, u.xid::text, u.ord from holdfast.lease l cross join lateral unnest(l.xids, l.ords) u(xid, ord)
      where l.token = $1`,
    [token],
  )
  const holds = (some: typeof rows) => {
    const column = (value: (row: (typeof rows)[0], i: number) => unknown) => `'{${some.map(value).join(',')}}'`
    const [first, last] = [column(({ ord }) => ord), column(({ ord }) => ord)]
    const places = [column(() => 1), column(({ lane }) => lane), column(({ xid }) => xid), first, last]
    return [`'{${token}}'`, ...places, column((_, i) => i + 1)].join(', ')
  }
  return { cost, count: rows.length, holds: holds(rows), few: holds(rows.slice(0, few)), rest: holds(rows.slice(few)) }
}

function settled(holds: string): string {
  return `select holdfast.settle_done('${randomUUID()}', ${holds}, null, null, null)`
}

/** Oids below are those of the catalogs, and of their indexes and TOAST tables. */
const firstOwnOid = 16_384

const selectFetched = `select coalesce(sum(pg_stat_get_xact_blocks_fetched(oid)), 0)::int as blocks from pg_class
  where oid >= ${firstOwnOid}`

/**
 * Blocks of the store's tables and indexes that this call read, from memory or disk, including those of the functions that it
 * calls. Blocks of the catalogs do not count: how many a session reads depends on what others do. Where tests in other databases
 * create and drop many tables, the server tells every session to forget all that it knows of the catalogs, and the next call
 * reads 1,900 blocks of them anew.
 *
 * The call is a transaction, which is rolled back with `undo`.
 */
export async function touched(session: pg.Client, call: string, { undo = false } = {}): Promise<number> {
  await session.query('begin')
  const before = (await session.query(selectFetched)).rows[0].blocks // of earlier transactions, not reported yet
  await session.query(call)
  const after = (await session.query(selectFetched)).rows[0].blocks
  await session.query(undo ? 'rollback' : 'commit')
  return after - before
}

function ids(): string {
  return `'{${Array.from({ length: batch }, () => randomUUID())}}'`
}

function list(value: unknown, type: string): string {
  return `array_fill(${value}::${type}, array[${batch}])`
}

/** Ready jobs of one transaction in a queue's lane. */
export async function fill(session: pg.Client, queue: string, jobs: number): Promise<void> {
  const { lane } = await laneOf(session, queue)
  await session.query(
    `insert into holdfast.job (seq, ord, ready_xid, run_at, created_at, id, lane, max_attempts, payload)
     select n, n, pg_current_xact_id(), 0, 0, lpad(to_hex(n), 32, '0')::uuid, $1, 25, '{}'
       from (select nextval('holdfast.number') as n from generate_series(1, $2::int)) s`,
    [lane, jobs],
  )
}

/** The same, but indexes are built after the jobs: a third of the time. Sessions that have plans make new ones. */
export async function fillQuickly(session: pg.Client, queue: string, jobs: number): Promise<void> {
  const { rows } = await session.query(
    `select indexname as name, indexdef as sql from pg_indexes where schemaname = 'holdfast' and tablename = 'job'`,
  )
  for (const { name } of rows) await session.query(`drop index holdfast.${name}`)
  await fill(session, queue, jobs)
  for (const { sql } of rows) await session.query(sql)
}

/** As if claims had passed all jobs that exist now. */
export async function passAll(session: pg.Client, queue: string): Promise<void> {
  const { lane } = await laneOf(session, queue)
  await session.query(
    `insert into holdfast.lane_cursor (lane, xid, ord, gap_xids, gap_ords)
     values ($1, pg_snapshot_xmax(pg_current_snapshot()), 0, '{}', '{}')`,
    [lane],
  )
}

/** Blocks touched by checkpoints, signals and deliveries. Runs all twice, as `costs`. */
export async function journalCosts(session: pg.Client): Promise<Costs> {
  await journalCycle(session)
  return journalCycle(session)
}

async function journalCycle(session: pg.Client): Promise<Costs> {
  const { lane, epoch } = await laneOf(session, 'mail')
  const known = `array[${lane}], array['${epoch}'::uuid]`
  const jobs = ids()
  await session.query(`select holdfast.enqueue_plain('${randomUUID()}', ${jobs}, ${list(lane, 'int')},
    ${list(25, 'smallint')}, ${list("'{}'", 'text')}, null, null, null, null, null, ${known}, null)`)
  const { holds, count } = await claim(session, 'mail', batch)
  const { rows } = await session.query<{ turn: number; id: string }>(`select turn, id from holdfast.leased(${holds})`)
  const inOrder = rows.toSorted((a, b) => a.turn - b.turn).map(({ id }) => id)
  const key = randomUUID()
  const writes = (n: number) =>
    JSON.stringify(
      inOrder.map(() => ({
        records: [{ no: n, step: `step ${n}`, part: 0, body: '{}' }],
        partial: `${n}`,
        awaits: [{ key, name: 'paid' }],
      })),
    )
  const checkpointOf = (n: number) =>
    touched(
      session,
      `select holdfast.checkpoint('${randomUUID()}', ${holds}, array_fill(60000::bigint, array[${count}]), '${writes(n)}', null)`,
    )
  const first = await checkpointOf(1)
  const checkpoint = await checkpointOf(2)
  const parked = inOrder.map((id) => ({
    ...{ id, lane, ready: false, runAt: Date.now() + 3_600_000, attempts: 0, free_releases: 1, past: null },
    ...{ snoozed: true, parked: true },
  }))
  const park = await touched(session, `select holdfast.wait_again('${JSON.stringify(parked)}', holdfast.now_ms(null))`)
  const all = `'{${inOrder}}'`
  const look = await touched(session, `select holdfast.deliver(${all}, '{}', '{}', null)`)
  const [one, ...others] = inOrder
  const message = JSON.stringify([{ id: one, name: 'paid', value: '1' }])
  const signal = await touched(session, `select holdfast.signal('${randomUUID()}', '${message}', null)`)
  const deliver = await touched(session, `select holdfast.deliver('{${one}}', '{}', '{}', null)`)
  const toKey = JSON.stringify([{ key, name: 'paid', value: '1', ttlMs: 60_000 }])
  const signalKey = await touched(session, `select holdfast.signal('${randomUUID()}', '${toKey}', null)`)
  const deliverKey = await touched(session, `select holdfast.deliver('{}', '{${key}}', '{paid}', null)`)
  const journals = await touched(session, `select * from holdfast.journals(${all}, 0, 1000000, false)`)
  const messages = await touched(
    session,
    `select * from holdfast.messages('${one}', '{${key}}', '{paid}', 1000000, null)`,
  )
  const pending = await touched(session, `select * from holdfast.pending_wakes('0', 100)`)
  const gone = await touched(
    session,
    `select holdfast.drop_journals(array(select seq from holdfast.job where id = any ('{${others}}')))`,
  )
  await session.query(`delete from holdfast.job where id = any (${all})`)
  return { first, checkpoint, park, look, signal, deliver, signalKey, deliverKey, journals, messages, pending, gone }
}

/** Parked jobs, each with records, messages and a key that it awaits. */
export async function fillJournals(session: pg.Client, jobs: number): Promise<void> {
  const { lane } = await laneOf(session, 'mail')
  await session.query(
    `with filled as (
       insert into holdfast.job (seq, ord, run_at, created_at, id, lane, max_attempts, payload, has_journal, parked)
       select n, n, 9e15, 0, lpad(to_hex(n), 32, '0')::uuid, $1, 25, '{}', true, true
         from (select nextval('holdfast.number') as n from generate_series(1, $2::int)) s
       returning seq, id
     ),
     recorded as (
       insert into holdfast.record (seq, no, step, part, body) select f.seq, n, 'step ' || n, 0, '{}' from filled f, generate_series(1, 2) n
     ),
     opened as (
       insert into holdfast.journal (seq, no, id, partial) select f.seq, 1, f.id, '1' from filled f
     ),
     awaiting as (
       insert into holdfast.await_key (key, name, seq, id) select 'key ' || f.seq, 'paid', f.seq, f.id from filled f
     )
     insert into holdfast.message (no, seq, key, name, value, at, expires_at)
     select nextval('holdfast.number'), case when n = 1 then f.seq end, case when n = 2 then 'other ' || f.seq end, 'paid', '1', 0,
            case when n = 2 then 9e15 end
       from filled f, generate_series(1, 2) n`,
    [lane, jobs],
  )
}
