// A directory that lies in memory, where the system has one with room: nothing there waits for a disk, and to make a file
// costs a tenth. Syncs are asked for all the same, so what a program does is the same; only a loss of power is not.
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
