// Wake-ups from other processes on the same file. Every commit writes the log, so a watch on it tells that something is
// being committed; `data_version` tells that it was somebody else; the counts tell where there is work, and whether
// somebody asked to cancel jobs that run. That count rises with requests of this process, too: the first look after one
// tells again what was told already.
//
// A commit is written before it can be seen (it waits for the disk in between, and becoming visible happens in mapped
// memory, which nobody can watch). So each write is followed by a few looks, further and further apart. Where the
// platform cannot watch a file, a short poll does; a look takes some microseconds.

import { type FSWatcher, watch } from 'node:fs'
import type { Database } from './connection/database.ts'
import type { CommitNotices } from './engine.ts'

const looksAfterMs = [1, 2, 4, 8, 16, 32, 64]
const pollMs = 20

export class ForeignCommits {
  readonly #db: Database
  readonly #onCommitted: (notices: CommitNotices) => void
  readonly #looks = new Looks(() => this.#check())
  #watcher: FSWatcher | undefined
  #poller: NodeJS.Timeout | undefined
  #seen: number
  #cancels: number

  constructor(db: Database, onCommitted: (notices: CommitNotices) => void) {
    this.#db = db
    this.#onCommitted = onCommitted
    this.#seen = db.dataVersion()
    this.#cancels = db.snapshot(() => this.#countCancels())
    try {
      this.#watcher = watch(`${db.path}-wal`, { persistent: false }, () => this.#looks.begin())
      this.#watcher.on('error', () => this.#poll())
    } catch {
      this.#poll()
    }
  }

  close(): void {
    this.#watcher?.close()
    this.#looks.end()
    clearInterval(this.#poller)
  }

  #poll(): void {
    this.close()
    this.#poller = setInterval(() => this.#check(), pollMs).unref()
  }

  /** Only a hint: what cannot be read now is read after the next commit, and whoever calls meanwhile is told why. */
  #check(): void {
    try {
      const version = this.#db.dataVersion()
      if (version === this.#seen) return
      const select = 'select name, ready from holdfast_queue where ready > 0 and paused_at is null'
      const [queues, cancels] = this.#db.snapshot(
        () => [this.#db.all<{ name: string; ready: number }>(select), this.#countCancels()] as const,
      )
      const ready = queues.map((queue) => [queue.name, queue.ready] as const)
      const hasCancels = cancels !== this.#cancels
      this.#seen = version
      this.#cancels = cancels
      if (ready.length > 0 || hasCancels)
        this.#onCommitted({
          ready,
          cancels: hasCancels ? null : [],
          finished: [],
          droppedNotices: [],
          undeliverable: [],
        })
    } catch {
      // the next look or call meets the same
    }
  }

  #countCancels(): number {
    return this.#db.get<{ cancels: number }>('select cancels from holdfast_meta')?.cancels ?? 0
  }
}

/** A few looks, further and further apart. What begins while a late one is due brings the first one forward again. */
export class Looks {
  readonly #look: () => void
  #timer: NodeJS.Timeout | undefined
  /** Which of them is due next. */
  #next = 0

  constructor(look: () => void) {
    this.#look = look
  }

  /** The first is never put off, however often this is called. */
  begin(): void {
    if (this.#timer !== undefined && this.#next === 0) return
    this.end()
    this.#next = 0
    this.#arm()
  }

  end(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
  }

  #arm(): void {
    this.#timer = setTimeout(() => {
      this.#timer = undefined
      this.#next += 1
      if (this.#next < looksAfterMs.length) this.#arm()
      this.#look()
    }, looksAfterMs[this.#next]).unref()
  }
}
