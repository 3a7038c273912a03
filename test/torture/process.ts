// One process of the fleet, from start to end. A process that ends without being killed or asked to has failed.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { cleanEnvironment } from '../support/shell.ts'
import type { Command, ProgramOptions, Report } from './programs/member.ts'

const machine = join(import.meta.dirname, 'machine.ts')
const stderrShown = 3_000

export interface ProcessOptions {
  readonly program: string
  readonly options: ProgramOptions
  /** The file with the offset of its clock. */
  readonly clockFile: string
  readonly onSettled: (count: number) => void
}

export class Process {
  readonly name: string
  /** Null: it ended as it should. Otherwise the failure. */
  readonly ended: Promise<string | null>
  readonly opened: Promise<void>
  readonly #child: ChildProcess

  constructor({ program, options, clockFile, onSettled }: ProcessOptions) {
    this.name = options.processName
    const file = join(import.meta.dirname, 'programs', `${program}.ts`)
    const child = spawn(process.execPath, ['--import', machine, file, JSON.stringify(options)], {
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
      env: {
        ...cleanEnvironment(),
        NODE_COMPILE_CACHE: join(tmpdir(), 'node-compile-cache'),
        HOLDFAST_TORTURE_CLOCK: clockFile,
        HOLDFAST_TORTURE_NO_WATCH: options.listens ? '0' : '1',
      },
    })
    this.#child = child
    const opened = Promise.withResolvers<void>()
    this.opened = opened.promise
    const stderr = child.stderr ? text(child.stderr) : Promise.resolve('')
    child.on('message', (report: Report) => {
      if (report.kind === 'open') opened.resolve()
      else onSettled(report.count)
    })
    child.on('error', () => {}) // the channel closes with its process
    this.ended = once(child, 'close').then(async ([code, signal]) => {
      opened.resolve()
      if (code === 0 || signal === 'SIGKILL' || signal === 'SIGINT') return null // ^C is handled by the parent
      return `${this.name} ended with ${signal ?? `exit code ${code}`}:\n${(await stderr).slice(-stderrShown)}`
    })
  }

  send(command: Command): void {
    if (this.#child.connected) this.#child.send(command, () => {})
  }

  kill(signal: 'SIGKILL' | 'SIGSTOP' | 'SIGCONT'): void {
    this.#child.kill(signal)
  }
}
