// The PostgreSQL store: many machines, enqueue in your own transaction, SQL effects.

import type { Pool, PoolClient } from 'pg'
import type { CallerTransaction } from '../../adapters/transaction.ts'
import { HoldfastError, isHoldfastError, isRefused } from '../../errors.ts'
import type { BatchSettings } from '../../job/batch.ts'
import type { LimitOverride } from '../../job/limit-key.ts'
import { checkOptions } from '../../job/names.ts'
import type { KvWrite, QueueSettings } from '../../job/record.ts'
import { orAborted } from '../../runtime/aborted.ts'
import type { Clock } from '../../runtime/clock.ts'
import { type Duration, show, toMs } from '../../runtime/duration.ts'
import type {
  AcceptRequest,
  AdvanceRequest,
  AlterRequest,
  BatchesQuery,
  BatchName,
  CancelRequest,
  Capabilities,
  ChangeAllRequest,
  ChangesQuery,
  CheckpointAnswer,
  CheckpointRequest,
  ClaimRequest,
  ControlBatchRequest,
  CountQuery,
  DeadGroupsQuery,
  DefinedQueue,
  DeleteQueueRequest,
  EnqueueAnswer,
  EnqueueRequest,
  ExamineRequest,
  FindQuery,
  ItemsQuery,
  ItemsRequest,
  JournalQuery,
  KvScanQuery,
  LeaseRef,
  MessagesQuery,
  PauseEnd,
  ProgressRequest,
  ReleaseWorkerRequest,
  RenewRequest,
  SettleAnswer,
  SettleRequest,
  SignalAnswer,
  SignalRequest,
  SignalTarget,
  Store,
  Subscriber,
  SweepRequest,
  UnstoredDefinition,
} from '../store.ts'
import { accept } from './accept.ts'
import { advance } from './advance.ts'
import { alter } from './alter.ts'
import { addItems, openBatch, readBatch, readBatches } from './batch/batch.ts'
import { controlBatch } from './batch/batch-control.ts'
import { settleBatches } from './batch/batch-end.ts'
import { changeAll } from './change-all.ts'
import { checkpoint } from './checkpoint.ts'
import { Claimer } from './claim.ts'
import { connectMs, silentMs } from './connection/address.ts'
import { Database } from './connection/database.ts'
import { loadDriver } from './connection/driver.ts'
import { isForeign, withRetry } from './connection/failures.ts'
import { ignoreErrorsOf } from './connection/pool-errors.ts'
import { cancel, pause, pauseAll, requeue } from './control.ts'
import { define, overrideLimit, readDefinitions } from './define.ts'
import { deleteQueue } from './delete-queue.ts'
import { type Addressees, deliver } from './deliver.ts'
import { examine } from './doctor/examine.ts'
import { enqueueNotices } from './ends.ts'
import { type AfterCommit, enqueue, enqueueIn, type StoreContext } from './enqueue.ts'
import { readDeadGroups } from './error-groups.ts'
import { countJobs, findJobs } from './find.ts'
import { readJournal, readMessages } from './journal.ts'
import { KvWrites, kvGet, kvScan } from './kv.ts'
import { Lanes } from './lanes.ts'
import { admitLimitKeys } from './limits/admit.ts'
import { blockers } from './limits/blockers.ts'
import { LockPolls } from './lock-polls.ts'
import { OwnDefinitions } from './own-definitions.ts'
import { progress } from './progress.ts'
import { readItems, readJob, readOutcomes, readStats } from './read.ts'
import { cancelRequested, renew } from './renew.ts'
import { repairRestored } from './schema/check-restored.ts'
import { migrate, requireSchema } from './schema/migrate.ts'
import { steps } from './schema/migrations.ts'
import { ownObjects } from './schema/own-objects.ts'
import { grantScript, type Roles, usesByRole } from './schema/roles.ts'
import { Schema } from './schema/schema.ts'
import { settle } from './settle.ts'
import { clearSignals, signal, signalIn } from './signal.ts'
import { Sweeps } from './sweep.ts'
import { Wakes } from './wake.ts'
import { readChanges, watch } from './watch.ts'

export interface PostgresOptions {
  /**
   * Your own pool, which the store does not end; or a URL, from which the store makes a pool of its own. While the store is
   * open, it listens to the pool's `error` events, so that a server that restarts does not end the process.
   */
  readonly pool?: Pool
  readonly url?: string
  /** The schema that contains all tables and functions; `holdfast` unless given. */
  readonly schema?: string
  /**
   * Whether to keep a connection for LISTEN while claiming, and to NOTIFY in your transactions; true unless given. If false, the
   * store polls, and your transaction that enqueues may be prepared for two-phase commit. If everything else goes through a
   * pooler in transaction mode, pass the URL of the server itself: the store then makes one more connection, only for LISTEN.
   */
  readonly listen?: boolean | string
  /**
   * How many connections may be in use at once, the one for LISTEN included. Unless given: 10 in the store's own pool, and three
   * quarters of your pool, so that your own statements never wait for all of the store's.
   */
  readonly connections?: number
  /**
   * After this time without an answer, the store asks the server whether it is still there and at work on the call; 10 s unless
   * given. If it is, the call may take as long as it takes. If it is not, the call is made again or fails.
   */
  readonly answerTimeout?: Duration
}

export function postgres(options: PostgresOptions) {
  const names = ['pool', 'url', 'schema', 'listen', 'connections', 'answerTimeout']
  checkOptions(options, 'postgres options', names)
  if (options.pool !== undefined && options.url !== undefined) {
    const message = 'Give postgres a pool or a url, not both: a pool has its own server.'
    throw new HoldfastError('INVALID_OPTION', message, { option: 'url' })
  }
  return async ({
    clock,
    readOnly = false,
  }: {
    readonly clock: Clock
    readonly readOnly?: boolean
  }): Promise<Store> => {
    const schema = new Schema(options.schema ?? 'holdfast')
    const connections = connectionsOf(options)
    const answerMs = toMs(options.answerTimeout ?? '10s', 'answerTimeout', { min: 100 })
    const pool = options.pool ?? (await newPool(requireUrl(options.url), connections))
    const store = new PostgresStore(pool, { ...options, schema, clock, connections, answerMs })
    try {
      await (readOnly ? store.look() : store.start())
      return store
    } catch (error) {
      await store.close()
      throw error
    }
  }
}

async function newPool(connectionString: string, max: number): Promise<Pool> {
  const { Pool } = await loadDriver()
  return new Pool({
    connectionString,
    max,
    connectionTimeoutMillis: connectMs,
    keepAlive: true,
    keepAliveInitialDelayMillis: silentMs,
    allowExitOnIdle: true, // so that a program that never closes its store can end
  })
}

/** The SQL that grants roles what they need in an existing schema, for an administrator to run. */
export function grants({ schema = 'holdfast', roles }: { readonly schema?: string; readonly roles: Roles }): string {
  return grantScript(new Schema(schema), usesByRole(roles), ownObjects(steps))
}

function requireUrl(url: string | undefined): string {
  if (url !== undefined) return url
  throw new HoldfastError('INVALID_OPTION', 'postgres() takes { pool } or { url }.', { option: 'pool' })
}

/** All connections of the store's own pool; three quarters of a pool that the application uses too. */
function connectionsOf({ pool, connections }: PostgresOptions): number {
  if (connections !== undefined && !(Number.isInteger(connections) && connections > 0)) {
    throw new HoldfastError('INVALID_OPTION', `connections is a whole number from 1 on; got ${show(connections)}.`, {
      option: 'connections',
      value: connections,
    })
  }
  if (!pool) return connections ?? poolMax
  const { max = poolMax } = pool.options
  return Math.min(max, connections ?? Math.max(1, Math.floor(max * 0.75)))
}

const poolMax = 10
/** `max` of each sweep that the doctor makes. */
const sweepMax = 1_000

/** With fewer, too few connections would be left beside the one that listens. */
const connectionsToListen = 3

interface StoreOptions extends Omit<PostgresOptions, 'schema'> {
  readonly schema: Schema
  readonly clock: Clock
  readonly connections: number
  readonly answerMs: number
}

/** False also for an answer that comes later. */
function isSettled(answer: SettleAnswer | Promise<SettleAnswer> | undefined): boolean {
  return !(answer instanceof Promise) && answer !== 'lost' && !isRefused(answer)
}

class PostgresStore implements Store {
  readonly capabilities: Capabilities = {
    manyWriters: true,
    callerTransaction: true,
    sqlEffects: true,
    survivesPowerLoss: true,
  }
  readonly claimsFollowEnqueues = false
  readonly #pool: Pool
  readonly #ownsPool: boolean
  readonly #listen: boolean | string
  readonly #db: Database
  readonly #wakes: Wakes
  readonly #claims: Claimer
  readonly #sweeps: Sweeps
  readonly #context: StoreContext
  readonly #kvWrites: KvWrites
  /** In a pool that the application shares, renewals and settlements do not wait until the application frees a connection. */
  readonly #forRenewals: Database
  readonly #forSettlements: StoreContext
  readonly #letGoOfPool: () => void
  #closing: Promise<void> | null = null
  /** When it aborts, `close` waits no longer. */
  #over: AbortSignal = new AbortController().signal

  constructor(pool: Pool, { pool: given, listen = true, schema, clock, connections, answerMs }: StoreOptions) {
    this.#pool = pool
    this.#letGoOfPool = ignoreErrorsOf(pool)
    this.#ownsPool = given === undefined
    this.#listen = listen
    this.#db = new Database(pool, { schema, clock, isOwn: this.#ownsPool, connections, answerMs })
    const forSettlements = this.#db.for('settlements')
    this.#forRenewals = this.#db.for('renewals')
    const polls = new LockPolls(connections)
    this.#kvWrites = new KvWrites(this.#db, polls)
    const definitions = new OwnDefinitions(forSettlements)
    const lanes = new Lanes(forSettlements, polls, definitions)
    this.#wakes = new Wakes(
      this.#db,
      typeof listen === 'string' ? listen : listen && connections >= connectionsToListen,
      { admit: () => this.#sweeps.admit(), deliver: () => this.#sweeps.deliver() },
    )
    this.#context = {
      db: this.#db,
      lanes,
      polls,
      definitions,
      afterCommit: (afterCommit) => this.#afterCommit(afterCommit),
      finished: (batch) => this.#wakes.finished(batch),
      announce: (ready, areOthersNotified) => this.#wakes.announce(ready, areOthersNotified),
      notificationOf: (ready) => this.#wakes.notificationOf(ready),
      announceCancels: (ids) => this.#wakes.announceCancels(ids),
    }
    this.#db.onStall((stall) => this.#wakes.stalled(stall))
    this.#claims = new Claimer(this.#db, lanes, this.#wakes)
    this.#forSettlements = { ...this.#context, db: forSettlements }
    this.#sweeps = new Sweeps(this.#forSettlements, () => this.#wakes.isListening)
  }

  /**
   * If this fails, because the connection broke, the disk is full or another transaction held a lock, the next sweep does it. The
   * transaction itself has committed, so its caller is answered all the same.
   */
  async #afterCommit({
    keyRefs,
    lists,
    batches = [],
    droppedNotices = [],
    undeliverable = [],
    wakes = [],
    notices = [],
  }: AfterCommit): Promise<void> {
    for (const death of droppedNotices) this.#wakes.noticeDropped(death)
    for (const job of undeliverable) this.#wakes.undeliverable(job)
    try {
      const context = this.#forSettlements
      context.announce(await admitLimitKeys(context.db, { keyRefs, lists }))
      if (batches.length > 0) await settleBatches(context, batches)
      if (wakes.length > 0) await deliver(context, { ids: wakes })
      if (notices.length > 0) await enqueueNotices(context, notices)
    } catch (error) {
      if (!isForeign(error) && !isHoldfastError(error)) throw error
    }
  }

  /** Opens the store for reading only: nothing is migrated. */
  look(): Promise<void> {
    return this.#withClient((client) => requireSchema(client, this.#db.schema))
  }

  async start(): Promise<void> {
    await this.#withClient((client) => migrate(client, this.#db.schema))
    await this.#db.learnSession()
    await repairRestored(this.#db)
  }

  async #withClient(work: (client: PoolClient) => Promise<unknown>): Promise<void> {
    await withRetry(() => this.#db.lend(work))
  }

  async define(queues: readonly QueueSettings[]): Promise<DefinedQueue[]> {
    const defined = await define(this.#context, queues)
    this.#sweeps.expectUpkeep()
    return defined
  }

  definitions(queues: readonly string[] | null) {
    return readDefinitions(this.#db, queues)
  }

  overrideLimit(queue: string, override: LimitOverride | null): Promise<void> {
    return overrideLimit(this.#context, queue, override)
  }

  enqueue(requests: readonly EnqueueRequest[]) {
    return enqueue(this.#context, requests)
  }

  enqueueIn(tx: unknown, request: EnqueueRequest, definition: UnstoredDefinition | null): Promise<EnqueueAnswer> {
    const channel = this.#listen === false ? null : this.#wakes.channel
    return enqueueIn(this.#context, { tx: tx as CallerTransaction, channel, definition }, request)
  }

  claim(request: ClaimRequest) {
    this.#wakes.keepListening()
    return this.#claims.claim(request)
  }

  renew(requests: readonly RenewRequest[]) {
    this.#wakes.keepListening()
    return renew(this.#forRenewals, requests)
  }

  progress(requests: readonly ProgressRequest[]) {
    return progress(this.#db, requests)
  }

  async settle(requests: readonly SettleRequest[], token?: string): Promise<(SettleAnswer | Promise<SettleAnswer>)[]> {
    const [first] = requests
    const haveLimitKeys = first !== undefined && this.#claims.haveLimitKeys(first.fence)
    const answers = await settle(this.#forSettlements, requests, { token, haveLimitKeys })
    const fences = requests.map(({ fence }) => fence)
    this.#claims.forget(fences.filter((_, i) => isSettled(answers[i])))
    for (const [i, answer] of answers.entries()) if (answer instanceof Promise) this.#forgetLater(answer, fences[i])
    return answers
  }

  #forgetLater(answer: Promise<SettleAnswer>, fence: string | undefined): void {
    const forget = (answered: SettleAnswer) => {
      if (fence !== undefined && isSettled(answered)) this.#claims.forget([fence])
    }
    answer.then(forget, () => undefined)
  }

  checkpoint(
    requests: readonly CheckpointRequest[],
    token?: string,
  ): Promise<(CheckpointAnswer | Promise<CheckpointAnswer>)[]> {
    return checkpoint(this.#forSettlements, requests, token)
  }

  signal(requests: readonly SignalRequest[]): Promise<SignalAnswer[]> {
    return signal(this.#context, requests, (to) => this.#deliver(to))
  }

  /** As after a commit: what is not delivered now is delivered by the next sweep. */
  async #deliver(to: Addressees): Promise<void> {
    try {
      await deliver(this.#forSettlements, to)
    } catch (error) {
      if (!isForeign(error) && !isHoldfastError(error)) throw error
    }
  }

  signalIn(tx: unknown, request: SignalRequest): Promise<SignalAnswer> {
    const channel = this.#listen === false ? null : this.#wakes.channel
    return signalIn(this.#context, { tx: tx as CallerTransaction, channel }, request)
  }

  clearSignals(to: SignalTarget, name: string | null): Promise<number> {
    return clearSignals(this.#db, to, name)
  }

  cancelRequested(holds: readonly LeaseRef[]) {
    this.#wakes.keepListening()
    return cancelRequested(this.#forRenewals, holds)
  }

  sweep(request: SweepRequest) {
    return this.#sweeps.sweep(request)
  }

  cancel(requests: readonly CancelRequest[]) {
    return cancel(this.#context, requests)
  }

  requeue(ids: readonly string[], by: string | null = null) {
    return requeue(this.#context, ids, by)
  }

  alter(requests: readonly AlterRequest[]) {
    return alter(this.#context, requests)
  }

  changeAll(request: ChangeAllRequest) {
    return changeAll(this.#context, request)
  }

  async pause(queue: string, paused: boolean, by: string | null = null, end: PauseEnd | null = null): Promise<void> {
    this.#context.announce(await pause(this.#context, queue, { paused, by, end }))
  }

  async pauseAll(paused: boolean, by: string | null = null, end: PauseEnd | null = null): Promise<string[]> {
    const { changed, ready } = await pauseAll(this.#context, { paused, by, end })
    this.#context.announce(ready)
    return [...changed]
  }

  releaseWorker(request: ReleaseWorkerRequest) {
    return this.#sweeps.releaseWorker(request)
  }

  deleteQueue(request: DeleteQueueRequest) {
    return deleteQueue(this.#context, request)
  }

  openBatch(settings: BatchSettings) {
    return openBatch(this.#context, settings)
  }

  addItems(request: ItemsRequest) {
    return addItems(this.#context, request)
  }

  controlBatch(request: ControlBatchRequest) {
    return controlBatch(this.#context, request)
  }

  batch(name: BatchName) {
    return readBatch(this.#context, name)
  }

  batches(query: BatchesQuery) {
    return readBatches(this.#context, query)
  }

  items(query: ItemsQuery) {
    return readItems(this.#db, query)
  }

  accept(request: AcceptRequest) {
    return accept(this.#context, request)
  }

  blockers(id: string) {
    return blockers(this.#context, id)
  }

  job(id: string) {
    return readJob(this.#db, id)
  }

  journal(query: JournalQuery) {
    return readJournal(this.#db, query)
  }

  messages(query: MessagesQuery) {
    return readMessages(this.#db, query)
  }

  outcomes(ids: readonly string[]) {
    return readOutcomes(this.#db, ids)
  }

  find(query: FindQuery) {
    return findJobs(this.#db, query)
  }

  count(query: CountQuery) {
    return countJobs(this.#db, query)
  }

  deadGroups(query: DeadGroupsQuery) {
    return readDeadGroups(this.#db, query)
  }

  stats() {
    return readStats(this.#db)
  }

  kvGet(key: string) {
    return kvGet(this.#db, key)
  }

  kvWrite(writes: readonly KvWrite[]) {
    return this.#kvWrites.write(writes)
  }

  kvScan(query: KvScanQuery) {
    return kvScan(this.#db, query)
  }

  advance(request: AdvanceRequest) {
    return advance(this.#context, request)
  }

  async time(): Promise<number> {
    const [row] = await this.#db.query('select holdfast.now_ms($1)', [this.#db.now])
    return Number(row?.[0])
  }

  watch() {
    return watch(this.#db)
  }

  changes(query: ChangesQuery) {
    return readChanges(this.#db, query)
  }

  examine(request: ExamineRequest) {
    const sweep = () => this.sweep({ max: sweepMax })
    return examine({ db: this.#db, listen: this.#listen, request, sweep })
  }

  subscribe(subscriber: Subscriber): () => void {
    return this.#wakes.subscribe(subscriber)
  }

  stopWaiting(over: AbortSignal): void {
    this.#context.polls.close()
    this.#over = over
    over.addEventListener('abort', () => this.#db.cut(), { once: true })
  }

  close(): Promise<void> {
    this.#closing ??= this.#close()
    return this.#closing
  }

  async #close(): Promise<void> {
    this.#context.polls.close()
    await this.#wakes.close(this.#over)
    this.#db.close()
    if (this.#ownsPool) await orAborted(this.#pool.end(), this.#over)
    else this.#letGoOfPool()
  }
}
