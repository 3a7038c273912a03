import type { KvWrite } from '../../job/record.ts'
import { Page } from '../page.ts'
import { kvVersionMismatch, Refusal } from '../refusals.ts'
import type { KvAnswer, KvEntry, KvPage, KvScanQuery } from '../store.ts'
import type { Row } from './connection/call.ts'
import { list } from './connection/columns.ts'
import type { Database, PgTransaction } from './connection/database.ts'
import { isCollision } from './connection/failures.ts'
import type { LockPolls } from './lock-polls.ts'
import { orRefuseValues } from './refused-values.ts'

/** How long the writes of a call wait for an entry, before those that need it are left for later. */
const lockMaxMs = 20
/** How many writes of one entry that waited are made in one call. */
const turnMax = 100

interface WaitingWrite {
  readonly write: KvWrite
  readonly resolve: (answer: KvAnswer) => void
  readonly reject: (error: unknown) => void
}

/**
 * Key-value writes of this process. A write waits if another open transaction has its entry. The other writes of the call are
 * answered meanwhile, and the answer of the one that waits is a promise. It waits without a connection (`lock-polls.ts`). Later
 * writes of the same entry wait behind it, so they keep their order and share its tries.
 */
export class KvWrites {
  readonly #db: Database
  readonly #polls: LockPolls
  readonly #waiting = new Map<string, WaitingWrite[]>()

  constructor(db: Database, polls: LockPolls) {
    this.#db = db
    this.#polls = polls
  }

  write(writes: readonly KvWrite[]): Promise<(KvAnswer | Promise<KvAnswer>)[]> {
    return orRefuseValues(writes, (some) => this.#writeNow(some), nameOf)
  }

  async #writeNow(writes: readonly KvWrite[]): Promise<(KvAnswer | Promise<KvAnswer>)[]> {
    const free = writes.filter(({ key }) => !this.#waiting.has(key))
    const answered = free.length > 0 ? await this.#send(free).catch(orNoAnswers) : []
    const answers = new Map(free.map((write, i) => [write, answered[i]]))
    return writes.map((write) => answers.get(write) ?? this.#writeLater(write))
  }

  /** Fails with a collision if all of them would have to wait. */
  #send(writes: readonly KvWrite[], groups: readonly number[] | null = null): Promise<(KvAnswer | null)[]> {
    const call = {
      text: 'select holdfast.kv_write_some($2::jsonb, $3, $1, $4, $5)::text',
      values: [JSON.stringify(writes), groups && list(groups), lockMaxMs, this.#db.now],
    }
    const read = (json: string | null | undefined): (KvAnswer | null)[] => JSON.parse(json ?? '[]')
    return this.#db.commitOnce(call, ([row]) => read(row?.[0]), read, { failFast: true })
  }

  #writeLater(write: KvWrite): Promise<KvAnswer> {
    const { promise, resolve, reject } = Promise.withResolvers<KvAnswer>()
    promise.catch(() => undefined) // it may fail before the caller has the answers of the call
    const waiting = this.#waiting.get(write.key) ?? []
    waiting.push({ write, resolve, reject })
    if (waiting.length > 1) return promise
    this.#waiting.set(write.key, waiting)
    void this.#writeWaiting(write.key, waiting)
    return promise
  }

  async #writeWaiting(key: string, waiting: WaitingWrite[]): Promise<void> {
    while (waiting.length > 0) {
      const some = waiting.slice(0, turnMax)
      try {
        const answers = await orRefuseValues(
          some.map(({ write }) => write),
          (part) =>
            this.#polls.until(() =>
              this.#send(
                part,
                part.map(() => 0),
              ),
            ),
          nameOf,
        )
        some.forEach(({ resolve }, i) => {
          resolve(answers[i] as KvAnswer)
        })
      } catch (error) {
        for (const { reject } of some) reject(error)
      }
      waiting.splice(0, some.length)
    }
    this.#waiting.delete(key)
  }
}

function nameOf({ key }: KvWrite): string {
  return `the write of key ${key}`
}

function orNoAnswers(error: unknown): [] {
  if (!isCollision(error)) throw error
  return []
}

/**
 * Makes writes in a transaction that is under way, for each set all of its writes or none. Answers for each set whether it was
 * left out, because another transaction has had one of its entries for so long. None of the writes may be conditional.
 */
export async function writeSomeKv(
  tx: PgTransaction,
  sets: readonly (readonly KvWrite[])[],
  waitMaxMs: number,
): Promise<boolean[]> {
  const groups = sets.flatMap((writes, i) => writes.map(() => i))
  if (groups.length === 0) return sets.map(() => false)
  const values = [JSON.stringify(sets.flat()), list(groups), waitMaxMs, tx.now]
  const [row] = await tx.query('select holdfast.kv_write_some($1::jsonb, $2, null, $3, $4)::text', values)
  const answers = JSON.parse(row?.[0] ?? '[]') as unknown[]
  return sets.map((_, i) => groups.includes(i) && answers[groups.indexOf(i)] === null)
}

/**
 * Makes writes in a transaction that is under way. Throws a Refusal if an entry does not have the version that its write names.
 */
export async function writeKv(tx: PgTransaction, writes: readonly KvWrite[]): Promise<void> {
  const values = [JSON.stringify(writes), tx.now]
  const [row] = await tx.query('select holdfast.kv_write($1::jsonb, null, $2)::text', values)
  if (!writes.some((write) => 'version' in write)) return
  const answers = JSON.parse(row?.[0] ?? '[]') as Exclude<KvAnswer, { refused: unknown }>[]
  for (const [i, write] of writes.entries()) {
    const { applied, version } = answers[i] as (typeof answers)[number]
    if ('version' in write && !applied) throw new Refusal(kvVersionMismatch(write, version))
  }
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
