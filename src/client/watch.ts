// Watching. An iterator keeps a mark and the changes of at most one page. A consumer that pulls slowly reads late, and the store
// keeps the unread changes. So memory here is bounded, and a watch can continue in another process from any mark.
//
// Each iterator polls on its own: at once while there are more changes, otherwise after a pause that grows while nothing changes.
// A call of this process ends the pause, because it may have changed something. So does a notification of ready jobs. The store
// records changes only while a watcher is registered; the registration is renewed long before it expires.

import { HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { checkJobId, checkOptions, checkSignal } from '../job/names.ts'
import { type QueueReference, toQueueName } from '../queue/reference.ts'
import type { Change, ChangedState, ChangesPage, ChangesQuery } from '../store/store.ts'

export interface WatchFilter {
  readonly queue?: QueueReference
  readonly states?: readonly ChangedState[]
  readonly ids?: readonly string[]
  /** A cursor: the watch continues after the changes up to there. */
  readonly after?: string
  readonly signal?: AbortSignal
}

export interface JobChange {
  readonly id: string
  readonly queue: string
  /** The new state. */
  readonly state: ChangedState
  readonly at: Date
  /** Pass it as `after` to continue after this change. */
  readonly cursor: string
}

export interface Watch extends AsyncIterableIterator<JobChange, undefined>, AsyncDisposable {
  /** Every change made after this has resolved is seen. It starts at once, before the first pull. */
  readonly begun: Promise<void>
  /** The current position, which also advances while nothing matches; null before the watch has begun. */
  readonly cursor: string | null
  return(): Promise<IteratorResult<JobChange, undefined>>
}

/** The part of the store that a watch needs. */
export interface WatchContext {
  watch(): Promise<string>
  changes(query: ChangesQuery): Promise<ChangesPage>
}

const pauseMinMs = 20
const pauseMaxMs = 1_000
const pauseGrowth = 1.5
const renewEveryMs = bounds.watchMs / 4

export class Watches {
  readonly #context: WatchContext
  readonly #open = new Set<OpenWatch>()

  constructor(context: WatchContext) {
    this.#context = context
  }

  open(filter: WatchFilter): Watch {
    checkOptions(filter, 'the filter', ['queue', 'states', 'ids', 'after', 'signal'])
    const wanted = toWanted(filter)
    const watch = new OpenWatch(this.#context, wanted, {
      after: checkCursor(filter.after),
      signal: checkSignal(filter.signal),
      onEnd: () => this.#open.delete(watch),
    })
    this.#open.add(watch)
    return watch
  }

  /** Something may have changed. */
  hint(): void {
    for (const watch of this.#open) watch.hint()
  }

  close(): void {
    for (const watch of this.#open) watch.end()
  }
}

type Wanted = Omit<ChangesQuery, 'after'>

interface Course {
  readonly after: string | null
  readonly signal: AbortSignal | undefined
  readonly onEnd: () => void
}

class OpenWatch implements Watch {
  readonly begun: Promise<void>
  readonly #context: WatchContext
  readonly #wanted: Wanted
  readonly #onEnd: () => void
  readonly #ended = new AbortController()
  readonly #signal: AbortSignal
  readonly #changes: AsyncGenerator<JobChange, undefined>
  #cursor: string | null
  #renewAt = 0
  #hinted = false
  #wake: (() => void) | null = null

  constructor(context: WatchContext, wanted: Wanted, { after, signal, onEnd }: Course) {
    this.#context = context
    this.#wanted = wanted
    this.#onEnd = onEnd
    this.#cursor = after
    this.#signal = signal ? AbortSignal.any([signal, this.#ended.signal]) : this.#ended.signal
    this.#changes = this.#read()
    this.begun = this.#renew()
    this.begun.catch(onEnd) // the first pull throws this error
    this.#signal.addEventListener('abort', onEnd, { once: true })
  }

  get cursor(): string | null {
    return this.#cursor
  }

  next(): Promise<IteratorResult<JobChange, undefined>> {
    return this.#changes.next()
  }

  return(): Promise<IteratorResult<JobChange, undefined>> {
    this.end()
    return this.#changes.return(undefined)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.return()
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  hint(): void {
    this.#hinted = true
    this.#wake?.()
  }

  end(): void {
    this.#ended.abort()
    this.#onEnd()
  }

  async *#read(): AsyncGenerator<JobChange, undefined> {
    try {
      await this.begun
      let pauseMs = pauseMinMs
      while (!this.#signal.aborted) {
        if (performance.now() >= this.#renewAt) await this.#renew()
        if (this.#signal.aborted) return undefined
        this.#hinted = false
        const page = await this.#context.changes({ ...this.#wanted, after: this.#cursor as string })
        for (const change of page.changes) {
          if (this.#signal.aborted) return undefined
          this.#cursor = change.mark
          yield toJobChange(change)
        }
        this.#cursor = page.next
        if (page.more) continue
        pauseMs = page.changes.length > 0 ? pauseMinMs : Math.min(pauseMaxMs, pauseMs * pauseGrowth)
        await this.#pause(pauseMs)
      }
      return undefined
    } catch (error) {
      if (this.#signal.aborted) return undefined // the watch has ended, and with it the calls that it makes
      throw error
    } finally {
      this.#onEnd()
    }
  }

  async #renew(): Promise<void> {
    const began = performance.now()
    const mark = await this.#context.watch()
    this.#cursor ??= mark
    this.#renewAt = began + renewEveryMs
  }

  /** A hint shortens the pause, but never below the minimum, or a busy process would poll without a pause. */
  async #pause(ms: number): Promise<void> {
    await this.#sleep(pauseMinMs, () => false)
    await this.#sleep(ms - pauseMinMs, () => this.#hinted)
  }

  #sleep(ms: number, isOver: () => boolean): Promise<void> {
    return new Promise((resolve) => {
      const stop = () => {
        clearTimeout(timer)
        this.#signal.removeEventListener('abort', stop)
        this.#wake = null
        resolve()
      }
      const timer = setTimeout(stop, ms)
      this.#signal.addEventListener('abort', stop)
      this.#wake = () => {
        if (isOver()) stop()
      }
      if (this.#signal.aborted || isOver()) stop()
    })
  }
}

function toJobChange({ id, queue, state, at, mark }: Change): JobChange {
  return { id, queue, state, at: new Date(at), cursor: mark }
}

const changedStates: readonly ChangedState[] = [
  ...(['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled', 'deleted'] as const),
]

function toWanted({ queue, states, ids }: WatchFilter): Wanted {
  if (states !== undefined && !(isFilled(states) && [...states].every((state) => changedStates.includes(state)))) {
    throw invalid('states', `states must be some of ${changedStates.join(', ')}.`)
  }
  if (ids !== undefined && !(isFilled(ids) && ids.length <= bounds.watchedIds)) {
    throw invalid('ids', `ids must be 1 to ${bounds.watchedIds} ids of jobs.`)
  }
  return {
    queue: queue === undefined ? null : toQueueName(queue),
    states: states ? [...states] : null,
    ids: ids ? Array.from(ids, checkJobId) : null,
  }
}

function isFilled(list: unknown): boolean {
  return Array.isArray(list) && list.length > 0
}

function checkCursor(after: unknown): string | null {
  if (after === undefined) return null
  if (typeof after === 'string' && after.length <= bounds.cursorLength) return after
  throw invalid('after', 'after must be the `cursor` of a change or of a watch.')
}

function invalid(option: string, message: string): HoldfastError {
  return new HoldfastError('INVALID_OPTION', message, { option })
}
