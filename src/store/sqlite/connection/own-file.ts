// Whether the path still leads to the file that was opened. A file that is deleted, moved or replaced stays open: SQLite goes on
// writing to it, every commit succeeds, and all of them are lost when the last process closes it. Other processes open the new
// file meanwhile, so two stores work apart.
//
// So a durable commit is answered only if the path leads to the file after the commit. That is one `stat` for a whole group: 3 to
// 5 µs of processor time, beside an fsync of 400 µs or more. Calls that need not be durable, and reads, look once a second. A
// file that was moved back is used again.

import { type BigIntStats, statSync } from 'node:fs'
import { resolve } from 'node:path'
import { HoldfastError, isHoldfastError } from '../../../errors.ts'

const lookEveryMs = 1_000

export class OwnFile {
  /** Absolute, because the working directory may change. */
  readonly #path: string
  readonly #opened: BigIntStats | undefined
  #lookAt = 0

  constructor(path: string) {
    this.#path = resolve(path)
    this.#opened = statOf(this.#path)
  }

  /** Looks if it has not for a second. */
  requireSometimes(): void {
    if (performance.now() >= this.#lookAt) this.require({ mayHaveLanded: false })
  }

  require({ mayHaveLanded }: { readonly mayHaveLanded: boolean }): void {
    const found = statOf(this.#path)
    if (found !== undefined && found.ino === this.#opened?.ino && found.dev === this.#opened.dev) {
      this.#lookAt = performance.now() + lookEveryMs
      return
    }
    const outcome = mayHaveLanded ? 'The call was written to the old file.' : 'Nothing was carried out.'
    throw new HoldfastError(
      'STORE_UNAVAILABLE',
      `The file ${this.#path} was deleted, moved or replaced while it was open: work that is written now would be lost. ${outcome} Stop every process that uses it, put the file or a backup in its place, and start them again.`,
      { path: this.#path, fileIs: found === undefined ? 'gone' : 'another', mayHaveLanded },
    )
  }
}

export function isFileGone(error: unknown): boolean {
  return isHoldfastError(error, 'STORE_UNAVAILABLE') && error.facts['fileIs'] !== undefined
}

function statOf(path: string): BigIntStats | undefined {
  return statSync(path, { bigint: true, throwIfNoEntry: false })
}
