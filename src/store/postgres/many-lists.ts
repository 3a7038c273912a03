// Many lists with few jobs, read by one statement: a store with 1,600 queues has a job or two in each list, and a statement for
// each of them took 306 ms a page. The jobs come list by list, in the order of the lists given and of each list.
//
// A place begins with the position of its list. The numbers after it ascend, so ended jobs, newest first, have negative ones.

import type { JobState } from '../../job/record.ts'
import { list as toList } from './connection/columns.ts'
import { heldFrom, type List, type Place, type Source } from './find.ts'
import { halves, joinPlace, joinProgress } from './read.ts'

/** A list, and after which job of it to begin. */
export interface ListPart extends List {
  readonly from: Place | null
}

const noLease = 'null::uuid as token, null::text as worker, null::bigint as started_at, null::bigint as expires_at'

/** The parts from the place on; `max` jobs in all. */
export function jobsOfLists(parts: readonly ListPart[], place: Place | null, max: number): Source {
  const [turn = 0, ...position] = place ?? []
  const left = parts.slice(turn).map((part, i) => {
    const { state } = part
    return beginning(i === 0 && place !== null ? { ...part, from: placeIn(state, position) } : part)
  })
  const column = (at: number) => toList(left.map(({ from }) => from[at] ?? 0))
  const [{ ended, group }] = parts as readonly [ListPart]
  const isGroup = group !== ''
  return {
    ...{ kind: 'both', places: 5 },
    values: [
      toList(left.map(({ queue }) => queue)),
      toList(left.map(({ state }) => state)),
      ...[0, 1, 2, 3].map(column),
      turn - 1,
      max,
      ended.since ?? Number.MIN_SAFE_INTEGER,
      isGroup ? group : null,
    ],
    text: (live, endedColumns = '') => `with lists as materialized (
        select * from unnest($1::int[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
          with ordinality u(queue, state, a, b, c, d, turn))
      (select ${live}, u.turn + $7::bigint as list_turn, j.p1, j.p2, j.p3, j.p4
         from lists u cross join lateral (
           ${listedLive}) j
         join holdfast.lane l on l.no = j.lane & ~1 join holdfast.queue q on q.no = l.queue
        cross join lateral (select j.token, j.worker, j.started_at, j.expires_at) h ${joinProgress})
       union all
      (select ${endedColumns}, u.turn + $7::bigint, -e.finished_at, -e.seq, 0, 0
         from holdfast.list_ended_of($1::int[], $2::text[], $3::bigint[], $4::bigint[], $9::bigint, $10::text, $8::int) e
         join lists u on u.queue = e.queue and u.state = e.state join holdfast.queue q on q.no = e.queue)
       order by list_turn, p1, p2, p3, p4 limit $8`,
  }
}

const [heldHigh, heldLow] = halves('k.ord')

/** Each branch is run for the lists of its state alone. */
const listedLive = `select k.*, h.token, h.worker, h.started_at, h.expires_at, h.seq as p1, 0::bigint as p2, 0::bigint as p3, 0::bigint as p4
             from holdfast.list_running(u.queue, u.a, $8) h ${joinPlace.replace(/\bj$/, 'k')}
            where u.state = 'running'
            union all
           select k.*, ${noLease}, r.priority, 1 - (k.lane & 1), k.ready_xid::text::bigint, k.ord
             from holdfast.list_ready(u.queue, least(u.a, 9)::int, least(u.b, 1)::int, greatest(u.c, 0)::text::xid8, u.d, $8) k
             join holdfast.lane r on r.no = k.lane & ~1
            where u.state = 'ready'
            union all
           select k.*, ${noLease}, k.run_at, k.seq, 0, 0 from holdfast.list_scheduled(u.queue, u.a, u.b, $8) k
            where u.state = 'scheduled'
            union all
           select k.*, ${noLease}, ${heldHigh}, ${heldLow}, 0, 0 from holdfast.list_held(u.queue, u.a << 32 | u.b, $8) k
            where u.state = 'held'`

const endStates: readonly JobState[] = ['dead', 'cancelled', 'done']

/** The place in the list alone, as a cursor has it. */
export function placeIn(state: JobState, [a = 0, b = 0, c = 0, d = 0]: Place): Place {
  if (state === 'ready') return [a, b, c, d]
  if (state === 'running') return [a]
  return endStates.includes(state) ? [-a, -b] : [a, b]
}

function beginning({ from, ...list }: ListPart): Omit<ListPart, 'from'> & { readonly from: Place } {
  if (from !== null) return { ...list, from }
  if (list.state === 'held') return { ...list, from: heldFrom(null) }
  const isEnded = endStates.includes(list.state)
  return { ...list, from: isEnded ? [list.ended.before ?? Number.MAX_SAFE_INTEGER, 0] : [-1, -1, -1, -1] }
}
