// A small key-value store beside the queues: for settings, cursors, and results that outlive their job.

import { isRefused, toError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { decodeJson, encodeJson, kvRule } from '../job/codec.ts'
import { checkKey, checkOptions, checkOwnKey, checkVersion, reservedPrefix } from '../job/names.ts'
import type { KvWrite } from '../job/record.ts'
import { type Duration, toMs } from '../runtime/duration.ts'
import type { KvAnswer, KvEntry, KvPage, KvScanQuery } from '../store/store.ts'

/** After every key that is reserved: a scan goes on behind them without reading them all. */
const afterReserved = `${reservedPrefix}\u{10ffff}`

export interface KvValue<T = unknown> {
  readonly value: T
  /** Changes with every write; pass it to `compareAndSet` or `compareAndDelete`. */
  readonly version: number
  readonly expiresAt: Date | null
}

/** The part of the client that the key-value store needs. */
export interface KvContext {
  get(key: string): Promise<KvEntry | null>
  scan(query: KvScanQuery): Promise<KvPage>
  write(write: KvWrite): Promise<KvAnswer>
}

/**
 * The application cannot write the entries of Holdfast, and does not meet them in a scan. It may read them by their names, and
 * delete them, which is a repair: for example of a reaper that was removed from the code.
 */
export class Kv {
  readonly #context: KvContext
  readonly #isOwn: boolean

  /** `isOwn`: for the parts of Holdfast that keep their entries here. */
  constructor(context: KvContext, isOwn = false) {
    this.#context = context
    this.#isOwn = isOwn
  }

  async get<T = unknown>(key: string): Promise<KvValue<T> | null> {
    const entry = await this.#context.get(checkKey(key, 'key'))
    return entry && toValue<T>(entry)
  }

  /** Returns the new version. */
  async put(key: string, value: unknown, options: { readonly ttl?: Duration } = {}): Promise<number> {
    const { version } = await this.#write({ as: 'put', ...this.#toPut(key, value, options) })
    return version as number
  }

  /** Returns whether there was an entry to delete. */
  async delete(key: string): Promise<boolean> {
    const { applied } = await this.#write({ as: 'delete', key: checkKey(key, 'key') })
    return applied
  }

  /** Writes only if the version is still the one given (`null`: only if the key is absent). */
  async compareAndSet(
    key: string,
    version: number | null,
    value: unknown,
    options: { readonly ttl?: Duration } = {},
  ): Promise<{ applied: boolean; version: number | null }> {
    const expected = version === null ? null : checkVersion(version, 'version')
    return this.#write({ as: 'compareAndSet', version: expected, ...this.#toPut(key, value, options) })
  }

  /** Deletes only if the version is still the one given. Answers the version that the entry has now; null: there is none. */
  async compareAndDelete(key: string, version: number): Promise<{ applied: boolean; version: number | null }> {
    return this.#write({ as: 'compareAndDelete', key: checkKey(key, 'key'), version: checkVersion(version, 'version') })
  }

  /** Every entry whose key starts with the prefix, by key, a page at a time. Those of Holdfast only if the prefix names them. */
  async *scan<T = unknown>(prefix: string): AsyncGenerator<KvValue<T> & { readonly key: string }> {
    if (prefix !== '') checkKey(prefix, 'prefix')
    const isHidden = (key: string) => key.startsWith(reservedPrefix) && !prefix.startsWith(reservedPrefix)
    let after: string | null = null
    do {
      const page: KvPage = await this.#context.scan({ prefix, limit: bounds.pageMax, after })
      for (const entry of page.entries) if (!isHidden(entry.key)) yield { key: entry.key, ...toValue<T>(entry) }
      after = page.next !== null && isHidden(page.next) ? afterReserved : page.next
    } while (after !== null)
  }

  #toPut(key: string, value: unknown, options: { readonly ttl?: Duration }) {
    checkOptions(options, 'put options', ['ttl'])
    const { ttl } = options
    return {
      key: this.#isOwn ? checkKey(key, 'key') : checkOwnKey(key, 'key'),
      value: encodeJson(value, kvRule),
      ttlMs: ttl === undefined ? null : toMs(ttl, 'ttl', { min: 1 }),
    }
  }

  async #write(write: KvWrite): Promise<{ applied: boolean; version: number | null }> {
    const answer = await this.#context.write(write)
    if (isRefused(answer)) throw toError(answer)
    return answer
  }
}

function toValue<T>({ value, version, expiresAt }: KvEntry): KvValue<T> {
  return { value: decodeJson(value) as T, version, expiresAt: expiresAt === null ? null : new Date(expiresAt) }
}
