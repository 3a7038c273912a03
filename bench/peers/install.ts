// Installs the peers beside this file: their packages from npm, and Redis from Debian's packages, downloaded and unpacked without
// root. Nothing is installed anywhere else, and `npm ci` at the root does not install them.

import { existsSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { run, runOk } from '../../test/support/shell.ts'
import { isInstalled } from '../../test/support/system.ts'
import { showProgress } from '../progress.ts'

const here = import.meta.dirname
const unpacked = join(here, 'debian')
const packages = ['redis-server', 'redis-tools', 'libjemalloc2', 'liblzf1', 'libatomic1'] as const

export interface RedisProgram {
  readonly command: string
  readonly env: NodeJS.ProcessEnv
}

export async function installPeers(): Promise<void> {
  const lock = join(here, 'node_modules/.package-lock.json')
  if (existsSync(lock)) return
  showProgress('installing the peers')
  // Not `npm ci`: it refuses if the lock file lacks an optional package of another platform.
  const quietly = ['--no-save', '--no-audit', '--no-fund', '--ignore-scripts', '--loglevel=error']
  await runOk('npm', ['install', ...quietly], { cwd: here, timeoutMs: 600_000 })
}

/** The Redis of this machine, or Debian's; or a sentence that says why there is none. */
export async function findRedis(): Promise<RedisProgram | string> {
  if (isInstalled({ command: 'redis-server', debianPackage: 'redis-server' }))
    return { command: 'redis-server', env: process.env }
  const command = join(unpacked, 'usr/bin/redis-server')
  if (!existsSync(command)) {
    showProgress('fetching Redis')
    const failed = await unpackRedis()
    if (failed !== null) return failed
  }
  const libraries = readdirSync(join(unpacked, 'usr/lib')).map((name) => join(unpacked, 'usr/lib', name))
  const env = { ...process.env, LD_LIBRARY_PATH: libraries.join(delimiter) }
  const { code, stderr } = await run(command, ['--version'], { env })
  return code === 0 ? { command, env } : `redis-server does not run here: ${stderr.trim()}`
}

async function unpackRedis(): Promise<string | null> {
  const part = `${unpacked}.part`
  rmSync(part, { recursive: true, force: true })
  mkdirSync(part, { recursive: true })
  try {
    const { code, stderr } = await run('apt-get', ['download', ...packages], { cwd: part })
    if (code !== 0) return `apt-get has no redis-server: ${stderr.trim().split('\n').at(-1)}`
    for (const name of readdirSync(part)) await runOk('dpkg', ['-x', join(part, name), part])
    renameSync(part, unpacked)
    return null
  } catch (error) {
    return `there is no redis-server, and none can be fetched: ${(error as Error).message.split('\n')[0]}`
  } finally {
    rmSync(part, { recursive: true, force: true })
  }
}
