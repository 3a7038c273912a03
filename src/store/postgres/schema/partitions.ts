// Partitions of finished jobs are made some widths ahead, and dropped once their time is over: see `functions/partitions.ts`.

import type { Row, Value } from '../connection/call.ts'
import { texts } from '../connection/columns.ts'
import type { Database } from '../connection/database.ts'
import { partitionsMax } from './functions/partitions.ts'

/** Makes and drops partitions that are due; answers how many jobs were dropped. */
export async function keepPartitions(db: Database): Promise<number> {
  await makePartitions(db)
  return dropPartitions(db)
}

/** Makes partitions that are due, a few in a transaction. */
export async function makePartitions(db: Database): Promise<void> {
  while ((await ask(db, 'select holdfast.make_partitions(holdfast.now_ms(null))')) === partitionsMax);
}

/**
 * Drops partitions whose time is over, one in a transaction; answers how many jobs were in them. The label rows of a partition's
 * jobs are removed before, in steps.
 */
export async function dropPartitions(db: Database): Promise<number> {
  const forgotten = new Map<string, readonly [jobs: number, sum: number]>()
  const drop = 'select holdfast.drop_partition(holdfast.now_ms(null), $1::jsonb)'
  for (let gone = 0; ; ) {
    const jobs = await ask(db, drop, [JSON.stringify(Object.fromEntries(forgotten))])
    if (jobs !== null) gone += jobs
    else if (!(await forgetLabels(db, forgotten))) return gone
  }
}

/** Removes the label rows of the next partition's jobs; false: there is no such partition. */
async function forgetLabels(db: Database, forgotten: Map<string, readonly [number, number]>): Promise<boolean> {
  const next = 'select * from holdfast.labelled_partition(holdfast.now_ms(null), $1)'
  const [found] = await db.transactLightly((tx) => tx.query(next, [texts([...forgotten.keys()])]))
  if (found?.[0] == null || found[1] == null) return false
  let [jobs, sum] = [0, 0]
  for (let page: number | null = 0; page !== null; ) {
    const values: readonly Value[] = [found[0], found[1], page]
    const step = 'select * from holdfast.forget_labels($1, $2, $3, holdfast.now_ms(null))'
    const [row]: readonly Row[] = await db.transactLightly((tx) => tx.query(step, values))
    jobs += Number(row?.[0] ?? 0)
    sum += Number(row?.[1] ?? 0)
    page = row?.[2] == null ? null : Number(row[2])
  }
  forgotten.set(`ended_${found[0]}_${found[1]}`, [jobs, sum])
  return true
}

async function ask(db: Database, text: string, values: readonly Value[] = []): Promise<number | null> {
  const [row] = await db.transactLightly((tx) => tx.query(text, values))
  return row?.[0] == null ? null : Number(row[0])
}
