// Wakes jobs to which messages were sent. The protocol, and the proof that no message is missed, are in
// `schema/functions/deliver.ts`.

import type { AwaitedKey } from '../../job/journal.ts'
import { list, texts } from './connection/columns.ts'
import { withRetry } from './connection/failures.ts'
import { type MadeFirst, type MadeFirstJson, toMadeFirst } from './ends.ts'
import type { StoreContext } from './enqueue.ts'

/** Jobs and keys to which messages were sent. */
export interface Addressees {
  readonly ids: readonly string[]
  readonly keys?: readonly AwaitedKey[]
}

export interface Delivered extends MadeFirst {
  /** Jobs whose rows another transaction has locked. Their messages are delivered later. */
  readonly left: number
}

/** Jobs and keys that one statement takes. */
const partMax = 500

/** Delivers what has been committed. Announces the jobs that are ready, and admits those that are held. */
export async function deliver(context: StoreContext, { ids, keys = [] }: Addressees): Promise<Delivered> {
  const parts: Delivered[] = []
  for (let at = 0; at < Math.max(ids.length, keys.length); at += partMax)
    parts.push(await deliverPart(context, ids.slice(at, at + partMax), keys.slice(at, at + partMax)))
  const ready = new Map<string, number>()
  for (const part of parts) for (const [queue, jobs] of part.ready) ready.set(queue, (ready.get(queue) ?? 0) + jobs)
  const keyRefs = [...new Set(parts.flatMap((part) => part.keyRefs))]
  context.announce(ready)
  if (keyRefs.length > 0) await context.afterCommit({ keyRefs })
  const sum = (count: 'jobs' | 'left') => parts.reduce((total, part) => total + part[count], 0)
  return { ready, keyRefs, jobs: sum('jobs'), left: sum('left') }
}

async function deliverPart(
  { db }: StoreContext,
  ids: readonly string[],
  keys: readonly AwaitedKey[],
): Promise<Delivered> {
  const named = [texts(keys.map(({ key }) => key)), texts(keys.map(({ name }) => name))]
  const rows = await withRetry(() => db.hot('select holdfast.deliver($1, $2, $3, $4)', [list(ids), ...named, db.now]))
  const json = JSON.parse(rows[0]?.[0] ?? '{}') as MadeFirstJson & { readonly left?: number }
  return { ...toMadeFirst(json), left: json.left ?? 0 }
}
