// What other processes are to be told: gathered, and said in one message that fits a notification. One that would be too
// long says only that there is something, and whoever hears it looks at everything.

const messageMaxBytes = 7_000

export interface Message {
  /** Who says it; a transaction of the caller says none. */
  readonly from?: string
  /** Only whether it is heard matters. */
  readonly probe?: true
  /** How many jobs became ready in which queue. */
  readonly ready?: readonly (readonly [string, number])[]
  /** Running jobs that are asked to be cancelled. */
  readonly cancel?: readonly string[]
}

export class News {
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

  add(other: News): void {
    this.addReady(other.#ready)
    this.addCancels(other.#cancels)
  }

  toText(from: string): string {
    const ready = this.#ready.size > 0 && { ready: [...this.#ready] }
    const cancel = this.#cancels.size > 0 && { cancel: [...this.#cancels] }
    return textOf({ from, ...ready, ...cancel })
  }
}

/** As a notification takes it. */
export function textOf(message: Message & { readonly from: string }): string {
  const text = JSON.stringify(message)
  if (text.length * 3 <= messageMaxBytes || Buffer.byteLength(text) <= messageMaxBytes) return text
  return JSON.stringify({ from: message.from } satisfies Message)
}

/** Null where it is somebody else's. */
export function readMessage(text: string): Message | null {
  try {
    const message: Message | null = JSON.parse(text)
    const lists = [message?.ready ?? [], message?.cancel ?? []]
    return typeof message === 'object' && lists.every(Array.isArray) ? message : null
  } catch {
    return null
  }
}
