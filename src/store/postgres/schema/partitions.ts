// Partitions of finished jobs are made some widths ahead, and dropped once their time is over: see `functions/partitions.ts`.

import type { Database } from '../connection/database.ts'

/** Makes partitions that are due, a few in a transaction. The last call makes none, and fails if one was refused. */
export async function makePartitions(db: Database): Promise<void> {
  while (((await ask(db, 'select holdfast.make_partitions(holdfast.now_ms(null))')) ?? 0) > 0);
}

/** Drops partitions whose time is over, one in a transaction. The last call drops none, and fails if one was refused. */
export async function dropPartitions(db: Database, onDropped: (jobs: number) => void): Promise<void> {
  for (;;) {
    const jobs = await ask(db, 'select holdfast.drop_partition(holdfast.now_ms(null))')
    if (jobs === null) return
    onDropped(jobs)
  }
}

async function ask(db: Database, text: string): Promise<number | null> {
  const [row] = await db.transactLightly((tx) => tx.query(text, []))
  return row?.[0] == null ? null : Number(row[0])
}
