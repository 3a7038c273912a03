// Idle latency if another process claims the job.

import { fork } from 'node:child_process'
import { once } from 'node:events'
import type { Queue } from '../src/index.ts'
import { pause, payload } from './load.ts'

export interface Elsewhere {
  readonly url: string
  readonly samples: number
  /** The pause before each sample. */
  readonly pauseMs: number | (() => number)
  readonly maxMs?: number
  /** False: the other process does not listen (PostgreSQL). */
  readonly listen?: boolean
}

/** Milliseconds until another process at the same `url` has the job: `samples` of them, or as many as fit into `maxMs`. */
export async function pickUpsElsewhere(
  queue: Queue,
  { url, samples, pauseMs, maxMs = 3_000, listen = true }: Elsewhere,
): Promise<number[]> {
  const claimer = fork(new URL('./claimer.ts', import.meta.url), [url, ...(listen ? [] : ['--no-listen'])])
  const exited = once(claimer, 'exit')
  const pickUpMs: number[] = []
  await once(claimer, 'message')
  const deadline = performance.now() + maxMs
  while (pickUpMs.length < samples && performance.now() < deadline) {
    await pause(typeof pauseMs === 'function' ? pauseMs() : pauseMs)
    const [[ms]] = await Promise.all([
      once(claimer, 'message') as Promise<[number]>,
      queue.enqueue({ ...payload, at: String(process.hrtime.bigint()) }),
    ])
    pickUpMs.push(ms)
  }
  claimer.disconnect()
  await exited
  return pickUpMs
}
