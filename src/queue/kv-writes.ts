// Key-value writes as the caller states them, with an enqueue or as effects, and their conversion to those of a store. Both have
// the same shape.

import { HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { encodeJson, kvRule } from '../job/codec.ts'
import { checkGiven, checkOptions, checkOwnKey, checkVersion } from '../job/names.ts'
import type { KvCompare, KvPut, KvWrite } from '../job/record.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'

/** Conditional writes come first, so they compare versions from before this transaction. */
export interface KvWrites {
  readonly put?: readonly { readonly key: string; readonly value: unknown; readonly ttl?: Duration }[]
  readonly delete?: readonly string[]
  /** Written only if the entry still has this version (`null`: only if the key is absent). Otherwise nothing is written. */
  readonly compareAndSet?: readonly {
    readonly key: string
    readonly version: number | null
    readonly value: unknown
    readonly ttl?: Duration
  }[]
  /** Deleted only if the entry still has this version. Otherwise nothing is written. */
  readonly compareAndDelete?: readonly { readonly key: string; readonly version: number }[]
}

export const kvWriteNames: readonly (keyof KvWrites)[] = ['put', 'delete', 'compareAndSet', 'compareAndDelete']

export interface CheckedWrites {
  readonly put: readonly KvPut[]
  readonly delete: readonly string[]
  readonly compare: readonly KvCompare[]
}

/** `what`: the option that has them. */
export function checkWrites(writes: KvWrites, what: 'effects' | 'kv'): CheckedWrites {
  return {
    put: listOf(writes, 'put', what).map((put) => {
      checkOptions(put, `${what}.put`, ['key', 'value', 'ttl'])
      return toPut(put, `${what}.put`)
    }),
    delete: listOf(writes, 'delete', what).map((key) => checkOwnKey(key, `${what}.delete`)),
    compare: [
      ...listOf(writes, 'compareAndSet', what).map((write) => toCompareAndSet(write, `${what}.compareAndSet`)),
      ...listOf(writes, 'compareAndDelete', what).map((write) => toCompareAndDelete(write, `${what}.compareAndDelete`)),
    ],
  }
}

/**
 * The writes of one enqueue, in the order in which a store makes them: by key, so that two enqueues with the same keys lock them
 * in the same order. Writes of one key keep their order. Undefined: there are none.
 */
export function toKvWrites(writes: KvWrites): readonly KvWrite[] | undefined {
  checkOptions(writes, 'kv', kvWriteNames)
  const { put, delete: deleted, compare } = checkWrites(writes, 'kv')
  const all: KvWrite[] = [
    ...compare,
    ...put.map((each) => ({ as: 'put', ...each }) as const),
    ...deleted.map((key) => ({ as: 'delete', key }) as const),
  ]
  if (all.length > bounds.effectsMax) {
    const message = `An enqueue carries at most ${bounds.effectsMax} key-value writes; got ${all.length}.`
    throw new HoldfastError('INVALID_OPTION', message, { option: 'kv', count: all.length })
  }
  if (all.length === 0) return undefined
  return all.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0))
}

/** Characters of JSON. */
export function charsOfWrites(writes: readonly KvWrite[]): number {
  return writes.reduce((sum, write) => sum + ('value' in write ? write.value.length : 0), 0)
}

/** Holes included, so that they are refused like undefined. */
export function listOf<Lists extends object, Name extends keyof Lists & string>(
  lists: Lists,
  name: Name,
  what: string,
): (NonNullable<Lists[Name]> extends readonly (infer Each)[] ? Each : never)[] {
  const list: unknown = lists[name] ?? []
  if (Array.isArray(list)) return Array.from(list)
  const option = `${what}.${name}`
  throw new HoldfastError('INVALID_OPTION', `${option} must be an array; got ${show(list)}.`, { option })
}

interface Put {
  readonly key: string
  readonly value: unknown
  readonly ttl?: Duration
}

function toPut({ key, value, ttl }: Put, what: string): KvPut {
  return {
    key: checkOwnKey(key, `${what}.key`),
    value: encodeJson(value, kvRule),
    ttlMs: ttl === undefined ? null : toMs(ttl, `${what}.ttl`, { min: 1 }),
  }
}

type Each<Name extends keyof KvWrites> = NonNullable<KvWrites[Name]>[number]

function toCompareAndSet(write: Each<'compareAndSet'>, what: string): KvCompare {
  checkOptions(write, what, ['key', 'version', 'value', 'ttl'])
  checkGiven(write, what, { version: 'entry.version, or null for a key that is absent' })
  const version = write.version === null ? null : checkVersion(write.version, `${what}.version`)
  return { as: 'compareAndSet', version, ...toPut(write, what) }
}

function toCompareAndDelete(write: Each<'compareAndDelete'>, what: string): KvCompare {
  checkOptions(write, what, ['key', 'version'])
  const { key, version } = write
  return {
    as: 'compareAndDelete',
    key: checkOwnKey(key, `${what}.key`),
    version: checkVersion(version, `${what}.version`),
  }
}
