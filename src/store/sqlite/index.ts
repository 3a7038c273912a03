// The SQLite store: the default. One file, no server, one machine, several processes.

import { type Clock, systemClock } from '../../clock.ts'
import { isRefused, toError } from '../../errors.ts'
import type { JobOutcome, QueueSettings } from '../../job/record.ts'
import type {
  AlterAnswer,
  AlterRequest,
  CancelAnswer,
  CancelRequest,
  Capabilities,
  ClaimedJob,
  ClaimRequest,
  EnqueueAnswer,
  EnqueueRequest,
  JobsQuery,
  KvAnswer,
  KvScanQuery,
  KvWrite,
  PurgeAnswer,
  PurgeRequest,
  RenewAnswer,
  RenewRequest,
  RequeueAllAnswer,
  RequeueAllRequest,
  RequeueAnswer,
  SettleAnswer,
  SettleRequest,
  Store,
  SweepRequest,
} from '../store.ts'
import type { RequeueChunkAnswer, RequeueMark } from './control.ts'
import type { Answer, Item, VerbName } from './engine.ts'
import { InOwnThread, InThread, type OnReady, type Port } from './port.ts'

export interface SqliteOptions {
  /** A file, or `:memory:`. */
  readonly path: string
  /** Work in this thread rather than in one of the store's own. Only for tests and measurements: it waits for the disk. */
  readonly inThread?: boolean
}

const chunkMax = 1_000

export function sqlite({ path, inThread }: SqliteOptions) {
  return async ({
    clock,
    readOnly = false,
  }: {
    readonly clock: Clock
    readonly readOnly?: boolean
  }): Promise<Store> => {
    const listeners = new Set<OnReady>()
    const onReady: OnReady = (queue, count) => {
      for (const listener of listeners) listener(queue, count)
    }
    const staysHere = inThread || path === ':memory:' || (clock !== systemClock && clock.shared === undefined)
    const file = { path, readOnly }
    const port = staysHere ? new InThread(file, clock, onReady) : await InOwnThread.open(file, clock, onReady)
    return new SqliteStore(port, listeners, path !== ':memory:')
  }
}

class SqliteStore implements Store {
  readonly capabilities: Capabilities
  readonly claimsFollowEnqueues = true
  readonly #port: Port
  readonly #listeners: Set<OnReady>
  #closing: Promise<void> | null = null

  constructor(port: Port, listeners: Set<OnReady>, isFile: boolean) {
    this.#port = port
    this.#listeners = listeners
    this.capabilities = { manyWriters: isFile, callerTransaction: false, sqlEffects: false, survivesPowerLoss: isFile }
  }

  async define(queues: readonly QueueSettings[]): Promise<void> {
    for (const answer of await this.#port.call('define', queues)) if (isRefused(answer)) throw toError(answer)
  }

  enqueue(requests: readonly EnqueueRequest[]): Promise<EnqueueAnswer[]> {
    return this.#port.call('enqueue', requests)
  }

  claim(request: ClaimRequest): Promise<ClaimedJob[]> {
    return this.#one('claim', request)
  }

  renew(requests: readonly RenewRequest[]): Promise<RenewAnswer[]> {
    return this.#port.call('renew', requests)
  }

  settle(requests: readonly SettleRequest[]): Promise<SettleAnswer[]> {
    return this.#port.call('settle', requests)
  }

  sweep(request: SweepRequest) {
    return this.#one('sweep', request)
  }

  cancel(requests: readonly CancelRequest[]): Promise<CancelAnswer[]> {
    return this.#port.call('cancel', requests)
  }

  requeue(ids: readonly string[]): Promise<RequeueAnswer[]> {
    return this.#port.call('requeue', ids)
  }

  /** In chunks, newest first. A dry run frees nothing, so it remembers which keys the chunks before would have taken. */
  async requeueAll({ filter, dryRun }: RequeueAllRequest): Promise<RequeueAllAnswer> {
    const taken = new Map<string, string>()
    const skipped: { id: string; heldBy: string }[] = []
    let requeued = 0
    let after: RequeueMark | null = null
    do {
      const chunk: RequeueChunkAnswer = await this.#one('requeueChunk', { filter, dryRun, max: chunkMax, after })
      for (const { id, heldBy } of chunk.skipped) skipped.push({ id, heldBy })
      for (const { id, slot } of chunk.requeued) {
        const heldBy = dryRun && slot !== null ? taken.get(slot) : undefined
        if (heldBy !== undefined) skipped.push({ id, heldBy })
        else requeued += 1
        if (slot !== null && heldBy === undefined) taken.set(slot, id)
      }
      after = chunk.after
    } while (after !== null)
    return { requeued, skipped }
  }

  alter(requests: readonly AlterRequest[]): Promise<AlterAnswer[]> {
    return this.#port.call('alter', requests)
  }

  async purge(request: PurgeRequest): Promise<PurgeAnswer> {
    for (let deleted = 0; ; ) {
      const count = await this.#one('purgeChunk', { ...request, max: chunkMax })
      deleted += count
      if (count < chunkMax) return { deleted }
    }
  }

  async pause(queue: string, paused: boolean): Promise<void> {
    await this.#one('pause', { name: queue, paused })
  }

  job(id: string) {
    return this.#one('readJob', id)
  }

  async outcomes(ids: readonly string[]): Promise<(JobOutcome | 'live' | null)[]> {
    const answers = await this.#port.call('readOutcome', ids)
    return answers.map((answer) => {
      if (isRefused(answer)) throw toError(answer)
      return answer
    })
  }

  jobs(query: JobsQuery) {
    return this.#one('readJobs', query)
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

  subscribe(onReady: OnReady): () => void {
    this.#listeners.add(onReady)
    return () => this.#listeners.delete(onReady)
  }

  close(): Promise<void> {
    this.#closing ??= this.#port.close()
    return this.#closing
  }

  async #one<V extends VerbName>(verb: V, item: Item<V>): Promise<Exclude<Answer<V>, { refused: unknown }>> {
    const [answer] = await this.#port.call(verb, [item])
    if (isRefused(answer)) throw toError(answer)
    return answer as Exclude<Answer<V>, { refused: unknown }>
  }
}
