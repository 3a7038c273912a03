import { bounds } from '../../job/bounds.ts'
import { byteLength } from '../../job/codec.ts'
import type { KvWrite } from '../../job/record.ts'
import { Page } from '../page.ts'
import { kvVersionMismatch, Refusal } from '../refusals.ts'
import type { KvAnswer, KvEntry, KvPage, KvScanQuery } from '../store.ts'
import type { SqliteTransaction } from './transaction.ts'

interface KvRow {
  readonly key: string
  readonly value: string
  readonly version: number
  readonly expires_at: number | null
}

const alive = '(expires_at is null or expires_at > ?)'

export function kvGet(tx: SqliteTransaction, key: string): KvEntry | null {
  const row = tx.db.get<KvRow>(`select * from holdfast_kv where key = ? and ${alive}`, key, tx.now)
  return row ? toEntry(row) : null
}

export function applyKv(tx: SqliteTransaction, write: KvWrite): Exclude<KvAnswer, { refused: unknown }> {
  const version = kvGet(tx, write.key)?.version ?? null
  if ('version' in write && write.version !== version) return { applied: false, version }
  if (write.as === 'delete' || write.as === 'compareAndDelete') {
    tx.db.run('delete from holdfast_kv where key = ?', write.key)
    return { applied: version !== null, version: null }
  }
  const next = tx.nextNumber()
  tx.db.run(
    'insert or replace into holdfast_kv (key, value, version, expires_at, ttl_ms) values (?, ?, ?, ?, ?)',
    write.key,
    write.value,
    next,
    write.ttlMs === null ? null : tx.now + write.ttlMs,
    write.ttlMs,
  )
  return { applied: true, version: next }
}

/** Throws a Refusal if an entry does not have the version that its write names. */
export function applyKvOrRefuse(tx: SqliteTransaction, writes: readonly KvWrite[]): void {
  for (const write of writes) {
    const { applied, version } = applyKv(tx, write)
    if ('version' in write && !applied) throw new Refusal(kvVersionMismatch(write, version))
  }
}

export function kvScan(tx: SqliteTransaction, { prefix, limit, after }: KvScanQuery): KvPage {
  const page = new Page<KvPage['entries'][number]>(limit)
  const rows = tx.db.eachTuple<readonly [key: string, value: string, version: number, expires_at: number | null]>(
    `select key, value, version, expires_at from holdfast_kv
      where key > ? and key >= ? and key < ? and ${alive}
      order by key limit +?`,
    after ?? '',
    prefix,
    afterPrefix(prefix),
    tx.now,
    page.rowsLeft,
  )
  for (const [key, value, version, expiresAt] of rows)
    if (!page.add({ key, value, version, expiresAt }, byteLength(value))) break
  return { entries: page.entries, next: page.isCut ? (page.entries.at(-1)?.key ?? null) : null }
}

function toEntry({ value, version, expires_at }: KvRow): KvEntry {
  return { value, version, expiresAt: expires_at }
}

/** The first text after all that start with the prefix. Keys sort by code point, and no key has an unpaired surrogate. */
function afterPrefix(prefix: string): string {
  const points = Array.from(prefix, (character) => character.codePointAt(0) as number)
  while (points.at(-1) === 0x10ffff) points.pop()
  const last = points.pop()
  if (last === undefined) return '\u{10ffff}'.repeat(bounds.keyBytes)
  return String.fromCodePoint(...points, last + 1 === 0xd800 ? 0xe000 : last + 1)
}
