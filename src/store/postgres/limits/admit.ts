// Gates. What they are, and why nobody who stands at one is forgotten, is in `schema/functions/admit.ts`.

import { list, texts } from '../connection/columns.ts'
import type { Database } from '../connection/database.ts'

/** As many as are locked in one transaction; a list has no more. */
const gatesMax = 200

/** At a time, for one call: jobs of 1,000 keys were drained at 12k a second by one, at 14k by two. */
const attendersMax = 2

/** Gates by name, and lists of knocks by number. */
export interface Gates {
  readonly gates?: readonly string[] | undefined
  readonly lists?: readonly number[] | undefined
}

export type KnockList = readonly [no: number, gates: readonly string[]]

/** Lets in as many as there is room for; answers how many of which queues. */
export async function attendGates(db: Database, { gates = [], lists = [] }: Gates): Promise<Map<string, number>> {
  return attendInTurn(
    db,
    partsOf(gates),
    lists.map((no) => ({ gates: [], lists: [no] })),
  )
}

/** The same for what was left: many lists may be about the same gates. */
export async function attendKnocked(
  db: Database,
  gates: readonly string[],
  lists: readonly KnockList[],
): Promise<Map<string, number>> {
  return attendInTurn(db, partsOf(gates), gathered(lists))
}

/**
 * Lists first: whoever attends one hears everybody at its gates; who attends a gate does not know who is on a list, and would
 * let in first who came to the same gate after them.
 */
async function attendInTurn(
  db: Database,
  gates: readonly Part[],
  lists: readonly Part[],
): Promise<Map<string, number>> {
  const admitted = await attendAll(db, lists)
  for (const [queue, jobs] of await attendAll(db, gates)) admitted.set(queue, (admitted.get(queue) ?? 0) + jobs)
  return admitted
}

interface Part {
  readonly gates: readonly string[]
  readonly lists: readonly number[]
}

async function attendAll(db: Database, parts: readonly Part[]): Promise<Map<string, number>> {
  const admitted = new Map<string, number>()
  const left = parts.values()
  const attend = async () => {
    for (const { gates, lists } of left) {
      const values = [texts(gates), list(lists), db.now]
      for (const [queue, jobs] of await db.once('select * from holdfast.attend($1, $2, $3)', values))
        admitted.set(queue as string, (admitted.get(queue as string) ?? 0) + Number(jobs))
    }
  }
  // Where one fails, the other is waited for: nothing goes on behind the back of who asked.
  const ended = await Promise.allSettled(Array.from({ length: Math.min(attendersMax, parts.length) }, attend))
  for (const each of ended) if (each.status === 'rejected') throw each.reason
  return admitted
}

function partsOf(gates: readonly string[]): Part[] {
  const wanted = [...new Set(gates)]
  const parts: Part[] = []
  for (let at = 0; at < wanted.length; at += gatesMax) parts.push({ gates: wanted.slice(at, at + gatesMax), lists: [] })
  return parts
}

function gathered(lists: readonly KnockList[]): Part[] {
  const parts: { gates: Set<string>; lists: number[] }[] = []
  const inOrder = lists.toSorted(([, a], [, b]) => ((a[0] ?? '') < (b[0] ?? '') ? -1 : 1))
  for (const [no, gates] of inOrder) {
    const last = parts.at(-1)
    const together = last?.gates.union(new Set(gates))
    if (last && together && together.size <= gatesMax) {
      last.gates = together
      last.lists.push(no)
    } else {
      parts.push({ gates: new Set(gates), lists: [no] })
    }
  }
  return parts.map((part) => ({ gates: [], lists: part.lists }))
}
