import type { ProgressAnswer, ProgressRequest } from '../store.ts'
import { list, optionalTexts } from './connection/columns.ts'
import type { Database } from './connection/database.ts'
import { withRetry } from './connection/failures.ts'
import { leaseColumns } from './fence.ts'

const keep = 'select holdfast.progress($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)'

export async function progress(db: Database, requests: readonly ProgressRequest[]): Promise<ProgressAnswer[]> {
  const { columns, order } = leaseColumns(requests)
  const ordered = order.map((i) => requests[i] as ProgressRequest)
  const values = list(ordered.map(({ progress }) => progress))
  const messages = optionalTexts(ordered.map(({ message }) => message))
  const rows = await withRetry(() => db.hot(keep, [...columns, values, messages, db.now]))
  const answers: ProgressAnswer[] = requests.map(() => 'lost')
  for (const [turn] of rows) answers[order[Number(turn) - 1] as number] = 'ok'
  return answers
}

const pruneMax = 10_000

/** Removes the progress of leases that have ended. */
export async function pruneProgress(db: Database): Promise<void> {
  for (;;) {
    const [row] = await db.transactLightly((tx) => tx.query('select holdfast.prune_progress($1)', [pruneMax]))
    if (Number(row?.[0]) < pruneMax) return
  }
}
