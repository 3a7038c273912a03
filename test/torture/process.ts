// One process of the fleet, from its start to its end. One that was not asked to end and was not killed has failed.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { cleanEnvironment } from '../support/shell.ts'
import type { Duty, Order, Word } from './programs/member.ts'

const machine = join(import.meta.dirname, 'machine.ts')
const stderrShown = 3_000

export interface ProcessOptions {
  readonly program: string
  readonly duty: Duty
  /** Where the offset of its clock is. */
  readonly clockFile: string
  readonly onSettled: (count: number) => void
}

export class Process {
  readonly life: string
  /** Null: it went as it should have. */
  readonly ended: Promise<string | null>
  readonly opened: Promise<void>
  readonly #child: ChildProcess

  constructor({ program, duty, clockFile, onSettled }: ProcessOptions) {
    this.life = duty.life
    const file = join(import.meta.dirname, 'programs', `${program}.ts`)
    const child = spawn(process.execPath, ['--import', machine, file, JSON.stringify(duty)], {
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
      env: {
        ...cleanEnvironment(),
        NODE_COMPILE_CACHE: join(tmpdir(), 'node-compile-cache'),
        HOLDFAST_TORTURE_CLOCK: clockFile,
        HOLDFAST_TORTURE_DEAF: duty.listens ? '0' : '1',
      },
    })
    this.#child = child
    const opened = Promise.withResolvers<void>()
    this.opened = opened.promise
    const stderr = child.stderr ? text(child.stderr) : Promise.resolve('')
    child.on('message', (word: Word) => {
      if (word.said === 'open') opened.resolve()
      else onSettled(word.count)
    })
    child.on('error', () => {}) // a channel that closes with its process
    this.ended = once(child, 'close').then(async ([code, signal]) => {
      opened.resolve()
      if (code === 0 || signal === 'SIGKILL' || signal === 'SIGINT') return null // ^C is for whoever started it
      return `${this.life} ended with ${signal ?? `exit code ${code}`}:\n${(await stderr).slice(-stderrShown)}`
    })
  }

  tell(order: Order): void {
    if (this.#child.connected) this.#child.send(order, () => {})
  }

  kill(signal: 'SIGKILL' | 'SIGSTOP' | 'SIGCONT'): void {
    this.#child.kill(signal)
  }
}
