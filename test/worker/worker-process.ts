// A worker in a process of its own (`programs/works.ts`), and everything that it has reported so far.

import type { EventName } from '../../src/events.ts'
import { Program } from '../sqlite/process.ts'
import type { Report, WorksOptions } from './programs/works.ts'

export class WorkerProcess implements AsyncDisposable {
  readonly name: string
  readonly #program: Program
  readonly #reports: Report[] = []
  #onReport = Promise.withResolvers<void>()

  /** Resolves when the worker has started. */
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

  /** The jobs whose handlers have begun, once for each time. */
  get began(): { readonly id: string; readonly attempt: number }[] {
    return this.#reports.flatMap((report) => ('began' in report ? [{ id: report.began, attempt: report.attempt }] : []))
  }

  /** The jobs whose handlers blocked the event loop and do not any more. */
  get unblocked(): Extract<Report, { readonly unblocked: string }>[] {
    return this.#reports.filter((report) => 'unblocked' in report)
  }

  get aborted(): Extract<Report, { readonly aborted: string }>[] {
    return this.#reports.filter((report) => 'aborted' in report)
  }

  events(name: EventName): Extract<Report, { readonly event: string }>[] {
    return this.#reports.filter((report) => 'event' in report).filter(({ event }) => event === name)
  }

  /** Resolves when the condition holds; rejects if the process ends before. */
  async until(isEnough: () => boolean): Promise<void> {
    while (!isEnough()) await this.#onReport.promise
  }

  /** Resolves when the event was emitted this many times. */
  happened(name: EventName, times: number): Promise<void> {
    return this.until(() => this.events(name).length >= times)
  }

  /** Lets the handlers of `waitForGo` end. */
  go(): void {
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
        this.#reports.push(await this.#program.hear<Report>())
        this.#onReport.resolve()
        this.#onReport = Promise.withResolvers()
      }
    } catch (error) {
      this.#onReport.promise.catch(() => {}) // no test may be waiting for more
      this.#onReport.reject(error)
    }
  }
}
