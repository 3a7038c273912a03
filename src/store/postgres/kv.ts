import { Page } from '../page.ts'
import type { KvAnswer, KvEntry, KvPage, KvScanQuery, KvWrite } from '../store.ts'
import type { Row } from './connection/call.ts'
import type { Database } from './connection/database.ts'
import { orRefuseValues } from './refused-values.ts'

export function kvWrite(db: Database, writes: readonly KvWrite[]): Promise<KvAnswer[]> {
  return orRefuseValues(
    writes,
    (some) => writeTogether(db, some),
    ({ key }) => `the write of key ${key}`,
  )
}

async function writeTogether(db: Database, writes: readonly KvWrite[]): Promise<KvAnswer[]> {
  const call = {
    text: 'select holdfast.kv_write($2::jsonb, $1, $3)::text',
    values: [JSON.stringify(writes), db.now],
  }
  const read = (json: string | null | undefined): KvAnswer[] => JSON.parse(json ?? '[]')
  return db.commitOnce(call, ([row]) => read(row?.[0]), read)
}

const alive = '(expires_at is null or expires_at > holdfast.now_ms($1))'

export async function kvGet(db: Database, key: string): Promise<KvEntry | null> {
  const text = `select key, value, version, expires_at from holdfast.kv where ${alive} and key = $2`
  const [row] = await db.query(text, [db.now, key])
  return row ? toEntry(row) : null
}

export async function kvScan(db: Database, { prefix, limit, after }: KvScanQuery): Promise<KvPage> {
  const page = new Page<KvPage['entries'][number]>(limit)
  const rows = await db.query(
    `select key, value, version, expires_at, bytes
       from (select *, sum(bytes) over w - bytes as before, row_number() over w as turn
               from (select key, value, version, expires_at, octet_length(value) as bytes from holdfast.kv
                      where ${alive} and key > $2 and key >= $3 and starts_with(key, $3)
                      order by key limit $4) measured
             window w as (rows unbounded preceding)) summed
      where before <= $5 or turn <= 2`,
    [db.now, after ?? '', prefix, page.rowsLeft, page.bytesLeft],
  )
  for (const row of rows) if (!page.add({ key: row[0] as string, ...toEntry(row) }, Number(row[4]))) break
  return { entries: page.entries, next: page.isCut ? (page.entries.at(-1)?.key ?? null) : null }
}

function toEntry([, value, version, expiresAt]: Row): KvEntry {
  return {
    value: value as string,
    version: Number(version),
    expiresAt: expiresAt == null ? null : Number(expiresAt),
  }
}
