// Runs flows in a process of a simulation, on the contract of the store alone: it claims runs with their journals, and writes
// each step with its effects in one checkpoint. A run counts four steps, starts a child, waits for a signal, and waits for the
// child.
//
// Whatever happens to its process, the next claim goes on behind the last record. So each step takes effect once.

import { type HoldfastError, isHoldfastError, isRefused, type Refused } from '../../src/errors.ts'
import type { JournalWrites, StepRecord } from '../../src/job/journal.ts'
import type { EffectSet, KvCompare, NewJob } from '../../src/job/record.ts'
import type { Settlement } from '../../src/job/transition.ts'
import { pause, type Timers } from '../../src/runtime/clock.ts'
import { newId } from '../../src/runtime/id.ts'
import type { CheckpointAnswer, CheckpointRequest, ClaimedJob, SettleAnswer, Store } from '../../src/store/store.ts'
import type { Random } from '../torture/random.ts'
import { childStep, countKey, flowChildren, flowRuns, signalName, totalKey } from './flows.ts'

export interface RunnerScene {
  readonly name: string
  readonly store: Store
  readonly timers: Timers
  readonly random: Random
  readonly isCalm: () => boolean
  /** The process has died, or makes no more calls. */
  readonly isOver: () => boolean
  readonly accuse: (promise: string, what: string) => void
}

const leaseMs = 900
const claimMax = 3
const parkMs = 3_600_000
const againMs = 40

/** The lease is lost, or the process makes no more calls: the run ends here, and another claim goes on. */
class Gone extends Error {}

export async function runFlows(scene: RunnerScene): Promise<void> {
  const { name, store, timers, random, isCalm, isOver } = scene
  let woken: (() => void) | null = null
  store.subscribe({ onReady: (queue) => queue === flowRuns.name && woken?.() })
  while (!isOver()) {
    const claimed = await store
      .claim({ queues: [flowRuns.name], max: claimMax, leaseMs, worker: `${name}-flows`, journals: true })
      .catch(() => [])
    for (const run of claimed) void new FlowRun(scene, run).live()
    const { promise, resolve } = Promise.withResolvers<void>()
    woken = resolve
    timers.after(isCalm() ? 300 : random.between(60, 200), resolve)
    await promise
  }
}

class FlowRun {
  readonly #scene: RunnerScene
  readonly #run: ClaimedJob
  readonly #records: StepRecord[]
  #tokens = 0

  constructor(scene: RunnerScene, run: ClaimedJob) {
    this.#scene = scene
    this.#run = run
    this.#records = [...(run.journal?.records ?? [])]
  }

  async live(): Promise<void> {
    try {
      await this.#program()
    } catch (error) {
      const isExpected = error instanceof Gone || isHoldfastError(error, 'CLOSED')
      if (!isExpected) this.#scene.accuse('a flow runs without errors', `${this.#run.id}: ${error}`)
    }
  }

  async #program(): Promise<void> {
    await this.#count('first')
    await this.#startChild()
    await this.#count('second')
    if (!(await this.#awaitSignal())) return
    await this.#count('last')
    const end = await this.#message(({ child }) => child !== null)
    if (end === undefined) return this.#park()
    const journal = { records: [this.#next(childStep, 0, end.value)], consume: [end.no] }
    await this.#settle({ as: 'done', result: '"done"', effects: null, journal })
  }

  /** A step that counts, with its record. */
  async #count(step: string, writes: Omit<JournalWrites, 'records'> = {}): Promise<void> {
    if (this.#has(step, 0)) return
    await this.#work()
    for (;;) {
      const compare = [await this.#increment(countKey(this.#run.id, step)), await this.#increment(totalKey)]
      const journal = { records: [this.#next(step, 0, 'null')], ...writes }
      const refused = await this.#checkpoint(journal, { ...noEffects, compare })
      if (refused === null) return
      // Another run has counted in the meantime.
      if (refused.refused !== 'KV_VERSION_MISMATCH') throw new Error(`step ${step}: ${refused.message}`)
    }
  }

  async #startChild(): Promise<void> {
    if (this.#has(childStep, -1)) return
    await this.#work()
    const job: NewJob = {
      ...{ id: newId(), idGiven: false, queue: flowChildren.name, payload: '{"label":"child"}', headers: null },
      ...{ priority: null, maxAttempts: null, timeoutMs: null, delayMs: 0, runAt: null, startBefore: null },
      ...{ dedup: null, idempotency: null, parent: { id: this.#run.id, step: childStep } },
    }
    const journal = { records: [this.#next(childStep, -1, JSON.stringify(job.id))] }
    const refused = await this.#checkpoint(journal, { ...noEffects, enqueue: [job] })
    if (refused) throw new Error(`a child is refused: ${refused.message}`)
  }

  /** False: the run is parked. */
  async #awaitSignal(): Promise<boolean> {
    if (this.#has(signalName, 0)) return true
    const message = await this.#message(({ name }) => name === signalName)
    if (message === undefined) {
      await this.#park()
      return false
    }
    if (message.value !== JSON.stringify(this.#run.id)) throw new Error(`the signal says ${message.value}`)
    await this.#count(signalName, { consume: [message.no] })
    return true
  }

  /** Some work takes longer than the lease. */
  async #work(): Promise<void> {
    const { timers, random, isCalm } = this.#scene
    const ms = isCalm() ? 1 : random.chance(0.1) ? random.between(leaseMs, 2 * leaseMs) : random.between(0, 60)
    await pause(timers, ms)
  }

  async #message(isMeant: (message: Awaited<ReturnType<Store['messages']>>[number]) => boolean) {
    const messages = await this.#again(() => this.#scene.store.messages({ id: this.#run.id, keys: [] }))
    return messages.find(isMeant)
  }

  async #increment(key: string): Promise<KvCompare> {
    const entry = await this.#again(() => this.#scene.store.kvGet(key))
    const value = String(Number(entry?.value ?? 0) + 1)
    return { as: 'compareAndSet', key, value, version: entry?.version ?? null, ttlMs: null }
  }

  #has(step: string, part: number): boolean {
    return this.#records.some((record) => record.step === step && record.part === part)
  }

  #next(step: string, part: number, body: string): StepRecord {
    return { no: this.#records.length + 1, step, part, body }
  }

  /** Answers why nothing was written, or null. */
  async #checkpoint(journal: JournalWrites, effects: EffectSet): Promise<Refused | null> {
    const { id, fence } = this.#run
    const request: CheckpointRequest = { id, fence, effects, journal, startsOver: true, leaseMs }
    const token = this.#token()
    const answer = await this.#again(async () => (await this.#scene.store.checkpoint([request], token))[0])
    if (answer === 'lost' || answer === undefined) throw new Gone()
    if ('failed' in (answer as object)) return (answer as Extract<CheckpointAnswer, { failed: unknown }>).failed
    this.#records.push(...journal.records)
    return null
  }

  /** A message may come between the look into the mailbox and the park. */
  async #park(): Promise<void> {
    await this.#work()
    return this.#settle({ as: 'snooze', delayMs: parkMs, effects: null, parks: true })
  }

  async #settle(settlement: Settlement): Promise<void> {
    const { id, fence } = this.#run
    const token = this.#token()
    const settle = async () => (await this.#scene.store.settle([{ id, fence, settlement, retryDelayMs: 0 }], token))[0]
    const answer = (await this.#again(settle)) as SettleAnswer
    if (answer !== 'lost' && 'failed' in answer) throw new Error(`a settlement is refused: ${answer.failed.message}`)
  }

  #token(): string {
    this.#tokens += 1
    return `${this.#run.fence} ${this.#tokens}`
  }

  /** Makes the call again until it is answered. */
  async #again<Answer>(call: () => Promise<Answer>): Promise<Answer> {
    for (;;) {
      if (this.#scene.isOver()) throw new Gone()
      const answer = await call().catch((error: unknown) => {
        if (isHoldfastError(error, 'STORE_UNAVAILABLE')) return error
        throw error
      })
      if (!isAway(answer)) return answer
      await pause(this.#scene.timers, againMs)
    }
  }
}

const noEffects: EffectSet = { put: [], delete: [], sql: [], enqueue: [] }

function isAway(answer: unknown): answer is HoldfastError {
  if (isHoldfastError(answer, 'STORE_UNAVAILABLE')) return true
  return isRefused(answer) && answer.refused === 'STORE_UNAVAILABLE'
}
