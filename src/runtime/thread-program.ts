// What a thread of ours runs, wherever the package runs from.
//
// A thread is always started from text (`eval: true`), never from a file:
//
//   the package   the program is a file beside the module that starts it; the text imports that file
//   a bundle      that file is not there; the text is the whole program, which the build of the package put into the module
//                 `bundled` beside it, so that every bundler takes it along as it takes any other module
//
// Text, because a process that was started with `--input-type` hands that flag on to its threads, and Node refuses it for a
// thread that starts from a file. To leave the flag out by `execArgv` does not work: Node refuses a list with flags that belong
// to the process, such as `--title`. The flag decides whether the text is read as a module or as a script, so the text must be
// both: it has no import statement and uses no `require` of its own.

import { existsSync } from 'node:fs'
import { HoldfastError } from '../errors.ts'

/** A program that is a file of the package. Paths are seen from its root folder, `src` or `dist`, and have no extension. */
export interface ProgramFile {
  /** The `import.meta.url` of the module that starts the thread. A bundler may leave it out, or give that of the bundle. */
  readonly from: string | undefined
  /** Where that module is in the package. A bundle has another name, so the file is not looked for beside a bundle. */
  readonly module: string
  /** The file, beside that module. */
  readonly program: string
}

/** The text that runs the program's file; null in a bundle. */
export function textOfFile({ from, module, program }: ProgramFile): string | null {
  const extension = ['.ts', '.js'].find((each) => from?.endsWith(`/${module}${each}`))
  if (extension === undefined) return null
  const file = new URL(`./${program}${extension}`, from)
  return existsSync(file) ? `import(${JSON.stringify(file.href)})` : null
}

/** The text of a program that a bundle took along. */
export function textOfBundled(bundled: string | null): string {
  if (bundled !== null) return `((require) => {${bundled}\n})((id) => process.getBuiltinModule(id))`
  const message =
    'The programs of the threads are put in when the package is built: bundle the built package, not its source.'
  throw new HoldfastError('UNSUPPORTED', message)
}
