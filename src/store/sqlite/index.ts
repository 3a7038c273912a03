// The SQLite store: the default. One file, no server, one machine, several processes.

import { realpathSync } from 'node:fs'
import type { DatabaseSync } from 'node:sqlite'
import { HoldfastError, isRefused, type Refused, toError } from '../../errors.ts'
import type { BatchRecord, BatchSettings } from '../../job/batch.ts'
import { bounds } from '../../job/bounds.ts'
import { countOf, isOfLists } from '../../job/filter.ts'
import type { LimitOverride } from '../../job/limit-key.ts'
import { checkOptions } from '../../job/names.ts'
import type { JobOutcome, KvWrite, QueueSettings } from '../../job/record.ts'
import { settingsText } from '../../job/stored-definition.ts'
import { type Clock, systemClock } from '../../runtime/clock.ts'
import { type Duration, toMs } from '../../runtime/duration.ts'
import { repaired } from '../findings.ts'
import type {
  AcceptAnswer,
  AcceptRequest,
  AdvanceAnswer,
  AdvanceRequest,
  AlterAnswer,
  AlterRequest,
  BatchesQuery,
  BatchName,
  CancelAnswer,
  CancelRequest,
  Capabilities,
  ChangeAllRequest,
  ChangedStep,
  ChangesQuery,
  CheckpointAnswer,
  CheckpointRequest,
  ClaimedJob,
  ClaimRequest,
  ControlBatchRequest,
  CountedJobs,
  CountQuery,
  DeadGroupsQuery,
  DefinedQueue,
  DeleteQueueRequest,
  EnqueueAnswer,
  EnqueueRequest,
  ExamineRequest,
  Finding,
  FindQuery,
  FoundPage,
  ItemsAnswer,
  ItemsQuery,
  ItemsRequest,
  JournalQuery,
  KvAnswer,
  KvScanQuery,
  LeaseRef,
  MessagesQuery,
  OpenedBatch,
  PauseEnd,
  ProgressAnswer,
  ProgressRequest,
  QueueDeletion,
  ReleasedWorker,
  ReleaseWorkerRequest,
  RenewAnswer,
  RenewRequest,
  RequeueAnswer,
  SettleAnswer,
  SettleRequest,
  SignalAnswer,
  SignalRequest,
  SignalTarget,
  Store,
  Subscriber,
  SweepRequest,
} from '../store.ts'
import { changeAll } from './change-all.ts'
import { findBetterSqlite3 } from './connection/better-sqlite3.ts'
import { enqueueIn, inTransactionOf, toCallerConnection } from './connection/caller.ts'
import { checkDriver, type SqliteDriver, type SyncDatabase } from './connection/driver.ts'
import { examineFile } from './doctor/file.ts'
import type { Answer, Item, VerbName } from './engine.ts'
import { inSteps } from './find.ts'
import { signal } from './signal.ts'
import { withBindables } from './sql-effect.ts'
import { InOwnThread, InThread, type OnCommitted, type Port, type StartThread, startThread } from './thread/port.ts'

export type { DatabaseSync } from 'node:sqlite'

export interface SqliteOptions {
  /** A file, or `:memory:`. */
  readonly path: string
  /**
   * The SQLite library; default `node:sqlite`. If your application opens the same file with better-sqlite3, the store must use it
   * too: two SQLite libraries in one process do not see each other's locks, and damage the file.
   */
  readonly driver?: SqliteDriver
  /** How long a call waits while other connections write to the file, yours included; default 30 s. */
  readonly busyTimeout?: Duration
  /** Run in this thread instead of the store's own. Only for tests and measurements: it waits for the disk. */
  readonly inThread?: boolean
}

const chunkMax = 1_000

export function sqlite(options: SqliteOptions) {
  checkOptions(options, 'sqlite options', ['path', 'driver', 'busyTimeout', 'inThread'])
  return sqliteOn(startThread, options)
}

/** In memory and in this thread. `onOpened` gets the connection that the store itself uses. */
export function sqliteInMemory(onOpened: (db: DatabaseSync) => void) {
  return sqliteOn(startThread, { path: ':memory:' }, (db) => onOpened(db as DatabaseSync))
}

/** `sqlite` on threads that the caller starts. */
export function sqliteOn(
  start: StartThread,
  { path, driver: wantedDriver = 'node:sqlite', busyTimeout = '30s', inThread }: SqliteOptions,
  onOpened?: (db: SyncDatabase) => void,
) {
  refuseUri(path)
  const driver = checkDriver(wantedDriver)
  const busyMaxMs = toMs(busyTimeout, 'busyTimeout')
  return async ({
    clock,
    readOnly = false,
  }: {
    readonly clock: Clock
    readonly readOnly?: boolean
  }): Promise<Store> => {
    const subscribers = new Set<Subscriber>()
    const onCommitted: OnCommitted = ({ ready, cancels, finished, droppedNotices, undeliverable }) => {
      for (const subscriber of subscribers) {
        for (const [queue, count] of ready) subscriber.onReady?.(queue, count)
        if (cancels === null || cancels.length > 0) subscriber.onCancel?.(cancels)
        for (const batch of finished) subscriber.onFinished?.(batch)
        for (const death of droppedNotices) subscriber.onNoticeDropped?.(death)
        for (const job of undeliverable) subscriber.onUndeliverable?.(job)
      }
    }
    const staysHere = inThread || path === ':memory:' || (clock !== systemClock && clock.shared === undefined)
    const library = driver === 'better-sqlite3' ? findBetterSqlite3() : undefined
    const file = { path, driver, library, readOnly, busyMaxMs }
    const port = staysHere
      ? new InThread(file, clock, onCommitted)
      : await InOwnThread.open(start, { file, clock: clock.shared ?? null }, onCommitted)
    if (port instanceof InThread) onOpened?.(port.connection)
    return new SqliteStore({ port, subscribers, clock, driver, path: path === ':memory:' ? null : realpathSync(path) })
  }
}

/** The libraries differ in what they make of a URI: another file, a name with a colon, options that weaken the store. */
function refuseUri(path: string): void {
  if (!/^file:/i.test(path)) return
  const plain = path
    .replace(/^file:/i, '')
    .replace(/^\/\/(?=\/)/, '')
    .replace(/[?#].*$/s, '')
  const sentence = `The store takes a path, not a URI: 'sqlite:${plain}' or sqlite({ path: '${plain}' }).`
  throw new HoldfastError('INVALID_OPTION', sentence, { option: 'path', value: path })
}

interface Parts {
  readonly port: Port
  readonly subscribers: Set<Subscriber>
  readonly clock: Clock
  readonly driver: SqliteDriver
  readonly path: string | null
}

class SqliteStore implements Store {
  readonly capabilities: Capabilities
  readonly claimsFollowEnqueues = true
  readonly #port: Port
  readonly #subscribers: Set<Subscriber>
  readonly #clock: Clock
  readonly #driver: SqliteDriver
  /** null: in memory. */
  readonly #path: string | null
  /** Versions of the definitions that were stored in callers' transactions, by the text of their settings. */
  readonly #definedAtOnce = new Map<string, number>()
  /** What this process has defined, for callers' own transactions. */
  readonly #own = new Map<string, QueueSettings>()
  #closing: Promise<void> | null = null

  constructor({ port, subscribers, clock, driver, path }: Parts) {
    this.#port = port
    this.#subscribers = subscribers
    this.#clock = clock
    this.#driver = driver
    this.#path = path
    const isFile = path !== null
    this.capabilities = { manyWriters: isFile, callerTransaction: isFile, sqlEffects: true, survivesPowerLoss: isFile }
  }

  async define(queues: readonly QueueSettings[]): Promise<DefinedQueue[]> {
    const defined = await this.#all('define', queues)
    for (const settings of queues) this.#own.set(settings.name, settings)
    for (const { name, limits } of queues) if (limits?.keyLimit != null) await this.#lowerLimits(name)
    return defined
  }

  /** A call that lowers a limit is answered when all ready jobs beyond the new limit are held again. */
  async #lowerLimits(queue: string): Promise<void> {
    while (await this.#one('lowerLimits', queue));
  }

  definitions(queues: readonly string[] | null) {
    return this.#one('readDefinitions', queues)
  }

  async overrideLimit(queue: string, override: LimitOverride | null): Promise<void> {
    await this.#one('overrideLimit', { name: queue, override })
    await this.#lowerLimits(queue)
  }

  enqueue(requests: readonly EnqueueRequest[]): Promise<EnqueueAnswer[]> {
    return this.#port.call('enqueue', requests)
  }

  /** Only for a file: no other connection can open a database in memory. */
  enqueueSync(tx: unknown, request: EnqueueRequest, settings: QueueSettings | null): EnqueueAnswer {
    const db = toCallerConnection(tx, { path: this.#path as string, driver: this.#driver })
    const text = settings && settingsText(settings)
    const definedAs = text === null ? 0 : (this.#definedAtOnce.get(text) ?? 0)
    const now = Math.floor(this.#clock.now())
    const { answer, definedAs: version } = enqueueIn(db, {
      ...{ ...request, settings, definedAs, now },
      definitionOf: (queue) => this.#own.get(queue),
    })
    if (text !== null) this.#definedAtOnce.set(text, version)
    return answer
  }

  claim(request: ClaimRequest): Promise<ClaimedJob[]> {
    return this.#one('claim', request)
  }

  renew(requests: readonly RenewRequest[]): Promise<RenewAnswer[]> {
    return this.#port.call('renew', requests)
  }

  progress(requests: readonly ProgressRequest[]): Promise<ProgressAnswer[]> {
    return this.#port.call('progress', requests)
  }

  /**
   * No token is needed, because no answer is lost between this process and its file. A group is answered after it has committed,
   * and a request that is refused as STORE_UNAVAILABLE was rolled back. Only if the thread itself ends (out of memory) the last
   * commit is unknown. Then this store has ended too, and no caller can repeat the settlement on it.
   */
  settle(requests: readonly SettleRequest[]): Promise<SettleAnswer[]> {
    return this.#port.call('settle', requests.some(hasSql) ? requests.map(withBindableSql) : requests)
  }

  /** The same holds for its token as for that of `settle`. */
  checkpoint(requests: readonly CheckpointRequest[]): Promise<CheckpointAnswer[]> {
    return this.#port.call('checkpoint', requests.map(withBindable))
  }

  signal(requests: readonly SignalRequest[]): Promise<SignalAnswer[]> {
    return this.#port.call('signal', requests)
  }

  signalSync(tx: unknown, request: SignalRequest): SignalAnswer {
    const db = toCallerConnection(tx, { path: this.#path as string, driver: this.#driver })
    return inTransactionOf(db, Math.floor(this.#clock.now()), (own) => {
      own.definitionOf = (queue) => this.#own.get(queue)
      return signal(own, request)
    })
  }

  clearSignals(to: SignalTarget, name: string | null): Promise<number> {
    return this.#one('clearSignals', { to, name })
  }

  journal(query: JournalQuery) {
    return this.#one('readJournal', query)
  }

  messages(query: MessagesQuery) {
    return this.#one('readMessages', query)
  }

  sweep(request: SweepRequest) {
    return this.#one('sweep', request)
  }

  cancel(requests: readonly CancelRequest[]): Promise<CancelAnswer[]> {
    const ready = requests.map(({ effects, ...rest }) => ({ ...rest, effects: effects && withBindables(effects) }))
    return this.#port.call('cancel', ready)
  }

  requeue(ids: readonly string[], by: string | null = null): Promise<RequeueAnswer[]> {
    return this.#port.call(
      'requeue',
      ids.map((id) => ({ id, by })),
    )
  }

  alter(requests: readonly AlterRequest[]): Promise<AlterAnswer[]> {
    return this.#port.call('alter', requests)
  }

  changeAll(request: ChangeAllRequest): Promise<ChangedStep> {
    const calls = {
      begin: (item: Item<'beginChange'>) => this.#one('beginChange', item),
      find: (item: Item<'findSeqs'>) => this.#one('findSeqs', item),
      judge: (item: Item<'judgeJobs'>) => this.#one('judgeJobs', item),
      change: (item: Item<'changeJobs'>) => this.#one('changeJobs', item),
    }
    return changeAll(calls, request)
  }

  async pause(queue: string, paused: boolean, by: string | null = null, end: PauseEnd | null = null): Promise<void> {
    await this.#one('pause', { name: queue, paused, by, end })
  }

  pauseAll(paused: boolean, by: string | null = null, end: PauseEnd | null = null): Promise<string[]> {
    return this.#one('pauseAll', { paused, by, end })
  }

  releaseWorker(request: ReleaseWorkerRequest): Promise<ReleasedWorker> {
    return this.#one('releaseWorker', request)
  }

  deleteQueue(request: DeleteQueueRequest): Promise<QueueDeletion> {
    return this.#one(request.dryRun ? 'findQueueRows' : 'deleteQueue', request)
  }

  openBatch(settings: BatchSettings): Promise<OpenedBatch> {
    return this.#one('openBatch', settings)
  }

  async addItems(request: ItemsRequest): Promise<ItemsAnswer> {
    const [answer] = await this.#port.call('addItems', [request])
    return answer as ItemsAnswer
  }

  /** A change of many items runs in steps, and other calls run between them. */
  async controlBatch(request: ControlBatchRequest): Promise<BatchRecord | Refused> {
    const [controlled] = await this.#port.call('controlBatch', [request])
    if (controlled === undefined || isRefused(controlled)) return controlled as Refused
    if (!controlled.more) return controlled.batch
    while (await this.#one('batchChore', request));
    return (await this.batch({ id: request.batch })) ?? controlled.batch
  }

  batch(name: BatchName) {
    return this.#one('readBatch', name)
  }

  batches(query: BatchesQuery) {
    return this.#one('readBatches', query)
  }

  items(query: ItemsQuery) {
    return this.#one('readItems', query)
  }

  async accept(request: AcceptRequest): Promise<AcceptAnswer> {
    const [answer] = await this.#port.call('accept', [
      { ...request, effects: request.effects && withBindables(request.effects) },
    ])
    return answer as AcceptAnswer
  }

  blockers(id: string) {
    return this.#one('readBlockers', id)
  }

  job(id: string) {
    return this.#one('readJob', id)
  }

  outcomes(ids: readonly string[]): Promise<(JobOutcome | 'live' | null)[]> {
    return this.#one('readOutcomes', ids)
  }

  cancelRequested(leases: readonly LeaseRef[]): Promise<boolean[]> {
    return this.#all('readCancelRequested', leases)
  }

  async find(query: FindQuery): Promise<FoundPage> {
    const { jobs, looked, next } = await inSteps((step) => this.#one('findJobs', step), query, { isCount: false })
    return { jobs, looked, next }
  }

  async count({ filter, after }: CountQuery): Promise<CountedJobs> {
    if (isOfLists(filter)) return { count: countOf(filter, await this.stats()), looked: 0, next: null }
    const query = { filter, after, limit: bounds.lookMax, include: [] }
    const { count, looked, next } = await inSteps((step) => this.#one('findJobs', step), query, { isCount: true })
    return { count, looked, next }
  }

  deadGroups(query: DeadGroupsQuery) {
    return this.#one('readDeadGroups', query)
  }

  stats() {
    return this.#one('readStats', null as never)
  }

  kvGet(key: string) {
    return this.#one('kvGet', key)
  }

  kvWrite(writes: readonly KvWrite[]): Promise<KvAnswer[]> {
    return this.#port.call('kvWrite', writes)
  }

  kvScan(query: KvScanQuery) {
    return this.#one('kvScan', query)
  }

  async advance(request: AdvanceRequest): Promise<AdvanceAnswer> {
    const [answer] = await this.#port.call('advance', [request])
    return answer as AdvanceAnswer
  }

  async time(): Promise<number> {
    return Math.floor(this.#clock.now())
  }

  watch() {
    return this.#one('watch', null as never)
  }

  changes(query: ChangesQuery) {
    return this.#one('readChanges', query)
  }

  async examine(request: ExamineRequest): Promise<Finding[]> {
    const repairs = request.fix ? await this.#repair(request) : []
    const inside = await this.#one('examine', request)
    const outside = this.#path === null ? [] : await examineFile({ path: this.#path, driver: this.#driver })
    return [...repairs, ...inside, ...outside]
  }

  async #repair(request: ExamineRequest): Promise<Finding[]> {
    const unswept = (await this.#one('examine', request)).some(
      ({ id, severity }) => severity === 'wrong' && isOfSweeps(id),
    )
    if (unswept) while ((await this.sweep({ max: chunkMax })).more);
    const swept = unswept
      ? [repaired('leases-expired', 'Swept: expired leases were taken back, and due jobs promoted.')]
      : []
    return [...swept, ...(await this.#one('repair', null as never))]
  }

  subscribe(subscriber: Subscriber): () => void {
    this.#subscribers.add(subscriber)
    return () => this.#subscribers.delete(subscriber)
  }

  stopWaiting(over: AbortSignal): void {
    this.#port.stopWaiting(over)
  }

  close(): Promise<void> {
    this.#closing ??= this.#port.close()
    return this.#closing
  }

  async #one<V extends VerbName>(verb: V, item: Item<V>): Promise<Given<V>> {
    const [answer] = await this.#all(verb, [item])
    return answer as Given<V>
  }

  /** For verbs that refuse a request only if the store cannot run it. */
  async #all<V extends VerbName>(verb: V, items: readonly Item<V>[]): Promise<Given<V>[]> {
    const answers = await this.#port.call(verb, items)
    return answers.map((answer) => {
      if (isRefused(answer)) throw toError(answer)
      return answer as Given<V>
    })
  }
}

function isOfSweeps(id: string): boolean {
  return id === 'leases-expired' || id === 'jobs-not-promoted' || id === 'jobs-held-back'
}

type Given<V extends VerbName> = Exclude<Answer<V>, { refused: unknown }>

function hasSql({ settlement }: SettleRequest): boolean {
  return 'effects' in settlement && !!settlement.effects && settlement.effects.sql.length > 0
}

function withBindable(request: CheckpointRequest): CheckpointRequest {
  const { effects } = request
  return effects === null || effects.sql.length === 0 ? request : { ...request, effects: withBindables(effects) }
}

function withBindableSql(request: SettleRequest): SettleRequest {
  const { settlement } = request
  if (!('effects' in settlement) || !settlement.effects) return request
  return { ...request, settlement: { ...settlement, effects: withBindables(settlement.effects) } }
}
