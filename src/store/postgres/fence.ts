// A fence as text: the claim's random token, and the place of the job that it holds, so that a settlement finds it without
// a search. The token is what counts; a place alone opens nothing.

import type { HoldName } from '../store.ts'
import { list } from './columns.ts'

export interface Place {
  readonly lane: number
  readonly xid: number
  readonly ord: number
}

export function toFence(token: string, { lane, xid, ord }: Place): string {
  return `${token}.${lane}.${xid}.${ord}`
}

export function tokenOf(fence: string): string {
  return fence.slice(0, 32)
}

const pattern = /^([0-9a-f]{32})\.(\d{1,10})\.(\d{1,16})\.(\d{1,16})$/
const nowhere = { token: '0'.repeat(32), lane: 0, xid: 0, ord: 0 }

function parseFence(fence: string): Place & { readonly token: string } {
  const parts = pattern.exec(fence)
  if (!parts) return nowhere
  const [lane, xid, ord] = [Number(parts[2]), Number(parts[3]), Number(parts[4])]
  if (lane > 0x7fffffff || !Number.isSafeInteger(xid) || !Number.isSafeInteger(ord)) return nowhere
  return { token: parts[1] as string, lane, xid, ord }
}

/**
 * Holds as columns: the tokens once each; then the stretches of a lane in which the jobs lie, each with the number of its
 * token (from 1), its transaction, first and last place; and for every hold the id of its job and the number of its token,
 * which say what in a stretch is meant. Jobs that were enqueued together and are settled together make one stretch: the
 * server reads a range instead of looking each of them up.
 */
export function holdColumns(names: readonly HoldName[]): string[] {
  const numbers = new Map<string, number>()
  const holds = names.map(({ fence }) => {
    const { token, ...place } = parseFence(fence)
    const known = numbers.get(token)
    if (known === undefined) numbers.set(token, numbers.size + 1)
    return { claim: known ?? numbers.size, ...place }
  })
  const stretches = stretchesOf(holds)
  return [
    list([...numbers.keys()]),
    list(stretches.map(({ claim }) => claim)),
    list(stretches.map(({ lane }) => lane)),
    list(stretches.map(({ xid }) => xid)),
    list(stretches.map(({ ord }) => ord)),
    list(stretches.map(({ last }) => last)),
    list(names.map(({ id }) => id)),
    list(holds.map(({ claim }) => claim)),
  ]
}

interface Hold extends Place {
  readonly claim: number
}

/** No two of them overlap: a job that lay in both would be found twice. */
function stretchesOf(holds: readonly Hold[]): (Hold & { last: number })[] {
  const stretches: (Hold & { last: number })[] = []
  const inOrder = holds.toSorted((a, b) => a.claim - b.claim || a.lane - b.lane || a.xid - b.xid || a.ord - b.ord)
  for (const hold of inOrder) {
    const before = stretches.at(-1)
    if (before && before.claim === hold.claim && before.lane === hold.lane && before.xid === hold.xid) {
      before.last = hold.ord
    } else stretches.push({ ...hold, last: hold.ord })
  }
  return stretches
}
