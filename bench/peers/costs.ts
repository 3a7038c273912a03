// What work costs beside time: processor time in the client and in the server, bytes written to the log, storage.

import { readdirSync, readFileSync } from 'node:fs'
import { loadavg } from 'node:os'
import { DatabaseSync } from 'node:sqlite'
import pg from 'pg'
import type { Contender } from './contenders.ts'
import { load, type Place } from './peer.ts'

export interface Observer extends AsyncDisposable {
  /** Before a measurement: writes dirty pages and vacuums, so that earlier work adds nothing to its costs. */
  settle(): Promise<void>
  log(): Promise<number>
  storage(): Promise<number>
}

export interface Cost {
  /** Processor time a job, of this process and of the server; SQLite's is in this process. */
  readonly clientUs: number
  readonly serverUs: number
  readonly logBytes: number
  readonly load: number
}

/** What `work` used for each job; `work` answers how many jobs it did. */
export async function costing(
  observer: Observer,
  serverPid: number | undefined,
  work: () => Promise<number>,
): Promise<Cost> {
  await observer.settle()
  const before = { log: await observer.log(), server: treeUs(serverPid), here: process.cpuUsage() }
  const load = loadavg()[0] ?? 0
  const jobs = await work()
  const { user, system } = process.cpuUsage(before.here)
  return {
    clientUs: (user + system) / jobs,
    serverUs: (treeUs(serverPid) - before.server) / jobs,
    logBytes: ((await observer.log()) - before.log) / jobs,
    load,
  }
}

export function observe(contender: Contender, place: Place): Promise<Observer> {
  if (contender.engine === 'postgres') return observePostgres(place.postgres, contender.schema ?? place.schema)
  if (contender.engine === 'redis') return observeRedis(place.redis[contender.redis ?? 'always'] as number)
  return observeFile(place.file)
}

async function observePostgres(url: string, schema: string): Promise<Observer> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  const number = async (sql: string) => Number((await client.query<{ n: string }>(sql)).rows[0]?.n)
  return {
    settle: async () => {
      await client.query('vacuum (analyze)')
      await client.query('checkpoint')
    },
    log: () => number(`select pg_current_wal_insert_lsn() - '0/0' as n`),
    storage: () =>
      number(
        `select coalesce(sum(pg_total_relation_size(oid)), 0) as n from pg_class
         where relnamespace = '${schema}'::regnamespace and relkind in ('r', 'm')`,
      ),
    [Symbol.asyncDispose]: () => client.end(),
  }
}

interface Redis {
  info(section: string): Promise<string>
  quit(): Promise<unknown>
}

async function observeRedis(port: number): Promise<Observer> {
  const { Redis } = await load<{ readonly Redis: new (port: number, host: string) => Redis }>('ioredis')
  const redis = new Redis(port, '127.0.0.1')
  const number = async (section: string, name: string) =>
    Number(new RegExp(`^${name}:(\\d+)`, 'm').exec(await redis.info(section))?.[1])
  return {
    settle: async () => undefined,
    log: () => number('persistence', 'aof_current_size'),
    storage: () => number('memory', 'used_memory'), // Redis stores its jobs in memory
    [Symbol.asyncDispose]: async () => {
      await redis.quit()
    },
  }
}

/** The store is a thread of this process. So what the process writes is what the store writes, log and file together. */
async function observeFile(path: string): Promise<Observer> {
  const db = new DatabaseSync(path, { readOnly: true })
  const pragma = (name: string) => Number(Object.values(db.prepare(`pragma ${name}`).get() ?? {})[0])
  return {
    settle: async () => undefined,
    log: async () => Number(/^wchar: (\d+)/m.exec(read('/proc/self/io'))?.[1] ?? Number.NaN),
    storage: async () => (pragma('page_count') - pragma('freelist_count')) * pragma('page_size'),
    [Symbol.asyncDispose]: async () => db.close(),
  }
}

const tickUs = 10_000 // a hundredth of a second on every Linux

/** Processor time of a process, its children, and ended children. NaN if there is no /proc. */
export function treeUs(pid: number | undefined): number {
  if (pid === undefined) return 0
  const own = stat(pid)
  if (!own) return Number.NaN
  const children = readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map((name) => stat(Number(name)))
    .filter((other) => other?.parent === pid)
  return (own.ticks + own.endedTicks + children.reduce((sum, child) => sum + (child?.ticks ?? 0), 0)) * tickUs
}

function stat(pid: number): { parent: number; ticks: number; endedTicks: number } | null {
  const text = read(`/proc/${pid}/stat`)
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
  if (fields.length < 15) return null
  const at = (field: number) => Number(fields[field - 3]) // fields are numbered from 1 in proc(5), and two were cut off
  return { parent: at(4), ticks: at(14) + at(15), endedTicks: at(16) + at(17) }
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
