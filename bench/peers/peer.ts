// What every contender can do, whichever queue is behind it: enqueue one or many, work with a handler, and say what lies in
// its store. Each is used as its documentation shows it, through its public API alone.

import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { payload } from '../load.ts'

export interface Peer extends AsyncDisposable {
  /** One job a call. */
  enqueue(job: PeerPayload): Promise<unknown>
  /** Many in one call. */
  enqueueMany(jobs: readonly PeerPayload[]): Promise<unknown>
  work(handler: Handler): Promise<Working>
  /** By its rows, and where it keeps counts of its own, by those too. */
  contents(): Promise<Contents>
}

export type PeerPayload = typeof payload & { readonly at?: string }
/** Gets the number that the job was made with. */
export type Handler = (order: number, job: PeerPayload) => void | Promise<void>

export interface Working {
  /** Everything that was handled is settled then. */
  stop(): Promise<void>
}

export interface Contents {
  readonly waiting: number
  readonly running: number
  /** Finished, and still there. */
  readonly kept: number
}

/** Where contenders keep their jobs: one at a time, and nothing left of the one before. */
export interface Place {
  readonly postgres: string
  readonly schema: string
  readonly redis: Readonly<Record<string, number>>
  readonly file: string
  /** Of the servers, for what they use of the processor. */
  readonly pids: Readonly<Record<string, number>>
}

export type Purpose = 'throughput' | 'defaults' | 'soonest'

export const queueName = 'bench'

/** About 100 bytes as JSON, told apart by a number of the same length each. */
export function numbered(order: number): PeerPayload {
  return { ...payload, order: firstOrder + order }
}

export function orderOf(job: PeerPayload): number {
  return job.order - firstOrder
}

export function manyNumbered(from: number, count: number): PeerPayload[] {
  return Array.from({ length: count }, (_, i) => numbered(from + i))
}

const firstOrder = 1_000_000_000
const require = createRequire(import.meta.url)

/** From `bench/peers/node_modules`, which is not there when types are checked: who asks says what it looks like. */
export async function load<T>(name: string): Promise<T> {
  return (await import(pathToFileURL(require.resolve(name)).href)) as T
}

export function versionOf(name: string): string {
  const { version } = require(`${require.resolve.paths(name)?.[0]}/${name}/package.json`) as { version: string }
  return version
}
