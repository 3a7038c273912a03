// The key-value part of the model. The contract promises only that versions differ. So the model counts writes itself, and learns
// the store's version of a write when it first sees it.

import { isRefused } from '../../src/errors.ts'
import type { KvWrite } from '../../src/job/record.ts'
import type { KvAnswer, KvEntry } from '../../src/store/store.ts'

interface ModelEntry {
  readonly key: string
  readonly value: string
  /** The number of the write, counted by the model; see `versions`. */
  readonly write: number
  readonly expiresAt: number | null
  readonly ttlMs: number | null
}

export interface KvState {
  entries: ModelEntry[]
  tick: number
  /** The version that the store showed for each write. */
  versions: { readonly key: string; readonly write: number; readonly version: number }[]
}

/** An answer with the number of the write in place of the version. */
export interface ModelKvAnswer {
  readonly applied: boolean
  readonly write: number | null
}

export class KvModel {
  readonly #state: KvState
  readonly #now: number

  constructor(state: KvState, now: number) {
    this.#state = state
    this.#now = now
  }

  get(key: string): ModelEntry | undefined {
    return this.#state.entries.find((entry) => entry.key === key && this.#isAlive(entry))
  }

  scan(prefix: string): ModelEntry[] {
    return this.#state.entries
      .filter((entry) => entry.key.startsWith(prefix) && this.#isAlive(entry))
      .sort((a, b) => Buffer.compare(Buffer.from(a.key), Buffer.from(b.key)))
  }

  write(write: KvWrite): ModelKvAnswer {
    const { key } = write
    const standing = this.get(key)
    if ('version' in write && this.versionOf(standing) !== write.version) {
      return { applied: false, write: standing?.write ?? null }
    }
    this.#state.entries = this.#state.entries.filter((entry) => entry.key !== key)
    if (write.as === 'delete' || write.as === 'compareAndDelete')
      return { applied: standing !== undefined, write: null }
    this.#state.tick += 1
    const expiresAt = write.ttlMs === null ? null : this.#now + write.ttlMs
    this.#state.entries.push({ key, value: write.value, write: this.#state.tick, expiresAt, ttlMs: write.ttlMs })
    return { applied: true, write: this.#state.tick }
  }

  garbage(): number {
    return this.#state.entries.filter((entry) => !this.#isAlive(entry)).length
  }

  /** After the clock was set back. */
  correctTtls(): void {
    this.#state.entries = this.#state.entries.map((entry) =>
      entry.expiresAt === null || entry.ttlMs === null
        ? entry
        : { ...entry, expiresAt: Math.min(entry.expiresAt, this.#now + entry.ttlMs) },
    )
  }

  prune(): void {
    this.#state.entries = this.#state.entries.filter((entry) => this.#isAlive(entry))
  }

  /** Whether the store may show this version for this write: the version it showed before, or a new one. */
  accepts(key: string, write: number | null, version: number | null): boolean {
    if (write === null || version === null) return write === version
    const { versions } = this.#state
    const known = versions.find((each) => each.key === key && (each.write === write || each.version === version))
    if (known) return known.write === write && known.version === version
    versions.push({ key, write, version })
    return true
  }

  acceptsAnswer(key: string, answer: ModelKvAnswer, real: KvAnswer): boolean {
    return !isRefused(real) && answer.applied === real.applied && this.accepts(key, answer.write, real.version)
  }

  acceptsEntry(key: string, entry: ModelEntry | undefined, real: KvEntry | null): boolean {
    if (!entry || !real) return !entry && !real
    return (
      entry.value === real.value && entry.expiresAt === real.expiresAt && this.accepts(key, entry.write, real.version)
    )
  }

  /** Null: absent. NaN: a write whose version was never seen, so no known version can belong to it. */
  versionOf(entry: ModelEntry | undefined): number | null {
    if (!entry) return null
    return this.#state.versions.find(({ write }) => write === entry.write)?.version ?? Number.NaN
  }

  /** Versions that were seen for this key, oldest first. */
  seenVersions(key: string): number[] {
    return this.#state.versions.filter((each) => each.key === key).map(({ version }) => version)
  }

  #isAlive({ expiresAt }: ModelEntry): boolean {
    return expiresAt === null || expiresAt > this.#now
  }
}
