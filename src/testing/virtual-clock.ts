import { HoldfastError } from '../errors.ts'
import { checkOptions, checkTime } from '../job/names.ts'
import type { Clock } from '../runtime/clock.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'
import { VirtualTimers } from './virtual-timers.ts'

export interface VirtualClockOptions {
  /**
   * Whether timers of this process (timeouts, sweeps, a claim's `wait`, the claim loop of a worker) follow this clock too, or
   * real time; default `'real'`.
   */
  readonly timers?: 'real' | 'virtual'
}

/** A clock that changes only when the test moves it. Its time is in shared memory, so a store's own thread reads it too. */
export class VirtualClock implements Clock {
  readonly shared: SharedArrayBuffer
  readonly timers?: VirtualTimers
  readonly #ms: Float64Array

  constructor(startAt: Date | number = Date.UTC(2030, 0, 1), options: VirtualClockOptions = {}) {
    checkOptions(options, 'options of a virtual clock', ['timers'])
    this.shared = new SharedArrayBuffer(8)
    this.#ms = new Float64Array(this.shared)
    this.#ms[0] = checkTime(startAt, 'startAt')
    const { timers = 'real' } = options
    if (timers !== 'real' && timers !== 'virtual')
      throw new HoldfastError('INVALID_OPTION', `timers is 'real' or 'virtual'; got ${show(timers)}.`, {
        option: 'timers',
      })
    if (timers === 'virtual') this.timers = new VirtualTimers()
  }

  now(): number {
    return this.#ms[0] as number
  }

  /** Moves time: `'5m'`, or milliseconds. A negative number is a clock that was set back. */
  advance(by: Duration): void {
    const ms = typeof by === 'number' ? by : toMs(by, 'advance')
    if (!Number.isFinite(ms))
      throw new HoldfastError('INVALID_OPTION', `advance takes a duration; got ${show(by)}.`, {})
    if (this.timers && ms > 0) this.timers.advance(ms, (step) => this.#move(step))
    else this.#move(ms)
  }

  /** Moves time to this moment. A moment in the past changes nothing. */
  advanceTo(time: Date | number): void {
    this.advance(Math.max(0, checkTime(time, 'time') - this.now()))
  }

  #move(ms: number): void {
    this.#ms[0] = this.now() + ms
  }
}
