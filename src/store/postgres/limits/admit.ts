// Admits held jobs of limit keys. The protocol, and the proof that no held job is forgotten, are in `schema/functions/admit.ts`.

import { isHoldfastError } from '../../../errors.ts'
import { list, texts } from '../connection/columns.ts'
import type { Database } from '../connection/database.ts'
import { isForeign } from '../connection/failures.ts'

/** How many limit keys are locked in one transaction; a list has no more. */
const limitKeysMax = 200

/** How many statements run at a time for one call. Jobs of 1,000 keys were drained at 12k a second by one, at 14k by two. */
const admittersMax = 2

/** Limit keys by name (the number of the queue, a colon, the key), and lists of limit events by number. */
export interface LimitKeyRefs {
  readonly keyRefs?: readonly string[] | undefined
  readonly lists?: readonly number[] | undefined
}

export type LimitEventList = readonly [no: number, keyRefs: readonly string[]]

/** Admits as many jobs as there are free slots; answers how many of which queues. */
export async function admitLimitKeys(
  db: Database,
  { keyRefs = [], lists = [] }: LimitKeyRefs,
): Promise<Map<string, number>> {
  return admitInTurn(
    db,
    partsOf(keyRefs),
    lists.map((no) => ({ keyRefs: [], lists: [no] })),
  )
}

/** The ids of those jobs that wait for a slot no more. If the server is away now, none: they were held when they were stored. */
export async function noLongerHeld(db: Database, ids: readonly string[]): Promise<ReadonlySet<string>> {
  if (ids.length === 0) return new Set()
  try {
    const rows = await db.query(selectNotHeld, [list(ids)])
    return new Set(rows.map(([id]) => id as string))
  } catch (error) {
    if (!isForeign(error) && !isHoldfastError(error)) throw error
    return new Set()
  }
}

const selectNotHeld = `select u.id from unnest($1::uuid[]) u(id)
  where not exists (select from holdfast.job j where j.id = u.id and j.is_held)`

/** The same for events that were left over: many lists may have the same limit keys. */
export async function admitPending(
  db: Database,
  keyRefs: readonly string[],
  lists: readonly LimitEventList[],
): Promise<Map<string, number>> {
  return admitInTurn(db, partsOf(keyRefs), gathered(lists))
}

/**
 * Lists come first. The admission of a list takes all events of its limit keys. The admission of one limit key does not know
 * the jobs on a list. If it came first, it would admit jobs that came to the same key after those on the list.
 */
async function admitInTurn(
  db: Database,
  keyRefs: readonly Part[],
  lists: readonly Part[],
): Promise<Map<string, number>> {
  const admitted = await admitAll(db, lists)
  for (const [queue, jobs] of await admitAll(db, keyRefs)) admitted.set(queue, (admitted.get(queue) ?? 0) + jobs)
  return admitted
}

interface Part {
  readonly keyRefs: readonly string[]
  readonly lists: readonly number[]
}

async function admitAll(db: Database, parts: readonly Part[]): Promise<Map<string, number>> {
  const admitted = new Map<string, number>()
  const left = parts.values()
  const takeParts = async () => {
    for (const { keyRefs, lists } of left) {
      const values = [texts(keyRefs), list(lists), db.now]
      for (const [queue, jobs] of await db.once('select * from holdfast.admit($1, $2, $3)', values))
        admitted.set(queue as string, (admitted.get(queue as string) ?? 0) + Number(jobs))
    }
  }
  // If one fails, the other is awaited too: nothing goes on after the call was answered.
  const ended = await Promise.allSettled(Array.from({ length: Math.min(admittersMax, parts.length) }, takeParts))
  for (const each of ended) if (each.status === 'rejected') throw each.reason
  return admitted
}

function partsOf(keyRefs: readonly string[]): Part[] {
  const wanted = [...new Set(keyRefs)]
  const parts: Part[] = []
  for (let at = 0; at < wanted.length; at += limitKeysMax)
    parts.push({ keyRefs: wanted.slice(at, at + limitKeysMax), lists: [] })
  return parts
}

function gathered(lists: readonly LimitEventList[]): Part[] {
  const parts: { keyRefs: Set<string>; lists: number[] }[] = []
  const inOrder = lists.toSorted(([, a], [, b]) => ((a[0] ?? '') < (b[0] ?? '') ? -1 : 1))
  for (const [no, keyRefs] of inOrder) {
    const last = parts.at(-1)
    const union = last?.keyRefs.union(new Set(keyRefs))
    if (last && union && union.size <= limitKeysMax) {
      last.keyRefs = union
      last.lists.push(no)
    } else {
      parts.push({ keyRefs: new Set(keyRefs), lists: [no] })
    }
  }
  return parts.map((part) => ({ keyRefs: [], lists: part.lists }))
}
