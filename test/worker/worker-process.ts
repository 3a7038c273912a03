// A worker in a process of its own (`programs/works.ts`), and all that it has said so far.

import type { EventName } from '../../src/events.ts'
import { Program } from '../sqlite/process.ts'
import type { Said, WorksOptions } from './programs/works.ts'

export class WorkerProcess implements AsyncDisposable {
  readonly name: string
  readonly #program: Program
  readonly #said: Said[] = []
  #onSaid = Promise.withResolvers<void>()

  /** Resolves when it works. */
  static async start(url: string, name: string, options: WorksOptions): Promise<WorkerProcess> {
    const process = new WorkerProcess(url, name, options)
    await process.until(() => process.events('worker.started').length > 0)
    return process
  }

  private constructor(url: string, name: string, options: WorksOptions) {
    this.name = name
    this.#program = Program.start('../../worker/programs/works', url, name, JSON.stringify(options))
    this.#listen()
  }

  /** Exit code or signal, once it has ended. */
  get ended(): Promise<number | NodeJS.Signals> {
    return this.#program.ended
  }

  /** The jobs whose handlers have begun, as often as they have. */
  get began(): { readonly id: string; readonly attempt: number }[] {
    return this.#said.flatMap((said) => ('began' in said ? [{ id: said.began, attempt: said.attempt }] : []))
  }

  /** The jobs whose handlers kept the event loop and have let go of it. */
  get unblocked(): Extract<Said, { readonly unblocked: string }>[] {
    return this.#said.filter((said) => 'unblocked' in said)
  }

  get aborted(): Extract<Said, { readonly aborted: string }>[] {
    return this.#said.filter((said) => 'aborted' in said)
  }

  events(name: EventName): Extract<Said, { readonly event: string }>[] {
    return this.#said.filter((said) => 'event' in said).filter(({ event }) => event === name)
  }

  /** Resolves when it has said enough; rejects when it ends before. */
  async until(isEnough: () => boolean): Promise<void> {
    while (!isEnough()) await this.#onSaid.promise
  }

  /** Resolves when this has happened so many times. */
  happened(name: EventName, times: number): Promise<void> {
    return this.until(() => this.events(name).length >= times)
  }

  /** Lets the handlers end that wait to be told. */
  tell(): void {
    this.#program.tell('go on')
  }

  kill(signal: NodeJS.Signals): void {
    this.#program.kill(signal)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#program[Symbol.asyncDispose]()
  }

  async #listen(): Promise<void> {
    try {
      for (;;) {
        this.#said.push(await this.#program.hear<Said>())
        this.#onSaid.resolve()
        this.#onSaid = Promise.withResolvers()
      }
    } catch (error) {
      this.#onSaid.promise.catch(() => {}) // nobody may wait for more
      this.#onSaid.reject(error)
    }
  }
}
