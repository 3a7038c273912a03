// The servers of the comparison, all on 127.0.0.1: one PostgreSQL with its default settings, and two Redis with an append-only
// file each, one synced every second and one with every command. They are stopped by their own process ids.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, rmSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { freePort, startServer } from '../../test/support/postgres-server.ts'
import { run } from '../../test/support/shell.ts'
import { dropSchema } from '../postgres-contenders.ts'
import { findRedis, type RedisProgram } from './install.ts'
import type { Place } from './peer.ts'

export interface Servers extends AsyncDisposable {
  readonly place: Place
  readonly redisVersion: string | null
  /** Set if Redis takes no part: why. */
  readonly without: string | null
  /** The place, emptied. */
  fresh(): Promise<Place>
}

const schema = 'peer_bench'
const readyMaxMs = 20_000

export async function startServers(directory: string, wantsRedis: boolean): Promise<Servers> {
  await using stack = new AsyncDisposableStack()
  const postgres = stack.use(await startServer())
  const program = wantsRedis ? await findRedis() : 'not asked for'
  const redis: Record<string, number> = {}
  const pids: Record<string, number> = { postgres: postgres.pid }
  if (typeof program !== 'string') {
    for (const fsync of ['everysec', 'always']) {
      const started = stack.use(await startRedis(program, join(directory, `redis-${fsync}`), fsync))
      redis[fsync] = started.port
      pids[fsync] = started.pid
    }
  }
  const place = { postgres: postgres.url(), schema, redis, file: join(directory, 'peer.db'), pids }
  const stop = stack.move()
  return {
    place,
    redisVersion: typeof program === 'string' ? null : await versionOf(program),
    without: typeof program === 'string' && wantsRedis ? `BullMQ is left out: ${program}.` : null,
    fresh: () => fresh(place),
    [Symbol.asyncDispose]: () => stop.disposeAsync(),
  }
}

async function fresh(place: Place): Promise<Place> {
  await dropSchema(place.postgres, place.schema)
  for (const port of Object.values(place.redis)) await command(port, 'FLUSHALL SYNC')
  for (const suffix of ['', '-wal', '-shm']) rmSync(place.file + suffix, { force: true })
  return place
}

async function startRedis(program: RedisProgram, directory: string, appendfsync: string) {
  mkdirSync(directory)
  const port = await freePort()
  const settings = {
    port,
    bind: '127.0.0.1',
    dir: directory,
    appendonly: 'yes',
    appendfsync,
    save: '',
    'auto-aof-rewrite-percentage': 0, // in a run of seconds, a rewrite would slow down one contender at random
    'maxmemory-policy': 'noeviction',
  }
  const args = Object.entries(settings).flatMap(([name, value]) => [`--${name}`, String(value)])
  const child = spawn(program.command, args, { env: program.env, stdio: 'ignore' })
  const kill = () => child.kill('SIGKILL')
  process.once('exit', kill) // also if this process is ended half-way
  await ready(port, child)
  return {
    port,
    pid: child.pid as number,
    [Symbol.asyncDispose]: async () => {
      process.off('exit', kill)
      if (child.exitCode !== null || child.signalCode !== null) return
      const exited = once(child, 'exit')
      kill()
      await exited
    },
  }
}

async function ready(port: number, child: ChildProcess): Promise<void> {
  for (const deadline = Date.now() + readyMaxMs; ; ) {
    const answer = await command(port, 'PING').catch(() => '')
    if (answer.startsWith('+PONG')) return
    if (Date.now() > deadline || child.exitCode !== null) throw new Error('Redis did not start.')
    await delay(20)
  }
}

/** Sends one command as a line; answers the raw reply. */
async function command(port: number, line: string): Promise<string> {
  const socket = connect(port, '127.0.0.1')
  socket.end(`${line}\r\n`)
  let answer = ''
  for await (const chunk of socket) answer += String(chunk)
  return answer
}

async function versionOf({ command: program, env }: RedisProgram): Promise<string> {
  const { stdout } = await run(program, ['--version'], { env })
  return /v=(\S+)/.exec(stdout)?.[1] ?? 'unknown'
}
