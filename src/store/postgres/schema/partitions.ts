// Partitions of finished jobs are made some widths ahead, and dropped once their time is over: see `functions/partitions.ts`.

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

/** Drops partitions whose time is over, one in a transaction; answers how many jobs were in them. */
export async function dropPartitions(db: Database): Promise<number> {
  for (let gone = 0; ; ) {
    const jobs = await ask(db, 'select holdfast.drop_partition(holdfast.now_ms(null))')
    if (jobs === null) return gone
    gone += jobs
  }
}

async function ask(db: Database, text: string): Promise<number | null> {
  const [row] = await db.transactLightly((tx) => tx.query(text, []))
  return row?.[0] == null ? null : Number(row[0])
}
