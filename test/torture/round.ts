// A round: a fleet at work on a fresh store, everything that the plan does to them, the end of it all, and what was found.

import { AssertionError } from 'node:assert/strict'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { machineMs } from '../sqlite/process.ts'
import { Fleet } from './fleet.ts'
import { readJournals } from './journal.ts'
import type { Ordeal } from './judge/evidence.ts'
import type { Findings } from './judge.ts'
import { type Fault, type FaultKind, type Plan, planOf } from './plan.ts'
import { Random } from './random.ts'
import { startReceiver } from './receiver.ts'
import type { Site, TortureStore } from './site.ts'
import { readTold } from './told.ts'

export interface RoundOptions {
  readonly seed: number
  readonly seconds: number
  /** It goes on, for a minute at the most, until so many jobs were settled: machines may be slow. */
  readonly jobsMin?: number
  /** Where logs are written, and left. */
  readonly directory: string
  /** Ends the round early; what was done by then is judged. */
  readonly signal?: AbortSignal
  readonly onNews?: (news: News) => void
}

export interface News {
  readonly jobs: number
  readonly faults: number
  readonly stage: 'running' | 'draining'
}

export interface RoundReport {
  readonly findings: Findings
  readonly faults: Readonly<Partial<Record<FaultKind, number>>>
  readonly jobs: number
}

const newsEveryMs = 500
const glanceEveryMs = 2_000
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
  const news = setInterval(() => options.onNews?.(round.news), newsEveryMs)
  try {
    await fleet.start()
    const stopGlancing = round.glance()
    await round.suffer(plan, options)
    await stopGlancing()
    const { found, left } = await round.end()
    const ordeal: Ordeal = { ...round.ordeal, isSerial: store === 'sqlite', failures: fleet.failures }
    const told = readTold(join(directory, 'watch.told'))
    const findings = { notes: readJournals(directory), found, left, ordeal, told, received: receiver.tags }
    return { findings, faults: round.faults, jobs: left.jobs.length }
  } finally {
    clearInterval(news)
  }
}

class Round {
  readonly ordeal = {
    crashes: [] as number[],
    jumps: [] as { at: number; byMs: number }[],
    inspections: [] as { when: string; fault: string | null }[],
  }
  readonly faults: Partial<Record<FaultKind, number>> = {}
  readonly #prepared: TortureStore
  readonly #fleet: Fleet
  /** Whether the clock of the processes is that of the store. */
  readonly #hasStoreClock: boolean
  /** What was begun and is not over yet. */
  readonly #pending = new Set<Promise<void>>()
  #stage: News['stage'] = 'running'

  constructor(prepared: TortureStore, fleet: Fleet, hasStoreClock: boolean) {
    this.#prepared = prepared
    this.#fleet = fleet
    this.#hasStoreClock = hasStoreClock
  }

  get news(): News {
    const faults = Object.values(this.faults).reduce((sum, times) => sum + times, 0)
    return { jobs: this.#fleet.settled, faults, stage: this.#stage }
  }

  async suffer({ faults }: Plan, { seconds, signal, jobsMin = 0 }: RoundOptions): Promise<void> {
    const began = machineMs()
    const until = async (ms: number) => {
      await sleep(Math.max(0, began + ms - machineMs()), undefined, signal && { signal }).catch(() => {})
      return !signal?.aborted && this.#fleet.failures.length === 0
    }
    for (const { atMs, fault } of faults) {
      if (!(await until(atMs))) break
      this.faults[fault.kind] = (this.faults[fault.kind] ?? 0) + 1
      const blow = this.#strike(fault)
      const pending = blow.finally(() => this.#pending.delete(pending))
      this.#pending.add(pending)
      // A store that is down suffers nothing else.
      if (['restart', 'crash', 'fullDisk'].includes(fault.kind)) await pending
    }
    let ms = seconds * 1_000
    while ((await until(ms)) && this.#fleet.settled < jobsMin && ms < longestMs) ms += newsEveryMs
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

  /** Looks behind the queue now and then; answers how to stop. */
  glance(): () => Promise<void> {
    const stopped = new AbortController()
    const look = async () => {
      for (;;) {
        await sleep(glanceEveryMs, undefined, { signal: stopped.signal }).catch(() => {})
        if (stopped.signal.aborted) return
        await this.#inspect('while everybody is at work', () => this.#prepared.glance())
      }
    }
    const over = look()
    return () => {
      stopped.abort()
      return over
    }
  }

  /** A store that is down, or locked by somebody who is stopped, cannot be looked at just now. */
  async #inspect(when: string, look = () => this.#prepared.inspect()): Promise<void> {
    const fault = await look().then(
      () => null,
      (error: Error) => error,
    )
    const isOver = this.#stage === 'draining'
    if (fault === null || fault instanceof AssertionError || isOver) {
      this.ordeal.inspections.push({ when, fault: fault?.message ?? null })
    }
  }

  async #strike(fault: Fault): Promise<void> {
    const { blows } = this.#prepared
    const process = 'who' in fault ? this.#fleet.at(fault.who) : undefined
    switch (fault.kind) {
      case 'kill':
        return process?.kill('SIGKILL')
      case 'retire':
        return process?.tell({ do: 'stop' })
      case 'freeze':
        process?.kill('SIGSTOP')
        await sleep(fault.ms)
        return process?.kill('SIGCONT')
      case 'block':
        return process?.tell({ do: 'block', ms: fault.ms })
      case 'poison':
        return process?.tell({ do: 'poison', label: `poison-${machineMs().toFixed()}` })
      case 'clock':
        if (this.#hasStoreClock) this.ordeal.jumps.push({ at: machineMs(), byMs: fault.ms })
        return this.#fleet.jump(fault.who, fault.ms)
      case 'snapshot':
        return blows.holdSnapshot(fault.ms)
      case 'transaction':
        return blows.holdTransaction(fault.ms)
      case 'hold':
        return blows.holdConnections?.(fault.ms)
      case 'drop':
        return blows.dropConnections?.()
      case 'unsubscribe':
        return blows.unsubscribe?.()
      case 'forge':
        return blows.forge?.()
      case 'cut':
        // Nobody may call any more before the round is over.
        void blows.cutCall?.(fault.moment)
        return
      case 'restart':
        return blows.stopServer?.('fast', fault.ms)
      case 'crash':
        return this.#crashing(() => blows.stopServer?.('immediate', fault.ms))
      case 'fullDisk':
        // A server may crash for it, and come back by itself.
        return this.#crashing(() => blows.fillDisk?.(fault.ms))
    }
  }

  async #crashing(blow: () => Promise<void> | undefined): Promise<void> {
    if (!this.#hasStoreClock) this.ordeal.crashes.push(machineMs())
    await blow()
    if (!this.#hasStoreClock) this.ordeal.crashes.push(machineMs())
  }
}
