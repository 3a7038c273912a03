// The fixture of the PostgreSQL tests: a fresh schema, transactions that are controlled statement by statement, and a way to
// remove one rule from the schema's functions, so that a test can show what the rule is for.
//
// The server is shared, and transaction numbers belong to the cluster: transactions of other tests begin and end between any
// two statements. So tests place their own transactions, and assume nothing about others.
import assert from 'node:assert/strict'
import { after, before } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { Client, Pool } from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import type { JobState } from '../../src/job/record.ts'
import { open } from '../../src/open.ts'
import type { EnqueueOptions } from '../../src/queue/prepare.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { allJobs } from '../conformance/expect.ts'
import { type Database, testDatabase } from '../support/postgres.ts'

/** A text in one of the schema's functions, and its replacement when the rule is removed. */
export interface Rule {
  readonly from: string
  readonly to: string
  /** The same rule in the short claim of a single job (`schema/functions/claim-one.ts`). */
  readonly alone?: Rule
}

export interface SetupOptions {
  readonly without?: readonly Rule[]
  /** Whether sweeps make partitions for finished jobs. This takes longer than most tests; without it there is only the rest. */
  readonly partitions?: boolean
  /** Whether a single job is claimed by the short claim; else all jobs are claimed by the long one. */
  readonly alone?: boolean
}

/**
 * A wait that lasts longer than this counts as a deadlock. A statement that a test blocks on purpose waits while all other steps
 * of the test are made, however slow the machine is. So the bound is little less than what `run.ts` grants a test.
 */
const waitMaxMs = 240_000

const noPartitions = `create or replace function holdfast.make_partitions(p_now bigint) returns int language sql as 'select 0'`

let database: Database
let schemas = 0

/** Called once per file: creates the database in which each test has a schema. */
export function useDatabase(): void {
  before(async () => {
    database = await testDatabase()
  })
  after(() => database[Symbol.asyncDispose]())
}

/** Makes the body of a test. Unless a rule was removed, it ends with a recount. */
export function inWorld(show: (world: World) => Promise<void>, options: SetupOptions = {}): () => Promise<void> {
  return async () => {
    await using world = await setup(options)
    await show(world)
    if (!options.without) await world.recount()
  }
}

/** The same with the short and with the long claim. A rule that is removed must be a rule of both. */
export function forBothClaims(show: (world: World) => Promise<void>, options: SetupOptions = {}): () => Promise<void> {
  return async () => {
    for (const alone of [false, true]) await inWorld(show, { ...options, alone })()
  }
}

export async function setup({ without = [], partitions = false, alone }: SetupOptions = {}): Promise<World> {
  const world = await World.open(database.url, `world ${schemas++}`)
  if (!partitions) await world.rows(noPartitions)
  for (const rule of without) {
    await world.withoutRule(rule)
    if (rule.alone) await world.withoutRule(rule.alone)
  }
  if (!(alone ?? without.every((rule) => rule.alone))) await world.withoutRule(claimsAlone)
  if (alone) {
    await world.withoutRule(hurry)
    await world.claimOneAlone()
  }
  return world
}

/** After a slow claim the next one is a long claim. How long a claim takes in a test is not predictable. */
const hurry: Rule = {
  from: `v_long constant interval := '2 milliseconds'`,
  to: `v_long constant interval := '1 minute'`,
}

/** A single job is claimed by the short claim. */
const claimsAlone: Rule = { from: 'is_plain := v_choice.is_only and', to: 'is_plain := false and' }

export class World implements AsyncDisposable {
  readonly url: string
  readonly schema: Schema
  readonly pool: Pool
  readonly holdfast: Holdfast
  readonly #ends: (() => Promise<unknown>)[] = []
  readonly #sessions: Client[] = []

  private constructor(url: string, schema: Schema, pool: Pool, holdfast: Holdfast) {
    this.url = url
    this.schema = schema
    this.pool = pool
    this.holdfast = holdfast
  }

  static async open(url: string, name: string): Promise<World> {
    const pool = newPool(url)
    const holdfast = await open(postgres({ pool, schema: name, listen: false }))
    return new World(url, new Schema(name), pool, holdfast)
  }

  /** A second client on the same store, as another process would open it. */
  async another({ url = this.url, max = 10 }: { url?: string; max?: number } = {}): Promise<Holdfast> {
    const pool = newPool(url, max)
    this.#ends.push(() => pool.end())
    const holdfast = await open(postgres({ pool, schema: this.schema.name, listen: false }))
    this.#ends.push(() => holdfast.close())
    return holdfast
  }

  async connect(): Promise<Client> {
    const client = new Client({ connectionString: this.url, statement_timeout: waitMaxMs })
    client.on('error', () => {})
    await client.connect()
    this.#sessions.push(client)
    return client
  }

  /** A transaction on a connection of its own. */
  async begin(how = 'begin'): Promise<CallerTx> {
    const client = await this.connect()
    await client.query(how)
    return new CallerTx(this, client)
  }

  /** One statement with `holdfast.` for this schema, on any connection. */
  async rows(text: string, values: readonly unknown[] = []): Promise<Record<string, unknown>[]> {
    return (await this.pool.query(this.schema.sql(text), [...values])).rows
  }

  async enqueue(queue: string, payload: unknown, options: EnqueueOptions = {}): Promise<string> {
    return (await this.holdfast.queue(queue).enqueue(payload, options)).id
  }

  /** Claims and returns the payloads. */
  async claim(queues: string | readonly string[] | '*' = 'mail', max = 100): Promise<unknown[]> {
    const names = queues === '*' ? '*' : [queues].flat()
    return (await this.holdfast.claim(names, { max })).map(({ job }) => job.payload)
  }

  /** The lane of a queue's jobs that were not released. */
  async lane(queue: string, priority = 5): Promise<number> {
    const [row] = await this.rows(
      'select l.no from holdfast.lane l join holdfast.queue q on q.no = l.queue where q.name = $1 and l.priority = $2',
      [queue, priority],
    )
    assert.ok(row, `queue ${queue} has a lane`)
    return row['no'] as number
  }

  async cursor(queue: string): Promise<Cursor> {
    const [row] = await this.rows(
      `select no::text, xid::text, ord::text, gap_xids::text[], gap_ords::text[]
         from holdfast.lane_cursor where lane = $1 order by no desc limit 1`,
      [await this.lane(queue)],
    )
    return row as unknown as Cursor
  }

  /** Moves the bound of a queue to where a claim with a snapshot that ends there would have moved it. */
  async setCursor(queue: string, xid: string, gapXids: readonly string[] = []): Promise<void> {
    await this.rows(
      `insert into holdfast.lane_cursor (lane, xid, ord, gap_xids, gap_ords)
       values ($1, $2::text::xid8, 0, $3::text[]::xid8[], array_fill(0::bigint, array[cardinality($3::text[])]))`,
      [await this.lane(queue), xid, gapXids],
    )
  }

  /** Waits until this many sessions of the database wait for a lock, in statements of at least this age with this text. */
  async waiters(count: number, ageMs = 0, what = ''): Promise<void> {
    const text = `select count(*)::int as n from pg_stat_activity
                   where datname = current_database() and wait_event_type = 'Lock' and strpos(query, $2) > 0
                     and clock_timestamp() - query_start >= $1 * interval '1 millisecond'`
    const waiting = async () => (await this.rows(text, [ageMs, what]))[0]?.['n']
    await until(async () => (await waiting()) === count, `${count} sessions wait for a lock`)
  }

  /**
   * Whether a session of the database has undone a transaction and has done nothing since: a call that has met a locked row, and
   * waits without a connection.
   */
  async hasGivenUp(): Promise<boolean> {
    const text = `select from pg_stat_activity where datname = current_database() and state = 'idle' and query = 'rollback'
      and state_change > clock_timestamp() - interval '1 second'`
    return (await this.rows(text)).length > 0
  }

  /** From now on a single job of this queue is claimed by the short claim. The queue is empty afterwards. */
  async claimOneAlone(queue = 'mail'): Promise<void> {
    const { id } = await this.holdfast.queue(queue).enqueue('alone')
    const [lease] = await this.holdfast.claim([queue])
    await lease?.done()
    await this.holdfast.delete(id)
  }

  /** Removes a rule from the function that has it. */
  async withoutRule({ from, to }: Rule): Promise<void> {
    const functions = await this.rows(
      'select pg_get_functiondef(oid) as text from pg_proc where pronamespace = $1::regnamespace',
      [this.schema.quoted],
    )
    const wanted = this.schema.sql(from)
    const having = functions.map(({ text }) => text as string).filter((text) => text.includes(wanted))
    assert.equal(having.length, 1, `one function has the rule: ${from}`)
    await this.pool.query((having[0] as string).replace(wanted, () => this.schema.sql(to)))
  }

  async recount(): Promise<void> {
    const jobs = await allJobs(this.holdfast)
    const states = ['scheduled', 'ready', 'running', 'done', 'dead', 'cancelled'] as const
    const count = (queue: string, state: JobState) => jobs.filter((j) => j.queue === queue && j.state === state).length
    for (const queue of await this.holdfast.queues()) {
      const said = states.map((state) => [state, queue[state]])
      const counted = states.map((state) => [state, count(queue.name, state)])
      assert.deepEqual(said, counted, `the counts of queue ${queue.name} equal a recount`)
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#sessions.map((session) => session.end())) // after a failure, calls may still wait for their locks
    await this.holdfast.close()
    for (const end of this.#ends.toReversed()) await end()
    await this.pool.end()
  }
}

export interface Cursor {
  readonly no: string
  readonly xid: string
  readonly ord: string
  readonly gap_xids: readonly string[]
  readonly gap_ords: readonly string[]
}

/** A caller's own transaction, with enqueues in it. */
export class CallerTx {
  readonly client: Client
  readonly #world: World

  constructor(world: World, client: Client) {
    this.#world = world
    this.client = client
  }

  async enqueue(queue: string, payload: unknown, options: EnqueueOptions = {}): Promise<string> {
    return (await this.#world.holdfast.queue(queue).enqueue(payload, { ...options, tx: this.client })).id
  }

  async run(text: string, values: readonly unknown[] = []): Promise<Record<string, unknown>[]> {
    return (await this.client.query(this.#world.schema.sql(text), [...values])).rows
  }

  /** Its transaction number, which this call assigns if necessary. */
  async xid(): Promise<string> {
    return (await this.run('select pg_current_xact_id()::text as xid'))[0]?.['xid'] as string
  }

  async commit(): Promise<void> {
    await this.run('commit')
  }

  async rollback(): Promise<void> {
    await this.run('rollback')
  }
}

export function newPool(url: string, max = 10): Pool {
  const pool = new Pool({ connectionString: url, max, statement_timeout: waitMaxMs })
  pool.on('error', () => {})
  return pool
}

export async function until(isTrue: () => Promise<boolean>, what: string): Promise<void> {
  const deadline = Date.now() + waitMaxMs
  while (!(await isTrue())) {
    assert.ok(Date.now() < deadline, `waited ${waitMaxMs} ms until ${what}`)
    await delay(5)
  }
}

/** A requeue that has not committed yet. */
export async function requeueInProgress(world: World, id: string): Promise<CallerTx> {
  const tx = await world.begin()
  const [dead] = await tx.run('select seq::text from holdfast.ended where id = $1', [id])
  const jobs = JSON.stringify([{ id, seq: Number(dead?.['seq']), past: null }])
  await tx.run('select holdfast.revive($1::jsonb, holdfast.now_ms(null))', [jobs])
  return tx
}
