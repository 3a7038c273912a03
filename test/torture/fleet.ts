// The processes of a round. A process that ends is replaced at once by another with its own name, until the fleet is stopped.

import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { setClock } from './machine.ts'
import type { Part } from './plan.ts'
import { Process } from './process.ts'
import { Random } from './random.ts'

export interface FleetOptions {
  readonly parts: readonly Part[]
  readonly url: string
  readonly receiver: string
  /** The directory of logs and clock files. */
  readonly directory: string
  /** Whether all processes have one clock, which is also the clock of the store. */
  readonly sharesClock: boolean
  readonly mayBeDown: boolean
}

/** How long a process may take to end after it was asked to. */
const stopMaxMs = 60_000
const drainMaxMs = 150_000

export class Fleet implements AsyncDisposable {
  readonly failures: string[] = []
  settled = 0
  readonly #options: FleetOptions
  readonly #positions: readonly Position[]
  readonly #watchers: readonly Position[]
  readonly #others: readonly Position[]
  readonly #offsets = new Map<string, number>()

  constructor(options: FleetOptions) {
    this.#options = options
    this.#positions = options.parts.map(
      (part, n) => new Position(part, (processName, seed) => this.#start(part.role, n, processName, seed)),
    )
    this.#watchers = this.#positions.filter(({ part }) => part.role === 'watches')
    this.#others = this.#positions.filter(({ part }) => part.role !== 'watches')
  }

  /** Starts the watcher first: it must receive every change that is made after it has started. */
  async start(): Promise<void> {
    await this.#fill(this.#watchers)
    await this.#fill(this.#others)
  }

  at(processIndex: number): Process | undefined {
    return this.#positions[processIndex]?.process
  }

  /** Moves the clock of one process, or of all processes if they share it. */
  jump(processIndex: number, ms: number): void {
    const file = this.#clockFile(processIndex)
    const offset = (this.#offsets.get(file) ?? 0) + ms
    this.#offsets.set(file, offset)
    setClock(file, offset)
  }

  /** Asks every process to end, except the watcher, which is killed once more. */
  async stop(): Promise<void> {
    await Promise.all([
      ...this.#watchers.map((position) => position.clear()),
      ...this.#others.map((position) => this.#stop(position)),
    ])
  }

  /** Runs `work` with the watcher, and stops the watcher when it has received all changes. */
  async watched(work: () => Promise<void>): Promise<void> {
    await this.#fill(this.#watchers)
    await work()
    await Promise.all(this.#watchers.map((position) => this.#stop(position)))
  }

  /** Runs a program after all others have ended. It ends by itself. */
  async run(program: string): Promise<void> {
    const process = this.#start(program, 0, program, 0)
    const failure = await within(drainMaxMs, process.ended)
    if (failure === 'late') {
      process.kill('SIGKILL')
      await process.ended
    }
    if (failure !== null)
      this.failures.push(failure === 'late' ? `${program} did not end within ${drainMaxMs} ms` : failure)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#positions.map((position) => position.clear()))
  }

  #start(program: string, processIndex: number, processName: string, seed: number): Process {
    const { url, receiver, directory, mayBeDown, parts } = this.#options
    const clockFile = this.#clockFile(processIndex)
    if (!this.#offsets.has(clockFile)) {
      this.#offsets.set(clockFile, 0)
      setClock(clockFile, 0)
    }
    const log = program === 'watches' ? join(directory, 'watch') : join(directory, `${processName}.log`)
    const options = {
      url,
      receiver,
      processName,
      seed,
      mayBeDown,
      log,
      listens: parts[processIndex]?.listens ?? true,
      sharesPool: parts[processIndex]?.sharesPool ?? false,
    }
    const onSettled = (count: number) => {
      this.settled += count
    }
    return new Process({ program, options, clockFile, onSettled })
  }

  async #fill(positions: readonly Position[]): Promise<void> {
    await Promise.all(positions.map((position) => position.fill(this.failures)))
  }

  async #stop(position: Position): Promise<void> {
    const { process } = position
    position.isOver = true
    process?.kill('SIGCONT')
    process?.send({ do: 'stop' })
    if ((await within(stopMaxMs, position.over)) !== 'late') return
    this.failures.push(`${process?.name} did not end when it was asked to`)
    await position.clear()
  }

  #clockFile(processIndex: number): string {
    return join(this.#options.directory, this.#options.sharesClock ? 'clock' : `clock-${processIndex}`)
  }
}

/** A position in the fleet, and the process that fills it now. */
class Position {
  readonly part: Part
  process: Process | undefined
  over: Promise<void> = Promise.resolve()
  isOver = false
  #starts = 0
  readonly #start: (processName: string, seed: number) => Process

  constructor(part: Part, start: (processName: string, seed: number) => Process) {
    this.part = part
    this.#start = start
  }

  /** Resolves when its first process has opened the store. */
  async fill(failures: string[]): Promise<void> {
    this.isOver = false
    const random = new Random(this.part.seed)
    const first = Promise.withResolvers<void>()
    const stay = async () => {
      while (!this.isOver) {
        const process = this.#start(`${this.part.role}${this.part.seed}x${this.#starts++}`, random.below(2 ** 32))
        this.process = process
        await process.opened
        first.resolve()
        const failure = await process.ended
        if (failure !== null) {
          failures.push(failure)
          this.isOver = true // its replacement would fail in the same way
        }
      }
    }
    this.over = stay()
    await first.promise
  }

  async clear(): Promise<void> {
    this.isOver = true
    this.process?.kill('SIGKILL')
    await this.over
  }
}

async function within<T>(ms: number, event: Promise<T>): Promise<T | 'late'> {
  const timer = new AbortController()
  const late = sleep(ms, 'late' as const, { signal: timer.signal }).catch(() => 'late' as const)
  try {
    return await Promise.race([event, late])
  } finally {
    timer.abort()
  }
}
