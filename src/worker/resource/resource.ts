// A thing that the jobs of a process share (a browser, a login) and that must be restarted now and then without pulling
// it away from everybody.
//
//   idle ──first acquire──▶ starting ──▶ healthy ──restart──▶ draining ──▶ restarting ──▶ healthy
//
// While it is not healthy, whoever wants it is parked. A restart first lets those who use it finish, up to a bound; then
// their signals abort and it goes on without them. Restarts that are asked for meanwhile are the same restart. It always
// comes back: a stop that throws or hangs is left behind, a start that throws or hangs is tried again after a pause, for
// as long as it takes. Users who fail one after the other bring a restart about; what they report of an earlier life
// of the thing does not.

import { setTimeout as sleep } from 'node:timers/promises'
import { HoldfastError } from '../../errors.ts'
import { backoffMs } from '../../job/backoff.ts'
import { checkOptions, checkSignal } from '../../job/names.ts'
import { Parked } from '../gate/parked.ts'
import { within } from '../within.ts'
import { type ResourceOptions, type ResourcePlan, toPlan } from './resource-options.ts'
import { type Holder, ResourceSession } from './session.ts'

export type ResourceState = 'idle' | 'starting' | 'healthy' | 'draining' | 'restarting' | 'closed'

export interface ResourceHealth {
  readonly state: ResourceState
  readonly users: number
  readonly parked: number
  /** How many times it came up. */
  readonly starts: number
  /** Of users, since one last succeeded. */
  readonly failuresInARow: number
  /** Of starts, since one last succeeded. */
  readonly startFailuresInARow: number
  /** What a user, a start, a stop or a look at its health failed with last. */
  readonly lastError: unknown
}

/** Why a user's signal aborted: the thing was restarted, and waited long enough for its users to finish. */
export class ResourceRestarted extends Error {
  override readonly name = 'ResourceRestarted'
}

const healthTimeoutMs = 5_000

export function resource<T>(options: ResourceOptions<T>): Resource<T> {
  return new Resource(toPlan(options))
}

export class Resource<T> implements AsyncDisposable {
  readonly #plan: ResourcePlan<T>
  readonly #parked = new Parked('the resource')
  readonly #end = new AbortController()
  #state: ResourceState = 'idle'
  #life: ResourceSession<T> | null = null
  #restarting: Promise<void> | null = null
  #closing: Promise<void> | null = null
  #starts = 0
  #startFailures = 0
  #lastError: unknown = null

  constructor(plan: ResourcePlan<T>) {
    this.#plan = plan
  }

  get state(): ResourceState {
    return this.#state
  }

  health(): ResourceHealth {
    return {
      state: this.#state,
      users: this.#life?.users ?? 0,
      parked: this.#parked.size,
      starts: this.#starts,
      failuresInARow: this.#life?.failures ?? 0,
      startFailuresInARow: this.#startFailures,
      lastError: this.#lastError,
    }
  }

  /** Acquires it, calls the function with it, and releases it. What the function throws counts as a failure. */
  async use<R>(
    work: (it: T, signal: AbortSignal) => R | Promise<R>,
    options: { readonly signal?: AbortSignal } = {},
  ): Promise<R> {
    const holder = await this.acquire(options)
    try {
      return await work(holder.it, holder.signal)
    } catch (error) {
      holder.failed(error)
      throw error
    } finally {
      holder.release()
    }
  }

  /** Waits until it is healthy. Rejects with the signal's reason when that aborts, and with CLOSED. */
  async acquire(options: { readonly signal?: AbortSignal } = {}): Promise<Holder<T>> {
    checkOptions(options, 'acquire options', ['signal'])
    const signal = checkSignal(options.signal)
    for (;;) {
      if (this.#life && this.#plan.isHealthy && this.#state === 'healthy') await this.#look(this.#life)
      this.#end.signal.throwIfAborted()
      signal?.throwIfAborted()
      if (this.#life && this.#state === 'healthy') return this.#life.hold(signal)
      const parked = this.#parked.wait(signal)
      if (this.#state === 'idle') void this.restart()
      await parked
    }
  }

  /**
   * Resolves when it is healthy again; all who ask while it restarts get the same promise. A user who awaits this in the
   * middle of its use waits for itself, until the drain is over.
   */
  restart(): Promise<void> {
    if (this.#restarting) return this.#restarting
    const restarting = this.#restart().finally(() => {
      this.#restarting = null
    })
    restarting.catch(() => undefined) // closed meanwhile; whoever awaits it is told
    this.#restarting = restarting
    return restarting
  }

  /** Stops it for good, once its users are done or the drain is over. Whoever is parked is refused with CLOSED. */
  close(): Promise<void> {
    this.#closing ??= this.#close()
    return this.#closing
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  async #restart(): Promise<void> {
    this.#end.signal.throwIfAborted()
    if (this.#life) await this.#takeDown(this.#life, new ResourceRestarted('The resource is being restarted.'))
    else this.#enter('starting')
    const it = await this.#startUntilItWorks()
    this.#starts += 1
    this.#startFailures = 0
    this.#life = new ResourceSession<T>(it, this.#onFailure)
    this.#enter('healthy')
    this.#parked.letAllIn()
  }

  async #close(): Promise<void> {
    const closed = new HoldfastError('CLOSED', 'This resource was closed; make another to go on.')
    this.#enter('closed')
    this.#end.abort(closed)
    this.#parked.refuseAll(closed)
    await this.#restarting?.catch(() => undefined)
    if (this.#life) await this.#takeDown(this.#life, closed)
  }

  async #takeDown(life: ResourceSession<T>, reason: Error): Promise<void> {
    this.#enter('draining')
    await life.drain(this.#plan.drainMs, reason)
    this.#enter('restarting')
    this.#life = null
    await this.#stop(life.it)
  }

  async #startUntilItWorks(): Promise<T> {
    const { signal } = this.#end
    for (let attempt = 1; ; attempt++) {
      signal.throwIfAborted()
      try {
        return await this.#start(signal)
      } catch (error) {
        this.#lastError = error
        this.#startFailures = attempt
      }
      const pauseMs = backoffMs(this.#plan.backoff, attempt, Math.random())
      await sleep(pauseMs, undefined, { signal }).catch(() => undefined)
    }
  }

  async #start(end: AbortSignal): Promise<T> {
    const abort = new AbortController()
    const starting = (async () => this.#plan.start(abort.signal))()
    let it: T
    try {
      it = await within(this.#plan.startTimeoutMs, starting, 'start', end)
    } catch (error) {
      abort.abort(error)
      starting.then((late) => this.#stop(late)).catch(() => undefined) // what comes too late is not left running
      throw error
    }
    if (await this.#isHealthy(it)) return it
    await this.#stop(it)
    throw new Error('It started, and was not healthy.')
  }

  async #stop(it: T): Promise<void> {
    const stopping = (async () => this.#plan.stop(it))()
    await within(this.#plan.stopTimeoutMs, stopping, 'stop').catch(this.#remember)
  }

  /** Has it restarted where it is not healthy any more. */
  async #look(life: ResourceSession<T>): Promise<void> {
    life.checking ??= this.#isHealthy(life.it).finally(() => {
      life.checking = null
    })
    if (!(await life.checking) && life === this.#life) void this.restart()
  }

  async #isHealthy(it: T): Promise<boolean> {
    const { isHealthy } = this.#plan
    if (!isHealthy) return true
    const asking = (async () => isHealthy(it))()
    return (await within(healthTimeoutMs, asking, 'isHealthy').catch(this.#remember)) === true
  }

  readonly #onFailure = (life: ResourceSession<T>, error: unknown): void => {
    this.#lastError = error
    const isEnough = this.#plan.failuresMax > 0 && life.failures >= this.#plan.failuresMax
    if (isEnough && life === this.#life) void this.restart()
  }

  readonly #remember = (error: unknown): void => {
    this.#lastError = error
  }

  /** Closed is for good. */
  #enter(state: ResourceState): void {
    if (this.#state !== 'closed') this.#state = state
  }
}
