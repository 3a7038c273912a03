// Watch. What is recorded and how it is found is in `schema/functions/watch.ts`.
//
// A mark is a text with these parts:
// - the era;
// - the window: the snapshot after which it begins, a number for that snapshot, and one for snapshots taken later (0: none);
// - if a page ended inside the window: the snapshot with which the window ends, the last row seen, and how many jobs of that
//   row were seen (0: all).

import { setTimeout as sleep } from 'node:timers/promises'
import { HoldfastError, toError } from '../../errors.ts'
import { bounds } from '../../job/bounds.ts'
import { changesGone, unknownCursor } from '../refusals.ts'
import type { Change, ChangedState, ChangesPage, ChangesQuery } from '../store.ts'
import type { Row, Value } from './connection/call.ts'
import { list, parseList, texts } from './connection/columns.ts'
import type { Database } from './connection/database.ts'

/** How long a new watch waits for transactions that began before it was switched on. */
const exactMaxMs = 2_000
const lookMs = 20
const rowsMax = 250

export async function watch(db: Database): Promise<string> {
  await db.query('select holdfast.open_era($1)', [db.now])
  await db.query('select holdfast.watch($1, $2)', [bounds.watchMs, db.now])
  const [number] = await db.query('select holdfast.watch_number()', [])
  for (const began = performance.now(); ; await sleep(lookMs)) {
    const [mark] = await db.query('select * from holdfast.watch_mark()', [])
    const [era, from, isExact] = mark as Row
    const isLate = performance.now() - began > exactMaxMs
    if (isExact === 't' || isLate) return toMark({ era, from, fromNo: number?.[0], ahead: '0' } as Window, null)
  }
}

interface Window {
  readonly era: string
  readonly from: string
  readonly fromNo: string
  readonly ahead: string
}

/** A position inside a window: the snapshot with which the window ends, and what of it was seen. */
interface Inside extends Seen {
  readonly until: string
}

interface Seen {
  readonly no: number
  readonly seen: number
}

export async function readChanges(db: Database, { after, queue, states, ids }: ChangesQuery): Promise<ChangesPage> {
  const mark = parseMark(after)
  if (!mark) throw toError(unknownCursor())
  const { window, inside } = mark
  const rows = await select(db, [
    ...[window.era, window.from, window.fromNo],
    ...[inside?.until ?? null, window.ahead, inside ? lastWholeRow(inside) : 0],
    ...[queue, states && texts(states), ids && list(ids), rowsMax, db.now],
    ...[inside?.seen ?? 0, bounds.changesPage, bounds.pageBytes],
  ])
  const [head, ...recorded] = rows
  const [until, untilNo, ahead] = head as readonly [string, string, string | null]
  const jobsMax = head?.[8]
  const wanted = ids && new Set(ids)
  const markAt = (at: Seen) => toMark(window, { until, ...at })
  const changes = recorded.flatMap((row) => toChanges(row, seenOf(row, inside), markAt))
  const last = changes.at(-1)?.mark
  const isFull = recorded.length === rowsMax || changes.length >= Number(jobsMax)
  const next =
    isFull && last ? last : toMark({ era: window.era, from: until, fromNo: untilNo, ahead: ahead ?? '0' }, null)
  return {
    changes: wanted ? changes.filter(({ id }) => wanted.has(id)) : changes,
    next,
    more: isFull || inside !== null, // after this window comes the next
  }
}

async function select(db: Database, values: readonly Value[]): Promise<Row[]> {
  try {
    return await db.query(
      'select * from holdfast.changes($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)',
      values,
    )
  } catch (error) {
    const code = (error as { code?: unknown }).code
    if (code === 'HF005') throw toError(changesGone())
    if (error instanceof HoldfastError && String(error.facts['code']).startsWith('22')) throw toError(unknownCursor())
    throw error
  }
}

/** How many jobs of this row were seen before. */
function seenOf(row: Row, inside: Inside | null): number {
  return Number(row[3]) === inside?.no ? inside.seen : 0
}

/** A row has the ids of the jobs that this page may show, and how many jobs the change has in all. */
function toChanges(row: Row, seen: number, markAt: (at: Seen) => string): Change[] {
  const [, , , no, at, queue, state, ids, jobs] = row as string[]
  return parseList(ids as string).map((id, i) => {
    const count = seen + i + 1
    return {
      id,
      queue: queue as string,
      state: state as ChangedState,
      at: Number(at),
      mark: markAt({ no: Number(no), seen: count < Number(jobs) ? count : 0 }),
    }
  })
}

function lastWholeRow({ no, seen }: Seen): number {
  return seen > 0 ? no - 1 : no
}

function toMark({ era, from, fromNo, ahead }: Window, inside: Inside | null): string {
  const window = [era, from, fromNo, ahead]
  return (inside ? [...window, inside.until, inside.no, inside.seen] : window).join('.')
}

const snapshot = String.raw`\d{1,20}:\d{1,20}:[\d,]*`
const number = String.raw`\d{1,15}`
const form = new RegExp(
  `^([0-9a-f-]{36})\\.(${snapshot})\\.(${number})\\.(${number})(?:\\.(${snapshot})\\.(${number})\\.(\\d{1,9}))?$`,
)

function parseMark(text: string): { readonly window: Window; readonly inside: Inside | null } | null {
  const [, era, from, fromNo, ahead, until, no, seen] = form.exec(text) ?? []
  if (era === undefined) return null
  return {
    window: { era, from, fromNo, ahead } as Window,
    inside: until === undefined ? null : { until, no: Number(no), seen: Number(seen) },
  }
}
