// The messages that processes send each other by NOTIFY. They are gathered, and sent as one message that fits a notification. A
// message that would be too long says only that there is something, and every process that receives it reads all counts.
//
// Every login of the database may send a notification on this channel, whatever its rights. So a message is read strictly:
// anything that this file does not write itself reads as null. What remains is a hint. A forged one makes a process read the
// store's tables, and only these tables decide which jobs are ready, and which are to be cancelled.

import { isJobId, isQueueName } from '../../job/names.ts'

export const messageMaxBytes = 7_000
/** The highest count of jobs in a message: each job wakes one waiting claim, and no process has as many. */
export const countMax = 1_000_000

export interface Message {
  /** The process that sends it; a caller's own transaction leaves it out. */
  readonly from?: string
  /** Tests whether notifications arrive. */
  readonly probe?: true
  /** How many jobs became ready in which queue. */
  readonly ready?: readonly (readonly [string, number])[]
  /** Running jobs that are asked to cancel. */
  readonly cancel?: readonly string[]
  /** A caller's own transaction, or SQL, has brought jobs to limit keys. Which keys is not said: every login could read them. */
  readonly held?: true
  /** A caller's own transaction has sent signals. To which jobs is not said. */
  readonly signalled?: true
}

export class Notifications {
  readonly #ready = new Map<string, number>()
  readonly #cancels = new Set<string>()

  get isEmpty(): boolean {
    return this.#ready.size === 0 && this.#cancels.size === 0
  }

  addReady(ready: Iterable<readonly [string, number]>): void {
    for (const [queue, count] of ready) this.#ready.set(queue, (this.#ready.get(queue) ?? 0) + count)
  }

  addCancels(ids: Iterable<string>): void {
    for (const id of ids) this.#cancels.add(id)
  }

  add(other: Notifications): void {
    this.addReady(other.#ready)
    this.addCancels(other.#cancels)
  }

  toText(from: string): string {
    const ready = this.#ready.size > 0 && { ready: [...this.#ready] }
    const cancel = this.#cancels.size > 0 && { cancel: [...this.#cancels] }
    return textOf({ from, ...ready, ...cancel })
  }
}

/** A message as the payload of a notification. */
export function textOf(message: Message & { readonly from: string }): string {
  const { from, ready, cancel } = message
  const counted = ready && { ready: ready.map(([queue, count]) => [queue, Math.min(count, countMax)]) }
  const text = JSON.stringify({ from, ...counted, ...(cancel && { cancel }) })
  if (text.length * 3 <= messageMaxBytes || Buffer.byteLength(text) <= messageMaxBytes) return text
  return JSON.stringify({ from } satisfies Message)
}

export function probeOf(from: string): string {
  return JSON.stringify({ from, probe: true } satisfies Message)
}

/** Null: no process of this store sent it. */
export function readMessage(text: string): Message | null {
  if (text.length > messageMaxBytes || !text.startsWith('{')) return null
  const fields = fieldsOf(text)
  if (fields === null) return null
  const { from, probe, ready, cancel, held, signalled, ...unknown } = fields
  if (Object.keys(unknown).length > 0) return null
  if (from !== undefined && !isJobId(from)) return null // a UUID, as the ids of jobs are
  if (ready !== undefined && !isReady(ready)) return null
  if (cancel !== undefined && !isCancel(cancel)) return null
  if (held !== undefined && held !== true) return null
  if (signalled !== undefined && signalled !== true) return null
  const says = {
    ...(ready && { ready }),
    ...(cancel && { cancel }),
    ...(held && ({ held: true } as const)),
    ...(signalled && ({ signalled: true } as const)),
  }
  const saysAnything = Object.keys(says).length > 0
  if (probe !== undefined) return probe === true && from && !saysAnything ? { from, probe } : null
  if (from === undefined) return saysAnything ? says : null
  return { from, ...says }
}

function fieldsOf(text: string): { readonly [Name in keyof Message]: unknown } | null {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : null
  } catch {
    return null
  }
}

function isReady(value: unknown): value is [string, number][] {
  if (!isFilled(value) || !value.every(isCounted)) return false
  return new Set(value.map(([queue]) => queue)).size === value.length
}

function isCounted(value: unknown): value is [string, number] {
  if (!Array.isArray(value) || value.length !== 2) return false
  const [queue, count] = value
  return isQueueName(queue) && Number.isInteger(count) && count >= 1 && count <= countMax
}

function isCancel(value: unknown): value is string[] {
  return isFilled(value) && value.every(isJobId) && new Set(value).size === value.length
}

function isFilled(value: unknown): value is unknown[] {
  return Array.isArray(value) && value.length > 0
}
