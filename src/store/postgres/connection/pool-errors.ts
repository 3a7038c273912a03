// The error listener of a pool that an application shares with its stores.
//
// pg turns the end of an idle connection into an `error` event of its pool, and an `error` event without a listener ends the
// process. A server that restarts ends every idle connection. No call waits for such a connection, and the next call makes
// another, so the event needs no reaction. All stores of a pool share one listener, which is removed when the last of them lets
// go. A store keeps it while it is open. A connection that a store has ended may still receive the server's last message, so it
// also keeps the listener until it has ended. After that the pool is as it was given: an application that goes on using it has
// a listener of its own.

import type { Pool } from 'pg'

const holders = new WeakMap<Pool, number>()

/** Keeps the listener; answers a function that lets go of it. */
export function ignoreErrorsOf(pool: Pool): () => void {
  const held = holders.get(pool) ?? 0
  if (held === 0) pool.on('error', ignore)
  holders.set(pool, held + 1)
  let isHeld = true
  return () => {
    if (!isHeld) return
    isHeld = false
    const left = (holders.get(pool) ?? 1) - 1
    holders.set(pool, left)
    if (left === 0) pool.off('error', ignore)
  }
}

function ignore(): void {}
