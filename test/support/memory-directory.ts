// A directory in memory, if the system has one with enough space. Nothing there waits for a disk, and creating a file costs a
// tenth. Programs still request syncs, so they behave the same; only a loss of power does not.
import { statfsSync } from 'node:fs'

const path = '/dev/shm'
/** More than all databases and logs of a run. */
const roomBytes = 4 * 2 ** 30

export function memoryDirectory(): string | undefined {
  try {
    const { bavail, bsize } = statfsSync(path)
    return Math.min(bavail * bsize, process.availableMemory()) >= roomBytes ? path : undefined
  } catch {
    return undefined
  }
}
