// Wake-ups from other processes on the same file. Every commit writes the log, so a watch on it tells that something is
// being committed; `data_version` tells that it was somebody else; the counts tell where there is work.
//
// A commit is written before it can be seen (it waits for the disk in between, and becoming visible happens in mapped
// memory, which nobody can watch). So each write is followed by a few looks, further and further apart. Where the
// platform cannot watch a file, a short poll does; a look takes some microseconds.

import { type FSWatcher, watch } from 'node:fs'
import type { Database } from './database.ts'

const looksAfterMs = [1, 2, 4, 8, 16, 32, 64]
const pollMs = 20

export type Ready = readonly (readonly [queue: string, count: number])[]

export class ForeignCommits {
  readonly #db: Database
  readonly #onReady: (ready: Ready) => void
  #watcher: FSWatcher | undefined
  #timer: NodeJS.Timeout | undefined
  #look = 0
  #seen: number

  constructor(db: Database, onReady: (ready: Ready) => void) {
    this.#db = db
    this.#onReady = onReady
    this.#seen = db.dataVersion()
    try {
      this.#watcher = watch(`${db.path}-wal`, { persistent: false }, () => this.#lookSoon())
      this.#watcher.on('error', () => this.#poll())
    } catch {
      this.#poll()
    }
  }

  close(): void {
    this.#watcher?.close()
    clearTimeout(this.#timer)
    this.#timer = undefined
  }

  #poll(): void {
    this.close()
    this.#timer = setInterval(() => this.#check(), pollMs).unref()
  }

  #lookSoon(): void {
    this.#look = 0
    if (this.#timer === undefined) this.#nextLook()
  }

  #nextLook(): void {
    this.#timer = setTimeout(() => {
      this.#check()
      this.#look += 1
      this.#timer = undefined
      if (this.#look < looksAfterMs.length) this.#nextLook()
    }, looksAfterMs[this.#look]).unref()
  }

  /** Only a hint: what cannot be read now is read after the next commit, and whoever calls meanwhile is told why. */
  #check(): void {
    try {
      const version = this.#db.dataVersion()
      if (version === this.#seen) return
      const select = 'select name, ready from holdfast_queue where ready > 0 and paused = 0'
      const ready = this.#db.snapshot(() => this.#db.all<{ name: string; ready: number }>(select))
      this.#seen = version
      if (ready.length > 0) this.#onReady(ready.map((queue) => [queue.name, queue.ready] as const))
    } catch {
      // the next look or call meets the same
    }
  }
}
