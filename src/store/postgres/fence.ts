// A fence as text. It has three parts:
//
// - the random token of the claim, which is what counts: the other parts without it are worth nothing;
// - the place of the leased job, so that a settlement finds it without a search;
// - the end of the job's id, so that a fence goes with one id only.

import type { LeaseRef } from '../store.ts'
import { list } from './connection/columns.ts'

/** Places of one claim in one lane. */
export interface Places {
  readonly token: string
  readonly lane: number
  readonly xids: readonly string[]
  readonly ords: readonly string[]
  readonly ids: readonly string[]
}

/** Most fences begin like the one before, and share that beginning: a string of few parts is cheap to make and to read. */
export function toFences({ token, lane, xids, ords, ids }: Places): string[] {
  let xid = ''
  let beginning = ''
  return ids.map((id, i) => {
    if (xids[i] !== xid) {
      xid = xids[i] as string
      beginning = `${token}.${lane}.${xid}.`
    }
    const end = `${ords[i]}.${id.slice(-idEnd)}`
    return `${beginning}${end}`
  })
}

export function tokenOf(fence: string): string {
  return fence.slice(0, 32)
}

const idEnd = 12
const pattern = /^([0-9a-f]{32})\.(\d{1,10})\.(\d{1,16})\.(\d{1,16})\.([0-9a-f]{12})$/

/** Leases as stretches of places; see `schema/functions/find-leased.ts`. A lease that is given twice is in two stretches. */
export interface LeaseColumns {
  /** Tokens; then of each stretch its claim, lane, xid, first ord, last ord and start. */
  readonly columns: string[]
  /** For each place in the stretches the index of its lease in the list that was given. */
  readonly order: readonly number[]
  /** Some lease was given twice. */
  readonly haveDuplicates: boolean
}

export function leaseColumns(names: readonly LeaseRef[]): LeaseColumns {
  const claims = new ClaimTokens()
  const leases = names.map((name, i) => claims.read(name, i))
  if (!isInOrder(leases)) leases.sort(compare)
  const stretches = stretchesOf(leases)
  return {
    columns: [
      list(claims.tokens),
      list(stretches.map(({ first }) => first.claim)),
      list(stretches.map(({ first }) => first.lane)),
      list(stretches.map(({ first }) => first.xid)),
      list(stretches.map(({ first }) => first.ord)),
      list(stretches.map(({ last }) => last.ord)),
      list(stretches.map(({ start }) => start)),
    ],
    order: leases.map(({ i }) => i),
    haveDuplicates: haveDuplicates(leases),
  }
}

interface PlacedLease {
  readonly i: number
  readonly claim: number
  readonly lane: number
  readonly xid: number
  readonly ord: number
}

/** Reads fences. Most begin with the token, lane and transaction of the one before, and are read without the pattern. */
class ClaimTokens {
  readonly tokens: string[] = []
  readonly #numbers = new Map<string, number>()
  #before = { beginning: '\n', claim: 0, lane: 0, xid: 0 }

  read({ id, fence }: LeaseRef, i: number): PlacedLease {
    const end = fence.length - idEnd - 1
    if (fence.startsWith(this.#before.beginning) && fence.endsWith(id.slice(-idEnd)) && fence[end] === '.') {
      const ord = digits(fence, this.#before.beginning.length, end)
      if (ord >= 0) return { i, claim: this.#before.claim, lane: this.#before.lane, xid: this.#before.xid, ord }
    }
    const parts = pattern.exec(fence)
    const [lane, xid, ord] = [Number(parts?.[2]), Number(parts?.[3]), Number(parts?.[4])]
    const fits = lane <= 0x7fffffff && Number.isSafeInteger(xid) && Number.isSafeInteger(ord)
    if (!parts || !fits || !id.endsWith(parts[5] as string))
      return { ...nowhere, i, claim: this.#number('0'.repeat(32)) }
    const claim = this.#number(parts[1] as string)
    this.#before = { beginning: `${parts[1]}.${parts[2]}.${parts[3]}.`, claim, lane, xid }
    return { i, claim, lane, xid, ord }
  }

  #number(token: string): number {
    const known = this.#numbers.get(token)
    if (known !== undefined) return known
    this.tokens.push(token)
    this.#numbers.set(token, this.tokens.length)
    return this.tokens.length
  }
}

const nowhere = { lane: 0, xid: 0, ord: 0 }

/** The number that these characters write, or -1. */
function digits(text: string, from: number, to: number): number {
  if (to <= from || to - from > 15) return -1
  let number = 0
  for (let at = from; at < to; at++) {
    const digit = text.charCodeAt(at) - 48
    if (digit < 0 || digit > 9) return -1
    number = number * 10 + digit
  }
  return number
}

function isInOrder(leases: readonly PlacedLease[]): boolean {
  for (let i = 1; i < leases.length; i++)
    if (compare(leases[i - 1] as PlacedLease, leases[i] as PlacedLease) > 0) return false
  return true
}

/** For leases in order. Two that have no place count as duplicates. */
function haveDuplicates(leases: readonly PlacedLease[]): boolean {
  for (let i = 1; i < leases.length; i++)
    if (compare(leases[i - 1] as PlacedLease, leases[i] as PlacedLease) === 0) return true
  return false
}

function compare(a: PlacedLease, b: PlacedLease): number {
  return a.claim - b.claim || a.lane - b.lane || a.xid - b.xid || a.ord - b.ord
}

interface Stretch {
  readonly first: PlacedLease
  readonly start: number
  last: PlacedLease
}

function stretchesOf(leases: readonly PlacedLease[]): Stretch[] {
  const stretches: Stretch[] = []
  let stretch: Stretch | null = null
  let start = 0
  for (const lease of leases) {
    start++
    if (stretch && continues(stretch.last, lease)) stretch.last = lease
    else {
      stretch = { first: lease, last: lease, start }
      stretches.push(stretch)
    }
  }
  return stretches
}

function continues(last: PlacedLease, lease: PlacedLease): boolean {
  return lease.ord === last.ord + 1 && lease.xid === last.xid && lease.lane === last.lane && lease.claim === last.claim
}
