// A resource that the jobs of a process share (a browser, a login), and that must be restarted now and then without an error
// for every job that uses it.
//
//   idle ──first acquire──▶ starting ──▶ healthy ──restart──▶ draining ──▶ restarting ──▶ healthy
//
// ACQUIRE. While the resource is not healthy, an `acquire` waits.
//
// RESTART. A restart first waits for the current users, up to `drain`. Then their signals abort, and it goes on without them. A
// restart that is requested meanwhile is the same restart. A stop that throws or hangs is abandoned. A start that throws or
// hangs is tried again after a pause, until it succeeds or the resource is closed.
//
// FAILURES. Users that fail one after the other cause a restart. Failures that users report from before the last restart do not
// count.

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
  /** How many starts succeeded. */
  readonly starts: number
  /** Failures of users since the last success of one. */
  readonly failuresInARow: number
  /** Failures of starts since the last success of one. */
  readonly startFailuresInARow: number
  /** The last error of a user, a start, a stop or a health check. */
  readonly lastError: unknown
}

/** The reason of a user's signal that aborted because the resource restarts and the drain time is over. */
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
  #session: ResourceSession<T> | null = null
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
      users: this.#session?.users ?? 0,
      parked: this.#parked.size,
      starts: this.#starts,
      failuresInARow: this.#session?.failures ?? 0,
      startFailuresInARow: this.#startFailures,
      lastError: this.#lastError,
    }
  }

  /** Acquires the resource, calls the function with it, and releases it. An error of the function counts as a failure. */
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
      if (this.#session && this.#plan.isHealthy && this.#state === 'healthy') await this.#checkHealth(this.#session)
      this.#end.signal.throwIfAborted()
      signal?.throwIfAborted()
      if (this.#session && this.#state === 'healthy') return this.#session.hold(signal)
      const parked = this.#parked.wait(signal)
      if (this.#state === 'idle') void this.restart()
      await parked
    }
  }

  /**
   * Resolves when the resource is healthy again; all calls during a restart get the same promise. A user that awaits this
   * before it releases the resource waits for itself, until the drain time is over.
   */
  restart(): Promise<void> {
    if (this.#restarting) return this.#restarting
    const restarting = this.#restart().finally(() => {
      this.#restarting = null
    })
    restarting.catch(() => undefined) // the resource was closed meanwhile; a caller that awaits it gets the error
    this.#restarting = restarting
    return restarting
  }

  /** Stops it for good, once its users are done or the drain time is over. Calls of `acquire` that wait reject with CLOSED. */
  close(): Promise<void> {
    this.#closing ??= this.#close()
    return this.#closing
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  async #restart(): Promise<void> {
    this.#end.signal.throwIfAborted()
    if (this.#session) await this.#takeDown(this.#session, new ResourceRestarted('The resource is being restarted.'))
    else this.#enter('starting')
    const it = await this.#startUntilItWorks()
    this.#starts += 1
    this.#startFailures = 0
    this.#session = new ResourceSession<T>(it, this.#onFailure)
    this.#enter('healthy')
    this.#parked.letAllIn()
  }

  async #close(): Promise<void> {
    const closed = new HoldfastError('CLOSED', 'This resource was closed; make another to go on.')
    this.#enter('closed')
    this.#end.abort(closed)
    this.#parked.refuseAll(closed)
    await this.#restarting?.catch(() => undefined)
    if (this.#session) await this.#takeDown(this.#session, closed)
  }

  async #takeDown(session: ResourceSession<T>, reason: Error): Promise<void> {
    this.#enter('draining')
    await session.drain(this.#plan.drainMs, reason)
    this.#enter('restarting')
    this.#session = null
    await this.#stop(session.it)
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
      starting.then((late) => this.#stop(late)).catch(() => undefined) // a start that succeeds too late is stopped again
      throw error
    }
    if (await this.#isHealthy(it)) return it
    await this.#stop(it)
    throw new Error('The resource started and was not healthy.')
  }

  async #stop(it: T): Promise<void> {
    const stopping = (async () => this.#plan.stop(it))()
    await within(this.#plan.stopTimeoutMs, stopping, 'stop').catch(this.#keepError)
  }

  /** Restarts the resource if it is not healthy any more. */
  async #checkHealth(session: ResourceSession<T>): Promise<void> {
    session.checking ??= this.#isHealthy(session.it).finally(() => {
      session.checking = null
    })
    if (!(await session.checking) && session === this.#session) void this.restart()
  }

  async #isHealthy(it: T): Promise<boolean> {
    const { isHealthy } = this.#plan
    if (!isHealthy) return true
    const checking = (async () => isHealthy(it))()
    return (await within(healthTimeoutMs, checking, 'isHealthy').catch(this.#keepError)) === true
  }

  readonly #onFailure = (session: ResourceSession<T>, error: unknown): void => {
    this.#lastError = error
    const isEnough = this.#plan.failuresMax > 0 && session.failures >= this.#plan.failuresMax
    if (isEnough && session === this.#session) void this.restart()
  }

  readonly #keepError = (error: unknown): void => {
    this.#lastError = error
  }

  /** A closed resource stays closed. */
  #enter(state: ResourceState): void {
    if (this.#state !== 'closed') this.#state = state
  }
}
