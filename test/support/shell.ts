// Runs a program to its end and returns its output. A nonzero exit code is a result, not an exception.
import { spawn } from 'node:child_process'
import { text } from 'node:stream/consumers'

export interface Ended {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  readonly stdout: string
  readonly stderr: string
}

export interface RunOptions {
  readonly cwd?: string
  readonly env?: NodeJS.ProcessEnv
  readonly timeoutMs?: number
  /** What the program reads from stdin; nothing unless given. */
  readonly input?: string
  readonly uid?: number
  readonly gid?: number
}

export async function run(command: string, args: readonly string[], options: RunOptions = {}): Promise<Ended> {
  const { timeoutMs = 120_000, env = cleanEnvironment(), input = '', ...rest } = options
  const child = spawn(command, args, { ...rest, env, timeout: timeoutMs, stdio: ['pipe', 'pipe', 'pipe'] })
  child.stdin.on('error', () => undefined) // a program that ends before it has read all of it
  child.stdin.end(input)
  const ended = new Promise<[number | null, NodeJS.Signals | null]>((resolve, reject) => {
    child.once('error', reject)
    child.once('close', (code, signal) => resolve([code, signal]))
  })
  const [[code, signal], stdout, stderr] = await Promise.all([ended, text(child.stdout), text(child.stderr)])
  return { code, signal, stdout, stderr }
}

export async function runOk(command: string, args: readonly string[], options: RunOptions = {}): Promise<Ended> {
  const ended = await run(command, args, options)
  if (ended.code === 0) return ended
  const how = ended.signal === null ? `exit code ${ended.code}` : `signal ${ended.signal}`
  throw new Error(`${command} ${args.join(' ')}: ${how}\n${ended.stdout}${ended.stderr}`)
}

// Without the variables of npm and the test runner for their child processes: a nested npm, or a nested test, starts clean.
export function cleanEnvironment(): NodeJS.ProcessEnv {
  const inherited = /^(npm_(package|lifecycle)_|npm_config_local_prefix$|NODE_TEST_CONTEXT$|NODE_OPTIONS$|INIT_CWD$)/
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !inherited.test(name)))
}
