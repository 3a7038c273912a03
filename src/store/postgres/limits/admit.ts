// Admits held jobs of limit keys. The protocol, and the proof that no held job is forgotten, are in `schema/functions/admit.ts`.

import { type HoldfastError, isHoldfastError } from '../../../errors.ts'
import type { Row } from '../connection/call.ts'
import { list, texts } from '../connection/columns.ts'
import { isDataError } from '../connection/data-error.ts'
import type { Database } from '../connection/database.ts'
import { isForeign, withRetry } from '../connection/failures.ts'

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

/**
 * The same for events that were left over: many lists may have the same limit keys. If the database refuses a row, the keys are
 * divided until the refused one is alone. Its events stay.
 */
export async function admitPending(
  db: Database,
  keyRefs: readonly string[],
  lists: readonly LimitEventList[],
  onRefused: (keyRef: string, error: HoldfastError) => void,
): Promise<Map<string, number>> {
  const sendOrDivide = async (part: Part): Promise<Row[]> => {
    if (part.keyRefs.length + part.lists.length === 0) return []
    try {
      return await withRetry(() => send(db, part))
    } catch (error) {
      if (!isDataError(error)) throw error
      const [keyRef] = part.keyRefs
      if (keyRef !== undefined && part.keyRefs.length === 1) {
        onRefused(keyRef, error)
        return []
      }
    }
    const rows: Row[] = []
    for (const half of await divided(db, part)) rows.push(...(await sendOrDivide(half)))
    return rows
  }
  return admitInTurn(db, partsOf(keyRefs), gathered(lists), sendOrDivide)
}

/** A part has limit keys or lists. A single list becomes events of its keys, in one statement. */
async function divided(db: Database, { keyRefs, lists }: Part): Promise<Part[]> {
  if (lists.length === 1) {
    const rows = await db.query(splitList, [lists[0] as number])
    return partsOf(rows.map(([keyRef]) => keyRef as string))
  }
  const halvesOf = <T>(all: readonly T[]) => [all.slice(0, all.length >> 1), all.slice(all.length >> 1)]
  if (lists.length > 1) return halvesOf(lists).map((half) => ({ keyRefs: [], lists: half }))
  return halvesOf(keyRefs).map((half) => ({ keyRefs: half, lists: [] }))
}

const splitList = `with list as (
    delete from holdfast.limit_event_list where no = $1 returning limit_keys, gone, ords
  )
  insert into holdfast.limit_event (limit_key, xid, gone, ord)
  select u.limit_key, pg_current_xact_id(), coalesce(u.gone, 0), u.ord
    from list l cross join lateral unnest(l.limit_keys, l.gone, l.ords) u(limit_key, gone, ord)
  returning limit_key`

function send(db: Database, { keyRefs, lists }: Part): Promise<Row[]> {
  return db.once('select * from holdfast.admit($1, $2, $3)', [texts(keyRefs), list(lists), db.now])
}

/**
 * Lists come first. The admission of a list takes all events of its limit keys. The admission of one limit key does not know
 * the jobs on a list. If it came first, it would admit jobs that came to the same key after those on the list.
 */
async function admitInTurn(
  db: Database,
  keyRefs: readonly Part[],
  lists: readonly Part[],
  sendPart = (part: Part) => send(db, part),
): Promise<Map<string, number>> {
  const admitted = await admitAll(lists, sendPart)
  for (const [queue, jobs] of await admitAll(keyRefs, sendPart)) admitted.set(queue, (admitted.get(queue) ?? 0) + jobs)
  return admitted
}

interface Part {
  readonly keyRefs: readonly string[]
  readonly lists: readonly number[]
}

async function admitAll(
  parts: readonly Part[],
  sendPart: (part: Part) => Promise<Row[]>,
): Promise<Map<string, number>> {
  const admitted = new Map<string, number>()
  const left = parts.values()
  const takeParts = async () => {
    for (const part of left) {
      for (const [queue, jobs] of await sendPart(part))
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
