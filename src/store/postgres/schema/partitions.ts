// Partitions of finished jobs are made some widths ahead, and dropped once their time is over: see `functions/partitions.ts`.

import type { Row, Value } from '../connection/call.ts'
import { texts } from '../connection/columns.ts'
import type { Database } from '../connection/database.ts'

/** Makes partitions that are due, a few in a transaction. The last call makes none, and fails if one was refused. */
export async function makePartitions(db: Database): Promise<void> {
  while (((await ask(db, 'select holdfast.make_partitions(holdfast.now_ms(null))')) ?? 0) > 0);
}

/**
 * Drops partitions whose time is over, one in a transaction. The label rows of a partition's jobs are removed before, in steps.
 * The last call drops none, and fails if one was refused.
 */
export async function dropPartitions(db: Database, onDropped: (jobs: number) => void): Promise<void> {
  const forgotten = new Map<string, Forgotten>()
  const drop = 'select holdfast.drop_partition(holdfast.now_ms(null), $1::jsonb)'
  for (;;) {
    const jobs = await ask(db, drop, [JSON.stringify(Object.fromEntries(forgotten))])
    if (jobs !== null) onDropped(jobs)
    else if (!(await forgetLabels(db, forgotten))) return
  }
}

/** Jobs with labels in a partition, and the sum of their numbers as text: it may be larger than JavaScript counts. */
type Forgotten = readonly [jobs: number, sum: string]

/** Removes the label rows of the next partition's jobs; false: there is no such partition. */
async function forgetLabels(db: Database, forgotten: Map<string, Forgotten>): Promise<boolean> {
  const next = 'select * from holdfast.labelled_partition(holdfast.now_ms(null), $1)'
  const [found] = await db.transactLightly((tx) => tx.query(next, [texts([...forgotten.keys()])]))
  if (found?.[0] == null || found[1] == null) return false
  let jobs = 0
  let sum = 0n
  for (let page: number | null = 0; page !== null; ) {
    const values: readonly Value[] = [found[0], found[1], page]
    const step = 'select * from holdfast.forget_labels($1, $2, $3, holdfast.now_ms(null))'
    const [row]: readonly Row[] = await db.transactLightly((tx) => tx.query(step, values))
    jobs += Number(row?.[0] ?? 0)
    sum += BigInt(row?.[1] ?? 0)
    page = row?.[2] == null ? null : Number(row[2])
  }
  forgotten.set(`ended_${found[0]}_${found[1]}`, [jobs, String(sum)])
  return true
}

async function ask(db: Database, text: string, values: readonly Value[] = []): Promise<number | null> {
  const [row] = await db.transactLightly((tx) => tx.query(text, values))
  return row?.[0] == null ? null : Number(row[0])
}
