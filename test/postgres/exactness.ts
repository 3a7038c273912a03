// Many producers whose transactions end in every way and order, a few claimers beside them, and a check of what was committed.
// One counter numbers the moments of all of them, so "before" is decided without a clock: an event that was answered before
// another was sent came first.
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import type { Lease } from '../../src/lease/lease.ts'
import { open } from '../../src/open.ts'
import type { Database } from '../support/postgres.ts'

const producers = 20
const batches = [1, 7, 50]
const queues = ['left', 'right']
const priorities = [1, 5, 9]

interface Payload {
  /** Number of the transaction, and of the job within it. */
  readonly t: number
  readonly n: number
}

interface Job extends Payload {
  readonly lane: string
  readonly beganAt: number
  /** When the commit was answered; null: it was rolled back. */
  committedAt: number | null
  readonly claims: Claim[]
  isHeld: boolean
  isDone: boolean
}

interface Claim {
  readonly claimer: number
  readonly sentAt: number
  readonly answeredAt: number
  readonly turn: number
}

export interface Verdict {
  readonly transactions: number
  readonly committed: number
  readonly rolledBack: number
  readonly claims: number
  /** What is wrong; empty if nothing is. */
  readonly hidden: string[]
  readonly wrong: string[]
}

export class Exactness {
  readonly #database: Database
  readonly #random: () => number
  readonly #jobs = new Map<string, Job>()
  readonly #wrong: string[] = []
  #tick = 0
  #transactions = 0
  #producing = true

  constructor(database: Database, seed: number) {
    this.#database = database
    this.#random = generator(seed)
  }

  async run(ms: number): Promise<Verdict> {
    await using holdfast = await open(this.#database.url)
    const client = await this.#connect()
    await client.query('create table if not exists ledger (t int, at timestamptz default clock_timestamp())')
    await client.end()
    for (const name of queues) await queueOf(holdfast, name).claim() // creates them
    await holdfast.sweep()
    const claiming = batches.map((max, claimer) => this.#claim(claimer, max))
    const deadline = performance.now() + ms
    await Promise.all(Array.from({ length: producers }, () => this.#produce(holdfast, deadline)))
    this.#producing = false
    await Promise.all(claiming)
    await this.#claimRest(holdfast)
    return this.#judge()
  }

  async #connect(): Promise<pg.Client> {
    const client = new pg.Client({ connectionString: this.#database.url })
    await client.connect()
    return client
  }

  async #produce(holdfast: Holdfast, deadline: number): Promise<void> {
    const client = await this.#connect()
    try {
      while (performance.now() < deadline) await this.#transact(holdfast, client)
    } finally {
      await client.end()
    }
  }

  /** One transaction, with savepoints, errors and rollbacks. A serialization failure counts as rolled back. */
  async #transact(holdfast: Holdfast, client: pg.Client): Promise<void> {
    const t = ++this.#transactions
    const isTwoPhase = this.#chance(0.08)
    const transaction = new Producer({
      holdfast,
      tx: isTwoPhase ? withoutNotify(client) : client,
      random: this.#random,
      t,
      beganAt: ++this.#tick,
    })
    try {
      await client.query(`begin isolation level ${this.#pick(isolations)}`)
      if (this.#chance(0.5)) await client.query('insert into ledger (t) values ($1)', [t])
      await transaction.steps(2, (sql) => client.query(sql))
      await this.#pause()
      if (isTwoPhase) return await this.#endLater(client, transaction)
      const commits = this.#chance(0.8)
      await client.query(commits ? 'commit' : 'rollback')
      this.#record(transaction, commits)
    } catch (error) {
      if ((error as { code?: string }).code !== '40001') throw error
      await client.query('rollback')
      this.#record(transaction, false)
    }
  }

  async #endLater(client: pg.Client, transaction: Producer): Promise<void> {
    const name = `exactness ${transaction.t} ${this.#database.name}`
    await client.query(`prepare transaction '${name}'`)
    await this.#pause()
    await this.#pause()
    const commits = this.#chance(0.7)
    await client.query(`${commits ? 'commit' : 'rollback'} prepared '${name}'`)
    this.#record(transaction, commits)
  }

  #record({ kept, undone, t, beganAt }: Producer, commits: boolean): void {
    const committedAt = commits ? ++this.#tick : null
    for (const { n, lane } of kept) this.#job({ t, n }, { lane, beganAt, committedAt })
    for (const { n, lane } of undone) this.#job({ t, n }, { lane, beganAt, committedAt: null })
  }

  /** A job is recorded when its transaction has ended. It may have been claimed a moment before the commit was answered. */
  #job({ t, n }: Payload, facts?: Pick<Job, 'lane' | 'beganAt' | 'committedAt'>): Job {
    const key = `${t}.${n}`
    const known = this.#jobs.get(key)
    if (known && !facts) return known
    const job = { t, n, lane: '', beganAt: 0, committedAt: null, claims: [], isHeld: false, isDone: false }
    this.#jobs.set(key, { ...job, ...known, ...facts })
    return this.#jobs.get(key) as Job
  }

  async #claim(claimer: number, max: number): Promise<void> {
    await using holdfast = await open(this.#database.url)
    while (this.#producing) {
      const settled = await this.#claimOnce(holdfast, { claimer, max, wait: 100 })
      await Promise.all(settled)
      if (this.#chance(0.2)) await this.#pause()
    }
  }

  /** All transactions have ended: a job that no claim finds now is never found. */
  async #claimRest(holdfast: Holdfast): Promise<void> {
    for (;;) {
      const settled = await this.#claimOnce(holdfast, { claimer: batches.length, max: 100, wait: 0 })
      if (settled.length === 0) return
      await Promise.all(settled)
    }
  }

  async #claimOnce(
    holdfast: Holdfast,
    { claimer, max, wait }: { readonly claimer: number; readonly max: number; readonly wait: number },
  ): Promise<Promise<void>[]> {
    const names = this.#chance(0.5) ? queues : queues.toReversed()
    const sentAt = ++this.#tick
    const leases = (await holdfast.claim(names, { max, wait, lease: '1h' })) as Lease<Payload>[]
    const answeredAt = ++this.#tick
    const held = leases.map((lease, turn) => {
      const job = this.#job(lease.job.payload)
      if (job.isHeld) this.#wrong.push(`${job.t}.${job.n} was claimed while it was held`)
      if (job.isDone) this.#wrong.push(`${job.t}.${job.n} was claimed after it was done`)
      this.#take(job, { claimer, sentAt, answeredAt, turn })
      return { lease, job }
    })
    return held.map(({ lease }) => this.#settle(lease))
  }

  #take(job: Job, claim: Claim): void {
    job.claims.push(claim)
    job.isHeld = true
  }

  async #settle(lease: Lease<Payload>): Promise<void> {
    const choice = this.#random()
    if (choice > 0.9) await this.#pause()
    const job = this.#job(lease.job.payload)
    job.isHeld = false // from here on another claimer may have it before the answer arrives
    try {
      if (choice < 0.03) await lease.release()
      else if (choice < 0.06) await lease.retry(new Error('once more'), { delay: 0 })
      else {
        await lease.done()
        this.#job(lease.job.payload).isDone = true
      }
    } catch (error) {
      this.#wrong.push(`${job.t}.${job.n} could not be settled: ${(error as Error).message}`)
    }
  }

  #judge(): Verdict {
    const jobs = [...this.#jobs.values()]
    const committed = jobs.filter(({ committedAt }) => committedAt !== null)
    const rolledBack = jobs.filter(({ committedAt }) => committedAt === null)
    const hidden = committed.filter(({ isDone }) => !isDone).map(({ t, n }) => `${t}.${n}`)
    for (const { t, n, claims } of rolledBack)
      if (claims.length > 0) this.#wrong.push(`${t}.${n} was rolled back and claimed all the same`)
    for (const lane of Map.groupBy(committed, ({ lane }) => lane).values()) this.#wrong.push(...outOfOrder(lane))
    return {
      transactions: this.#transactions,
      committed: committed.length,
      rolledBack: rolledBack.length,
      claims: jobs.reduce((sum, { claims }) => sum + claims.length, 0),
      hidden,
      wrong: this.#wrong,
    }
  }

  #pause(): Promise<void> {
    const ms = this.#chance(0.05) ? 150 : this.#chance(0.5) ? 12 : 0
    return sleep(this.#random() * ms)
  }

  #chance(share: number): boolean {
    return this.#random() < share
  }

  #pick<T>(choices: readonly T[]): T {
    return choices[Math.floor(this.#random() * choices.length)] as T
  }
}

const isolations = ['read committed', 'read committed', 'read committed', 'repeatable read', 'serializable'] as const

function queueOf(holdfast: Holdfast, name: string) {
  return holdfast.queue<Payload>(name, { retain: { done: '1h' } })
}

interface Added {
  readonly n: number
  readonly lane: string
}

/** What one transaction enqueues, and which of it was rolled back to a savepoint. */
class Producer {
  readonly t: number
  readonly beganAt: number
  readonly undone: Added[] = []
  kept: Added[] = []
  readonly #holdfast: Holdfast
  readonly #tx: Transaction
  readonly #random: () => number
  #count = 0

  constructor({ holdfast, tx, random, t, beganAt }: ProducerOptions) {
    this.#holdfast = holdfast
    this.#tx = tx
    this.#random = random
    this.t = t
    this.beganAt = beganAt
  }

  async steps(depth: number, run: (sql: string) => Promise<unknown>): Promise<void> {
    const count = 1 + Math.floor(this.#random() * 3)
    for (let i = 0; i < count; i++) {
      const choice = this.#random()
      if (choice < 0.3 && depth > 0) await this.#savepoint(depth - 1, run)
      else if (choice < 0.8) await this.#enqueue()
      else await sleep(this.#random() * 8)
    }
  }

  async #savepoint(depth: number, run: (sql: string) => Promise<unknown>): Promise<void> {
    const before = this.kept.length
    await run(`savepoint level_${depth}`)
    await this.steps(depth, run)
    if (this.#random() < 0.5) return void (await run(`release savepoint level_${depth}`))
    await run(`rollback to savepoint level_${depth}`)
    this.undone.push(...this.kept.splice(before))
  }

  async #enqueue(): Promise<void> {
    const name = queues[Math.floor(this.#random() * queues.length)] as string
    const queue = queueOf(this.#holdfast, name)
    const tx = this.#tx
    const entry = () => {
      const priority = priorities[Math.floor(this.#random() * priorities.length)] as number
      const n = this.#count++
      this.kept.push({ n, lane: `${name} ${priority}` })
      return { payload: { t: this.t, n }, priority, attempts: 1_000, tx }
    }
    if (this.#random() < 0.6) {
      const { payload, ...options } = entry()
      await queue.enqueue(payload, options)
    } else await queue.enqueueMany(Array.from({ length: 1 + Math.floor(this.#random() * 12) }, entry))
  }
}

interface ProducerOptions {
  readonly holdfast: Holdfast
  readonly tx: Transaction
  readonly random: () => number
  readonly t: number
  readonly beganAt: number
}

interface Transaction {
  query(text: string, values: unknown[]): Promise<{ rows: unknown[] }>
}

/** PostgreSQL cannot prepare a transaction that has sent a notification. */
function withoutNotify(client: pg.Client): Transaction {
  return {
    query: async (text, values) => (text.includes('pg_notify') ? { rows: [] } : client.query(text, values)),
  }
}

/** Jobs of one lane that were first claimed before jobs that had to come earlier. */
function outOfOrder(jobs: readonly Job[]): string[] {
  const wrong: string[] = []
  const claimed = jobs.filter(({ claims }) => claims.length > 0)
  const first = ({ claims }: Job) => claims[0] as Claim
  const inOrder = claimed.toSorted((a, b) => first(a).answeredAt - first(b).answeredAt || first(a).turn - first(b).turn)
  for (const [i, later] of inOrder.entries()) {
    for (let k = i - 1; k >= 0 && k > i - 400; k--) {
      const earlier = inOrder[k] as Job
      if (mustPrecede(later, earlier) && didPrecede(first(earlier), first(later)))
        wrong.push(`${earlier.t}.${earlier.n} was claimed before ${later.t}.${later.n}`)
    }
  }
  return wrong
}

function mustPrecede(a: Job, b: Job): boolean {
  if (a.t === b.t) return a.n < b.n
  return a.committedAt !== null && a.committedAt < b.beganAt
}

function didPrecede(a: Claim, b: Claim): boolean {
  return a.answeredAt === b.answeredAt ? a.turn < b.turn : a.answeredAt < b.sentAt
}

/** Mulberry32: the same numbers for the same seed. */
function generator(seed: number): () => number {
  let state = seed | 0
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

export function assertExact({ hidden, wrong, committed, claims }: Verdict): void {
  assert.deepEqual(wrong.slice(0, 20), [], `${wrong.length} things went wrong`)
  assert.deepEqual(hidden.slice(0, 20), [], `${hidden.length} of ${committed} jobs were never claimed`)
  assert.ok(committed > 100 && claims >= committed, 'there was something to judge')
}
