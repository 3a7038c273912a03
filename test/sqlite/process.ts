// Another process on the same file: a program of `programs/` that reads lines from its stdin and writes lines to its stdout.
// If it ends while the test waits for a line, that wait fails with what the program printed.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import { cleanEnvironment } from '../support/shell.ts'

/** Compiled once for all the processes that run the same source: they start in a third of the time. */
const compileCache = { NODE_COMPILE_CACHE: join(tmpdir(), 'node-compile-cache') }

export class Program implements AsyncDisposable {
  /** Exit code or signal, once it has ended. */
  readonly ended: Promise<number | NodeJS.Signals>
  readonly #child: ChildProcess
  readonly #lines: AsyncIterator<string>
  readonly #stderr: Promise<string>

  static start(name: string, ...args: readonly string[]): Program {
    return new Program(name, args)
  }

  private constructor(name: string, args: readonly string[]) {
    const file = join(import.meta.dirname, 'programs', `${name}.ts`)
    const child = spawn(process.execPath, [file, ...args], {
      stdio: 'pipe',
      env: { ...compileCache, ...cleanEnvironment() },
    })
    this.#child = child
    this.#lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
    this.#stderr = text(child.stderr)
    child.stdin.on('error', () => {}) // it may have ended before a line was written
    this.ended = once(child, 'close').then(([code, signal]) => signal ?? code)
  }

  tell(line: unknown): void {
    this.#child.stdin?.write(`${JSON.stringify(line)}\n`)
  }

  /** The next line of its output. */
  async hear<T>(): Promise<T> {
    const { value, done } = await this.#lines.next()
    if (done) throw new Error(`the program ended (${await this.ended}) without another line:\n${await this.#stderr}`)
    return JSON.parse(value) as T
  }

  async ask<T>(line: unknown): Promise<T> {
    this.tell(line)
    return this.hear<T>()
  }

  kill(signal: NodeJS.Signals = 'SIGKILL'): void {
    this.#child.kill(signal)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.kill()
    await this.ended
  }
}

/** Starts `count` programs and, once all are ready, lets them go at the same moment. */
export async function startTogether(
  count: number,
  name: string,
  args: (n: number) => readonly string[],
): Promise<Program[]> {
  const programs = Array.from({ length: count }, (_, n) => Program.start(name, ...args(n)))
  await Promise.all(programs.map((program) => program.hear()))
  for (const program of programs) program.tell('go')
  return programs
}

/** Milliseconds on a clock that all processes of a machine share. */
export function machineMs(): number {
  return Number(process.hrtime.bigint() / 1_000n) / 1_000
}
