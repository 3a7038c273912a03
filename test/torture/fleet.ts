// The processes of a round. Whoever is killed is replaced at once, under a name of its own, until the fleet is stopped.

import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { setClock } from './machine-clock.ts'
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
const stopMaxMs = 30_000

export class Fleet implements AsyncDisposable {
  readonly failures: string[] = []
  settled = 0
  readonly #options: FleetOptions
  readonly #posts: Post[]
  readonly #offsets = new Map<string, number>()

  constructor(options: FleetOptions) {
    this.#options = options
    this.#posts = options.parts.map((part, n) => new Post(part, (life, seed) => this.#start(part.role, n, life, seed)))
  }

  /** The watcher first: what comes after it has begun, it must be told of. */
  async start(): Promise<void> {
    const isWatcher = ({ part }: Post) => part.role === 'watches'
    for (const posts of [this.#posts.filter(isWatcher), this.#posts.filter((post) => !isWatcher(post))]) {
      await Promise.all(posts.map((post) => post.fill(this.failures)))
    }
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

  /** Asks everybody but the watcher to end; afterwards it watches on alone. */
  async stop(): Promise<void> {
    await Promise.all(this.#posts.filter(({ part }) => part.role !== 'watches').map((post) => this.#stop(post)))
  }

  async stopWatcher(): Promise<void> {
    await Promise.all(this.#posts.filter(({ part }) => part.role === 'watches').map((post) => this.#stop(post)))
  }

  /** Somebody who comes when all others have ended, and ends by itself. */
  async run(program: string): Promise<void> {
    const process = this.#start(program, 0, program, 0)
    const late = sleep(2 * stopMaxMs).then(() => {
      process.kill('SIGKILL')
      return `${program} did not come to its end`
    })
    const failure = await Promise.race([process.ended, late])
    if (failure !== null) this.failures.push(failure)
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
    const duty = { url, receiver, life, seed, mayBeDown, log, listens: parts[who]?.listens ?? true }
    const onSettled = (count: number) => {
      this.settled += count
    }
    return new Process({ program, duty, clockFile, onSettled })
  }

  async #stop(post: Post): Promise<void> {
    const { process } = post
    post.isOver = true
    process?.kill('SIGCONT')
    process?.tell({ do: 'stop' })
    const timer = new AbortController()
    const late = sleep(stopMaxMs, 'late', { signal: timer.signal }).catch(() => null)
    if ((await Promise.race([post.over, late])) === 'late') {
      this.failures.push(`${process?.life} did not end when it was asked to`)
      await post.clear()
    }
    timer.abort()
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
  readonly #start: (life: string, seed: number) => Process

  constructor(part: Part, start: (life: string, seed: number) => Process) {
    this.part = part
    this.#start = start
  }

  /** Resolves when somebody is there for the first time. */
  async fill(failures: string[]): Promise<void> {
    const random = new Random(this.part.seed)
    const first = Promise.withResolvers<void>()
    const stay = async () => {
      for (let generation = 0; !this.isOver; generation++) {
        const process = this.#start(`${this.part.role}${this.part.seed}x${generation}`, random.below(2 ** 32))
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
