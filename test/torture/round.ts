// A round: a fleet works on a fresh store, the faults of the plan are injected, the store is drained, and the evidence collected.

import { AssertionError } from 'node:assert/strict'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { machineMs } from '../sqlite/process.ts'
import { Fleet } from './fleet.ts'
import { readJournals } from './journal.ts'
import type { Conditions } from './judge/evidence.ts'
import type { Findings } from './judge.ts'
import { type Fault, type FaultKind, type Plan, planOf } from './plan.ts'
import { Random } from './random.ts'
import { startReceiver } from './receiver.ts'
import type { Site, TortureStore } from './site.ts'
import { readWatchLog } from './watch-log.ts'

export interface RoundOptions {
  readonly seed: number
  readonly seconds: number
  /** The round lasts until so many jobs are settled, but at most a minute: a machine may be slow. */
  readonly jobsMin?: number
  /** The directory of the logs. They are not deleted. */
  readonly directory: string
  /** Ends the round early. What was done by then is judged. */
  readonly signal?: AbortSignal
  readonly onStatus?: (status: RoundStatus) => void
}

export interface RoundStatus {
  readonly jobs: number
  readonly faults: number
  readonly stage: 'running' | 'draining'
}

export interface RoundReport {
  readonly findings: Findings
  readonly faults: Readonly<Partial<Record<FaultKind, number>>>
  readonly jobs: number
}

const statusEveryMs = 500
const inspectEveryMs = 2_000
const longestMs = 60_000

export async function runRound(site: Site, options: RoundOptions): Promise<RoundReport> {
  const { seed, seconds, directory } = options
  const { store } = site
  const plan = planOf({ seed, store, seconds })
  const mayBeDown = store === 'postgres' || plan.faults.some(({ fault }) => fault.kind === 'fullDisk')
  await using prepared = await site.prepare(directory)
  await using receiver = await startReceiver(new Random(seed))
  await using fleet = new Fleet({
    ...{ parts: plan.parts, url: prepared.url, receiver: receiver.url, directory, mayBeDown },
    sharesClock: store === 'sqlite',
  })
  const round = new Round(prepared, fleet, store === 'sqlite')
  const timer = setInterval(() => options.onStatus?.(round.status), statusEveryMs)
  try {
    await fleet.start()
    const stopInspecting = round.startInspecting()
    await round.injectFaults(plan, options)
    await stopInspecting()
    const { found, left } = await round.end()
    const conditions: Conditions = { ...round.conditions, isSerial: store === 'sqlite', failures: fleet.failures }
    const watchLog = readWatchLog(join(directory, 'watch.jsonl'))
    const findings = { notes: readJournals(directory), found, left, conditions, watchLog, received: receiver.tags }
    return { findings, faults: round.faults, jobs: left.jobs.length }
  } finally {
    clearInterval(timer)
  }
}

class Round {
  readonly conditions = {
    crashes: [] as number[],
    jumps: [] as { at: number; byMs: number }[],
    inspections: [] as { when: string; fault: string | null }[],
  }
  readonly faults: Partial<Record<FaultKind, number>> = {}
  readonly #prepared: TortureStore
  readonly #fleet: Fleet
  /** Whether processes and store have the same clock. */
  readonly #hasStoreClock: boolean
  /** Faults that have begun and not ended. */
  readonly #pending = new Set<Promise<void>>()
  #stage: RoundStatus['stage'] = 'running'

  constructor(prepared: TortureStore, fleet: Fleet, hasStoreClock: boolean) {
    this.#prepared = prepared
    this.#fleet = fleet
    this.#hasStoreClock = hasStoreClock
  }

  get status(): RoundStatus {
    const faults = Object.values(this.faults).reduce((sum, times) => sum + times, 0)
    return { jobs: this.#fleet.settled, faults, stage: this.#stage }
  }

  async injectFaults({ faults }: Plan, { seconds, signal, jobsMin = 0 }: RoundOptions): Promise<void> {
    const began = machineMs()
    const until = async (ms: number) => {
      await sleep(Math.max(0, began + ms - machineMs()), undefined, signal && { signal }).catch(() => {})
      return !signal?.aborted && this.#fleet.failures.length === 0
    }
    for (const { atMs, fault } of faults) {
      if (!(await until(atMs))) break
      this.faults[fault.kind] = (this.faults[fault.kind] ?? 0) + 1
      const injected = this.#inject(fault)
      const pending = injected.finally(() => this.#pending.delete(pending))
      this.#pending.add(pending)
      // While a store is down, no other fault is injected.
      if (['restart', 'crash', 'fullDisk'].includes(fault.kind)) await pending
    }
    let ms = seconds * 1_000
    while ((await until(ms)) && this.#fleet.settled < jobsMin && ms < longestMs) ms += statusEveryMs
    await Promise.all(this.#pending)
  }

  async end(): Promise<Pick<Findings, 'found' | 'left'>> {
    this.#stage = 'draining'
    await this.#fleet.stop()
    const found = await this.#prepared.observe()
    await this.#inspect('after the last fault')
    await this.#fleet.watched(() => this.#fleet.run('drains'))
    const left = await this.#prepared.observe()
    await this.#inspect('in the end')
    return { found, left }
  }

  /** Inspects the tables every two seconds, until the returned function is called. */
  startInspecting(): () => Promise<void> {
    const stopped = new AbortController()
    const look = async () => {
      for (;;) {
        await sleep(inspectEveryMs, undefined, { signal: stopped.signal }).catch(() => {})
        if (stopped.signal.aborted) return
        await this.#inspect('while the fleet was running', () => this.#prepared.inspectRunning())
      }
    }
    const over = look()
    return () => {
      stopped.abort()
      return over
    }
  }

  /** While the fleet runs, a failed inspection does not count: the store may be down, or locked by a process that is stopped. */
  async #inspect(when: string, look = () => this.#prepared.inspect()): Promise<void> {
    const fault = await look().then(
      () => null,
      (error: Error) => error,
    )
    const isOver = this.#stage === 'draining'
    if (fault === null || fault instanceof AssertionError || isOver) {
      this.conditions.inspections.push({ when, fault: fault?.message ?? null })
    }
  }

  async #inject(fault: Fault): Promise<void> {
    const { storeFaults } = this.#prepared
    const process = 'processIndex' in fault ? this.#fleet.at(fault.processIndex) : undefined
    switch (fault.kind) {
      case 'kill':
        return process?.kill('SIGKILL')
      case 'retire':
        return process?.send({ do: 'stop' })
      case 'freeze':
        process?.kill('SIGSTOP')
        await sleep(fault.ms)
        return process?.kill('SIGCONT')
      case 'block':
        return process?.send({ do: 'block', ms: fault.ms })
      case 'poison':
        return process?.send({ do: 'poison', label: `poison-${machineMs().toFixed()}` })
      case 'clock':
        if (this.#hasStoreClock) this.conditions.jumps.push({ at: machineMs(), byMs: fault.ms })
        return this.#fleet.jump(fault.processIndex, fault.ms)
      case 'snapshot':
        return storeFaults.holdSnapshot(fault.ms)
      case 'transaction':
        return storeFaults.holdTransaction(fault.ms)
      case 'hold':
        return storeFaults.holdConnections?.(fault.ms)
      case 'drop':
        return storeFaults.dropConnections?.()
      case 'unsubscribe':
        return storeFaults.unsubscribe?.()
      case 'forge':
        return storeFaults.forge?.()
      case 'cut':
        // Not awaited: there may be no further call before the round ends.
        void storeFaults.cutCall?.(fault.moment)
        return
      case 'restart':
        return storeFaults.stopServer?.('fast', fault.ms)
      case 'crash':
        return this.#crashing(() => storeFaults.stopServer?.('immediate', fault.ms))
      case 'fullDisk':
        // A server may crash from it, and restart by itself.
        return this.#crashing(() => storeFaults.fillDisk?.(fault.ms))
    }
  }

  async #crashing(inject: () => Promise<void> | undefined): Promise<void> {
    if (!this.#hasStoreClock) this.conditions.crashes.push(machineMs())
    await inject()
    if (!this.#hasStoreClock) this.conditions.crashes.push(machineMs())
  }
}
