// The definitions that this process has stored, so that it notices when the database has lost one of them.
//
// A process stores each definition once. A failover may lose the newest commits, a backup may be restored, or the schema may be
// dropped and made again. Then limits, attempts and `onDead` of the definition are gone. Without this file they would stay gone
// until a process with the definition starts.
//
// The version of a queue's definition only grows, unless the database was set back. So a version that is lower than the one
// that this process was told means: its definition is lost, and it stores the definition again. A version that is as high, or
// higher, belongs to a definition that another process has stored since. That one stays, as after any redefinition.
//
// Three places look at the version:
//
// - an enqueue that learns anew what the server knows of a queue (`lanes.ts`), before it sends the jobs;
// - an enqueue in a caller's transaction, on the server (`enqueue_in`);
// - the sweep, every few seconds, for processes that only work.
//
// Storing again takes the locks of `define_queue`, in a transaction of its own. The version is compared once more there, under the
// lock of the queue's row: what was read before may be older than what another process has defined. Two processes, or two calls of one process, may
// do it at the same time: the second finds the same definition and changes nothing. A crash in between leaves a definition that is
// stored or not, and the next call looks again. Storing raises the version to what this process is told then, so two processes
// with different definitions store theirs once each and do not take turns.

import type { QueueSettings } from '../../job/record.ts'
import { texts } from './connection/columns.ts'
import type { Database } from './connection/database.ts'
import { isCollision } from './connection/failures.ts'
import { awaitClaims, storeDefinition } from './define.ts'

/** The most queues whose definitions are remembered. */
const ownMax = 10_000

interface Own {
  readonly settings: QueueSettings
  readonly version: number
}

export class OwnDefinitions {
  readonly #db: Database
  readonly #byName = new Map<string, Own>()

  constructor(db: Database) {
    this.#db = db
  }

  /** This process has stored these settings, or found them stored. */
  remember(settings: QueueSettings, version: number): void {
    this.#byName.delete(settings.name)
    this.#byName.set(settings.name, { settings, version })
    const [oldest] = this.#byName.size > ownMax ? this.#byName.keys() : []
    if (oldest !== undefined) this.#byName.delete(oldest)
  }

  versionOf(queue: string): number | undefined {
    return this.#byName.get(queue)?.version
  }

  /** What this process has stored for these queues. */
  of(queues: Iterable<string>): readonly QueueSettings[] {
    return this.#of(queues).map(({ settings }) => settings)
  }

  #of(queues: Iterable<string>): readonly Own[] {
    return [...new Set(queues)].flatMap((queue) => this.#byName.get(queue) ?? [])
  }

  /** Of these queues, with the versions that the server has, those whose definition is lost. */
  lostOf(found: Iterable<readonly [queue: string, version: number]>): string[] {
    const versions = new Map(found)
    return [...versions].flatMap(([queue, version]) => (version < (this.versionOf(queue) ?? 0) ? [queue] : []))
  }

  /** Gives up with a collision where another open transaction has the row of one of them. */
  async storeAgain(queues: readonly string[]): Promise<void> {
    for (const { settings, version: lost } of this.#of(queues)) {
      const { version } = await storeDefinition(this.#db, settings, lost)
      if (settings.limits?.limit != null) await awaitClaims(this.#db, settings.name)
      this.remember(settings, version)
    }
  }

  /** Looks at all of them. A queue that is not there has no definition. */
  async restore(): Promise<void> {
    const names = [...this.#byName.keys()]
    if (names.length === 0) return
    const rows = await this.#db.query('select name, version from holdfast.queue where name = any ($1)', [texts(names)])
    const found = new Map(rows.map(([name, version]) => [name as string, Number(version)]))
    for (const lost of this.lostOf(names.map((name) => [name, found.get(name) ?? 0]))) {
      try {
        await this.storeAgain([lost])
      } catch (error) {
        if (!isCollision(error)) throw error // its row is busy: the next look comes soon
      }
    }
  }
}
