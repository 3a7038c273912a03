// Whether the paths still lead to the files that were opened. A file that is deleted, moved or replaced stays open: SQLite goes
// on writing to it, every commit succeeds, and all of them are lost when the last process closes it. Other processes open the new
// file meanwhile, so two stores work apart.
//
// The same applies to the log (`-wal`) and its index (`-shm`), which exist as long as a connection is open. A process that opens
// the file after they were removed starts a log of its own. Then neither process reads the commits of the other, and at a
// checkpoint each overwrites pages of the other.
//
// So a durable commit is answered only if each path leads to its file after the commit. That is three `stat` for a whole group: 6
// to 8 µs of processor time, beside an fsync of 400 µs or more. Calls that need not be durable, and reads, look once a second. A
// file that was moved back is used again.

import { type BigIntStats, statSync } from 'node:fs'
import { resolve } from 'node:path'
import { HoldfastError, isHoldfastError } from '../../../errors.ts'

const lookEveryMs = 1_000

interface Opened {
  readonly path: string
  readonly stats: BigIntStats
}

export class OwnFile {
  readonly #files: readonly Opened[]
  #lookAt = 0

  /**
   * For a connection that has read the file, so that its log exists. The path is made absolute: the working directory may change.
   */
  constructor(path: string) {
    this.#files = ['', '-wal', '-shm'].flatMap((suffix) => {
      const each = `${resolve(path)}${suffix}`
      const stats = statOf(each)
      return stats ? [{ path: each, stats }] : []
    })
  }

  /** Looks if it has not for a second. */
  requireSometimes(): void {
    if (performance.now() >= this.#lookAt) this.require({ mayHaveLanded: false })
  }

  require({ mayHaveLanded }: { readonly mayHaveLanded: boolean }): void {
    for (const { path, stats } of this.#files) {
      const found = statOf(path)
      if (found?.ino === stats.ino && found.dev === stats.dev) continue
      const outcome = mayHaveLanded ? 'The call was written to the old file.' : 'Nothing was carried out.'
      throw new HoldfastError(
        'STORE_UNAVAILABLE',
        `The file ${path} was deleted, moved or replaced while it was open: work that is written now would be lost. ${outcome} Stop every process that uses it, put the file or a backup of the database in its place, and start them again.`,
        { path, fileIs: found === undefined ? 'gone' : 'another', mayHaveLanded },
      )
    }
    this.#lookAt = performance.now() + lookEveryMs
  }
}

export function isFileGone(error: unknown): boolean {
  return isHoldfastError(error, 'STORE_UNAVAILABLE') && error.facts['fileIs'] !== undefined
}

function statOf(path: string): BigIntStats | undefined {
  return statSync(path, { bigint: true, throwIfNoEntry: false })
}
