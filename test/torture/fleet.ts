// The processes of a round. Whoever is killed is replaced at once, under a name of its own, until the fleet is stopped.

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
  /** Where logs and clocks are. */
  readonly directory: string
  /** Whether all of them have one clock, which is the store's. */
  readonly sharesClock: boolean
  readonly mayBeDown: boolean
}

/** How long a process may take to end once it is asked to. */
const stopMaxMs = 60_000
const drainMaxMs = 150_000

export class Fleet implements AsyncDisposable {
  readonly failures: string[] = []
  settled = 0
  readonly #options: FleetOptions
  readonly #posts: readonly Post[]
  readonly #watchers: readonly Post[]
  readonly #others: readonly Post[]
  readonly #offsets = new Map<string, number>()

  constructor(options: FleetOptions) {
    this.#options = options
    this.#posts = options.parts.map((part, n) => new Post(part, (life, seed) => this.#start(part.role, n, life, seed)))
    this.#watchers = this.#posts.filter(({ part }) => part.role === 'watches')
    this.#others = this.#posts.filter(({ part }) => part.role !== 'watches')
  }

  /** The watcher first: what comes after it has begun, it must be told of. */
  async start(): Promise<void> {
    await this.#fill(this.#watchers)
    await this.#fill(this.#others)
  }

  at(who: number): Process | undefined {
    return this.#posts[who]?.process
  }

  /** Sets the clock of one process, or of all where they share it; answers by how much. */
  jump(who: number, ms: number): void {
    const file = this.#clockFile(who)
    const offset = (this.#offsets.get(file) ?? 0) + ms
    this.#offsets.set(file, offset)
    setClock(file, offset)
  }

  /** Asks everybody to end, but for the watcher, who dies once more. */
  async stop(): Promise<void> {
    await Promise.all([...this.#watchers.map((post) => post.clear()), ...this.#others.map((post) => this.#stop(post))])
  }

  /** Lets the watcher see what `work` does, to the end. */
  async watched(work: () => Promise<void>): Promise<void> {
    await this.#fill(this.#watchers)
    await work()
    await Promise.all(this.#watchers.map((post) => this.#stop(post)))
  }

  /** Somebody who comes when all others have ended, and ends by itself. */
  async run(program: string): Promise<void> {
    const process = this.#start(program, 0, program, 0)
    const failure = await within(drainMaxMs, process.ended)
    if (failure === 'late') {
      process.kill('SIGKILL')
      await process.ended
    }
    if (failure !== null) this.failures.push(failure === 'late' ? `${program} did not come to its end` : failure)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#posts.map((post) => post.clear()))
  }

  #start(program: string, who: number, life: string, seed: number): Process {
    const { url, receiver, directory, mayBeDown, parts } = this.#options
    const clockFile = this.#clockFile(who)
    if (!this.#offsets.has(clockFile)) {
      this.#offsets.set(clockFile, 0)
      setClock(clockFile, 0)
    }
    const log = program === 'watches' ? join(directory, 'watch') : join(directory, `${life}.log`)
    const duty = {
      url,
      receiver,
      life,
      seed,
      mayBeDown,
      log,
      listens: parts[who]?.listens ?? true,
      sharesPool: parts[who]?.sharesPool ?? false,
    }
    const onSettled = (count: number) => {
      this.settled += count
    }
    return new Process({ program, duty, clockFile, onSettled })
  }

  async #fill(posts: readonly Post[]): Promise<void> {
    await Promise.all(posts.map((post) => post.fill(this.failures)))
  }

  async #stop(post: Post): Promise<void> {
    const { process } = post
    post.isOver = true
    process?.kill('SIGCONT')
    process?.tell({ do: 'stop' })
    if ((await within(stopMaxMs, post.over)) !== 'late') return
    this.failures.push(`${process?.life} did not end when it was asked to`)
    await post.clear()
  }

  #clockFile(who: number): string {
    return join(this.#options.directory, this.#options.sharesClock ? 'clock' : `clock-${who}`)
  }
}

/** A place in the fleet, and whoever fills it now. */
class Post {
  readonly part: Part
  process: Process | undefined
  over: Promise<void> = Promise.resolve()
  isOver = false
  #lives = 0
  readonly #start: (life: string, seed: number) => Process

  constructor(part: Part, start: (life: string, seed: number) => Process) {
    this.part = part
    this.#start = start
  }

  /** Resolves when somebody is there for the first time. */
  async fill(failures: string[]): Promise<void> {
    this.isOver = false
    const random = new Random(this.part.seed)
    const first = Promise.withResolvers<void>()
    const stay = async () => {
      while (!this.isOver) {
        const process = this.#start(`${this.part.role}${this.part.seed}x${this.#lives++}`, random.below(2 ** 32))
        this.process = process
        await process.opened
        first.resolve()
        const failure = await process.ended
        if (failure !== null) {
          failures.push(failure)
          this.isOver = true // it would fail again
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
