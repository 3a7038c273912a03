// A store for reading only: dashboards, reports, replicas. Reads and dry runs pass; every call that would change something is
// refused.

import { HoldfastError } from '../errors.ts'
import type {
  BatchesQuery,
  BatchName,
  ChangeAllRequest,
  ChangesQuery,
  CountQuery,
  DeadGroupsQuery,
  DeleteQueueRequest,
  ExamineRequest,
  FindQuery,
  ItemsQuery,
  JournalQuery,
  KvScanQuery,
  LeaseRef,
  MessagesQuery,
  Store,
  Subscriber,
} from './store.ts'

export class ReadOnlyStore implements Store {
  readonly claimsFollowEnqueues = false
  readonly #store: Store

  constructor(store: Store) {
    this.#store = store
  }

  get capabilities() {
    return { ...this.#store.capabilities, manyWriters: false, callerTransaction: false, sqlEffects: false }
  }

  define = () => refused('define a queue')
  overrideLimit = () => refused('override a limit')
  enqueue = () => refused('enqueue')
  claim = () => refused('claim')
  renew = () => refused('renew a lease')
  progress = () => refused('report progress')
  settle = () => refused('settle a job')
  checkpoint = () => refused('write a checkpoint')
  signal = () => refused('send a signal')
  clearSignals = () => refused('clear signals')
  sweep = () => refused('sweep')
  cancel = () => refused('cancel')
  requeue = () => refused('requeue')
  alter = () => refused('change a job')
  pause = () => refused('pause or resume')
  pauseAll = () => refused('pause or resume')
  releaseWorker = () => refused('release the jobs of a worker')
  openBatch = () => refused('open a batch')
  addItems = () => refused('add items to a batch')
  controlBatch = () => refused('change a batch')
  accept = () => refused('accept an offer')
  kvWrite = () => refused('write a key')
  advance = () => refused('enqueue')
  watch = () => refused('watch, because a watcher must register itself with the writers')

  changeAll(request: ChangeAllRequest) {
    return request.dryRun ? this.#store.changeAll(request) : refused('change jobs')
  }

  deleteQueue(request: DeleteQueueRequest) {
    return request.dryRun ? this.#store.deleteQueue(request) : refused('delete a queue')
  }

  job(id: string) {
    return this.#store.job(id)
  }

  journal(query: JournalQuery) {
    return this.#store.journal(query)
  }

  messages(query: MessagesQuery) {
    return this.#store.messages(query)
  }

  blockers(id: string) {
    return this.#store.blockers(id)
  }

  batch(name: BatchName) {
    return this.#store.batch(name)
  }

  batches(query: BatchesQuery) {
    return this.#store.batches(query)
  }

  items(query: ItemsQuery) {
    return this.#store.items(query)
  }

  outcomes(ids: readonly string[]) {
    return this.#store.outcomes(ids)
  }

  deadGroups(query: DeadGroupsQuery) {
    return this.#store.deadGroups(query)
  }

  find(query: FindQuery) {
    return this.#store.find(query)
  }

  count(query: CountQuery) {
    return this.#store.count(query)
  }

  definitions(queues: readonly string[] | null) {
    return this.#store.definitions(queues)
  }

  stats() {
    return this.#store.stats()
  }

  kvGet(key: string) {
    return this.#store.kvGet(key)
  }

  kvScan(query: KvScanQuery) {
    return this.#store.kvScan(query)
  }

  time() {
    return this.#store.time()
  }

  changes(query: ChangesQuery) {
    return this.#store.changes(query)
  }

  cancelRequested(leases: readonly LeaseRef[]) {
    return this.#store.cancelRequested(leases)
  }

  examine(request: ExamineRequest) {
    return request.fix ? refused('repair') : this.#store.examine(request)
  }

  subscribe(subscriber: Subscriber) {
    return this.#store.subscribe(subscriber)
  }

  stopWaiting(over: AbortSignal): void {
    this.#store.stopWaiting?.(over)
  }

  close() {
    return this.#store.close()
  }
}

function refused(what: string): Promise<never> {
  const message = `Cannot ${what}: this Holdfast was opened read-only. Open it without readOnly to change something.`
  return Promise.reject(new HoldfastError('UNSUPPORTED', message, { capability: 'write' }))
}
