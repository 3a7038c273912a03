// What every contender can do, whichever queue is behind it: enqueue one or many, work with a handler, and report the contents of
// its store. Each is used as its documentation shows, only through its public API.

import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { payload } from '../load.ts'

export interface Peer extends AsyncDisposable {
  /** One job a call. */
  enqueue(job: PeerPayload): Promise<unknown>
  /** Many in one call. */
  enqueueMany(jobs: readonly PeerPayload[]): Promise<unknown>
  work(handler: Handler): Promise<Working>
  /** Counted by its rows; if it keeps counts of its own, those are checked too. */
  contents(): Promise<Contents>
}

export type PeerPayload = typeof payload & { readonly at?: string }
/** Gets the number with which the job was made. */
export type Handler = (order: number, job: PeerPayload) => void | Promise<void>

export interface Working {
  /** When it resolves, everything that was handled is settled. */
  stop(): Promise<void>
}

export interface Contents {
  readonly waiting: number
  readonly running: number
  /** Finished, and still stored. */
  readonly kept: number
}

/** Where contenders store their jobs. One contender uses it at a time, and it is empty when the next begins. */
export interface Place {
  readonly postgres: string
  readonly schema: string
  readonly redis: Readonly<Record<string, number>>
  readonly file: string
  /** Process ids of the servers, to measure their processor time. */
  readonly pids: Readonly<Record<string, number>>
}

export type Purpose = 'throughput' | 'defaults' | 'soonest'

export const queueName = 'bench'

/** About 100 bytes as JSON, each with a number of the same length. */
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

/** From `bench/peers/node_modules`, which does not exist when types are checked: so the caller states the type. */
export async function load<T>(name: string): Promise<T> {
  return (await import(pathToFileURL(require.resolve(name)).href)) as T
}

export function versionOf(name: string): string {
  const { version } = require(`${require.resolve.paths(name)?.[0]}/${name}/package.json`) as { version: string }
  return version
}
