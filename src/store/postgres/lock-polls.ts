// How a call waits for another open transaction: without a connection.
//
// A row that another transaction has inserted or locked is free once that transaction ends. PostgreSQL would let a statement
// wait for that inside the server, and the statement would keep its connection. The other transaction may be an application's,
// and stay open for minutes. A few such waits would take every connection of the store, and a transaction that waits keeps its
// own locks. So a statement that may meet such a row gives up after 20 ms (`lock_timeout`), is undone, and is made again a
// little later.
//
// - Between two attempts the call holds no connection and no lock.
// - Attempts after the first pass a semaphore, so they use at most a third of the connections at any moment.
// - A call that must wait inside the server, because timeouts of its session decide for how long, passes another semaphore of the
//   same size (`onServer`).
// - An attempt that gave up has changed nothing. So when the store closes, a call that waits ends with CLOSED at once.
//
// Only a call that is one request waits here. A call of several requests leaves out those that would have to wait; see
// `lanes.ts`, and for key-value writes `kv.ts`.

import { setMaxListeners } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { HoldfastError } from '../../errors.ts'
import { isBusy, LockNotFree, RowLocked } from './connection/failures.ts'
import { Semaphore } from './connection/semaphore.ts'

const pauseMinMs = 10
const pauseMaxMs = 250

export class LockPolls {
  readonly #slots: Semaphore
  readonly #onServer: Semaphore
  readonly #closing = new AbortController()

  /** `connections`: how many the store has in all. */
  constructor(connections: number) {
    const slots = Math.max(1, Math.floor(connections / 3))
    this.#slots = new Semaphore(slots)
    this.#onServer = new Semaphore(slots)
    setMaxListeners(0, this.#closing.signal) // one for each call that waits
  }

  /** Repeats `attempt` until it meets no other transaction. It must fail with a collision by itself, in fail-fast mode. */
  async until<T>(attempt: () => Promise<T>): Promise<T> {
    const first = await orBusy(attempt())
    if (first !== busy) return first
    for (let pauseMs = pauseMinMs; ; pauseMs = Math.min(pauseMs * 2, pauseMaxMs)) {
      await this.#pause(Math.random() * pauseMs)
      const answer = await this.#slots.pass(() => (this.#closing.signal.aborted ? closed() : orBusy(attempt())))
      if (answer !== busy) return answer
    }
  }

  /** Makes a call that may wait for another transaction inside the server, with its connection. */
  onServer<T>(call: () => Promise<T>): Promise<T> {
    return this.#onServer.pass(async () => (this.#closing.signal.aborted ? closed() : call()))
  }

  close(): void {
    this.#closing.abort()
  }

  #pause(ms: number): Promise<void> {
    return sleep(ms, undefined, { signal: this.#closing.signal }).catch(closed)
  }
}

/** How long a call that is one request waits for a lock, before it lets go of its own locks and tries again later. */
const attemptMaxMs = 100

/**
 * Makes a call that is one request. `once` waits for locks for so long (null: as long as it takes), and then throws LockNotFree
 * with everything undone. If sessions have timeouts, and statements of the application run, these decide how long the statements
 * wait. A job's row is never waited for in the server.
 */
export async function whenLocksAreFree<T>(
  { db, polls }: { readonly db: { readonly hasTimeouts: boolean }; readonly polls: LockPolls },
  { runsStatements }: { readonly runsStatements: boolean },
  once: (lockMaxMs: number | null) => Promise<T>,
): Promise<T> {
  if (!db.hasTimeouts || !runsStatements) return polls.until(() => once(attemptMaxMs))
  for (;;) {
    const tried = await polls.until(() => unless(once(attemptMaxMs), (error) => !(error instanceof RowLocked)))
    if ('answer' in tried) return tried.answer
    const waited = await polls.onServer(() => unless(once(null), (error) => error instanceof RowLocked))
    if ('answer' in waited) return waited.answer
  }
}

/** The answer, unless the attempt met a lock of this kind. */
async function unless<T>(
  attempt: Promise<T>,
  isMeant: (error: LockNotFree) => boolean,
): Promise<{ readonly answer: T } | { readonly isLocked: true }> {
  try {
    return { answer: await attempt }
  } catch (error) {
    if (!(error instanceof LockNotFree) || !isMeant(error)) throw error
    return { isLocked: true }
  }
}

const busy = Symbol('busy')

function orBusy<T>(attempt: Promise<T>): Promise<T | typeof busy> {
  return attempt.catch((error) => {
    if (!isBusy(error)) throw error
    return busy
  })
}

function closed(): never {
  throw new HoldfastError(
    'CLOSED',
    'This Holdfast was closed while the call waited for another open transaction. Nothing was carried out.',
  )
}
