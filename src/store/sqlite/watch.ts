// Changes are recorded while a client watches. `holdfast_meta` has the time until which they are recorded, and a transaction that
// has changes reads it. SQLite has one writer at a time. So every transaction after the commit of `watch` sees that time, and
// numbers rise in the order of commits. A mark is the number of the last change that was read, and how many of its jobs.
//
// While no client watches, changes are not recorded. So a watch that begins again raises the lowest valid mark, as pruning does.
// Until a watch begins, no mark is valid.

import type { Refused } from '../../errors.ts'
import { bounds } from '../../job/bounds.ts'
import { changesGone, unknownCursor } from '../refusals.ts'
import type { Change, ChangedState, ChangesPage, ChangesQuery } from '../store.ts'
import type { SqliteTransaction } from './transaction.ts'

export interface ChangedJob {
  readonly queue: string
  readonly state: ChangedState
  readonly id: string
}

export function watch(tx: SqliteTransaction): string {
  const last = tx.nextNumber()
  if (!isWatched(tx)) tx.bare.run('update holdfast_meta set changes_low = ?', last)
  tx.bare.run('update holdfast_meta set watched_until = ?', tx.now + bounds.watchMs)
  return toMark(last, 0)
}

export function isWatched(tx: SqliteTransaction): boolean {
  const select = 'select 1 from holdfast_meta where watched_until > ?'
  return tx.bare.get(select, tx.now) !== undefined
}

/** Consecutive changes to the same state of the same queue are one row. The order is kept. */
export function writeChanges(tx: SqliteTransaction, changes: readonly ChangedJob[]): void {
  if (changes.length === 0) return
  const select = 'select told from holdfast_change order by no desc limit 1'
  let sum = tx.db.get<{ told: number }>(select)?.told ?? 0
  for (let from = 0; from < changes.length; ) {
    const { queue, state } = changes[from] as ChangedJob
    let to = from + 1
    while (changes[to]?.queue === queue && changes[to]?.state === state) to++
    sum += to - from
    const ids = JSON.stringify(changes.slice(from, to).map(({ id }) => id))
    const insert = 'insert into holdfast_change (no, at, queue, state, ids, told) values (?, ?, ?, ?, ?, ?)'
    tx.db.run(insert, tx.nextNumber(), tx.now, queue, state, ids, sum)
    from = to
  }
}

type ChangeTuple = readonly [no: number, at: number, queue: string, state: ChangedState, ids: string]

const rowsMax = 250

export function readChanges(tx: SqliteTransaction, { after, queue, states, ids }: ChangesQuery): ChangesPage | Refused {
  const mark = parseMark(after)
  const meta = tx.db.get<{ next: number; low: number }>('select next, changes_low as low from holdfast_meta')
  if (!mark || !meta || mark.no >= meta.next) return unknownCursor()
  const isGone = mark.no < meta.low || (mark.no === meta.low && mark.seen > 0)
  if (isGone || !isWatched(tx)) return changesGone()
  const rows = tx.db.eachTuple<ChangeTuple>(
    `select no, at, queue, state, ids from holdfast_change
      where no >= ?1 and (?2 is null or queue = ?2) and (?3 is null or state in (select value from json_each(?3)))
      order by no limit +?4`,
    mark.seen > 0 ? mark.no : mark.no + 1,
    queue,
    states && JSON.stringify(states),
    rowsMax,
  )
  const changes: Change[] = []
  let looked = 0
  let next: string | null = null // the mark with which the page is full
  for (const [no, at, changed, state, text] of rows) {
    const seen = no === mark.no ? mark.seen : 0
    const all = JSON.parse(text) as string[]
    const some = all.slice(seen, seen + bounds.changesPage - changes.length)
    some.forEach((id, i) => {
      changes.push({ id, queue: changed, state, at, mark: markAfter(no, seen + i + 1, all.length) })
    })
    looked++
    if (looked === rowsMax || changes.length === bounds.changesPage) {
      next = markAfter(no, seen + some.length, all.length)
      break
    }
  }
  const wanted = ids && new Set(ids)
  return {
    changes: wanted ? changes.filter(({ id }) => wanted.has(id)) : changes,
    next: next ?? toMark(Math.max(mark.no, lastNumber(tx)), 0),
    more: next !== null,
  }
}

function lastNumber(tx: SqliteTransaction): number {
  return tx.db.get<{ no: number }>('select no from holdfast_change order by no desc limit 1')?.no ?? 0
}

/** The mark after so many jobs of a change. */
function markAfter(no: number, seen: number, all: number): string {
  return toMark(no, seen < all ? seen : 0)
}

/** `seen` jobs of change `no` were read; 0: all of them. */
function toMark(no: number, seen: number): string {
  return `${no.toString(36)}.${seen.toString(36)}`
}

function parseMark(text: string): { readonly no: number; readonly seen: number } | undefined {
  const [, no = '', seen = ''] = /^([0-9a-z]{1,10})\.([0-9a-z]{1,6})$/.exec(text) ?? []
  return no === '' ? undefined : { no: Number.parseInt(no, 36), seen: Number.parseInt(seen, 36) }
}

const pruneMax = 1_000

interface Age {
  readonly no: number
  readonly at: number
  readonly told: number
}

/** Deletes the oldest changes, if their time is over or there are too many. */
export function pruneChanges(tx: SqliteTransaction): void {
  const newest = tx.db.get<{ told: number }>('select told from holdfast_change order by no desc limit 1')
  if (!newest) return
  let last: Age | undefined
  for (const row of tx.db.all<Age>('select no, at, told from holdfast_change order by no limit +?', pruneMax)) {
    if (row.at > tx.now - bounds.watchMs && row.told > newest.told - bounds.changesKept) break
    last = row
  }
  if (!last) return
  tx.db.run('delete from holdfast_change where no <= ?', last.no)
  tx.db.run('update holdfast_meta set changes_low = max(changes_low, ?)', last.no)
}
