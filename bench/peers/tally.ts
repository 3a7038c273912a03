// Counts which jobs were handled. Unless every job was handled exactly once, the run gives no figure.

import { expectSame } from '../contender.ts'
import type { Contender } from './contenders.ts'
import type { Peer } from './peer.ts'

export class Tally {
  enqueued = 0
  handled = 0
  #seen = new Uint8Array(1 << 20)
  #twice = 0
  #target = Number.POSITIVE_INFINITY
  #reached: (() => void) | null = null

  /** For a handler that does nothing else. */
  readonly handle = (order: number): void => {
    if (order >= this.#seen.length) this.#grow(order)
    if (this.#seen[order]) this.#twice += 1
    this.#seen[order] = 1
    this.handled += 1
    if (this.handled >= this.#target) this.#reached?.()
  }

  /** Resolves once `target` jobs were handled in total. */
  until(target: number): Promise<void> {
    if (this.handled >= target) return Promise.resolve()
    this.#target = target
    return new Promise((resolve) => {
      this.#reached = () => {
        this.#target = Number.POSITIVE_INFINITY
        resolve()
      }
    })
  }

  /** If a worker was stopped half-way, jobs that it still holds count as waiting: they were not handled. */
  async check(peer: Peer, { keeps }: Contender, { isHalfWay }: { readonly isHalfWay: boolean }): Promise<void> {
    const { enqueued, handled } = this
    const { waiting, running, kept } = await peer.contents()
    expectSame(
      { twice: this.#twice, running: isHalfWay ? 0 : running, accounted: handled + waiting + running, kept },
      { twice: 0, running: 0, accounted: enqueued, kept: keeps ? handled : 0 },
    )
  }

  #grow(order: number): void {
    const seen = new Uint8Array(Math.max(order + 1, this.#seen.length * 2))
    seen.set(this.#seen)
    this.#seen = seen
  }
}
