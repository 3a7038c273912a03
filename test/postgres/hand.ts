// A PostgreSQL store in the hand: a fresh schema, transactions that are driven statement by statement, and a way to take
// one rule out of the schema's functions, so that a test can show what the rule is for.
//
// The server is shared, and transaction numbers are the cluster's: other tests' transactions come and go between any two
// statements. So tests say where a transaction of theirs must be, never what else is there.
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

/** A text in one of the schema's functions, and what stands there when the rule is broken. */
export interface Rule {
  readonly from: string
  readonly to: string
  /** The same rule where a job alone is claimed (`schema/functions/claim-one.ts`). */
  readonly alone?: Rule
}

export interface SetupOptions {
  readonly without?: readonly Rule[]
  /** Whether sweeps make partitions for finished jobs, which takes longer than most tests; else none has one of its own. */
  readonly partitions?: boolean
  /** Whether a job alone is claimed in the way that is made for it; else all are claimed like many. */
  readonly alone?: boolean
}

/** Whatever waits longer for a lock than this waits for ever. */
const waitMaxMs = 15_000

const noPartitions = `create or replace function holdfast.make_partitions(p_now bigint) returns int language sql as 'select 0'`

let database: Database
let schemas = 0

/** Once per file, beside its tests: the database in which each of them has a schema. */
export function useDatabase(): void {
  before(async () => {
    database = await testDatabase()
  })
  after(() => database[Symbol.asyncDispose]())
}

/** Makes the body of a test. Unless a rule was taken out, it ends with a recount. */
export function inHand(show: (hand: Hand) => Promise<void>, options: SetupOptions = {}): () => Promise<void> {
  return async () => {
    await using hand = await setup(options)
    await show(hand)
    if (!options.without) await hand.recount()
  }
}

/** The same for each of the two ways to claim, where the rules that were taken out are rules of both. */
export function inBothHands(show: (hand: Hand) => Promise<void>, options: SetupOptions = {}): () => Promise<void> {
  return async () => {
    for (const alone of [false, true]) await inHand(show, { ...options, alone })()
  }
}

export async function setup({ without = [], partitions = false, alone }: SetupOptions = {}): Promise<Hand> {
  const hand = await Hand.open(database.url, `by hand ${schemas++}`)
  if (!partitions) await hand.rows(noPartitions)
  for (const rule of without) {
    await hand.withoutRule(rule)
    if (rule.alone) await hand.withoutRule(rule.alone)
  }
  if (!(alone ?? without.every((rule) => rule.alone))) await hand.withoutRule(claimsAlone)
  if (alone) {
    await hand.withoutRule(hurry)
    await hand.claimOneAlone()
  }
  return hand
}

/** A claim that took long is not repeated in the same way; how long it takes here nobody knows. */
const hurry: Rule = {
  from: `v_long constant interval := '2 milliseconds'`,
  to: `v_long constant interval := '1 minute'`,
}

/** A job alone is claimed in the way that is made for it. */
const claimsAlone: Rule = { from: 'is_plain := v_choice.is_only and', to: 'is_plain := false and' }

export class Hand implements AsyncDisposable {
  readonly url: string
  readonly schema: Schema
  readonly pool: Pool
  readonly holdfast: Holdfast
  readonly #ends: (() => Promise<unknown>)[] = []

  private constructor(url: string, schema: Schema, pool: Pool, holdfast: Holdfast) {
    this.url = url
    this.schema = schema
    this.pool = pool
    this.holdfast = holdfast
  }

  static async open(url: string, name: string): Promise<Hand> {
    const pool = newPool(url)
    const holdfast = await open(postgres({ pool, schema: name, listen: false }))
    return new Hand(url, new Schema(name), pool, holdfast)
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
    this.#ends.push(() => client.end())
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

  /** Claims and answers the payloads. */
  async claim(queues: string | readonly string[] | '*' = 'mail', max = 100): Promise<unknown[]> {
    const names = queues === '*' ? '*' : [queues].flat()
    return (await this.holdfast.claim(names, { max })).map(({ job }) => job.payload)
  }

  /** The lane of a queue's jobs in their turn. */
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

  /** Puts the bound of a queue where a claim would have put it whose snapshot ended there. */
  async setCursor(queue: string, xid: string, gapXids: readonly string[] = []): Promise<void> {
    await this.rows(
      `insert into holdfast.lane_cursor (lane, xid, ord, gap_xids, gap_ords)
       values ($1, $2::text::xid8, 0, $3::text[]::xid8[], array_fill(0::bigint, array[cardinality($3::text[])]))`,
      [await this.lane(queue), xid, gapXids],
    )
  }

  /** Waits until so many sessions of this database wait for a lock, in statements that are at least so old and say so. */
  async waiters(count: number, ageMs = 0, what = ''): Promise<void> {
    const text = `select count(*)::int as n from pg_stat_activity
                   where datname = current_database() and wait_event_type = 'Lock' and strpos(query, $2) > 0
                     and clock_timestamp() - query_start >= $1 * interval '1 millisecond'`
    const waiting = async () => (await this.rows(text, [ageMs, what]))[0]?.['n']
    await until(async () => (await waiting()) === count, `${count} sessions wait for a lock`)
  }

  /** From now on a job of this queue that is alone is claimed as such. Nothing else is left of it. */
  async claimOneAlone(queue = 'mail'): Promise<void> {
    const { id } = await this.holdfast.queue(queue).enqueue('alone')
    const [lease] = await this.holdfast.claim([queue])
    await lease?.done()
    await this.holdfast.delete(id)
  }

  /** Takes a rule out of the function that has it. */
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

/** Somebody's own transaction, in which they enqueue. */
export class CallerTx {
  readonly client: Client
  readonly #hand: Hand

  constructor(hand: Hand, client: Client) {
    this.#hand = hand
    this.client = client
  }

  async enqueue(queue: string, payload: unknown, options: EnqueueOptions = {}): Promise<string> {
    return (await this.#hand.holdfast.queue(queue).enqueue(payload, { ...options, tx: this.client })).id
  }

  async run(text: string, values: readonly unknown[] = []): Promise<Record<string, unknown>[]> {
    return (await this.client.query(this.#hand.schema.sql(text), [...values])).rows
  }

  /** Its number; it has one from now on. */
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
export async function requeueInProgress(hand: Hand, id: string): Promise<CallerTx> {
  const tx = await hand.begin()
  const [dead] = await tx.run('select seq::text from holdfast.ended where id = $1', [id])
  const jobs = JSON.stringify([{ id, seq: Number(dead?.['seq']), past: null }])
  await tx.run('select holdfast.revive($1::jsonb, false, holdfast.now_ms(null))', [jobs])
  return tx
}
