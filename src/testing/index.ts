// For tests of applications that use Holdfast: a clock you move by hand, and an in-memory store that runs on it.

import type { Clock } from '../clock.ts'
import type { Holdfast } from '../holdfast.ts'
import { open } from '../open.ts'

/** Time stands still until you move it. It lives in shared memory, so a store's own thread reads it too. */
export class VirtualClock implements Clock {
  readonly shared: SharedArrayBuffer
  readonly #ms: Float64Array

  constructor(startAt: Date | number = Date.UTC(2030, 0, 1)) {
    this.shared = new SharedArrayBuffer(8)
    this.#ms = new Float64Array(this.shared)
    this.#ms[0] = Number(startAt)
  }

  now(): number {
    return this.#ms[0] as number
  }

  /** Moves time; a negative step is a clock that was set back. */
  advance(ms: number): void {
    this.#ms[0] = this.now() + ms
  }
}

/** A store in memory on a virtual clock: nothing on disk, nothing to wait for. */
export async function openInMemory(): Promise<{ holdfast: Holdfast; clock: VirtualClock }> {
  const clock = new VirtualClock()
  return { holdfast: await open('sqlite::memory:', { clock }), clock }
}
