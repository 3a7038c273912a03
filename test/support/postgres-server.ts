// A PostgreSQL server for one test, from the binaries that npm installed. It is durable as PostgreSQL is by default, on a port
// of 127.0.0.1, without passwords, and removed at the end of its scope:
//
//   await using server = await startServer()
//   await server.stop('immediate')   // like a crash for the data
//   await server.start()             // recovers; same port, same data
//
// A test that stops or breaks a server must have its own. All others share one through `testDatabase()`.
import { type ChildProcess, spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { closeSync, mkdirSync, openSync, readFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { type PostgresHome, postgresHome } from './postgres-home.ts'
import { runOk } from './shell.ts'

export interface ServerOptions {
  /** Binaries of another version; see `postgres-versions.ts`. */
  readonly native?: string
  readonly settings?: Readonly<Record<string, string>>
  /** Its data in memory, if there is space: for tests that are not about the disk. */
  readonly inMemory?: boolean
  /** Its data on a disk of this size, in memory. Only root can mount one. */
  readonly diskMb?: number
}

export interface Server extends AsyncDisposable {
  readonly port: number
  readonly pid: number
  readonly isRunning: boolean
  readonly dataDirectory: string
  readonly logFile: string
  url(database?: string): string
  stop(mode: 'fast' | 'immediate'): Promise<void>
  start(): Promise<void>
}

const startMaxMs = 60_000
const stopMaxMs = 5_000
const pollMs = 10

const defaults = {
  listen_addresses: '127.0.0.1',
  unix_socket_directories: '',
  max_connections: '200',
  max_prepared_transactions: '20',
}

export async function startServer({
  native,
  settings = {},
  inMemory = false,
  diskMb,
}: ServerOptions = {}): Promise<Server> {
  const home = await postgresHome({ native, inMemory })
  try {
    if (diskMb !== undefined) await smallDisk(home, diskMb)
    await initialise(home)
    const all = { ...defaults, ...settings, port: String(await freePort()) }
    const server = new OwnServer(home, all, { onSmallDisk: diskMb !== undefined })
    await server.start()
    return server
  } catch (error) {
    await home[Symbol.asyncDispose]()
    throw error
  }
}

/**
 * A standby that streams from `primary`, which stops for a moment: the copy of a stopped server needs only one file that makes it
 * a standby. Its application name is `standby`.
 */
export async function startStandby(primary: Server): Promise<Server> {
  const home = await postgresHome()
  try {
    await primary.stop('fast')
    await runOk('cp', ['-a', primary.dataDirectory, home.data])
    await runOk('touch', [join(home.data, 'standby.signal')], home.account)
    await primary.start()
    const source = `host=127.0.0.1 port=${primary.port} user=postgres application_name=standby`
    const server = new OwnServer(home, { ...defaults, port: String(await freePort()), primary_conninfo: source })
    await server.start()
    return server
  } catch (error) {
    await home[Symbol.asyncDispose]()
    throw error
  }
}

async function smallDisk({ data, account }: PostgresHome, sizeMb: number): Promise<void> {
  mkdirSync(data)
  const options = `size=${sizeMb}m,mode=0700,uid=${account.uid},gid=${account.gid}`
  await runOk('mount', ['-t', 'tmpfs', '-o', options, 'tmpfs', data])
}

// Without sync, which saves a tenth: an empty cluster may be lost if the machine goes down now. The server itself syncs.
async function initialise({ program, data, path, account }: PostgresHome): Promise<void> {
  const cluster = ['--username=postgres', '--auth=trust', '--encoding=UTF8', '--locale=C']
  await runOk(program('initdb'), [`--pgdata=${data}`, ...cluster, '--no-sync', '--no-instructions'], {
    ...account,
    cwd: path,
    env: environment(),
  })
}

class OwnServer implements Server {
  readonly port: number
  readonly dataDirectory: string
  readonly logFile: string
  readonly #home: PostgresHome
  readonly #onSmallDisk: boolean
  readonly #args: readonly string[]
  #process: ChildProcess | undefined

  constructor(home: PostgresHome, settings: Readonly<Record<string, string>>, { onSmallDisk = false } = {}) {
    this.#home = home
    this.#onSmallDisk = onSmallDisk
    this.#args = ['-D', home.data, ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])]
    this.port = Number(settings['port'])
    this.dataDirectory = home.data
    this.logFile = join(home.path, 'server.log')
  }

  get pid(): number {
    if (this.#process?.pid === undefined) throw new Error('This PostgreSQL server is stopped')
    return this.#process.pid
  }

  get isRunning(): boolean {
    return this.#process !== undefined
  }

  url(database = 'postgres'): string {
    return `postgres://postgres@127.0.0.1:${this.port}/${database}`
  }

  // In its own session, so that Ctrl-C in the terminal reaches the tests first, and the server after they have ended.
  async start(): Promise<void> {
    if (this.#process) throw new Error('This PostgreSQL server runs already')
    const log = openSync(this.logFile, 'a')
    const { program, path, account } = this.#home
    const child = spawn(program('postgres'), this.#args, {
      ...account,
      cwd: path,
      env: environment(),
      detached: true,
      stdio: ['ignore', log, log],
    })
    closeSync(log)
    child.unref()
    child.once('error', () => {})
    child.once('exit', () => {
      this.#process = undefined
    })
    this.#process = child
    await this.#ready(child)
  }

  // The server writes its progress to its lock file: its process id on the first line, its state on the eighth.
  async #ready(child: ChildProcess): Promise<void> {
    const deadline = Date.now() + startMaxMs
    for (;;) {
      const lines = readIfThere(join(this.dataDirectory, 'postmaster.pid')).split('\n')
      if (lines[0] === String(child.pid) && ['ready', 'standby'].includes(lines[7]?.trim() ?? '')) return
      if (hasEnded(child) || Date.now() > deadline) break
      await delay(pollMs)
    }
    throw new Error(`PostgreSQL did not start:\n${readIfThere(this.logFile).slice(-4_000)}`)
  }

  async stop(mode: 'fast' | 'immediate'): Promise<void> {
    const child = this.#process
    if (!child) return
    const signals = { fast: ['SIGINT', 'SIGQUIT', 'SIGKILL'], immediate: ['SIGQUIT', 'SIGKILL'] } as const
    const exited = once(child, 'exit')
    for (const signal of signals[mode]) {
      child.kill(signal)
      await within(stopMaxMs, exited)
      if (hasEnded(child)) return
    }
    throw new Error(`PostgreSQL (process ${child.pid}) cannot be stopped`)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop('fast')
    if (this.#onSmallDisk) await runOk('umount', [this.dataDirectory])
    await this.#home[Symbol.asyncDispose]()
  }
}

// Below the ports of outgoing connections: one of those could take the port while the server is down.
export async function freePort(): Promise<number> {
  for (let tries = 0; tries < 100; tries++) {
    const port = randomInt(20_000, 32_000)
    if (await canListen(port)) return port
  }
  throw new Error('No free port between 20000 and 32000 on 127.0.0.1')
}

async function canListen(port: number): Promise<boolean> {
  const probe = createServer()
  const listening = once(probe.listen(port, '127.0.0.1'), 'listening')
  const free = await listening.then(
    () => true,
    () => false,
  )
  if (free) await new Promise((resolve) => probe.close(resolve))
  return free
}

async function within(maxMs: number, event: Promise<unknown>): Promise<void> {
  const timer = new AbortController()
  const timeout = delay(maxMs, undefined, { signal: timer.signal }).catch(() => {})
  await Promise.race([event, timeout])
  timer.abort()
}

function hasEnded(child: ChildProcess): boolean {
  return child.pid === undefined || child.exitCode !== null || child.signalCode !== null
}

function readIfThere(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}

// Without the caller's PG* settings, and with messages in English.
function environment(): NodeJS.ProcessEnv {
  return { PATH: process.env['PATH'], LC_ALL: 'C' }
}
