// The definitions that this process has stored, so that it notices when the database has lost one of them.
//
// A process stores each definition once. A failover may lose the newest commits, a backup may be restored, or the schema may be
// dropped and made again. Then limits, attempts and `onDead` of the definition are gone. Without this file they would stay gone
// until a process with the definition starts.
//
// The version of a queue's definition only grows, unless the database was set back. So if the server has a lower version than
// this process got when it stored its definition, the definition is lost, and the process stores it again. A version that is as
// high, or higher, belongs to a definition that another process has stored since. That one stays, as after any redefinition.
//
// Three calls check the version:
//
// - an enqueue that reads again what the server knows of a queue (`lanes.ts`), before it sends the jobs;
// - an enqueue in a caller's transaction, on the server (`enqueue_in`);
// - the sweep, every few seconds, for processes that only work.
//
// Storing again takes the locks of `define_queue`, in a transaction of its own. There the version is compared once more, under
// the lock of the queue's row: the version that was read before may be older than what another process has defined.
//
// - Two processes, or two calls of one process, may store at the same time: the second finds the same definition and changes
//   nothing.
// - After a crash in between, the definition is stored or not, and the next call checks again.
// - Storing raises the version, and the process remembers the new one. So two processes with different definitions store theirs
//   once each, and do not replace each other's again and again.

import type { QueueSettings } from '../../job/record.ts'
import { texts } from './connection/columns.ts'
import type { Database } from './connection/database.ts'
import { isCollision } from './connection/failures.ts'
import { awaitClaims, storeDefinition } from './define.ts'

/** How many definitions are remembered. */
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

  /** Called when this process has stored these settings, or found them stored. */
  remember(settings: QueueSettings, version: number): void {
    this.#byName.delete(settings.name)
    this.#byName.set(settings.name, { settings, version })
    const [oldest] = this.#byName.size > ownMax ? this.#byName.keys() : []
    if (oldest !== undefined) this.#byName.delete(oldest)
  }

  versionOf(queue: string): number | undefined {
    return this.#byName.get(queue)?.version
  }

  /** The settings that this process has stored for these queues. */
  of(queues: Iterable<string>): readonly QueueSettings[] {
    return this.#of(queues).map(({ settings }) => settings)
  }

  #of(queues: Iterable<string>): readonly Own[] {
    return [...new Set(queues)].flatMap((queue) => this.#byName.get(queue) ?? [])
  }

  /** The queues whose definition is lost, from the versions that the server has. */
  lostOf(found: Iterable<readonly [queue: string, version: number]>): string[] {
    const versions = new Map(found)
    return [...versions].flatMap(([queue, version]) => (version < (this.versionOf(queue) ?? 0) ? [queue] : []))
  }

  /** Fails with a collision if another open transaction has locked the row of one of these queues. */
  async storeAgain(queues: readonly string[]): Promise<void> {
    for (const { settings, version: lost } of this.#of(queues)) {
      const { version } = await storeDefinition(this.#db, settings, lost)
      if (settings.limits?.limit != null) await awaitClaims(this.#db, settings.name)
      this.remember(settings, version)
    }
  }

  /** Checks all queues. A queue that does not exist has no definition. */
  async restore(): Promise<void> {
    const names = [...this.#byName.keys()]
    if (names.length === 0) return
    const rows = await this.#db.query('select name, version from holdfast.queue where name = any ($1)', [texts(names)])
    const found = new Map(rows.map(([name, version]) => [name as string, Number(version)]))
    for (const lost of this.lostOf(names.map((name) => [name, found.get(name) ?? 0]))) {
      try {
        await this.storeAgain([lost])
      } catch (error) {
        if (!isCollision(error)) throw error // its row is busy: the next check comes soon
      }
    }
  }
}
