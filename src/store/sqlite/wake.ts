// Wake-ups from other processes on the same file. Every commit writes the log, so a watch on it tells that something was
// committed; `data_version` tells that it was somebody else; the counts tell where there is work. Where the platform
// cannot watch a file, a short poll of `data_version` does (a few microseconds each).

import { type FSWatcher, watch } from 'node:fs'
import type { Database } from './database.ts'

const pollMs = 20

export class ForeignCommits {
  readonly #db: Database
  readonly #onReady: (ready: readonly (readonly [queue: string, count: number])[]) => void
  readonly #watcher: FSWatcher | undefined
  readonly #poll: NodeJS.Timeout | undefined
  #seen: number
  #checking = false

  constructor(db: Database, onReady: (ready: readonly (readonly [queue: string, count: number])[]) => void) {
    this.#db = db
    this.#onReady = onReady
    this.#seen = db.dataVersion()
    try {
      this.#watcher = watch(`${db.path}-wal`, { persistent: false }, () => this.#checkSoon())
      this.#watcher.on('error', () => this.#watcher?.close())
    } catch {
      this.#poll = setInterval(() => this.#check(), pollMs).unref()
    }
  }

  close(): void {
    this.#watcher?.close()
    clearInterval(this.#poll)
  }

  /** One look for all the writes of one commit. */
  #checkSoon(): void {
    if (this.#checking) return
    this.#checking = true
    setImmediate(() => {
      this.#checking = false
      this.#check()
    })
  }

  #check(): void {
    const version = this.#db.dataVersion()
    if (version === this.#seen) return
    this.#seen = version
    const ready = this.#db.all<{ name: string; ready: number }>(
      'select name, ready from holdfast_queue where ready > 0 and paused = 0',
    )
    if (ready.length > 0) this.#onReady(ready.map((queue) => [queue.name, queue.ready] as const))
  }
}
