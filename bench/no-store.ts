// A store that costs nothing: a number of identical jobs, claimed and settled at once. It is used only here, to measure the
// runtime without its store.

import { Holdfast } from '../src/holdfast.ts'
import type { ClaimedJob, ClaimRequest, SettleAnswer, SettleRequest, Store, SweepReport } from '../src/store/store.ts'
import { payload, queueName } from './load.ts'

const answer: SettleAnswer = { state: 'done', runAt: null, enqueued: [] }
const text = JSON.stringify(payload)

export class NoStore {
  readonly holdfast: Holdfast
  settled = 0
  #left: number
  #no = 0

  constructor(jobs: number) {
    this.#left = jobs
    this.holdfast = new Holdfast(this.#store() as Store, { logger: false })
  }

  #store(): Partial<Store> {
    return {
      capabilities: { manyWriters: false, callerTransaction: false, sqlEffects: false, survivesPowerLoss: false },
      claimsFollowEnqueues: true,
      define: async () => [],
      definitions: async () => [],
      claim: async (request) => this.#claim(request),
      renew: async (requests) => requests.map(() => ({ expiresAt: Date.now() + 30_000, cancelRequested: false })),
      cancelRequested: async (holds) => holds.map(() => false),
      settle: async (requests) => this.#settle(requests),
      sweep: async () => nothingSwept(),
      subscribe: () => () => undefined,
      time: async () => Date.now(),
      kvWrite: async (writes) => writes.map(() => ({ applied: true, version: 1 })),
      close: async () => undefined,
    }
  }

  #claim({ max, leaseMs }: ClaimRequest): ClaimedJob[] {
    const count = Math.min(max, this.#left)
    this.#left -= count
    const now = Date.now()
    return Array.from({ length: count }, () => this.#job(now, leaseMs))
  }

  #job(now: number, leaseMs: number): ClaimedJob {
    this.#no += 1
    const id = `00000000-0000-7000-8000-${String(this.#no).padStart(12, '0')}`
    return {
      ...{ id, queue: queueName, fence: id, attempt: 1, maxAttempts: 5, cameBack: false, priority: 5, timeoutMs: null },
      ...{
        createdAt: now,
        startedAt: now,
        expiresAt: now + leaseMs,
        headers: null,
        payload: text,
        labels: null,
        batch: null,
      },
    }
  }

  #settle(requests: readonly SettleRequest[]): SettleAnswer[] {
    this.settled += requests.length
    return requests.map(() => answer)
  }
}

function nothingSwept(): SweepReport {
  const counts = { rescued: 0, promoted: 0, overdue: 0, admitted: 0, pruned: 0 }
  return { ...counts, expired: [], more: false, nextDueAt: null, now: Date.now() }
}
