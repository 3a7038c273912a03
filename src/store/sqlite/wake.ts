// Wake-ups for commits of other connections on the same file, most of them in other processes.
//
// - Every commit writes the log, so the process watches that file.
// - `data_version` says whether the commit was made by another connection.
// - The counts of queues say where there is work, and a count in `holdfast_meta` whether running jobs were asked to cancel. That
//   count also rises with requests of this process, so the first check after such a request notifies a second time.
//
// A write to the log comes before the commit is visible: the commit waits for the disk in between, and it becomes visible in
// mapped memory, which cannot be watched. So a few checks follow each write, at growing intervals. If the platform cannot watch a
// file, it is polled; a check takes some microseconds.

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

  /** Only a hint. If the file cannot be read now, it is read after the next commit, and calls in between fail with the reason. */
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
      // the next check or call meets the same error
    }
  }

  #countCancels(): number {
    return this.#db.get<{ cancels: number }>('select cancels from holdfast_meta')?.cancels ?? 0
  }
}

/** A few checks at growing intervals. If `begin` is called while a later one is due, the series starts again with the first. */
export class Looks {
  readonly #look: () => void
  #timer: NodeJS.Timeout | undefined
  /** The index of the check that is due next. */
  #next = 0

  constructor(look: () => void) {
    this.#look = look
  }

  /** Does not delay the first check, however often it is called. */
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
