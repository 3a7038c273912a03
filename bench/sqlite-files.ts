// The files of the SQLite benchmark, and the loads of its raw side.

import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { type Holdfast, open, sqlite } from '../src/index.ts'
import { makeIds } from './ids.ts'
import { roundUp } from './lines.ts'
import { benchQueue, cycleInTurn } from './load.ts'
import { type Contents, checkContents, RawSqlite } from './raw-sqlite.ts'

export interface Sizes {
  /** Jobs a round in groups of 1,000; fewer for loads in which a job costs more. */
  readonly jobs: number
  readonly singles: number
  readonly oneByOne: number
  readonly hundreds: number
  readonly rounds: number
  readonly samples: number
  readonly backlog: number
  /** How many turns of ten thousand jobs drain the backlog. */
  readonly backlogTurns: number
  readonly claims: number
}

export const callers = 32
export const group = 1_000
export const small = 100
/** Full cycles before the measurement, on both sides: a new thread has to compile its code first. */
const warmUp = 5_000

export function toSizes(jobs: number | null, rounds: number | null, isQuick: boolean): Sizes {
  const count = roundUp(jobs ?? (isQuick ? 10_000 : 40_000), group)
  return {
    jobs: count,
    singles: roundUp(count / 4, callers),
    oneByOne: Math.ceil(count / 20),
    hundreds: roundUp(count / 2, small),
    rounds: rounds ?? (isQuick ? 2 : 5),
    samples: isQuick ? 60 : 120,
    backlog: isQuick ? 200_000 : 1_000_000,
    backlogTurns: isQuick ? 3 : 8,
    claims: isQuick ? 200 : 600,
  }
}

/** Files that are checked and removed after each measurement. */
export class Files {
  readonly #directory: string
  #no = 0

  constructor(directory: string) {
    this.#directory = directory
  }

  next(): string {
    return join(this.#directory, `${++this.#no}.db`)
  }

  async holdfast<T>(
    contents: Contents | ((answer: T) => Contents),
    work: (holdfast: Holdfast, path: string) => Promise<T>,
    filled = 0,
    inThread = false,
  ): Promise<T> {
    const path = this.next()
    if (filled > 0) fill(path, filled)
    const holdfast = await open(inThread ? sqlite({ path, inThread }) : `sqlite:${path}`)
    await cycleInTurn(benchQueue(holdfast), { jobs: warmUp, group })
    const answer = await work(holdfast, path)
    await holdfast.close()
    checkContents(path, afterWarmUp(typeof contents === 'function' ? contents(answer) : contents))
    this.remove(path)
    return answer
  }

  async raw(contents: Contents, work: (raw: RawSqlite) => Promise<number>, filled = 0): Promise<number> {
    const path = this.next()
    if (filled > 0) fill(path, filled)
    const raw = new RawSqlite(path)
    rawCycle(raw, makeIds(warmUp), warmUp, group)
    const answer = await work(raw)
    raw[Symbol.dispose]()
    checkContents(path, afterWarmUp(contents))
    this.remove(path)
    return answer
  }

  remove(path: string): void {
    for (const suffix of ['', '-wal', '-shm']) rmSync(path + suffix, { force: true })
  }
}

export function using<T>(path: string, work: (raw: RawSqlite) => T): T {
  using raw = new RawSqlite(path)
  return work(raw)
}

export function fill(path: string, jobs: number): void {
  using(path, (raw) => raw.fill(jobs))
}

export function inGroups(raw: RawSqlite, ids: readonly string[], jobs: number, size: number): void {
  for (let sent = 0; sent < jobs; sent += size) raw.enqueue(ids.slice(sent, sent + size))
}

export function rawDrain(raw: RawSqlite, jobs: number, batch: number): void {
  for (let left = jobs; left > 0; left -= batch) raw.done(raw.claim(batch))
}

export function rawCycle(raw: RawSqlite, ids: readonly string[], jobs: number, size: number): void {
  for (let sent = 0; sent < jobs; sent += size) {
    raw.enqueue(ids.slice(sent, sent + size))
    raw.done(raw.claim(size))
  }
}

export function waiting(jobs: number): Contents {
  return { jobs, ready: jobs, running: 0, done: 0 }
}

export function finished(jobs: number): Contents {
  return { jobs, ready: 0, running: 0, done: jobs }
}

function afterWarmUp({ jobs, ready, running, done }: Contents): Contents {
  return { jobs: jobs + warmUp, ready, running, done: done + warmUp }
}
