// After a key limit was lowered, ready jobs beyond it are held again. How, and why no claim exceeds the limit meanwhile, is in
// `schema/functions/lower-limits.ts`.

import { list } from '../connection/columns.ts'
import { awaitClaims } from '../define.ts'
import type { StoreContext } from '../enqueue.ts'

const pageMax = 1_000

/** Behind every place of a lane. */
const lastXid = '18446744073709551615'
const lastOrd = '9223372036854775807'

/** Answers false if jobs are left that another transaction has locked. With `waits`, it waits for those, and answers true. */
export async function lowerLimits(
  context: StoreContext,
  queue: string,
  { waits }: { readonly waits: boolean },
): Promise<boolean> {
  const { db } = context
  for (;;) {
    const [row] = await db.query('select * from holdfast.await_admissions($1)', [queue])
    const [no, lowering] = [row?.[0] ?? null, row?.[1] ?? null]
    if (no === null || lowering === null) return true
    await awaitClaims(db, queue)
    const busy = await returnSurplus(context, Number(no))
    if (busy === null) {
      await db.query('update holdfast.queue set lowering = null where no = $1 and lowering = $2', [no, lowering])
      context.announce(new Map([[queue, 1]])) // claims that found nothing meanwhile try again
    } else {
      if (!waits) return false
      await db.query('select from holdfast.job where id = $1 for update', [busy])
    }
  }
}

/** Null, or the id of a job beyond its limit that another transaction has locked. */
async function returnSurplus(context: StoreContext, no: number): Promise<string | null> {
  const { db } = context
  const rows = await db.query('select * from holdfast.surplus($1, $2)', [no, db.now])
  const surplus = new Map(rows.map(([limitKey, jobs]) => [limitKey as string, Number(jobs)]))
  const busy = new Map<string, string>() // by limit key
  const lanes = surplus.size === 0 ? [] : await db.query(selectLanes, [no])
  for (const [lane] of lanes) {
    for await (const page of pagesOf(context, Number(lane))) {
      let left = page
      for (let beyond = chosen(left, surplus); beyond.length > 0; beyond = chosen(left, surplus)) {
        for (const [id, limitKey] of await returnJobs(context, Number(lane), beyond)) {
          surplus.set(limitKey, (surplus.get(limitKey) ?? 0) + 1) // an earlier job may be held instead
          busy.set(limitKey, id)
        }
        const tried = new Set(beyond)
        left = left.filter((job) => !tried.has(job))
      }
    }
  }
  return [...busy].find(([limitKey]) => (surplus.get(limitKey) ?? 0) > 0)?.[1] ?? null
}

/** The lane that is claimed last comes first. Items of batches are held before other jobs of their key, as on SQLite. */
const selectLanes = `select l.no + f.front from holdfast.lane l, (values (0), (1)) f(front)
  where l.queue = $1 order by l.batch desc, l.priority desc, f.front`

type ReadyJob = readonly [id: string, limitKey: string]

async function* pagesOf({ db }: StoreContext, lane: number): AsyncGenerator<readonly ReadyJob[]> {
  let [xid, ord]: readonly (string | null)[] = [lastXid, lastOrd]
  while (xid != null) {
    const text = 'select jobs::text, xid::text, ord from holdfast.ready_page($1, $2::text::xid8, $3, $4)'
    const [row] = await db.query(text, [lane, xid, ord ?? null, pageMax])
    yield JSON.parse(row?.[0] ?? '[]') as ReadyJob[]
    xid = row?.[1] ?? null
    ord = row?.[2] ?? null
  }
}

/** The first jobs of each key, as many as are beyond its limit. They are subtracted from `surplus`. */
function chosen(jobs: readonly ReadyJob[], surplus: Map<string, number>): readonly ReadyJob[] {
  return jobs.filter(([, limitKey]) => {
    const left = surplus.get(limitKey) ?? 0
    if (left > 0) surplus.set(limitKey, left - 1)
    return left > 0
  })
}

/** Answers the jobs that another transaction has locked. */
async function returnJobs(context: StoreContext, lane: number, jobs: readonly ReadyJob[]): Promise<ReadyJob[]> {
  const { db } = context
  const text = 'select limit_keys::text, batch, busy::text from holdfast.return_surplus($1, $2, $3)'
  const [row] = await db.query(text, [lane, list(jobs.map(([id]) => id)), db.now])
  const batch = Number(row?.[1] ?? 0)
  await context.afterCommit({ keyRefs: JSON.parse(row?.[0] ?? '[]'), batches: batch > 0 ? [batch] : [] })
  const busy = new Set(JSON.parse(row?.[2] ?? '[]') as string[])
  return jobs.filter(([id]) => busy.has(id))
}
