// The machine on which figures were measured: figures of different machines cannot be compared.

import { statfsSync } from 'node:fs'
import { availableParallelism, cpus, loadavg, totalmem } from 'node:os'

export interface Machine {
  readonly cpu: string
  readonly cores: number
  readonly memoryGiB: number
  readonly node: string
  readonly sqlite: string
  /** Where the files are. The kind of disk is not known; `isInMemory` says whether it is one at all. */
  readonly path: string
  readonly isInMemory: boolean
  readonly load: number
}

const tmpfs = 0x01021994

export function describeMachine(path: string): Machine {
  return {
    cpu: cpus()[0]?.model.trim() ?? 'unknown processor',
    cores: availableParallelism(),
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    node: process.version,
    sqlite: process.versions['sqlite'] ?? 'unknown',
    path,
    isInMemory: statfsSync(path).type === tmpfs,
    load: loadavg()[0] ?? 0,
  }
}

export function machineText({ cpu, cores, memoryGiB, node, sqlite, path, isInMemory, load }: Machine): string {
  const lines = [
    `${cpu}, ${cores} cores, ${memoryGiB} GiB; Node ${node}, SQLite ${sqlite}; files in ${path}; load ${load.toFixed(1)}`,
  ]
  if (isInMemory)
    lines.push('Those files are in memory, where waiting for the disk costs nothing: use --dir for a real disk.')
  if (load > cores / 2)
    lines.push('Something else is running on this machine: rely on the ratios rather than on the figures.')
  return lines.join('\n')
}
