// A fence as text: the claim's random token, and the place of the job that it holds, so that a settlement finds it without
// a search. The token is what counts; a place alone opens nothing.

import type { HoldName } from '../store.ts'
import { bigints, ints, uuids } from './columns.ts'

export interface Place {
  readonly lane: number
  readonly xid: number
  readonly ord: number
}

export function toFence(token: string, { lane, xid, ord }: Place): string {
  return `${token}.${lane.toString(36)}.${xid.toString(36)}.${ord.toString(36)}`
}

const pattern = /^([0-9a-f]{32})\.([0-9a-z]{1,6})\.([0-9a-z]{1,10})\.([0-9a-z]{1,10})$/
const nowhere = { token: '0'.repeat(32), lane: 0, xid: 0, ord: 0 }

export function parseFence(fence: string): Place & { readonly token: string } {
  const parts = pattern.exec(fence)
  if (!parts) return nowhere
  const [lane, xid, ord] = parts.slice(2).map((part) => Number.parseInt(part, 36)) as [number, number, number]
  if (lane > 0x7fffffff || !Number.isSafeInteger(xid) || !Number.isSafeInteger(ord)) return nowhere
  return { token: parts[1] as string, lane, xid, ord }
}

/** Holds as columns: the tokens once each, then for every hold the number of its token (from 1) and its place. */
export function holdColumns(names: readonly HoldName[]): Buffer[] {
  const numbers = new Map<string, number>()
  const holds = names.map(({ fence }) => parseFence(fence))
  const claims = holds.map(({ token }) => {
    const known = numbers.get(token)
    if (known !== undefined) return known
    numbers.set(token, numbers.size + 1)
    return numbers.size
  })
  return [
    uuids([...numbers.keys()]),
    ints(claims),
    ints(holds.map(({ lane }) => lane)),
    bigints(
      holds.map(({ xid }) => xid),
      'xid8',
    ),
    bigints(holds.map(({ ord }) => ord)),
  ]
}
