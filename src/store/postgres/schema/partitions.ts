// Partitions of finished jobs are made some widths ahead, and dropped once their time is over: see `functions/partitions.ts`.

import type { Row, Value } from '../connection/call.ts'
import { texts } from '../connection/columns.ts'
import type { Database } from '../connection/database.ts'

/** Makes partitions that are due, a few in a transaction. The last call makes none, and fails if one was refused. */
export async function makePartitions(db: Database): Promise<void> {
  while (((await ask(db, 'select holdfast.make_partitions(holdfast.now_ms(null))')) ?? 0) > 0);
}

/**
 * Drops partitions whose time is over, one in a transaction. Labels and journals of its jobs are removed before, in steps.
 * The last call drops none, and fails if one was refused.
 */
export async function dropPartitions(db: Database, onDropped: (jobs: number) => void): Promise<void> {
  const cleared = new Map<string, Cleared>()
  const drop = 'select holdfast.drop_partition(holdfast.now_ms(null), $1::jsonb)'
  for (;;) {
    const jobs = await ask(db, drop, [JSON.stringify(Object.fromEntries(cleared))])
    if (jobs !== null) onDropped(jobs)
    else if (!(await clearNext(db, cleared))) return
  }
}

/** Jobs with labels or journals in a partition, and the sum of their numbers as text: it may be larger than JavaScript counts. */
type Cleared = readonly [jobs: number, sum: string]

/** Removes labels and journals of the next partition's jobs; false: there is no such partition. */
async function clearNext(db: Database, cleared: Map<string, Cleared>): Promise<boolean> {
  const next = 'select * from holdfast.partition_to_clear(holdfast.now_ms(null), $1)'
  const [found] = await db.transactLightly((tx) => tx.query(next, [texts([...cleared.keys()])]))
  if (found?.[0] == null || found[1] == null) return false
  let jobs = 0
  let sum = 0n
  for (let page: number | null = 0; page !== null; ) {
    const values: readonly Value[] = [found[0], found[1], page]
    const step = 'select * from holdfast.clear_partition($1, $2, $3, holdfast.now_ms(null))'
    const [row]: readonly Row[] = await db.transactLightly((tx) => tx.query(step, values))
    jobs += Number(row?.[0] ?? 0)
    sum += BigInt(row?.[1] ?? 0)
    page = row?.[2] == null ? null : Number(row[2])
  }
  cleared.set(`ended_${found[0]}_${found[1]}`, [jobs, String(sum)])
  return true
}

async function ask(db: Database, text: string, values: readonly Value[] = []): Promise<number | null> {
  const [row] = await db.transactLightly((tx) => tx.query(text, values))
  return row?.[0] == null ? null : Number(row[0])
}
