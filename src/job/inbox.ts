// An offer of a job to an inbox, as it is stored in the key-value store under `holdfast.inbox.<inbox>/<id of the job>`. The name
// of an inbox contains no slash, so the prefix of an inbox is never the beginning of another's.
//
// LIFE OF AN OFFER. It is written in the settlement that snoozes the job, and expires when the snooze ends. If the job stops
// waiting before that (it is accepted, woken, cancelled, deleted, replaced), the same transaction deletes the entry: it has the
// job's data, and no consumer could accept it. The key is known from the history: the last attempt names the inbox. So a job
// without an offer costs nothing.

import { parseJson } from './json.ts'
import { isJobId, isQueueName } from './names.ts'
import { decodePast } from './stored.ts'

/** Every key of an offer begins so. */
export const inboxesPrefix = 'holdfast.inbox.'

export interface Offered {
  readonly queue: string
  readonly batch: string | null
  readonly attempt: number
  readonly value: unknown
}

export function inboxPrefix(inbox: string): string {
  return `${inboxesPrefix}${inbox}/`
}

export function inboxKey(inbox: string, id: string): string {
  return `${inboxPrefix(inbox)}${id}`
}

/** The inbox of an entry; null: the key is not that of an offer. */
export function inboxOf(key: string | undefined): string | null {
  if (!key?.startsWith(inboxesPrefix)) return null
  const end = key.indexOf('/', inboxesPrefix.length)
  return end === -1 ? null : key.slice(inboxesPrefix.length, end)
}

/** The key of the offer that a waiting job has made; null: it has made none. `past` is the stored text of its attempts. */
export function offerKeyOf(id: string, past: string | null): string | null {
  if (!past?.includes('"inbox":')) return null // no other history is decoded
  const inbox = decodePast(past).at(-1)?.inbox
  return inbox === undefined ? null : inboxKey(inbox, id)
}

/** `value` is JSON text, and so is the answer. */
export function encodeOffered({ value, ...rest }: Omit<Offered, 'value'> & { readonly value: string }): string {
  return `${JSON.stringify(rest).slice(0, -1)},"value":${value}}`
}

/** The stored value while a call gives the offer back. */
export const taken = 'null'

/** Null: the offer was taken, or the stored value is not an offer. */
export function readOffered(inbox: string, key: string, text: string): (Offered & { readonly id: string }) | null {
  try {
    const id = key.slice(inboxPrefix(inbox).length)
    const stored = parseJson(text) as { readonly [Name in keyof Offered]?: unknown }
    const { queue, batch, attempt, value } = stored
    if (!isJobId(id) || !isQueueName(queue) || !(batch === null || isJobId(batch))) return null
    if (!Number.isSafeInteger(attempt) || Number(attempt) < 0) return null
    return { id, queue, batch, attempt: Number(attempt), value }
  } catch {
    return null
  }
}
