// Partitions of finished jobs are made some widths ahead, and dropped once their time is over: see `functions/partitions.ts`.

import type { Database } from '../connection/database.ts'
import { partitionsMax } from './functions/partitions.ts'

/** Makes and drops partitions that are due, a few in a transaction; answers how many jobs were dropped. */
export async function keepPartitions(db: Database): Promise<number> {
  while ((await ask(db, 'select holdfast.make_partitions(holdfast.now_ms(null))')) === partitionsMax);
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
