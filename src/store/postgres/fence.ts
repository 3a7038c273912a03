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
  const claims: number[] = []
  const lanes: number[] = []
  const xids: number[] = []
  const firsts: number[] = []
  const lasts: number[] = []
  const of: number[] = []
  let last = -1
  for (const { fence } of names) {
    const { token, lane, xid, ord } = parseFence(fence)
    let claim = numbers.get(token)
    if (claim === undefined) {
      claim = numbers.size + 1
      numbers.set(token, claim)
    }
    of.push(claim)
    const goesOn = last >= 0 && claims[last] === claim && lanes[last] === lane && xids[last] === xid
    if (goesOn && ord > (lasts[last] as number)) lasts[last] = ord
    else if (goesOn && ord === lasts[last]) continue
    else {
      claims.push(claim)
      lanes.push(lane)
      xids.push(xid)
      firsts.push(ord)
      lasts.push(ord)
      last += 1
    }
  }
  const stretches = [list(claims), list(lanes), list(xids), list(firsts), list(lasts)]
  return [list([...numbers.keys()]), ...stretches, list(names.map(({ id }) => id)), list(of)]
}
