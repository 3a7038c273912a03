// What happened in a run, line by line. Ids and fences are random, also in a simulation. They decide nothing, and the trace
// numbers them in the order in which they appear. So the same seed writes the same lines.

import { createHash } from 'node:crypto'
import type { Timeline } from './timeline.ts'

export class Trace {
  readonly lines: string[] = []
  readonly #timeline: Timeline
  readonly #names = new Map<string, string>()

  constructor(timeline: Timeline) {
    this.#timeline = timeline
  }

  add(actor: string, what: string): void {
    this.lines.push(`${this.#timeline.now.toFixed(2).padStart(9)} ${actor.padEnd(5)} ${what}`)
  }

  /** A short name for an id or a fence. */
  nameOf(id: string): string {
    const known = this.#names.get(id)
    if (known !== undefined) return known
    const name = `j${this.#names.size + 1}`
    this.#names.set(id, name)
    return name
  }

  /** The same text with short names for the ids in it. */
  rename(text: string): string {
    return text.replaceAll(/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g, (id) => this.nameOf(id))
  }

  get hash(): string {
    return createHash('sha256').update(this.lines.join('\n')).digest('hex').slice(0, 16)
  }
}
