// A page that is being filled. It ends at its number of entries, or before the entry that would exceed its bytes. An entry that
// is larger than all bytes of a page comes alone. So one page never exceeds the memory of a process, whatever is stored.

import { bounds } from '../job/bounds.ts'

export class Page<Entry> {
  readonly entries: Entry[] = []
  readonly #limit: number
  #bytes: number
  #isCut = false

  /** `bytes`: what earlier steps of the same page have filled. */
  constructor(limit: number, bytes = 0) {
    this.#limit = limit
    this.#bytes = bytes
  }

  /** False: the entry belongs to the next page, and this page takes no more. */
  add(entry: Entry, bytes: number): boolean {
    const isFirst = this.entries.length === 0 && this.#bytes === 0
    const isFull = this.entries.length >= this.#limit || (!isFirst && bytes > this.bytesLeft)
    if (this.#isCut || isFull) {
      this.#isCut = true
      return false
    }
    this.entries.push(entry)
    this.#bytes += bytes
    return true
  }

  /** An entry was found that the page did not take. */
  get isCut(): boolean {
    return this.#isCut
  }

  /** Has as many entries as asked for. Whether more follow is not known yet. */
  get hasAll(): boolean {
    return this.entries.length >= this.#limit
  }

  /** How many rows to read: one more than fit, which shows that more follow. */
  get rowsLeft(): number {
    return this.#limit + 1 - this.entries.length
  }

  get bytes(): number {
    return this.#bytes
  }

  get bytesLeft(): number {
    return Math.max(0, bounds.pageBytes - this.#bytes)
  }
}
