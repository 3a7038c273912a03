// Other processes on the same database: the programs in `processes/`.
import { Program } from '../sqlite/process.ts'

export type { Program }

export function startProgram(name: string, ...args: readonly string[]): Program {
  return Program.start(`../../postgres/processes/${name}`, ...args)
}
